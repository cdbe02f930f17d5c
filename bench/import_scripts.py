#!/usr/bin/env python3
"""Imports published scripts of other stacks and compares each run file with the job that the script describes.

    bench/import_scripts.py REPOSITORIES [--binary target/debug/plimsoll] [--write]
    bench/import_scripts.py --lines [--write]
    bench/import_scripts.py --folder FOLDER --stack STACK [--page FILE]

REPOSITORIES is a folder with the git repositories that import_scripts.json names, as OWNER/NAME, OWNER+NAME or OWNER+NAME/repo, bare or
not. A script is taken from its commit; none of its code is run, and none is kept. What a job is (method, adapter, turns, the KL term,
clips) was written by hand from reading the script. With `command` N the Nth command in the text at the top of a script is imported with
the script next to it, since the script alone has no settings; with `of_text` N it is `import --command N`, and with `trainer` NAME
`import --trainer NAME`.

A script is imported whole if the exit code is 0 and everything that is expected is in the run file. Exit code 0 with anything else is
another job, which must never be. A refusal is right if its message has the words that reading the script gave, and names a line for each
setting that the file has. Exit code 1 if one is another job, is refused wrongly or without a line, or if fewer than 60 are whole or refused
rightly.

`--folder` imports every script of a folder, of which nothing is known, and prints what became of each: a table to read, not a check.

`--lines` needs no repository: import_lines.json has the options of published scripts that make an objective, each with its source, and what
their stack's code computes from them, by the defaults and the expressions that import_defaults.py read from its package. It is computed once
more and compared, or written; a test (`published_options_have_the_objective_of_their_stack`) imports each and compares what is resolved here.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

BENCH = Path(__file__).resolve().parent
SCRIPTS = BENCH / "import_scripts.json"
PAGE = BENCH / "results/import.md"
LINES = BENCH / "import_lines.json"
TABLE = BENCH.parent / "crates/stacks/src/defaults.json"
RIGHT_MIN = 60


def repository(folder, name):
    """Returns the git directory of a repository."""
    owner, last = name.split("/")
    places = [folder / f"{owner}+{last}/repo", folder / f"{owner}+{last}", folder / owner / last]
    for place in places:
        if place.is_dir():
            return place
    raise SystemExit(f"{name} is not in {folder}: git clone https://github.com/{name} {folder / owner / last}")


def text_of(folder, one):
    """Returns a script as its commit has it."""
    there = repository(folder, one["repository"])
    return subprocess.run(["git", "-C", there, "show", f"{one['commit']}:{one['path']}"], check=True, capture_output=True).stdout


def commands(text):
    """Returns the commands in the text at the top of a script, each with the lines that go on from it."""
    found, lines = [], iter(text.splitlines())
    for line in lines:
        if line.startswith(("import ", "from ")):
            break
        if re.match(r"\s*(accelerate launch|python) ", line):
            whole = [line]
            while whole[-1].rstrip().endswith("\\"):
                # In a docstring a backslash may be written twice.
                whole[-1] = whole[-1].rstrip().rstrip("\\") + "\\"
                whole.append(next(lines))
            found.append("\n".join(whole) + "\n")
    return found


def imported(binary, folder, one):
    """Imports a script; returns the exit code, the run file and the messages."""
    name = Path(one["path"]).name
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / name
        script.write_bytes(text_of(folder, one))
        if "command" in one:
            (Path(place) / "launch.sh").write_text(commands(script.read_text())[one["command"] - 1])
            script = Path(place) / "launch.sh"
        more = [f"--command={one['of_text']}"] if "of_text" in one else []
        more += [f"--trainer={one['trainer']}"] if "trainer" in one else []
        run = subprocess.run([binary, "import", one["stack"], script, *more], capture_output=True, text=True, cwd=place)
        # The folder is another one each time.
        texts = [text.replace(f"{place}/", "") for text in (run.stdout, run.stderr)]
    return run.returncode, *texts


def adapter(run):
    """Says which adapter a run file has."""
    lora = run.get("lora")
    if lora is None:
        return "none"
    if "adapter" in lora:
        return "lora of a folder"
    return " ".join(["lora", str(lora["rank"]), *([lora["quantize"]] if "quantize" in lora else [])])


def kl(run):
    """Says which KL term a run file has."""
    loss = run.get("loss", {})
    if not loss.get("kl_coef"):
        return "none"
    return f"{loss.get('kl_in', 'loss')} {loss['kl_coef']} {loss.get('kl_estimator', 'k3')}"


def job(run):
    """Returns what a run file trains, under the names of an expectation."""
    turns = "many" if "env" in run.get("environment", {}) else "one"
    return {**run.get("loss", {}), "method": run["method"], "adapter": adapter(run), "turns": turns, "kl": kl(run),
            "train_on": run.get("data", {}).get("train_on", "last")}


def without_line(messages):
    """Returns the first setting of a refusal that has no line, though it is none of the stack's defaults; None if there is none."""
    lines = messages.splitlines()
    if not lines or not lines[0].startswith("error[import-not-built]"):
        return None
    facts = [line.strip() for line in lines[1:] if line.startswith("  ")]
    has_place = lambda fact: re.match(r"(line \d+|cell \d+ line \d+|a default of [^:]*): ", fact)
    return next((fact for fact in facts if not has_place(fact)), None)


def judged(one, code, run_file, messages):
    """Returns a verdict and its reason."""
    first = messages.splitlines()[0] if messages else ""
    if code != 0:
        if "refused" in one and one["refused"] not in messages:
            return "refused for another reason", first
        if "refused" in one and (lost := without_line(messages)):
            return "refused without a line", lost
        if "refused" in one:
            return "refused", one["refused"]
        return "refused, though it is built", first
    have = job(tomllib.loads(run_file))
    if "refused" in one:
        return "another job", f"exit code 0 without what is not built: {one['refused']}"
    wrong = [f"{key} is {have.get(key)}, {value} there" for key, value in one["expect"].items() if have.get(key) != value]
    missing = [line.split(": ")[2] for line in messages.splitlines() if line.startswith("note: missing: ")]
    return ("another job", "; ".join(wrong)) if wrong else ("whole", "missing: " + ", ".join(missing) if missing else "")


def page(rows):
    """Returns the table as a page."""
    count = lambda verdict: sum(row[1] == verdict for row in rows)
    lines = [
        "# Published scripts, imported", "",
        f"`bench/import_scripts.py` has imported {len(rows)} published scripts, each as its commit has it. {count('whole')} are whole: exit code 0, and"
        f" method, adapter, turns and loss are those of the script. {count('refused')} are refused rightly: for what the script has and a run here has"
        f" not, with the line. {count('another job')} are another job with exit code 0, and"
        f" {len(rows) - count('whole') - count('refused') - count('another job')} are refused though they are built, for another reason, or without"
        " a line.", "",
        "What a job is was written from reading the script (`bench/import_scripts.json`), and not from what the import made of it. A key that is missing is one"
        " that only the user knows, such as a reward that no file names; the plan refuses the run file by its name until it is filled in.", "",
        "| script | commit | job | exit code | method | verdict | why |", "|---|---|---|---|---|---|---|",
    ]
    for one, verdict, why, code, method in rows:
        number = one.get("command", one.get("of_text"))
        place = f"`{one['repository']}`: `{one['path']}`" + (f", its command {number}" if number else "")
        place += f", --trainer {one['trainer']}" if "trainer" in one else ""
        cells = [place, f"`{one['commit'][:8]}`", one["job"], str(code), method, verdict, why.replace("|", "\\|")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


AGGREGATIONS = {
    "token-mean": "TokenMean", "seq-mean-token-mean": "SeqMeanTokenMean", "seq-mean-token-sum": "SeqMeanTokenSum",
    "seq-mean-token-sum-norm": "SeqMeanTokenSumNorm", "torch.mean(pg_losses)": "SeqMeanTokenMean",
}
ESTIMATORS = {"k1": "K1", "kl": "K1", "k2": "K2", "mse": "K2", "k3": "K3", "low_var_kl": "K3"}
METHODS = {
    "gae": "ppo", "reinforce_plus_plus": "reinforce", "reinforce_plus_plus_baseline": "reinforce_baseline", "grpo_passk": "pass_k",
    "optimal_token_baseline": "optimal_token", "geo_mean": "gmpo", "group_norm": "grpo", "grpo_vectorized": "grpo",
    "rloo_vectorized": "rloo",
}


def ppo(low, high, dual):
    return f"Ppo {{ clip_low: {low!r}, clip_high: {high!r}, dual_clip: {'None' if dual is None else f'Some({dual!r})'} }}"


def term(estimator, coef, place):
    # As Rust writes a number: 1e-5.
    return f"{ESTIMATORS[estimator]} {coef!r} in the {place}".replace("e-0", "e-") if coef else "no KL"


def objective_of_verl(words, defaults, facts):
    """Returns what verl computes from these options: method, loss with its clips, aggregation and KL term."""
    given = dict(word.split("=", 1) for word in words.split())
    value = lambda name: given.get(name, defaults.get(name))
    actor = lambda name: value(f"actor_rollout_ref.actor.{name}")
    estimator, loss = value("algorithm.adv_estimator"), actor("policy_loss.loss_mode")
    *clips, aggregation = facts[f"loss {loss}"].split("; ")
    aggregation = AGGREGATIONS[actor("loss_agg_mode") if aggregation == "loss_agg_mode" else aggregation.strip("'")]
    low, high, most = (float(actor(name)) for name in ["clip_ratio_low", "clip_ratio_high", "clip_ratio_c"])
    if loss in ["dro", "bypass_mode"]:
        return "refused"
    if loss.startswith("dppo") and most != 20.0:
        return "refused"
    bounds = f"{{ clip_low: {low!r}, clip_high: {high!r} }}"
    match loss:
        case "vanilla":
            policy = ppo(low, high, most)
        case "cispo":
            policy = f"Cispo {{ clip_low: {max(0.0, round(1 - low, 9))!r}, clip_high: {round(1 + high, 9)!r} }}"
        case "sapo":
            policy = "Sapo { tau_positive: 1.0, tau_negative: 1.05 }"
        case "gpg":
            policy = "Reinforce"
        case _:
            policy = {"gspo": "Gspo", "geo_mean": "Gmpo", "dppo_tv": "DppoTv", "dppo_kl": "DppoKl"}[loss] + " " + bounds
    if actor("use_kl_loss") == "True":
        kl = term(actor("kl_loss_type"), float(actor("kl_loss_coef")), "loss")
    elif value("algorithm.use_kl_in_reward") == "True":
        kl = term(value("algorithm.kl_penalty"), float(value("algorithm.kl_ctrl.kl_coef")), "reward")
    else:
        kl = "no KL"
    name = estimator if loss in ["vanilla", "gpg"] else loss
    return f"{METHODS.get(name, name)} {policy} {aggregation} {kl}"


def objective_of_openrlhf(words, defaults, facts):
    """Returns what OpenRLHF computes from these options."""
    given, name = {}, None
    for word in words.split():
        if word.startswith("--"):
            name = word[2:]
            given[name] = []
        else:
            given[name].append(word)
    value = lambda name: " ".join(given[name]) if name in given else defaults.get(name)
    low, high = given.get("actor.eps_clip_low_high", [value("actor.eps_clip")] * 2)
    loss, estimator = value("actor.policy_loss_type"), value("algo.advantage.estimator")
    is_of_tokens = value("actor.loss_agg_mode") == "token-mean" and "token_level_loss = False" not in facts[f"loss {loss}"]
    kl = term(value("algo.kl.estimator"), float(value("algo.kl.init_coef")), "loss" if "algo.kl.use_loss" in given else "reward")
    policy = ppo(float(low), float(high), None)
    if loss == "gspo":
        policy = f"Gspo {{ clip_low: {float(low)!r}, clip_high: {float(high)!r} }}"
    name = loss if loss == "gspo" else estimator
    return f"{METHODS.get(name, name)} {policy} {'TokenMean' if is_of_tokens else 'SeqMeanTokenMean'} {kl}"


def lines(write):
    """Computes the objective of each line; returns 1 if one is not what is written."""
    table, rows, differ = json.loads(TABLE.read_text()), json.loads(LINES.read_text()), 0
    of = {"verl": objective_of_verl, "openrlhf": objective_of_openrlhf}
    for row in rows:
        stack = table[row["stack"]]
        computed = of[row["stack"]](row["options"], stack["trainers"]["ppo"], stack["objectives"])
        if computed != row.get("objective"):
            differ += 1
            print(f"{row['path']}: {row.get('objective')} -> {computed}")
        row["objective"] = computed
    if write:
        LINES.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    print(f"{len(rows)} lines, {differ} with another objective than is written")
    return 0 if write or differ == 0 else 1


ENDINGS = {"axolotl": [".yml", ".yaml"], "prime-rl": [".toml"], "trl": [".py", ".ipynb", ".sh", ".yaml"], "orz": [".py"]}


def folder(binary, stack, place, file):
    """Imports every script of a folder, and writes or prints a table."""
    rows = ["| script | exit code | method | first message |", "|---|---|---|---|"]
    for script in sorted(place.rglob("*")):
        if not script.is_file() or script.suffix not in ENDINGS.get(stack, [".sh"]):
            continue
        run = subprocess.run([binary, "import", stack, script], capture_output=True, text=True)
        method = re.search(r'^method = "(\w+)"', run.stdout, re.MULTILINE)
        message = " ".join(run.stderr.splitlines()[:2]).replace("|", "\\|")[:300]
        rows.append(f"| `{script.relative_to(place)}` | {run.returncode} | {method.group(1) if method else ''} | {message} |")
    text = "\n".join(rows) + "\n"
    if file:
        file.write_text(text)
    else:
        print(text, end="")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", type=Path, nargs="?")
    parser.add_argument("--lines", action="store_true", help="the options of import_lines.json, and what their stacks compute from them")
    parser.add_argument("--binary", type=Path, default=BENCH.parent / "target/debug/plimsoll")
    parser.add_argument("--write", action="store_true", help="write bench/results/import.md")
    parser.add_argument("--folder", type=Path, help="scripts of which nothing is known")
    parser.add_argument("--stack", help="whose scripts those of --folder are")
    parser.add_argument("--page", type=Path, help="where the table of --folder goes")
    given = parser.parse_args()
    if given.folder:
        return folder(given.binary.resolve(), given.stack, given.folder, given.page)
    if given.lines:
        return lines(given.write)
    if given.repositories is None:
        parser.error("the folder of the repositories is missing")
    rows = []
    for one in json.loads(SCRIPTS.read_text()):
        code, run_file, messages = imported(given.binary.resolve(), given.repositories, one)
        verdict, why = judged(one, code, run_file, messages)
        method = tomllib.loads(run_file)["method"] if code == 0 else ""
        rows.append((one, verdict, why, code, method))
        print(f"{verdict:12} {code} {method:18} {one['repository']}/{one['path']}: {why}")
    if given.write:
        PAGE.write_text(page(rows))
    count = lambda verdict: sum(row[1] == verdict for row in rows)
    right = count("whole") + count("refused")
    print(f"{len(rows)} scripts, {count('whole')} whole, {count('refused')} refused rightly, {count('another job')} another job")
    return 0 if right >= RIGHT_MIN and right == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
