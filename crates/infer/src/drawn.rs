//! Prompts with drawn images, for measuring a model that sees.

use crate::album::{Album, RowImage};
use plimsoll_base::{Error, Result};
use plimsoll_config::Data;
use plimsoll_files::OpenModel;
use plimsoll_text::DrawnTask;
use std::sync::Arc;

/// The task whose images they are: each is another one.
const TASK: &str = "builtin:shapes";
/// Prompts of which one has no image, and one has two.
const KINDS: usize = 4;

/// Prompts with images, which the album has as long as they are there.
#[derive(Debug)]
pub struct DrawnPrompts {
    pub album: Arc<Album>,
    pub prompts: Vec<Vec<u32>>,
    _images: Vec<Arc<RowImage>>,
}

impl DrawnPrompts {
    /// Puts drawn images into prompts of a model, after their first token.
    ///
    /// Errors: those of `Album::open` and `Album::take`.
    pub fn of(model: &OpenModel, seed: u64, prompts: Vec<Vec<u32>>) -> Result<DrawnPrompts> {
        let album = Arc::new(Album::open(model, &Data::default())?);
        let task = DrawnTask::find(TASK)
            .ok_or_else(|| Error::new("unknown-task", format!("no task is called `{TASK}`")))?;
        let [start, end] = album.sight.around;
        let marks = [start, album.sight.image_token, end];
        let (mut with, mut all) = (Vec::with_capacity(prompts.len()), Vec::new());
        for (i, mut ids) in prompts.into_iter().enumerate() {
            // A random token may be one of those around images.
            ids.iter_mut().filter(|id| marks.contains(id)).for_each(|id| *id = 0);
            let count = [1, 1, 2, 0][i % KINDS];
            ids.splice(1..1, marks.repeat(count));
            let row = |n: usize| task.train_row(seed, (2 * i + n) as u64, "").images;
            let images = (0..count).flat_map(row).collect();
            let (ids, taken) = album.take(&ids, images, None, "a drawn prompt")?;
            with.push(ids);
            all.extend(taken);
        }
        Ok(DrawnPrompts { album, prompts: with, _images: all })
    }
}
