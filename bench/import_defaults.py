#!/usr/bin/env python3
"""Defaults of the options of TRL, verl and OpenRLHF, and what each of their losses makes of them, as their newest packages on PyPI have
them.

    bench/import_defaults.py --write            # crates/stacks/src/defaults.json
    bench/import_defaults.py --check            # 1 if a newer package says something else
    bench/import_defaults.py --check --wheels DIR   # packages that are there already

Nothing of a package is run: classes, argument parsers, losses and YAML are read as text. `import` uses the table to tell an option that a
file writes out at its default from one that changes the job, and a test compares the defaults that `import` writes out with it. Options
alone do not say what runs: some losses aggregate in a way of their own whatever the option says, or clip by another option. `objectives`
has the expressions with which each loss clips and aggregates, and the names of the advantage estimators; a test has a case for each.
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
        match package:
            case "trl":
                objectives = objectives_of_trl(read("trl/trainer/grpo_trainer.py"))
            case "verl":
                objectives = objectives_of_verl(read("verl/trainer/ppo/core_algos.py"))
            case _:
                objectives = objectives_of_openrlhf(read("openrlhf/models/loss.py"), read("openrlhf/cli/train_ppo_ray.py"))
        found[package] = {"version": wheel.name.split("-")[1], "trainers": trainers, "objectives": objectives}
    return found


def is_call(node, name):
    return isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == name


def objectives_of_verl(source):
    """Returns the clips and the aggregation of every policy loss, and the advantage estimators."""
    tree = ast.parse(source)
    names = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "AdvantageEstimator":
            names = {one.targets[0].id: literal(one.value) for one in node.body if isinstance(one, ast.Assign)}
    found = {}
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            if is_call(decorator, "register_adv_est"):
                found[f"estimator {names[decorator.args[0].attr]}"] = ""
            if is_call(decorator, "register_policy_loss"):
                inside = list(ast.walk(node))
                clips = {ast.unparse(one) for one in inside if isinstance(one, ast.Attribute) and one.attr.startswith("clip_ratio")}
                clips |= {ast.unparse(one) for one in inside if is_call(one, "get") and "clip_ratio" in ast.unparse(one)}
                modes = [ast.unparse(given.value) for one in inside if is_call(one, "agg_loss") for given in one.keywords
                         if given.arg == "loss_agg_mode"]
                means = [ast.unparse(one.value) for one in inside if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pg_loss"]
                found[f"loss {literal(decorator.args[0])}"] = "; ".join([*sorted(clips), *(modes or means)])
    return found


def objectives_of_trl(source):
    """Returns the expressions with which each loss of GRPO bounds a ratio and aggregates."""
    found = {}
    kept = ["coef_2", "clamped_ratios", "soft_coef_1", "phi_seq", "loss"]
    [function] = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == "_compute_loss"]
    for node in ast.walk(function):
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and ast.unparse(node.test.left) == "self.loss_type"):
            continue
        names = literal(node.test.comparators[0])
        values = [ast.unparse(one) for one in node.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) in kept]
        for name in [names] if isinstance(names, str) else names:
            key = f"loss {name}"
            found[key] = "; ".join(filter(None, [found.get(key, ""), *values]))
    return found


def objectives_of_openrlhf(source, options):
    """Returns what each policy loss sets of itself, and the advantage estimators."""
    [loss] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "PolicyLoss"]
    own = {}
    for node in ast.walk(loss):
        if isinstance(node, ast.If) and ast.unparse(node.test).startswith("policy_loss_type == "):
            own[literal(node.test.comparators[0])] = "; ".join(ast.unparse(one) for one in node.body)
    found = {}
    for node in ast.walk(ast.parse(options)):
        if is_call(node, "add_argument") and node.args:
            choices = [literal(one.value) for one in node.keywords if one.arg == "choices"]
            for name in choices[0] if choices else []:
                if literal(node.args[0]) == "--actor.policy_loss_type":
                    found[f"loss {name}"] = own.get(name, "")
                if literal(node.args[0]) == "--algo.advantage.estimator":
                    found[f"estimator {name}"] = ""
    return found


def lines(found):
    """Returns the table as JSON with a line for each trainer."""
    packages = []
    for package, one in sorted(found.items()):
        trainers = [f"  {json.dumps(name)}: {json.dumps(values, sort_keys=True)}" for name, values in sorted(one["trainers"].items())]
        objectives = [f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in sorted(one["objectives"].items())]
        packages.append(f'{json.dumps(package)}: {{"version": {json.dumps(one["version"])}, "trainers": {{\n' + ",\n".join(trainers)
                        + '\n}, "objectives": {\n' + ",\n".join(objectives) + "\n}}")
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
        parts = [(trainer, values, there[package]["trainers"].get(trainer, {})) for trainer, values in new["trainers"].items()]
        parts.append(("objectives", new["objectives"], there[package].get("objectives", {})))
        for trainer, values, old in parts:
            for key in sorted(values.keys() | old.keys()):
                if values.get(key) != old.get(key):
                    differ += 1
                    print(f"{package} {there[package]['version']} -> {new['version']}: {trainer}: {key}: "
                          f"{old.get(key, '(not there)')} -> {values.get(key, '(not there)')}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
