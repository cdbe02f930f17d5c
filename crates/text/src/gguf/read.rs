//! Converts a GGUF file's tokenizer tables to a `tokenizer.json`: byte-level BPE with the word rule that `pre` names,
//! and SentencePiece BPE with byte fallback. Refuses unknown rules: a similar rule would give other tokens.

use super::rules::{self, CONTROL, UNKNOWN, UNUSED, USER_DEFINED, byte_of_char, char_of_byte};
use crate::tokenizer::file::{MERGES_MAX, TOKENS_MAX, VOCABULARY_BYTES_MAX};
use plimsoll_base::{Error, Result, shown};
use plimsoll_files::GgufTokenizer;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};

/// Most bytes compared to find SentencePiece merges: the sum over tokens of their squared length. A vocabulary of
/// 262,144 takes 3e7; more than this limit takes seconds.
const COMPARED_BYTES_MAX: u64 = 1 << 31;

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
    let mut value = match tables.model.as_str() {
        "gpt2" => {
            let rule = rules::of_name(&tables.pre)?;
            let mut value = if is_of_characters(tables) {
                characters_json(&tables.tokens, &added.special)
            } else {
                byte_level_json(&tables.tokens, &tables.merges, &added.special, rule.words())
            };
            let list = value["added_tokens"].as_array_mut().expect("the literal has this list");
            list.extend(added.plain.iter().map(|&id| added_token(id, &tables.tokens[id as usize], false)));
            list.sort_by_key(|t| t["id"].as_u64());
            value["model"]["ignore_merges"] = rule.ignores_merges.into();
            value["normalizer"] = rule.normalizer();
            value
        }
        "llama" => sentencepiece_json(tables, &added)?,
        other => {
            let message = format!("GGUF tokenizer of kind `{}`; built are gpt2 and llama", shown(other));
            return Err(rules::unsupported(message));
        }
    };
    // Fillers of embedding rows without a token are not tokens.
    let vocab = value["model"]["vocab"].as_object_mut().expect("the literal has this map");
    let is_filler = |(id, kind): (usize, &i64)| (*kind == UNUSED).then(|| rules::filler(id));
    for filler in tables.token_types.iter().enumerate().filter_map(is_filler) {
        vocab.remove(&filler);
    }
    Ok(value)
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

/// Returns true for tables of characters, not bytes: without merges only bytes that are tokens are ever matched.
pub(super) fn is_of_characters(tables: &GgufTokenizer) -> bool {
    let is_absent = |c: char| !tables.tokens.iter().any(|token| token.chars().eq([c]));
    tables.merges.is_empty() && (0..128).map(char_of_byte).any(is_absent)
}

/// Builds a tokenizer of characters, which reports an unknown character instead of dropping it.
fn characters_json(tokens: &[String], special: &[u32]) -> Value {
    let plain = |token: &String| {
        let mut chars = token.chars();
        let byte = chars.next().filter(|_| chars.next().is_none()).and_then(byte_of_char);
        byte.filter(u8::is_ascii).map_or(token.clone(), |byte| char::from(byte).to_string())
    };
    let tokens: Vec<String> = tokens.iter().map(plain).collect();
    let mut value = byte_level_json(&tokens, &[], special, Value::Null);
    value["pre_tokenizer"] = Value::Null;
    value["decoder"] = json!({ "type": "Fuse" });
    value
}

/// Converts SentencePiece to BPE: merges follow from the scores, and unknown characters become bytes.
fn sentencepiece_json(tables: &GgufTokenizer, added: &Added) -> Result<Value> {
    if tables.scores.len() != tables.tokens.len() {
        return Err(invalid(&format!("{} scores for {} tokens", tables.scores.len(), tables.tokens.len())));
    }
    let known: HashSet<&str> = tables.tokens.iter().map(String::as_str).collect();
    if rules::byte_tokens().any(|token| !known.contains(token.as_str())) {
        return Err(rules::unsupported("SentencePiece tokenizer without tokens for all bytes".into()));
    }
    let unknown = tables.unknown.and_then(|id| tables.tokens.get(id as usize));
    let prefix = tables.add_space_prefix.unwrap_or(true);
    let mut list: Vec<Value> =
        added.special.iter().map(|&id| added_token(id, &tables.tokens[id as usize], true)).collect();
    list.extend(added.plain.iter().map(|&id| added_token(id, &tables.tokens[id as usize], false)));
    list.sort_by_key(|t| t["id"].as_u64());
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": list,
        "normalizer": rules::sentencepiece_normalizer(prefix),
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": rules::sentencepiece_decoder(prefix),
        "model": bpe(&tables.tokens, json!(merges_from_scores(tables)?), json!(unknown), true),
    }))
}

/// Returns all pairs of tokens whose concatenation is a token, best score first; ties go to the longer left part.
pub(super) fn merges_from_scores(tables: &GgufTokenizer) -> Result<Vec<[&str; 2]>> {
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
        known.filter(|&(_, &k)| k == kind).map(|(id, _)| id as u32).collect::<Vec<_>>()
    };
    Added { special: [of(CONTROL), of(UNKNOWN)].concat(), plain: of(USER_DEFINED) }
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

/// Refuses tables far larger than any vocabulary in use, before anything is built from them.
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

/// Refuses two ids with the same text: the vocabulary would lose one of them.
fn refuse_doubles(tokens: &[String]) -> Result<()> {
    let mut seen = HashMap::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        if let Some(first) = seen.insert(token.as_str(), id) {
            return Err(invalid(&format!("tokens {first} and {id} are both {:?}", shown(token))));
        }
    }
    Ok(())
}
