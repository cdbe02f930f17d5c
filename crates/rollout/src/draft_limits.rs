//! What an engine may draft, and what passes cost.

/// Where drafts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftSource {
    /// The response itself and its prompt.
    Ngram,
    /// These, the other responses to the prompt, earlier ones, and those to other prompts.
    Suffix,
}

/// What an engine may draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftLimits {
    pub source: DraftSource,
    /// Most drafts of a sequence in a pass.
    pub depth: usize,
    /// Most rows of a pass, drafts included; more sequences than that draft nothing.
    pub rows: usize,
    /// Texts that are kept: responses, and pieces of prompts as long as these.
    pub texts: usize,
    /// What a pass without drafts costs, and one with drafts, by which is decided how many of them pay.
    pub costs: [PassCosts; 2],
}

/// The time of a pass of 1, 2, 4 and so on rows, in thousandths of that of one row without drafts. It is the plan's,
/// not measured in the run, so that a run that is repeated drafts alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassCosts(pub [u32; 9]);

impl PassCosts {
    /// Passes whose rows cost nothing.
    pub const FLAT: PassCosts = PassCosts([1000; 9]);

    /// Returns the time of a pass of some rows.
    pub(crate) fn of(&self, rows: usize) -> f32 {
        let at = (rows.max(1).ilog2() as usize).min(self.0.len() - 2);
        let (first, [low, high]) = (1 << at, [self.0[at], self.0[at + 1]].map(|cost| cost as f32));
        low + (high - low) * (rows as f32 - first as f32) / first as f32
    }
}
