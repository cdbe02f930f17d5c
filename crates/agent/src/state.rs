//! The state that a run of an environment policy carries from step to step besides its weights, and from one process to
//! the next: running moments, the episodes in progress, and the latest returns.
//!
//! An environment's own state is not saved: replaying its seed and the actions of its episode restores it.

use super::normalise::{Moments, RewardScale, Scales};
use super::settings::AgentSettings;
use plimsoll_base::{Error, Result, read_small_text};
use plimsoll_collect::Underway;
use plimsoll_run::checkpoint::exact;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::Path;

/// Its file in a checkpoint.
pub(crate) const AGENT_STATE: &str = "state/agent.json";
/// Episodes over which the return is averaged.
pub(crate) const RECENT: usize = 100;
/// Largest file of a state; one of 100,000 environments has some 10 MiB.
const STATE_BYTES_MAX: u64 = 1 << 30;

/// The content of `state/agent.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentState {
    /// Moments of observations, where they are normalised.
    pub observations: Option<Moments>,
    pub rewards: Option<RewardScale>,
    pub episodes: Vec<Episode>,
    /// Returns of the latest episodes, the newest last.
    recent: VecDeque<Return>,
    pub num_episodes: u64,
    pub num_frames: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct Return(#[serde(with = "exact")] f64);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Episode {
    pub index: u32,
    /// Action slots that its environment was given, concatenated.
    #[serde(with = "hexadecimal")]
    pub actions: Vec<u8>,
}

impl AgentState {
    pub fn new(settings: &AgentSettings) -> AgentState {
        AgentState {
            observations: settings.first_moments.clone(),
            rewards: settings.normalise_rewards.then(|| RewardScale::new(settings.num_envs)),
            episodes: (0..settings.num_envs).map(|_| Episode::with_room(settings)).collect(),
            recent: VecDeque::with_capacity(RECENT),
            num_episodes: 0,
            num_frames: 0,
        }
    }

    pub fn scales(&self) -> Scales {
        self.observations.as_ref().map_or(Scales::default(), Moments::scales)
    }

    /// Records the return of an episode that ended.
    pub(crate) fn push_return(&mut self, episode_return: f64) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(Return(episode_return));
        self.num_episodes += 1;
    }

    /// Returns the mean return of the latest episodes, at most `RECENT`; none before the first has ended.
    pub(crate) fn recent_return(&self) -> Option<f64> {
        let sum: f64 = self.recent.iter().map(|Return(r)| r).sum();
        (!self.recent.is_empty()).then(|| sum / self.recent.len() as f64)
    }

    /// Returns the episodes in the form that a collector resumes.
    pub fn underway(&self) -> Vec<Underway> {
        let of = |episode: &Episode| Underway { episode: episode.index, actions: episode.actions.clone() };
        self.episodes.iter().map(of).collect()
    }

    /// Abandons the episodes in progress: each environment begins its next one.
    pub(crate) fn begin_anew(&mut self) {
        for episode in self.episodes.iter_mut().filter(|episode| !episode.actions.is_empty()) {
            episode.index = episode.index.wrapping_add(1);
            episode.actions.clear();
        }
        if let Some(scale) = &mut self.rewards {
            scale.begin_anew();
        }
    }

    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("a state is plain data") + "\n"
    }

    /// Reads the state of a verified checkpoint.
    ///
    /// Errors: `checkpoint-damaged`, also where it belongs to other environments.
    pub fn read(checkpoint: &Path, settings: &AgentSettings) -> Result<AgentState> {
        let path = checkpoint.join(AGENT_STATE);
        let bad = |what: String| Error::new("checkpoint-damaged", format!("{}: {what}", path.display()));
        let text = read_small_text(&path, STATE_BYTES_MAX).map_err(|err| bad(err.to_string()))?;
        let state: AgentState = serde_json::from_str(&text).map_err(|err| bad(err.to_string()))?;
        let widths = state.observations.as_ref().map(Moments::width);
        let envs = state.rewards.as_ref().map(RewardScale::num_envs);
        let wanted = AgentState::new(settings);
        let is_ours = state.episodes.len() == settings.num_envs
            && widths == wanted.observations.as_ref().map(Moments::width)
            && envs == wanted.rewards.as_ref().map(RewardScale::num_envs);
        if !is_ours {
            return Err(bad(format!(
                "{} environments, the run has {}",
                state.episodes.len(),
                settings.num_envs
            )));
        }
        let mut state =
            AgentState { episodes: wanted.episodes, ..state.clone() }.with_episodes(&state.episodes);
        state.recent.reserve(RECENT - state.recent.len().min(RECENT));
        Ok(state)
    }

    /// Takes over these episodes, within the room already allocated.
    fn with_episodes(mut self, episodes: &[Episode]) -> AgentState {
        for (to, from) in self.episodes.iter_mut().zip(episodes) {
            to.index = from.index;
            to.actions.extend_from_slice(&from.actions);
        }
        self
    }
}

impl Episode {
    /// Returns the first episode, with room for the longest.
    fn with_room(settings: &AgentSettings) -> Episode {
        let bytes = settings.episode_frames_max as usize * settings.rows.action.bytes;
        Episode { index: 0, actions: Vec::with_capacity(bytes) }
    }
}

/// Bytes as text, two digits each.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        let digit = |value: u8| char::from_digit(value.into(), 16).expect("four bits are a digit");
        let text: String = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
        serializer.serialize_str(&text)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
        let pairs = text.as_bytes().chunks(2);
        let bytes = pairs.map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        });
        bytes
            .collect::<Option<Vec<u8>>>()
            .ok_or_else(|| D::Error::custom("bytes are pairs of hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_episode_reads_back_byte_by_byte() {
        let episode = Episode { index: 7, actions: (0..=255).collect() };
        let text = serde_json::to_string(&episode).unwrap();
        assert_eq!(serde_json::from_str::<Episode>(&text).unwrap(), episode);
        for bad in ["\"0\"", "\"0g\"", "\"é\""] {
            let text = format!("{{\"index\": 0, \"actions\": {bad}}}");
            assert!(serde_json::from_str::<Episode>(&text).is_err(), "{bad}");
        }
    }
}
