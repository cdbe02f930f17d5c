//! Text environments: tasks of several turns. A model answers messages and the environment replies, until it ends.
//!
//! A built-in environment is a file here and a row of `ENVIRONMENTS`. Python workers play others (`hosts.rs`): a user's
//! class, a Gymnasium environment, an OpenEnv client, tasks in containers. The training crate turns episodes into
//! tokens.

mod countdown;
mod environment;
mod guess;
mod hosts;
mod memory;
mod rows;
mod second_try;
mod tally;
mod tool;

pub use environment::{Row, Said, Settings, Start, TextEnvironment};
pub use hosts::{HadTurn, Hosts, Job, Reply};
pub use memory::EpisodeMemory;
pub use plimsoll_worker::{
    About, Agents, AgentsSpec, ContainerTasks, EpisodesOf, REPLY_IMAGE_BYTES_MAX, ReplyImages, ReplyLimits,
    ToolFunction, Words,
};
pub use rows::{EpisodeImages, EpisodeRow, ImageTaker, ImagesFrom, RowsFrom, first_episode_rows};
pub use tally::EnvironmentTally;

use plimsoll_base::{Error, Result, without_secrets};
use std::path::Path;

pub const ENVIRONMENTS: &[Row] = &[countdown::ROW, guess::ROW, tool::ROW, second_try::ROW];

/// The name of agents with their own loop.
pub const HTTP_AGENT: &str = "http-agent";
/// The name of functions outside a class, listed in `environment.tools`.
pub const TOOLS: &str = "tools";
/// The name of tasks in harbor's format, in the folders `environment.rows` and `eval_rows`.
pub const HARBOR: &str = "harbor";

#[derive(Clone, Debug)]
pub enum Kind {
    Native(Row),
    /// An environment played by Python.
    Python(EpisodesOf),
    /// Programs that talk to the model over HTTP and report rewards; the training crate serves them.
    Agents,
}

impl Kind {
    /// Reads `environment.env`.
    ///
    /// Errors: `text-environment-unknown`.
    pub fn parse(name: &str) -> Result<Kind> {
        if let Some(place) = name.strip_prefix("python:") {
            return match place.rsplit_once(':') {
                Some((file, class)) if !file.is_empty() && !class.is_empty() => {
                    let (file, class) = (Path::new(file).to_path_buf(), class.to_string());
                    Ok(Kind::Python(EpisodesOf::Class { file, class }))
                }
                _ => Err(unknown(name, "write env = \"python:FILE.py:CLASS\"".to_string())),
            };
        }
        if let Some(id) = name.strip_prefix("gym:") {
            return if id.is_empty() {
                Err(unknown(name, "write env = \"gym:ID\", as gymnasium.make takes it".to_string()))
            } else {
                Ok(Kind::Python(EpisodesOf::Gymnasium { id: id.to_string() }))
            };
        }
        if let Some(url) = name.strip_prefix("openenv:") {
            let is_address = ["http://", "https://", "ws://", "wss://"].iter().any(|scheme| {
                url.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
            });
            return if is_address {
                Ok(Kind::Python(EpisodesOf::OpenEnv { url: url.to_string() }))
            } else {
                Err(unknown(name, "write env = \"openenv:http://HOST:PORT\"".to_string()))
            };
        }
        if name == HTTP_AGENT {
            return Ok(Kind::Agents);
        }
        if name == TOOLS {
            return Ok(Kind::Python(EpisodesOf::Functions));
        }
        if name == HARBOR {
            return Ok(Kind::Python(EpisodesOf::Harbor));
        }
        if let Some(row) = ENVIRONMENTS.iter().find(|row| row.name == name) {
            return Ok(Kind::Native(*row));
        }
        let near = |row: &&Row| strsim::jaro_winkler(row.name, name);
        let nearest = ENVIRONMENTS.iter().max_by(|a, b| near(a).total_cmp(&near(b)));
        let nearest = nearest.expect("there are environments").name;
        let hint = format!(
            "did you mean {nearest}? A class of your own is named by its file: python:FILE.py:CLASS; others are gym:ID, openenv:URL, tools, harbor and http-agent"
        );
        Err(unknown(name, hint))
    }

    /// Returns true if it gives no reward itself: the run's rewards grade its episodes.
    pub fn is_graded(&self) -> bool {
        matches!(self, Kind::Python(EpisodesOf::Functions))
    }

    /// Returns true if its episodes are tasks in containers, whose folders are its rows.
    pub fn plays_tasks(&self) -> bool {
        matches!(self, Kind::Python(EpisodesOf::Harbor))
    }

    pub fn is_python(&self) -> bool {
        matches!(self, Kind::Python(_))
    }

    /// Returns true if programs with their own loop play it.
    pub fn is_agents(&self) -> bool {
        matches!(self, Kind::Agents)
    }

    /// Returns true if its first messages are known only while it is played.
    pub fn has_no_first_messages(&self) -> bool {
        !matches!(self, Kind::Native(_))
    }

    /// Returns true if a process answers turns, so that the rollout does not wait for them.
    pub fn has_workers(&self) -> bool {
        match self {
            Kind::Native(row) => row.has_workers,
            Kind::Python(_) | Kind::Agents => true,
        }
    }
}

/// Reads an entry of `environment.tools`, `python:FILE.py:FUNCTION`; `None` for anything else.
pub fn tool_function(place: &str) -> Option<ToolFunction> {
    let (file, function) = place.strip_prefix("python:")?.rsplit_once(':')?;
    let is_whole = !file.is_empty() && !function.is_empty();
    is_whole.then(|| ToolFunction { file: file.into(), function: function.to_string() })
}

/// Reads an entry of `environment.tools` that is a server of the Model Context Protocol: `mcp:COMMAND ARGUMENTS`, or
/// `mcp:http://HOST:PORT/PATH`. Returns the command or the address; `None` for anything else.
pub fn tool_server(place: &str) -> Option<&str> {
    let server = place.strip_prefix("mcp:")?.trim();
    (!server.is_empty()).then_some(server)
}

fn unknown(name: &str, hint: String) -> Error {
    let names: Vec<&str> = ENVIRONMENTS.iter().map(|row| row.name).collect();
    let shown = without_secrets(name);
    Error::usage("text-environment-unknown", format!("no text environment is called `{shown}`"))
        .fact(format!("environments: {}", names.join(", ")))
        .hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_named_by_its_file_and_its_function() {
        let tool = tool_function("python:a/b.py:add").unwrap();
        assert_eq!((tool.file.as_path(), tool.function.as_str()), (Path::new("a/b.py"), "add"));
        for place in ["add", "a.py:add", "python:a.py", "python::add", "python:a.py:", ""] {
            assert_eq!(tool_function(place), None, "{place}");
        }
    }

    #[test]
    fn environments_are_known_by_name_and_the_nearest_is_named() {
        for row in ENVIRONMENTS {
            assert!(matches!(Kind::parse(row.name), Ok(Kind::Native(found)) if found.name == row.name));
        }
        let mine = Kind::parse("python:a/b.py:Mine").unwrap();
        assert!(
            matches!(mine, Kind::Python(EpisodesOf::Class { file, class }) if file == Path::new("a/b.py") && class == "Mine")
        );
        let gym = Kind::parse("gym:words:Guess-v0").unwrap();
        assert!(matches!(gym, Kind::Python(EpisodesOf::Gymnasium { id }) if id == "words:Guess-v0"));
        assert!(matches!(Kind::parse("tools"), Ok(Kind::Python(EpisodesOf::Functions))));
        assert!(Kind::parse("harbor").unwrap().plays_tasks());
        let served = Kind::parse("openenv:http://localhost:8000").unwrap();
        assert!(
            matches!(served, Kind::Python(EpisodesOf::OpenEnv { url }) if url == "http://localhost:8000")
        );
        for (name, hint) in [
            ("text:guess-numbers", "text:guess-number"),
            ("text:second_try", "text:second-try"),
            ("python:a.py", "python:FILE.py:CLASS"),
            ("python::A", "python:FILE.py:CLASS"),
            ("gym:", "gym:ID"),
            ("openenv:localhost:8000", "openenv:http://HOST:PORT"),
            ("openenv:http://", "openenv:http://HOST:PORT"),
            ("openenv:http:///ws", "openenv:http://HOST:PORT"),
        ] {
            let error = Kind::parse(name).unwrap_err();
            assert!(error.slug == "text-environment-unknown" && error.hints[0].contains(hint), "{error}");
        }
        let error = Kind::parse("openenv:htp://me:SECRET@h?key=SECRET").unwrap_err();
        assert!(!error.to_string().contains("SECRET"), "{error}");
    }
}
