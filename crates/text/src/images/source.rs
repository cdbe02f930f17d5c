//! One image of a row: the name of a file, or its bytes as JSON can hold them.

use super::place::ImageFolder;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use plimsoll_base::{Error, Result, shown};
use serde_json::Value;
use std::borrow::Cow;

/// A longer text without a dot in the alphabet of base64 is an image, not the name of a file, as in ms-swift.
const NAME_CHARS_MAX: usize = 200;

/// Where an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageSource {
    /// A file, as the row names it.
    Path(String),
    /// The file's content.
    Bytes(Vec<u8>),
}

impl ImageSource {
    /// Returns the bytes of content that the row itself holds: none for the name of a file.
    pub fn held_bytes(&self) -> u64 {
        match self {
            ImageSource::Path(_) => 0,
            ImageSource::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Returns the content of the image's file.
    ///
    /// Errors: `image-missing`, `image-outside-folder`, `image-too-large`.
    pub fn read(&self, folder: &ImageFolder) -> Result<Cow<'_, [u8]>> {
        match self {
            ImageSource::Path(name) => folder.read(name).map(Cow::Owned),
            ImageSource::Bytes(bytes) => Ok(Cow::Borrowed(bytes)),
        }
    }
}

/// Returns the bytes of an image that a client sends in its request: a data URI in base64. Nothing else is read.
///
/// Errors: `image-url` for an address, of a file too; `image-source-invalid`.
pub fn sent_image(url: &str) -> Result<Vec<u8>> {
    if let Some(rest) = url.strip_prefix("data:") {
        return bytes_of_data(rest);
    }
    let hint = "send the image itself: data:image/png;base64, and its bytes";
    if url.contains("://") || url.starts_with("file:") {
        let address = plimsoll_base::shown_address(url);
        return Err(Error::new("image-url", format!("`{}`: nothing is downloaded or read", shown(&address)))
            .hint(hint));
    }
    Err(Error::new("image-source-invalid", "it is no data URI").hint(hint))
}

/// Returns bytes of a Parquet file as a row has them.
pub(crate) fn data_uri(bytes: &[u8]) -> Value {
    Value::String(format!("data:;base64,{}", STANDARD.encode(bytes)))
}

/// Reads the value of an images' column: none, one or a list.
pub(crate) fn sources(value: Value) -> Vec<Result<ImageSource>> {
    match value {
        Value::Null => Vec::new(),
        Value::Array(list) => list.into_iter().map(source).collect(),
        one => vec![source(one)],
    }
}

/// Reads what a part of a message names: a text, or an object such as OpenAI's `{"url": ...}`.
pub(super) fn source(value: Value) -> Result<ImageSource> {
    match value {
        Value::String(text) => of_text(text),
        Value::Object(mut fields) => {
            // `datasets` writes both; `path` is a name of the machine where the bytes were read.
            let names = ["bytes", "path", "image", "url", "base64"];
            let named = names.iter().find_map(|name| {
                let value = fields.shift_remove(*name).filter(|value| !value.is_null())?;
                Some((*name, value))
            });
            match named {
                Some(("bytes" | "base64", Value::String(text))) if !text.starts_with("data:") => {
                    of_base64(&text)
                }
                Some((_, Value::String(text))) => of_text(text),
                Some((name, value)) => Err(no_image(&format!("`{name}` is {}", shown(&value.to_string())))),
                None => Err(no_image("an object without `bytes`, `path`, `image` or `url`")),
            }
        }
        other => Err(no_image(&shown(&other.to_string()))),
    }
}

fn of_text(text: String) -> Result<ImageSource> {
    if let Some(rest) = text.strip_prefix("data:") {
        return bytes_of_data(rest).map(ImageSource::Bytes);
    }
    if let Some(path) = text.strip_prefix("file://") {
        return Ok(ImageSource::Path(path.to_string()));
    }
    if text.contains("://") {
        return Err(Error::new("image-url", format!("`{}`", shown(&plimsoll_base::shown_address(&text))))
            .hint("download it, and write the name of the file: nothing is downloaded while a run reads its data"));
    }
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    if text.len() > NAME_CHARS_MAX && text.bytes().all(is_base64) {
        return of_base64(&text);
    }
    if text.is_empty() { Err(no_image("an empty text")) } else { Ok(ImageSource::Path(text)) }
}

/// Reads a data URI after its `data:`.
fn bytes_of_data(rest: &str) -> Result<Vec<u8>> {
    match rest.split_once(',') {
        Some((kind, words)) if kind.ends_with(";base64") => bytes_of_base64(words),
        _ => Err(no_image("a data URI that is not in base64")),
    }
}

fn of_base64(text: &str) -> Result<ImageSource> {
    bytes_of_base64(text).map(ImageSource::Bytes)
}

fn bytes_of_base64(text: &str) -> Result<Vec<u8>> {
    let text = text.trim();
    let read = STANDARD.decode(text).or_else(|_| STANDARD_NO_PAD.decode(text));
    read.map_err(|err| no_image(&format!("base64 that is wrong: {err}")))
}

fn no_image(what: &str) -> Error {
    Error::new("image-source-invalid", what)
        .hint("an image is the name of a file, a data URI in base64, or {\"bytes\": ..., \"path\": ...} as datasets has it")
}
