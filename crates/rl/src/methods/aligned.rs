//! `distill.align = "text"`: a teacher with other tokens scores the responses of a step. All ranks align all of
//! them; the pass is the teacher's own, over its own ids.

use crate::data::dataset::Dataset;
use crate::methods::batch::Batch;
use crate::methods::spans::SpanArrays;
use crate::roles::Trainer;
use plimsoll_base::{Error, Result};
use plimsoll_config::RunSpec;
use plimsoll_infer::teacher_text::TeacherText;
use plimsoll_infer::text::TextModel;
use plimsoll_plan::RoleName;
use plimsoll_text::AlignLimits;
use plimsoll_train::Sequence;
use std::ops::Range;

/// Prompts of the data whose tokens are aligned before a run begins.
const PROBE_PROMPTS: usize = 16;
/// Limits of that: no longer than a prompt may be.
const PROBE_LIMITS: AlignLimits = AlignLimits { tokens: 1 << 16, bytes: 1 << 18 };

/// Scores the responses of a step with a teacher that may have other tokens.
///
/// Errors: those of scoring.
pub(crate) fn score(trainer: &mut Trainer<'_>, text: &TeacherText, batch: &Batch<'_>) -> Result<()> {
    let mut arrays = std::mem::take(&mut trainer.buffers.aligned);
    let (prompts, offsets) = (batch.taught(), &trainer.buffers.offsets);
    let prompt_tokens = trainer.sampler.shape.engine.prompt_tokens;
    // The tokenizer's library keeps words for each thread that encodes, so this one ends with the step.
    let aligned = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("spans".into());
        let spawned = thread.spawn_scoped(scope, || arrays.align(text, &prompts, offsets, prompt_tokens))?;
        spawned.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(())
    });
    aligned.map_err(|err: std::io::Error| {
        Error::new("thread-not-started", format!("no thread to align texts: {err}"))
    })?;
    let SpanArrays { ids, ends, taught, .. } = &arrays;
    let sequences: Vec<Sequence<'_>> = taught
        .iter()
        .zip(ends.windows(2))
        .map(|(&s, of)| Sequence { response: &ids[of[0]..of[1]], ..prompts[s as usize] })
        .collect();
    let mut logprobs = std::mem::take(&mut trainer.buffers.teacher_logprobs);
    logprobs.clear();
    logprobs.resize(ids.len(), 0.0);
    let at = |which: &Range<usize>| ends[which.start]..ends[which.end];
    let scored = if sequences.is_empty() {
        Ok(())
    } else {
        trainer.score(RoleName::Teacher, &sequences, batch.inv_temperature, &mut logprobs, at)
    };
    (trainer.buffers.teacher_logprobs, trainer.buffers.aligned) = (logprobs, arrays);
    scored
}

/// Requires that a teacher with other tokens has spans for most tokens of the first prompts.
///
/// Errors: `teacher-not-aligned`; those of reading the prompts.
pub(crate) fn check(run: &RunSpec, text: &TextModel, data: &mut Dataset) -> Result<()> {
    let Some(teacher) = text.teacher_text.as_ref().filter(|_| run.environment.is_none()) else {
        return Ok(());
    };
    let items = data.batch(text, 0, PROBE_PROMPTS)?;
    teacher.check(items.iter().map(|item| item.text.as_str()), PROBE_LIMITS)
}
