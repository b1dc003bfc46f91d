#!/usr/bin/env bash
# Runs the pipeline of config/ci.yaml through profiles/slurm, on whatever cluster answers, and checks
# how its jobs ran. Call it through one_node.sh; LOG=FILE keeps the summary.
set -euo pipefail

results=${RESULTS:-results/slurm-test}
log=${LOG:-/dev/null}
# A test need not spare the scheduler: it asks every few seconds.
snake=(snakemake --profile profiles/slurm --configfile config/ci.yaml --config "results_dir=$results"
    --slurm-logdir "$results/logs/slurm" --slurm-init-seconds-before-status-checks 3
    --seconds-between-status-checks 3 --jobs 4 --latency-wait 30)

summary() {
    echo "$(sinfo --version), snakemake $(snakemake --version), plug-in $(version snakemake-executor-plugin-slurm)"
    echo "run took ${1} s"
    printf '%-60s %-10s %5s %-9s %-5s %8s\n' job state cpus exclusive gpus elapsed
    # In the order of their ids. OverSubscribe is NO for a job that has its node to itself.
    squeue --states=all --noheader --sort=i --Format="comment:120,state:12,numcpus:6,oversubscribe:6,tres-per-job:10,timeused:10" |
        awk '{ gpus = NF > 5 && $5 ~ /gpu/ ? $5 : "none"; sub("^rule_", "", $1); sub("_wildcards_", " ", $1);
               printf "%-60s %-10s %5s %-9s %-5s %8s\n", $1, $2, $3, $4 == "NO" ? "yes" : "no", gpus, $NF }'
}

version() { python -c "from importlib.metadata import version; print(version('$1'))"; }

check() {  # the summary: each fault is a line
    awk 'NR > 3 {
        n++
        is_timing = $0 ~ /^(baseline|batching|quantization|kv_cache|speculative|moe|serving)_slice|^finalists |^validation /
        timing += is_timing
        if ($0 !~ / COMPLETED /) { print "not completed: " $0; bad = 1 }
        if (is_timing != ($0 ~ / yes +[^ ]+ +[0-9:-]+$/)) { print "wrong exclusiveness: " $0; bad = 1 }
        if ($0 !~ / none +[0-9:-]+$/) { print "asks for GPUs: " $0; bad = 1 }
    } END { if (!timing) { print "no timing job ran"; bad = 1 }; print n " jobs, " timing " of them timing jobs"; exit bad }' "$1"
}

"${snake[@]}" --dry-run --quiet rules
start=$SECONDS
"${snake[@]}"
text=$(mktemp)
summary $((SECONDS - start)) >"$text"
check "$text" | tee -a "$text"
[ -s "$results/recommendation.yaml" ] && echo "recommendation written" >>"$text"
# What is complete stays complete: the login node alone sees that.
"${snake[@]}" --dry-run 2>&1 | grep -o "Nothing to be done" >>"$text"
cat "$text"
[ "$log" = /dev/null ] || cp "$text" "$log"
rm "$text"
