//! Text environments: tasks of several turns. A model answers messages, the environment replies, until the episode ends.
//!
//! A built-in environment is a file here and a row of `ENVIRONMENTS`; a user's environment is a class in a Python
//! file, stepped in a worker process (`hosts.rs`). The training crate turns episodes into tokens.

mod countdown;
mod environment;
mod guess;
mod hosts;
mod memory;
mod second_try;
mod tally;
mod tool;

pub use environment::{Row, Said, Settings, Start, TextEnvironment};
pub use hosts::{Hosts, Job, Reply};
pub use memory::EpisodeMemory;
pub use tally::EnvironmentTally;

use plimsoll_base::{Error, Result};
use std::path::{Path, PathBuf};

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
}
