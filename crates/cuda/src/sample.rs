//! Launchers of the sampler: `head.cu` draws untruncated tokens on the way, `sampler.cu` truncated ones.
//!
//! A token is a function of its row's logits, the seed and the row's key. The CPU's device draws by one uniform number
//! over the whole vocabulary; here the row's first number draws a part of the vocabulary and the second a token within
//! the part, so that logits need not be read twice. The distribution is the same, the tokens are not: the fingerprint
//! of a run names its kind of machine.

use super::head::{Head, Inputs, Pick, tiles};
use super::{CudaDevice, Launch};
use crate::layouts::TILE;
use plimsoll_device::{KEY_WORDS, Sample, Sampling};
use plimsoll_memory::Buf;

/// Ids that a block of `sampler.cu` takes at once: tiles hold a whole number of them.
const STRIDE: usize = 4096;
const _: () = assert!(TILE.is_multiple_of(STRIDE));

/// Draws a token for each row. `keys`: [R, KEY_WORDS] u32.
///
/// A row whose logits are not finite gets the token `u32::MAX` and the log-probability NaN. Panics on parameters
/// without meaning: callers refuse them with the run file.
pub(crate) fn sample(dev: &CudaDevice, args: Sample<'_>) {
    let logits = args.tempered();
    let Sample { x, w, keys, how, tile, tokens, out, .. } = args;
    check(&how);
    assert_eq!(keys.len(), tokens.len() * KEY_WORDS, "keys of {} rows", tokens.len());
    super::noise::put_on(dev, x, tokens.len(), keys);
    let inputs = Inputs { x, w, rows: tokens.len(), logits };
    let head = Head::new(dev, inputs, tile, out, how.truncates());
    if how.truncates() {
        return truncated(&head, keys, how, tokens);
    }
    let pick = if how.temperature > 0.0 { Pick::Draw(keys) } else { Pick::Largest };
    for chunk in head.chunks() {
        head.fill_stats(chunk, pick);
        head.finish_tokens(chunk, pick, tokens);
    }
}

/// Panics on parameters that no distribution has.
fn check(how: &Sampling) {
    assert!(how.temperature.is_finite() && how.temperature >= 0.0, "a temperature of {}", how.temperature);
    assert!(how.top_p > 0.0 && how.top_p <= 1.0, "a top_p of {}", how.top_p);
    assert!((0.0..=1.0).contains(&how.min_p), "a min_p of {}", how.min_p);
}

/// Draws with truncation: all logits of a chunk, a token of those kept, then the head's outputs for that token.
fn truncated(head: &Head<'_>, keys: Buf<'_>, how: Sampling, tokens: Buf<'_>) {
    let (dev, vocab) = (head.dev, head.vocab());
    for chunk in head.chunks() {
        for (first, cols) in tiles(vocab, TILE) {
            head.compute(chunk, first, cols);
        }
        let (logits, keys) = (head.logits(chunk, 0, TILE.min(vocab)), chunk.of(keys, KEY_WORDS));
        let Sampling { top_k, top_p, min_p, .. } = how;
        let drawn = chunk.of(tokens, 1);
        let args = args![dev, logits, vocab, TILE, head.how.factor, keys, top_k, top_p, min_p, drawn];
        let launch = Launch { grid: [chunk.rows as u32, 1, 1], block: 1024, shared: 0 };
        dev.launch("sampler", "draw_truncated", launch, &args);
        head.fill_stats(chunk, Pick::Targets(tokens));
        head.finish_targets(chunk, tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_no_distribution_has_are_refused() {
        let good = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1 };
        check(&good);
        check(&Sampling { temperature: 0.0, top_k: 5, top_p: 0.1, min_p: 1.0, ..good });
        let bad = [
            Sampling { temperature: f32::NAN, ..good },
            Sampling { temperature: -1.0, ..good },
            Sampling { top_p: 0.0, ..good },
            Sampling { top_p: 1.5, ..good },
            Sampling { min_p: f32::NAN, ..good },
            Sampling { min_p: -0.1, ..good },
        ];
        for how in bad {
            assert!(std::panic::catch_unwind(|| check(&how)).is_err(), "{how:?}");
        }
    }
}
