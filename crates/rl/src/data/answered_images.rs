//! Images of rows with answers: their numbers among the tokens of the row, none of which is learnt.

use plimsoll_arch::TokenRun;
use plimsoll_base::{Error, Result};
use plimsoll_infer::album::{Album, RowImage};
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_text::{ImageFolder, ImageSource};
use std::ops::Range;
use std::sync::Arc;

/// Puts the images of a row where its tokens have placeholders: in the prompt, and between turns that are learnt.
/// `place`: the row, for errors.
///
/// Errors: `image-in-answer`; `image-count`; those of `Album::admit`.
pub(super) fn with_images(
    text: &TextModel,
    item: Item,
    images: Vec<Result<ImageSource>>,
    folder: Option<&Arc<ImageFolder>>,
    place: &str,
) -> Result<Item> {
    check_answers(&item, text.rules.suppressed, place)?;
    let Some(album) = &text.album else { return Ok(item) };
    let images = album.admit(images, folder, place)?;
    with_taken(album, item, &images).map_err(|error| error.fact(format!("the row: {place}")))
}

/// Puts images that the album has into a row, as `with_images` does.
///
/// Errors: `image-in-answer`, `image-count`.
pub(super) fn with_same_images(
    text: &TextModel,
    item: Item,
    images: &[Arc<RowImage>],
    place: &str,
) -> Result<Item> {
    check_answers(&item, text.rules.suppressed, place)?;
    let Some(album) = &text.album else { return Ok(item) };
    with_taken(album, item, images).map_err(|error| error.fact(format!("the row: {place}")))
}

fn with_taken(album: &Album, item: Item, images: &[Arc<RowImage>]) -> Result<Item> {
    let cut = item.ids.len();
    let placed = album.place(&[item.ids.as_slice(), &item.completion].concat(), images)?;
    // The tokens that images before a token have beyond their placeholders.
    let moved = |token: usize| {
        let (mut added, mut before) = (0, placed.images.iter());
        while let Some(image) = before.next().filter(|image| image.start - added < token) {
            added += image.len() - 1;
        }
        token + added
    };
    let of_prompt = moved(cut);
    let within = |range: &Range<u32>| {
        let [start, end] = [range.start, range.end].map(|token| moved(cut + token as usize) - of_prompt);
        start as u32..end as u32
    };
    Ok(Item {
        learnt: item.learnt.iter().map(within).collect(),
        ids: placed.ids[..of_prompt].to_vec(),
        completion: placed.ids[of_prompt..].to_vec(),
        images: images.to_vec(),
        ..item
    })
}

/// Requires that nothing that is learnt has a placeholder, whether there are images or not: a model that sees gives it
/// no probability.
///
/// Errors: `image-in-answer`.
fn check_answers(item: &Item, placeholders: TokenRun, place: &str) -> Result<()> {
    let has_image = |tokens: &[u32]| tokens.iter().any(|token| placeholders.has(*token));
    let whole = 0..item.completion.len() as u32;
    let learnt = if item.learnt.is_empty() { std::slice::from_ref(&whole) } else { &item.learnt };
    let mut learnt = learnt.iter().map(|of| &item.completion[of.start as usize..of.end as usize]);
    if learnt.any(has_image) || has_image(&item.rejected) {
        // Rows of a file that was read as text have no place; who reads it says the row.
        let at = if place.is_empty() { String::new() } else { format!("{place}: ") };
        return Err(Error::new("image-in-answer", format!("{at}an answer to learn has an image")).hint(
            "models that see write text: leave the image out of the answer, or take the row out of the file",
        ));
    }
    Ok(())
}
