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
    assert!(error.to_string().contains("has no command in the text at its top"), "{error}");
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

/// A script whose command is in its own text was answered with `holds no trl settings`, and a hint to the help.
#[test]
fn r_the_command_in_a_scripts_own_text_was_not_read() {
    let with =
        |commands: &str| SCRIPT.replacen("from trl", &format!("\"\"\"\n{commands}\"\"\"\nfrom trl"), 1);
    let one =
        "python gspo.py \\\\\n    --model_name_or_path a/b \\\\\n    --max_steps 4 \\\\\n    --beta 0.04\n";
    let run = imported(&[("gspo.py", &with(one))], "gspo.py").expect("a run file");
    for part in ["model = \"hf:a/b\"", "steps = 4", "kl_coef = 0.04"] {
        assert!(run.run_file.contains(part), "{part}: {}", run.run_file);
    }
    let note = "chosen: `python gspo.py`: settings are those of this command, in the text at the top";
    assert!(run.remarks.iter().any(|line| line.starts_with(note)), "{:?}", run.remarks);
    // Of several each is a job.
    let two =
        with(&format!("{one}# LoRA\npython gspo.py --model_name_or_path a/b --max_steps 9 --use_peft\n"));
    let error = imported(&[("gspo.py", &two)], "gspo.py").expect_err("two commands");
    let text = error.to_string();
    assert_eq!(error.slug, "import-command-unknown", "{text}");
    for part in
        ["1: line 2: python gspo.py, 3 flags", "2: line 7: python gspo.py, 3 flags", "--command 1 to 2"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gspo.py");
    std::fs::write(&path, &two).expect("a file");
    let second = Wishes { command: Some(2), ..Wishes::default() };
    let run = import(find("trl").expect("a stack"), &path, &second).expect("the second").run_file;
    assert!(run.contains("steps = 9") && run.contains("[lora]"), "{run}");
    // A number that chooses nothing is refused.
    std::fs::write(&path, with(one)).expect("a file");
    for (number, words) in [(1, None), (2, Some("has one command"))] {
        let wishes = Wishes { command: Some(number), ..Wishes::default() };
        let error =
            import(find("trl").expect("a stack"), &path, &wishes).err().map(|error| error.to_string());
        assert_eq!(error.is_some(), words.is_some(), "{error:?}");
        assert!(error.unwrap_or_default().contains(words.unwrap_or_default()));
    }
    let yaml = folder.path().join("sft.yaml");
    std::fs::write(&yaml, "trainer: sft\nmodel_name_or_path: a/b\ndataset_name: o/n\n").expect("a file");
    let first = Wishes { command: Some(1), trainer: Some("sft".to_owned()), ..Wishes::default() };
    let error = import(find("trl").expect("a stack"), &yaml, &first).expect_err("no commands");
    assert_eq!(error.slug, "import-command-unknown");
    assert!(error.to_string().contains("sft.yaml has no commands in a text at its top"), "{error}");
    // A refusal has the line of the flag in the text.
    let eight = with("python gspo.py --model_name_or_path a/b \\\n  --load_in_8bit true\n");
    let error = imported(&[("gspo.py", &eight)], "gspo.py").expect_err("8 bits").to_string();
    assert!(error.contains("line 3: load_in_8bit = true"), "{error}");
}
