//! Mistakes in a command, its files and functions: what was typed, the name of the error, and what stderr must contain:
//! place, numbers or names, hint.

pub const COMMANDS: &[(&str, &str, &[&str])] = &[
    (
        "plan x.toml --set lr=1e-5 --set rollout.grup_size=4",
        "unknown-key",
        &[
            "--set: `rollout.grup_size` is not a key of a run file",
            "--set rollout.grup_size=4",
            "hint: did you mean `rollout.group_size`?",
        ],
    ),
    (
        "plan x.toml --set train.steps",
        "bad-set",
        &[
            "--set train.steps: there is no `=`",
            "hint: write --set section.key=value, for example --set rollout.group_size=4",
        ],
    ),
    (
        "plan x.toml --set data.prompt_column=question",
        "data-column-missing",
        &[
            "good.jsonl:1: no column `question`",
            "columns there: `prompt`, `ground_truth`",
            "hint: set data.prompt_column to the column with the prompt (--set data.prompt_column=NAME)",
        ],
    ),
    (
        "plan x.toml --set data.prompts=answer.jsonl --set reward.0.kind=python:r.py:right --set data.answer_column=anser",
        "data-column-missing",
        &[
            "`data.answer_column` names the column `anser`, which no row has",
            "columns there: answer",
            "hint: did you mean `answer`? --set data.answer_column=answer",
        ],
    ),
    (
        "plan x.toml --set data.prompts=answer.jsonl",
        "data-column-missing",
        &[
            "reward `exact` needs the column `ground_truth`, which the data does not have",
            "columns there: answer",
            "hint: name the column of the answer with `answer_column` in the [[reward]] table, or",
        ],
    ),
    (
        "plan x.toml --set reward.0.answer_column=label",
        "data-column-missing",
        &[
            "`reward.0.answer_column` names the column `label`, which no row has",
            "columns there: ground_truth",
            "hint: set reward.0.answer_column to a column of the data, or remove it",
        ],
    ),
    (
        "plan x.toml --set data.pass_rate_column=rate",
        "data-column-missing",
        &[
            "good.jsonl: row 1: no column `rate`",
            "columns there: ground_truth",
            "hint: set data.pass_rate_column to the column with the pass rates",
        ],
    ),
    (
        "train x.toml --set data.prompts=god.jsonl",
        "data-missing",
        &[
            "god.jsonl: No such file or directory (os error 2)",
            "looked for at ",
            "hint: did you mean good.jsonl?",
        ],
    ),
    (
        "plan x.toml --set data.prompts=third.jsonl",
        "data-column-missing",
        &[
            "third.jsonl:3: no column `prompt`",
            "columns there: `promt`, `ground_truth`",
            "hint: did you mean `promt`?",
        ],
    ),
    (
        "plan x.toml --set data.prompts=table.csv",
        "data-bad-json",
        &["table.csv:1: ", "csv files are not read; pandas"],
    ),
    (
        "plan x.toml --set data.prompts=list.json",
        "data-bad-json",
        &[
            "list.json:1: not an object; a file of one JSON list is not read, JSON lines are",
            "hint: write one JSON object a line, in UTF-8",
        ],
    ),
    (
        "plan x.toml --set data.prompts=text.jsonl",
        "data-bad-json",
        &["text.jsonl:1: ", "write one JSON object a line"],
    ),
    (
        "plan x.toml --set data.prompts=half.jsonl",
        "data-bad-json",
        &["half.jsonl:2: ", "write one JSON object a line"],
    ),
    (
        "plan x.toml --set data.prompts=empty.jsonl",
        "data-empty",
        &[
            "empty.jsonl: no rows",
            "hint: write one JSON object a line, such as {\"prompt\": \"2+2=\", \"ground_truth\": \"4\"}",
        ],
    ),
    (
        "plan x.toml --set data.prompts=number.jsonl",
        "data-bad-prompt",
        &[
            "number.jsonl:1: column `prompt`: it is neither a text nor a list of messages",
            "hint: a message is {\"role\": \"user\", \"content\": \"...\"}",
        ],
    ),
    (
        "plan x.toml --set data.prompts=share.jsonl",
        "data-bad-prompt",
        &[
            "share.jsonl:1: column `prompt`: a message is wrong: missing field `role`: it has ShareGPT's `from`",
            "hint: a message is {\"role\": \"user\", \"content\": \"...\"}",
        ],
    ),
    (
        "plan x.toml --set data.prompts=answered.jsonl",
        "data-prompt-answered",
        &[
            "answered.jsonl: row 1 has a prompt that ends with the assistant's words: the answer would be in it",
            "1 of the 1 rows that were read end so",
            "hint: set data.answered = \"drop-turn\" to leave the assistant's last turn out",
        ],
    ),
    (
        "plan x.toml --set data.prompts=long.jsonl",
        "prompt-too-long",
        &[
            "long.jsonl: row 2 has 32 tokens, data.prompt_tokens_max is 16",
            "row 2 of long.jsonl",
            "hint: raise data.prompt_tokens_max, or set data.overlong = \"drop\" or \"truncate-left\"",
        ],
    ),
    (
        "plan x.toml --set data.prompts=notes",
        "data-missing",
        &["notes: not a regular file", "hint: data.prompts names a JSONL or Parquet file or builtin:TASK"],
    ),
    (
        "train x.toml --set data.prompts=null.jsonl",
        "data-column-missing",
        &[
            "reward `exact` needs the column `ground_truth`, which is null here",
            "columns there: ground_truth",
            "the prompt of the row: \"1+2=\"",
            "hint: name the column of the answer with `answer_column` in the [[reward]] table, or",
        ],
    ),
    (
        "plan x.toml --set method=dpo --set data.prompts=equal.jsonl",
        "pair-equal",
        &[
            "equal.jsonl:1: chosen and rejected are the same: \"2\"",
            "hint: take the row out: two equal answers prefer nothing",
        ],
    ),
    (
        "plan x.toml --set reward.0.kind=python:q.py:right",
        "reward-function-missing",
        &[
            "`q.py` is not a file",
            "hint: write kind = \"python:FILE.py:FUNCTION\" with a path from where the command runs",
        ],
    ),
    (
        "plan x.toml --set reward.0.kind=python:r.py:rihgt",
        "reward-function-missing",
        &[
            "`r.py` has no function `rihgt`; it has: right, wants, short, raises, nan",
            "import the file with the same interpreter",
        ],
    ),
    (
        "plan x.toml --set reward.0.kind=python:r.py",
        "unknown-reward",
        &[
            "--set: `python:r.py` is not a kind of reward",
            "--set reward.0.kind=python:r.py",
            "hint: the kinds are exact, math, gsm8k, countdown, code, json-schema, regex,",
        ],
    ),
    (
        "plan x.toml --set reward.0.kind=python:r.py:wants",
        "reward-function-signature",
        &[
            "reward `wants` cannot be called: missing a required argument: 'difficulty'",
            "it is `wants(completions, difficulty)` and is called with prompts,",
            "hint: name the parameters as the call does, or take the rest with **kwargs",
        ],
    ),
    (
        "plan x.toml --set reward.0.kind=python:syntax.py:right",
        "reward-function-missing",
        &[
            "reward `right` does not load: SyntaxError",
            "syntax.py",
            "import the file with the same interpreter",
        ],
    ),
    (
        "plan x.toml --set reward.0.kind=python:imports.py:right",
        "reward-function-missing",
        &[
            "No module named 'no_such_package'",
            "imports.py",
            "`python` in the [[reward]] table names another",
        ],
    ),
    (
        "plan x.toml --set reward.0.kind=command:no-such-program",
        "reward-worker-not-started",
        &[
            "reward `no-such-program`: starting `no-such-program`: No such file or directory (os error 2)",
            "hint: check that the program is installed and in PATH; for Python set `python` in the",
        ],
    ),
    (
        "train x.toml --set reward.0.kind=python:r.py:short",
        "reward-bad-reply",
        &[
            "reward `short` returned 1 scores for 8 completions",
            "tried 2 times",
            "in step 1 of 1",
            "hint: return a list with one float or None a completion",
        ],
    ),
    (
        "train x.toml --set reward.0.kind=python:r.py:raises",
        "reward-function-raised",
        &[
            "reward `raises` raised ZeroDivisionError: division by zero",
            "r.py",
            "in step 1 of 1",
            "fix the function, or set on_error",
        ],
    ),
    (
        "train x.toml --set reward.0.kind=python:r.py:nan",
        "reward-not-finite",
        &[
            "reward `nan` gave NaN for sample 0 of batch 0",
            "the response begins \"2\"",
            "tried 2 times",
            "hint: return a finite number, or None to leave the sample out",
        ],
    ),
    (
        "trian x.toml",
        "bad-usage",
        &["unrecognized subcommand 'trian'", "hint: a similar subcommand exists: 'train'"],
    ),
    (
        "train y.toml",
        "run-file-missing",
        &[
            "there is no file y.toml",
            "looked for at ",
            "hint: give the path of a run file, for example runs/first.toml",
        ],
    ),
    (
        "train x.tml",
        "run-file-missing",
        &["there is no file x.tml", "looked for at ", "hint: did you mean x.toml?"],
    ),
    (
        "train x.toml --gpus 2",
        "bad-usage",
        &["unexpected argument '--gpus' found", "hint: --ranks N trains on N cards, one process each"],
    ),
    (
        "train x.toml --set run.dir=notes",
        "run-dir-not-empty",
        &["notes is not empty: it holds readme.txt", "--set run.dir=notes-2", "--overwrite"],
    ),
    (
        "plan x.toml --limit hst=8GiB",
        "bad-limit",
        &["`hst=8GiB` is not a limit", "hint: write --limit host=8GiB,disk=100GiB"],
    ),
    (
        "plan x.toml --limit host=60MiB",
        "host-pool-exceeded",
        &[
            "the run needs ",
            "the limit is 60.0 MiB (--limit)",
            "process.image",
            "the smallest host memory in which this run fits is ",
        ],
    ),
    (
        "plan x.toml --card h101 --set run.device=cuda",
        "card-unknown",
        &[
            "`h101` is no card of the table",
            "the table has l4, a10, 3090, 4090, 5090, l40s, a100-40, a100,",
            "hint: give its numbers: --card flops=150e12,bandwidth=900GB,memory=24GiB,link=64GB",
        ],
    ),
    (
        "plan x.toml --hosts 2 --ranks 3",
        "bad-usage",
        &["--ranks 3 are all ranks of 2 hosts, each with as many", "hint: --ranks 4, or --ranks-per-host R"],
    ),
    (
        "plan x.toml --rent --price h100=cheap --set run.device=cuda",
        "bad-price",
        &[
            "`cheap` is no price of an hour of h100: it is a number above 0, without a currency",
            "hint: write --price h100=2.1,h200=3.2, or a file with a line for each: h100 = 2.1",
        ],
    ),
    (
        "eval --model builtin:nano --data god.jsonl --reward exact",
        "data-missing",
        &[
            "god.jsonl: No such file or directory (os error 2)",
            "looked for at ",
            "hint: did you mean good.jsonl?",
        ],
    ),
    (
        "checkpoint export notes --to there",
        "checkpoint-missing",
        &["notes: there is no checkpoint", "hint: give a run directory or one of its checkpoints/step-N"],
    ),
    (
        "watch nowhere",
        "run-dir-unreadable",
        &[
            "nowhere: No such file or directory (os error 2)",
            "hint: give a run directory that `plimsoll train` made, the one that holds events.jsonl",
        ],
    ),
    (
        "grade --reward exact answers.jsonl",
        "data-column-missing",
        &[
            "row 1 has no `response`",
            "columns there: completion, ground_truth",
            "hint: did you mean `completion`? --response-column completion",
        ],
    ),
    (
        "import trl empty.sh",
        "import-nothing-found",
        &["empty.sh holds no trl settings", "hint: plimsoll import --help shows which file each stack takes"],
    ),
    (
        "import tlr empty.sh",
        "bad-usage",
        &[
            "invalid value 'tlr' for '<STACK>'",
            "[possible values: openrlhf, verl, trl, orz, axolotl, prime-rl, swift, skyrl, slime]",
            "hint: `plimsoll import --help` lists what it takes",
        ],
    ),
    ("init frist", "run-file-unknown", &["no run file is called `frist`", "hint: did you mean `first`?"]),
    (
        "init first --output x.toml",
        "run-file-exists",
        &["x.toml is there already", "hint: choose another --output, or remove it"],
    ),
    (
        "collect env.toml --set env=CartPol-v1",
        "unknown-environment",
        &[
            "--set: there is no environment `CartPol-v1`",
            "--set env=CartPol-v1",
            "native are CartPole-v1, Acrobot-v1, MountainCar-v0,",
            "hint: did you mean `CartPole-v1`?",
        ],
    ),
    (
        "explain unknwon-key",
        "unknown-slug",
        &["`unknwon-key` is not the name of an error", "hint: did you mean `unknown-key`?"],
    ),
    (
        "doctor --log good.jsnl",
        "log-missing",
        &["good.jsnl: there is no such file", "looked for at ", "hint: did you mean good.jsonl?"],
    ),
    (
        "launch ssh x.toml --hosts 2 --ranks-per-host 4 --host a",
        "launch-shape",
        &["--host names 1 of them, and --hosts is 2", "hint: --hosts 1"],
    ),
    (
        "launch k8s x.toml --hosts 1 --ranks-per-host 2 --image a:1 --env HF_TOKEN=x",
        "launch-word",
        &["--env HF_TOKEN is a secret by its name", "--patch FILE"],
    ),
];
