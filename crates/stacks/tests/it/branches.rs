//! Branches of scripts: an arm whose condition the file decides is taken, and a refusal names the branch.

use plimsoll_base::Result;
use plimsoll_stacks::{Imported, Wishes, find, import};

const VERL: &str = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=a/b data.train_files=x.parquet";

fn imported(script: &str) -> Result<Imported> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.sh");
    std::fs::write(&path, script).expect("a file");
    import(find("verl").expect("a stack"), &path, &Wishes::default())
}

const LORA: &str = "actor_rollout_ref.model.lora_rank=32";

/// A branch with its default taken was refused: `lora_rank = 32: what it holds decides the job, and cannot be read`.
#[test]
fn r_a_branch_whose_condition_is_known_was_unknown() {
    for (before, has_lora) in [
        (format!("USE=${{USE:-1}}\nA=()\nif [ \"$USE\" = \"1\" ]; then A+=({LORA}); fi"), true),
        (format!("USE=${{USE:-0}}\nA=()\nif [ \"$USE\" = \"1\" ]; then A+=({LORA}); fi"), false),
        (format!("USE=0\nif [ $USE -eq 1 ]; then A=({LORA}); else A=(data.seed=1); fi"), false),
        (
            format!("USE=2\nif [ $USE = 1 ]; then A=(); elif [ $USE = 2 ]; then A=({LORA}); else A=(); fi"),
            true,
        ),
        (format!("A=()\n[ \"${{USE:-1}}\" = 1 ] && A+=({LORA})"), true),
        (format!("A=()\n[ \"${{USE:-1}}\" = 1 ] || A+=({LORA})"), false),
        (
            format!("X=lora\ncase $X in\n full|none) A=();;\n lora*)\n  A=({LORA})\n  ;;\n *) A=();;\nesac"),
            true,
        ),
        (format!("X=${{1:-full}}\ncase \"$X\" in\n lora) A=({LORA});;\n *) A=();;\nesac"), false),
        (format!("if [[ -n \"${{X:-}}\" && $X == lora ]]; then A=({LORA}); else A=(); fi"), false),
        (format!("N=8\nif [ $N -gt 4 ] && true; then\n if [ $N = 8 ]; then A=({LORA}); fi\nfi"), true),
        (format!("A=({LORA})\nwhile [ $# -gt 0 ]; do A=(); shift; done"), true),
    ] {
        let run = imported(&format!("{before}\n{VERL} \"${{A[@]}}\"\n")).expect(&before).run_file;
        assert_eq!(run.contains("\n[lora]\nrank = 32"), has_lora, "{before}: {run}");
    }
}

/// The trainer of an arm that never runs was the job.
#[test]
fn r_a_command_of_an_arm_that_never_runs_counted() {
    let other = VERL.replace("grpo", "rloo");
    let script = format!("KIND=grpo\nif [ $KIND = rloo ]; then\n{other}\nelse\n{VERL}\nfi\n");
    let run = imported(&script).expect("a run file");
    assert!(run.run_file.contains("method = \"grpo\""), "{}", run.run_file);
    assert!(!run.remarks.iter().any(|line| line.contains("main_ppo")), "{:?}", run.remarks);
}

/// Three arms of a `case` were glued together into one number.
#[test]
fn r_arms_of_a_case_were_glued_together() {
    let arms = "case $KIND in\n a) LOW=0.15;;\n b) LOW=0.05;;\n *) LOW=0.20;;\nesac";
    let line = format!("{VERL} actor_rollout_ref.actor.clip_ratio_low=$LOW\n");
    let error = imported(&format!("{arms}\n{line}")).expect_err("a value of three").to_string();
    let why = "actor_rollout_ref.actor.clip_ratio_low = $LOW: it decides the job, and is set in a branch whose condition is not known here (line 1): keep the arm";
    assert!(error.contains(why), "{error}");
    let run = imported(&format!("KIND=${{KIND:-b}}\n{arms}\n{line}")).expect("a known arm").run_file;
    assert!(run.contains("clip_low = 0.05  #"), "{run}");
}

#[test]
fn a_refusal_names_the_branch() {
    let script = format!("A=()\n\nif grep -q x y; then\n  A+=({LORA})\nfi\n{VERL} \"${{A[@]}}\"\n");
    let error = imported(&script).expect_err("a branch").to_string();
    let why = "line 4: actor_rollout_ref.model.lora_rank = 32: it decides the job, and is set in a branch whose condition is not known here (line 3)";
    assert!(error.contains(why), "{error}");
}

#[test]
fn sums_of_expr_are_counted() {
    let run = imported(&format!("N=4\n{VERL} data.train_batch_size=$(expr 16 / $N)\n"))
        .expect("a run file")
        .run_file;
    assert!(run.contains("prompts_per_step = 4  #"), "{run}");
}

/// A batch, a rate or a length that cannot be read became the default here.
#[test]
fn r_a_number_that_cannot_be_read_was_the_default() {
    for (more, key) in [
        ("data.train_batch_size=$BATCH", "rollout.prompts_per_step"),
        ("actor_rollout_ref.rollout.n=$N", "rollout.group_size"),
        ("data.max_response_length=$(len)", "rollout.max_new_tokens"),
        ("actor_rollout_ref.actor.optim.lr=$LR", "train.learning_rate"),
        ("trainer.total_training_steps=$STEPS", "train.steps"),
    ] {
        let run = imported(&format!("{VERL} {more}\n")).expect(more);
        let missing = format!("missing: {key}: {}", more.split('=').next().expect("a key"));
        assert!(run.remarks.iter().any(|line| line.starts_with(&missing)), "{more}: {:?}", run.remarks);
        let last = key.rsplit('.').next().expect("a key");
        assert!(run.run_file.contains(&format!("\n{last} = \"\"  #")), "{more}: {}", run.run_file);
    }
}

/// A command within the text of another one, as Slurm's scripts start it, was not found.
#[test]
fn r_a_command_of_another_shell_was_not_found() {
    let text = format!(
        "N=4\nsrun --overlap bash -c \"pip install x \\\n  && {VERL} data.train_batch_size=$N\" &>> log\n"
    );
    let run = imported(&text).expect(&text).run_file;
    assert!(run.contains("prompts_per_step = 4  #"), "{run}");
    let error = imported(&format!("sh -c '{VERL} {LORA} data.seed=$T'\n")).map(|run| run.run_file);
    assert!(error.expect("a run file").contains("rank = 32"));
    let other =
        "python -m verl.experimental.fully_async_policy.fully_async_main actor_rollout_ref.model.path=a/b\n";
    let error = imported(other).expect_err(other).to_string();
    assert!(error.contains("line 1: the trainer is `fully_async_main`"), "{error}");
}

#[test]
fn an_arm_that_ends_the_script_sets_nothing() {
    for (before, expect) in [
        ("case $D in\n gpu) N=4;;\n npu) N=8;;\n *)\n  echo no\n  exit 1\n  ;;\nesac", Some("4")),
        ("N=4\nif [ $D ]; then\n N=8\n exit\nfi", Some("4")),
        ("N=4\nif [ $D ]; then\n [ $E ] || { echo no; exit 1; }\n N=8\nfi", None),
        ("N=4\nif [ $D ]; then\n [ $E ] && exit 1\n N=8\nfi", None),
    ] {
        let run = imported(&format!("{before}\n{VERL} data.train_batch_size=$N\n")).expect(before);
        let line = run.run_file.lines().find(|line| line.starts_with("prompts_per_step = ")).expect("a line");
        let expect =
            expect.map_or("prompts_per_step = \"\"".to_string(), |n| format!("prompts_per_step = {n} "));
        assert!(line.starts_with(&expect), "{before}: {line}");
    }
}

const GRPO: &str = "from trl import GRPOConfig, GRPOTrainer\n\ndef f(completions, **k):\n    return [1.0]\n";

fn of_python(text: &str) -> Result<Imported> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.py");
    std::fs::write(&path, text).expect("a file");
    import(find("trl").expect("a stack"), &path, &Wishes::default())
}

/// Returns the learning rate of a script with `before`; `None` if it is for the user to fill in.
fn rate(before: &str) -> Option<String> {
    let text = format!(
        "{GRPO}{before}\ncfg = GRPOConfig(learning_rate=lr)\ntrainer = GRPOTrainer(model=\"a/b\", args=cfg, train_dataset=ds, reward_funcs=f)\n"
    );
    let run = of_python(&text).expect(before).run_file;
    let line = run.lines().find(|line| line.starts_with("learning_rate = ")).expect(before).to_owned();
    (!line.contains("\"\""))
        .then(|| line["learning_rate = ".len()..].split(' ').next().unwrap_or_default().to_owned())
}

/// A name assigned in two arms was an expression that is not run, and a body on the line of its `if` was lost.
#[test]
fn r_an_if_of_python_whose_condition_is_a_constant_was_unknown() {
    for (before, expected) in [
        ("BIG = True\nif BIG:\n    lr = 1e-5\nelse:\n    lr = 1e-6", Some("1e-5")),
        ("BIG = False\nif BIG:\n    lr = 1e-5\nelse:\n    lr = 1e-6", Some("1e-6")),
        (
            "X = 'b'\nif X == 'a':\n    lr = 1e-5\nelif X == 'b':\n    lr = 1e-6\nelse:\n    lr = 1e-7",
            Some("1e-6"),
        ),
        (
            "N = 8\nif N != 8:\n    lr = 1e-5\nelse:\n    if not N:\n        lr = 1e-6\n    else:\n        lr = 1e-7",
            Some("1e-7"),
        ),
        ("lr = 1e-5\nif False: lr = 1e-6", Some("1e-5")),
        ("lr = 1e-5\nif True: lr = 1e-6", Some("1e-6")),
        // Not decided by a constant.
        ("lr = 1e-5\nif g(): lr = 1e-6", None),
        ("BIG = g()\nif BIG:\n    lr = 1e-5\nelse:\n    lr = 1e-6", None),
        ("BIG = True\nBIG &= g()\nif BIG:\n    lr = 1e-5\nelse:\n    lr = 1e-6", None),
        ("BIG = True\nif g():\n    BIG = False\nif BIG:\n    lr = 1e-5\nelse:\n    lr = 1e-6", None),
        ("BIG = True\ndef h(BIG):\n    if BIG:\n        lr = 1e-5\n    else:\n        lr = 1e-6", None),
        ("N = 1\nmatch g():\n    case 1:\n        lr = 1e-5\n    case _:\n        lr = 1e-6", None),
        ("BIG = True\nif g():\n    lr = 1e-5\nelif BIG:\n    lr = 1e-6", None),
    ] {
        assert_eq!(rate(before).as_deref(), expected, "{before}");
    }
}

/// A trainer, an adapter and a setting in an arm that never runs decided the job.
#[test]
fn an_arm_of_python_that_never_runs_decides_nothing() {
    let with = |is_on: &str| {
        format!(
            "{GRPO}from trl import SFTTrainer\nfrom peft import LoraConfig\nON = {is_on}\ncfg = GRPOConfig(max_steps=4)\npeft = None\nif ON:\n    peft = LoraConfig(r=16)\n    cfg.max_steps = 8\nif not ON:\n    cfg.seed = 3\nif 0:\n    SFTTrainer(model=\"c/d\").train()\ntrainer = GRPOTrainer(model=\"a/b\", args=cfg, train_dataset=ds, reward_funcs=f, peft_config=peft)\n"
        )
    };
    let on = of_python(&with("True")).expect("on").run_file;
    assert!(
        on.contains("\n[lora]\nrank = 16") && on.contains("steps = 8") && !on.contains("seed = 3"),
        "{on}"
    );
    let off = of_python(&with("False")).expect("off").run_file;
    assert!(!off.contains("[lora]") && off.contains("steps = 4") && off.contains("seed = 3"), "{off}");
    let error = of_python(&with("g()")).expect_err("neither").to_string();
    assert!(error.contains("peft_config = peft: what it holds decides the job"), "{error}");
}
