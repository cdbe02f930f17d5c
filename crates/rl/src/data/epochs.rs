//! `train.epochs`: how many steps its passes over the data are.

use super::dataset::{is_wanted, pass_rate};
use super::hub;
use super::session::limits_of_data;
use plimsoll_base::{Error, Result};
use plimsoll_config::{LearnsFrom, RunFile, RunSpec};
use plimsoll_infer::image_rows::first_rows;
use plimsoll_text::{Part, each_row_of, file_size};
use std::path::Path;

/// Turns `train.epochs` into `train.steps`, and returns words about it; nothing without that key. Rows that a pass rate
/// leaves out do not count. Those that are too long do: they are known only with the model's tokenizer.
///
/// Errors: those of reading the data; `contradictory-keys` for a warm-up that is longer.
pub fn resolve(run: &mut RunFile) -> Result<Option<String>> {
    let Some(epochs) = run.train.epochs else { return Ok(None) };
    let spec = hub::localised(&RunSpec::new(run), true)?;
    let sets = spec.data.prompts.as_ref().map_or(&[][..], |prompts| prompts.sets());
    let Some(set) = sets.first() else { return Ok(None) };
    let (path, mut rows) = (Path::new(&set.path), 0u64);
    match run.method.needs().learns_from {
        LearnsFrom::Samples => {
            first_rows(path, &spec.data, spec.data.images.is_some(), Part::WHOLE, |i, of, _| {
                rows += u64::from(is_wanted(pass_rate(&of.row, &spec.data, path, i)?, &spec.data));
                Ok(())
            })
            .map(drop)?;
        }
        LearnsFrom::Completions | LearnsFrom::Pairs | LearnsFrom::Labels => {
            let images = spec.data.images.as_deref();
            match images {
                Some(_) => rows = file_size(path, images)?.rows,
                None => each_row_of(path, |_, _| {
                    rows += 1;
                    Ok(())
                })?,
            }
        }
    }
    let a_step = run.rollout.prompts_per_step.max(1);
    // The product is exact for any file that can be read: below 2^53.
    let steps = (epochs * rows as f64 / f64::from(a_step)).ceil().clamp(1.0, f64::from(u32::MAX));
    for (key, warmup) in [
        ("train.warmup_steps", run.train.warmup_steps),
        ("critic.warmup_steps", run.critic.as_ref().and_then(|critic| critic.warmup_steps).unwrap_or(0)),
    ] {
        if f64::from(warmup) > steps {
            let message =
                format!("{key} = {warmup} is more than the {steps} steps that train.epochs = {epochs} makes");
            return Err(Error::usage("contradictory-keys", message)
                .fact(format!("{rows} rows, {a_step} a step"))
                .hint(format!("set {key} to at most {steps}")));
        }
    }
    run.train.steps = steps as u32;
    run.train.epochs = None;
    Ok(Some(format!("train.epochs = {epochs}: {rows} rows, {a_step} a step, so {steps} steps")))
}

/// Turns `train.epochs` into `train.steps` as `resolve` does, for a plan. Where `data.prompt_tokens_max` bounds the
/// prompts, a plan needs no data: if that is not here, the plan is that of one step.
///
/// Errors: those of `resolve`.
pub fn resolve_for_plan(run: &mut RunFile) -> Result<Option<String>> {
    match (resolve(run), run.train.epochs) {
        (Err(error), Some(epochs))
            if ["data-missing", "data-not-local"].contains(&error.slug)
                && limits_of_data(&RunSpec::new(run)).is_some() =>
        {
            (run.train.steps, run.train.epochs) = (1, None);
            Ok(Some(format!("train.epochs = {epochs}: {}; the plan is that of one step", error.message)))
        }
        (resolved, _) => resolved,
    }
}
