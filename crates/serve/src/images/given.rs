//! Reads an image of a chat from a part of a message, and puts numbers of vectors in a prompt.

use super::hosts::FetchBudget;
use super::{SENT_PIXELS_MAX, ServedImages};
use crate::protocol::refusal::{Refusal, Reply};
use plimsoll_base::{Error, Result, shown};
use plimsoll_images::{PLACEHOLDER, expand, header};
use plimsoll_text::sent_image;
use serde_json::Value;

/// The type of a part that is an image.
const KIND: &str = "image_url";
/// Values of `detail` with which an image is as large as the model wants it.
const DETAILS: [&str; 2] = ["auto", "high"];

/// An image as it came: its file's bytes, and the tokens that it will have.
#[derive(Debug)]
pub struct GivenImage {
    /// The part of the request, for errors.
    pub place: String,
    pub bytes: Vec<u8>,
    pub tokens: usize,
}

/// The images of a request so far, and what it may still fetch.
#[derive(Debug, Default)]
pub struct GivenImages {
    pub images: Vec<GivenImage>,
    budget: FetchBudget,
}

/// Replaces a part that is an image by the text of its placeholder, and adds the image. Leaves other parts as they are.
///
/// Errors: `model-takes-no-images` without `served`; `image-url`, `image-source-invalid`, `image-too-large`,
/// `serve-too-many-images`; those of `ImageHosts::fetch` and of an image's header.
pub fn read_part(
    part: &mut Value,
    place: &str,
    served: Option<&ServedImages>,
    given: &mut GivenImages,
) -> Reply<()> {
    if part["type"] != KIND {
        return Ok(());
    }
    let refused = |error| Box::new(Refusal { error, param: Some(place.to_string()) });
    let served = served.ok_or_else(|| refused(takes_none(place)))?;
    if given.images.len() == served.images_max {
        let message = format!("{place} is one image more than the {} of a request", served.images_max);
        return Err(refused(too_many(message)));
    }
    let image = &mut part[KIND];
    if let Some(detail) = image.get("detail").filter(|detail| !detail.is_null())
        && !DETAILS.iter().any(|known| detail == known)
    {
        let message = format!("{place}.{KIND}.detail = {}: images have one size", shown(&detail.to_string()));
        return Err(Refusal::unsupported(place, message).hint("leave it out, or send \"auto\""));
    }
    let url = if image.is_string() { Some(image.take()) } else { image.get_mut("url").map(Value::take) };
    let Some(Value::String(url)) = url else {
        let message = format!("{place}: an image is {{\"type\": \"{KIND}\", \"{KIND}\": {{\"url\": ...}}}}");
        return Err(Refusal::bad(place, message));
    };
    let image = read(url, place, served, &mut given.budget).map_err(refused)?;
    given.images.push(image);
    *part = serde_json::json!({ "type": "text", "text": PLACEHOLDER });
    Ok(())
}

fn read(url: String, place: &str, served: &ServedImages, budget: &mut FetchBudget) -> Result<GivenImage> {
    let bytes = if served.hosts.reads(&url) {
        served.hosts.fetch(&url, budget).map_err(|mut error| {
            error.message = format!("{place}: {}", error.message);
            error
        })?
    } else {
        sent_image(&url).map_err(|error| {
            Error::new(error.slug, format!("{place}: {}", error.message))
                .hint("send the image itself: data:image/png;base64, and its bytes")
        })?
    };
    drop(url);
    let size = header(&bytes).map_err(|fault| fault.at(place))?.size();
    let pixels = u64::from(size.width) * u64::from(size.height);
    if pixels > SENT_PIXELS_MAX {
        let message = format!("{place}: its header says {} x {} pixels", size.width, size.height);
        return Err(Error::new("image-too-large", message)
            .fact(format!("a server decodes at most {SENT_PIXELS_MAX} pixels"))
            .hint("make it smaller: a model sees no more than data.image_pixels_max pixels"));
    }
    let (_, _, tokens) = served.processor.size_of(size).map_err(|fault| fault.at(place))?;
    if tokens > served.image_vectors_max {
        let message =
            format!("{place} has {tokens} tokens, and {} is the most of an image", served.image_vectors_max);
        return Err(too_long(message));
    }
    Ok(GivenImage { place: place.into(), bytes, tokens })
}

/// Repeats each placeholder of a prompt as often as its image has tokens. Returns the prompt's tokens, and its rows:
/// the n-th vector of all images has the number `vocab` + n there.
///
/// Errors: `image-count`, `serve-too-long`, `serve-too-many-images`.
pub fn numbered(
    ids: Vec<u32>,
    images: &[GivenImage],
    served: &ServedImages,
    (vocab, context): (u32, usize),
) -> Result<(Vec<u32>, Vec<u32>)> {
    let tokens: Vec<usize> = images.iter().map(|image| image.tokens).collect();
    let vectors = tokens.iter().copied().fold(0, usize::saturating_add);
    if vectors > served.vectors {
        let message = format!(
            "the images of the request have {vectors} tokens, and this server holds {}",
            served.vectors
        );
        return Err(too_many(message));
    }
    let all = ids.len().saturating_add(vectors);
    if vectors > 0 && all > context {
        let message = format!(
            "the prompt has {all} tokens with its images, and {context} is the most with its response"
        );
        return Err(too_long(message));
    }
    let expanded = expand(&ids, served.marks, &tokens)?;
    let (mut rows, mut vector) = (expanded.ids.clone(), vocab);
    for id in expanded.images.into_iter().flatten() {
        rows[id] = vector;
        vector += 1;
    }
    Ok((expanded.ids, rows))
}

/// Returns the bytes of a body that are images as text: strings that begin with `data:`, and those of a field `data`,
/// as Anthropic's protocol has them. Each is one string of JSON.
pub fn image_text_bytes(body: &[u8]) -> usize {
    let (mut at, mut bytes) = (0, 0);
    while let Some(quote) = body[at..].iter().position(|&byte| byte == b'"') {
        let from = at + quote + 1;
        let Some(length) = body[from..].iter().position(|&byte| byte == b'"') else { break };
        if body[from..].starts_with(b"data:") || is_after_data(&body[..from - 1]) {
            bytes += length;
        }
        // The quote at the end may be the beginning of the next string, if this text began in one.
        at = from + length;
    }
    bytes
}

/// Returns true if the text before a string ends with the name of a field `data`.
fn is_after_data(before: &[u8]) -> bool {
    let name = before.trim_ascii_end().strip_suffix(b":").map(<[u8]>::trim_ascii_end);
    name.is_some_and(|name| name.ends_with(b"\"data\""))
}

fn takes_none(place: &str) -> Error {
    Error::new("model-takes-no-images", format!("{place} is an image, and this server reads text"))
        .fact("its model takes no images, or it was started without --images")
        .hint("serve a model that takes images with --images N")
}

fn too_many(message: String) -> Error {
    Error::new("serve-too-many-images", message)
        .hint("send fewer or smaller images, or start the server with a larger --images")
}

fn too_long(message: String) -> Error {
    Error::new("serve-too-long", message)
        .hint("send a smaller image, or start the server with a larger --prompt-tokens")
        .hint("--set data.image_pixels_max=N makes images smaller before the model sees them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_an_image_is_counted_apart_whatever_is_around_it() {
        for (body, bytes) in [
            (r#"{"a":"data:x,AA"}"#, 9),
            (r#"{"data:":1,"b":["data:yy"]}"#, 12),
            (r#"{"a":"say \"data:x\" twice"}"#, 7),
            (r#"{"a":"no data: here"}"#, 0),
            (r#"{"type":"base64","data" : "AAAA"}"#, 4),
            (r#"{"mydata":"AAAA","b":"data"}"#, 0),
            (r#"{"a":"data:never ends"#, 0),
            ("", 0),
        ] {
            assert_eq!(image_text_bytes(body.as_bytes()), bytes, "{body}");
        }
    }
}
