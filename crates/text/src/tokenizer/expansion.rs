//! Computes how much longer a tokenizer's configured steps can make a text: forty rules that double it are 3 KB of
//! JSON. Each kind of step has an upper bound; the bounds of a chain multiply.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_PAD_INDIFFERENT as BASE64;
use serde_json::Value;

/// Largest growth of a text before the model sees it. Sound chains stay below: compatibility forms (11 times, of one
/// character), a word mark for each space (3), bytes as characters (2).
const ENCODED_MAX: f64 = 4096.0;
/// Largest growth of tokens when they are decoded. Sound chains stay below 4.
const DECODED_MAX: f64 = 16.0;
/// Longest regular expression, and most of them. The longest in use has about 400 bytes.
const PATTERN_BYTES_MAX: usize = 4096;
const STEPS_MAX: usize = 128;

/// Returns the factor by which normalizer and pre-tokenizer can lengthen a text.
pub(super) fn encoded(normalizer: &Value, pre_tokenizer: &Value) -> Result<f64, String> {
    let mut steps = Steps { factor: 1.0, count: 0 };
    steps.normalizer(normalizer)?;
    steps.pre_tokenizer(pre_tokenizer)?;
    steps.within(ENCODED_MAX, "normalizer and pre-tokenizer can make a text")
}

/// Refuses a decoder that can make text much longer than its tokens.
pub(super) fn check_decoder(decoder: &Value) -> Result<(), String> {
    let mut steps = Steps { factor: 1.0, count: 0 };
    steps.decoder(decoder)?;
    steps.within(DECODED_MAX, "decoder can make the text of tokens").map(drop)
}

struct Steps {
    factor: f64,
    count: usize,
}

impl Steps {
    fn within(self, limit: f64, what: &str) -> Result<f64, String> {
        if self.factor > limit {
            let times = plimsoll_base::shown_number(self.factor.round());
            Err(format!("its {what} {times} times as long, the limit is {limit}"))
        } else {
            Ok(self.factor)
        }
    }

    /// Multiplies by a step that lengthens a text at most `factor` times.
    fn step(&mut self, factor: f64) -> Result<(), String> {
        self.count += 1;
        self.factor *= factor.max(1.0);
        if self.count > STEPS_MAX {
            Err(format!("more than {STEPS_MAX} steps of normalization, words or decoding"))
        } else {
            Ok(())
        }
    }

    fn sequence(
        &mut self,
        steps: &Value,
        each: fn(&mut Steps, &Value) -> Result<(), String>,
    ) -> Result<(), String> {
        let list = steps.as_array().ok_or("a sequence without its steps")?;
        list.iter().try_for_each(|step| each(self, step))
    }

    fn normalizer(&mut self, step: &Value) -> Result<(), String> {
        match kind(step)? {
            None => Ok(()),
            Some("Sequence") => self.sequence(&step["normalizers"], Steps::normalizer),
            // The largest growth of a character in UTF-8, by the Unicode Consortium's report on normalization.
            Some("NFC" | "NFD") => self.step(3.0),
            Some("NFKC" | "NFKD") => self.step(11.0),
            Some("Lowercase") => self.step(1.5),
            Some("Nmt" | "Strip" | "StripAccents") => self.step(1.0),
            // Decomposed, in lower case, with spaces around a Chinese character.
            Some("BertNormalizer" | "Bert") => self.step(3.0 * 1.5 * (5.0 / 3.0)),
            Some("ByteLevel") => self.step(2.0),
            Some("Prepend") => self.step(1.0 + length(&step["prepend"])),
            Some("Replace") => self.replace(step),
            Some("Precompiled") => self.step(precompiled_growth(step)?),
            Some(other) => Err(unknown("normalizer", other)),
        }
    }

    fn pre_tokenizer(&mut self, step: &Value) -> Result<(), String> {
        match kind(step)? {
            None => Ok(()),
            Some("Sequence") => self.sequence(&step["pretokenizers"], Steps::pre_tokenizer),
            Some("ByteLevel") => self.step(if step["add_prefix_space"] == true { 4.0 } else { 2.0 }),
            // A mark for each space, and one before each word.
            Some("Metaspace") => self.step(2.0 * length(&step["replacement"])),
            Some("Split") => {
                pattern(&step["pattern"])?;
                self.step(1.0)
            }
            Some(
                "BertPreTokenizer" | "Delimiter" | "CharDelimiterSplit" | "Digits" | "FixedLength"
                | "Punctuation" | "UnicodeScripts" | "Whitespace" | "WhitespaceSplit",
            ) => self.step(1.0),
            Some(other) => Err(unknown("pre-tokenizer", other)),
        }
    }

    fn decoder(&mut self, step: &Value) -> Result<(), String> {
        match kind(step)? {
            None => Ok(()),
            Some("Sequence") => self.sequence(&step["decoders"], Steps::decoder),
            Some("Replace") => self.replace(step),
            // Half a character becomes U+FFFD.
            Some("ByteLevel") => self.step(3.0),
            // A space before a token; a space for a mark, which may be empty.
            Some("WordPiece" | "BPEDecoder") => self.step(2.0),
            Some("CTC") => self.step(3.0),
            Some("Fuse" | "Strip" | "ByteFallback" | "Metaspace") => self.step(1.0),
            Some(other) => Err(unknown("decoder", other)),
        }
    }

    fn replace(&mut self, step: &Value) -> Result<(), String> {
        let content = length(&step["content"]);
        match pattern(&step["pattern"])? {
            Some(text) if text > 0.0 => self.step(content / text),
            // It may match nothing, before and after every byte.
            _ => self.step(1.0 + 2.0 * content),
        }
    }
}

/// Returns the type of a step; `None` for null.
fn kind(step: &Value) -> Result<Option<&str>, String> {
    match (step, &step["type"]) {
        (Value::Null, _) => Ok(None),
        (_, Value::String(kind)) => Ok(Some(kind)),
        _ => Err("a step without its type".into()),
    }
}

fn unknown(what: &str, kind: &str) -> String {
    format!("a {what} of the type {:?}, which is not known", plimsoll_base::shown(kind))
}

fn length(text: &Value) -> f64 {
    text.as_str().map_or(0.0, |text| text.len() as f64)
}

/// Returns the length of a pattern that is a text; `None` for a regular expression.
fn pattern(pattern: &Value) -> Result<Option<f64>, String> {
    if let Some(text) = pattern.get("String") {
        return Ok(Some(length(text)));
    }
    match pattern.get("Regex").and_then(Value::as_str) {
        Some(regex) if regex.len() > PATTERN_BYTES_MAX => {
            Err(format!("a regular expression of {} bytes, the limit is {PATTERN_BYTES_MAX}", regex.len()))
        }
        _ => Ok(None),
    }
}

/// Returns how much longer a SentencePiece table can make a text: its longest replacement, for one byte.
///
/// A table is the byte length of its search tree, the tree, then the replacements, each with a zero byte after it. The
/// library allocates that length, so it is compared with the table here.
fn precompiled_growth(step: &Value) -> Result<f64, String> {
    let table = BASE64
        .decode(step["precompiled_charsmap"].as_str().unwrap_or_default())
        .map_err(|err| format!("a table of normalization that is not base64: {err}"))?;
    let sizes = table.split_first_chunk::<4>().map(|(size, rest)| (u32::from_le_bytes(*size) as usize, rest));
    let Some((tree_bytes, rest)) = sizes.filter(|(tree_bytes, rest)| *tree_bytes <= rest.len()) else {
        return Err(format!("a table of normalization of {} bytes that announces more", table.len()));
    };
    let longest = rest[tree_bytes..].split(|&byte| byte == 0).map(<[u8]>::len).max();
    Ok(longest.unwrap_or(0) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn replaced(pattern: Value, content: &str) -> Value {
        json!({ "type": "Replace", "pattern": pattern, "content": content })
    }

    #[test]
    fn chains_in_use_are_accepted_and_doubling_ones_are_not() {
        let space = json!({ "String": " " });
        let runs = json!({ "Regex": " {2,}" });
        let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "use_regex": false });
        let split = json!({ "type": "Split", "pattern": { "Regex": "\\s+" }, "behavior": "Isolated", "invert": false });
        for (normalizer, pre_tokenizer, factor) in [
            (Value::Null, Value::Null, 1.0),
            (
                json!({ "type": "NFC" }),
                json!({ "type": "Sequence", "pretokenizers": [split, byte_level] }),
                6.0,
            ),
            (
                json!({ "type": "Sequence", "normalizers": [
                    { "type": "Prepend", "prepend": "▁" }, replaced(space.clone(), "▁")] }),
                Value::Null,
                12.0,
            ),
            (replaced(json!({ "String": "``" }), "\""), Value::Null, 1.0),
            (
                json!({ "type": "Sequence", "normalizers": [{ "type": "NFKC" }, replaced(runs, "▁")] }),
                json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always" }),
                11.0 * 7.0 * 6.0,
            ),
        ] {
            assert_eq!(encoded(&normalizer, &pre_tokenizer), Ok(factor), "{normalizer} {pre_tokenizer}");
        }
        let doubling = vec![replaced(json!({ "String": "1" }), "11"); 40];
        let doubling = json!({ "type": "Sequence", "normalizers": doubling });
        let what = encoded(&doubling, &Value::Null).unwrap_err();
        assert_eq!(
            what,
            "its normalizer and pre-tokenizer can make a text 1099511627776 times as long, the limit is 4096"
        );
        let nested = json!({ "type": "Sequence", "normalizers": [doubling, { "type": "NFC" }] });
        for (normalizer, pre_tokenizer) in [
            (nested, Value::Null),
            (replaced(json!({ "String": "" }), &"x".repeat(3000)), Value::Null),
            (replaced(json!({ "Regex": "x*" }), &"x".repeat(3000)), Value::Null),
            (json!({ "type": "Prepend", "prepend": "x".repeat(5000) }), Value::Null),
            (Value::Null, json!({ "type": "Sequence", "pretokenizers": vec![byte_level.clone(); 13] })),
            (Value::Null, json!({ "type": "Sequence", "pretokenizers": vec![split.clone(); 200] })),
            (json!({ "normalizers": [] }), Value::Null),
            (json!({ "type": "Unheard" }), Value::Null),
            (replaced(json!({ "Regex": "x".repeat(5000) }), ""), Value::Null),
        ] {
            encoded(&normalizer, &pre_tokenizer).unwrap_err();
        }
    }

    #[test]
    fn decoders_are_measured_too() {
        let sentence_piece = json!({ "type": "Sequence", "decoders": [
            replaced(json!({ "String": "▁" }), " "), { "type": "ByteFallback" }, { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 }] });
        check_decoder(&sentence_piece).unwrap();
        check_decoder(&json!({ "type": "ByteLevel" })).unwrap();
        let doubling = vec![replaced(json!({ "String": "1" }), "11"); 5];
        check_decoder(&json!({ "type": "Sequence", "decoders": doubling })).unwrap_err();
    }

    #[test]
    fn a_table_of_normalization_may_not_announce_more_than_it_has() {
        let growth = |table: &str| precompiled_growth(&json!({ "precompiled_charsmap": table }));
        // Four bytes of tree, then `ab`, zero, `abcde`, zero.
        assert_eq!(growth("BAAAAAAAAABhYgBhYmNkZQA="), Ok(5.0));
        assert!(growth("/////wAAAABhYgA=").unwrap_err().contains("announces more"));
        assert!(growth("").is_err());
    }
}
