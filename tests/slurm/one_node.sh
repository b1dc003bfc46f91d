#!/usr/bin/env bash
# Runs a command on a Slurm cluster of one node: this machine. Needs root, and slurm-wlm and munge.
#
#   tests/slurm/one_node.sh COMMAND [ARGUMENT...]
#
# Starts munged (where none answers), slurmctld and slurmd, runs the command, and stops exactly what it
# started. The configuration lies at /etc/slurm/slurm.conf, because the srun inside a job looks there;
# a file that is there already is left alone, and the script refuses to run.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
conf=/etc/slurm/slurm.conf

fail() { echo "one_node.sh: $*" >&2; exit 2; }

[ $# -gt 0 ] || fail "give a command to run on the cluster"
[ "$(id -u)" = 0 ] || fail "slurmd needs root to start jobs; run as root, in a container for example"
for tool in slurmctld slurmd munged sinfo; do
    [ -n "$(PATH=$PATH:/usr/sbin command -v "$tool")" ] || fail "$tool is missing: apt-get install slurm-wlm munge"
done
[ ! -e "$conf" ] || fail "$conf exists: this machine has a cluster already"
export PATH=$PATH:/usr/sbin

state=$(mktemp -d /tmp/infopt-slurm.XXXXXX)
munge_pid=
end() {  # one process by its id, and wait for it
    kill "$1" 2>/dev/null || return 0
    for _ in $(seq 40); do
        # A zombie has ended; in a container nobody may reap it.
        case $(ps -o stat= -p "$1") in "" | Z*) return 0 ;; esac
        sleep 0.25
    done
}
stop() {
    local pid_file pid
    scancel --quiet --user=root 2>/dev/null || true
    for pid_file in slurmd slurmctld; do
        pid=$(cat "$state/$pid_file.pid" 2>/dev/null || true)
        [ -z "$pid" ] || end "$pid"
    done
    [ -z "$munge_pid" ] || end "$munge_pid"
    rm -f "$conf"
    [ -n "${KEEP_STATE:-}" ] || rm -rf "$state"
}
trap stop EXIT
trap 'exit 130' INT TERM

if ! munge -n >/dev/null 2>&1; then
    install -d -o munge -g munge -m 755 /run/munge
    runuser -u munge -- munged --foreground >"$state/munged.log" 2>&1 &
    munge_pid=$!
fi
mkdir -p "$state/ctld" "$state/d" "$(dirname "$conf")"
memory=$(slurmd -C | sed -n 's/.*RealMemory=\([0-9]*\).*/\1/p')
sed -e "s|@HOST@|$(hostname -s)|g" -e "s|@STATE@|$state|g" -e "s|@CPUS@|$(nproc)|g" \
    -e "s|@MEMORY@|$memory|g" "$here/slurm.conf.in" >"$conf"

for _ in $(seq 60); do munge -n >/dev/null 2>&1 && break; sleep 0.5; done
slurmctld
slurmd -N node1
for _ in $(seq 120); do
    [ "$(sinfo --noheader --format=%T 2>/dev/null)" = idle ] && break
    sleep 0.5
done
[ "$(sinfo --noheader --format=%T 2>/dev/null)" = idle ] || {
    tail -n 20 "$state"/*.log >&2
    fail "the node did not become idle"
}
"$@"
