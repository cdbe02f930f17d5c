//! `distill.align = "text"`: a teacher with other tokens scores the responses of a step. All ranks align all of
//! them; the pass is the teacher's own, over its own ids.

use super::spans::SpanArrays;
use super::teacher::{ServerReport, Teacher};
use crate::arrays::{TokenArrays, zero};
use crate::data::dataset::Dataset;
use crate::methods::batch::Batch;
use crate::roles::Trainer;
use plimsoll_algo::kl::KlSums;
use plimsoll_algo::packed::Packed;
use plimsoll_algo::spans::{AlignedSums, add_span_advantages, leave_out_unaligned};
use plimsoll_base::{Error, Result};
use plimsoll_config::RunSpec;
use plimsoll_infer::teacher_text::TeacherText;
use plimsoll_infer::text::TextModel;
use plimsoll_plan::{RoleName, StepArrays};
use plimsoll_run::metrics::Metrics;
use plimsoll_text::AlignLimits;
use plimsoll_train::Sequence;
use std::ops::Range;
use std::sync::Arc;

/// Prompts of the data whose tokens are aligned before a run begins.
const PROBE_PROMPTS: usize = 16;
/// Limits of that: no longer than a prompt may be.
const PROBE_LIMITS: AlignLimits = AlignLimits { tokens: 1 << 16, bytes: 1 << 18 };

/// A model with weights of its own that may have other tokens than the student.
pub(super) struct AlignedTeacher {
    text: Arc<TeacherText>,
    spans: SpanArrays,
    /// How much was aligned of what was to be trained.
    sums: AlignedSums,
}

impl AlignedTeacher {
    pub(super) fn of(text: &TextModel) -> AlignedTeacher {
        let text = text.teacher_text.clone().expect("the text of a teacher that is aligned is open");
        let (spans, sums) = (SpanArrays::with_capacity(0, 0), AlignedSums::default());
        AlignedTeacher { text, spans, sums }
    }

    /// Aligns the responses of a step.
    ///
    /// Errors: `thread-not-started`.
    fn align(&mut self, prompts: &[Sequence<'_>], offsets: &[usize], prompt_tokens: usize) -> Result<()> {
        let AlignedTeacher { text, spans, .. } = self;
        // The tokenizer's library keeps words for each thread that encodes, so this one ends with the step.
        let aligned = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("spans".into());
            let spawned =
                thread.spawn_scoped(scope, || spans.align(text, prompts, offsets, prompt_tokens))?;
            spawned.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok(())
        });
        aligned.map_err(|err: std::io::Error| {
            Error::new("thread-not-started", format!("no thread to align texts: {err}"))
        })
    }
}

impl Teacher for AlignedTeacher {
    fn bind(&mut self, planned: &StepArrays) {
        self.spans = SpanArrays::with_capacity(planned.sequences, planned.response_tokens);
    }

    /// Scores its own tokens of the responses that have a span.
    fn score(
        &mut self,
        trainer: &mut Trainer<'_>,
        batch: &Batch<'_>,
        logprobs: &mut Vec<f32>,
    ) -> Result<Option<ServerReport>> {
        let (prompts, prompt_tokens) = (batch.taught(), trainer.sampler.shape.engine.prompt_tokens);
        self.align(&prompts, &trainer.arrays.offsets, prompt_tokens)?;
        let SpanArrays { ids, ends, taught, .. } = &self.spans;
        let sequences: Vec<Sequence<'_>> = taught
            .iter()
            .zip(ends.windows(2))
            .map(|(&s, of)| Sequence { response: &ids[of[0]..of[1]], ..prompts[s as usize] })
            .collect();
        zero(logprobs, ids.len());
        let at = |which: &Range<usize>| ends[which.start]..ends[which.end];
        if !sequences.is_empty() {
            trainer.score(RoleName::TEACHER, &sequences, batch.inv_temperature, logprobs, at)?;
        }
        Ok(None)
    }

    /// Adds to advantages as in the trait; tokens that the teacher has no span for are not trained.
    fn advise(&mut self, coef: f64, logprobs: &[f32], tokens: &mut TokenArrays) -> KlSums {
        let TokenArrays { mask, offsets, old_logprobs, advantages, .. } = tokens;
        let spans = &self.spans.spans;
        self.sums = leave_out_unaligned(spans, mask);
        let packed = Packed { mask, seq_offsets: offsets };
        add_span_advantages(coef, packed, spans, old_logprobs, logprobs, advantages)
    }

    fn metrics(&self, _tokens: &TokenArrays) -> Metrics {
        let rows =
            [("distill/aligned_share", self.sums.share()), ("distill/span_tokens", self.sums.span_tokens())];
        rows.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
    }
}

/// Requires that a teacher with other tokens has spans for most tokens of the first prompts.
///
/// Errors: `teacher-not-aligned`; those of reading the prompts.
pub(crate) fn check(run: &RunSpec, text: &TextModel, data: &mut Dataset) -> Result<()> {
    let Some(teacher) = text.teacher_text.as_ref().filter(|_| run.environment().is_none()) else {
        return Ok(());
    };
    let items = data.batch(text, 0, PROBE_PROMPTS)?;
    teacher.check(items.iter().map(|item| item.text.as_str()), PROBE_LIMITS)
}
