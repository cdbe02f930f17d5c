//! Held-out prompts with images: the album of the model, and what the plan must know of them.

use crate::album::Album;
use crate::images::refuse_images;
use plimsoll_base::{Error, Result};
use plimsoll_config::{RunSpec, VerbFile};
use plimsoll_files::OpenModel;
use plimsoll_plan::SightShape;
use plimsoll_text::DRAWN_TASKS;
use std::path::Path;
use std::sync::Arc;

/// Prompts whose images are held at one time: a table for all that the engine could hold would be larger than the rest.
const PROMPTS_AT_ONCE: usize = 16;

/// Returns the album of an evaluation whose sets have images, which its model must read.
///
/// Errors: those of `Album::open`; `model-takes-no-images` for a model of text, with the number of rows.
pub(super) fn album(
    verb: &VerbFile,
    sets: &[(String, String)],
    model: &OpenModel,
) -> Result<Option<Arc<Album>>> {
    let is_drawn = sets.iter().any(|(_, path)| DRAWN_TASKS.contains(&path.as_str()));
    if verb.data.images.is_none() && !is_drawn {
        return Ok(None);
    }
    let opened = Album::open(model, &verb.data);
    if opened.as_ref().is_err_and(|error| error.slug == "model-takes-no-images") {
        // Which rows they are says more than that the model has no tower.
        let mut files = sets.iter().map(|(_, path)| Path::new(path)).filter(|path| path.is_file());
        files.try_for_each(|path| refuse_images(path, &verb.data))?;
    }
    opened.map(|album| Some(Arc::new(album)))
}

/// Returns the shape of the images of as many prompts as are held at one time.
///
/// Errors: `images-not-built` for reward models, which would read prompts without their images.
pub(super) fn shape(run: &RunSpec, verb: &VerbFile, album: Option<&Album>) -> Result<Option<SightShape>> {
    let Some(album) = album else { return Ok(None) };
    if !run.model_rewards.is_empty() {
        return Err(Error::usage("images-not-built", "what reward models read takes no images")
            .fact("data.images names a column with images")
            .hint("score with rewards of rules or functions"));
    }
    let samples = run.rollout.prompts_per_step.saturating_mul(run.rollout.group_size) as usize;
    let prompts = (samples / verb.eval.samples.max(1) as usize).clamp(1, PROMPTS_AT_ONCE);
    Ok(Some(album.shape(prompts)))
}
