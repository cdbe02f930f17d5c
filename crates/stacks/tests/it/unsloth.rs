//! unsloth's notebooks and scripts: its loader, its adapters, and the defaults of its own for TRL's configurations.

use plimsoll_base::Result;
use plimsoll_stacks::{Imported, Wishes, find, import};

fn imported(text: &str, trainer: Option<&str>) -> Result<Imported> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.py");
    std::fs::write(&path, text).expect("a file");
    let wishes = Wishes { trainer: trainer.map(str::to_string), ..Wishes::default() };
    import(find("trl").expect("a stack"), &path, &wishes)
}

fn script(loader: &str, adapter: &str, config: &str) -> String {
    format!(
        "import numpy, PIL; _pil = f'pillow=={{PIL.__version__}}'\n\
         from unsloth import FastLanguageModel, PatchFastRL\nfrom trl import GRPOConfig, GRPOTrainer\n\
         PatchFastRL(\"GRPO\", FastLanguageModel)\nmax_seq_length, rank = 1024, 32\n\
         model, tokenizer = FastLanguageModel.from_pretrained({loader})\n\
         model = FastLanguageModel.get_peft_model(model, {adapter})\n\
         def own(completions, **kwargs):\n    return [0.0]\n\
         trainer = GRPOTrainer(model=model, reward_funcs=[own], args=GRPOConfig({config}), train_dataset=\"x.jsonl\")\n"
    )
}

const LOADER: &str = "model_name=\"a/b\", max_seq_length=max_seq_length, fast_inference=True, max_lora_rank=rank, gpu_memory_utilization=0.9";

/// Each was refused, for pictures that an install cell imports, an adapter that the file shows, and an engine's option.
#[test]
fn r_no_notebook_of_unsloth_was_imported() {
    let adapter = "r=rank, lora_alpha=rank*2, target_modules=[\"q_proj\", \"v_proj\"], use_gradient_checkpointing=\"unsloth\", random_state=3407, loftq_config=None";
    let text = script(
        &format!("{LOADER}, load_in_4bit=False"),
        adapter,
        "max_steps=4, per_device_train_batch_size=1, gradient_accumulation_steps=1, num_generations=6",
    );
    let run = imported(&text, None).expect(&text);
    for part in [
        "model = \"hf:a/b\"",
        "[lora]\nrank = 32",
        "alpha = 64.0",
        "targets = [\"q_proj\", \"v_proj\"]",
        "recompute = \"layer\"",
        // What unsloth writes into the configuration.
        "aggregation = \"token_mean\"  # default of unsloth: loss_type",
        "kl_coef = 0.001  # default of unsloth: beta",
        "learning_rate = 5e-5  # default of unsloth: learning_rate",
        // A batch of 1 does not hold a group of 6.
        "prompts_per_step = 1  #",
    ] {
        assert!(run.run_file.contains(part), "{part}: {}", run.run_file);
    }
    assert!(!run.run_file.contains("quantize"), "{}", run.run_file);
    let plain = text.replace("from unsloth import FastLanguageModel, PatchFastRL\n", "");
    let run = imported(&plain, None).expect(&plain).run_file;
    assert!(run.contains("learning_rate = 1e-6  # default of TRL") && !run.contains("kl_coef"), "{run}");
}

#[test]
fn the_loader_says_which_weights_an_adapter_has() {
    for (loader, model, expect) in [
        ("model_name=\"a/b\"", "hf:a/b", Ok(true)),
        ("\"a/b\", load_in_4bit=True", "hf:a/b", Ok(true)),
        ("\"a/b\", load_in_4bit=False", "hf:a/b", Ok(false)),
        ("\"a/b\", load_in_16bit=True", "hf:a/b", Ok(false)),
        ("\"unsloth/b-bnb-4bit\"", "hf:unsloth/b", Ok(true)),
        ("\"unsloth/b-unsloth-bnb-4bit\"", "hf:unsloth/b", Ok(true)),
        ("\"a/b-bnb-4bit\"", "", Err("model = a/b-bnb-4bit: weights are")),
        ("\"a/b\", load_in_8bit=True", "", Err("load_in_8bit = True: weights are")),
        ("\"a/b\", load_in_fp8=True", "", Err("load_in_fp8 = True: weights are")),
    ] {
        let run = imported(&script(loader, "r=8", "max_steps=4"), None);
        match expect {
            Ok(has_four_bits) => {
                let run = run.expect(loader).run_file;
                assert!(run.contains(&format!("model = \"{model}\"")), "{loader}: {run}");
                assert_eq!(run.contains("quantize = \"nf4\""), has_four_bits, "{loader}: {run}");
            }
            Err(why) => {
                let error = run.expect_err(loader).to_string();
                assert!(error.contains(&format!("line 6: {why}")), "{loader}: {error}");
            }
        }
    }
}

#[test]
fn an_adapter_has_unsloths_defaults_or_is_refused_with_its_line() {
    let run = imported(&script("\"a/b\"", "finetune_mlp_modules=False", "max_steps=4"), None)
        .expect("a run file")
        .run_file;
    for part in
        ["[lora]\nrank = 16", "alpha = 16.0", "targets = [\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\"]"]
    {
        assert!(run.contains(part), "{part}: {run}");
    }
    for (adapter, key) in [
        ("r=8, layers_to_transform=[0, 1]", "peft_config.layers_to_transform"),
        ("r=8, target_modules=[\"lm_head\"]", "peft_config.target_modules"),
        ("r=choose()", "peft_config.r"),
    ] {
        let error =
            imported(&script("\"a/b\"", adapter, "max_steps=4"), None).expect_err(adapter).to_string();
        assert!(error.contains(&format!("line 7: {key} = ")), "{adapter}: {error}");
    }
}

/// The first of two trainers was the job, and the other one a note.
#[test]
fn r_of_two_trainers_the_first_one_was_the_job() {
    let two = format!(
        "from trl import SFTConfig, SFTTrainer\nSFTTrainer(model=\"a/b\", args=SFTConfig(max_steps=9), train_dataset=\"y.jsonl\")\n{}",
        script("\"a/b\"", "r=8", "max_steps=4")
    );
    let error = imported(&two, None).expect_err("two jobs");
    let text = error.to_string();
    assert_eq!(error.slug, "import-trainer-unknown", "{text}");
    assert!(
        text.contains("line 2: sft") && text.contains("line 12: grpo") && text.contains("--trainer grpo"),
        "{text}"
    );
    for (name, part) in [("sft", "steps = 9"), ("grpo", "steps = 4")] {
        let run = imported(&two, Some(name)).expect(name).run_file;
        assert!(run.contains(part) && run.contains(&format!("method = \"{name}\"")), "{name}: {run}");
    }
}

/// `TrainingArguments` next to a trainer was not read: its rate and its steps were TRL's defaults.
#[test]
fn r_training_arguments_were_not_read() {
    let text = "SFTTrainer(model=\"a/b\", args=TrainingArguments(max_steps=7, per_device_train_batch_size=2), train_dataset=\"x.jsonl\")\n";
    let run = imported(text, None).expect("a run file").run_file;
    for part in ["steps = 7", "learning_rate = 5e-5", "prompts_per_step = 2"] {
        assert!(run.contains(part), "{part}: {run}");
    }
}

/// Rows that code makes conversations of would have been read without the model's template.
#[test]
fn r_conversations_were_read_without_a_template() {
    let text = |row: &str| {
        format!(
            "data = load_dataset(\"o/n\", split=\"train\").map(lambda x: {row})\nGRPOTrainer(model=\"a/b\", args=GRPOConfig(max_steps=4), reward_funcs=\"c/d\", train_dataset=data)\n"
        )
    };
    let chat = text("{\"prompt\": [{\"role\": \"user\", \"content\": x[\"q\"]}]}");
    assert!(!imported(&chat, None).expect("a run file").run_file.contains("chat_template"));
    let plain = text("{\"prompt\": x[\"q\"]}");
    assert!(imported(&plain, None).expect("a run file").run_file.contains("chat_template = \"none\""));
}

/// Adapters of the tower are unsloth's default in a model that sees.
#[test]
fn a_model_that_sees_is_imported_with_adapters_of_its_tower() {
    let text =
        script(&format!("{LOADER}, load_in_4bit=False"), "r=8, finetune_vision_layers=False", "max_steps=4")
            .replace("FastLanguageModel", "FastVisionModel");
    let run = imported(&text, None).expect(&text).run_file;
    assert!(run.contains("images = \"images\"") && !run.contains("tower ="), "{run}");
    let run = imported(&text.replace(", finetune_vision_layers=False", ""), None).expect(&text).run_file;
    assert!(run.contains("tower = \"adapters\""), "{run}");
}
