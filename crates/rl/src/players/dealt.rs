//! A step's rollout that ranks share: each goes on with the groups that it is dealt, and all get what all have drawn.

use super::chunk::RankChunks;
use super::counts::count_rows;
use super::drawing::{Done, Drawing, Drawn};
use super::groups::{Group, Response};
use super::player::Play;
use super::step_rollout::{StepRollout, take};
use crate::roles::Trainer;
use crate::rollout::exchange::{Deal, exchange};
use crate::rollout::message::Kind;
use plimsoll_base::Result;
use plimsoll_config::RunSpec;
use plimsoll_infer::responses::TextStop;
use plimsoll_infer::sampler::sampling;
use plimsoll_infer::text::TextModel;
use plimsoll_rollout::{GroupTimes, Request, RolloutStats, StopCondition};
use plimsoll_run::carry::CarryCounts;

/// The groups that a rank goes on with, as the engine is asked for them.
pub(crate) struct OwnPart<'g> {
    pub groups: Vec<&'g Group>,
    prompts: Vec<&'g [u32]>,
    numbers: Vec<usize>,
    first_sample_id: u64,
}

impl<'g> OwnPart<'g> {
    pub(crate) fn new(groups: Vec<&'g Group>) -> OwnPart<'g> {
        let first_sample_id = groups.iter().map(|group| group.first_sample_id).min().unwrap_or(0);
        let number =
            |group: &&Group| (group.first_sample_id - first_sample_id) as usize / group.responses.len();
        let numbers = groups.iter().map(number).collect();
        let prompts = groups.iter().map(|group| group.item.ids.as_slice()).collect();
        OwnPart { groups, prompts, numbers, first_sample_id }
    }

    pub(crate) fn responses(&self) -> Vec<&'g Response> {
        self.groups.iter().flat_map(|group| &group.responses).collect()
    }

    pub(crate) fn request<'r>(&'r self, run: &RunSpec, eos: &'r [u32]) -> Request<'r> {
        Request {
            prompts: &self.prompts,
            group_size: run.rollout.group_size as usize,
            max_new_tokens: run.rollout.max_new_tokens as usize,
            sampling: sampling(&run.rollout, run.seed),
            eos,
            first_sample_id: self.first_sample_id,
            numbers: &self.numbers,
        }
    }

    /// Returns the stop strings of its responses, one of which may have begun in what they have.
    ///
    /// Errors: `stop-string-invalid`.
    pub(crate) fn stop<'s>(&self, text: &'s TextModel, run: &'s RunSpec) -> Result<TextStop<'s>> {
        let (responses, stops) = (self.responses(), &run.rollout.stop);
        let mut stop = TextStop::new(text, stops, responses.len())?;
        for (s, response) in responses.iter().enumerate().filter(|_| !stops.is_empty()) {
            (1..=response.ids.len()).for_each(|drawn| _ = stop.stops(s, &response.ids[..drawn]));
        }
        Ok(stop)
    }
}

/// Goes on with a rank's part to the step's tick.
pub(super) type DrawOwn<'f> = &'f mut dyn FnMut(
    &mut Trainer<'_>,
    &mut Play<'_>,
    &OwnPart<'_>,
    Drawing<'_>,
) -> Result<(Done, RankChunks)>;

/// Draws to the step's tick, each rank its part by `draw_own`.
///
/// Errors: those of `draw_own`; `rank-lost` where another rank has one.
pub(super) fn draw(
    trainer: &mut Trainer<'_>,
    play: &mut Play<'_>,
    groups: &mut [Group],
    times: GroupTimes,
    draw_own: DrawOwn<'_>,
) -> Result<StepRollout> {
    let mut counts = CarryCounts::default();
    count_rows(&mut counts, groups.iter().map(|group| (group.item.ids.len(), &group.responses[..])));
    let deal = Deal::new(trainer.group, &trainer.lengths, groups.iter().map(Group::key));
    let own = deal.own(trainer.group);
    let part = OwnPart::new(own.iter().map(|g| &groups[*g]).collect());
    let begun = |response: &&Response| Drawn::new(response.ids.len(), response.finish.is_some());
    let drawn = part.responses().iter().map(begun).collect();
    let drawing = Drawing::new(play.size(), &own, drawn, times, trainer.group);
    let (Done { times, tail_tick_s }, drawn) = draw_own(trainer, play, &part, drawing)?;
    let all = exchange(trainer.group, Kind::Samples, Ok(drawn))?;
    let mut stats = RolloutStats::default();
    for part in &all {
        stats.add_counts(&part.stats);
        counts.dropped_tokens += part.dropped;
    }
    let (pieces, events): (Vec<_>, Vec<_>) = all.into_iter().map(|it| (it.pieces, it.events)).unzip();
    let pieces = deal.in_order(pieces, play.size()).collect();
    let gathered = take((trainer, play.step), groups, pieces, stats, (&mut counts, times.bound()));
    Ok(StepRollout { chosen: times.chosen(), gathered, events, counts, tail_tick_s })
}
