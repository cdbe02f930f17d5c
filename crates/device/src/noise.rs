//! A difference between what the sampler reads and what the trainer reads: other stacks have it between their two
//! engines, this one has not, so `bench mismatch` puts it on to see what it does to a run.

/// Says what is done to the hidden numbers of a row before the sampler's head; the trainer's head reads them as they
/// are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SamplerNoise {
    /// Each number times 1 + `sigma` g, with normal g, in a `share` of the rows that their keys choose.
    Normal {
        /// Deviation of the factor.
        sigma: f32,
        /// Share of the rows, from 0 to 1: below 1 it is as if a few tokens took other experts.
        share: f32,
        /// Seed of the noise, which is that of a token wherever it is computed.
        seed: u64,
    },
    /// Numbers rounded to 8 bits (e4m3), scaled so that the largest of the row is the largest of the format.
    EightBits,
}
