//! Text environments: episodes of several turns, each a response and what the environment says to it, that become one
//! training sample. This module owns which episodes there are and what was said in them.
//!
//! An episode is one token sequence: the prompt, what was drawn, what the environment said, what was drawn, ... Drawn
//! tokens stand as they were drawn; the environment's words are tokenized once and put behind them. Where an environment
//! waits, other episodes go on; what comes out does not depend on who answers first.

mod countdown;
mod episodes;
mod evaluate;
mod glue;
mod guess;
mod hosts;
mod kept;
mod memory;
mod rollout;
mod second_try;
mod tally;
mod tool;

pub use episodes::{Episodes, RoundReport};
pub use evaluate::evaluate_episodes;
pub use kept::{KeptEpisode, KeptTurn};
pub use memory::{EpisodeMemory, episode_memory, eval_episodes, first_prompt_tokens};
pub use rollout::play;
pub use tally::EnvironmentTally;

use crate::runfile::RunFile;
use plimsoll_base::rng::{Stream, philox};
use plimsoll_base::{Error, Result};
use plimsoll_text::Message;
use std::path::{Path, PathBuf};

/// Which episode: everything in it that is left to chance follows from these three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The run's, or `environment.seed`.
    pub seed: u64,
    /// Counts episodes; those of a group have the same.
    pub index: u64,
    /// True for evaluation, whose episodes are the same whatever the seed.
    pub held_out: bool,
}

/// The seed of episodes that evaluate: a run's seed does not move them.
const EVAL_SEED: u64 = 0x504C_494D_534F_4C4C;

impl Start {
    /// An episode of training.
    pub fn train(seed: u64, index: u64) -> Start {
        Start { seed, index, held_out: false }
    }

    /// An episode of evaluation.
    pub fn eval(index: u64) -> Start {
        Start { seed: EVAL_SEED, index, held_out: true }
    }

    /// Four random numbers of the episode.
    pub fn draw(&self, draw: u32) -> [u32; 4] {
        philox(self.seed, Stream::Episode, self.index, u64::from(self.held_out) << 32 | u64::from(draw))
    }
}

/// What an environment says to a turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// Its messages; none where the episode is over.
    pub messages: Vec<Message>,
    /// Reward of the turn.
    pub reward: f64,
    /// True if the episode is over.
    pub done: bool,
}

impl Said {
    /// The end of an episode.
    pub fn end(reward: f64) -> Said {
        Said { messages: Vec::new(), reward, done: true }
    }

    /// Words without a reward.
    pub fn words(text: impl Into<String>) -> Said {
        Said { messages: vec![Message::new("user", text)], reward: 0.0, done: false }
    }
}

/// A task in turns, of text alone: one episode at a time.
pub trait TextEnvironment: Send {
    /// Begins the episode of `start`: the messages that the model answers. Equal starts give equal messages.
    fn reset(&mut self, start: &Start) -> Vec<Message>;

    /// The model's turn, special tokens and stop string left out. Errors end the episode and are counted.
    fn step(&mut self, response: &str) -> Result<Said>;
}

/// Names of the environments that come with the program.
pub const ENVIRONMENTS: [&str; 4] =
    ["text:countdown", "text:guess-number", "text:python-tool", "text:second-try"];

/// What `environment.env` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Numbers and a target.
    Countdown,
    /// Higher or lower.
    GuessNumber,
    /// Programs that the model writes.
    PythonTool,
    /// A sum, and another try.
    SecondTry,
    /// A class in the user's file.
    Python {
        /// The file.
        file: PathBuf,
        /// The class.
        class: String,
    },
}

impl Kind {
    /// Reads `environment.env`.
    ///
    /// Errors: `text-environment-unknown`.
    pub fn parse(name: &str) -> Result<Kind> {
        if let Some(place) = name.strip_prefix("python:") {
            return match place.rsplit_once(':') {
                Some((file, class)) if !file.is_empty() && !class.is_empty() => {
                    Ok(Kind::Python { file: Path::new(file).to_path_buf(), class: class.to_string() })
                }
                _ => Err(unknown(name, "write env = \"python:FILE.py:CLASS\"".to_string())),
            };
        }
        Ok(match name {
            "text:countdown" => Kind::Countdown,
            "text:guess-number" => Kind::GuessNumber,
            "text:python-tool" => Kind::PythonTool,
            "text:second-try" => Kind::SecondTry,
            _ => {
                let near = |known: &&str| strsim::jaro_winkler(known, name);
                let nearest = ENVIRONMENTS.iter().max_by(|a, b| near(a).total_cmp(&near(b)));
                let nearest = nearest.expect("there are environments");
                return Err(unknown(
                    name,
                    format!(
                        "did you mean {nearest}? A class of your own is named by its file: python:FILE.py:CLASS"
                    ),
                ));
            }
        })
    }

    /// True for a user's own.
    pub fn is_python(&self) -> bool {
        matches!(self, Kind::Python { .. })
    }

    /// True if a turn is answered by a process, so that the rollout does not wait for it.
    pub fn has_workers(&self) -> bool {
        matches!(self, Kind::Python { .. } | Kind::PythonTool)
    }
}

fn unknown(name: &str, hint: String) -> Error {
    Error::usage("text-environment-unknown", format!("no text environment is called `{name}`"))
        .fact(format!("environments: {}", ENVIRONMENTS.join(", ")))
        .hint(hint)
}

/// The seed of a run's episodes.
pub fn seed(run: &RunFile) -> u64 {
    run.environment.as_ref().and_then(|environment| environment.seed).unwrap_or(run.seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environments_are_known_by_name_and_the_nearest_is_named() {
        for name in ENVIRONMENTS {
            assert!(!Kind::parse(name).unwrap().is_python());
        }
        let mine = Kind::Python { file: "a/b.py".into(), class: "Mine".into() };
        assert_eq!(Kind::parse("python:a/b.py:Mine").unwrap(), mine);
        for (name, hint) in [
            ("text:guess-numbers", "text:guess-number"),
            ("text:second_try", "text:second-try"),
            ("python:a.py", "python:FILE.py:CLASS"),
            ("python::A", "python:FILE.py:CLASS"),
        ] {
            let error = Kind::parse(name).unwrap_err();
            assert!(error.slug == "text-environment-unknown" && error.hints[0].contains(hint), "{error}");
        }
    }

    #[test]
    fn episodes_differ_by_seed_index_and_purpose() {
        let all =
            [Start::train(0, 0), Start::train(0, 1), Start::train(1, 0), Start::eval(0), Start::eval(1)];
        let drawn: std::collections::HashSet<[u32; 4]> = all.iter().map(|start| start.draw(0)).collect();
        assert_eq!(drawn.len(), all.len());
        assert_ne!(all[0].draw(0), all[0].draw(1));
    }
}
