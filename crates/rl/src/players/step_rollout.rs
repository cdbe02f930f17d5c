//! What a step drew, and how it joins the groups under way.

use super::chunk::ResponseChunk;
use super::counts::count_draws;
use super::episodes::Events;
use super::groups::Group;
use crate::flops::forward_flops;
use crate::roles::Trainer;
use crate::supply::gathered::Gathered;
use plimsoll_infer::responder::Responder;
use plimsoll_rollout::RolloutStats;
use plimsoll_run::carry::CarryCounts;

/// The groups and counts of a rollout, up to the step's tick.
#[derive(Default)]
pub struct StepRollout {
    /// The groups that the step trains.
    pub chosen: Vec<usize>,
    pub gathered: Gathered,
    /// Events of environments, by rank.
    pub events: Vec<Events>,
    pub counts: CarryCounts,
    /// Seconds of a tick in this rank's tail, if there was one.
    pub tail_tick_s: Option<f64>,
}

/// Adds the new tokens to their groups. Returns what is counted of them.
pub(crate) fn take(
    (trainer, step): (&Trainer<'_>, u32),
    groups: &mut [Group],
    pieces: Vec<ResponseChunk>,
    stats: RolloutStats,
    (counts, ticks): (&mut CarryCounts, u64),
) -> Gathered {
    let version = trainer.updates();
    let mut gathered = Gathered { stats, ..Gathered::default() };
    let (mut pieces, mut lengths, mut draws) = (pieces.into_iter(), Vec::new(), Vec::new());
    for group in groups.iter_mut() {
        for (response, piece) in group.responses.iter_mut().zip(pieces.by_ref()) {
            let drawn = piece.drawn();
            draws.extend(response.finish.is_none().then_some(drawn));
            counts.prompt_rows += piece.said_between(response.ids.len()) as u64;
            let prompt = response.asked.as_ref().map_or(group.item.ids.len(), |asked| asked.prompt.len());
            lengths.push((prompt + response.ids.len(), piece.ids.len()));
            response.add(&piece.ids, &piece.logprobs, version);
            gathered.tokens += drawn;
            response.turns.extend(piece.turns);
            response.has_fault |= piece.has_fault;
            piece.finish.into_iter().for_each(|finish| response.end(finish, step));
        }
    }
    // A prompt counts when its first tokens are drawn.
    let new =
        groups.iter().filter(|group| group.responses.iter().all(|r| r.versions.first() == Some(&version)));
    let spec = &trainer.sampler.shape.spec;
    gathered.flops = forward_flops(spec, new.flat_map(Group::prompt_lengths), lengths.into_iter());
    count_draws(counts, &mut draws, ticks);
    gathered
}
