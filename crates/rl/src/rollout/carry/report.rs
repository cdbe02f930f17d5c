//! What a step with carried groups says of itself.

use super::groups::Response;

/// What a step with carried groups reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CarryReport {
    /// T.
    pub ticks: u64,
    /// Groups that go on in the next step.
    pub carried: usize,
    /// Mean updates between the weights that drew a trained token and those that it trains.
    pub staleness: f64,
    /// Share of trained tokens that older weights drew.
    pub stale_share: f64,
    /// Share of the places of responses under way, over all ticks, in which none drew.
    pub idle_share: f64,
    /// Seconds of grading that ran while earlier steps did something else.
    pub seconds_ahead: f64,
}

impl CarryReport {
    /// Counts the ages of trained tokens.
    pub(super) fn count<'r>(&mut self, responses: impl Iterator<Item = &'r Response>, version: u64) {
        let ages = responses.flat_map(Response::drawn).map(|drawn| version - drawn);
        let (mut tokens, mut sum, mut old) = (0u64, 0u64, 0u64);
        ages.for_each(|age| (tokens, sum, old) = (tokens + 1, sum + age, old + u64::from(age > 0)));
        let of = |count: u64| count as f64 / tokens.max(1) as f64;
        (self.staleness, self.stale_share) = (of(sum), of(old));
    }
}
