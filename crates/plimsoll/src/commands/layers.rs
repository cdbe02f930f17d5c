//! The layers of a run file as flags, shared by several commands.

use crate::{init::embedded, output};
use plimsoll_base::{Error, Result};
use plimsoll_config::{Loaded, LoadedEnv, LoadedVerb};
use plimsoll_run::checkpoint::RUN_FILE;
use std::path::{Path, PathBuf};

/// The flag `--set`.
#[derive(clap::Args)]
pub struct Sets {
    /// Set a key of the run file; TOML if it parses, else a string. May be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub sets: Vec<String>,
}

impl Sets {
    pub fn and(&self, flag: Option<String>) -> Sets {
        Sets { sets: self.sets.iter().cloned().chain(flag).collect() }
    }

    /// Reads the run file at `path` with all layers and prints its notes.
    pub fn load(&self, path: &Path, quiet: bool) -> Result<Loaded> {
        let loaded = plimsoll_config::load(path, &self.sets, environment()?.into_iter());
        let loaded = loaded.map_err(|error| embedded::offer(error, path))?;
        show(&loaded.notes, quiet);
        Ok(loaded)
    }

    /// Reads the environment file at `path` with all layers and prints its notes.
    pub fn load_env(&self, path: &Path, quiet: bool) -> Result<LoadedEnv> {
        let loaded = plimsoll_config::load_env(path, &self.sets, environment()?.into_iter());
        let loaded = loaded.map_err(|error| embedded::offer(error, path))?;
        show(&loaded.notes, quiet);
        Ok(loaded)
    }

    /// Reads the settings of a command without a run file. `flags` come before the user's `--set`; what the run file
    /// `of` a model says of rows comes before both.
    pub fn load_verb(
        &self,
        defaults: &[(&str, &str)],
        of: Option<&Path>,
        flags: Vec<String>,
        quiet: bool,
    ) -> Result<LoadedVerb> {
        let sets = [flags, self.sets.clone()].concat();
        let loaded = plimsoll_config::load_verb(defaults, of, &sets, environment()?.into_iter())?;
        loaded.check_sets()?;
        show(&loaded.notes, quiet);
        Ok(loaded)
    }
}

/// The flags of a command that draws responses to its own prompts.
#[derive(clap::Args)]
pub struct DrawFlags {
    /// Longest response in tokens; 256 unless given.
    #[arg(long, value_name = "N")]
    max_new_tokens: Option<u32>,
    /// The seed of all random numbers.
    #[arg(long)]
    seed: Option<u64>,
    /// Wait after every GPU kernel, check indices and values, and name what is wrong.
    #[arg(long)]
    checked: bool,
    #[command(flatten)]
    sets: Sets,
}

impl DrawFlags {
    /// Reads the settings as `Sets::load_verb` does; `own` are the flags that the command alone has.
    pub fn load(
        &self,
        temperature: &str,
        of: Option<&Path>,
        own: impl IntoIterator<Item = Option<String>>,
        quiet: bool,
    ) -> Result<LoadedVerb> {
        let common = [
            flag("rollout.max_new_tokens", self.max_new_tokens),
            flag("seed", self.seed),
            flag("run.checked", self.checked.then_some(true)),
        ];
        let flags = own.into_iter().chain(common).flatten().collect();
        self.sets.load_verb(&[("rollout.temperature", temperature)], of, flags, quiet)
    }
}

pub fn run_file_of(dir: &Path) -> Option<PathBuf> {
    let file = dir.join("run.toml");
    (file.is_file() && dir.join("checkpoints").is_dir()).then_some(file)
}

/// Returns the run file of a model that a run trained: the directory of the run, or one of its checkpoints.
pub fn run_file_of_model(model: &str) -> Option<PathBuf> {
    let model = Path::new(model);
    run_file_of(model).or_else(|| Some(model.join(RUN_FILE)).filter(|file| file.is_file()))
}

fn show(notes: &[String], quiet: bool) {
    notes.iter().for_each(|note| output::note(quiet, &format!("note: {note}")));
}

/// Returns `key=value` if the flag was given.
pub fn flag(key: &str, value: Option<impl std::fmt::Display>) -> Option<String> {
    value.map(|value| format!("{key}={value}"))
}

/// Returns `key="value"` if the flag was given; the quotes keep text from being read as a number or a list.
pub fn text_flag(key: &str, value: Option<&str>) -> Option<String> {
    value.map(|value| format!("{key}={}", serde_json::Value::from(value)))
}

/// Returns the environment variables for run files; other variables need not be UTF-8.
fn environment() -> Result<Vec<(String, String)>> {
    let ours = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with("PLIMSOLL__"))?;
        Some((name, value))
    });
    ours.map(|(name, value)| match value.into_string() {
        Ok(value) => Ok((name, value)),
        Err(_) => Err(Error::usage("bad-set", format!("environment: the value of {name} is not UTF-8"))
            .hint(format!("unset {name}, or give it a value in UTF-8"))),
    })
    .collect()
}
