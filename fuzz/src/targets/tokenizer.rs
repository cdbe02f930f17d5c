//! `tokenizer.json`: read, then a text is encoded and decoded.

use crate::mutate::Shape;
use crate::target::{Bounds, JSON_PIECES, Subject, Target};
use plimsoll_base::Result;
use plimsoll_files::{OpenModel, TokenizerFiles};
use plimsoll_text::{Tokenizer, files_to_save};
use serde_json::{Value, json};

pub(super) const TARGET: Target = Target {
    name: "tokenizer",
    reads: "`tokenizer.json`, opened, encoding and decoding",
    shape: Shape::Json,
    bounds: Bounds::FILE,
    pieces: &JSON_PIECES,
    open: || Box::new(Tokenizers { corpus: corpus() }),
};

struct Tokenizers {
    corpus: Vec<Vec<u8>>,
}

fn corpus() -> Vec<Vec<u8>> {
    let saved = |source: &str| {
        let model = OpenModel::open(source, None, false).expect("it is in the binary");
        let files = files_to_save(&model.tokenizer).expect("it has a tokenizer");
        files.into_iter().find(|(name, _)| *name == "tokenizer.json").expect("it is saved").1
    };
    let mut corpus = vec![saved("builtin:nano"), saved("random:smollm2-135m")];
    corpus.extend([bpe(), unigram(), word_piece()].map(|value| value.to_string().into_bytes()));
    corpus
}

fn added(id: u32, content: &str, normalized: bool) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": true, "rstrip": false, "normalized": normalized,
        "special": !normalized,
    })
}

/// Every kind of step that the vocabulary of a few letters can take.
fn bpe() -> Value {
    let replace = |from: Value, to: &str| json!({ "type": "Replace", "pattern": from, "content": to });
    let split = json!({
        "type": "Split", "pattern": { "Regex": "(?i:'s)|\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+" }, "behavior": "Isolated",
        "invert": false,
    });
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true });
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(8, "<s>", false), added(9, "ab c", true)],
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "NFKD" }, { "type": "Lowercase" }, { "type": "StripAccents" },
            { "type": "Strip", "strip_left": true, "strip_right": false }, { "type": "Prepend", "prepend": "a" },
            replace(json!({ "String": "1" }), "b"), replace(json!({ "Regex": " {2,}" }), " "), { "type": "Nmt" },
            { "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
              "lowercase": true } ] },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            split, { "type": "Digits", "individual_digits": true }, { "type": "Punctuation", "behavior": "Isolated" },
            { "type": "WhitespaceSplit" }, { "type": "UnicodeScripts" }, byte_level ] },
        "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": [
            replace(json!({ "String": "a" }), " "), { "type": "ByteFallback" }, { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 } ] },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "?", "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": { "?": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "abc": 5, "<0x41>": 6, "Ġ": 7, "<s>": 8 },
            "merges": [["a", "b"], ["ab", "c"]],
        },
    })
}

fn unigram() -> Value {
    // 1024 bytes of a tree in which nothing is found, then `ab` and its end.
    let table = format!("AAQA{}AABhYgA=", "AAAA".repeat(341));
    json!({
        "version": "1.0", "added_tokens": [added(0, "<unk>", false)], "post_processor": null,
        "normalizer": { "type": "Precompiled", "precompiled_charsmap": table },
        "pre_tokenizer": { "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true },
        "decoder": { "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true },
        "model": { "type": "Unigram", "unk_id": 0, "byte_fallback": false,
                   "vocab": [["<unk>", 0.0], ["▁", -2.0], ["a", -3.5], ["ab", -2.5], ["1", -4.0]] },
    })
}

fn word_piece() -> Value {
    json!({
        "version": "1.0", "added_tokens": [], "post_processor": null, "normalizer": { "type": "ByteLevel" },
        "pre_tokenizer": { "type": "BertPreTokenizer" }, "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": { "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                   "max_input_chars_per_word": 100, "vocab": { "[UNK]": 0, "a": 1, "##b": 2, "1": 3, "##2": 4 } },
    })
}

impl Subject for Tokenizers {
    fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    fn read(&mut self, input: &[u8]) -> Result<()> {
        let files = TokenizerFiles { tokenizer_json: Some(input.to_vec()), ..TokenizerFiles::default() };
        let tokenizer = Tokenizer::from_files(&files, 1 << 16)?;
        // Some lack letters of it, which is an error of the text.
        let ids = tokenizer.encode("ab c<s> 12+3= ABC é\n\n  1").or_else(|_| tokenizer.encode("1"));
        tokenizer.decode(&ids.unwrap_or_default(), true);
        tokenizer.decode(&[0, 1, 4, 6, 7, 8, 65_535, u32::MAX], false);
        Ok(())
    }
}
