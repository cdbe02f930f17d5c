#!/bin/sh
# Written by `plimsoll launch ray`: 2 hosts, 8 ranks each, on cards.
# The nodes have plimsoll and plimsoll-ray, and /shared/project at the same place.
exec ray job submit -- \
    plimsoll-ray runs/qwen2.5-7b-grpo.toml --hosts 2 --ranks-per-host 8 --cpus-per-rank 4 --gpus-per-rank 1 --memory-per-host 18253611008 --open-files 1024 --restarts 3 --workdir /shared/project --program plimsoll -- --set run.threads=4
