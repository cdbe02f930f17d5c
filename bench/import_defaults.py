#!/usr/bin/env python3
"""Defaults of the options of TRL, verl and OpenRLHF, as their newest packages on PyPI have them.

    bench/import_defaults.py --write            # crates/stacks/src/defaults.json
    bench/import_defaults.py --check            # 1 if a newer package says something else
    bench/import_defaults.py --check --wheels DIR   # packages that are there already

Nothing of a package is run: classes, argument parsers and YAML are read as text. `import` uses the table to tell an option that a
file writes out at its default from one that changes the job, and a test compares the defaults that `import` writes out with it.
"""

import argparse
import ast
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import yaml

TABLE = Path(__file__).resolve().parent.parent / "crates/stacks/src/defaults.json"
PACKAGES = ["trl", "verl", "openrlhf"]
# A trainer, and the files and classes whose fields are its options; a later one counts.
TRL = {
    name: [("trainer/base_config.py", "_BaseConfig"), (f"trainer/{name}_config.py", f"{title}Config"),
           ("trainer/model_config.py", "ModelConfig"), ("scripts/utils.py", "ScriptArguments")]
    for name, title in [("grpo", "GRPO"), ("rloo", "RLOO"), ("sft", "SFT"), ("dpo", "DPO"), ("kto", "KTO"), ("reward", "Reward")]
}
OPENRLHF = {"ppo": "train_ppo_ray", "sft": "train_sft", "dpo": "train_dpo", "rm": "train_rm"}
# Sections of verl's configuration that decide nothing about a job.
MACHINERY = ["profiler", "prometheus", "transfer_queue", "qat", "turbo_config", "_target_", "ray_kwargs", "skip"]


def literal(node):
    """Returns the value of a constant expression, or None where it is computed."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def text(value):
    """Returns a value as a launch file writes it."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(text(item) for item in value) + "]"
    return str(value)


def fields(source, name):
    """Returns the fields of a class whose default is a constant."""
    found = {}
    for node in ast.parse(source).body:
        if not (isinstance(node, ast.ClassDef) and node.name == name):
            continue
        for field in node.body:
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            value = field.value
            if isinstance(value, ast.Call):
                given = {one.arg: one.value for one in value.keywords}
                value = given.get("default")
                factory = given.get("default_factory")
                if value is None and isinstance(factory, ast.Lambda):
                    value = factory.body
            if value is not None:
                found[field.target.id] = text(literal(value))
    return found


def arguments(source):
    """Returns the options of an argument parser and their defaults; a switch is off."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"):
            continue
        name = literal(node.args[0]) if node.args else None
        if isinstance(name, str) and name.startswith("--"):
            given = {one.arg: one.value for one in node.keywords}
            is_switch = "action" in given and literal(given["action"]) == "store_true"
            value = literal(given["default"]) if "default" in given else None
            found[name[2:]] = text(False if value is None and is_switch else value)
    return found


def flat(path, value, found):
    """Adds the leaves of a configuration; what refers to another key has no value of its own."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not any(part in str(key) for part in MACHINERY):
                flat(f"{path}.{key}" if path else str(key), inner, found)
    elif not (isinstance(value, str) and "${" in value):
        found[path] = text(value)


def table(wheels):
    """Reads the table from the wheels of a folder."""
    found = {}
    for package in PACKAGES:
        [wheel] = sorted(wheels.glob(f"{package}-*.whl"))
        archive = zipfile.ZipFile(wheel)
        # OpenRLHF's modules lie in the wheel's `purelib`.
        names = {name.split("purelib/")[-1]: name for name in archive.namelist()}
        read = lambda name: archive.read(names[name]).decode()
        trainers = {}
        if package == "trl":
            for trainer, classes in TRL.items():
                trainers[trainer] = {}
                for file, name in classes:
                    trainers[trainer].update(fields(read(f"trl/{file}"), name))
        elif package == "verl":
            trainers["ppo"] = {}
            whole = yaml.safe_load(read("verl/trainer/config/_generated_ppo_trainer.yaml"))
            flat("", whole, trainers["ppo"])
        else:
            for trainer, module in OPENRLHF.items():
                trainers[trainer] = arguments(read(f"openrlhf/cli/{module}.py"))
        found[package] = {"version": wheel.name.split("-")[1], "trainers": trainers}
    return found


def lines(found):
    """Returns the table as JSON with a line for each trainer."""
    packages = []
    for package, one in sorted(found.items()):
        trainers = [f"  {json.dumps(name)}: {json.dumps(values, sort_keys=True)}" for name, values in sorted(one["trainers"].items())]
        packages.append(f'{json.dumps(package)}: {{"version": {json.dumps(one["version"])}, "trainers": {{\n' + ",\n".join(trainers) + "\n}}")
    return "{\n" + ",\n".join(packages) + "\n}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true")
    action.add_argument("--check", action="store_true")
    parser.add_argument("--wheels", type=Path, help="a folder with one wheel of each package")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheels = given.wheels or Path(folder)
        if given.wheels is None:
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, *PACKAGES],
                           check=True)
        found = table(wheels)
    if given.write:
        TABLE.write_text(lines(found))
        return 0
    there = json.loads(TABLE.read_text())
    differ = 0
    for package, new in found.items():
        for trainer, values in new["trainers"].items():
            old = there[package]["trainers"].get(trainer, {})
            for key in sorted(values.keys() | old.keys()):
                if values.get(key) != old.get(key):
                    differ += 1
                    print(f"{package} {there[package]['version']} -> {new['version']}: {trainer}: {key}: "
                          f"{old.get(key, '(not there)')} -> {values.get(key, '(not there)')}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
