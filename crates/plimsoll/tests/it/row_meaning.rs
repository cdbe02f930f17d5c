//! Rows mean what they say: prompts with their answer, fields that the template reads or loses, what is not read, what
//! begins a text and what ends a turn.

use crate::common::{Folder, plimsoll, text};
use crate::run::{Run, check_done};
use serde_json::{Value, json};

/// The template of sums alone, which is what the model knows.
const SUMS: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";

fn sampling(rows: &str) -> String {
    format!(
        "method = \"grpo\"\nmodel = \"builtin:nano\"\n[data]\nprompts = \"{rows}\"\neval = \"none\"\n\
         prompt_column = \"messages\"\nchat_template = \"{SUMS}\"\n[rollout]\nprompts_per_step = 2\ngroup_size = 4\n\
         max_new_tokens = 4\n[[reward]]\nkind = \"exact\"\n[train]\nsteps = 1\nlearning_rate = 1e-6\n"
    )
}

fn supervised(rows: &str, template: &str) -> String {
    format!(
        "method = \"sft\"\nmodel = \"builtin:nano\"\n[data]\nprompts = \"{rows}\"\nshuffle = false\n\
         chat_template = \"{template}\"\n[rollout]\nprompts_per_step = 2\n[train]\nsteps = 1\nlearning_rate = 1e-3\n"
    )
}

/// Rows of supervised data: the answer is in the conversation.
fn answered(fields: &Value) -> String {
    let row = |a: u32| {
        let mut answer = json!({ "role": "assistant", "content": (a + 1).to_string() });
        answer.as_object_mut().expect("a message").extend(fields.as_object().expect("fields").clone());
        let messages = json!([{ "role": "user", "content": format!("{a}+1=") }, answer]);
        format!("{}\n", json!({ "messages": messages, "ground_truth": (a + 1).to_string(), "id": a }))
    };
    (1..4).map(row).collect()
}

/// Returns what a run says of its rows in its events.
fn said_of_rows(run: &Run, dir: &str) -> String {
    let events = run.events(dir).into_iter().filter(|event| event["event"] == "rows");
    events.map(|event| event["text"].as_str().expect("words").to_string()).collect()
}

/// The prompt was `1+1=2`, and what was graded came after it.
#[test]
fn r_an_answer_was_part_of_its_prompt() {
    let run = Run::new("");
    let asked = "{\"messages\": [{\"role\": \"user\", \"content\": \"1+1=\"}], \"ground_truth\": \"2\"}\n";
    let rows = run.write("rows.jsonl", &(asked.to_string() + &answered(&json!({}))));
    run.write("x.toml", &sampling(&rows));
    let words = [
        "error[data-prompt-answered]: ",
        "rows.jsonl: row 2 has a prompt that ends with the assistant's words",
        "3 of the 4 rows that were read end so",
        "data.answered = \"drop-turn\"",
        "data.answered = \"continue\"",
    ];
    run.plan_refused(&[], 1, &words);
    run.plan_refused(&["data.prompt_tokens_max=16"], 1, &words);
    run.train_fails("out", &[], 1, &words);
    let prompts = |dir: &str, how: &str| {
        run.train(
            dir,
            &["data.shuffle=false", "rollout.prompts_per_step=4", &format!("data.answered={how}")],
        );
        let samples = run.read_lines(&format!("{dir}/samples/step-000001.jsonl"));
        let first: Vec<String> = samples.iter().map(|sample| sample["prompt"].to_string()).collect();
        first
    };
    let dropped = prompts("drop", "drop-turn");
    assert!(dropped.iter().all(|prompt| prompt.ends_with("=\"")), "{dropped:?}");
    let continued = prompts("continue", "continue");
    assert!(continued.iter().any(|prompt| !prompt.ends_with("=\"")), "{continued:?}");
    // Held-out prompts and `eval` are sampled from as well.
    let only = run.write("only.jsonl", &answered(&json!({})));
    run.write("x.toml", &sampling(&only).replace("eval = \"none\"", &format!("eval = \"{rows}\"")));
    run.train_fails("out", &["data.answered=error"], 1, &["error[data-prompt-answered]"]);
    let eval = |sets: &[&str]| {
        let template = format!("data.chat_template={SUMS}");
        let args = ["eval", "--model", "builtin:nano", "--data", &only, "--reward", "exact", "--set"];
        let column = ["--set", "data.prompt_column=messages"];
        plimsoll(&[&args[..], &[&*template], &column, sets].concat())
    };
    let refused = eval(&[]);
    assert!(text(&refused.stderr).contains("3 of the 3 rows"), "{}", text(&refused.stderr));
    check_done(&eval(&["--set", "data.answered=drop-turn"]));
}

/// The field was dropped, and what was learnt was the answer alone.
#[test]
fn r_thinking_was_dropped_from_what_is_learnt() {
    let run = Run::new("");
    let rows = run.write("rows.jsonl", &answered(&json!({ "reasoning_content": "1+1", "mood": "good" })));
    run.write("x.toml", &supervised(&rows, SUMS));
    let lost = [
        "error[data-field-lost]: the answer to learn has `reasoning_content`",
        "row 1 of ",
        "data.ignore = [\"reasoning_content\"]",
    ];
    run.plan_refused(&[], 2, &lost);
    run.train_fails("out", &[], 2, &lost);
    let loss = |dir: &str, sets: &[&str]| {
        run.train(dir, sets);
        run.metrics(dir)[0]["loss"].as_f64().expect("a loss")
    };
    let without = loss("without", &["data.ignore=[\"reasoning_content\", \"mood\"]"]);
    let thinks = SUMS.replace(
        "{{ m.content }}",
        "{% if m.reasoning_content %}{{ m.reasoning_content }}={% endif %}{{ m.content }}",
    );
    let with = loss("with", &[&format!("data.chat_template={thinks}")]);
    assert_ne!(with, without);
    let plain = run.write("plain.jsonl", &answered(&json!({})));
    assert_eq!(loss("plain", &[&format!("data.prompts={plain}")]), without);
    // What is not read is named once, by `plan`, by `train` and in the events.
    let words = "rows.jsonl: 3 rows; columns read: messages; not read: ground_truth, id; fields of messages read: reasoning_content (3); fields of messages that nothing reads: mood (3)";
    assert!(said_of_rows(&run, "with").contains(words), "{}", said_of_rows(&run, "with"));
    let plan = run.plan(&[&format!("data.chat_template={thinks}")]);
    assert!(plan["rows"].to_string().contains(words), "{plan}");
    let said = run.train("again", &[&format!("data.chat_template={thinks}")]);
    assert!(said.contains(words), "{said}");
    assert!(!said_of_rows(&run, "without").contains("nothing reads"));
}

/// A tokenizer of the model's characters that puts `<pad>` before a text.
fn begins(folder: &Folder) -> String {
    let nano = include_str!("../../../files/assets/nano/tokenizer.json");
    let single = "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<pad>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\": {}}";
    let json = nano.replace("\"post_processor\": null", &format!("\"post_processor\": {single}"));
    folder.write("begins.json", &json)
}

/// Texts of no template had no token that begins a text.
#[test]
fn r_a_base_model_read_texts_without_their_beginning() {
    let run = Run::new("");
    let tokenizer = format!("model_options.tokenizer={}", begins(&run));
    let tokens = |sets: &[&str]| {
        let args = [
            "generate",
            "--model",
            "builtin:nano",
            "--raw",
            "--prompt",
            "1+2=",
            "--json",
            "--max-new-tokens=2",
        ];
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
        let output = plimsoll(&[&args[..], &sets].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["prompt_tokens"].clone()
    };
    assert_eq!(tokens(&[]), 4);
    assert_eq!(tokens(&[&tokenizer]), 5);
    assert_eq!(tokens(&[&tokenizer, "data.add_special_tokens=false"]), 4);
    // Training and evaluation do so too, and say it.
    let rows =
        run.write("rows.jsonl", "{\"prompt\": \"1+2=\", \"completion\": \"3\", \"ground_truth\": \"3\"}\n");
    run.write("x.toml", &supervised(&rows, "none").replace("prompts_per_step = 2", "prompts_per_step = 1"));
    let loss = |dir: &str, sets: &[&str]| {
        let said = run.train(dir, sets);
        (run.metrics(dir)[0]["loss"].as_f64().expect("a loss"), said)
    };
    let (with, said) = loss("with", &[&tokenizer]);
    assert!(said.contains("as the tokenizer has it (data.add_special_tokens)"), "{said}");
    let (without, said) = loss("without", &[&tokenizer, "data.add_special_tokens=false"]);
    assert!(!said.contains("data.add_special_tokens"), "{said}");
    assert_eq!((with != without, without), (true, loss("plain", &[]).0));
    let args = ["eval", "--model", "builtin:nano", "--data", &rows, "--reward", "exact", "--set", &tokenizer];
    let said = plimsoll(&args);
    let said = text(&said.stdout) + &text(&said.stderr);
    assert!(said.contains("\"<pad>1+2=\""), "{said}");
}

/// A model that learnt to end with another token than its own was saved without it, and never stopped.
#[test]
fn r_what_was_learnt_to_end_with_ended_nothing() {
    let run = Run::new("");
    let rows = run.write("rows.jsonl", &answered(&json!({})));
    let ends =
        SUMS.replace("{{ m.content }}", "{{ m.content }}{% if m.role == 'assistant' %}<pad>{% endif %}");
    run.write("x.toml", &supervised(&rows, &ends));
    let said = run.train("out", &[]);
    assert!(said.contains("answers end with <pad>"), "{said}");
    for name in ["generation_config.json", "config.json"] {
        let saved = run.read_json(&format!("out/checkpoints/latest/{name}"));
        assert_eq!(saved["eos_token_id"], json!([1, 0]), "{name}");
    }
    // An adapter has no configuration of a model: its end is next to it, and ends what is sampled with it.
    let lora = format!("{}[lora]\nrank = 2\n", supervised(&rows, &ends));
    run.write("x.toml", &lora);
    run.train("lora", &[]);
    let saved = run.read_json("lora/checkpoints/latest/generation_config.json");
    assert_eq!(saved["eos_token_id"], json!([1, 0]));
    let to = |name: &str| run.text_path(name);
    let export = |merge: &[&str], name: &str| {
        let args = ["checkpoint", "export", &to("lora"), "--to", &to(name)];
        let output = plimsoll(&[&args[..], merge].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        run.read_json(&format!("{name}/generation_config.json"))["eos_token_id"].clone()
    };
    assert_eq!((export(&[], "adapter"), export(&["--merge"], "merged")), (json!([1, 0]), json!([1, 0])));
    // The next run starts from it, and its plan has no template that ends a turn with what ends nothing.
    run.write("x.toml", &sampling(&rows).replace(SUMS, &ends));
    let from = format!("lora.adapter={}", to("adapter"));
    let plan = run.plan(&["data.answered=drop-turn", "lora.rank=2", &from]);
    assert!(!plan["warnings"].to_string().contains("ends a turn with"), "{}", plan["warnings"]);
    // A method that samples warns, with a way out.
    run.write("x.toml", &sampling(&rows).replace(SUMS, &ends));
    let plan = run.plan(&["data.answered=drop-turn"]);
    let said = plan["warnings"].to_string();
    assert!(
        said.contains("ends a turn with <pad>, which ends no response") && said.contains("rollout.stop"),
        "{said}"
    );
    let said = run.train("sampled", &["data.answered=drop-turn"]);
    assert!(said.contains("which ends no response"), "{said}");
    assert_eq!(run.read_json("sampled/checkpoints/latest/generation_config.json")["eos_token_id"], 1);
}

/// A tokenizer's own end ended nothing if the configuration had another one, or none.
#[test]
fn r_the_tokenizers_end_ended_no_response() {
    let run = Run::new("");
    let saved = |eos: Value, named_in: &str| {
        crate::tiny::write(&run.path("again"), &json!({ "eos_token_id": eos }));
        let mut config = run.read_json("again/tokenizer_config.json");
        let config = config.as_object_mut().expect("an object");
        let end = config.shift_remove("eos_token").expect("it names its end");
        run.write("again/tokenizer_config.json", &Value::Object(config.clone()).to_string());
        let named = if named_in == "tokenizer_config.json" { config.clone() } else { Default::default() };
        let named = Value::Object(named.into_iter().chain([("eos_token".to_string(), end)]).collect());
        run.write(&format!("again/{named_in}"), &named.to_string());
        let rows = run.write("rows.jsonl", "{\"prompt\": \"1+2=\", \"completion\": \"3\"}\n");
        let again = run.text_path("again");
        run.write(
            "x.toml",
            &supervised(&rows, "none").replace("builtin:nano", &again).replace("step = 2", "step = 1"),
        );
        run.train("out", &["--overwrite"]);
        std::fs::remove_dir_all(run.path("again")).expect("a folder");
        run.read_json("out/checkpoints/latest/generation_config.json")["eos_token_id"].clone()
    };
    for named_in in ["tokenizer_config.json", "special_tokens_map.json"] {
        assert_eq!(saved(json!(0), named_in), json!([0, 1]));
        assert_eq!(saved(Value::Null, named_in), json!(1));
        assert_eq!(saved(json!(1), named_in), json!(1));
    }
}
