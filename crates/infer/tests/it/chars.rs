//! Models whose tokens are single characters.

use plimsoll_files::{OpenModel, TokenizerFiles};
use serde_json::{Map, Value, json};

/// Returns `tokenizer.json` of special tokens and characters, numbered in this order.
pub fn tokenizer(special: &[&str], chars: &str) -> Vec<u8> {
    let names = special.iter().map(|name| name.to_string()).chain(chars.chars().map(String::from));
    let vocab: Map<String, Value> = names.enumerate().map(|(id, name)| (name, json!(id))).collect();
    let added = |(id, content): (usize, &&str)| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true })
    };
    let json = json!({
        "version": "1.0", "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "added_tokens": special.iter().enumerate().map(added).collect::<Vec<Value>>(),
        "decoder": { "type": "Fuse" },
        "model": { "type": "BPE", "merges": [], "vocab": vocab },
    });
    json.to_string().into_bytes()
}

/// Returns the embedded model with these tokens, the first of which ends a text, and a chat template.
pub fn model(special: &[&str], chars: &str, template: Option<&str>) -> OpenModel {
    let mut model = OpenModel::open("builtin:nano", None, false).expect("it is built in");
    model.spec.vocab = (special.len() + chars.chars().count()) as u32;
    model.eos_token_ids = vec![0];
    model.tokenizer = TokenizerFiles {
        tokenizer_json: Some(tokenizer(special, chars)),
        chat_template: template.map(str::to_string),
        ..TokenizerFiles::default()
    };
    model
}
