//! Scripts of TRL whose settings a parser reads: the script alone says none of them, its command does.

use plimsoll_base::Result;
use plimsoll_stacks::{Imported, Wishes, find, import};

const SCRIPT: &str = "\
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config

def short(completions, **kwargs):
    return [0.0 for _ in completions]

if __name__ == \"__main__\":
    parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    data = load_dataset(\"o/n\", split=\"train\")
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        reward_funcs=[short],
        train_dataset=data,
        peft_config=get_peft_config(model_args),
    )
";

fn imported(files: &[(&str, &str)], name: &str) -> Result<Imported> {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    import(find("trl").expect("a stack"), &folder.path().join(name), &Wishes::default())
}

/// The script alone was imported with TRL's defaults: GSPO with an adapter became GRPO of every weight.
#[test]
fn r_a_script_with_a_parser_became_the_defaults() {
    let error = imported(&[("gspo.py", SCRIPT)], "gspo.py").expect_err("a script alone");
    assert_eq!(error.slug, "import-nothing-found", "{error}");
    assert!(error.to_string().contains("needs its command"), "{error}");
    // A script that writes its configuration out needs none.
    let own = SCRIPT.replace("training_args,\n        reward", "GRPOConfig(max_steps=4),\n        reward");
    assert!(imported(&[("own.py", &own)], "own.py").is_ok());
}

#[test]
fn a_command_with_its_script_next_to_it() {
    let flags = "--model_name_or_path a/b --max_steps 4 --importance_sampling_level sequence --use_peft --lora_dropout 0";
    for (place, command) in [
        ("gspo.py", "accelerate launch --config_file x.yaml --num_processes 2 gspo.py"),
        ("gspo.py", "accelerate launch --num_processes 2 examples/scripts/gspo.py"),
        ("examples/gspo.py", "accelerate launch --num_processes=2 examples/gspo.py"),
        ("train_grpo.py", "accelerate launch --num_processes 2 \\\n  train_grpo.py"),
    ] {
        let text = format!("{command} {flags}\n");
        let run = imported(&[(place, SCRIPT), ("run.sh", &text)], "run.sh").expect(command).run_file;
        for part in [
            "method = \"gspo\"",
            "model = \"hf:a/b\"",
            "prompts = \"hf:o/n/train\"",
            "\n[lora]\nrank = 16",
            "steps = 4",
            ":short\"",
        ] {
            assert!(run.contains(part), "{command}: {part}: {run}");
        }
    }
    let python = format!("python gspo.py {flags}");
    assert!(imported(&[("gspo.py", SCRIPT), ("run.sh", &python)], "run.sh").is_ok());
}
