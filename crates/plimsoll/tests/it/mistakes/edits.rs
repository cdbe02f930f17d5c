//! Mistakes in a run file: a text of the good one, what is there in its place, the name of the error of `plan`, and
//! what stderr must contain: place, numbers or names, hint.

pub const EDITS: &[((&str, &str), &str, &[&str])] = &[
    (
        ("group_size = 4", "grup_size = 4"),
        "unknown-key",
        &[
            "x.toml:9:1: `rollout.grup_size` is not a key of a run file",
            "9 | grup_size = 4",
            "hint: did you mean `rollout.group_size`?",
        ],
    ),
    (
        ("[rollout]", "[rolout]"),
        "unknown-key",
        &["x.toml:7:2: `rolout` is not a key of a run file", "7 | [rolout]", "hint: did you mean `rollout`?"],
    ),
    (
        ("steps = 1", "steps = \"two\""),
        "bad-type",
        &[
            "x.toml:14:1: `train.steps` is the string \"two\"; it takes a whole number from 0 to 4294967295",
            "14 | steps = \"two\"",
            "hint: write `steps` as a whole number from 0 to 4294967295",
        ],
    ),
    (
        ("steps = 1", "steps = 0"),
        "bad-value",
        &[
            "x.toml:14:1: `train.steps` is 0; it takes a whole number of at least 1",
            "14 | steps = 0",
            "hint: set train.steps to a whole number of at least 1",
        ],
    ),
    (
        ("steps = 1\n", ""),
        "missing-key",
        &[
            "x.toml: `train.steps` is missing",
            "hint: add steps = 60 under [train]; `--set train.steps=VALUE` does it too",
        ],
    ),
    (
        ("steps = 1", "num_train_epochs = 1"),
        "unknown-key",
        &[
            "x.toml:14:1: `train.num_train_epochs` is not a key of a run file",
            "14 | num_train_epochs = 1",
            "hint: set `train.epochs`: passes over the data",
        ],
    ),
    (
        ("kind = \"exact\"", "kind = [\"exact\"]"),
        "bad-type",
        &[
            "x.toml:12:1: `reward.0.kind` is a list; it takes a string",
            "12 | kind = [\"exact\"]",
            "hint: write `kind` as a string",
        ],
    ),
    (
        ("[[reward]]\nkind = \"exact\"\n", ""),
        "missing-key",
        &[
            "x.toml: `reward` is missing",
            "method `grpo` learns from a reward",
            "hint: add [[reward]] with `kind = \"exact\"`",
        ],
    ),
    (
        ("[[reward]]", "[reward]"),
        "bad-type",
        &[
            "x.toml:11:2: `reward` is a table; it takes a list",
            "11 | [reward]",
            "hint: write [[reward]], with two brackets",
        ],
    ),
    (
        ("kind = \"exact\"", "kind = \"exat\""),
        "unknown-reward",
        &[
            "x.toml:12:1: `exat` is not a kind of reward",
            "12 | kind = \"exat\"",
            "hint: did you mean `exact`?",
        ],
    ),
    (
        ("kind = \"exact\"", "kind = \"regex:(\""),
        "reward-bad-pattern",
        &[
            "x.toml:12:1: pattern `(` does not compile: error: unclosed group",
            "12 | kind = \"regex:(\"",
            "hint: the syntax is that of the Rust regex crate: no look-around, no back-references",
        ],
    ),
    (
        ("kind = \"exact\"", "knd = \"exact\""),
        "unknown-key",
        &[
            "x.toml:12:1: `reward.0.knd` is not a key of a run file",
            "12 | knd = \"exact\"",
            "hint: did you mean `reward.0.kind`?",
        ],
    ),
    (
        ("group_size = 4", "group_size = 1"),
        "group-too-small",
        &[
            "x.toml:9:1: rollout.group_size = 1 with loss.advantage = \"group_norm\", where one sample has",
            "9 | group_size = 1",
            "hint: set rollout.group_size to at least 2",
        ],
    ),
    (
        ("group_size = 4", "group_size = 4\nn = 4"),
        "duplicate-key",
        &[
            "x.toml:10:1: `rollout.n` is another name of `rollout.group_size`, which is set too",
            "10 | n = 4",
            "hint: keep `rollout.group_size` alone",
        ],
    ),
    (
        ("group_size = 4", "group_size = 4\ngroup_size = 5"),
        "run-file-syntax",
        &[
            "x.toml:10:1: duplicate key",
            "10 | group_size = 5",
            "hint: run files are TOML: strings in double quotes, tables as [section], lists as [1, 2]",
        ],
    ),
    (
        ("group_size = 4", "group_size = = 4"),
        "run-file-syntax",
        &[
            "x.toml:9:14: extra `=`, expected nothing",
            "9 | group_size = = 4",
            "hint: run files are TOML: strings in double quotes, tables as [section], lists as [1, 2]",
        ],
    ),
    (
        ("group_size = 4", "group_size = 4\ntop_p = 0"),
        "bad-value",
        &[
            "x.toml:10:1: `rollout.top_p` is 0; it takes a number above 0 and up to 1; 1 keeps every token",
            "10 | top_p = 0",
            "hint: set rollout.top_p to a number above 0 and up to 1; 1 keeps every token",
        ],
    ),
    (
        ("group_size = 4", "group_size = 4\ntemperature = -1"),
        "bad-value",
        &[
            "x.toml:10:1: `rollout.temperature` is -1; it takes 0, which is greedy, or a number from 1e-6 up",
            "10 | temperature = -1",
            "hint: set rollout.temperature to 0, which is greedy, or a number from 1e-6 up that is",
        ],
    ),
    (
        ("max_new_tokens = 4", "max_new_tokens = 0"),
        "bad-value",
        &[
            "x.toml:10:1: `rollout.max_new_tokens` is 0; it takes a number from 1 to 4194304",
            "10 | max_new_tokens = 0",
            "hint: set rollout.max_new_tokens to a number from 1 to 4194304",
        ],
    ),
    (
        ("max_new_tokens = 4", "max_new_tokens = 1000"),
        "positions-beyond-model",
        &[
            "sequences of up to 1016 tokens, and the model has 64 positions",
            "longest prompt 16, longest response 1000",
            "hint: lower rollout.max_new_tokens, or set data.prompt_tokens_max and data.overlong",
        ],
    ),
    (
        ("learning_rate = 1e-6", "learning_rate = nan"),
        "bad-value",
        &[
            "x.toml:15:1: `train.learning_rate` is NaN; it takes a number that is finite in f32 and not negative",
            "15 | learning_rate = nan",
            "hint: set train.learning_rate to a number that is finite in f32 and not negative",
        ],
    ),
    (
        ("learning_rate = 1e-6", "learning_rate = \"1e-6\""),
        "bad-type",
        &[
            "x.toml:15:1: `train.learning_rate` is the string \"1e-6\"; it takes a number",
            "15 | learning_rate = \"1e-6\"",
            "hint: write `learning_rate` as a number",
        ],
    ),
    (
        ("learning_rate = 1e-6", "lr_rate = 1e-6"),
        "unknown-key",
        &[
            "x.toml:15:1: `train.lr_rate` is not a key of a run file",
            "15 | lr_rate = 1e-6",
            "hint: remove `lr_rate`",
        ],
    ),
    (
        ("steps = 1", "steps = 1\nmini_batch = 3"),
        "contradictory-keys",
        &[
            "x.toml:15:1: train.mini_batch = 3 does not divide the 8 sequences of a step (2 prompts x 4 samples)",
            "15 | mini_batch = 3",
            "hint: set train.mini_batch = 2, or remove it for one update a step",
        ],
    ),
    (
        ("steps = 1", "steps = 1\noptimizer_dtype = \"fp16\""),
        "bad-value",
        &[
            "x.toml:15:1: `train.optimizer_dtype` is the string \"fp16\"; it takes \"auto\" or \"f32\", \"bf16\" or \"int8\"",
            "15 | optimizer_dtype = \"fp16\"",
            "hint: set `train.optimizer_dtype` to \"bf16\", which has the size of a half and the",
        ],
    ),
    (
        ("method = \"grpo\"", "method = \"gpro\""),
        "bad-value",
        &[
            "x.toml:1:1: `method` is \"gpro\", which is none of its names",
            "1 | method = \"gpro\"",
            "hint: did you mean \"grpo\"?",
        ],
    ),
    (
        ("method = \"grpo\"", "method = grpo"),
        "run-file-syntax",
        &[
            "x.toml:1:10: string values must be quoted, expected literal string",
            "1 | method = grpo",
            "hint: run files are TOML: strings in double quotes, tables as [section], lists as [1, 2]",
        ],
    ),
    (
        ("method = \"grpo\"", "method = \"grpo"),
        "run-file-syntax",
        &[
            "x.toml:1:15: invalid basic string, expected `\"`",
            "1 | method = \"grpo",
            "hint: run files are TOML: strings in double quotes, tables as [section], lists as [1, 2]",
        ],
    ),
    (
        ("method = \"grpo\"\n", ""),
        "missing-key",
        &["x.toml: `method` is missing", "hint: add method = \"grpo\"; `--set method=VALUE` does it too"],
    ),
    (
        ("method = \"grpo\"", "method = \"sft\""),
        "data-column-missing",
        &[
            "good.jsonl:1: no column `completion`",
            "columns there: `ground_truth`",
            "{\"prompt\": ..., \"completion\": ...}",
        ],
    ),
    (
        ("method = \"grpo\"", "method = \"dpo\""),
        "data-column-missing",
        &[
            "good.jsonl:1: no column `chosen`",
            "columns there: `prompt`, `ground_truth`",
            "hint: a preference row is {\"prompt\": ..., \"chosen\": ..., \"rejected\": ...}",
        ],
    ),
    (
        ("model = \"builtin:nano\"", "model = \"builtin:nno\""),
        "model-source-invalid",
        &[
            "model = \"builtin:nno\": the built-in model is `nano`",
            "hint: write builtin:nano, a directory, a .gguf file, hf:org/name, pypi:package or random:PRESET",
        ],
    ),
    (
        ("model = \"builtin:nano\"", "model = \"random:qwen2.5-8b\""),
        "unknown-preset",
        &["no preset is called `qwen2.5-8b`", "hint: did you mean random:qwen2.5-7b?"],
    ),
    (
        ("model = \"builtin:nano\"", "model = \"notes\""),
        "model-file-missing",
        &["notes/config.json: no such file", "hint: check `model` in the run file, or fetch the model again"],
    ),
    (
        ("[data]", "[data"),
        "run-file-syntax",
        &[
            "x.toml:3:6: unclosed table, expected `]`",
            "3 | [data",
            "hint: run files are TOML: strings in double quotes, tables as [section], lists as [1, 2]",
        ],
    ),
    (
        ("prompts = \"good.jsonl\"", "prompts = \"builtin:additon\""),
        "unknown-task",
        &[
            "no task is called `builtin:additon`",
            "tasks: builtin:addition, builtin:addition-forgetful,",
            "hint: did you mean builtin:addition? A file is named by its path",
        ],
    ),
    (
        ("prompt_tokens_max = 16", "prompt_tokens_max = 2"),
        "prompt-too-long",
        &[
            "good.jsonl: row 1 has 4 tokens, data.prompt_tokens_max is 2",
            "row 1 of good.jsonl",
            "hint: raise data.prompt_tokens_max, or set data.overlong = \"drop\" or \"truncate-left\"",
        ],
    ),
    (
        ("device = \"cpu\"", "device = \"gpu\""),
        "bad-value",
        &[
            "x.toml:18:1: `run.device` is the string \"gpu\"; it takes \"auto\" or \"cpu\" or \"cuda\"",
            "18 | device = \"gpu\"",
            "hint: did you mean \"cuda\"?",
        ],
    ),
    (
        ("device = \"cpu\"", "device = \"cuda:1\""),
        "bad-value",
        &[
            "x.toml:18:1: `run.device` is the string \"cuda:1\"; it takes \"auto\" or \"cpu\" or \"cuda\"",
            "18 | device = \"cuda:1\"",
            "hint: set `run.device` to \"cuda\", and choose the card outside: CUDA_VISIBLE_DEVICES=1",
        ],
    ),
    (
        ("dir = \"out\"", "dir = 3"),
        "bad-type",
        &[
            "x.toml:17:1: `run.dir` is the whole number 3; it takes a string",
            "17 | dir = 3",
            "hint: write `dir` as a string",
        ],
    ),
    (
        ("[run]", "[loss]\nkl_coef = \"low\"\n[run]"),
        "bad-type",
        &[
            "x.toml:17:1: `loss.kl_coef` is the string \"low\"; it takes a number",
            "17 | kl_coef = \"low\"",
            "hint: write `kl_coef` as a number",
        ],
    ),
    (
        ("[run]", "[lora]\ntargets = [\"q_prj\"]\n[run]"),
        "bad-value",
        &[
            "x.toml:17:12: `lora.targets`: \"q_prj\" matches no linear layer of a decoder",
            "17 | targets = [\"q_prj\"]",
            "there are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
            "hint: did you mean \"q_proj\"?",
        ],
    ),
    (
        ("[run]", "[memory]\nhost = \"3 gigs\"\n[run]"),
        "bad-value",
        &[
            "x.toml:17:1: `memory.host` is the string \"3 gigs\"; it takes \"auto\" or bytes, such as 1048576 or \"60GiB\"",
            "17 | host = \"3 gigs\"",
            "hint: set `memory.host` to \"auto\" or bytes, such as 1048576 or \"60GiB\"",
        ],
    ),
    (
        ("[run]", "[memory]\nhost = \"60MiB\"\n[run]"),
        "host-pool-exceeded",
        &[
            "the run needs ",
            "the limit is 60.0 MiB (memory.host of the run file)",
            "process.image",
            "--set memory.host=",
        ],
    ),
    (
        ("[run]", "[checkpoint]\nevery = -1\n[run]"),
        "bad-value",
        &[
            "x.toml:17:1: `checkpoint.every` is the whole number -1; it takes a whole number from 0 to 4294967295",
            "17 | every = -1",
            "hint: set `checkpoint.every` to a whole number from 0 to 4294967295",
        ],
    ),
    (("[run]", "[run]\nwandb = true"), "unknown-key", &["x.toml:17:1: `run.wandb`", "track.to"]),
];
