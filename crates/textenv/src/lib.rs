//! Text environments: tasks of several turns. A model answers messages, the environment replies, until the episode ends.
//!
//! A built-in environment is a file here and a row of `ENVIRONMENTS`; a user's environment is a class in a Python
//! file, stepped in a worker process (`hosts.rs`). The training crate turns episodes into tokens.

mod countdown;
mod guess;
mod hosts;
mod memory;
mod second_try;
mod tally;
mod tool;

pub use hosts::{Hosts, Job, Reply};
pub use memory::EpisodeMemory;
pub use tally::EnvironmentTally;

use plimsoll_base::rng::{Stream, philox};
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_text::Message;
use plimsoll_worker::{Network, Stop};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Identifies an episode and determines its randomness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The run's seed, or `environment.seed`.
    pub seed: u64,
    /// Counts episodes; the episodes of a group share it.
    pub index: u64,
    /// For evaluation, whose episodes do not depend on the run's seed.
    pub held_out: bool,
}

/// The seed of evaluation episodes.
const EVAL_SEED: u64 = 0x504C_494D_534F_4C4C;

impl Start {
    pub fn train(seed: u64, index: u64) -> Start {
        Start { seed, index, held_out: false }
    }

    pub fn eval(index: u64) -> Start {
        Start { seed: EVAL_SEED, index, held_out: true }
    }

    /// Draws four random numbers of the episode.
    pub fn draw(&self, draw: u32) -> [u32; 4] {
        philox(self.seed, Stream::Episode, self.index, u64::from(self.held_out) << 32 | u64::from(draw))
    }
}

/// An environment's reply to a turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// Empty when the episode is over.
    pub messages: Vec<Message>,
    pub reward: f64,
    /// The episode is over.
    pub done: bool,
}

impl Said {
    /// Ends the episode with a reward.
    pub fn end(reward: f64) -> Said {
        Said { messages: Vec::new(), reward, done: true }
    }

    /// Replies without a reward.
    pub fn words(text: impl Into<String>) -> Said {
        Said { messages: vec![Message::new("user", text)], reward: 0.0, done: false }
    }
}

/// A text task played in turns, one episode at a time.
pub trait TextEnvironment: Send {
    /// Begins the episode of `start` and returns the messages that the model answers. Equal starts give equal messages.
    fn reset(&mut self, start: &Start) -> Vec<Message>;

    /// Takes the model's turn, without special tokens and stop string. An error ends the episode and is counted.
    fn step(&mut self, response: &str) -> Result<Said>;
}

/// Settings of an environment's workers and programs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The Python interpreter; `None` for `python3`.
    pub python: Option<String>,
    /// Worker processes of an environment that needs them.
    pub num_workers: u32,
    /// Limit on the address space of one worker.
    pub worker_memory: Bytes,
    pub network: Network,
    /// Longest time for the answer to one turn.
    pub step_timeout: Duration,
    /// Longest time to begin an episode, and for a worker to start.
    pub reset_timeout: Duration,
}

/// Makes the episodes of one environment.
type Make = Arc<dyn Fn() -> Box<dyn TextEnvironment> + Send + Sync>;

/// A built-in environment.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// For example `text:countdown`.
    pub name: &'static str,
    /// A process answers turns, so that the rollout does not wait for them.
    pub has_workers: bool,
    /// Prepares what its episodes share. Returns a function that makes one.
    open: fn(&Settings, &Stop) -> Result<Make>,
}

/// The built-in environments.
pub const ENVIRONMENTS: [Row; 4] = [countdown::ROW, guess::ROW, tool::ROW, second_try::ROW];

/// A parsed `environment.env`.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A built-in environment.
    Native(Row),
    /// A class in the user's file.
    Python { file: PathBuf, class: String },
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
        if let Some(row) = ENVIRONMENTS.iter().find(|row| row.name == name) {
            return Ok(Kind::Native(*row));
        }
        let near = |row: &&Row| strsim::jaro_winkler(row.name, name);
        let nearest = ENVIRONMENTS.iter().max_by(|a, b| near(a).total_cmp(&near(b)));
        let nearest = nearest.expect("there are environments").name;
        let hint =
            format!("did you mean {nearest}? A class of your own is named by its file: python:FILE.py:CLASS");
        Err(unknown(name, hint))
    }

    pub fn is_python(&self) -> bool {
        matches!(self, Kind::Python { .. })
    }

    /// A process answers turns, so that the rollout does not wait for them.
    pub fn has_workers(&self) -> bool {
        match self {
            Kind::Native(row) => row.has_workers,
            Kind::Python { .. } => true,
        }
    }
}

fn unknown(name: &str, hint: String) -> Error {
    Error::usage("text-environment-unknown", format!("no text environment is called `{name}`"))
        .fact(format!("environments: {}", ENVIRONMENTS.map(|row| row.name).join(", ")))
        .hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environments_are_known_by_name_and_the_nearest_is_named() {
        for row in ENVIRONMENTS {
            assert!(matches!(Kind::parse(row.name), Ok(Kind::Native(found)) if found.name == row.name));
        }
        let mine = Kind::parse("python:a/b.py:Mine").unwrap();
        assert!(
            matches!(mine, Kind::Python { file, class } if file == Path::new("a/b.py") && class == "Mine")
        );
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
