#!/usr/bin/env bash
# Runs the pipeline through profiles/slurm, on whatever cluster answers, ends two of its jobs while they
# measure, and checks how all of them ran. Call it through one_node.sh. CONFIG=config/ci.yaml asks more
# questions (an hour on two cores); LOG=FILE keeps the summary.
set -euo pipefail

config=${CONFIG:-tests/slurm/config.yaml}
results=${RESULTS:-results/slurm-test}  # a new folder
log=${LOG:-/dev/null}
# A test need not spare the scheduler: it asks every few seconds.
snake=(snakemake --profile profiles/slurm --configfile "$config" --config "results_dir=$results"
    --slurm-logdir "$results/logs/slurm" --slurm-init-seconds-before-status-checks 3
    --seconds-between-status-checks 3 --jobs 4 --latency-wait 30)
here=$(dirname "$0")
[ ! -e "$results" ] || { echo "$results exists: remove it first" >&2; exit 2; }
text=$(mktemp)
watchers=()
trap 'kill "${watchers[@]}" 2>/dev/null || true; rm -f "$text"' EXIT

num_records() { compgen -G "$results/runs/$1/$2.*.json" | wc -l; }

is_whole() { python -c 'import json, sys; [json.load(open(f)) for f in sys.argv[1:]]' "$@"; }

# Ends the job of a slice after its first record and before its manifest, and looks at what it left.
interrupt() {  # stage, slice, cancel or kill
    local job manifest=$results/slices/$1/$2.json
    until compgen -G "$results/runs/$1/$2.*.json" >/dev/null; do sleep 0.2; done
    job=$(squeue --noheader --states=running --Format=JobID:12,Comment:120 |
        awk -v comment="rule_$1_slice_wildcards_$2" '$2 == comment { print $1 }')
    [ -n "$job" ] || { echo "FAULT $1 $2 was not found running" >>"$text"; return; }
    case $3 in
        cancel) scancel "$job" ;;
        kill) scancel --signal=KILL "$job.0" ;;  # as the kernel does when memory is short
    esac
    while [ -n "$(squeue --noheader --jobs="$job" --states=running,completing)" ]; do sleep 0.2; done
    [ ! -e "$manifest" ] || { echo "FAULT $1 $2 ended too soon to be interrupted" >>"$text"; return; }
    is_whole "$results/runs/$1/$2".*.json || echo "FAULT a record is broken" >>"$text"
    [ -z "$(find "$results/runs" "$results/slices" -name '*.tmp')" ] || echo "FAULT a half-written file is left" >>"$text"
    echo "$1 $2: $3 after $(num_records "$1" "$2") record(s); no manifest, every file whole" >>"$text"
}

resumed() {  # stage, slice
    python -c 'import json, sys; m = json.load(open(sys.argv[1])); print("resumed:", m["stage"], m["slice"],
        m["num_resumed"], "of", len(m["records"]), "records taken over"); sys.exit(not m["num_resumed"])' \
        "$results/slices/$1/$2.json" >>"$text"
}

version() { python -c "from importlib.metadata import version; print(version('$1'))"; }

"${snake[@]}" --dry-run --quiet rules
echo "$(sinfo --version), snakemake $(snakemake --version), plug-in $(version snakemake-executor-plugin-slurm), $config" >"$text"
start=$SECONDS
interrupt kv_cache compression cancel & watchers+=($!)
interrupt quantization schemes kill & watchers+=($!)
"${snake[@]}"
echo "run took $((SECONDS - start)) s" >>"$text"
wait "${watchers[@]}"
status=0
resumed kv_cache compression || status=1
resumed quantization schemes || status=1
squeue --states=all --noheader --sort=i --Format="$(python "$here/slurm_jobs.py" --format)" |
    python "$here/slurm_jobs.py" kv_cache_slice/compression=CANCELLED quantization_slice/schemes=FAILED >>"$text" || status=1
# What is complete stays complete: the login node alone sees that.
"${snake[@]}" --dry-run 2>&1 | grep -o "Nothing to be done" >>"$text" || status=1
[ -s "$results/recommendation.yaml" ] && echo "recommendation written" >>"$text" || status=1
cat "$text"
! grep -q FAULT "$text" || status=1
[ "$log" = /dev/null ] || cp "$text" "$log"
exit "$status"
