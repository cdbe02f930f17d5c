//! The rules that GGUF tables name: llama.cpp's word rules, token types, the spelling of bytes, and SentencePiece's
//! steps. Reading looks up a rule by name, writing a name by its rule.

use plimsoll_base::{Error, Result, shown};
use serde_json::{Value, json};
use tokenizers::{DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper};

pub(super) const NORMAL: i64 = 1;
pub(super) const UNKNOWN: i64 = 2;
pub(super) const CONTROL: i64 = 3;
pub(super) const USER_DEFINED: i64 = 4;
pub(super) const UNUSED: i64 = 5;
pub(super) const BYTE: i64 = 6;

const QWEN2_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A rule that splits text into words before byte-level BPE.
pub(super) struct Rule {
    /// Its names in llama.cpp; the first is written.
    pub(super) names: &'static [&'static str],
    words: Words,
    /// True if a word that is a token is not split.
    pub(super) ignores_merges: bool,
    /// True if characters are composed first.
    composes: bool,
}

enum Words {
    Gpt2,
    DigitsThenGpt2,
    Split(&'static str),
}

static RULES: [Rule; 5] = [
    Rule { names: &["gpt-2"], words: Words::Gpt2, ignores_merges: false, composes: false },
    Rule { names: &["smollm"], words: Words::DigitsThenGpt2, ignores_merges: false, composes: false },
    Rule { names: &["qwen2"], words: Words::Split(QWEN2_SPLIT), ignores_merges: false, composes: true },
    Rule { names: &["qwen35"], words: Words::Split(QWEN35_SPLIT), ignores_merges: false, composes: true },
    Rule {
        names: &["llama-bpe", "llama3"],
        words: Words::Split(LLAMA3_SPLIT),
        ignores_merges: true,
        composes: false,
    },
];

impl Rule {
    /// Returns the `pre_tokenizer` of a `tokenizer.json`.
    pub(super) fn words(&self) -> Value {
        let sequence =
            |first: Value, second: Value| json!({ "type": "Sequence", "pretokenizers": [first, second] });
        match self.words {
            Words::Gpt2 => byte_level(true),
            Words::DigitsThenGpt2 => {
                sequence(json!({ "type": "Digits", "individual_digits": true }), byte_level(true))
            }
            Words::Split(pattern) => {
                let split = json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
                sequence(split, byte_level(false))
            }
        }
    }

    /// Returns the `normalizer` of a `tokenizer.json`.
    pub(super) fn normalizer(&self) -> Value {
        if self.composes { json!({ "type": "NFC" }) } else { Value::Null }
    }
}

/// Returns the rule of that name.
///
/// Errors: `tokenizer-unsupported`.
pub(super) fn of_name(name: &str) -> Result<&'static Rule> {
    RULES.iter().find(|rule| rule.names.contains(&name)).ok_or_else(|| {
        let message = format!("GGUF tokenizer with word rule `{}`; built are {}", shown(name), names());
        unsupported(message)
    })
}

/// Returns the rule that these parts of a `tokenizer.json` follow.
pub(super) fn of_parts(
    pre_tokenizer: &Value,
    normalizer: &Value,
    ignores_merges: bool,
) -> Option<&'static Rule> {
    let words = canonical::<PreTokenizerWrapper>(pre_tokenizer)?;
    RULES.iter().find(|rule| {
        canonical::<PreTokenizerWrapper>(&rule.words()).as_ref() == Some(&words)
            && same_normalizer(&rule.normalizer(), normalizer)
            && rule.ignores_merges == ignores_merges
    })
}

/// Returns the rule written for a vocabulary without merges, whose tokens do not depend on the split into words.
pub(super) fn single_bytes() -> &'static Rule {
    &RULES[0]
}

/// Returns true if a `pre_tokenizer` maps text to bytes and otherwise only splits it.
pub(super) fn is_byte_level(pre_tokenizer: &Value) -> bool {
    let words = canonical::<PreTokenizerWrapper>(pre_tokenizer);
    [true, false].iter().any(|regex| canonical::<PreTokenizerWrapper>(&byte_level(*regex)) == words)
}

/// Returns the names of all rules, for messages.
pub(super) fn names() -> String {
    let names: Vec<&str> = RULES.iter().map(|rule| rule.names[0]).collect();
    let (last, others) = names.split_last().expect("there are rules");
    format!("{} and {last}", others.join(", "))
}

fn byte_level(use_regex: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex })
}

/// Returns the character of a byte in byte-level vocabularies: printable Latin-1 as it is, others from U+0100 on.
pub(crate) fn char_of_byte(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).expect("below U+0144")
}

/// Returns the byte of a character in a byte-level vocabulary.
pub(super) fn byte_of_char(c: char) -> Option<u8> {
    (0..=255).find(|&byte| char_of_byte(byte) == c)
}

/// Returns the text of an id without a token, as llama.cpp's converter writes it.
pub(super) fn filler(id: usize) -> String {
    format!("[PAD{id}]")
}

/// Returns SentencePiece's tokens of single bytes, in order.
pub(super) fn byte_tokens() -> impl Iterator<Item = String> {
    (0..=255u8).map(|byte| format!("<0x{byte:02X}>"))
}

/// Returns SentencePiece's `normalizer`: spaces become `▁`, and one is put before the text if `prefix`.
pub(super) fn sentencepiece_normalizer(prefix: bool) -> Value {
    let mut steps = vec![json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" })];
    if prefix {
        steps.insert(0, json!({ "type": "Prepend", "prepend": "▁" }));
    }
    json!({ "type": "Sequence", "normalizers": steps })
}

/// Returns the `decoder` that reverses SentencePiece's normalizer.
pub(super) fn sentencepiece_decoder(prefix: bool) -> Value {
    let mut steps = vec![
        json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefix {
        steps.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    json!({ "type": "Sequence", "decoders": steps })
}

/// Returns true if two normalizers change every text in the same way.
pub(super) fn same_normalizer(one: &Value, other: &Value) -> bool {
    canonical::<NormalizerWrapper>(one) == canonical::<NormalizerWrapper>(other)
}

/// Returns true if two decoders give the same text.
pub(super) fn same_decoder(one: &Value, other: &Value) -> bool {
    canonical::<DecoderWrapper>(one) == canonical::<DecoderWrapper>(other)
}

/// Returns a part of a `tokenizer.json` with its defaults and without what changes no token; `None` if it is unknown.
fn canonical<T: serde::de::DeserializeOwned + serde::Serialize>(part: &Value) -> Option<Value> {
    if part.is_null() {
        return Some(Value::Null);
    }
    let mut value = serde_json::to_value(serde_json::from_value::<T>(part.clone()).ok()?).ok()?;
    let list = ["pretokenizers", "normalizers", "decoders"].into_iter().find(|list| value[*list].is_array());
    match list.and_then(|list| value[list].as_array_mut()) {
        Some(steps) if steps.len() == 1 => value = steps.remove(0),
        Some(steps) => steps.iter_mut().for_each(without_offsets),
        None => {}
    }
    without_offsets(&mut value);
    Some(value)
}

/// Removes settings that only change the offsets of tokens in the text, which are not used.
fn without_offsets(step: &mut Value) {
    if let Some(map) = step.as_object_mut() {
        map.remove("trim_offsets");
    }
}

pub(super) fn unsupported(what: String) -> Error {
    Error::new("tokenizer-unsupported", what)
        .hint("take the model as a directory with tokenizer.json, or another GGUF file")
}
