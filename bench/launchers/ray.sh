#!/bin/sh
# Tries plimsoll-ray with a real Ray on this machine: ranks placed, output passed on, a killed rank named, a restart that goes on, and
# what a cluster cannot give; then on two nodes, of which the second has its own process namespace (needs root). Needs python3 and a
# package index for pip; everything is written into FOLDER.
#
#   sh bench/launchers/ray.sh FOLDER [BINARY]
set -u
[ $# -ge 1 ] || { echo "usage: sh bench/launchers/ray.sh FOLDER [BINARY]" >&2; exit 2; }
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
plimsoll="${2:-target/debug/plimsoll}"
. bench/launchers/common.sh

if [ ! -x "$folder/venv/bin/ray" ]; then
    python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q 'ray[default]'
fi
cp -r python/plimsoll-ray "$folder/package" 2>/dev/null
"$folder/venv/bin/pip" install -q --force-reinstall --no-deps "$folder/package" || exit 2
mkdir -p "$folder/bin" && cp "$plimsoll" "$folder/bin/plimsoll"
PATH="$folder/bin:$folder/venv/bin:$PATH"
# Sockets have short names, so the folder for them is not below a long path.
RAY_TMPDIR="$(mktemp -d /tmp/rayXXXX)"
RAY_AUTH_MODE=disabled
export PATH RAY_TMPDIR RAY_AUTH_MODE
trap 'ray stop >/dev/null 2>&1; rm -rf "$RAY_TMPDIR"' EXIT
ray start --head --num-cpus 4 --include-dashboard true --disable-usage-stats >/dev/null 2>&1 || exit 2
RAY_ADDRESS=http://127.0.0.1:8265
there="--workdir $folder/project"

project alone && (cd "$folder/project" && plimsoll train first.toml >/dev/null 2>&1)
wanted="$(weights alone)"

project two && plimsoll-ray first.toml --ranks-per-host 2 $there >"$folder/two.log" 2>&1
fact "2 ranks on one host leave the weights of one process ($wanted)" [ "$(weights two)" = "$wanted" ]
fact "the output of rank 0 is passed on" grep -q '^step 24/24' "$folder/two.log"

project four && kill_rank RANK=2 four &
plimsoll-ray first.toml --ranks-per-host 4 --restarts 1 $there >"$folder/four.log" 2>&1
wait
fact "a killed rank of 4 is named: $(grep -m 1 -o 'rank 2 .* was killed: SIGKILL[a-z ]*' "$folder/four.log")" \
    grep -q 'rank 2 .* was killed' "$folder/four.log"
fact "it is started again and goes on from a checkpoint" grep -q 'resumes after step' "$folder/four.log"
fact "a run that was killed leaves the same weights" [ "$(weights four)" = "$wanted" ]

export RAY_ADDRESS
project job && kill_rank RANK=1 job &
ray job submit -- plimsoll-ray first.toml --ranks-per-host 2 $there >"$folder/job.log" 2>&1
code=$?
wait
fact "a job whose rank was killed fails (exit code $code)" [ "$code" -ne 0 ]
fact "its message is the rank's sentence" sh -c "ray job list | grep -q 'rank 1 .* was killed'"
rm -rf "$folder/launch-again"
(cd "$folder/project" && plimsoll launch ray first.toml --out "$folder/launch-again" --hosts 1 --ranks-per-host 2 \
    --cpus-per-rank 1 --host-memory 4GiB --submit) >"$folder/again.log" 2>&1
fact "a job of launch ray --submit goes on and leaves the same weights" [ "$(weights job)" = "$wanted" ]

# Seconds from the start of a command until the run in $1 has ended its first step.
until_first_step() { # run-directory command...
    run="$folder/project/$1/events.jsonl"
    shift
    begun="$(date +%s.%N)"
    "$@" >"$folder/timed.log" 2>&1 &
    until grep -q '"event":"step"' "$run" 2>/dev/null; do sleep 0.05; done
    echo "$(date +%s.%N) - $begun" | bc
    wait
}
project plain && plain="$(cd "$folder/project" && until_first_step plain plimsoll train first.toml --ranks 2)"
project timed && timed="$(until_first_step timed ray job submit -- plimsoll-ray first.toml --ranks-per-host 2 $there)"
fact "from ray job submit to the first step: ${timed} s, of a plain start ${plain} s" [ "$(echo "$timed - $plain < 10" | bc)" = 1 ]

unset RAY_ADDRESS
refused() { # words
    begun="$(date +%s)"
    plimsoll-ray first.toml $there "$@" >"$folder/refused.log" 2>&1
    code=$?
    [ "$code" -eq 2 ] && [ $(($(date +%s) - begun)) -lt 30 ]
}
fact "more cards than there are is refused at once" refused --ranks-per-host 2 --gpus-per-rank 1
fact "by name: $(head -n 1 "$folder/refused.log")" grep -q '0 GPU of 2 GPU' "$folder/refused.log"
fact "more memory than there is is refused at once" refused --ranks-per-host 2 --memory-per-host 99999999999999
fact "by name: $(grep -o '[0-9.]* GiB of memory of.*' "$folder/refused.log")" grep -q 'GiB of memory of' "$folder/refused.log"
fact "more hosts than nodes are refused at once" refused --hosts 2 --ranks-per-host 1

if [ "$(id -u)" = 0 ]; then
    head="$(grep -o '[0-9.]*:[0-9]*' "$RAY_TMPDIR"/ray/ray_current_cluster 2>/dev/null || ray status 2>/dev/null | grep -o '[0-9.]*:6379' | head -1)"
    # Its namespace is its own from here on, so that its processes and memory are not those of the first node.
    unshare --pid --fork --mount-proc --kill-child ray start --address "${head:-127.0.0.1:6379}" --num-cpus 4 --block >"$folder/second.log" 2>&1 &
    second=$!
    for _ in $(seq 60); do
        [ "$(ray status 2>/dev/null | grep -c '^ 1 node_')" = 2 ] && break
        sleep 0.5
    done
    project hosts && kill_rank RANK=2 hosts &
    killer=$!
    plimsoll-ray first.toml --hosts 2 --ranks-per-host 2 --restarts 1 $there >"$folder/hosts.log" 2>&1
    wait "$killer"
    fact "a killed rank of 2 hosts is named: $(grep -m 1 -o 'rank 2 .* was killed: SIGKILL[a-z ]*' "$folder/hosts.log")" \
        grep -q 'rank 2 .* was killed' "$folder/hosts.log"
    fact "both hosts start again and go on from a checkpoint" grep -q 'resumes after step' "$folder/hosts.log"
    fact "4 ranks of 2 hosts leave the weights of one process" [ "$(weights hosts)" = "$wanted" ]
    kill "$second"
else
    echo "skipped  two nodes: without root they would be one"
fi
exit "$((failures > 0))"
