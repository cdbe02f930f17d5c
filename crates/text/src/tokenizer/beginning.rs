//! Finds what a tokenizer puts before a text, such as the token that begins it: from `tokenizer_config.json`, the
//! post-processor of `tokenizer.json`, or the tables of a GGUF file. What it puts after one is not used: a prompt goes
//! on, and an answer has its own end.

use super::file::post_processor;
use crate::chat::special_token;
use plimsoll_files::TokenizerFiles;
use serde_json::Value;

/// Most tokens before a text; tokenizers in use have one.
const TOKENS_MAX: usize = 8;

/// Returns the texts of the tokens that a tokenizer puts before a text, as transformers does: by the configuration,
/// else by the file's post-processor.
pub(crate) fn beginning(files: &TokenizerFiles, json: &[u8]) -> Vec<String> {
    let bos = || special_token(files, "bos_token").into_iter().collect();
    let config = files.tokenizer_config_json.as_ref();
    if let Some(flag) = config.and_then(|config| config["add_bos_token"].as_bool()) {
        return if flag { bos() } else { Vec::new() };
    }
    if let Some(tables) = &files.gguf {
        // Tables without the key are read as llama.cpp does.
        let usual = tables.model == "llama" || tables.pre == "llama-bpe";
        return if tables.add_bos.unwrap_or(usual) { bos() } else { Vec::new() };
    }
    of_post_processor(&post_processor(json).unwrap_or_default())
}

/// Returns the special tokens before the text in a post-processor's form of one text.
fn of_post_processor(post_processor: &Value) -> Vec<String> {
    let steps = match post_processor["processors"].as_array() {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(post_processor),
    };
    let Some(single) = steps.iter().find_map(|step| step["single"].as_array()) else { return Vec::new() };
    let tokens = single.iter().map_while(|piece| piece["SpecialToken"]["id"].as_str());
    tokens.take(TOKENS_MAX).map(str::to_string).collect()
}

/// Returns true if the first piece of a text differs from the same piece within one: a space is put before it.
pub(super) fn has_first_piece(normalizer: &Value, pre_tokenizer: &Value) -> bool {
    let steps = |part: &Value, list: &str| match part[list].as_array() {
        Some(steps) => steps.clone(),
        None => vec![part.clone()],
    };
    let prepends = steps(normalizer, "normalizers").iter().any(|step| step["type"] == "Prepend");
    let prefixes = |step: &Value| match step["type"].as_str() {
        Some("Metaspace") => step["prepend_scheme"] != "never" && step["add_prefix_space"] != false,
        Some("ByteLevel") => step["add_prefix_space"] == true,
        _ => false,
    };
    prepends || steps(pre_tokenizer, "pretokenizers").iter().any(prefixes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_begins_a_text_is_what_the_configuration_or_the_file_says() {
        let single =
            json!([{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
        let template = json!({"type": "TemplateProcessing", "single": single});
        let bytes = json!({"type": "ByteLevel", "trim_offsets": false});
        let after = json!({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}]});
        for (post, config, expect) in [
            (Value::Null, Value::Null, vec![]),
            (template.clone(), Value::Null, vec!["<s>"]),
            (
                json!({"type": "Sequence", "processors": [bytes.clone(), template.clone()]}),
                json!({}),
                vec!["<s>"],
            ),
            (template.clone(), json!({"add_bos_token": false, "bos_token": "<s>"}), vec![]),
            (bytes, json!({"add_bos_token": true, "bos_token": {"content": "<b>"}}), vec!["<b>"]),
            (template, json!({"add_bos_token": null}), vec!["<s>"]),
            (after, Value::Null, vec![]),
        ] {
            let json = json!({"post_processor": post}).to_string();
            let files =
                TokenizerFiles { tokenizer_config_json: Some(config.clone()), ..TokenizerFiles::default() };
            assert_eq!(beginning(&files, json.as_bytes()), expect, "{post} {config}");
        }
    }

    #[test]
    fn a_space_before_the_first_piece_is_known_from_the_file() {
        let prepend = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]});
        let metaspace = |scheme: &str| json!({"type": "Metaspace", "prepend_scheme": scheme});
        for (normalizer, pre_tokenizer, expect) in [
            (Value::Null, Value::Null, false),
            (prepend, Value::Null, true),
            (Value::Null, metaspace("first"), true),
            (Value::Null, metaspace("never"), false),
            (Value::Null, json!({"type": "ByteLevel", "add_prefix_space": false}), false),
            (
                Value::Null,
                json!({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": true}]}),
                true,
            ),
        ] {
            assert_eq!(has_first_piece(&normalizer, &pre_tokenizer), expect, "{normalizer} {pre_tokenizer}");
        }
    }
}
