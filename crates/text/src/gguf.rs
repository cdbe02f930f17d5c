//! Converts a GGUF file's tokenizer tables to a `tokenizer.json`: byte-level BPE with the word rule that `pre` names, and
//! SentencePiece BPE with byte fallback. Unknown rules are refused, because a similar one would give other tokens.

use crate::tokenizer::file::{MERGES_MAX, TOKENS_MAX, VOCABULARY_BYTES_MAX};
use plimsoll_base::{Error, Result, shown};
use plimsoll_files::GgufTokenizer;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
/// Bytes that are compared to find the merges of SentencePiece: for each token, the squares of their lengths. A vocabulary of
/// 262,144 takes 3e7; more than this takes seconds.
const COMPARED_BYTES_MAX: u64 = 1 << 31;

const QWEN2_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Builds the `tokenizer.json` of these tables.
///
/// Errors: `tokenizer-missing`, `tokenizer-unsupported`, `tokenizer-invalid`.
pub(crate) fn tokenizer_json(tables: &GgufTokenizer) -> Result<Value> {
    if tables.tokens.is_empty() {
        return Err(Error::new("tokenizer-missing", "the GGUF file has no tokenizer tables")
            .hint("take a GGUF file that carries its tokenizer"));
    }
    refuse_large(tables)?;
    refuse_doubles(&tables.tokens)?;
    let added = added_ids(tables);
    match tables.model.as_str() {
        "gpt2" => {
            let mut value =
                byte_level_json(&tables.tokens, &tables.merges, &added.special, word_rule(&tables.pre)?);
            let list = value["added_tokens"].as_array_mut().expect("the literal has this list");
            list.extend(added.plain.iter().map(|&id| added_token(id, &tables.tokens[id as usize], false)));
            list.sort_by_key(|t| t["id"].as_u64());
            if matches!(tables.pre.as_str(), "llama-bpe" | "llama3") {
                value["model"]["ignore_merges"] = true.into(); // a word that is a token is taken whole
            }
            if tables.pre == "qwen2" {
                value["normalizer"] = json!({ "type": "NFC" });
            }
            Ok(value)
        }
        "llama" => sentencepiece_json(tables, &added),
        other => {
            let other = shown(other);
            Err(unsupported(format!("GGUF tokenizer of kind `{other}`; built are gpt2 and llama")))
        }
    }
}

/// Builds a byte-level BPE. With a null `pre_tokenizer` the text is one word.
pub(crate) fn byte_level_json(
    tokens: &[String],
    merges: &[String],
    special: &[u32],
    pre_tokenizer: Value,
) -> Value {
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let added: Vec<Value> = special.iter().map(|&id| added_token(id, &tokens[id as usize], true)).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": if pre_tokenizer.is_null() { byte_level } else { pre_tokenizer },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": bpe(tokens, json!(merges), Value::Null, false),
    })
}

/// Returns the character that byte-level vocabularies write for a byte: itself for printable Latin-1, else the next
/// character from U+0100 on.
pub(crate) fn char_of_byte(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).expect("below U+0144")
}

/// Returns the rule that splits text into words, by its name in llama.cpp.
fn word_rule(pre: &str) -> Result<Value> {
    let byte_level = |use_regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex });
    let digits = json!({ "type": "Digits", "individual_digits": true });
    let split = |pattern: &str| json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
    let sequence =
        |first: Value, second: Value| json!({ "type": "Sequence", "pretokenizers": [first, second] });
    match pre {
        "gpt-2" => Ok(byte_level(true)),
        "smollm" => Ok(sequence(digits, byte_level(true))),
        "qwen2" => Ok(sequence(split(QWEN2_SPLIT), byte_level(false))),
        "llama-bpe" | "llama3" => Ok(sequence(split(LLAMA3_SPLIT), byte_level(false))),
        other => Err(unsupported(format!(
            "GGUF tokenizer with word rule `{}`; built are gpt-2, smollm, qwen2 and llama-bpe",
            shown(other)
        ))),
    }
}

/// Converts SentencePiece to BPE: merges follow from the scores, and unknown characters become bytes.
fn sentencepiece_json(tables: &GgufTokenizer, added: &Added) -> Result<Value> {
    if tables.scores.len() != tables.tokens.len() {
        return Err(invalid(&format!("{} scores for {} tokens", tables.scores.len(), tables.tokens.len())));
    }
    if (0..=255).any(|b| !tables.tokens.contains(&format!("<0x{b:02X}>"))) {
        return Err(unsupported("SentencePiece tokenizer without tokens for all bytes".into()));
    }
    let unknown = tables.unknown.and_then(|id| tables.tokens.get(id as usize));
    let prefix = tables.add_space_prefix.unwrap_or(true);
    let mut normalizers = vec![json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" })];
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefix {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": "▁" }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    let mut list: Vec<Value> =
        added.special.iter().map(|&id| added_token(id, &tables.tokens[id as usize], true)).collect();
    list.extend(added.plain.iter().map(|&id| added_token(id, &tables.tokens[id as usize], false)));
    list.sort_by_key(|t| t["id"].as_u64());
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": list,
        "normalizer": { "type": "Sequence", "normalizers": normalizers },
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": decoders },
        "model": bpe(&tables.tokens, json!(merges_from_scores(tables)?), json!(unknown), true),
    }))
}

/// Returns all pairs of tokens whose concatenation is a token, best score first; ties go to the longer left part.
fn merges_from_scores(tables: &GgufTokenizer) -> Result<Vec<[&str; 2]>> {
    let ids: HashMap<&str, usize> = tables.tokens.iter().enumerate().map(|(i, t)| (t.as_str(), i)).collect();
    let mut merges = Vec::new();
    for (id, token) in tables.tokens.iter().enumerate() {
        let cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let mut pairs: Vec<_> =
            cuts.filter_map(|(left, right)| Some((ids.get(left)?, ids.get(right)?, left, right))).collect();
        pairs.sort_by_key(|(left, right, ..)| (**left, **right));
        merges.extend(pairs.into_iter().map(|(_, _, left, right)| (tables.scores[id], [left, right])));
        if merges.len() > MERGES_MAX {
            return Err(invalid(&format!("more than {MERGES_MAX} merges follow from its scores")));
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0));
    Ok(merges.into_iter().map(|(_, pair)| pair).collect())
}

/// Tokens matched in the text before anything else.
struct Added {
    special: Vec<u32>,
    plain: Vec<u32>,
}

fn added_ids(tables: &GgufTokenizer) -> Added {
    let of = |kind: i64| {
        let known = tables.token_types.iter().take(tables.tokens.len()).enumerate();
        known.filter(|&(_, &k)| k == kind).map(|(id, _)| id as u32).collect()
    };
    Added { special: of(CONTROL), plain: of(USER_DEFINED) }
}

fn added_token(id: u32, text: &str, special: bool) -> Value {
    json!({
        "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": special,
    })
}

fn bpe(tokens: &[String], merges: Value, unknown: Value, byte_fallback: bool) -> Value {
    let vocab: Map<String, Value> = tokens.iter().enumerate().map(|(id, t)| (t.clone(), id.into())).collect();
    json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": unknown,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": byte_fallback,
        "byte_fallback": byte_fallback,
        "ignore_merges": false,
        "vocab": vocab,
        "merges": merges,
    })
}

/// Refuses tables that no vocabulary in use comes near, before anything is built of them.
fn refuse_large(tables: &GgufTokenizer) -> Result<()> {
    let bytes = tables.tokens.iter().map(String::len).sum();
    for (count, limit, what) in [
        (tables.tokens.len(), TOKENS_MAX, "tokens"),
        (tables.merges.len(), MERGES_MAX, "merges"),
        (bytes, VOCABULARY_BYTES_MAX, "bytes of tokens"),
    ] {
        if count > limit {
            return Err(invalid(&format!("{count} {what}, the limit is {limit}")));
        }
    }
    let compared = tables.tokens.iter().map(|token| (token.len() as u64).pow(2)).sum::<u64>();
    if tables.model == "llama" && compared > COMPARED_BYTES_MAX {
        let longest = tables.tokens.iter().map(String::len).max().unwrap_or(0);
        return Err(invalid(&format!(
            "{bytes} bytes of tokens, the longest of {longest}: too long for their number"
        )));
    }
    Ok(())
}

fn invalid(what: &str) -> Error {
    Error::new("tokenizer-invalid", format!("GGUF tokenizer: {what}")).hint("fetch the file again")
}

/// Refuses two ids with one text: the vocabulary would lose one of them.
fn refuse_doubles(tokens: &[String]) -> Result<()> {
    let mut seen = HashMap::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        if let Some(first) = seen.insert(token.as_str(), id) {
            return Err(invalid(&format!("tokens {first} and {id} are both {:?}", shown(token))));
        }
    }
    Ok(())
}

fn unsupported(what: String) -> Error {
    Error::new("tokenizer-unsupported", what)
        .hint("take the model as a directory with tokenizer.json, or another GGUF file")
}
