//! What a step that draws ahead says of itself.

/// What a step says of the samples that it took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct AheadReport {
    pub ages: Ages,
    /// Rollouts that wait for later steps.
    pub waiting: u32,
}

/// How old tokens are when they are trained: in updates between the weights that drew them and those that they train.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ages {
    pub tokens: u64,
    /// Tokens that older weights drew.
    pub stale: u64,
    /// Sum of all ages.
    pub sum: u64,
}

impl Ages {
    /// Returns the mean age.
    pub(crate) fn mean(&self) -> f64 {
        self.sum as f64 / self.tokens.max(1) as f64
    }

    /// Returns the share of tokens that older weights drew.
    pub(crate) fn stale_share(&self) -> f64 {
        self.stale as f64 / self.tokens.max(1) as f64
    }
}
