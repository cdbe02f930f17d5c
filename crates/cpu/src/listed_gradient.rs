//! The gradient of a head row by the logits of its listed tokens, K each, in place of what all other tokens have.

use super::CpuDevice;
use super::view::Real;
use plimsoll_base::math;
use plimsoll_device::{ListedBackward, Logits};
use plimsoll_memory::Buf;

/// `ListedBackward`, for reading.
pub(super) struct ListedRows<'a> {
    ids: &'a [u32],
    logprobs: &'a [f32],
    slopes: &'a [f32],
    rest: &'a [f32],
    d: &'a [f32],
    k: usize,
}

/// A row's other inputs of the gradient by its logits.
pub(super) struct RowInputs {
    pub(super) target: u32,
    pub(super) lse: f32,
    pub(super) entropy: f32,
    pub(super) dlogprob: f32,
    pub(super) dentropy: f32,
}

impl<'a> ListedRows<'a> {
    pub(super) fn new(dev: &'a CpuDevice, of: ListedBackward<'a>, rows: usize) -> ListedRows<'a> {
        let k = of.listed.per_row(rows);
        let lens = [of.slopes, of.rest, of.d].map(Buf::len);
        assert_eq!(lens, [rows * k, rows, rows], "numbers of {rows} rows of {k}");
        ListedRows {
            ids: dev.read(of.listed.ids),
            logprobs: dev.read(of.listed.logprobs),
            slopes: dev.read(of.slopes),
            rest: dev.read(of.rest),
            d: dev.read(of.d),
            k,
        }
    }

    /// Returns the derivative of the loss by a token's logit that is not listed, divided by the token's probability.
    pub(super) fn rest(&self, row: usize) -> f32 {
        if self.d[row] == 0.0 { 0.0 } else { self.d[row] * self.rest[row] }
    }

    /// Writes the gradients of a row's listed tokens that are in a tile, whose columns begin at `first`.
    pub(super) fn put<E: Real>(
        &self,
        row: usize,
        of: &RowInputs,
        how: Logits<'_>,
        first: usize,
        to: &mut [E],
    ) {
        let d = self.d[row];
        if d == 0.0 {
            return;
        }
        for at in row * self.k..(row + 1) * self.k {
            let column = (self.ids[at] as usize).wrapping_sub(first);
            let Some(to) = to.get_mut(column) else { continue };
            let logprob = self.logprobs[at];
            let p = math::exp_f32(logprob);
            let delta = f32::from(self.ids[at] == of.target);
            let policy = of.dlogprob * (delta - p) - of.dentropy * p * (logprob + of.entropy);
            let slope = how.cap.map_or(1.0, |cap| {
                let t = (logprob + of.lse) / (cap * how.factor);
                1.0 - t * t
            });
            *to = E::from_f32(how.factor * (d * self.slopes[at] + policy) * slope);
        }
    }
}
