//! Host arrays of a step whose teacher may have other tokens: the responses as it reads them, and their spans.
//!
//! A teacher has at most as many tokens for a response as the plan has for one of the student: what is longer is
//! aligned up to there. So its sequences fit in the passes that there are.

use plimsoll_algo::spans::TokenSpan;
use plimsoll_infer::teacher_text::TeacherText;
use plimsoll_plan::aligned_text_bytes;
use plimsoll_text::{AlignLimits, Aligned};
use plimsoll_train::Sequence;
use std::ops::Range;

/// The responses of a step in the teacher's tokens.
#[derive(Debug)]
pub(super) struct SpanArrays {
    /// The most that is aligned of a response.
    limits: AlignLimits,
    /// The teacher's tokens, sequence after sequence of those with a span.
    pub(super) ids: Vec<u32>,
    /// Sequence i of `taught` is `ids[ends[i]..ends[i + 1]]`.
    pub(super) ends: Vec<usize>,
    /// Indices of the sequences with a span.
    pub(super) taught: Vec<u32>,
    /// All spans, ascending, as indices into the arrays of a step and into `ids`.
    pub(super) spans: Vec<TokenSpan>,
    /// The response that is aligned.
    one: Aligned,
}

impl SpanArrays {
    /// Allocates room for `sequences` responses of up to `response_tokens` tokens.
    pub(super) fn with_capacity(sequences: usize, response_tokens: usize) -> SpanArrays {
        let tokens = sequences * response_tokens;
        SpanArrays {
            limits: AlignLimits { tokens: response_tokens, bytes: aligned_text_bytes(response_tokens) },
            ids: Vec::with_capacity(tokens),
            ends: Vec::with_capacity(sequences + 1),
            taught: Vec::with_capacity(sequences),
            spans: Vec::with_capacity(tokens),
            one: Aligned {
                ids: Vec::with_capacity(response_tokens),
                spans: Vec::with_capacity(response_tokens),
            },
        }
    }

    /// Aligns the responses of a step. `offsets`: of each in the arrays of the step. What follows a prompt of more than
    /// `prompt_tokens` has no room in the passes, and is not aligned: few prompts of a task show its longest one.
    pub(super) fn align(
        &mut self,
        text: &TeacherText,
        sequences: &[Sequence<'_>],
        offsets: &[usize],
        prompt_tokens: usize,
    ) {
        self.ids.clear();
        self.ends.clear();
        self.ends.push(0);
        self.taught.clear();
        self.spans.clear();
        for (s, sequence) in sequences.iter().enumerate() {
            text.aligner.align(sequence.response, self.limits, &mut self.one);
            if self.one.spans.is_empty() || sequence.prompt.len() > prompt_tokens {
                continue;
            }
            let (student, teacher) = (offsets[s] as u32, self.ids.len() as u32);
            let moved = |range: &Range<u32>, by: u32| range.start + by..range.end + by;
            self.spans.extend(self.one.spans.iter().map(|span| TokenSpan {
                student: moved(&span.student, student),
                teacher: moved(&span.teacher, teacher),
            }));
            self.ids.extend_from_slice(&self.one.ids);
            self.ends.push(self.ids.len());
            self.taught.push(s as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_config::Data;
    use plimsoll_files::OpenModel;
    use plimsoll_infer::text::text_model;
    use plimsoll_plan::aligned_bytes;

    fn heap(arrays: &SpanArrays) -> usize {
        let SpanArrays { ids, ends, taught, spans, one, .. } = arrays;
        let spans_bytes = spans.capacity() * size_of::<TokenSpan>()
            + one.spans.capacity() * size_of::<plimsoll_text::Span>();
        4 * (ids.capacity() + taught.capacity() + one.ids.capacity()) + 8 * ends.capacity() + spans_bytes
    }

    #[test]
    fn the_plan_counts_the_arrays_and_they_do_not_grow() {
        let model = OpenModel::open("builtin:nano", None, false).expect("it is built in");
        let data = Data::default();
        let text = text_model(&model, &data).expect("its own");
        let text = text.with_teacher(&data, &model, &model).expect("the same");
        let teacher = text.teacher_text.expect("it was added");
        let mut arrays = SpanArrays::with_capacity(3, 5);
        let allocated = heap(&arrays);
        let sequence = |response| Sequence { group: 0, prompt: &[2], response };
        let (long, short) = ([3, 4, 5, 6, 1], [7, 1]);
        for _ in 0..2 {
            // Their offsets in the step leave room for one that is not aligned.
            arrays.align(&teacher, &[sequence(&long), sequence(&[]), sequence(&short)], &[0, 5, 8], 1);
            assert_eq!(heap(&arrays), allocated);
        }
        let spans = std::mem::take(&mut arrays.spans);
        arrays.align(&teacher, &[sequence(&long)], &[0], 0);
        assert!(
            arrays.spans.is_empty() && arrays.taught.is_empty(),
            "a prompt that the plan has no room for"
        );
        arrays.align(&teacher, &[sequence(&long), sequence(&[]), sequence(&short)], &[0, 5, 8], 1);
        assert_eq!(arrays.spans, spans);
        // What the passes take: the student's and the teacher's sequences.
        let passes = 2 * 3 * size_of::<Sequence<'_>>();
        // Without the response that is encoded: its arrays, its text, the library.
        let (planned, one) = (aligned_bytes(3, 5) - aligned_bytes(0, 5), 20 * 5);
        assert!((allocated + passes - one) as u64 <= planned, "{allocated} and {passes}, {planned}");
        assert_eq!((&arrays.ids[..], &arrays.ends[..]), (&[3, 4, 5, 6, 1, 7, 1][..], &[0, 5, 7][..]));
        assert_eq!(arrays.taught, [0, 2]);
        assert_eq!(arrays.spans.last(), Some(&TokenSpan { student: 9..10, teacher: 6..7 }));
        assert_eq!(arrays.spans.len(), 7);
    }
}
