//! Tests what is read of scripts: variables, arithmetic, arrays, branches and here documents of shells; constants,
//! functions and calls of Python. Nothing makes reading slow or large.

use plimsoll_stacks::{Setting, Wishes, find, import, settings};
use std::time::Duration;

fn read(stack: &str, name: &str, text: &str) -> Vec<Setting> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a file");
    settings(find(stack).expect("a stack"), &path).unwrap_or_else(|err| panic!("{err}: {text}"))
}

/// The value of `key` as it is read, or why it is not.
fn value(given: &[Setting], key: &str) -> Result<String, String> {
    let one = given.iter().rev().find(|one| one.key == key).unwrap_or_else(|| panic!("no {key}: {given:?}"));
    match one.unreadable {
        Some(why) => Err(why.to_string()),
        None => Ok(one.value.clone()),
    }
}

/// Returns what `data.seed` is in a script of verl that ends in `data.seed=WORD`.
fn shell(before: &str, word: &str) -> Result<String, String> {
    let script =
        format!("{before}\npython3 -m verl.trainer.main_ppo data.train_batch_size=4 data.seed={word}\n");
    value(&read("verl", "x.sh", &script), "data.seed")
}

#[test]
fn variables_of_a_script() {
    let home = std::env::var("HOME").expect("a home");
    for (before, word, expect) in [
        ("N=5", "$N", Some("5")),
        ("N=5", "$((1024 * 20 + N))", Some("20485")),
        ("N=5", "$(( (N + 1) * ${N} ))", Some("30")),
        ("N=2\nM=$((N * 3))", "${M}x", Some("6x")),
        ("", "$HOME/x", Some(&*format!("{home}/x"))),
        ("", "${HOME}/x", Some(&*format!("{home}/x"))),
        ("D=~/y", "$D", Some(&*format!("{home}/y"))),
        ("", "${N:-7}", Some("7")),
        ("A=1", "${B:-${A}}", Some("1")),
        ("A=1", "${B:-\"${C:-$A}\"}", Some("1")),
        ("export A=1 B=2", "$A$B", Some("12")),
        ("A=x", "'$A'", Some("$A")),
        ("A=x", "\"$A\"", Some("x")),
        ("A=1\nA+=2", "$A", Some("12")),
        ("A=(1)\nA+=(data.shuffle=False)", "${A[@]}", Some("1")),
        ("if [ $1 ]; then B=1; else A=5; fi", "${A:-3}", None),
        ("# it's a comment\nA=1", "$A", Some("1")),
        ("cat <<X\nit's text\nX\nA=1", "$A", Some("1")),
        ("A=1", "$A 2>&1 | tee log", Some("1")),
        ("A=1", "$A > log", Some("1")),
        ("", "$B", None),
        (
            "D=\"$(cd \"$(dirname \"$0\")/../..\" && pwd)\"",
            "$D/x",
            Some("$(cd \"$(dirname \"$0\")/../..\" && pwd)/x"),
        ),
        ("", "$(cd x && pwd; date)", None),
        ("", "$(date +%s)", None),
        ("A=`date`", "$A", None),
        ("", "$((B + 1))", None),
        ("", "$((1 / 0))", None),
        ("if [ $1 ]; then A=1; else A=2; fi", "$A", None),
        ("A=1\nif [ $1 ]; then A=2; fi", "$A", None),
        ("case $1 in x) A=1;; y) A=2;; esac", "$A", None),
        ("for A in 1 2; do echo $A; done", "$A", None),
        ("if [ $1 ]; then B=1; fi\nA=2", "$A", Some("2")),
    ] {
        assert_eq!(shell(before, word).ok().as_deref(), expect, "{before:?} {word:?}");
    }
    // Within its own branch a variable is known.
    let script = "if [ $1 ]; then\nA=3\npython3 -m verl.trainer.main_ppo data.seed=$A\nfi\n";
    assert_eq!(value(&read("verl", "x.sh", script), "data.seed").as_deref(), Ok("3"));
}

#[test]
fn arrays_and_words_of_a_variable() {
    let script = "ARGS=(data.seed=1 \"data.train_files=['a b.parquet']\")  # all of it\nMORE=\"data.train_batch_size=4  data.val_files=c\"\nARGS+=(data.shuffle=False)\npython3 -m verl.trainer.main_ppo \"${ARGS[@]}\" $MORE \"$NONE\"\n";
    let given = read("verl", "x.sh", script);
    let keys: Vec<&str> =
        given.iter().map(|one| one.key.as_str()).filter(|key| key.starts_with("data.")).collect();
    assert_eq!(
        keys,
        ["data.seed", "data.train_files", "data.shuffle", "data.train_batch_size", "data.val_files"]
    );
    assert_eq!(value(&given, "data.train_files").as_deref(), Ok("['a b.parquet']"));
}

#[test]
fn the_launchers_flags_have_one_value_each() {
    for (line, expect) in [
        ("accelerate launch --num_processes 8 trl grpo --max_steps 4", Some("8")),
        ("accelerate launch --multi_gpu --num_processes=4 train_grpo.py --max_steps 4", Some("4")),
        ("torchrun --nproc_per_node 2 trl/scripts/grpo.py --max_steps 4", None),
        ("accelerate launch --multi_gpu trl grpo --max_steps 4", None),
        ("CUDA_VISIBLE_DEVICES=0 trl grpo --max_steps 4 --num_processes 3", Some("3")),
    ] {
        let given = read("trl", "x.sh", line);
        let found = given.iter().find(|one| one.key == "num_processes").map(|one| one.value.as_str());
        assert_eq!(found, expect, "{line}: {given:?}");
        assert_eq!(value(&given, "max_steps").as_deref(), Ok("4"));
        assert_eq!(value(&given, "trainer").as_deref(), Ok("grpo"));
    }
}

/// Returns what `seed` of a GRPOConfig is in a script with `before`.
fn python(before: &str, expression: &str) -> Result<String, String> {
    value(
        &read("trl", "x.py", &format!("{before}\nargs = GRPOConfig(max_steps=1, seed={expression})\n")),
        "seed",
    )
}

#[test]
fn constants_of_a_script() {
    for (before, expression, expect) in [
        ("SEED = 5", "SEED", Some("5")),
        ("SEED: int = 5  # five", "SEED", Some("5")),
        ("A = 2\nB = A * 3 + 1", "B", Some("7")),
        ("", "1024 * 20", Some("20480")),
        ("", "2 ** 3 // 3", Some("2")),
        ("", "(3)", Some("3")),
        ("A, B = 1, 2", "0", Some("0")),
        ("A = 'x'", "f\"{A}/y\"", Some("x/y")),
        ("A = 'x' \\\n 'y'", "A", Some("xy")),
        ("A = (\n  1 +  # one\n  2\n)", "A", Some("3")),
        ("A = 1\nA = 2", "A", Some("2")),
        ("", "os.environ.get(\"SEED\", 4)", Some("4")),
        ("A = [1, 2]", "A", Some("[1, 2]")),
        ("A = 'SEED = 1'", "SEED", None),
        ("", "SEED", None),
        ("A = f(1)", "A", None),
        ("A = B\nB = A", "A", None),
        ("if x:\n    A = 1\nelse:\n    A = 2", "A", None),
        ("", "[x for x in y]", None),
        ("", "lambda: 1", None),
        ("", "1 if x else 2", None),
    ] {
        assert_eq!(python(before, expression).ok().as_deref(), expect, "{before:?} {expression:?}");
    }
}

#[test]
fn models_data_and_rewards_of_a_script() {
    let text = "from datasets import load_dataset\nfrom my_rewards.text import short as brief\nfrom trl.rewards import accuracy_reward\n\
        from unsloth import FastLanguageModel\n\
        NAME = \"a/b\"\n\
        model, tokenizer = FastLanguageModel.from_pretrained(model_name=NAME, load_in_4bit=True, max_seq_length=2048)\n\
        model = FastLanguageModel.get_peft_model(model, r=16)\n\
        data = load_dataset(\"c/d\", split=\"train\")\ndata = data.map(f).filter(lambda x: x[\"y\"])\n\
        def own(completions, **kwargs):\n    return [0.0 for _ in completions]\n\
        trainer = GRPOTrainer(model, reward_funcs=[own, brief, accuracy_reward, \"e/rm\", lambda c: c], train_dataset=data[\"train\"])\n";
    let given = read("trl", "x.py", text);
    for (key, expect) in [("model", "a/b"), ("load_in_4bit", "True"), ("train_dataset", "hf:c/d/train")] {
        assert_eq!(value(&given, key).as_deref(), Ok(expect), "{given:?}");
    }
    assert_eq!(value(&given, "peft_config.r").as_deref(), Ok("16"), "{given:?}");
    let rewards = value(&given, "reward_funcs").expect("a list");
    assert!(rewards.contains("x.py:own\", my_rewards.text.short, accuracy_reward, e/rm, "), "{rewards}");
}

/// Text that once took seconds, or would take all memory: each is at most 1 MiB.
/// Returns the time that this thread has had a processor, in steps of 10 ms.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux counts it");
    // After the name, in parentheses: of the program's own code and of the kernel for it.
    let (_, fields) = text.rsplit_once(')').expect("a name");
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

#[test]
fn r_reading_was_quadratic() {
    let half = |text: &str| text.repeat((1 << 19) / text.len());
    let whole = |text: &str| text.repeat((1 << 20) / text.len() - 100);
    let numbered = |before: &str, after: &str, count: usize| -> String {
        (0..count).map(|number| format!("{before}{number}{after}")).collect()
    };
    let start = "python3 -m verl.trainer.main_ppo data.train_batch_size=4 data.seed=";
    let files = [
        ("verl", format!("{start}{}", "${".repeat(200_000))),
        ("verl", format!("{start}{}", "$((".repeat(200_000))),
        ("verl", format!("{start}{}", "$(".repeat(200_000))),
        ("verl", format!("{start}{}{}", "${A:-".repeat(100_000), "}".repeat(100_000))),
        ("verl", format!("A={}\n{start}{}", half("x"), half("$A "))),
        ("verl", format!("A=({})\n{start}{}", half("x "), half("\"${A[@]}\" "))),
        ("verl", format!("{start}4\n{}", whole("if a; then\nA=1\n"))),
        ("verl", format!("{start}4\n{}", whole("cat <<A\n"))),
        ("verl", format!("{start}4\n{}", whole("<<A "))),
        ("verl", format!("{}{start}$A", whole("A+=xxxx\n"))),
        ("verl", format!("if\nA=({})\n{}{start}$A", half("x "), half("A+=(x)\n"))),
        ("verl", format!("if\n{}{}{start}4", numbered("A", "=1\n", 20_000), half("else\n"))),
        (
            "verl",
            format!(
                "{}{}{}{start}4",
                "if\n".repeat(100_000),
                numbered("A", "=1\n", 20_000),
                "fi\n".repeat(100_000)
            ),
        ),
        ("verl", format!("data:\n  seed: {}\n{}", half("x"), half("  a: ${data.seed}\n"))),
        ("verl", format!("{}:\n{}", half("x"), half(" a:\n  b: 1\n"))),
        ("verl", format!("{{\"{}\": {{{}\"b\": 1}}}}", half("x"), numbered("\"", "\": 1,", 40_000))),
        ("trl", whole("GRPOConfig(")),
        ("trl", format!("GRPOConfig({})", whole("seed=1,"))),
        ("trl", format!("GRPOConfig(seed={})", whole("-"))),
        ("trl", format!("GRPOConfig(seed={})", whole("1+"))),
        ("trl", format!("GRPOConfig(seed=x{})", whole(".a"))),
        ("trl", format!("GRPOConfig(seed=x{})", whole("()"))),
        ("trl", format!("GRPOConfig(seed={})", whole("["))),
        ("trl", format!("{}GRPOConfig(seed=[{}])", whole("A=A\n"), "A,".repeat(100))),
        ("trl", format!("A=[{}]\nB=[{}]\nGRPOConfig(seed=B)", half("1,"), half("A,"))),
        ("orz", format!("class Config:\n    a: int = [\n{}", whole("    (\n"))),
        ("torchrl", format!("{}ParallelEnv(create_env_fn=a*f())", half("a = \"b b\"\nb = \"a a\"\n"))),
    ];
    for (stack, text) in files {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.py");
        let text = &text[..text.len().min(1 << 20)];
        std::fs::write(&path, text).expect("a file");
        let stack = find(stack).expect("a stack");
        // Of this thread's processor time, which other programs have no part in. Time that grows with the square of
        // 1 MiB is minutes; the slowest of them takes 2.6 s next to a build.
        let (begin, limit) = (processor_time(), Duration::from_secs(20));
        let _ = settings(stack, &path);
        let _ = import(stack, &path, &Wishes::default());
        let took = processor_time() - begin;
        assert!(took < limit, "{stack:?} took {took:?}: {}...", &text[..60]);
    }
}

#[test]
fn texts_within_a_lambda_are_not_shown() {
    let script = "from trl import GRPOConfig, GRPOTrainer\n\
                  GRPOTrainer(model='Qwen/Qwen2.5-0.5B', args=GRPOConfig(output_dir='o'), train_dataset='x',\n\
                  reward_funcs=[lambda c, **k: openai('very-own', 1), other('shown')])\n";
    let given = read("trl", "x.py", script);
    let one = given.iter().find(|one| one.key == "reward_funcs").expect("it is given");
    assert!(one.value.contains("lambda c, **k: openai('...', 1)"), "{}", one.value);
    assert!(!one.value.contains("very-own"), "{}", one.value);
}
