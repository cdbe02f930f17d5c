//! Images that the answers of environments bring while a rollout runs: the tower sees them between two passes.

use crate::image_table::ImageTable;
use plimsoll_base::Result;
use plimsoll_device::Device;
use plimsoll_memory::InPhase;
use plimsoll_model::TextImage;
use plimsoll_rollout::{Finish, StopCondition};

/// What ends responses and answers turns, with the table in which images of answers are seen.
pub(crate) struct SeesAnswers<'s, 'p, 'a> {
    pub(crate) stop: &'s mut dyn StopCondition,
    pub(crate) dev: &'s dyn Device,
    pub(crate) phase: &'s InPhase<'p>,
    pub(crate) images: &'s mut ImageTable<'a>,
}

impl StopCondition for SeesAnswers<'_, '_, '_> {
    fn stops(&mut self, sample: usize, turn: &[u32]) -> bool {
        self.stop.stops(sample, turn)
    }

    fn has_masks(&self) -> bool {
        self.stop.has_masks()
    }

    fn mask(&mut self, sample: usize, so_far: &[u32], words: &mut [u32]) -> Result<bool> {
        self.stop.mask(sample, so_far, words)
    }

    fn has_turns(&self) -> bool {
        self.stop.has_turns()
    }

    fn turn_ended(&mut self, sample: usize, turn: &[u32], finish: Finish) {
        self.stop.turn_ended(sample, turn, finish);
    }

    fn answer(&mut self, wait: bool, tokens: &mut Vec<u32>) -> Result<Option<usize>> {
        let sample = self.stop.answer(wait, tokens)?;
        for image in self.images.album.of_prompts(std::iter::once(tokens.as_slice())) {
            self.images.see_answer(self.dev, self.phase, &image)?;
        }
        Ok(sample)
    }

    fn images(&self) -> &[TextImage] {
        self.images.held()
    }

    fn ended(&mut self, sample: usize, response: &[u32], finish: Finish) {
        self.stop.ended(sample, response, finish);
    }
}
