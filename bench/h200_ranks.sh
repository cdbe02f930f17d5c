#!/usr/bin/env bash
# Several ranks, a card each, on one host:
#
#     bench/h200_ranks.sh BINARY bits|scale|faults|resume|nccl [--models "0.5b,1.5b,7b,0.5b stage 3,..."] [--ranks 1,2,4] [--results DIR] [--seconds N] [--limit N]
#     bench/h200_ranks.sh BINARY PART --rehearse --results DIR       # tries the script where there is no GPU
#
# `bits` trains the same run on every number of ranks and compares everything that it leaves. `scale` gives every rank
# the same work and compares the times of updates and steps (weak scaling); it also compares the memory of each card
# with the plan, and ends each run of several ranks by killing one. `faults` kills each rank of the built-in model's
# run, resumes the run on another number of ranks, and compares what it leaves with a run of one rank. `resume --ranks
# 4,3,1` does so once with a large model: killed on 4 ranks, resumed on 3, compared with 1. `nccl` makes each card a
# host of its own (as root), which reaches the others by the loopback's sockets alone, and compares what ranks leave by
# NCCL and by Plimsoll's own exchange with one rank. Rows go to bench/results/h200_ranks.json; rows of other models and
# numbers stay. A part takes at most --seconds, a run --limit. PLIMSOLL_COMMIT names the commit of the binary where
# there is no checkout, PYTHON another interpreter. `bits` and `resume` write gigabytes: a TMPDIR in memory spares the
# disk.
set -euo pipefail
bench=$(cd "$(dirname "$0")" && pwd)
PYTHONUNBUFFERED=1 exec "${PYTHON:-python3}" "$bench/h200_ranks.py" "$@"
