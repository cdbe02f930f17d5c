//! A hundred mistakes of a newcomer, each with what the program says: the error's name, the place, the numbers or names
//! of both sides, and a hint with the way out.

use crate::common::{Folder, command, text};
use crate::run::python_is_there;
use std::fs;

const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "good.jsonl"
eval = "none"
prompt_tokens_max = 16
[rollout]
prompts_per_step = 2
group_size = 4
max_new_tokens = 4
[[reward]]
kind = "exact"
[train]
steps = 1
learning_rate = 1e-6
[run]
dir = "out"
device = "cpu"
"#;

/// The files of the folder in which the mistakes are made, with `x.toml`.
const FILES: &[(&str, &str)] = &[
    (
        "good.jsonl",
        "{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n",
    ),
    (
        "third.jsonl",
        "{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"promt\": \"1+2=\", \"ground_truth\": \"3\"}\n",
    ),
    (
        "answer.jsonl",
        "{\"prompt\": \"1+2=\", \"answer\": \"3\"}\n{\"prompt\": \"1+2=\", \"answer\": \"3\"}\n{\"prompt\": \"1+2=\", \"answer\": \"3\"}\n{\"prompt\": \"1+2=\", \"answer\": \"3\"}\n",
    ),
    ("table.csv", "prompt,ground_truth\n1+2=,3\n"),
    ("list.json", "[{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}]\n"),
    ("text.jsonl", "1+2=\n"),
    ("half.jsonl", "{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"prompt\": \"1+2=\""),
    ("empty.jsonl", ""),
    ("number.jsonl", "{\"prompt\": 12, \"ground_truth\": \"3\"}\n"),
    (
        "null.jsonl",
        "{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"prompt\": \"1+2=\", \"ground_truth\": null}\n",
    ),
    ("share.jsonl", "{\"prompt\": [{\"from\": \"human\", \"value\": \"1+2=\"}], \"ground_truth\": \"3\"}\n"),
    (
        "answered.jsonl",
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"1+2=\"}, {\"role\": \"assistant\", \"content\": \"3\"}], \"ground_truth\": \"3\"}\n",
    ),
    (
        "long.jsonl",
        "{\"prompt\": \"1+2=\", \"ground_truth\": \"3\"}\n{\"prompt\": \"1+2=1+2=1+2=1+2=1+2=1+2=1+2=1+2=\", \"ground_truth\": \"3\"}\n",
    ),
    ("equal.jsonl", "{\"prompt\": \"1+1=\", \"chosen\": \"2\", \"rejected\": \"2\"}\n"),
    (
        "r.py",
        "def right(completions, **columns):\n    return [0.0] * len(completions)\ndef wants(completions, difficulty):\n    return [0.0] * len(completions)\ndef short(completions, **columns):\n    return [0.0]\ndef raises(completions, **columns):\n    return [1 / 0 for _ in completions]\ndef nan(completions, **columns):\n    return [float(\"nan\")] * len(completions)\n",
    ),
    ("syntax.py", "def right(completions, **columns)\n    return []\n"),
    ("imports.py", "import no_such_package\n"),
    ("empty.sh", "echo hello\n"),
    ("answers.jsonl", "{\"completion\": \"3\", \"ground_truth\": \"3\"}\n"),
    ("env.toml", "env = \"CartPole-v1\"\nnum_envs = 8\nframes_per_batch = 64\n"),
    ("notes/readme.txt", "nothing\n"),
];

/// What was done: the plan of a run file with one text in place of another, or a command.
enum Did {
    Edit(&'static str, &'static str),
    Typed(&'static str),
}
use Did::{Edit, Typed};

/// A mistake, the name of its error, and what stderr must contain: place, numbers or names, hint.
type Mistake = (Did, &'static str, &'static [&'static str]);

const MISTAKES: &[Mistake] = &[
    (
        Edit("group_size = 4", "grup_size = 4"),
        "unknown-key",
        &[
            "x.toml:9:1: `rollout.grup_size` is not a key of a run file",
            "9 | grup_size = 4",
            "hint: did you mean `rollout.group_size`?",
        ],
    ),
    (
        Edit("[rollout]", "[rolout]"),
        "unknown-key",
        &["x.toml:7:2: `rolout` is not a key of a run file", "7 | [rolout]", "hint: did you mean `rollout`?"],
    ),
    (
        Edit("steps = 1", "steps = \"two\""),
        "bad-type",
        &[
            "x.toml:14:1: `train.steps` is the string \"two\"; it takes a whole number from 0 to 4294967295",
            "14 | steps = \"two\"",
            "hint: write `steps` as a whole number from 0 to 4294967295",
        ],
    ),
    (
        Edit("steps = 1", "steps = 0"),
        "bad-value",
        &[
            "x.toml:14:1: `train.steps` is 0; it takes a whole number of at least 1",
            "14 | steps = 0",
            "hint: set train.steps to a whole number of at least 1",
        ],
    ),
    (
        Edit("steps = 1\n", ""),
        "missing-key",
        &[
            "x.toml: `train.steps` is missing",
            "hint: add steps = 60 under [train]; `--set train.steps=VALUE` does it too",
        ],
    ),
    (
        Edit("steps = 1", "num_train_epochs = 1"),
        "unknown-key",
        &[
            "x.toml:14:1: `train.num_train_epochs` is not a key of a run file",
            "14 | num_train_epochs = 1",
            "hint: set `train.epochs`: passes over the data",
        ],
    ),
    (
        Edit("kind = \"exact\"", "kind = [\"exact\"]"),
        "bad-type",
        &[
            "x.toml:12:1: `reward.0.kind` is a list; it takes a string",
            "12 | kind = [\"exact\"]",
            "hint: write `kind` as a string",
        ],
    ),
    (
        Edit("[[reward]]\nkind = \"exact\"\n", ""),
        "missing-key",
        &[
            "x.toml: `reward` is missing",
            "method `grpo` learns from a reward",
            "hint: add [[reward]] with `kind = \"exact\"`",
        ],
    ),
    (
        Edit("[[reward]]", "[reward]"),
        "bad-type",
        &[
            "x.toml:11:2: `reward` is a table; it takes a list",
            "11 | [reward]",
            "hint: write [[reward]], with two brackets",
        ],
    ),
    (
        Edit("kind = \"exact\"", "kind = \"exat\""),
        "unknown-reward",
        &[
            "x.toml:12:1: `exat` is not a kind of reward",
            "12 | kind = \"exat\"",
            "hint: did you mean `exact`?",
        ],
    ),
    (
        Edit("kind = \"exact\"", "kind = \"regex:(\""),
        "reward-bad-pattern",
        &[
            "x.toml:12:1: pattern `(` does not compile: error: unclosed group",
            "12 | kind = \"regex:(\"",
            "hint: the syntax is that of the Rust regex crate: no look-around, no back-references",
        ],
    ),
    (
        Edit("kind = \"exact\"", "knd = \"exact\""),
        "unknown-key",
        &[
            "x.toml:12:1: `reward.0.knd` is not a key of a run file",
            "12 | knd = \"exact\"",
            "hint: did you mean `reward.0.kind`?",
        ],
    ),
    (
        Edit("group_size = 4", "group_size = 1"),
        "group-too-small",
        &[
            "x.toml:9:1: rollout.group_size = 1 with advantage `group_norm` of method `grpo`: one sample has",
            "9 | group_size = 1",
            "hint: set rollout.group_size to at least 2",
        ],
    ),
    (
        Edit("group_size = 4", "group_size = 4\nn = 4"),
        "duplicate-key",
        &[
            "x.toml:10:1: `rollout.n` is another name of `rollout.group_size`, which is set too",
            "10 | n = 4",
            "hint: keep `rollout.group_size` alone",
        ],
    ),
    (
        Edit("group_size = 4", "group_size = 4\ngroup_size = 5"),
        "run-file-syntax",
        &[
            "x.toml:10:1: duplicate key",
            "10 | group_size = 5",
            "hint: run files are TOML: strings in double quotes, tables as [section], lists as [1, 2]",
        ],
    ),
    (
        Edit("group_size = 4", "group_size = = 4"),
        "run-file-syntax",
        &[
            "x.toml:9:14: extra `=`, expected nothing",
            "9 | group_size = = 4",
            "hint: run files are TOML: strings in double quotes, tables as [section], lists as [1, 2]",
        ],
    ),
    (
        Edit("group_size = 4", "group_size = 4\ntop_p = 0"),
        "bad-value",
        &[
            "x.toml:10:1: `rollout.top_p` is 0; it takes a number above 0 and up to 1; 1 keeps every token",
            "10 | top_p = 0",
            "hint: set rollout.top_p to a number above 0 and up to 1; 1 keeps every token",
        ],
    ),
    (
        Edit("group_size = 4", "group_size = 4\ntemperature = -1"),
        "bad-value",
        &[
            "x.toml:10:1: `rollout.temperature` is -1; it takes 0, which is greedy, or a number from 1e-6 up",
            "10 | temperature = -1",
            "hint: set rollout.temperature to 0, which is greedy, or a number from 1e-6 up that is",
        ],
    ),
    (
        Edit("max_new_tokens = 4", "max_new_tokens = 0"),
        "bad-value",
        &[
            "x.toml:10:1: `rollout.max_new_tokens` is 0; it takes a number from 1 to 4194304",
            "10 | max_new_tokens = 0",
            "hint: set rollout.max_new_tokens to a number from 1 to 4194304",
        ],
    ),
    (
        Edit("max_new_tokens = 4", "max_new_tokens = 1000"),
        "positions-beyond-model",
        &[
            "sequences of up to 1016 tokens, and the model has 64 positions",
            "longest prompt 16, longest response 1000",
            "hint: lower rollout.max_new_tokens, or set data.prompt_tokens_max and data.overlong",
        ],
    ),
    (
        Edit("learning_rate = 1e-6", "learning_rate = nan"),
        "bad-value",
        &[
            "x.toml:15:1: `train.learning_rate` is NaN; it takes a number that is finite in f32 and not negative",
            "15 | learning_rate = nan",
            "hint: set train.learning_rate to a number that is finite in f32 and not negative",
        ],
    ),
    (
        Edit("learning_rate = 1e-6", "learning_rate = \"1e-6\""),
        "bad-type",
        &[
            "x.toml:15:1: `train.learning_rate` is the string \"1e-6\"; it takes a number",
            "15 | learning_rate = \"1e-6\"",
            "hint: write `learning_rate` as a number",
        ],
    ),
    (
        Edit("learning_rate = 1e-6", "lr_rate = 1e-6"),
        "unknown-key",
        &[
            "x.toml:15:1: `train.lr_rate` is not a key of a run file",
            "15 | lr_rate = 1e-6",
            "hint: remove `lr_rate`",
        ],
    ),
    (
        Edit("steps = 1", "steps = 1\nmini_batch = 3"),
        "contradictory-keys",
        &[
            "x.toml:15:1: train.mini_batch = 3 does not divide the 8 sequences of a step (2 prompts x 4 samples)",
            "15 | mini_batch = 3",
            "hint: set train.mini_batch = 2, or remove it for one update a step",
        ],
    ),
    (
        Edit("steps = 1", "steps = 1\noptimizer_dtype = \"fp16\""),
        "bad-value",
        &[
            "x.toml:15:1: `train.optimizer_dtype` is the string \"fp16\"; it takes \"auto\" or \"f32\", \"bf16\" or \"int8\"",
            "15 | optimizer_dtype = \"fp16\"",
            "hint: set `train.optimizer_dtype` to \"bf16\", which has the size of a half and the",
        ],
    ),
    (
        Edit("method = \"grpo\"", "method = \"gpro\""),
        "bad-value",
        &[
            "x.toml:1:1: `method` is \"gpro\", which is none of its names",
            "1 | method = \"gpro\"",
            "hint: did you mean \"grpo\"?",
        ],
    ),
    (
        Edit("method = \"grpo\"", "method = grpo"),
        "run-file-syntax",
        &[
            "x.toml:1:10: string values must be quoted, expected literal string",
            "1 | method = grpo",
            "hint: run files are TOML: strings in double quotes, tables as [section], lists as [1, 2]",
        ],
    ),
    (
        Edit("method = \"grpo\"", "method = \"grpo"),
        "run-file-syntax",
        &[
            "x.toml:1:15: invalid basic string, expected `\"`",
            "1 | method = \"grpo",
            "hint: run files are TOML: strings in double quotes, tables as [section], lists as [1, 2]",
        ],
    ),
    (
        Edit("method = \"grpo\"\n", ""),
        "missing-key",
        &["x.toml: `method` is missing", "hint: add method = \"grpo\"; `--set method=VALUE` does it too"],
    ),
    (
        Edit("method = \"grpo\"", "method = \"sft\""),
        "data-column-missing",
        &[
            "good.jsonl:1: no column `completion`",
            "columns there: `ground_truth`",
            "{\"prompt\": ..., \"completion\": ...}",
        ],
    ),
    (
        Edit("method = \"grpo\"", "method = \"dpo\""),
        "data-column-missing",
        &[
            "good.jsonl:1: no column `chosen`",
            "columns there: `prompt`, `ground_truth`",
            "hint: a preference row is {\"prompt\": ..., \"chosen\": ..., \"rejected\": ...}",
        ],
    ),
    (
        Edit("model = \"builtin:nano\"", "model = \"builtin:nno\""),
        "model-source-invalid",
        &[
            "model = \"builtin:nno\": the built-in model is `nano`",
            "hint: write builtin:nano, a directory, a .gguf file, hf:org/name, pypi:package or random:PRESET",
        ],
    ),
    (
        Edit("model = \"builtin:nano\"", "model = \"random:qwen2.5-8b\""),
        "unknown-preset",
        &["no preset is called `qwen2.5-8b`", "hint: did you mean random:qwen2.5-7b?"],
    ),
    (
        Edit("model = \"builtin:nano\"", "model = \"notes\""),
        "model-file-missing",
        &["notes/config.json: no such file", "hint: check `model` in the run file, or fetch the model again"],
    ),
    (
        Edit("[data]", "[data"),
        "run-file-syntax",
        &[
            "x.toml:3:6: unclosed table, expected `]`",
            "3 | [data",
            "hint: run files are TOML: strings in double quotes, tables as [section], lists as [1, 2]",
        ],
    ),
    (
        Edit("prompts = \"good.jsonl\"", "prompts = \"builtin:additon\""),
        "unknown-task",
        &[
            "no task is called `builtin:additon`",
            "tasks: builtin:addition, builtin:addition-forgetful,",
            "hint: did you mean builtin:addition? A file is named by its path",
        ],
    ),
    (
        Edit("prompt_tokens_max = 16", "prompt_tokens_max = 2"),
        "prompt-too-long",
        &[
            "good.jsonl: row 1 has 4 tokens, data.prompt_tokens_max is 2",
            "row 1 of good.jsonl",
            "hint: raise data.prompt_tokens_max, or set data.overlong = \"drop\" or \"truncate-left\"",
        ],
    ),
    (
        Edit("device = \"cpu\"", "device = \"gpu\""),
        "bad-value",
        &[
            "x.toml:18:1: `run.device` is the string \"gpu\"; it takes \"auto\" or \"cpu\" or \"cuda\"",
            "18 | device = \"gpu\"",
            "hint: did you mean \"cuda\"?",
        ],
    ),
    (
        Edit("device = \"cpu\"", "device = \"cuda:1\""),
        "bad-value",
        &[
            "x.toml:18:1: `run.device` is the string \"cuda:1\"; it takes \"auto\" or \"cpu\" or \"cuda\"",
            "18 | device = \"cuda:1\"",
            "hint: set `run.device` to \"cuda\", and choose the card outside: CUDA_VISIBLE_DEVICES=1",
        ],
    ),
    (
        Edit("dir = \"out\"", "dir = 3"),
        "bad-type",
        &[
            "x.toml:17:1: `run.dir` is the whole number 3; it takes a string",
            "17 | dir = 3",
            "hint: write `dir` as a string",
        ],
    ),
    (
        Edit("[run]", "[loss]\nkl_coef = \"low\"\n[run]"),
        "bad-type",
        &[
            "x.toml:17:1: `loss.kl_coef` is the string \"low\"; it takes a number",
            "17 | kl_coef = \"low\"",
            "hint: write `kl_coef` as a number",
        ],
    ),
    (
        Edit("[run]", "[lora]\ntargets = [\"q_prj\"]\n[run]"),
        "bad-value",
        &[
            "x.toml:17:12: `lora.targets`: \"q_prj\" matches no linear layer of a decoder",
            "17 | targets = [\"q_prj\"]",
            "there are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
            "hint: did you mean \"q_proj\"?",
        ],
    ),
    (
        Edit("[run]", "[memory]\nhost = \"3 gigs\"\n[run]"),
        "bad-value",
        &[
            "x.toml:17:1: `memory.host` is the string \"3 gigs\"; it takes \"auto\" or bytes, such as 1048576 or \"60GiB\"",
            "17 | host = \"3 gigs\"",
            "hint: set `memory.host` to \"auto\" or bytes, such as 1048576 or \"60GiB\"",
        ],
    ),
    (
        Edit("[run]", "[memory]\nhost = \"60MiB\"\n[run]"),
        "host-pool-exceeded",
        &[
            "the run needs ",
            "the limit is 60.0 MiB (memory.host of the run file)",
            "process.image",
            "--set memory.host=",
        ],
    ),
    (
        Edit("[run]", "[checkpoint]\nevery = -1\n[run]"),
        "bad-value",
        &[
            "x.toml:17:1: `checkpoint.every` is the whole number -1; it takes a whole number from 0 to 4294967295",
            "17 | every = -1",
            "hint: set `checkpoint.every` to a whole number from 0 to 4294967295",
        ],
    ),
    (Edit("[run]", "[run]\nwandb = true"), "unknown-key", &["x.toml:17:1: `run.wandb`", "track.to"]),
    (
        Typed("plan x.toml --set lr=1e-5 --set rollout.grup_size=4"),
        "unknown-key",
        &[
            "--set: `rollout.grup_size` is not a key of a run file",
            "--set rollout.grup_size=4",
            "hint: did you mean `rollout.group_size`?",
        ],
    ),
    (
        Typed("plan x.toml --set train.steps"),
        "bad-set",
        &[
            "--set train.steps: there is no `=`",
            "hint: write --set section.key=value, for example --set rollout.group_size=4",
        ],
    ),
    (
        Typed("plan x.toml --set data.prompt_column=question"),
        "data-column-missing",
        &[
            "good.jsonl:1: no column `question`",
            "columns there: `prompt`, `ground_truth`",
            "hint: set data.prompt_column to the column with the prompt (--set data.prompt_column=NAME)",
        ],
    ),
    (
        Typed(
            "plan x.toml --set data.prompts=answer.jsonl --set reward.0.kind=python:r.py:right --set data.answer_column=anser",
        ),
        "data-column-missing",
        &[
            "`data.answer_column` names the column `anser`, which no row has",
            "columns there: answer",
            "hint: did you mean `answer`? --set data.answer_column=answer",
        ],
    ),
    (
        Typed("plan x.toml --set data.prompts=answer.jsonl"),
        "data-column-missing",
        &[
            "reward `exact` needs the column `ground_truth`, which the data does not have",
            "columns there: answer",
            "hint: name the column of the answer with `answer_column` in the [[reward]] table, or",
        ],
    ),
    (
        Typed("plan x.toml --set reward.0.answer_column=label"),
        "data-column-missing",
        &[
            "`reward.0.answer_column` names the column `label`, which no row has",
            "columns there: ground_truth",
            "hint: set reward.0.answer_column to a column of the data, or remove it",
        ],
    ),
    (
        Typed("plan x.toml --set data.pass_rate_column=rate"),
        "data-column-missing",
        &[
            "good.jsonl: row 1: no column `rate`",
            "columns there: ground_truth",
            "hint: set data.pass_rate_column to the column with the pass rates",
        ],
    ),
    (
        Typed("train x.toml --set data.prompts=god.jsonl"),
        "data-missing",
        &[
            "god.jsonl: No such file or directory (os error 2)",
            "looked for at ",
            "hint: did you mean good.jsonl?",
        ],
    ),
    (
        Typed("plan x.toml --set data.prompts=third.jsonl"),
        "data-column-missing",
        &[
            "third.jsonl:3: no column `prompt`",
            "columns there: `promt`, `ground_truth`",
            "hint: did you mean `promt`?",
        ],
    ),
    (
        Typed("plan x.toml --set data.prompts=table.csv"),
        "data-bad-json",
        &["table.csv:1: ", "csv files are not read; pandas"],
    ),
    (
        Typed("plan x.toml --set data.prompts=list.json"),
        "data-bad-json",
        &[
            "list.json:1: not an object; a file of one JSON list is not read, JSON lines are",
            "hint: write one JSON object a line, in UTF-8",
        ],
    ),
    (
        Typed("plan x.toml --set data.prompts=text.jsonl"),
        "data-bad-json",
        &["text.jsonl:1: ", "write one JSON object a line"],
    ),
    (
        Typed("plan x.toml --set data.prompts=half.jsonl"),
        "data-bad-json",
        &["half.jsonl:2: ", "write one JSON object a line"],
    ),
    (
        Typed("plan x.toml --set data.prompts=empty.jsonl"),
        "data-empty",
        &[
            "empty.jsonl: no rows",
            "hint: write one JSON object a line, such as {\"prompt\": \"2+2=\", \"ground_truth\": \"4\"}",
        ],
    ),
    (
        Typed("plan x.toml --set data.prompts=number.jsonl"),
        "data-bad-prompt",
        &[
            "number.jsonl:1: column `prompt`: it is neither a text nor a list of messages",
            "hint: a message is {\"role\": \"user\", \"content\": \"...\"}",
        ],
    ),
    (
        Typed("plan x.toml --set data.prompts=share.jsonl"),
        "data-bad-prompt",
        &[
            "share.jsonl:1: column `prompt`: a message is wrong: missing field `role`: it has ShareGPT's `from`",
            "hint: a message is {\"role\": \"user\", \"content\": \"...\"}",
        ],
    ),
    (
        Typed("plan x.toml --set data.prompts=answered.jsonl"),
        "data-prompt-answered",
        &[
            "answered.jsonl: row 1 has a prompt that ends with the assistant's words: the answer would be in it",
            "1 of the 1 rows that were read end so",
            "hint: set data.answered = \"drop-turn\" to leave the assistant's last turn out",
        ],
    ),
    (
        Typed("plan x.toml --set data.prompts=long.jsonl"),
        "prompt-too-long",
        &[
            "long.jsonl: row 2 has 32 tokens, data.prompt_tokens_max is 16",
            "row 2 of long.jsonl",
            "hint: raise data.prompt_tokens_max, or set data.overlong = \"drop\" or \"truncate-left\"",
        ],
    ),
    (
        Typed("plan x.toml --set data.prompts=notes"),
        "data-missing",
        &["notes: not a regular file", "hint: data.prompts names a JSONL or Parquet file or builtin:TASK"],
    ),
    (
        Typed("train x.toml --set data.prompts=null.jsonl"),
        "data-column-missing",
        &[
            "reward `exact` needs the column `ground_truth`, which is null here",
            "columns there: ground_truth",
            "the prompt of the row: \"1+2=\"",
            "hint: name the column of the answer with `answer_column` in the [[reward]] table, or",
        ],
    ),
    (
        Typed("plan x.toml --set method=dpo --set data.prompts=equal.jsonl"),
        "pair-equal",
        &[
            "equal.jsonl:1: chosen and rejected are the same: \"2\"",
            "hint: take the row out: two equal answers prefer nothing",
        ],
    ),
    (
        Typed("plan x.toml --set reward.0.kind=python:q.py:right"),
        "reward-function-missing",
        &[
            "`q.py` is not a file",
            "hint: write kind = \"python:FILE.py:FUNCTION\" with a path from where the command runs",
        ],
    ),
    (
        Typed("plan x.toml --set reward.0.kind=python:r.py:rihgt"),
        "reward-function-missing",
        &[
            "`r.py` has no function `rihgt`; it has: right, wants, short, raises, nan",
            "import the file with the same interpreter",
        ],
    ),
    (
        Typed("plan x.toml --set reward.0.kind=python:r.py"),
        "unknown-reward",
        &[
            "--set: `python:r.py` is not a kind of reward",
            "--set reward.0.kind=python:r.py",
            "hint: the kinds are exact, math, gsm8k, countdown, code, json-schema, regex,",
        ],
    ),
    (
        Typed("plan x.toml --set reward.0.kind=python:r.py:wants"),
        "reward-function-signature",
        &[
            "reward `wants` cannot be called: missing a required argument: 'difficulty'",
            "it is `wants(completions, difficulty)` and is called with prompts,",
            "hint: name the parameters as the call does, or take the rest with **kwargs",
        ],
    ),
    (
        Typed("plan x.toml --set reward.0.kind=python:syntax.py:right"),
        "reward-function-missing",
        &[
            "reward `right` does not load: SyntaxError",
            "syntax.py",
            "import the file with the same interpreter",
        ],
    ),
    (
        Typed("plan x.toml --set reward.0.kind=python:imports.py:right"),
        "reward-function-missing",
        &[
            "No module named 'no_such_package'",
            "imports.py",
            "`python` in the [[reward]] table names another",
        ],
    ),
    (
        Typed("plan x.toml --set reward.0.kind=command:no-such-program"),
        "reward-worker-not-started",
        &[
            "reward `no-such-program`: starting `no-such-program`: No such file or directory (os error 2)",
            "hint: check that the program is installed and in PATH; for Python set `python` in the",
        ],
    ),
    (
        Typed("train x.toml --set reward.0.kind=python:r.py:short"),
        "reward-bad-reply",
        &[
            "reward `short` returned 1 scores for 8 completions",
            "tried 2 times",
            "in step 1 of 1",
            "hint: return a list with one float or None a completion",
        ],
    ),
    (
        Typed("train x.toml --set reward.0.kind=python:r.py:raises"),
        "reward-function-raised",
        &[
            "reward `raises` raised ZeroDivisionError: division by zero",
            "r.py",
            "in step 1 of 1",
            "fix the function, or set on_error",
        ],
    ),
    (
        Typed("train x.toml --set reward.0.kind=python:r.py:nan"),
        "reward-not-finite",
        &[
            "reward `nan` gave NaN for sample 0 of batch 0",
            "the response begins \"2\"",
            "tried 2 times",
            "hint: return a finite number, or None to leave the sample out",
        ],
    ),
    (
        Typed("trian x.toml"),
        "bad-usage",
        &["unrecognized subcommand 'trian'", "hint: a similar subcommand exists: 'train'"],
    ),
    (
        Typed("train y.toml"),
        "run-file-missing",
        &[
            "there is no file y.toml",
            "looked for at ",
            "hint: give the path of a run file, for example runs/first.toml",
        ],
    ),
    (
        Typed("train x.tml"),
        "run-file-missing",
        &["there is no file x.tml", "looked for at ", "hint: did you mean x.toml?"],
    ),
    (
        Typed("train x.toml --gpus 2"),
        "bad-usage",
        &["unexpected argument '--gpus' found", "hint: --ranks N trains on N cards, one process each"],
    ),
    (
        Typed("train x.toml --set run.dir=notes"),
        "run-dir-not-empty",
        &["notes is not empty: it holds readme.txt", "--set run.dir=notes-2", "--overwrite"],
    ),
    (
        Typed("plan x.toml --limit hst=8GiB"),
        "bad-limit",
        &["`hst=8GiB` is not a limit", "hint: write --limit host=8GiB,disk=100GiB"],
    ),
    (
        Typed("plan x.toml --limit host=60MiB"),
        "host-pool-exceeded",
        &[
            "the run needs ",
            "the limit is 60.0 MiB (--limit)",
            "process.image",
            "the smallest host memory in which this run fits is ",
        ],
    ),
    (
        Typed("plan x.toml --card h101 --set run.device=cuda"),
        "card-unknown",
        &[
            "`h101` is no card of the table",
            "the table has l4, a10, 3090, 4090, 5090, l40s, a100-40, a100,",
            "hint: give its numbers: --card flops=150e12,bandwidth=900GB,memory=24GiB,link=64GB",
        ],
    ),
    (
        Typed("plan x.toml --hosts 2 --ranks 3"),
        "bad-usage",
        &["--ranks 3 are all ranks of 2 hosts, each with as many", "hint: --ranks 4, or --ranks-per-host R"],
    ),
    (
        Typed("plan x.toml --rent --price h100=cheap --set run.device=cuda"),
        "bad-price",
        &[
            "`cheap` is no price of an hour of h100: it is a number above 0, without a currency",
            "hint: write --price h100=2.1,h200=3.2, or a file with a line for each: h100 = 2.1",
        ],
    ),
    (
        Typed("eval --model builtin:nano --data god.jsonl --reward exact"),
        "data-missing",
        &[
            "god.jsonl: No such file or directory (os error 2)",
            "looked for at ",
            "hint: did you mean good.jsonl?",
        ],
    ),
    (
        Typed("checkpoint export notes --to there"),
        "checkpoint-missing",
        &["notes: there is no checkpoint", "hint: give a run directory or one of its checkpoints/step-N"],
    ),
    (
        Typed("watch nowhere"),
        "run-dir-unreadable",
        &[
            "nowhere: No such file or directory (os error 2)",
            "hint: give a run directory that `plimsoll train` made, the one that holds events.jsonl",
        ],
    ),
    (
        Typed("grade --reward exact answers.jsonl"),
        "data-column-missing",
        &[
            "row 1 has no `response`",
            "columns there: completion, ground_truth",
            "hint: did you mean `completion`? --response-column completion",
        ],
    ),
    (
        Typed("import trl empty.sh"),
        "import-nothing-found",
        &["empty.sh holds no trl settings", "hint: plimsoll import --help shows which file each stack takes"],
    ),
    (
        Typed("import tlr empty.sh"),
        "bad-usage",
        &[
            "invalid value 'tlr' for '<STACK>'",
            "[possible values: openrlhf, verl, trl, orz]",
            "hint: `plimsoll import --help` lists what it takes",
        ],
    ),
    (
        Typed("init frist"),
        "run-file-unknown",
        &["no run file is called `frist`", "hint: did you mean `first`?"],
    ),
    (
        Typed("init first --output x.toml"),
        "run-file-exists",
        &["x.toml is there already", "hint: choose another --output, or remove it"],
    ),
    (
        Typed("collect env.toml --set env=CartPol-v1"),
        "unknown-environment",
        &[
            "--set: there is no environment `CartPol-v1`",
            "--set env=CartPol-v1",
            "native are CartPole-v1, Acrobot-v1, MountainCar-v0,",
            "hint: did you mean `CartPole-v1`?",
        ],
    ),
    (
        Typed("explain unknwon-key"),
        "unknown-slug",
        &["`unknwon-key` is not the name of an error", "hint: did you mean `unknown-key`?"],
    ),
    (
        Typed("doctor --log good.jsnl"),
        "log-missing",
        &["good.jsnl: there is no such file", "looked for at ", "hint: did you mean good.jsonl?"],
    ),
    (
        Typed("launch ssh x.toml --hosts 2 --ranks-per-host 4 --host a"),
        "launch-shape",
        &["--host names 1 of them, and --hosts is 2", "hint: --hosts 1"],
    ),
    (
        Typed("launch k8s x.toml --hosts 1 --ranks-per-host 2 --image a:1 --env HF_TOKEN=x"),
        "launch-word",
        &["--env HF_TOKEN is a secret by its name", "--patch FILE"],
    ),
];

/// Returns what is missing in what the program says of a mistake; nothing if all is there.
fn missing((did, slug, parts): &Mistake) -> Vec<String> {
    let folder = Folder::new();
    fs::create_dir(folder.path("notes")).expect("a folder");
    FILES.iter().for_each(|(name, content)| drop(folder.write(name, content)));
    let (run, line) = match did {
        Edit(from, to) => {
            assert_eq!(RUN.matches(from).count(), 1, "{from}");
            (RUN.replace(from, to), "plan x.toml")
        }
        Typed(line) => (RUN.to_string(), *line),
    };
    folder.write("x.toml", &run);
    let args: Vec<&str> = line.split(' ').collect();
    let output = command(&args).current_dir(folder.path(".")).output().expect("the binary runs");
    let stderr = text(&output.stderr);
    let error = format!("error[{slug}]: ");
    let wanted = [error.as_str(), "\nhint: "].into_iter().chain(parts.iter().copied());
    let mut missing: Vec<String> =
        wanted.filter(|part| !stderr.contains(part)).map(|part| format!("{part:?} is missing")).collect();
    let names: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error[")).collect();
    if names.len() != 1 || output.status.success() {
        missing.push(format!("{} errors, {:?}", names.len(), output.status.code()));
    }
    let what = match did {
        Edit(from, to) => format!("{from:?} became {to:?}"),
        Typed(line) => line.to_string(),
    };
    if missing.is_empty() { missing } else { vec![format!("{what}: {}\n{stderr}", missing.join("; "))] }
}

#[test]
fn a_newcomer_is_told_what_is_wrong_where_and_what_to_do() {
    assert_eq!(MISTAKES.len(), 100);
    if !python_is_there() {
        return;
    }
    let next = std::sync::atomic::AtomicUsize::new(0);
    let take = || MISTAKES.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let worker = || std::iter::from_fn(take).flat_map(missing).collect::<Vec<String>>();
    let unclear: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("it does not panic")).collect()
    });
    assert!(
        unclear.is_empty(),
        "{} of {} are unclear\n{}",
        unclear.len(),
        MISTAKES.len(),
        unclear.join("\n")
    );
}
