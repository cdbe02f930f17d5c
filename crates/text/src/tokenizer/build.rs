//! Builds the library's tokenizer from a file's parts. Refuses options with unbounded work or random tokens.

use super::file::{File, Model, Vocabulary};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{DecoderWrapper, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

/// Longest mark within or after a word, which is copied for every character.
const MARK_BYTES_MAX: usize = 64;
/// Longest word that WordPiece looks up; its work grows quadratically.
const WORD_CHARS_MAX: u64 = 1000;
/// Longest message of the library, which quotes whole tokens.
const MESSAGE_CHARS_MAX: usize = 300;

/// Returns the tokenizer, without post-processor, padding and truncation.
pub(super) fn tokenizer(file: File) -> Result<tokenizers::Tokenizer, String> {
    let mut tokenizer = tokenizers::Tokenizer::new(model(file.model)?);
    tokenizer.with_normalizer(part::<NormalizerWrapper>(file.normalizer)?).map_err(words)?;
    tokenizer.with_pre_tokenizer(part::<PreTokenizerWrapper>(file.pre_tokenizer)?);
    tokenizer.with_decoder(part::<DecoderWrapper>(file.decoder)?);
    tokenizer.add_tokens(file.added).map_err(words)?;
    Ok(tokenizer)
}

fn words(error: impl ToString) -> String {
    plimsoll_base::shown_within(&error.to_string(), MESSAGE_CHARS_MAX).into_owned()
}

fn part<T: DeserializeOwned>(value: Value) -> Result<Option<T>, String> {
    if value.is_null() { Ok(None) } else { serde_json::from_value(value).map(Some).map_err(words) }
}

fn model(model: Model) -> Result<ModelWrapper, String> {
    let options = Options(&model.options);
    // Old files do not name the type; it follows from their contents.
    let kind = options.text("type")?.unwrap_or(match (&model.vocabulary, &model.merges) {
        (Vocabulary::Scores(_), _) => "Unigram",
        (_, Some(_)) => "BPE",
        _ if model.options.contains_key("continuing_subword_prefix") => "WordPiece",
        _ => "WordLevel",
    });
    match (kind, model.vocabulary) {
        ("BPE", Vocabulary::Ids(ids)) => {
            let merges = model.merges.ok_or("a BPE model without merges")?;
            bpe(options, BPE::builder().vocab_and_merges(ids, merges)).map(ModelWrapper::BPE)
        }
        ("WordPiece", Vocabulary::Ids(ids)) => {
            let mut builder = WordPiece::builder().vocab(ids);
            if let Some(unknown) = options.text("unk_token")? {
                builder = builder.unk_token(unknown.into());
            }
            if let Some(prefix) = options.mark("continuing_subword_prefix")? {
                builder = builder.continuing_subword_prefix(prefix.into());
            }
            if let Some(chars) = options.number("max_input_chars_per_word", WORD_CHARS_MAX)? {
                builder = builder.max_input_chars_per_word(chars);
            }
            builder.build().map(ModelWrapper::WordPiece).map_err(words)
        }
        ("WordLevel", Vocabulary::Ids(ids)) => {
            let mut builder = WordLevel::builder().vocab(ids);
            if let Some(unknown) = options.text("unk_token")? {
                builder = builder.unk_token(unknown.into());
            }
            builder.build().map(ModelWrapper::WordLevel).map_err(words)
        }
        ("Unigram", Vocabulary::Scores(scores)) => {
            let unknown = options.number("unk_id", scores.len() as u64)?;
            let model = Unigram::from(scores, unknown, options.flag("byte_fallback")?);
            model.map(ModelWrapper::Unigram).map_err(words)
        }
        ("BPE" | "WordPiece" | "WordLevel" | "Unigram", _) => {
            Err(format!("a {kind} model without its vocabulary"))
        }
        (other, _) => {
            Err(format!("a model of the type {:?}, which is not known", plimsoll_base::shown(other)))
        }
    }
}

fn bpe(options: Options, mut builder: tokenizers::models::bpe::BpeBuilder) -> Result<BPE, String> {
    if options.0.get("dropout").is_some_and(|dropout| !dropout.is_null() && dropout.as_f64() != Some(0.0)) {
        return Err(format!("dropout = {}: a text would have other tokens each time", options.0["dropout"]));
    }
    if let Some(unknown) = options.text("unk_token")? {
        builder = builder.unk_token(unknown.into());
    }
    if let Some(prefix) = options.mark("continuing_subword_prefix")? {
        builder = builder.continuing_subword_prefix(prefix.into());
    }
    if let Some(suffix) = options.mark("end_of_word_suffix")? {
        builder = builder.end_of_word_suffix(suffix.into());
    }
    builder = builder.fuse_unk(options.flag("fuse_unk")?).byte_fallback(options.flag("byte_fallback")?);
    builder.ignore_merges(options.flag("ignore_merges")?).build().map_err(words)
}

/// A model's options, by their types.
#[derive(Clone, Copy)]
struct Options<'a>(&'a Map<String, Value>);

impl<'a> Options<'a> {
    fn wrong<T>(self, name: &str, expected: &str) -> Result<T, String> {
        let found = self.0.get(name).map_or_else(String::new, Value::to_string);
        Err(format!("`{name}` of the model is {}, expected {expected}", plimsoll_base::shown(&found)))
    }

    fn text(self, name: &str) -> Result<Option<&'a str>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => self.wrong(name, "a text"),
        }
    }

    fn mark(self, name: &str) -> Result<Option<&'a str>, String> {
        match self.text(name)? {
            Some(mark) if mark.len() > MARK_BYTES_MAX => {
                self.wrong(name, &format!("a text of at most {MARK_BYTES_MAX} bytes"))
            }
            mark => Ok(mark),
        }
    }

    fn flag(self, name: &str) -> Result<bool, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => self.wrong(name, "true or false"),
        }
    }

    fn number(self, name: &str, most: u64) -> Result<Option<usize>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(number) => match number.as_u64().filter(|number| *number <= most) {
                Some(number) => Ok(Some(number as usize)),
                None => self.wrong(name, &format!("a number up to {most}")),
            },
        }
    }
}
