#!/usr/bin/env bash
# Several ranks, a card each, on one host:
#
#     bench/h200_ranks.sh BINARY bits|scale [--models 0.5b,1.5b,7b] [--ranks 1,2,4] [--results DIR]
#
# `bits` trains the same run on every number of ranks and compares everything that it leaves. `scale` gives every rank the same
# work and compares the times of updates and steps (weak scaling). Rows go to bench/results/h200_ranks.json; rows of other models
# and numbers stay.
set -euo pipefail
bench=$(cd "$(dirname "$0")" && pwd)
PYTHONUNBUFFERED=1 exec "${PYTHON:-python3}" "$bench/h200_ranks.py" "$@"
