//! A run's tokenizer, from `tokenizer.json`, from a GGUF file's tables, or of plain bytes. Hugging Face's library
//! encodes; a table decodes byte-level vocabularies without allocating. Templates write special tokens; before a text
//! of no template comes what the tokenizer puts there.

pub(crate) mod beginning;
mod build;
mod expansion;
pub(crate) mod file;
mod small_json;

use crate::gguf::{read, rules};
use crate::growth::grown_bytes_max;
use crate::guard::{guarded, on_a_stack};
use file::File;
use plimsoll_base::{Error, Result};
use plimsoll_files::TokenizerFiles;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;
use tokenizers::{Encoding, OffsetReferential, OffsetType, PreTokenizer};

/// Sampled tokens that are looked at to encode what follows them: more than any merge of characters reaches.
const CONTEXT_TOKENS: usize = 8;
/// Longest text, equal to the longest line of data. The library takes about 200 bytes for each of its bytes.
const INPUT_BYTES_MAX: usize = 16 << 20;
/// Most bytes of added tokens after normalization, which are kept.
const ADDED_BYTES_MAX: f64 = (32 << 20) as f64;
/// Characters of each text encoded when a tokenizer is opened, and the longest time for all of them. Tokenizers in use
/// take a millisecond; a regular expression may take minutes.
const PROBE_CHARS: usize = 2000;
const PROBE_TIME_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// The bytes of each id, if decoding is concatenation.
    pub(crate) table: Option<TokenBytes>,
    /// The bytes of each id within a text, where decoding also changes the text's first piece.
    pieces: Option<TokenBytes>,
    special: Vec<bool>,
    /// Special tokens that decoding keeps, in order: the marks of a format.
    kept: Vec<u32>,
    /// Ids that the tokenizer puts before a text.
    beginning: Vec<u32>,
    /// True if a space is put before the first piece of a text.
    has_first_piece: bool,
    /// Largest factor by which its steps may lengthen a text.
    expansion: f64,
    /// True if a character outside the vocabulary would be lost silently.
    loses_unknown: bool,
    vocab_size: u32,
}

impl Tokenizer {
    /// Builds the tokenizer of a model whose embedding has `vocab` rows.
    ///
    /// Errors: `tokenizer-missing`, `tokenizer-invalid`, `tokenizer-unsupported`, `tokenizer-model-mismatch`.
    pub fn from_files(files: &TokenizerFiles, vocab: u32) -> Result<Tokenizer> {
        let json = tokenizer_json(files)?;
        let read = on_a_stack("tokenizer", || {
            let file = File::read(&json).map_err(|what| invalid(&what))?;
            let mut tokenizer = Tokenizer::new(file, vocab)?;
            tokenizer.probe()?;
            let beginning = beginning::beginning(files, &json);
            tokenizer.beginning = beginning.iter().filter_map(|token| tokenizer.token_id(token)).collect();
            Ok(tokenizer)
        })?;
        read.unwrap_or_else(|| Err(invalid("the library cannot use it")))
    }

    fn new(file: File, vocab: u32) -> Result<Tokenizer> {
        let expansion =
            expansion::encoded(&file.normalizer, &file.pre_tokenizer).map_err(|what| invalid(&what))?;
        expansion::check_decoder(&file.decoder).map_err(|what| invalid(&what))?;
        let added: usize = file.added.iter().filter(|token| token.normalized).map(|t| t.content.len()).sum();
        if added as f64 * expansion > ADDED_BYTES_MAX {
            let times = plimsoll_base::shown_number(expansion.round());
            let what = format!("its added tokens of {added} bytes may become {times} times as long");
            return Err(invalid(&format!("{what}, the limit is {ADDED_BYTES_MAX} bytes")));
        }
        let (decoder, loses_unknown) = (file.decoder.clone(), loses_unknown(&file));
        let has_first_piece = beginning::has_first_piece(&file.normalizer, &file.pre_tokenizer);
        let inner = build::tokenizer(file).map_err(|what| invalid(&what))?;
        let ids = inner.get_vocab(true);
        if let Some((token, &id)) = ids.iter().filter(|&(_, &id)| id >= vocab).max_by_key(|&(_, &id)| id) {
            let token = plimsoll_base::shown(token);
            let message = format!("token `{token}` has id {id}, the model's embedding has {vocab} rows");
            return Err(Error::new("tokenizer-model-mismatch", message)
                .hint("the tokenizer and the weights are of different models"));
        }
        let vocab_size = ids.values().map(|id| id + 1).max().unwrap_or(0);
        let mut special = vec![false; vocab_size as usize];
        for (id, token) in inner.get_added_tokens_decoder() {
            if token.special && id < vocab_size {
                special[id as usize] = true;
            }
        }
        let table = TokenBytes::build(&inner, decoder["type"].as_str(), vocab_size);
        let pieces = match table {
            Some(_) => None,
            None => TokenBytes::of_pieces(&inner, &decoder, vocab_size),
        };
        Ok(Tokenizer {
            table,
            pieces,
            special,
            kept: Vec::new(),
            beginning: Vec::new(),
            has_first_piece,
            expansion,
            loses_unknown,
            vocab_size,
            inner,
        })
    }

    /// Keeps these special tokens in decoded text, where it has them: the marks of a format.
    pub fn keep_marks(&mut self, marks: &[&str]) {
        let ids = marks.iter().filter_map(|mark| self.token_id(mark));
        self.kept = ids.filter(|id| self.is_special(*id)).collect();
        self.kept.sort_unstable();
    }

    /// Encodes `text`. Special tokens in the text become their ids; none are added.
    ///
    /// Errors: `tokenizer-unknown-character`, `tokenizer-invalid`.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encoding(text, self.loses_unknown)?.get_ids().to_vec())
    }

    /// Encodes a text that no template wrote: what the tokenizer puts before a text, and the text.
    ///
    /// Errors: those of `encode`.
    pub fn encode_beginning(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.beginning_of(text).to_vec();
        ids.extend(self.encode(text)?);
        Ok(ids)
    }

    /// Returns the ids that the tokenizer puts before a text; none if the text has them already.
    pub fn beginning_of(&self, text: &str) -> &[u32] {
        let first = self.beginning.first().and_then(|id| self.token_text(*id));
        if first.is_some_and(|first| text.starts_with(&first)) { &[] } else { &self.beginning }
    }

    /// Encodes a text that follows sampled tokens, of which the last few are looked at: as the whole text would be
    /// encoded, from there on. Sampled tokens stay as they are: what the whole text has in one token with the last of
    /// them is encoded by itself. The space that some tokenizers put before a text is put only where they would.
    ///
    /// Errors: those of `encode`.
    pub fn encode_after(&self, sampled: &[u32], text: &str) -> Result<Vec<u32>> {
        let Some((last, _)) = sampled.split_last().filter(|_| !text.is_empty()) else {
            return self.encode(text);
        };
        let before = if !self.is_special(*last) {
            self.decode(&sampled[sampled.len().saturating_sub(CONTEXT_TOKENS)..], false)
        } else if !self.has_first_piece {
            // Nothing joins a special token.
            return self.encode(text);
        } else {
            self.token_text(*last).unwrap_or_default()
        };
        let from = before.len();
        let Ok(whole) = self.encode_with_bytes(&format!("{before}{text}")) else { return self.encode(text) };
        let Some(first) = whole.iter().position(|(_, bytes)| bytes.end.max(bytes.start + 1) > from) else {
            return self.encode(text);
        };
        let ids = |tokens: &[(u32, Range<usize>)]| tokens.iter().map(|(id, _)| *id).collect::<Vec<u32>>();
        if whole[first].1.start >= from {
            return Ok(ids(&whole[first..]));
        }
        // Bytes of one character may be tokens over the same range.
        let end = whole[first].1.end;
        let rest = whole.iter().position(|(_, bytes)| bytes.start >= end).unwrap_or(whole.len());
        let Some(head) = text.get(..end - from) else { return self.encode(text) };
        let mut found = self.encode_within(head)?;
        found.extend(ids(&whole[rest..]));
        Ok(found)
    }

    /// Encodes a piece of a text without a space of its own: after the first of some signs that it does not join.
    fn encode_within(&self, piece: &str) -> Result<Vec<u32>> {
        for sign in ["\n", ".", "0", "a", "="] {
            let Ok(whole) = self.encode_with_bytes(&format!("{sign}{piece}")) else { continue };
            let first = whole.iter().position(|(_, bytes)| bytes.end > sign.len());
            if let Some(first) = first.filter(|&first| whole[first].1.start == sign.len()) {
                return Ok(whole[first..].iter().map(|(id, _)| *id).collect());
            }
        }
        self.encode(piece)
    }

    /// Returns true if a space is put before the first piece of a text, which decoding takes away again.
    pub fn has_first_piece(&self) -> bool {
        self.has_first_piece
    }

    /// Encodes `text` as `encode` does. Returns each token with the byte range it came from, which is empty for a
    /// token of space that the tokenizer's file trims.
    ///
    /// Errors: `tokenizer-unknown-character`, `tokenizer-invalid`.
    pub fn encode_with_bytes(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>> {
        let encoding = self.encoding(text, true)?;
        let bytes = encoding.get_offsets().iter().map(|&(from, to)| from..to);
        Ok(encoding.get_ids().iter().copied().zip(bytes).collect())
    }

    /// Encodes `text`. Without `offsets` the library skips them, which takes less time.
    fn encoding(&self, text: &str, offsets: bool) -> Result<Encoding> {
        if text.len() > INPUT_BYTES_MAX {
            return Err(invalid(&format!("a text of {} bytes, the limit is {INPUT_BYTES_MAX}", text.len())));
        }
        self.check_expansion(text)?;
        let encoded = guarded(|| {
            if offsets { self.inner.encode(text, false) } else { self.inner.encode_fast(text, false) }
        });
        let encoded = encoded.ok_or_else(|| invalid("the library cannot use it"))?;
        let encoding = encoded.map_err(|e| invalid(&e.to_string()))?;
        if !self.loses_unknown {
            return Ok(encoding);
        }
        let (mut end, mut whole) = (0, true);
        for &(from, to) in encoding.get_offsets() {
            whole &= from == end;
            end = to;
        }
        if !whole || end != text.len() {
            return Err(self.unknown_character(text));
        }
        Ok(encoding)
    }

    /// Encodes a few texts, so a tokenizer that fails or takes minutes is refused when it is opened.
    fn probe(&self) -> Result<()> {
        // The thread's processor time: wall time would be longer on a busy machine.
        let computed = || {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        let begun = computed();
        for piece in ["a", "1", " ", "aB 1\n.é"] {
            let text: String = piece.chars().cycle().take(PROBE_CHARS).collect();
            // An error is about this text, such as a character that the vocabulary lacks.
            drop(self.inner.encode_fast(text, false));
            let took = computed() - begun;
            if took > PROBE_TIME_MAX {
                let (took, limit) = (took.as_secs_f64(), PROBE_TIME_MAX.as_secs());
                return Err(invalid(&format!(
                    "{PROBE_CHARS} characters take {took:.1} s, the limit is {limit} s"
                )));
            }
        }
        Ok(())
    }

    /// Refuses a text that the normalizer and pre-tokenizer would make too long, measured in pieces if they could.
    fn check_expansion(&self, text: &str) -> Result<()> {
        let limit = grown_bytes_max(text.len());
        if text.len() as f64 * self.expansion <= limit as f64 {
            return Ok(());
        }
        let piece_bytes = (grown_bytes_max(0) as f64 / self.expansion).max(4.0) as usize;
        let (mut rest, mut bytes) = (text, 0);
        while !rest.is_empty() && bytes <= limit {
            let (piece, after) = rest.split_at(rest.ceil_char_boundary(piece_bytes));
            let expanded = guarded(|| self.expanded_bytes(piece));
            bytes +=
                expanded.ok_or_else(|| invalid("the library cannot use it"))?.map_err(|e| invalid(&e))?;
            rest = after;
        }
        if bytes > limit {
            let what = format!("it makes a text of {} bytes {bytes} bytes long or longer", text.len());
            return Err(invalid(&format!("{what}, the limit is {limit}")));
        }
        Ok(())
    }

    /// Returns the length of a text after normalizer and pre-tokenizer.
    fn expanded_bytes(&self, text: &str) -> std::result::Result<usize, String> {
        // Like the library: cuts out added tokens, and normalizes the text between them part by part.
        let added = self.inner.get_added_vocabulary();
        let mut pieces = added.extract_and_normalize(self.inner.get_normalizer(), text);
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(|e| e.to_string())?;
        }
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        Ok(splits.into_iter().map(|(piece, ..)| piece.len()).sum())
    }

    /// Returns a token whose id differs in `other` or is absent there; `None` if both agree.
    pub fn differs_from(&self, other: &Tokenizer) -> Option<String> {
        let (ours, theirs) = (self.inner.get_vocab(true), other.inner.get_vocab(true));
        let differs = |a: &HashMap<String, u32>, b: &HashMap<String, u32>| {
            a.iter().filter(|(token, id)| b.get(*token) != Some(*id)).map(|(token, _)| token.clone()).min()
        };
        differs(&ours, &theirs).or_else(|| differs(&theirs, &ours))
    }

    /// Names the first character in no token. The library's offsets do not show it: they leave out dropped characters.
    fn unknown_character(&self, text: &str) -> Error {
        let added = self.inner.get_added_tokens_decoder();
        let (mut rest, mut position) = (text, 0);
        while let Some(c) = rest.chars().next() {
            let spelled = added.values().map(|t| t.content.as_str()).find(|t| rest.starts_with(t));
            let known = spelled.or_else(|| {
                let one = &rest[..c.len_utf8()];
                self.inner.token_to_id(one).map(|_| one)
            });
            let Some(known) = known.filter(|k| !k.is_empty()) else { break };
            position += known.chars().count();
            rest = &rest[known.len()..];
        }
        let character = rest.chars().next().unwrap_or('\u{fffd}');
        let shown: String = text.chars().take(60).collect();
        Error::new(
            "tokenizer-unknown-character",
            format!("character {character:?} at position {position} of {shown:?} is not in the vocabulary"),
        )
        .hint("this model knows only the characters of its task; use another model for free text")
    }

    /// Decodes `ids`. Invalid UTF-8 becomes U+FFFD; ids without a token give nothing. `skip_special` leaves special
    /// tokens out that are no kept marks.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        match &self.table {
            Some(table) => {
                let kept = ids.iter().filter(|&&id| !(skip_special && self.is_skipped(id)));
                let bytes: Vec<u8> = kept.flat_map(|&id| table.bytes_of(id)).copied().collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            // The library's decoders never fail on ids that it encoded.
            None => {
                let has_kept = skip_special && !self.kept.is_empty();
                let ids: Cow<'_, [u32]> = if has_kept {
                    ids.iter().copied().filter(|id| !self.is_skipped(*id)).collect()
                } else {
                    Cow::Borrowed(ids)
                };
                let decoded = guarded(|| self.inner.decode(&ids, skip_special && !has_kept));
                decoded.and_then(|text| text.ok()).unwrap_or_default()
            }
        }
    }

    /// Returns the bytes of one token within a text: part of a character, or with the space before a word.
    pub fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        match self.table.as_ref().or(self.pieces.as_ref()) {
            Some(table) => Cow::Borrowed(table.bytes_of(id)),
            None => Cow::Owned(self.decode(&[id], false).into_bytes()),
        }
    }

    /// Returns true if a text is the bytes of its tokens, one after the other, but for a space at its beginning.
    pub fn has_token_bytes(&self) -> bool {
        self.table.is_some() || self.pieces.is_some()
    }

    /// Returns one more than the largest id.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    pub fn token_text(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// Returns true for tokens that `decode` leaves out with `skip_special`.
    pub(crate) fn is_skipped(&self, id: u32) -> bool {
        self.is_special(id) && self.kept.binary_search(&id).is_err()
    }
}

/// Returns the `tokenizer.json` of the files, built if they have none.
pub(crate) fn tokenizer_json(files: &TokenizerFiles) -> Result<Cow<'_, [u8]>> {
    if let Some(json) = &files.tokenizer_json {
        return Ok(Cow::Borrowed(json));
    }
    let built = match &files.gguf {
        Some(tables) => read::tokenizer_json(tables)?,
        None if files.bytes => byte_tokenizer_json(files.has_images),
        None => {
            return Err(Error::new("tokenizer-missing", "the model has no tokenizer.json")
                .hint("fetch the model again; a tokenizer.model alone is converted by transformers' save_pretrained"));
        }
    };
    Ok(Cow::Owned(serde_json::to_vec(&built).expect("a JSON value is written")))
}

/// Builds 256 tokens of one byte each, in order, then `<bos>`, `<eos>` and `<pad>`, and those of images.
fn byte_tokenizer_json(has_images: bool) -> Value {
    let mut tokens: Vec<String> = (0..=255).map(|b| rules::char_of_byte(b).to_string()).collect();
    tokens.extend(["<bos>", "<eos>", "<pad>"].map(str::to_string));
    if has_images {
        tokens.extend(["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"].map(str::to_string));
    }
    let special: Vec<u32> = (256..tokens.len() as u32).collect();
    read::byte_level_json(&tokens, &[], &special, Value::Null)
}

/// The concatenated bytes of all tokens.
#[derive(Debug)]
pub(crate) struct TokenBytes {
    bytes: Vec<u8>,
    /// Token `id` is `bytes[starts[id]..starts[id + 1]]`.
    starts: Vec<u32>,
}

impl TokenBytes {
    /// Returns the bytes of a token; none for an unknown id.
    pub(crate) fn bytes_of(&self, id: u32) -> &[u8] {
        match self.starts.get(id as usize..).and_then(|s| s.get(..2)) {
            Some(span) => &self.bytes[span[0] as usize..span[1] as usize],
            None => &[],
        }
    }

    /// Builds a table of what tokens are within a text, for decoders of SentencePiece: `▁` is a space, `<0xE2>` is a
    /// byte.
    fn of_pieces(inner: &tokenizers::Tokenizer, decoder: &Value, vocab_size: u32) -> Option<TokenBytes> {
        let steps = match decoder["decoders"].as_array() {
            Some(steps) => steps.as_slice(),
            None => std::slice::from_ref(decoder),
        };
        let is = |step: &Value, kind: &str| step["type"] == kind;
        let is_space =
            |step: &Value| is(step, "Replace") && step["pattern"]["String"] == "▁" && step["content"] == " ";
        let is_known = |step: &Value| {
            is_space(step) || ["Metaspace", "ByteFallback", "Fuse", "Strip"].iter().any(|kind| is(step, kind))
        };
        if !steps.iter().all(is_known) || !steps.iter().any(|step| is_space(step) || is(step, "Metaspace")) {
            return None;
        }
        let has_bytes = steps.iter().any(|step| is(step, "ByteFallback"));
        let mut table = TokenBytes { bytes: Vec::new(), starts: vec![0] };
        for id in 0..vocab_size {
            let token = inner.id_to_token(id).unwrap_or_default();
            let hex = token
                .strip_prefix("<0x")
                .and_then(|rest| rest.strip_suffix('>'))
                .filter(|hex| hex.len() == 2);
            match hex.filter(|_| has_bytes).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(byte) => table.bytes.push(byte),
                None => table.bytes.extend(token.replace('▁', " ").as_bytes()),
            }
            table.starts.push(u32::try_from(table.bytes.len()).ok()?);
        }
        Some(table)
    }

    /// Builds a table if the decoder only concatenates tokens.
    fn build(inner: &tokenizers::Tokenizer, decoder: Option<&str>, vocab_size: u32) -> Option<TokenBytes> {
        let byte_level = match decoder? {
            "ByteLevel" => true,
            "Fuse" => false,
            _ => return None,
        };
        let alphabet: HashMap<char, u8> = (0..=255).map(|b| (rules::char_of_byte(b), b)).collect();
        let mut table = TokenBytes { bytes: Vec::new(), starts: vec![0] };
        for id in 0..vocab_size {
            let token = inner.id_to_token(id).unwrap_or_default();
            let mapped: Option<Vec<u8>> = token.chars().map(|c| alphabet.get(&c).copied()).collect();
            match mapped.filter(|_| byte_level) {
                Some(bytes) => table.bytes.extend(bytes),
                // As in the library, a token outside the alphabet, such as an added one, is its own text.
                None => table.bytes.extend(token.as_bytes()),
            }
            table.starts.push(u32::try_from(table.bytes.len()).ok()?);
        }
        Some(table)
    }
}

/// Returns true for a plain BPE without an unknown token, which drops unknown characters.
fn loses_unknown(file: &File) -> bool {
    let option = |name: &str| file.model.options.get(name).unwrap_or(&Value::Null);
    file.pre_tokenizer.is_null()
        && file.normalizer.is_null()
        && option("type") == "BPE"
        && option("unk_token").is_null()
        && option("byte_fallback") != true
}

fn invalid(why: &str) -> Error {
    Error::new("tokenizer-invalid", format!("tokenizer: {why}"))
        .hint("fetch the model's tokenizer.json again")
}
