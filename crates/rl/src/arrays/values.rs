//! Per-token host arrays of a role whose head outputs values. Legend: N response tokens of the step.

use plimsoll_plan::{StepArrays, StepPart};

/// A critic's arrays, [N], or those of a reward model in training, which have one entry per sequence.
#[derive(Debug)]
pub struct ValueArrays {
    /// Values of the state before each token, when the responses were sampled.
    pub old_values: Vec<f32>,
    /// Targets of the values.
    pub returns: Vec<f32>,
    /// Values by the trained critic.
    pub values: Vec<f32>,
    /// Derivative of the loss with respect to `values`.
    pub d_values: Vec<f32>,
}

impl ValueArrays {
    pub(crate) fn bind(planned: &StepArrays) -> ValueArrays {
        let array = || planned.array_of(StepPart::Values);
        ValueArrays { old_values: array(), returns: array(), values: array(), d_values: array() }
    }

    /// Begins a step of `tokens` entries; all arrays are zero.
    pub(crate) fn begin(&mut self, tokens: usize) {
        let ValueArrays { old_values, returns, values, d_values } = self;
        [old_values, returns, values, d_values].into_iter().for_each(|array| zero(array, tokens));
    }
}

/// Makes an array of `tokens` zeros.
pub(crate) fn zero(array: &mut Vec<f32>, tokens: usize) {
    array.clear();
    array.resize(tokens, 0.0);
}
