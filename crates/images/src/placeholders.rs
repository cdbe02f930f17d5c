//! Where images are in a prompt: a chat template writes one placeholder for each image, and the model reads as many
//! tokens there as the image has.

use plimsoll_base::{Error, Result};
use std::ops::Range;

/// What chat templates of the known families write for an image.
pub const PLACEHOLDER: &str = "<|vision_start|><|image_pad|><|vision_end|>";
/// The text of the one token that is repeated.
const PAD: &str = "<|image_pad|>";
/// Most tokens of a prompt with its images; far above what any model has positions for.
const TOKENS_MAX: usize = 1 << 24;

/// The ids around and in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Before an image.
    pub start: u32,
    /// The placeholder.
    pub pad: u32,
    /// After an image.
    pub end: u32,
}

/// The families of which images are prepared: the `model_type` of their `config.json`.
pub const FAMILIES: [&str; 5] = ["qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"];

/// A prompt whose placeholders are as long as its images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expanded {
    /// The ids.
    pub ids: Vec<u32>,
    /// The positions of each image's tokens.
    pub images: Vec<Range<usize>>,
}

/// Repeats each placeholder of a prompt as often as its image has tokens, once.
///
/// Errors: `image-count` if there are more or fewer placeholders than images, or one that is not between its marks, as
/// in a prompt that was expanded before.
pub fn expand(ids: &[u32], marks: Marks, tokens: &[usize]) -> Result<Expanded> {
    let places = ids.iter().filter(|&&id| id == marks.pad).count();
    let added: usize = agreed(places, tokens)?;
    let mut expanded = Expanded { ids: Vec::with_capacity(ids.len() + added), images: Vec::new() };
    for (i, &id) in ids.iter().enumerate() {
        if id != marks.pad {
            expanded.ids.push(id);
            continue;
        }
        let before = i.checked_sub(1).map(|i| ids[i]);
        if before != Some(marks.start) || ids.get(i + 1) != Some(&marks.end) {
            let message = format!("token {i} of the prompt is a placeholder of an image without its marks");
            return Err(Error::new("image-count", message)
                .hint("a template writes <|vision_start|><|image_pad|><|vision_end|> for an image"));
        }
        let start = expanded.ids.len();
        expanded.ids.resize(start + tokens[expanded.images.len()], marks.pad);
        expanded.images.push(start..expanded.ids.len());
    }
    Ok(expanded)
}

/// Repeats each placeholder of a text as often as its image has tokens, as `expand` does with ids.
///
/// Errors: `image-count`.
pub fn expand_text(prompt: &str, tokens: &[usize]) -> Result<String> {
    let parts: Vec<&str> = prompt.split(PAD).collect();
    let added = agreed(parts.len() - 1, tokens)?;
    let mut text = String::with_capacity(prompt.len() + added * PAD.len());
    for (i, part) in parts.iter().enumerate() {
        text.push_str(part);
        text.extend(std::iter::repeat_n(PAD, tokens.get(i).copied().unwrap_or(0)));
    }
    Ok(text)
}

/// Requires that a prompt has a placeholder for each image. Returns the tokens of all images.
fn agreed(places: usize, tokens: &[usize]) -> Result<usize> {
    if places != tokens.len() {
        let message = format!("the prompt has {places} placeholders and {} images", tokens.len());
        return Err(Error::new("image-count", message)
            .hint("write one <image>, or one part {\"type\": \"image\"}, for each image of the row"));
    }
    let all = tokens.iter().copied().fold(0, usize::saturating_add);
    if all > TOKENS_MAX {
        let message = format!("the images of a prompt have {all} tokens; at most {TOKENS_MAX} are read");
        return Err(Error::new("image-count", message).hint("set data.image_pixels_max lower"));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Marks = Marks { start: 7, pad: 8, end: 9 };

    #[test]
    fn a_placeholder_becomes_its_images_tokens_once() {
        let expanded = expand(&[1, 7, 8, 9, 2, 7, 8, 9], MARKS, &[3, 1]).unwrap();
        assert_eq!(expanded.ids, [1, 7, 8, 8, 8, 9, 2, 7, 8, 9]);
        assert_eq!(expanded.images, [2..5, 8..9]);
        assert_eq!(expand(&[1, 2], MARKS, &[]).unwrap().ids, [1, 2]);
        assert_eq!(expand_text("a<|image_pad|>b", &[2]).unwrap(), "a<|image_pad|><|image_pad|>b");
    }

    #[test]
    fn counts_that_differ_and_what_is_expanded_already_are_refused() {
        for (ids, tokens, words) in [
            (&[1, 7, 8, 9][..], &[][..], "1 placeholders and 0 images"),
            (&[1, 2], &[4], "0 placeholders and 1 images"),
            (&[7, 8, 8, 9], &[2], "2 placeholders and 1 images"),
            (&[7, 8, 8, 9], &[1, 1], "token 1 of the prompt"),
            (&[8], &[1], "token 0 of the prompt"),
            (&[7, 8, 9], &[TOKENS_MAX + 1], "at most"),
        ] {
            let error = expand(ids, MARKS, tokens).unwrap_err();
            assert!(error.slug == "image-count" && error.message.contains(words), "{error}");
        }
        assert_eq!(expand_text("a", &[1]).unwrap_err().slug, "image-count");
    }
}
