#!/usr/bin/env bash
# Plimsoll and its peers on one NVIDIA H200, without a network:
#
#     bench/h200.sh BINARY PART [--results DIR] [--seconds N]
#     PART: ours|decode|rollout|train|step|lora|lora-step|peers-7b|peers-3b|peers-1.5b|peers-0.5b
#     bench/h200.sh BINARY PART --rehearse --results DIR       # tries the script where there is no GPU
#
# Each part ends within eight minutes, adds its rows to bench/results/h200.json (other parts' rows stay) and renders
# h200.md next to it. Needs a python3 with PyTorch and transformers; TRL, Liger and datasets come from the wheels that
# bench/fetch_wheels.sh left in PLIMSOLL_WHEELS (default bench/.wheels) and are installed into a folder that is removed.
# The parts peers-7b to peers-0.5b need vLLM (0.26.0 with PyTorch 2.11), for example in a folder of PYTHONPATH.
# PYTHON names another interpreter, PLIMSOLL_COMMIT the commit of the binary where there is no checkout.
set -euo pipefail
bench=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
wheels=${PLIMSOLL_WHEELS:-$bench/.wheels}

site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# Without them the peers that need them fail, each in its own row, and the rest goes on.
if compgen -G "$wheels/*.whl" >/dev/null; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check \
        --target "$site" "$wheels"/*.whl || echo "h200.sh: the wheels of $wheels could not be installed" >&2
else
    echo "h200.sh: no wheels in $wheels; bench/fetch_wheels.sh gets them" >&2
fi
PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 "$python" "$bench/h200.py" "$@"
