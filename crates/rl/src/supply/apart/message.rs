//! What ranks that sample and ranks that train hand to one another between two steps.

use super::place::ApartRanks;
use crate::context::{Cursor, StepContext};
use crate::methods::report::StepReport;
use crate::players::{Group, Response};
use crate::roles::Trainer;
use crate::rollout::exchange::{SentResponse, exchange};
use crate::rollout::message::Kind;
use crate::rollout::ranks::Sample;
use crate::supply::gathered::Gathered;
use crate::supply::group::{Runs, SampleGroup};
use crate::supply::in_flight::Arrival;
use crate::supply::rollout::Rollout;
use plimsoll_base::{Error, Result, slugs};
use plimsoll_infer::text::Item;
use plimsoll_rollout::Samples;
use plimsoll_run::checkpoint::BufferState;
use plimsoll_run::vitals::Vitals;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A rank's message to all others at the end of a step.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct StepMessage {
    /// The part of the first rank that trains.
    pub trained: Option<TrainedStep>,
    /// The part of the first rank that samples.
    pub sampled: Option<SampledRollouts>,
    /// An error that all ranks that train have met: its place among the slugs of such, and its message.
    pub failed: Option<(u32, String)>,
}

/// The facts of a step that ranks that sample need.
#[derive(Serialize, Deserialize)]
pub(super) struct TrainedStep {
    /// Updates of each trained role.
    pub updates: Vec<u64>,
    pub reward: Option<f64>,
    pub vitals: Vitals,
}

/// The rollouts that were drawn since ranks met last.
#[derive(Serialize, Deserialize)]
pub(super) struct SampledRollouts {
    /// The next prompt and the next sample.
    cursor: (u64, u64),
    rollouts: Vec<SentRollout>,
    /// The groups of the rollout under way, if weights may arrive in the middle of one.
    under_way: Vec<PartialGroup>,
    gathered: Gathered,
    /// The step whose samples are the next to be finished, and their tick.
    arrival: Option<(u32, u32)>,
}

/// A rollout that was drawn and graded.
#[derive(Serialize, Deserialize)]
struct SentRollout {
    groups: Vec<GradedGroup>,
    versions: Vec<Runs>,
}

#[derive(Serialize, Deserialize)]
struct GradedGroup {
    position: u64,
    greedy: Option<f32>,
    samples: Vec<Sample>,
}

#[derive(Serialize, Deserialize)]
struct PartialGroup {
    position: u64,
    first_sample_id: u64,
    responses: Vec<Response>,
}

impl StepMessage {
    /// Returns what a rank that has trained keeps and hands over. An error that all ranks that train meet is both.
    pub(super) fn of_training(
        trainer: &Trainer<'_>,
        made: Result<StepReport>,
    ) -> (Result<StepReport>, Result<StepMessage>) {
        let own = match &made {
            Ok(report) => {
                let updates = trainer.trained().map(|role| role.updates()).collect();
                let trained = TrainedStep { updates, reward: report.reward, vitals: report.vitals };
                StepMessage { trained: Some(trained), ..StepMessage::default() }
            }
            Err(error) => match slugs::OF_ALL_RANKS.iter().position(|slug| *slug == error.slug) {
                Some(at) => {
                    StepMessage { failed: Some((at as u32, error.message.clone())), ..StepMessage::default() }
                }
                None => return (Ok(StepReport::default()), made.map(|_| StepMessage::default())),
            },
        };
        (made, Ok(own))
    }

    /// Returns the error that another rank has met and this one shares, if there is one.
    fn error(&self) -> Option<Error> {
        let (place, message) = self.failed.as_ref()?;
        Some(Error::new(slugs::OF_ALL_RANKS.get(*place as usize)?, message.clone()))
    }
}

impl SampledRollouts {
    /// Returns what was drawn, after which `cursor` is next.
    pub(super) fn new(
        cursor: Cursor,
        rollouts: Vec<Rollout>,
        under_way: Vec<Group>,
        arrival: Option<Arrival>,
        gathered: Gathered,
    ) -> SampledRollouts {
        let group = |Group { position, first_sample_id, responses, .. }| PartialGroup {
            position,
            first_sample_id,
            responses,
        };
        SampledRollouts {
            cursor: (cursor.data_position, cursor.next_sample_id),
            rollouts: rollouts.into_iter().map(SentRollout::of).collect(),
            under_way: under_way.into_iter().map(group).collect(),
            gathered,
            arrival: arrival.map(|arrival| (arrival.rollout, arrival.tick)),
        }
    }

    /// Returns what was drawn, which `of` says of the step and its weights, and moves `cx` past it.
    ///
    /// Errors: those of reading prompts.
    fn read(self, cx: &mut StepContext<'_>, of: BufferState) -> Result<ReceivedRollouts> {
        let rollouts =
            self.rollouts.into_iter().map(|rollout| rollout.read(cx, of)).collect::<Result<_>>()?;
        let mut under_way = Vec::with_capacity(self.under_way.len());
        for PartialGroup { position, first_sample_id, responses } in self.under_way {
            under_way.push(Group { position, first_sample_id, item: item(cx, position)?, responses });
        }
        cx.cursor = Cursor { data_position: self.cursor.0, next_sample_id: self.cursor.1 };
        let arrival = self.arrival.map(|(rollout, tick)| Arrival { step: of.step, rollout, tick });
        Ok(ReceivedRollouts { rollouts, under_way, arrival, gathered: self.gathered })
    }
}

impl SentRollout {
    fn of(rollout: Rollout) -> SentRollout {
        let Rollout { groups, samples, versions, .. } = rollout;
        let mut s = 0;
        let mut group = |SampleGroup { position, greedy, scored, texts, .. }: SampleGroup| {
            let sample = |(scored, text)| {
                s += 1;
                Sample { sent: SentResponse::of(&samples, s - 1), text, scored }
            };
            GradedGroup { position, greedy, samples: scored.into_iter().zip(texts).map(sample).collect() }
        };
        SentRollout { groups: groups.into_iter().map(&mut group).collect(), versions }
    }

    /// Returns the rollout with its prompts.
    ///
    /// Errors: those of reading them.
    fn read(self, cx: &mut StepContext<'_>, of: BufferState) -> Result<Rollout> {
        let count = self.groups.iter().map(|group| group.samples.len()).sum();
        let mut samples = Samples::with_capacity(count, cx.run.rollout.max_new_tokens as usize);
        samples.clear();
        let mut groups = Vec::with_capacity(self.groups.len());
        for GradedGroup { position, greedy, samples: of_group } in self.groups {
            let (mut scored, mut texts) = (Vec::new(), Vec::new());
            for sample in of_group {
                sample.sent.push_to(&mut samples);
                scored.push(sample.scored);
                texts.push(sample.text);
            }
            let item = item(cx, position)?;
            groups.push(SampleGroup { position, item, scored, texts, branches: None, greedy });
        }
        Ok(Rollout { of, groups, samples: Arc::new(samples), versions: self.versions })
    }
}

/// Reads the prompt at a position of the data.
fn item(cx: &mut StepContext<'_>, position: u64) -> Result<Item> {
    Ok((cx.prompts)(position, 1)?.pop().expect("one position, one prompt"))
}

/// The rollouts that other ranks have drawn for this one.
pub(super) struct ReceivedRollouts {
    pub rollouts: Vec<Rollout>,
    pub under_way: Vec<Group>,
    pub arrival: Option<Arrival>,
    pub gathered: Gathered,
}

/// Hands `own` to all ranks. Returns what was drawn and what was trained, if anything was.
///
/// Errors: this rank's own; one that all ranks share; `rank-lost` where another rank has one.
pub(super) fn exchange_step(
    ApartRanks { all, apart }: ApartRanks<'_>,
    cx: &mut StepContext<'_>,
    own: Result<StepMessage>,
    of: BufferState,
) -> Result<(Option<ReceivedRollouts>, Option<TrainedStep>)> {
    let mut messages = exchange(all, Kind::Apart, own)?;
    if let Some(error) = messages.iter().find_map(StepMessage::error) {
        return Err(error);
    }
    let sampled = messages.swap_remove(apart.first_sampler()).sampled;
    let received = sampled.map(|sampled| sampled.read(cx, of)).transpose()?;
    Ok((received, messages.swap_remove(0).trained))
}
