//! Run files made of other stacks' settings, without the binary.

use plimsoll_stacks::{Imported, Wishes, find, import};

fn imported(stack: &str, name: &str, text: &str) -> plimsoll_base::Result<Imported> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a file");
    import(find(stack).expect("a stack"), &path, &Wishes::default())
}

/// Shell that never closes what it opens, or names itself, ends and is bounded.
#[test]
fn broken_text_ends() {
    for tail in ["'", "\"${", "$", "\\", "${A", "$(x", "[", "`", "=", "${:-}"] {
        let script =
            format!("A=1\npython3 -m verl.trainer.main_ppo data.train_batch_size=4 data.seed={tail}");
        assert!(imported("verl", "b.sh", &script).is_ok(), "{tail}");
        let python = imported("trl", "b.py", &format!("GRPOConfig(top_k=5, seed={tail}"));
        assert!(python.is_ok_and(|run| !run.run_file.is_empty()), "{tail}");
    }
}

#[test]
fn reward_models_of_others_become_rewards() {
    for (stack, script) in [
        (
            "openrlhf",
            "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --reward_pretrain c/rm --max_samples 8",
        ),
        (
            "verl",
            "python3 -m verl.trainer.main_ppo data.train_batch_size=4 reward_model.enable=True reward_model.model.path=c/rm",
        ),
        ("trl", "trl grpo --model_name_or_path a/b --reward_model_name_or_path c/rm --max_steps 4"),
    ] {
        let run = imported(stack, "x.sh", script).expect("a run file").run_file;
        assert!(run.contains("kind = \"model\"\nmodel = \"hf:c/rm\"\n"), "{stack}: {run}");
        assert!(!run.contains("kind = \"math\""), "{stack}: {run}");
    }
}
