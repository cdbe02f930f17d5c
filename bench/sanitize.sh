#!/usr/bin/env bash
# compute-sanitizer over the CUDA device's tests, the golden models of every family, two checked steps of a tiny model,
# and steps of a model of 135M, of all weights and of adapters:
#
#     bench/sanitize.sh PLIMSOLL TESTS MODELS [--logs DIR]
#
# PLIMSOLL is the binary, TESTS and MODELS the test binaries of crates/cuda and crates/model (`cargo test -p CRATE --test
# it --no-run` prints its path). One line a tool and program; the exit code is 1 if any reported an error, 2 if it could
# not be tried. SANITIZER names another compute-sanitizer, TOOLS the tools, TEST_FILTER and MODEL_FILTER the tests to run.
set -euo pipefail
usage() { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 3 ] || usage
plimsoll=$(realpath "$1") tests=$(realpath "$2") models=$(realpath "$3"); shift 3
logs=
if [ "${1:-}" = --logs ] && [ $# -eq 2 ]; then logs=$2; elif [ $# -ne 0 ]; then usage; fi
sanitizer=${SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
for program in "$plimsoll" "$tests" "$models" "$sanitizer"; do
    [ -x "$program" ] || { echo "sanitize.sh: $program is not a program that can be run" >&2; exit 2; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "$logs" ]; then mkdir -p "$logs"; logs=$(realpath "$logs"); else logs=$work; fi
cd "$root"

# Memory that a kernel reads before anything wrote it is an error of initcheck; the arena is one allocation, of which the
# gaps between regions stay unwritten and unread. It does not see all stores of the vendor's products: a checked build
# fills their outputs with NaN before, so an element that such a product leaves is named all the same. Slow kernels must
# not look hung: tests run one after the other.
failed=0
check() { # tool, name, command...
    local tool=$1 name=$2 log status=0 said; shift 2
    log=$logs/$tool-$name.log
    "$sanitizer" --tool "$tool" --error-exitcode 86 --print-limit 20 "$@" >"$log" 2>&1 || status=$?
    said=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -n 1 | sed 's/^=* *//') || true
    if grep -q '^skipped: ' "$log" || [ -z "$said" ]; then
        echo "$tool $name: not tried, exit code $status: $(grep -m 1 -E '^skipped: |error\[|Error' "$log" || tail -n 1 "$log")"
        failed=2
    elif [ "$status" -ne 0 ] || ! grep -qE "(^|[^0-9])0 errors" <<<"$said"; then
        echo "$tool $name: exit code $status, $said (see $log)"
        [ "$logs" != "$work" ] || tail -n 60 "$log" >&2
        [ "$failed" -eq 2 ] || failed=1
    else
        echo "$tool $name: ok, $said"
    fi
}
step=(bench step --device cuda --prompts 2 --group 2 --prompt-tokens 16 --new-tokens 8 --repeats 1 --checked)
for tool in ${TOOLS:-memcheck racecheck initcheck}; do
    check "$tool" tests "$tests" --test-threads=1 --nocapture ${TEST_FILTER:+"$TEST_FILTER"}
    PLIMSOLL_TEST_DEVICE=cuda PLIMSOLL_TEST_CHECKED=1 check "$tool" models "$models" --test-threads=1 --nocapture ${MODEL_FILTER:+"$MODEL_FILTER"}
    check "$tool" step "$plimsoll" "${step[@]}"
    check "$tool" step-lora "$plimsoll" "${step[@]}" --lora-rank 8
    rm -rf "$work/out"
    check "$tool" train "$plimsoll" train runs/first.toml --no-supervisor --checked --set run.device=cuda \
        --set train.steps=2 --set rollout.prompts_per_step=4 --set eval.prompts_max=8 --set "run.dir=$work/out"
done
exit "$failed"
