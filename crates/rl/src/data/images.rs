//! Rows with images of a run's data: the album of its model, what its plan must know of them, and what counts them.

use super::hub::localised;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_config::{Distill, LearnsFrom, RunSpec, SupplyKind, TeacherKind, TowerUse};
use plimsoll_files::OpenModel;
use plimsoll_infer::album::{Album, Processor};
use plimsoll_infer::images::refuse_images;
use plimsoll_infer::sample_images::THUMBNAIL_BYTES_MAX;
use plimsoll_plan::{DiskFacts, SightShape, trained_rows_kept};
use plimsoll_text::{
    DRAWN_TASKS, DrawnTask, ImageColumns, ImageFolder, ImageRow, each_prompt_with_images, each_row_s_images,
};
use std::path::Path;
use std::sync::Arc;

/// Returns the album of a run whose data have images, which its model must read.
///
/// Errors: those of `Album::open`; `model-takes-no-images` for what reads text alone, with the number of rows that have
/// images.
pub(crate) fn album(run: &RunSpec, model: &OpenModel) -> Result<Option<Arc<Album>>> {
    if run.data.images.is_none() && !draws(run) && answers(run) == 0 {
        let data = &run.data;
        let named = [
            (run.model_options.tower != TowerUse::Frozen, "model_options.tower"),
            (data.image_pixels_min.is_some(), "data.image_pixels_min"),
            (data.image_pixels_max.is_some(), "data.image_pixels_max"),
        ];
        let unused = named.into_iter().find(|(is_set, _)| *is_set);
        return unused.map_or(Ok(None), |(_, key)| Err(nothing_to_see(key)));
    }
    let opened = Album::open(model, &run.data);
    if opened.as_ref().is_err_and(|error| error.slug == "model-takes-no-images") {
        // Which rows they are says more than that the model has no tower.
        let mut files = run.data.files().map(Path::new).filter(|path| path.is_file());
        files.try_for_each(|path| refuse_images(path, &run.data))?;
    }
    let album = opened?;
    check(run)?;
    Ok(Some(Arc::new(album)))
}

fn nothing_to_see(key: &str) -> Error {
    Error::usage("contradictory-keys", format!("`{key}` is about images, and no prompt has any"))
        .hint(format!("set data.images to the column with the images, or remove {key}"))
}

/// Requires that all parts of a run read images, and that a tower with adapters has their keys.
///
/// Errors: `images-not-built`, `contradictory-keys`.
fn check(run: &RunSpec) -> Result<()> {
    if run.model_options.tower == TowerUse::Adapters && run.lora.is_none() {
        let message = "model_options.tower = \"adapters\", and the run file has no [lora]";
        return Err(Error::usage("contradictory-keys", message).hint(
            "add [lora], whose rank and alpha hold for the tower, or set model_options.tower = \"train\"",
        ));
    }
    let teacher = run.distill().map(Distill::kind);
    let trains = run.model_options.tower != TowerUse::Frozen;
    let parts = [
        (run.trains_scores(), "pairs of a reward model"),
        (run.environment().is_some_and(|of| of.plays_agents()), "agents, and what they send,"),
        (
            run.environment().is_some_and(|of| of.rows.is_none() && of.images_max == 0),
            "an environment without environment.rows and environment.images_max",
        ),
        (answers(run) > 0 && trains, "images of tools next to a tower that is trained: they"),
        (
            answers(run) > 0 && (run.supply() != SupplyKind::Fresh || run.reuse() > 0),
            "images of tools in episodes that outlive their step: they",
        ),
        (
            matches!(teacher, Some(TeacherKind::Aligned | TeacherKind::Server)),
            "the prompts of a teacher with another tokenizer, or on a server,",
        ),
        (!run.model_rewards.is_empty(), "what reward models read"),
        (run.critic().is_some() && !run.critic_is_of_actor(), "a critic of another model"),
    ];
    let Some((_, what)) = parts.into_iter().find(|(has, _)| *has) else { return Ok(()) };
    Err(Error::usage("images-not-built", format!("{what} take no images"))
        .fact("data.images names a column with images")
        .hint("train on rows with images by grpo or its kin, sft, dpo or its kin, or distill from a model with the same tokens"))
}

/// Returns what a run writes, with the small copies of its samples' images.
pub(crate) fn with_copies(run: &RunSpec, disk: DiskFacts) -> DiskFacts {
    let copies = if run.data.images.is_some() || draws(run) { trained_rows_kept() } else { 0 };
    DiskFacts { records: disk.records + Bytes(copies * THUMBNAIL_BYTES_MAX as u64), ..disk }
}

/// Returns the most images of tools of an episode.
fn answers(run: &RunSpec) -> usize {
    run.environment().map_or(0, |section| section.images_max as usize)
}

/// True if one of its tasks draws images.
fn draws(run: &RunSpec) -> bool {
    let prompts = run.data.prompts.iter().flat_map(|sets| sets.sets()).map(|set| set.path.as_str());
    let mut paths = prompts.chain(run.eval_sets.iter().map(|(_, path)| path.as_str()));
    paths.any(|path| DRAWN_TASKS.contains(&path))
}

/// Returns what the plan of a run must know of its images: those of the data, or the most that its limits allow.
///
/// `teacher`: the model that teaches, if it is another; `prompt_tokens`: the limit of prompts, where the plan does not
/// read the data. Errors: `image-too-large` for images beyond what such a plan has room for; those of
/// `Album::teacher_sight`.
pub(crate) fn shape(
    run: &RunSpec,
    album: Option<&Album>,
    teacher: Option<&OpenModel>,
    prompt_tokens: Option<usize>,
) -> Result<Option<SightShape>> {
    let Some(album) = album else { return Ok(None) };
    let shape = shape_of_student(run, album, prompt_tokens)?;
    let teacher = match teacher {
        // The shape of a model that is elsewhere, which only plans have: it is taken to see as the student.
        Some(model) if model.random && !model.source.starts_with("random:") => Some(album.sight),
        Some(model) => Some(album.teacher_sight(model, &run.data)?),
        None => None,
    };
    Ok(Some(SightShape { teacher, ..shape }))
}

fn shape_of_student(run: &RunSpec, album: &Album, prompt_tokens: Option<usize>) -> Result<SightShape> {
    let (prompts, trains) = (run.prompts_under_way() as usize, run.model_options.tower != TowerUse::Frozen);
    let Some(tokens) = prompt_tokens else {
        return Ok(SightShape { trains, ahead: true, ..album.shape(prompts) });
    };
    let Processor { pixels_min, pixels_max, .. } = album.processor;
    let area = [pixels_min, pixels_max];
    let bound = SightShape::bound(album.sight, area, tokens, prompts);
    let sizes = album.sizes();
    if sizes.pixels > bound.pixels || sizes.file > bound.file {
        let message = format!(
            "an image of the data has {} pixels and {} bytes; a plan that does not read the data has room for {} and {}",
            sizes.pixels, sizes.file, bound.pixels, bound.file
        );
        return Err(Error::new("image-too-large", message).hint(
            "remove data.prompt_tokens_max, so that the plan reads the data, or make the image smaller",
        ));
    }
    let bound = match (run.environment(), answers(run)) {
        (Some(section), most @ 1..) => {
            let episodes = prompts * run.rollout.group_size.max(run.eval.samples) as usize;
            bound.with_answers(area, episodes, most, section.turn_tokens_max as usize)
        }
        _ => bound,
    };
    Ok(SightShape { trains, ahead: true, ..bound })
}

/// Requires that a plan that did not read the images of episodes has room for them.
///
/// Errors: `image-too-large`.
pub(crate) fn images_fit(run: &RunSpec, album: &Album, prompt_tokens: usize) -> Result<()> {
    shape_of_student(run, album, Some(prompt_tokens)).map(drop)
}

/// Calls `visit` with each row of a run's files, with its images and the folder that they are in; of a task that draws,
/// which has no end, with those of its test set.
///
/// `placeholder`: what the model's chat template writes for an image. Errors: `missing-key` without `data.images`;
/// those of `ImageFolder::of` and of `each_prompt_with_images`; those of `visit`.
pub fn each_row_with_images(
    run: &RunSpec,
    placeholder: &str,
    mut visit: impl FnMut(&ImageFolder, ImageRow<()>) -> Result<()>,
) -> Result<()> {
    let sets = run.data.prompts.iter().flat_map(|sets| sets.sets());
    let drawn: Vec<DrawnTask> = sets.filter_map(|set| DrawnTask::find(&set.path)).collect();
    for task in &drawn {
        let folder = ImageFolder::of(Path::new("."), None)?;
        let rows = task.test_rows(placeholder);
        rows.map(without_prompt).try_for_each(|row| visit(&folder, row))?;
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
    let of_episodes = run.environment().into_iter().flat_map(|section| section.row_files());
    for path in run.data.files().chain(of_episodes).map(Path::new) {
        let folder = ImageFolder::of(path, run.data.image_folder.as_deref().map(Path::new))?;
        if run.learns_from() == Some(LearnsFrom::Samples) {
            each_prompt_with_images(path, columns, |_, row| visit(&folder, without_prompt(row)))?;
        } else {
            each_row_s_images(path, columns, |row| visit(&folder, row))?;
        }
    }
    Ok(())
}

fn without_prompt(of: ImageRow) -> ImageRow<()> {
    ImageRow { place: of.place, row: (), images: of.images }
}
