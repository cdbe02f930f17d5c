//! The stop condition of a step's rollout without an environment: a response also stops at the step's tick.

use super::early_grading::EarlyGrading;
use crate::players::drawing::Drawing;
use plimsoll_base::Result;
use plimsoll_infer::responses::TextStop;
use plimsoll_rollout::{Finish, StopCondition};
use plimsoll_run::under_way;

pub(super) struct Responding<'d> {
    pub stop: TextStop<'d>,
    pub new_tokens: usize,
    pub drawing: Drawing<'d>,
    pub grading: EarlyGrading<'d>,
}

impl StopCondition for Responding<'_> {
    fn stops(&mut self, sample: usize, response: &[u32]) -> bool {
        let has_stopped = self.stop.stops(sample, response);
        if has_stopped || response.len() == self.new_tokens {
            return has_stopped;
        }
        let ticks = (response.len() - self.drawing.drawn[sample].start) as u64;
        self.drawing.drew(sample, ticks);
        self.grading.drew(&self.drawing);
        let is_cut = ticks >= self.drawing.bound();
        if is_cut {
            self.drawing.cut(sample);
        }
        is_cut
    }

    fn has_masks(&self) -> bool {
        self.stop.has_masks()
    }

    fn mask(&mut self, sample: usize, so_far: &[u32], words: &mut [u32]) -> Result<bool> {
        self.stop.mask(sample, so_far, words)
    }

    fn ended(&mut self, sample: usize, response: &[u32], finish: Finish) {
        under_way::ended();
        let drawn = self.drawing.drawn[sample];
        let ticks = (response.len() - drawn.start) as u64;
        self.drawing.tail.ended(ticks);
        if drawn.is_over() {
            return;
        }
        self.drawing.end(sample, ticks, finish);
        self.grading.add(sample, response, finish, self.drawing.end_of(sample));
    }
}
