//! On-policy distillation from a teacher with other tokens: what both say of a span, the smallest range of bytes at
//! whose ends both have a token boundary, becomes an advantage of each of the student's tokens in it.
//!
//! With L the sum of a side's log-probs over its tokens of a span, d = L_old - L_teacher, and A = -coef d of each token
//! of the span. A sample of a span is all of its tokens, so the gradient of the reverse KL of spans is the mean of
//! d grad L, and grad L is the sum of the tokens' grad l: each has the whole d. A later token of the span depends on an
//! earlier one, and the teacher may have no number of its own for either. Which spans a text has is taken as drawn, as
//! prefixes are: no gradient goes through that. A span of one token on each side is `distill`'s formula.
//! Sources: as `distill`; boundaries in bytes as in TRL 1.16 `ULDLoss._align_by_byte_offsets`, whose loss is another.

use crate::kl::KlSums;
use crate::packed::Packed;
use std::ops::Range;

plimsoll_base::names! {
    /// The unit by which a teacher's log-probabilities are compared.
    #[derive(Default)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    Align {
        /// Token by token: the teacher has the student's tokens.
        #[default]
        Tokens = "tokens",
        /// Span by span of the same text: the teacher may have other tokens.
        Text = "text",
    }
}

/// The tokens of both sides for the same bytes, as indices into the arrays of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSpan {
    /// At least one token.
    pub student: Range<u32>,
    /// At least one token.
    pub teacher: Range<u32>,
}

/// How much of a step is aligned.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AlignedSums {
    /// Tokens that were to be trained.
    pub tokens: f64,
    /// Those of them that are in a span.
    pub aligned: f64,
    /// Their spans.
    pub spans: f64,
}

impl AlignedSums {
    /// Returns the share of tokens in spans; 1 where none were to be trained.
    pub fn share(&self) -> f64 {
        if self.tokens > 0.0 { self.aligned / self.tokens } else { 1.0 }
    }

    /// Returns the mean number of the student's tokens in a span; 0 without one.
    pub fn span_tokens(&self) -> f64 {
        if self.spans > 0.0 { self.aligned / self.spans } else { 0.0 }
    }
}

/// Sets the mask, [N], to 0 outside the spans, which ascend, and in those of which a token is masked.
pub fn leave_out_unaligned(spans: &[TokenSpan], mask: &mut [f32]) -> AlignedSums {
    let trained = |mask: &[f32]| mask.iter().filter(|mask| **mask != 0.0).count() as f64;
    let mut sums = AlignedSums { tokens: trained(mask), ..AlignedSums::default() };
    let mut end = 0;
    for span in spans {
        let tokens = tokens_of(&span.student);
        mask[end..tokens.start].fill(0.0);
        end = tokens.end;
        let of_span = &mut mask[tokens];
        if of_span.contains(&0.0) {
            of_span.fill(0.0);
            continue;
        }
        sums.aligned += of_span.len() as f64;
        sums.spans += 1.0;
    }
    mask[end..].fill(0.0);
    sums
}

/// Adds -coef (L_old - L_teacher) of its span to the advantage of each trained token, [N].
///
/// `old_logp`: [N], `teacher_logp`: of the teacher's tokens, at one temperature. Trained tokens are those of whole
/// spans (`leave_out_unaligned`). The returned sums hold the reverse KL by the student's token: a d counts once a span.
pub fn add_span_advantages(
    coef: f64,
    batch: Packed<'_>,
    spans: &[TokenSpan],
    old_logp: &[f32],
    teacher_logp: &[f32],
    advantages: &mut [f32],
) -> KlSums {
    batch.assert_lengths([old_logp.len(), advantages.len()]);
    let mut sums = KlSums::default();
    for span in spans.iter().filter(|span| batch.mask[span.student.start as usize] != 0.0) {
        let tokens = tokens_of(&span.student);
        let d = sum(&old_logp[tokens.clone()]) - sum(&teacher_logp[tokens_of(&span.teacher)]);
        sums.tokens += tokens.len() as f64;
        sums.kl += d;
        for advantage in &mut advantages[tokens] {
            *advantage = (f64::from(*advantage) - coef * d) as f32;
        }
    }
    sums
}

/// Returns the sum in order; of one number that number, to the bit.
fn sum(logp: &[f32]) -> f64 {
    logp.iter().map(|&l| f64::from(l)).reduce(|sum, l| sum + l).expect("a span has tokens on both sides")
}

fn tokens_of(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distill::add_teacher_advantages;

    fn span(student: Range<u32>, teacher: Range<u32>) -> TokenSpan {
        TokenSpan { student, teacher }
    }

    #[test]
    fn every_token_of_a_span_has_the_difference_of_the_sums() {
        // Two responses of 3 and 2 tokens; the teacher has 2 and 3 for them. The last token is in no span.
        let spans = [span(0..2, 0..1), span(2..3, 1..2), span(3..4, 2..5)];
        let mut mask = [1.0; 5];
        let sums = leave_out_unaligned(&spans, &mut mask);
        assert_eq!((sums.tokens, sums.aligned, sums.spans), (5.0, 4.0, 3.0));
        assert_eq!((sums.share(), sums.span_tokens()), (0.8, 4.0 / 3.0));
        assert_eq!(mask, [1.0, 1.0, 1.0, 1.0, 0.0]);
        let packed = Packed { mask: &mask, seq_offsets: &[0, 3, 5] };
        let old = [-1.0, -0.5, -2.0, -1.0, f32::NAN];
        let teacher = [-2.0, -1.0, -0.5, -0.25, -0.75];
        let mut advantages = [0.0, 1.0, 0.0, 0.0, 9.0];
        let sums = add_span_advantages(2.0, packed, &spans, &old, &teacher, &mut advantages);
        // d: -1.5 + 2, -2 + 1, -1 + 1.5.
        assert_eq!(advantages, [-1.0, 0.0, 2.0, -1.0, 9.0]);
        assert_eq!((sums.kl, sums.tokens, sums.loss), (0.5 - 1.0 + 0.5, 4.0, 0.0));
    }

    #[test]
    fn a_span_with_a_masked_token_is_left_out_whole() {
        let spans = [span(0..2, 0..1), span(3..4, 1..2)];
        let mut mask = [1.0, 0.0, 1.0, 1.0];
        let sums = leave_out_unaligned(&spans, &mut mask);
        assert_eq!((mask, sums.tokens, sums.aligned), ([0.0, 0.0, 0.0, 1.0], 3.0, 1.0));
        assert_eq!(leave_out_unaligned(&[], &mut mask).share(), 0.0);
        assert_eq!((mask, leave_out_unaligned(&[], &mut []).share()), ([0.0; 4], 1.0));
    }

    #[test]
    fn spans_of_one_token_have_the_bits_of_the_formula_of_tokens() {
        let value = |i: u32| -0.37 * (1.0 + f64::from(i * 7919 % 101)).sqrt() as f32;
        let old: Vec<f32> = (0..40).map(value).collect();
        let teacher: Vec<f32> = (0..40).map(|i| value(i + 40)).collect();
        let spans: Vec<TokenSpan> = (0..40).map(|t| span(t..t + 1, t..t + 1)).collect();
        let mut mask = [1.0; 40];
        mask[7..11].fill(0.0);
        let before = mask;
        assert_eq!(leave_out_unaligned(&spans, &mut mask).share(), 1.0);
        assert_eq!(mask, before);
        let packed = Packed { mask: &mask, seq_offsets: &[0, 13, 40] };
        let (mut ours, mut theirs) = ([0.3f32; 40], [0.3f32; 40]);
        let sums = add_span_advantages(0.7, packed, &spans, &old, &teacher, &mut ours);
        let of_tokens = add_teacher_advantages(0.7, packed, &old, &teacher, &mut theirs);
        assert_eq!(ours.map(f32::to_bits), theirs.map(f32::to_bits));
        assert_eq!((sums.kl.to_bits(), sums.tokens), (of_tokens.kl.to_bits(), of_tokens.tokens));
    }
}
