//! What a step that draws ahead says of itself.

/// What a step says of the samples that it took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct AheadReport {
    /// Updates between the weights that drew them and those that they train.
    pub staleness: u64,
    /// Rollouts that wait for later steps.
    pub waiting: u32,
}
