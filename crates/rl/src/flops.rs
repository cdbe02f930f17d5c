//! The operations of a step, counted from the definition of the work; recomputation does not count.

use plimsoll_arch::ModelSpec;
use plimsoll_train::Sequence;

/// Returns the operations of one forward pass over the sequences of a step: each prompt once.
pub(crate) fn step_flops(spec: &ModelSpec, sequences: &[Sequence<'_>]) -> f64 {
    let prompts = sequences.chunk_by(|a, b| a.group == b.group).map(|group| group[0].prompt.len());
    forward_flops(spec, prompts, sequences.iter().map(|s| (s.prompt.len(), s.response.len())))
}

/// Returns how many forward passes an update is at least: frozen weights have no gradients, only their inputs.
pub fn update_passes(is_frozen: bool) -> f64 {
    if is_frozen { 2.0 } else { 3.0 }
}

/// Returns the operations of one forward pass, in sampling and in training alike: prompts once, each response token but
/// the last, and one head row per response token.
pub fn forward_flops(
    spec: &ModelSpec,
    prompts: impl Iterator<Item = usize>,
    sequences: impl Iterator<Item = (usize, usize)>,
) -> f64 {
    let rows = |first: usize, n: usize| -> f64 {
        // The mean context of n rows from position `first`.
        let context = first as f64 + (n as f64 + 1.0) / 2.0;
        n as f64 * (spec.layer_flops(0) as f64 + context * (spec.layer_flops(1) - spec.layer_flops(0)) as f64)
    };
    let prompts: f64 = prompts.map(|p| rows(0, p)).sum();
    let responses: f64 =
        sequences.map(|(p, t)| rows(p, t.saturating_sub(1)) + t as f64 * spec.head_flops() as f64).sum();
    prompts + responses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nano() -> ModelSpec {
        ModelSpec::preset("nano").expect("a preset")
    }

    #[test]
    fn a_row_is_counted_with_the_keys_that_it_sees() {
        let spec = nano();
        let rows =
            |keys: std::ops::RangeInclusive<u64>| keys.map(|keys| spec.layer_flops(keys) as f64).sum::<f64>();
        let of =
            |prompt, response| forward_flops(&spec, [prompt].into_iter(), [(prompt, response)].into_iter());
        // The last token of a response has no row, and each token one of the head.
        let head = spec.head_flops() as f64;
        assert_eq!(of(5, 1), rows(1..=5) + head);
        assert_eq!(of(5, 4), rows(1..=5) + rows(6..=8) + 4.0 * head);
        assert_eq!(of(5, 0), rows(1..=5));
    }

    #[test]
    fn a_group_computes_its_prompt_once() {
        let (spec, prompt, response) = (nano(), [1, 2, 3], [4, 5]);
        let of = |groups: [usize; 2]| {
            step_flops(&spec, &groups.map(|group| Sequence { group, prompt: &prompt, response: &response }))
        };
        let once = forward_flops(&spec, [3].into_iter(), std::iter::empty());
        assert_eq!(of([0, 1]) - of([0, 0]), once);
        assert!(once > 0.0 && update_passes(false) > update_passes(true));
    }
}
