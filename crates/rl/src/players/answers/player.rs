//! The player whose responses are answers to the data's prompts.

use super::early_grading::EarlyGrading;
use super::graded::{grade, grade_ahead};
use super::responding::Responding;
use super::whole;
use crate::players::chunk::{RankChunks, ResponseChunk};
use crate::players::dealt::{OwnPart, draw};
use crate::players::drawing::{Done, Drawing, Drawn};
use crate::players::episodes::Events;
use crate::players::groups::Group;
use crate::players::player::{Answered, Grades, Play, Player, Prompts};
use crate::players::step_rollout::StepRollout;
use crate::roles::Trainer;
use crate::supply::gathered::Gathered;
use plimsoll_base::Result;
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_ranks::Group as Ranks;
use plimsoll_rollout::{GroupTimes, SoFar};

/// Draws answers to prompts of the data.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answers;

impl Player for Answers {
    fn prompts(&mut self, _: &TextModel, data: Prompts<'_>, first: u64, count: usize) -> Result<Vec<Item>> {
        data(first, count)
    }

    fn play(
        &mut self,
        trainer: &mut Trainer<'_>,
        play: &mut Play<'_>,
        count: usize,
        gathered: &mut Gathered,
    ) -> Result<Answered> {
        whole::answer(trainer, play, count, gathered)
    }

    fn play_on(
        &mut self,
        trainer: &mut Trainer<'_>,
        play: &mut Play<'_>,
        groups: &mut [Group],
        times: GroupTimes,
    ) -> Result<StepRollout> {
        draw(trainer, play, groups, times, &mut respond)
    }

    fn grade(
        &mut self,
        trainer: &mut Trainer<'_>,
        play: &mut Play<'_>,
        taken: &[Group],
        _: Vec<Events>,
        gathered: &mut Gathered,
    ) -> Result<Grades> {
        grade(trainer, play, taken, gathered)
    }

    fn grade_ahead(&mut self, ranks: &Ranks, play: &mut Play<'_>, groups: &[Group]) {
        grade_ahead(play, ranks, groups);
    }
}

/// Draws a rank's responses to the step's tick.
fn respond(
    trainer: &mut Trainer<'_>,
    play: &mut Play<'_>,
    part: &OwnPart<'_>,
    drawing: Drawing<'_>,
) -> Result<(Done, RankChunks)> {
    let request = part.request(play.run, play.eos);
    let begun: Vec<SoFar<'_>> = part.responses().iter().map(|response| response.begun()).collect();
    let stop = part.stop(play.text, play.run)?;
    let grading = EarlyGrading::new(play, &part.groups, trainer.group);
    let mut responding = Responding { stop, new_tokens: request.max_new_tokens, drawing, grading };
    let ran = trainer.rollout_from(&request, &begun, &mut responding);
    let mut drawing = responding.drawing;
    let stats = drawing.finish(ran)?;
    let (samples, ticks) = (&trainer.sampler.samples, drawing.times.bound());
    // What was drawn after the step's tick is dropped.
    let piece = |(s, of): (usize, &Drawn)| {
        let drawn = of.ticks.min(ticks) as usize;
        let tokens = if drawn > 0 { of.start..of.start + drawn } else { 0..0 };
        ResponseChunk {
            ids: samples.ids(s)[tokens.clone()].to_vec(),
            logprobs: samples.logprobs(s)[tokens].to_vec(),
            finish: of.finish.filter(|_| of.ticks <= ticks),
            ..ResponseChunk::default()
        }
    };
    let pieces = drawing.drawn.iter().enumerate().map(piece).collect();
    let dropped = drawing.drawn.iter().map(|of| of.ticks.saturating_sub(ticks)).sum();
    Ok((drawing.done(), RankChunks { pieces, stats, dropped, events: Events::default() }))
}
