//! The B of all experts of a layer in one tensor, as peft has it: side by side, rank by rank.
//!
//! Legend: E experts, r rank, N outputs. B of an expert is [N, r]; the tensor is [N, r E], and its column j E + e is
//! column j of expert e. The A of all experts are one after the other, as their parameters are.

use crate::params::Param;
use plimsoll_arch::ParamKind;
use plimsoll_base::Result;

/// The parameters that a tensor weaves into its rows, by expert.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Woven<'t> {
    pub(crate) params: &'t [Param],
}

impl<'t> Woven<'t> {
    /// Returns the parameters of one tensor, if they are B of several experts.
    pub(crate) fn of(params: &'t [Param]) -> Option<Woven<'t>> {
        let is_b = matches!(params[0].kind, ParamKind::AdapterB(_));
        (is_b && params.len() > 1).then_some(Woven { params })
    }

    /// Returns the tensor's name on disk.
    pub(crate) fn name(&self) -> &'t str {
        &self.params[0].parts[0].name
    }

    /// Returns r E, the width of the tensor.
    pub(crate) fn width(&self) -> usize {
        self.params[0].k as usize * self.params.len()
    }

    /// Calls `each` with the first row of a chunk of all rows, space for it, and space for its rows of one expert.
    pub(crate) fn each_chunk(
        &self,
        values: &mut [f32],
        mut each: impl FnMut(usize, &mut [f32], &mut [f32]) -> Result<()>,
    ) -> Result<()> {
        let (width, own) = (self.width(), self.params[0].k as usize);
        let (chunk, all) = (values.len() / (width + own), self.params[0].n as usize);
        assert!(chunk > 0, "staging of {} values for rows of {width} and {own}", values.len());
        let (rows, of_one) = values.split_at_mut(chunk * width);
        for first in (0..all).step_by(chunk) {
            let n = chunk.min(all - first);
            each(first, &mut rows[..n * width], &mut of_one[..n * own])?;
        }
        Ok(())
    }

    /// Copies an expert's values from rows of the tensor.
    pub(crate) fn pick(&self, expert: usize, rows: &[f32], own: &mut [f32]) {
        let values = rows.iter().skip(expert).step_by(self.params.len());
        own.iter_mut().zip(values).for_each(|(own, value)| *own = *value);
    }

    /// Copies an expert's values to rows of the tensor.
    pub(crate) fn put(&self, expert: usize, own: &[f32], rows: &mut [f32]) {
        let values = rows.iter_mut().skip(expert).step_by(self.params.len());
        own.iter().zip(values).for_each(|(own, value)| *value = *own);
    }
}
