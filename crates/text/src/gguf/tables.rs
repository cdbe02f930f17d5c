//! Converts a `tokenizer.json` to GGUF tables: byte-level BPE whose word rule has a name, plain bytes and characters,
//! and SentencePiece BPE with byte fallback. Refuses what tables cannot express: they would give other tokens.

use super::read::{is_of_characters, merges_from_scores};
use super::rules::{self, BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, char_of_byte};
use crate::chat::special_token;
use crate::guard::on_a_stack;
use crate::tokenizer::beginning::beginning;
use crate::tokenizer::file::{File, Vocabulary};
use crate::tokenizer::{Tokenizer, tokenizer_json};
use plimsoll_base::{Error, Result, shown};
use plimsoll_files::{GgufTokenizer, TokenIds, TokenizerFiles};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Returns the tables of a model's tokenizer, with one token for each of the `vocab` rows of its embedding.
///
/// Errors: `tokenizer-unsupported` for what tables cannot express; those of `Tokenizer::from_files`.
pub fn gguf_tables(files: &TokenizerFiles, vocab: u32, ids: &TokenIds) -> Result<GgufTokenizer> {
    let tokenizer = Tokenizer::from_files(files, vocab)?;
    let mut tables = match &files.gguf {
        Some(tables) => tables.clone(),
        None => {
            let json = tokenizer_json(files)?;
            // The tokenizer was built from it, so it can be read.
            let file = on_a_stack("tokenizer", || File::read(&json))?.and_then(std::result::Result::ok);
            let file = file.ok_or_else(|| refused("it cannot be read again"))?;
            let bos = special_token(files, "bos_token");
            let adds_bos = bos.is_some() && beginning(files, &json).first() == bos.as_ref();
            GgufTokenizer { add_bos: Some(adds_bos), ..tables_of(&tokenizer, file, vocab)? }
        }
    };
    fill(&mut tables, vocab)?;
    tables.chat_template = files.chat_template.clone();
    let id_of = |name: &str| special_token(files, name).and_then(|token| tokenizer.token_id(&token));
    // The token that templates name, if it ends a response.
    tables.eos = id_of("eos_token").filter(|id| ids.eos.contains(id)).or(ids.eos.first().copied());
    tables.bos = id_of("bos_token").or(ids.bos);
    tables.pad = id_of("pad_token").or(ids.pad);
    tables.unknown = tables.unknown.or(id_of("unk_token"));
    Ok(tables)
}

fn tables_of(tokenizer: &Tokenizer, file: File, vocab: u32) -> Result<GgufTokenizer> {
    let option = |name: &str| file.model.options.get(name).unwrap_or(&Value::Null);
    let kind = option("type").as_str().unwrap_or("BPE");
    let (Vocabulary::Ids(ids), Some(merges), "BPE") = (&file.model.vocabulary, &file.model.merges, kind)
    else {
        return Err(refused(&format!("its model is {}, built is BPE", shown(kind))));
    };
    for name in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if option(name).as_str().is_some_and(|mark| !mark.is_empty()) {
            return Err(refused(&format!("it has a {name}")));
        }
    }
    let mut tables = GgufTokenizer {
        tokens: vec![String::new(); vocab as usize],
        token_types: vec![UNUSED; vocab as usize],
        ..GgufTokenizer::default()
    };
    let mut put = |token: &str, id: u32, kind: i64| {
        tables.tokens[id as usize] = token.to_string();
        tables.token_types[id as usize] = kind;
    };
    if ids.values().collect::<HashSet<_>>().len() != ids.len() {
        return Err(refused("two of its tokens have one id"));
    }
    // `from_files` has compared every id with `vocab`.
    ids.iter().for_each(|(token, &id)| put(token, id, NORMAL));
    let unknown = option("unk_token").as_str();
    for added in &file.added {
        check_added(added, &file.normalizer)?;
        let Some(id) = tokenizer.token_id(&added.content) else { continue };
        let kind = if !added.special {
            USER_DEFINED
        } else if Some(added.content.as_str()) == unknown && option("byte_fallback") == true {
            UNKNOWN
        } else {
            CONTROL
        };
        put(&added.content, id, kind);
    }
    let flags = Flags { unknown, ignores_merges: option("ignore_merges") == true };
    let mut tables = if option("byte_fallback") == true {
        sentencepiece(tables, &file, merges, &flags)?
    } else {
        bytes(tables, &file, merges, &flags)?
    };
    tables.unknown = unknown.and_then(|token| tokenizer.token_id(token));
    Ok(tables)
}

/// Options of the model that change its tokens.
struct Flags<'a> {
    unknown: Option<&'a str>,
    ignores_merges: bool,
}

/// Builds the tables of byte-level BPE, plain bytes, or characters.
fn bytes(
    mut tables: GgufTokenizer,
    file: &File,
    merges: &[(String, String)],
    flags: &Flags<'_>,
) -> Result<GgufTokenizer> {
    tables.model = "gpt2".into();
    let is_plain = file.pre_tokenizer.is_null() && file.normalizer.is_null() && merges.is_empty();
    if is_plain && flags.unknown.is_none() && file.decoder["type"] == "Fuse" {
        return characters(tables);
    }
    let by_parts = rules::of_parts(&file.pre_tokenizer, &file.normalizer, flags.ignores_merges);
    let single = || {
        let is_single = merges.is_empty() && file.normalizer.is_null() && !flags.ignores_merges;
        (is_single && rules::is_byte_level(&file.pre_tokenizer)).then(rules::single_bytes)
    };
    let Some(rule) = by_parts.or_else(single) else {
        return Err(refused(&format!("its rule that cuts text into words is none of {}", rules::names())));
    };
    if file.decoder["type"] != "ByteLevel" {
        return Err(refused("its decoder is not that of byte-level BPE"));
    }
    let known: HashSet<&str> = tables.tokens.iter().map(String::as_str).collect();
    let is_absent = |byte: u8| !known.contains(char_of_byte(byte).to_string().as_str());
    // Without merges, tables that lack an ASCII byte are read as characters. Readers of tables drop an absent byte,
    // which this tokenizer would replace by its unknown token if it has one.
    let must_be_there = |byte: u8| {
        if merges.is_empty() {
            byte.is_ascii() || is_in_texts(byte)
        } else {
            flags.unknown.is_some() && is_in_texts(byte)
        }
    };
    if let Some(byte) = (0..=255u8).find(|&byte| must_be_there(byte) && is_absent(byte)) {
        return Err(refused(&format!("it has no token for the byte 0x{byte:02X}")));
    }
    if let Some((left, right)) = merges.iter().find(|(left, right)| left.contains(' ') || right.contains(' '))
    {
        return Err(refused(&format!("the merge of {:?} and {:?} holds a space", shown(left), shown(right))));
    }
    tables.pre = rule.names[0].into();
    tables.merges = merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
    Ok(tables)
}

/// Returns true for bytes in UTF-8 texts in use: no control characters, and no planes 4 to 11, which are empty.
/// SmolLM2 has no tokens for some of the bytes left out.
fn is_in_texts(byte: u8) -> bool {
    matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..=0x7E | 0x80..=0xBF | 0xC2..=0xF0 | 0xF3 | 0xF4)
}

/// Builds the tables of a vocabulary of ASCII characters, as bytes without merges.
fn characters(mut tables: GgufTokenizer) -> Result<GgufTokenizer> {
    for (token, _) in tables.tokens.iter_mut().zip(&tables.token_types).filter(|(_, kind)| **kind == NORMAL) {
        let [byte @ 0..=127] = token.as_bytes() else {
            let token = shown(token);
            return Err(refused(&format!("its token {token:?} is no ASCII character, and it has no merges")));
        };
        *token = char_of_byte(*byte).to_string();
    }
    tables.pre = rules::single_bytes().names[0].into();
    if !is_of_characters(&tables) {
        return Err(refused("it holds every ASCII character, as tables of bytes do"));
    }
    Ok(tables)
}

/// Builds SentencePiece tables, with scores that reproduce the file's merges.
fn sentencepiece(
    mut tables: GgufTokenizer,
    file: &File,
    merges: &[(String, String)],
    flags: &Flags<'_>,
) -> Result<GgufTokenizer> {
    tables.model = "llama".into();
    tables.pre = "default".into();
    let is_prefix = |prefix: &bool| {
        rules::same_normalizer(&rules::sentencepiece_normalizer(*prefix), &file.normalizer)
            && rules::same_decoder(&rules::sentencepiece_decoder(*prefix), &file.decoder)
    };
    let Some(prefix) = [true, false].into_iter().find(is_prefix).filter(|_| file.pre_tokenizer.is_null())
    else {
        return Err(refused("it treats spaces in another way than SentencePiece in GGUF files"));
    };
    if flags.ignores_merges || flags.unknown.is_none() {
        return Err(refused("its byte-fallback BPE ignores merges, or has no token for what is unknown"));
    }
    let ids: HashMap<&str, usize> =
        tables.tokens.iter().enumerate().map(|(id, t)| (t.as_str(), id)).collect();
    for token in rules::byte_tokens() {
        let Some(&id) = ids.get(token.as_str()) else {
            return Err(refused(&format!("it has no token {token}")));
        };
        tables.token_types[id] = BYTE;
    }
    // The n-th token made by merges has the score -n; all others have less.
    let (mut scores, mut made) = (vec![f32::NAN; tables.tokens.len()], 0u32);
    for (left, right) in merges {
        let Some(&id) = ids.get(format!("{left}{right}").as_str()) else { continue };
        if scores[id].is_nan() {
            made += 1;
            scores[id] = -(made as f32);
        }
    }
    let least = -(made as f32) - 1.0;
    tables.scores = scores.into_iter().map(|score| if score.is_nan() { least } else { score }).collect();
    tables.add_space_prefix = Some(prefix);
    let is_normal = |token: &str| ids.get(token).is_some_and(|&id| tables.token_types[id] == NORMAL);
    let derived = merges_from_scores(&tables)?;
    let derived = groups(derived.iter().map(|[left, right]| (*left, *right)), is_normal);
    let stated = groups(merges.iter().map(|(left, right)| (left.as_str(), right.as_str())), is_normal);
    if derived != stated {
        return Err(refused("its merges do not follow from scores of its tokens"));
    }
    Ok(tables)
}

/// Returns the tokens that merges make, in order, each with the pairs that make it.
fn groups<'a>(
    merges: impl Iterator<Item = (&'a str, &'a str)>,
    is_normal: impl Fn(&str) -> bool,
) -> Vec<(String, BTreeSet<(&'a str, &'a str)>)> {
    let mut groups: Vec<(String, BTreeSet<_>)> = Vec::new();
    for (left, right) in merges {
        let token = format!("{left}{right}");
        match groups.last_mut() {
            Some((last, pairs)) if *last == token => drop(pairs.insert((left, right))),
            _ if is_normal(&token) => groups.push((token, [(left, right)].into())),
            _ => {}
        }
    }
    groups
}

/// Refuses an added token that takes in spaces, matches whole words only, or is normalized before matching.
fn check_added(added: &tokenizers::AddedToken, normalizer: &Value) -> Result<()> {
    let token = shown(&added.content);
    if added.lstrip || added.rstrip || added.single_word {
        return Err(refused(&format!(
            "its token {token:?} takes in the space next to it, or only whole words"
        )));
    }
    let is_same = normalizer.is_null() || normalizer["type"] == "NFC" && added.content.is_ascii();
    if added.normalized && !is_same {
        return Err(refused(&format!("its token {token:?} is normalized before it is found")));
    }
    Ok(())
}

/// Gives ids without a token a unique text, as llama.cpp's converter does.
fn fill(tables: &mut GgufTokenizer, vocab: u32) -> Result<()> {
    tables.token_types.resize(tables.tokens.len(), NORMAL);
    tables.token_types.resize(vocab as usize, UNUSED);
    tables.tokens.resize(vocab as usize, String::new());
    if !tables.scores.is_empty() {
        let least = tables.scores.iter().copied().fold(0.0, f32::min);
        tables.scores.resize(vocab as usize, least);
    }
    for (id, token) in tables.tokens.iter_mut().enumerate().filter(|(_, token)| token.is_empty()) {
        *token = rules::filler(id);
    }
    let mut seen = HashSet::with_capacity(tables.tokens.len());
    match tables.tokens.iter().find(|token| !seen.insert(token.as_str())) {
        Some(token) => Err(refused(&format!("two ids would have the token {:?}", shown(token)))),
        None => Ok(()),
    }
}

fn refused(what: &str) -> Error {
    Error::new("tokenizer-unsupported", format!("a GGUF file cannot hold this tokenizer: {what}"))
        .hint("export the model as a folder, which holds tokenizer.json: --format folder")
}

#[cfg(test)]
#[path = "tables_tests.rs"]
mod tests;
