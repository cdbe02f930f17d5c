#!/usr/bin/env python3
"""How long a change of one line takes: `cargo test -p CRATE` after a touched file, for every crate, and `cargo build --release`.

    bench/one_line.py                    # every crate; prints a table in Markdown
    bench/one_line.py text plan          # these
    bench/one_line.py --release          # the README's first command after a change in the program, and in a crate far below it

Everything is built once before, which is not counted. Seconds of wall time; run it on a quiet machine.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def cargo(*words):
    """Runs cargo without its words; returns the seconds, or ends with what it said."""
    begun = time.monotonic()
    ran = subprocess.run(["cargo", *words, "--locked"], cwd=ROOT, capture_output=True, text=True)
    seconds = time.monotonic() - begun
    if ran.returncode != 0:
        sys.exit(f"cargo {' '.join(words)} ended with {ran.returncode}:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return seconds


def crates():
    """Returns the names of the workspace's packages with the file that is their root."""
    told = subprocess.run(["cargo", "metadata", "--no-deps", "--format-version", "1", "--locked"],
                          cwd=ROOT, capture_output=True, text=True, check=True)
    found = {}
    for package in json.loads(told.stdout)["packages"]:
        roots = [target["src_path"] for target in package["targets"] if {"lib", "bin"} & set(target["kind"])]
        if roots:
            found[package["name"]] = Path(roots[0])
    return found


def after_touch(file, *words):
    """Returns the seconds of a command of cargo after a file has changed."""
    file.touch()
    return cargo(*words)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("crates", nargs="*", help="names, with or without `plimsoll-`")
    parser.add_argument("--release", action="store_true")
    given = parser.parse_args()
    all_crates = crates()
    if given.release:
        cargo("build", "--release", "-p", "plimsoll")
        print("| changed | `cargo build --release`, s |\n|---|---:|")
        for name in ["plimsoll", "plimsoll-rl", "plimsoll-base"]:
            print(f"| `{name}` | {after_touch(all_crates[name], 'build', '--release', '-p', 'plimsoll'):.1f} |", flush=True)
        return
    names = [name if name in all_crates else f"plimsoll-{name}" for name in given.crates] or sorted(all_crates)
    unknown = [name for name in names if name not in all_crates]
    if unknown:
        sys.exit(f"no crate {unknown[0]}")
    print("| crate | tests built, s | `cargo test -p CRATE`, s |\n|---|---:|---:|")
    for name in names:
        cargo("test", "-p", name, "--no-run")
        built = after_touch(all_crates[name], "test", "-p", name, "--no-run")
        print(f"| `{name}` | {built:.1f} | {built + cargo('test', '-p', name):.1f} |", flush=True)


if __name__ == "__main__":
    main()
