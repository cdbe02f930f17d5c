//! Reads a collector's batch into the learner's arrays, and follows the episodes in progress.

use super::experience::{EnvFrames, Experience};
use super::settings::AgentSettings;
use super::state::AgentState;
use plimsoll_collect::{Batch, Row};
use plimsoll_env::flags;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ended {
    pub count: usize,
    pub returns: f64,
    pub frames: u64,
}

/// Reads a batch into `experience`, with observations as the policy saw them, and follows its episodes.
pub fn gather(
    settings: &AgentSettings,
    batch: &Batch,
    state: &mut AgentState,
    experience: &mut Experience,
) -> (Vec<EnvFrames>, Ended) {
    experience.clear();
    let spans: Vec<EnvFrames> =
        batch.rows().iter().map(|row| gather_row(settings, row, state, experience)).collect();
    batch.rows().iter().for_each(|row| follow(settings, row, state));
    let ended = note_returns(settings, batch, state);
    state.num_frames += experience.num_frames() as u64;
    (spans, ended)
}

fn gather_row(
    settings: &AgentSettings,
    row: &Row,
    state: &AgentState,
    experience: &mut Experience,
) -> EnvFrames {
    let (layout, width) = (&settings.rows, settings.network.reader.width());
    let dims = settings.network.spec.head.action_dims();
    let scales = state.scales();
    let see = |slot: &[u8], to: &mut [f32]| {
        settings.network.reader.read(slot, to);
        scales.apply(to);
    };
    let (logprobs, values): (&[f32], &[f32]) = (row.column(&layout.logprobs), row.column(&layout.values));
    let rewards: &[f32] = row.column(&layout.rewards);
    let start = experience.num_frames();
    let mut ends = Vec::new();
    for t in 0..row.num_frames {
        let flag = row.flags(layout)[t];
        if flag & flags::RESET_ROW != 0 {
            // A vector environment spends a step on its reset, which is no frame.
            continue;
        }
        let at = experience.inputs.len();
        experience.inputs.resize(at + width, 0.0);
        see(row.observation(layout, t), &mut experience.inputs[at..]);
        if state.observations.is_some() {
            experience.raw_inputs.resize(at + width, 0.0);
            settings.network.reader.read(row.observation(layout, t), &mut experience.raw_inputs[at..]);
        }
        let at = experience.actions.len();
        experience.actions.resize(at + dims, 0.0);
        settings.network.writer.read(row.action(layout, t), &mut experience.actions[at..]);
        experience.logprobs.push(logprobs[t]);
        experience.values.push(values[t]);
        experience.rewards.push(rewards[t]);
        if flag & (flags::DONE | flags::ABORTED) != 0 {
            ends.push(experience.num_frames() - 1);
        }
        if flag & (flags::DONE | flags::CUT) != 0 {
            let terminated = flag & flags::TERMINATED != 0;
            experience.end_slice(terminated, width, |tail| see(row.next_observation(layout, t), tail));
        }
    }
    EnvFrames { env: row.env_index as usize, frames: start..experience.num_frames(), ends }
}

/// Records the actions that the environment was given since its last reset.
fn follow(settings: &AgentSettings, row: &Row, state: &mut AgentState) {
    let layout = &settings.rows;
    let episode = &mut state.episodes[row.env_index as usize];
    let indices: &[u32] = row.column(&layout.episode_indices);
    let marks = row.flags(layout);
    let is_end = |t: &usize| marks[*t] & (flags::DONE | flags::ABORTED) != 0;
    // Only actions after the last end belong to the episode in progress.
    let last_end = (0..row.num_frames).rev().find(is_end);
    if let Some(t) = last_end {
        episode.index = indices[t].wrapping_add(1);
        episode.actions.clear();
    }
    for t in last_end.map_or(0, |t| t + 1)..row.num_frames {
        if marks[t] & flags::RESET_ROW != 0 {
            continue;
        }
        if indices[t] != episode.index {
            // The previous episode was abandoned between two batches, or before its first frame of this one.
            episode.index = indices[t];
            episode.actions.clear();
        }
        let at = episode.actions.len();
        episode.actions.extend_from_slice(row.action(layout, t));
        // An action outside its bounds was given to the environment as the bound.
        layout.action.clip(&mut episode.actions[at..]);
    }
}

/// Records the returns of episodes in the order in which they ended: by frame, then by environment.
fn note_returns(settings: &AgentSettings, batch: &Batch, state: &mut AgentState) -> Ended {
    let layout = &settings.rows;
    let mut ends: Vec<(usize, u32, f64, u32)> = Vec::new();
    for row in batch.rows() {
        let steps: &[u32] = row.column(&layout.steps);
        let done = row.finals(layout).filter(|last| row.flags(layout)[last.frame] & flags::DONE != 0);
        ends.extend(done.map(|last| (last.frame, row.env_index, last.episode_return, steps[last.frame] + 1)));
    }
    ends.sort_by_key(|&(frame, env, ..)| (frame, env));
    let mut ended = Ended::default();
    for (_, _, episode_return, frames) in ends {
        state.push_return(episode_return);
        ended.count += 1;
        ended.returns += episode_return;
        ended.frames += u64::from(frames);
    }
    ended
}
