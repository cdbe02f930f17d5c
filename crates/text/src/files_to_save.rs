//! The tokenizer files of a checkpoint, for transformers to open: those that came with the model, or equivalent ones
//! if the model came as a GGUF file or with a byte tokenizer.

use crate::chat::special_token;
use crate::tokenizer::tokenizer_json;
use plimsoll_base::Result;
use plimsoll_files::TokenizerFiles;
use serde_json::{Map, Value, json};

/// Returns names and contents of the files to save with the weights.
pub fn files_to_save(files: &TokenizerFiles) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let mut out = vec![("tokenizer.json", tokenizer_json(files)?.into_owned())];
    let mut config = match &files.tokenizer_config_json {
        Some(config) => config.clone(),
        None => built_config(files),
    };
    if let (Some(template), Some(map)) = (&files.chat_template, config.as_object_mut()) {
        // Transformers reads two places; writing only one avoids a conflict.
        map.insert("chat_template".into(), template.clone().into());
    }
    out.push(("tokenizer_config.json", pretty(&config)));
    Ok(out)
}

fn built_config(files: &TokenizerFiles) -> Value {
    let mut map = Map::new();
    map.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
    map.insert("clean_up_tokenization_spaces".into(), false.into());
    for name in ["bos_token", "eos_token", "pad_token", "unk_token"] {
        if let Some(token) = special_token(files, name) {
            map.insert(name.into(), token.into());
        }
    }
    if files.bytes {
        map.extend(
            [("bos_token", "<bos>"), ("eos_token", "<eos>"), ("pad_token", "<pad>")]
                .map(|(k, v)| (k.into(), json!(v))),
        );
    }
    Value::Object(map)
}

fn pretty(value: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("a JSON value is written");
    text.push(b'\n');
    text
}
