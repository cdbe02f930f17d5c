#!/usr/bin/env bash
# Gets the wheels that h200.sh installs on a machine without a network: bench/fetch_wheels.sh [FOLDER]
#
# What peers/requirements-h200.txt names, for CPython 3.12 on x86-64 Linux, whatever python3 runs this. The folder
# (default PLIMSOLL_WHEELS, else bench/.wheels) then holds these wheels and no other.
set -euo pipefail
bench=$(cd "$(dirname "$0")" && pwd)
folder=${1:-${PLIMSOLL_WHEELS:-$bench/.wheels}}

mkdir -p "$folder"
rm -f "$folder"/*.whl # Two versions of one package would stop the install.
"${PYTHON:-python3}" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --dest "$folder" \
    --python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 -r "$bench/peers/requirements-h200.txt"
du -ch "$folder"/*.whl
