//! Reads a `tokenizer.json` in one pass, with limits: vocabulary and merges go straight into the model's maps, so
//! nothing holds the file twice, and every count is checked while it grows.

use super::small_json::Budget;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;
use tokenizers::models::bpe::Vocab;

/// Longest file; the largest in use have 33 MB.
const FILE_BYTES_MAX: usize = 64 << 20;
/// Most tokens of a vocabulary; the largest of a decoder has 262,144.
pub(crate) const TOKENS_MAX: usize = 1 << 19;
pub(crate) const MERGES_MAX: usize = 1 << 20;
/// Most tokens that are matched before the model.
const ADDED_MAX: usize = 1 << 16;
/// Most JSON values of an added token, and most bytes of all.
const ADDED_VALUES_MAX: usize = 32;
const ADDED_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a token. The library would nest lists as deep as a token is long.
const TOKEN_BYTES_MAX: usize = 1 << 12;
/// Bytes of all tokens; a vocabulary of 262,144 has 2 MB.
pub(crate) const VOCABULARY_BYTES_MAX: usize = 16 << 20;
/// Most bytes of a Unigram model's tokens; its search tree takes about 200 for each.
const UNIGRAM_BYTES_MAX: usize = 1 << 20;
/// Most JSON values and bytes of the rest. A normalization table (`precompiled_charsmap`) has 320 KB.
const VALUES_MAX: usize = 20_000;
const VALUE_BYTES_MAX: usize = 2 << 20;

/// The parts of a tokenizer.
#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) normalizer: Value,
    pub(crate) pre_tokenizer: Value,
    pub(crate) decoder: Value,
    pub(crate) added: Vec<tokenizers::AddedToken>,
    pub(crate) model: Model,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) vocabulary: Vocabulary,
    pub(crate) merges: Option<Vec<(String, String)>>,
    /// Everything else: its type and options.
    pub(crate) options: Map<String, Value>,
}

#[derive(Debug, Default)]
pub(crate) enum Vocabulary {
    #[default]
    Absent,
    /// Tokens with their ids.
    Ids(Vocab),
    /// Tokens of a Unigram model with their scores, by id.
    Scores(Vec<(String, f64)>),
}

impl File {
    /// Reads the bytes of a `tokenizer.json`.
    pub(crate) fn read(json: &[u8]) -> Result<File, String> {
        if json.len() > FILE_BYTES_MAX {
            return Err(format!("{} bytes, the limit is {FILE_BYTES_MAX}", json.len()));
        }
        let budget = Budget::new(VALUES_MAX, VALUE_BYTES_MAX);
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let file = deserializer.deserialize_map(FileVisitor(&budget)).map_err(|e| e.to_string())?;
        deserializer.end().map_err(|e| e.to_string())?;
        Ok(file)
    }
}

/// Reads the post-processor, which puts tokens around a text; `None` if it is larger than any in use.
pub(crate) fn post_processor(json: &[u8]) -> Option<Value> {
    let budget = Budget::new(VALUES_MAX, VALUE_BYTES_MAX);
    serde_json::Deserializer::from_slice(json).deserialize_map(PostVisitor(&budget)).ok()
}

struct PostVisitor<'b>(&'b Budget);

impl<'de> Visitor<'de> for PostVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a tokenizer")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut found = Value::Null;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "post_processor" => found = map.next_value_seed(self.0)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }
}

struct FileVisitor<'b>(&'b Budget);

impl<'de> Visitor<'de> for FileVisitor<'_> {
    type Value = File;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a tokenizer")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<File, A::Error> {
        let mut file = File::default();
        let mut has_model = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "version" => {
                    let version = map.next_value_seed(self.0)?;
                    if version != "1.0" {
                        return Err(A::Error::custom("a version that is not \"1.0\""));
                    }
                }
                "normalizer" => file.normalizer = map.next_value_seed(self.0)?,
                "pre_tokenizer" => file.pre_tokenizer = map.next_value_seed(self.0)?,
                "decoder" => file.decoder = map.next_value_seed(self.0)?,
                "added_tokens" => file.added = map.next_value_seed(AddedTokens)?,
                "model" => {
                    file.model = map.next_value_seed(ModelSeed(self.0))?;
                    has_model = true;
                }
                // Truncation and padding are not used; of a post-processor `post_processor` reads what begins a text.
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if has_model { Ok(file) } else { Err(A::Error::missing_field("model")) }
    }
}

/// Bytes left for tokens.
struct Left(usize);

impl Left {
    fn take<E: Error>(&mut self, token: &str) -> Result<(), E> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(E::custom(format!(
                "a token of {} bytes, the limit is {TOKEN_BYTES_MAX}",
                token.len()
            )));
        }
        match self.0.checked_sub(token.len()) {
            Some(left) => {
                self.0 = left;
                Ok(())
            }
            None => Err(E::custom("more bytes of tokens than any vocabulary has")),
        }
    }
}

fn too_many<E: Error>(limit: usize, what: &str) -> E {
    E::custom(format!("more than {limit} {what}"))
}

struct AddedTokens;

impl<'de> DeserializeSeed<'de> for AddedTokens {
    type Value = Vec<tokenizers::AddedToken>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for AddedTokens {
    type Value = Vec<tokenizers::AddedToken>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of added tokens")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let (mut tokens, mut left) = (Vec::new(), Left(ADDED_BYTES_MAX));
        // Its id follows from its text, so the list cannot contradict the vocabulary.
        while let Some(entry) = seq.next_element_seed(&Budget::new(ADDED_VALUES_MAX, 2 * TOKEN_BYTES_MAX))? {
            let token: tokenizers::AddedToken = serde_json::from_value(entry).map_err(A::Error::custom)?;
            left.take(&token.content)?;
            if tokens.len() == ADDED_MAX {
                return Err(too_many(ADDED_MAX, "added tokens"));
            }
            tokens.push(token);
        }
        Ok(tokens)
    }
}

struct ModelSeed<'b>(&'b Budget);

impl<'de> DeserializeSeed<'de> for ModelSeed<'_> {
    type Value = Model;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Model, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ModelSeed<'_> {
    type Value = Model;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a model with a vocabulary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Model, A::Error> {
        let mut model = Model::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "vocab" => model.vocabulary = map.next_value_seed(VocabularySeed)?,
                "merges" => model.merges = Some(map.next_value_seed(MergesSeed)?),
                _ => drop(model.options.insert(key, map.next_value_seed(self.0)?)),
            }
        }
        Ok(model)
    }
}

struct VocabularySeed;

impl<'de> DeserializeSeed<'de> for VocabularySeed {
    type Value = Vocabulary;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vocabulary, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for VocabularySeed {
    type Value = Vocabulary;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("tokens with ids, or with scores")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
        let (mut ids, mut left) = (Vocab::default(), Left(VOCABULARY_BYTES_MAX));
        while let Some((token, id)) = map.next_entry::<String, u32>()? {
            left.take(&token)?;
            if ids.len() == TOKENS_MAX {
                return Err(too_many(TOKENS_MAX, "tokens"));
            }
            ids.insert(token, id);
        }
        Ok(Vocabulary::Ids(ids))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vocabulary, A::Error> {
        let (mut scores, mut left) = (Vec::<(String, f64)>::new(), Left(UNIGRAM_BYTES_MAX));
        while let Some((token, score)) = seq.next_element::<(String, f64)>()? {
            left.take(&token)?;
            if scores.len() == TOKENS_MAX {
                return Err(too_many(TOKENS_MAX, "tokens"));
            }
            scores.push((token, score));
        }
        Ok(Vocabulary::Scores(scores))
    }
}

struct MergesSeed;

impl<'de> DeserializeSeed<'de> for MergesSeed {
    type Value = Vec<(String, String)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for MergesSeed {
    type Value = Vec<(String, String)>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of merges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let (mut merges, mut left) = (Vec::new(), Left(2 * VOCABULARY_BYTES_MAX));
        while let Some(merge) = seq.next_element_seed(MergeSeed)? {
            if merges.len() == MERGES_MAX {
                return Err(too_many(MERGES_MAX, "merges"));
            }
            for token in merge.iter().flat_map(|(a, b)| [a, b]) {
                left.take(token)?;
            }
            merges.extend(merge);
        }
        Ok(merges)
    }
}

/// One merge: a pair of tokens, or `left right`. A version line is not one.
struct MergeSeed;

impl<'de> DeserializeSeed<'de> for MergeSeed {
    type Value = Option<(String, String)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MergeSeed {
    type Value = Option<(String, String)>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a pair of tokens")
    }

    fn visit_str<E: Error>(self, line: &str) -> Result<Self::Value, E> {
        match line.split_once(' ').filter(|(_, right)| !right.contains(' ')) {
            _ if line.starts_with("#version") => Ok(None),
            Some((left, right)) => Ok(Some((left.into(), right.into()))),
            None => Err(E::custom(format!("the merge {:?} is no pair", plimsoll_base::shown(line)))),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        match (seq.next_element()?, seq.next_element()?, seq.next_element::<IgnoredAny>()?) {
            (Some(left), Some(right), None) => Ok(Some((left, right))),
            _ => Err(A::Error::custom("a merge is no pair")),
        }
    }
}
