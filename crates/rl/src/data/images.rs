//! Rows with images of a run's data: refused by training, and read for what counts them.

use super::hub::localised;
use plimsoll_base::{Error, Result};
use plimsoll_config::{Data, RunSpec};
use plimsoll_infer::images::refuse_images;
use plimsoll_text::{DrawnTask, ImageColumns, ImageFolder, ImageRow, each_prompt_with_images};
use std::path::Path;

/// Refuses a run whose data have images.
///
/// Errors: those of `refuse_images`.
pub(crate) fn refuse(run: &RunSpec) -> Result<()> {
    files(&run.data).try_for_each(|path| refuse_images(path, &run.data))
}

fn files(data: &Data) -> impl Iterator<Item = &Path> {
    data.files().map(Path::new).filter(|path| path.is_file())
}

/// Calls `visit` with each row of a run's files, with its images and the folder that they are in; of a task that draws,
/// which has no end, with those of its test set.
///
/// `placeholder`: what the model's chat template writes for an image. Errors: `missing-key` without `data.images`;
/// those of `ImageFolder::of` and of `each_prompt_with_images`; those of `visit`.
pub fn each_row_with_images(
    run: &RunSpec,
    placeholder: &str,
    mut visit: impl FnMut(&ImageFolder, ImageRow) -> Result<()>,
) -> Result<()> {
    let sets = run.data.prompts.iter().flat_map(|sets| sets.sets());
    let drawn: Vec<DrawnTask> = sets.filter_map(|set| DrawnTask::find(&set.path)).collect();
    for task in &drawn {
        let folder = ImageFolder::of(Path::new("."), None)?;
        task.test_rows(placeholder).try_for_each(|row| visit(&folder, row))?;
    }
    let Some(images) = &run.data.images else {
        if !drawn.is_empty() {
            return Ok(());
        }
        return Err(Error::usage("missing-key", "data.images is missing")
            .hint("set data.images to the column with the images, such as --set data.images=images"));
    };
    let run = localised(run, true)?;
    let columns = ImageColumns { prompt: &run.data.prompt_column, images, placeholder };
    for path in run.data.files().map(Path::new) {
        let folder = ImageFolder::of(path, run.data.image_folder.as_deref().map(Path::new))?;
        each_prompt_with_images(path, columns, |_, row| visit(&folder, row))?;
    }
    Ok(())
}
