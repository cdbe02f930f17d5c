//! `checkpoint export --format gguf` from outside: the file is the same model, and what cannot be one is named.

use crate::common::{check_refused, every_nth, plimsoll, text};
use crate::delta::run_of_delta;
use crate::made::experts_gguf;
use crate::run::{Run, SMALL, export, json as printed};
use plimsoll_base::Encoding::Q8_0;
use serde_json::{Value, json};
use std::fs;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden");
const LORA: &str = "[lora]\nrank = 4\n";

/// Exports the last checkpoint of a run as a GGUF file, as its name says.
fn export_gguf(folder: &Run, run: &str, to: &str, more: &[&str]) -> Value {
    let (run, to) = (folder.text_path(run), folder.text_path(to));
    let args = ["checkpoint", "export", &run, "--output", &to, "--json"];
    printed(&[&args[..], more].concat())
}

/// Returns greedy responses: tokens, text and log-probabilities.
fn generated(folder: &Run, model: &str, dtype: &str) -> Vec<[Value; 4]> {
    let (model, dtype) = (folder.text_path(model), format!("model_options.dtype={dtype}"));
    let of = |prompt: &&str| {
        let args = [
            "generate", "--model", &model, "--raw", "--prompt", prompt, "--json", "--quiet", "--set", &dtype,
        ];
        let found = printed(&[&args[..], &["--max-new-tokens", "8"]].concat());
        ["tokens", "text", "logprobs", "prompt_tokens"].map(|key| found[key].clone())
    };
    ["12+34=", "9+ 9=", "<eos>1", "0"].iter().map(of).collect()
}

/// Requires that two models give the same bits.
fn check_same(folder: &Run, one: &str, other: &str, dtype: &str) {
    let (one, other) = (generated(folder, one, dtype), generated(folder, other, dtype));
    assert_eq!(one, other);
}

#[test]
fn linear_attention_and_experts_become_files_that_generate_the_same() {
    let folder = run_of_delta();
    let experts = format!("model={}", folder.write_bytes("experts.gguf", experts_gguf(&[[Q8_0; 3]; 2])));
    for (dir, sets) in [("linear", &["train.steps=1"][..]), ("sparse", &["train.steps=1", &experts])] {
        let [hf, file] = ["hf", "gguf"].map(|end| format!("{dir}.{end}"));
        folder.train(dir, sets);
        export(&folder, dir, &folder.text_path(&hf));
        export_gguf(&folder, dir, &file, &[]);
        check_same(&folder, &hf, &file, "bf16");
    }
}

#[test]
fn a_checkpoint_becomes_a_file_that_generates_the_same() {
    let folder = Run::new(SMALL);
    for dtype in ["bf16", "f32"] {
        let (dir, hf, file) = (format!("{dtype}-run"), format!("{dtype}-hf"), format!("made/{dtype}.gguf"));
        folder.train(
            &dir,
            &["train.steps=2", &format!("model_options.dtype={dtype}"), "train.learning_rate=1e-3"],
        );
        export(&folder, &dir, &folder.text_path(&hf));
        let found = export_gguf(&folder, &dir, &file, &[]);
        assert_eq!(found["bytes"], fs::metadata(folder.path(&file)).expect("a file").len());
        assert!(
            found["merged"].is_null() && found["from"].as_str().expect("a path").ends_with("step-000002")
        );
        check_same(&folder, &hf, &file, dtype);
    }
    assert_eq!(fs::read_dir(folder.path("made")).expect("a folder").count(), 2, "something else was left");
    // A file that was exported is trained on, and its checkpoint is exported in turn.
    folder.train("on", &[&format!("model={}", folder.text_path("made/bf16.gguf")), "train.steps=1"]);
    export_gguf(&folder, "on", "on.gguf", &[]);
    export(&folder, "on", &folder.text_path("on-hf"));
    check_same(&folder, "on-hf", "on.gguf", "bf16");
}

#[test]
fn every_family_generates_the_same_from_its_file() {
    let folder = Run::new(SMALL);
    folder.train("nano", &["train.steps=1"]);
    export(&folder, "nano", &folder.text_path("nano-hf"));
    let families = ["llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2", "granite", "phi3"];
    for (_, family) in every_nth(3, families) {
        // 260 rows for 15 tokens: the others have none.
        let model = format!("{family}-model");
        fs::create_dir(folder.path(&model)).expect("a folder");
        for file in ["config.json", "model.safetensors"] {
            let from = format!("{GOLDEN}/{family}/{file}");
            fs::copy(from, folder.path(&format!("{model}/{file}"))).expect("a golden file");
        }
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(folder.path(&format!("nano-hf/{file}")), folder.path(&format!("{model}/{file}")))
                .expect("saved");
        }
        let (model, hf, file) = (folder.text_path(&model), format!("{family}-hf"), format!("{family}.gguf"));
        folder.train(family, &[&format!("model={model}"), "model_options.dtype=f32", "train.steps=1"]);
        export(&folder, family, &folder.text_path(&hf));
        export_gguf(&folder, family, &file, &[]);
        check_same(&folder, &hf, &file, "f32");
    }
}

#[test]
fn an_adapter_is_merged_into_a_file_of_the_same_bits_as_a_folder() {
    let folder = Run::new(&[SMALL, LORA].concat());
    folder.train("out", &["train.learning_rate=1e-2"]);
    let [run, merged, refused] = ["out", "merged", "refused.gguf"].map(|name| folder.text_path(name));
    let of_folder = printed(&["checkpoint", "export", &run, "--merge", "--to", &merged, "--json"]);
    let of_file = export_gguf(&folder, "out", "merged.gguf", &["--merge"]);
    assert_eq!(of_folder["merged"], of_file["merged"]);
    assert!(of_file["merged"]["change_max"].as_f64().expect("a number") > 0.0, "{of_file}");
    check_same(&folder, "merged", "merged.gguf", "bf16");
    let said = ["error[merge-refused]: ", "it holds an adapter", "hint: add --merge"];
    let args = ["checkpoint", "export", &run, "--format", "gguf", "--output", &refused];
    check_refused(&args, 2, &said);
    assert!(!folder.path("refused.gguf").exists());
}

#[test]
fn what_cannot_be_a_file_is_named_and_nothing_is_left() {
    let folder = Run::new(SMALL);
    folder.train("out", &["train.steps=1"]);
    let check = |from: &str, to: &str, more: &[&str], code: i32, said: &[&str]| {
        let (from, to) = (folder.text_path(from), folder.text_path(to));
        let args = ["checkpoint", "export", &from, "--format", "gguf", "--to", &to];
        check_refused(&[&args[..], more].concat(), code, said);
    };
    folder.write("there.gguf", "mine");
    check("out", "there.gguf", &[], 2, &["error[export-exists]: ", "there.gguf already exists"]);
    assert_eq!(folder.read("there.gguf"), b"mine");
    check("out", "model.bin", &[], 2, &["error[bad-value]: ", "ends in .gguf", "model.bin.gguf"]);
    check("out", "there.gguf/m.gguf", &[], 1, &["error[output-unwritable]: "]);
    check("out", "m.gguf", &["--merge"], 2, &["error[merge-refused]: ", "leave out --merge"]);
    fs::create_dir(folder.path("empty")).expect("a folder");
    check("empty", "m.gguf", &[], 1, &["error[checkpoint-missing]: "]);
    check("absent", "m.gguf", &[], 1, &["error[checkpoint-missing]: "]);
    // A tokenizer of words has no form in GGUF.
    let [model, words] = ["hf", "words"].map(|name| folder.text_path(name));
    export(&folder, "out", &model);
    let mut tokenizer = folder.read_json("hf/tokenizer.json");
    tokenizer["model"] =
        json!({ "type": "WordLevel", "vocab": tokenizer["model"]["vocab"], "unk_token": "0" });
    folder.write("hf/tokenizer.json", &tokenizer.to_string());
    folder.train("words", &[&format!("model={model}"), "train.steps=1"]);
    check("words", "m.gguf", &[], 1, &["error[tokenizer-unsupported]: ", "WordLevel", "--format folder"]);
    // A flipped bit is found before anything is written.
    let weights =
        fs::canonicalize(folder.path("out/checkpoints/latest")).expect("a link").join("model.safetensors");
    let mut bytes = fs::read(&weights).expect("weights");
    *bytes.last_mut().expect("bytes") ^= 1;
    fs::write(&weights, bytes).expect("written");
    check("out", "m.gguf", &[], 1, &["error[checkpoint-damaged]: ", "model.safetensors"]);
    let left = fs::read_dir(folder.path("")).expect("a folder").flatten().map(|entry| entry.file_name());
    let left: Vec<String> = left.map(|name| name.to_string_lossy().into_owned()).collect();
    assert!(!left.iter().any(|name| name.contains("m.gguf") || name.contains(".part")), "{left:?}");
    // The folder of a whole model still has its own words.
    let output = plimsoll(&["checkpoint", "export", &words, "--to", &folder.text_path("words-hf")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}
