//! The stop condition of a rollout into which weights may arrive: a response also stops at their tick.

use plimsoll_base::Result;
use plimsoll_infer::responses::TextStop;
use plimsoll_rollout::{Finish, StopCondition};
use plimsoll_run::under_way;

/// When weights arrive.
#[derive(Clone, Copy)]
pub(super) enum SyncPoint<'b> {
    /// Not before all responses have ended.
    Never,
    /// At a tick.
    Tick(u32),
    /// The tick that the longest response has reached when this is true.
    When(&'b dyn Fn() -> bool),
}

/// A rollout that stops at a tick.
pub(super) struct SyncStop<'d> {
    stop: TextStop<'d>,
    new_tokens: usize,
    /// Tokens at which a response stops.
    pub tick: usize,
    when: Option<&'d dyn Fn() -> bool>,
    longest: usize,
    /// True of a response that stopped at the tick.
    is_cut: Vec<bool>,
    /// How a response ended by itself, which may be after the tick.
    pub finish: Vec<Option<Finish>>,
}

impl<'d> SyncStop<'d> {
    pub(super) fn new(
        stop: TextStop<'d>,
        responses: usize,
        new_tokens: usize,
        sync: SyncPoint<'d>,
    ) -> SyncStop<'d> {
        let (tick, when) = match sync {
            SyncPoint::Never => (usize::MAX, None),
            SyncPoint::Tick(tick) => (tick as usize, None),
            SyncPoint::When(when) => (usize::MAX, Some(when)),
        };
        let (is_cut, finish) = (vec![false; responses], vec![None; responses]);
        under_way::expect(responses);
        SyncStop { stop, new_tokens, tick, when, longest: 0, is_cut, finish }
    }
}

impl StopCondition for SyncStop<'_> {
    fn stops(&mut self, sample: usize, response: &[u32]) -> bool {
        let has_stopped = self.stop.stops(sample, response);
        self.longest = self.longest.max(response.len());
        if self.when.is_some_and(|when| when()) {
            // Another response may be a token further in a moment; what is beyond the tick is dropped.
            (self.tick, self.when) = (self.longest, None);
        }
        let goes_on = !has_stopped && response.len() < self.new_tokens;
        self.is_cut[sample] = goes_on && response.len() >= self.tick;
        has_stopped || self.is_cut[sample]
    }

    fn has_masks(&self) -> bool {
        self.stop.has_masks()
    }

    fn mask(&mut self, sample: usize, so_far: &[u32], words: &mut [u32]) -> Result<bool> {
        self.stop.mask(sample, so_far, words)
    }

    fn ended(&mut self, sample: usize, _: &[u32], finish: Finish) {
        if !self.is_cut[sample] {
            self.finish[sample] = Some(finish);
        }
        under_way::ended();
    }
}
