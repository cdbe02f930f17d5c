"""Plays `docker` and `podman` on machines that have neither: a container is a folder, and its commands are plain
processes of this machine. Of each path in a command that begins with /tests or /logs the folder comes first, and so it does
in the files that are copied in. Its state is in the folder of the first argument, in which `calls` lists what was asked."""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

state, verb, *words = Path(sys.argv[1]), *sys.argv[2:]
with open(state / "calls", "a") as calls:
    calls.write(" ".join([verb, *words]).replace("\n", " ") + "\n")
broken = (state / "broken").read_text().split() if (state / "broken").exists() else []
if verb in broken:
    sys.exit(f"Error response from the stand-in: {verb} is broken")
containers = state / "containers"
containers.mkdir(exist_ok=True)


def inside(root, text):
    return re.sub(r"(?<![\w.}/-])/(tests|logs)\b", lambda found: f"{root}/{found[1]}", text)


def values(flags):
    """The words after options, and the options."""
    found, rest = {}, list(words)
    while rest and rest[0].startswith("-"):
        name = rest.pop(0)
        found.setdefault(name, []).append(rest.pop(0) if name in flags else None)
    return found, rest


def root_of(name):
    if not (containers / name).is_dir():
        sys.exit(f"Error: no such container: {name}")
    return containers / name


if verb == "version":
    print("1")
elif verb == "image":
    sys.exit(0 if words[1] in (state / "images").read_text().split() else 1)
elif verb in ("build", "pull"):
    with open(state / "images", "a") as images:
        images.write(f"{words[1] if verb == 'build' else words[0]}\n")
elif verb == "run":
    flags, (image, *_) = values({"--pull", "--name", "--label", "--memory", "--pids-limit", "--network", "--cpus", "-w", "-e"})
    (containers / flags["--name"][0]).mkdir()
elif verb == "ps":
    print("\n".join(sorted(one.name for one in containers.iterdir())))
elif verb == "inspect":
    root = root_of(words[-1])
    print("true")
elif verb == "exec":
    flags, (name, *command) = values({"-u", "-e", "-w"})
    root = root_of(name)
    (root / "place").mkdir(exist_ok=True)
    given = dict(one.split("=", 1) for one in flags.get("-e", []))
    env = {"PATH": os.environ["PATH"], "ROOT": str(root), **given}
    command = [inside(root, word) for word in command]
    done = subprocess.run(command, cwd=root / "place", env=env, start_new_session=True)
    sys.exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)
elif verb == "cp" and words[1] == "-":
    name, path = words[0].split(":", 1)
    file = root_of(name) / path[1:]
    if not file.exists():
        sys.exit(f"Error: {path} is not there")
    import tarfile

    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        archive.add(file, arcname=file.name)
elif verb == "cp":
    name, path = words[1].split(":", 1)
    root = root_of(name)
    shutil.copytree(words[0], root / path[1:], dirs_exist_ok=True)
    for file in (root / path[1:]).iterdir():
        file.write_text(inside(root, file.read_text()))
elif verb == "rm":
    for name in words[1:]:
        shutil.rmtree(containers / name, ignore_errors=True)
else:
    sys.exit(f"the stand-in has no `{verb}`")
