//! Tokenizers into tables and back: the same tokens for the same texts, or a refusal that names what differs.

use super::*;
use plimsoll_files::OpenModel;
use serde_json::json;

const TEXTS: [&str; 8] = [
    "",
    "hello hello",
    "Größe 1234,5 and\n\n  more\ttext\r\n",
    "don't WON'T I'll",
    "<s>hello</s> hello<unk><eos>",
    "naïve e\u{301} \u{1f600} 日本語",
    "   three spaces   ",
    "<|im_start|>user\nhello<|im_end|>\n",
];

fn files(json: &Value) -> TokenizerFiles {
    TokenizerFiles { tokenizer_json: Some(json.to_string().into_bytes()), ..TokenizerFiles::default() }
}

/// Requires that the tables of a tokenizer give its tokens again.
fn check_equal(files: &TokenizerFiles, vocab: u32, texts: &[&str]) -> GgufTokenizer {
    let tables = gguf_tables(files, vocab, &TokenIds::default()).unwrap();
    let again = TokenizerFiles { gguf: Some(tables.clone()), ..TokenizerFiles::default() };
    let [one, other] = [files, &again].map(|files| Tokenizer::from_files(files, vocab).unwrap());
    assert_eq!(one.vocab_size(), other.vocab_size());
    for text in texts {
        match (one.encode(text), other.encode(text)) {
            (Ok(one_ids), Ok(other_ids)) => {
                assert_eq!(one_ids, other_ids, "{text:?}");
                assert_eq!(one.decode(&one_ids, false), other.decode(&other_ids, false), "{text:?}");
                assert_eq!(one.decode(&one_ids, true), other.decode(&other_ids, true), "{text:?}");
            }
            (Err(one), Err(other)) => assert_eq!(one.to_string(), other.to_string(), "{text:?}"),
            (one, other) => panic!("{text:?}: {one:?}, {other:?}"),
        }
    }
    tables
}

/// A byte-level tokenizer with some merges, and two added tokens.
fn byte_level(pre_tokenizer: Value, normalizer: Value) -> Value {
    let mut tokens: Vec<String> = (0..=255).map(|byte| char_of_byte(byte).to_string()).collect();
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "12 3", "Ġ Ġ", "' t", "Ã ¶"];
    tokens.extend(merges.map(|merge| merge.replace(' ', "")));
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let added = |id: u32, content: &str, special: bool| {
        json!({ "id": id, "content": content, "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": !special, "special": special })
    };
    json!({
        "version": "1.0",
        "added_tokens": [added(266, "<|im_start|>", true), added(267, "<|im_end|>", false)],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "unk_token": null, "vocab": vocab, "merges": merges },
    })
}

/// SentencePiece's steps, with these merges.
fn sentencepiece(merges: &[&str], prefix: bool) -> Value {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    tokens.extend(rules::byte_tokens());
    tokens.extend(["▁", "h", "e", "l", "o"].map(String::from));
    for merge in merges {
        let token = merge.replace(' ', "");
        if !tokens.contains(&token) {
            tokens.push(token);
        }
    }
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let added = |id: u32, content: &str| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true })
    };
    json!({
        "version": "1.0",
        "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
        "normalizer": rules::sentencepiece_normalizer(prefix),
        "pre_tokenizer": null,
        "post_processor": { "type": "TemplateProcessing", "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }] },
        "decoder": rules::sentencepiece_decoder(prefix),
        "model": { "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab,
            "merges": merges },
    })
}

const MERGES: [&str; 6] = ["h e", "l l", "he ll", "hell o", "▁ hello", "▁ ▁"];

#[test]
fn characters_and_bytes_come_back() {
    let nano = OpenModel::open("builtin:nano", None, false).unwrap();
    let texts = ["12+9= 0", "<eos>1<pad>", "1x2", "é", "5\n", ""];
    let tables = check_equal(&nano.tokenizer, nano.spec.vocab, &texts);
    assert_eq!(
        (tables.model.as_str(), tables.pre.as_str(), tables.tokens[14].as_str()),
        ("gpt2", "gpt-2", "Ġ")
    );
    assert_eq!(tables.token_types[..3], [CONTROL, CONTROL, NORMAL]);
    let bytes = OpenModel::open("random:smollm2-135m", None, false).unwrap();
    let tables = check_equal(&bytes.tokenizer, bytes.spec.vocab, &TEXTS);
    // The embedding has more rows than the tokenizer tokens.
    assert_eq!(tables.tokens.len() as u32, bytes.spec.vocab);
    assert_eq!((tables.tokens[300].as_str(), tables.token_types[300]), ("[PAD300]", UNUSED));
}

#[test]
fn every_word_rule_comes_back() {
    for name in ["gpt-2", "smollm", "qwen2", "llama-bpe"] {
        let rule = rules::of_name(name).unwrap();
        let mut json = byte_level(rule.words(), rule.normalizer());
        json["model"]["ignore_merges"] = rule.ignores_merges.into();
        let tables = check_equal(&files(&json), 270, &TEXTS);
        assert_eq!(tables.pre, name);
        assert_eq!(tables.token_types[266..], [CONTROL, USER_DEFINED, UNUSED, UNUSED]);
        // Where tokens lie is not asked, and a default may be left out.
        if let Some(steps) = json["pre_tokenizer"]["pretokenizers"].as_array_mut() {
            steps[1]["trim_offsets"] = false.into();
        }
        assert_eq!(check_equal(&files(&json), 270, &[]), tables);
    }
}

#[test]
fn sentencepiece_comes_back_with_scores_that_give_its_merges() {
    for prefix in [true, false] {
        let mut files = files(&sentencepiece(&MERGES, prefix));
        files.tokenizer_config_json = Some(json!({ "bos_token": "<s>", "eos_token": { "content": "</s>" } }));
        let tables = check_equal(&files, 280, &TEXTS);
        assert_eq!((tables.model.as_str(), tables.add_space_prefix), ("llama", Some(prefix)));
        assert_eq!((tables.bos, tables.unknown, tables.add_bos), (Some(1), Some(0), Some(true)));
        assert_eq!(
            (tables.token_types[0], tables.token_types[1], tables.token_types[3]),
            (UNKNOWN, CONTROL, BYTE)
        );
        assert_eq!(tables.scores.len(), 280);
    }
}

#[test]
fn what_tables_cannot_say_is_named() {
    let gpt2 = || byte_level(rules::of_name("gpt-2").unwrap().words(), Value::Null);
    let with = |change: fn(&mut Value)| {
        let mut json = gpt2();
        change(&mut json);
        json
    };
    // `hello` before `ll` although it comes of `hell`, and `he` after both.
    let tangled = ["l l", "h e", "he ll", "hell o", "h ell", "e ll"];
    for (json, words) in [
        (
            with(|json| json["pre_tokenizer"]["add_prefix_space"] = true.into()),
            "none of gpt-2, smollm, qwen2, qwen35 and llama-bpe",
        ),
        (with(|json| json["normalizer"] = json!({ "type": "Lowercase" })), "\"<|im_end|>\" is normalized"),
        (with(|json| json["model"]["ignore_merges"] = true.into()), "none of gpt-2"),
        (with(|json| json["added_tokens"][0]["lstrip"] = true.into()), "\"<|im_start|>\" takes in the space"),
        (with(|json| json["decoder"] = json!({ "type": "Fuse" })), "its decoder"),
        (with(|json| json["model"]["end_of_word_suffix"] = "</w>".into()), "end_of_word_suffix"),
        (
            with(|json| {
                json["model"]["unk_token"] = "<|im_start|>".into();
                // The first byte of some character in use, and one of none.
                let vocab = json["model"]["vocab"].as_object_mut().unwrap();
                vocab.retain(|token, _| token != "ñ" && token != "ð");
            }),
            "no token for the byte 0xF0",
        ),
        (json!({ "model": { "type": "WordLevel", "vocab": { "a": 0 }, "unk_token": "a" } }), "WordLevel"),
        (
            json!({ "decoder": { "type": "Fuse" }, "model": { "type": "BPE", "vocab": { "é": 0 }, "merges": [] } }),
            "ASCII",
        ),
        (sentencepiece(&tangled, true), "do not follow from scores"),
        (
            {
                let mut json = sentencepiece(&MERGES, true);
                json["normalizer"] = Value::Null;
                json["pre_tokenizer"] = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false });
                json
            },
            "treats spaces in another way",
        ),
    ] {
        let error = gguf_tables(&files(&json), 300, &TokenIds::default()).expect_err(words);
        assert_eq!(error.slug, "tokenizer-unsupported", "{error}");
        assert!(error.message.contains(words), "{words}: {error}");
    }
}
