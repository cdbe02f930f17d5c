//! A stack's options, in one table that `import` and `doctor --run` both read.

use crate::unbuilt::Unbuilt;

/// Why an unknown option is left out.
pub(crate) const UNKNOWN: &str = "this option is not known here";
/// Why an option of the plan's table alone is left out.
const NOTHING: &str = "nothing here corresponds to it";

/// An option's effect on the memory of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Read by a rule of the plan.
    Used,
    /// Moves no memory.
    Idle,
}

/// An option's conversion to a run file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// The text, unchanged, under our key.
    Text(&'static str),
    Integer(&'static str),
    Number(&'static str),
    /// A whole number of steps; 0 and below mean never, for which our key is absent.
    Every(&'static str),
    /// A name mapped to a name.
    Names(&'static str, &'static [(&'static str, &'static str)]),
    /// True sets our key to this value; false leaves it out.
    On(&'static str, &'static str),
    /// One number for both clips.
    Clips,
    /// Two numbers: `loss.clip_low`, `loss.clip_high`.
    ClipPair,
    Betas,
    /// -1 becomes 0: all tokens.
    TopK,
    /// Variables of the chat template, as one value: `{"enable_thinking": False}`.
    Variables,
    /// A chat template variable: on or off, or a word.
    Variable(&'static str),
    /// True becomes `recompute = "layer"`, false `"none"`.
    Recompute,
    /// True adds this to `memory.offload`.
    Offload(&'static str),
    /// Read together with others by the stack's own function.
    Later,
    /// A part of an adapter's description, read together with its other parts.
    Adapter,
    /// A class or functions for the model, read by the stack's own function; unbuilt if they are not in the file.
    Environment,
    /// Another name of the option with this first name; the plan tells the two apart.
    As(&'static str),
    /// Left out, for the reason in this sentence.
    Lost(&'static str),
    /// If it is on, it makes a different job here, and is refused.
    NotBuilt(Unbuilt),
}

impl Take {
    /// Returns the key here that decides the job by a number, without which a run file would be of another one.
    pub fn decides(self) -> Option<&'static str> {
        let (Take::Integer(key) | Take::Number(key)) = self else { return None };
        let sections = ["rollout.", "loss.", "critic.", "train."];
        let is_of_job =
            sections.iter().any(|section| key.starts_with(section)) || key == "data.prompt_tokens_max";
        // The plan chooses it where a file is silent.
        (is_of_job && key != "train.micro_batch_tokens").then_some(key)
    }
}

/// (names of one option separated by `|`, its effect on memory, its conversion). Rules use the first name.
pub(crate) type Row = (&'static str, Memory, Take);

/// A stack's options; each name is in it once.
pub(crate) struct Table {
    pub stack: &'static str,
    /// Options that are converted to a run file, or left out for their own reason.
    pub rows: &'static [Row],
    /// Other such options that move no memory, by conversion: named as in a row, with white space between options.
    pub alike: &'static [(Take, &'static str)],
    /// Other options read by the plan's rules, named as in a row, with white space between options.
    pub used: &'static str,
    /// Other options that move no memory; `x*` is any name that begins with `x`.
    pub idle: &'static str,
    /// (reason, parts of names): why an option of a cluster, an engine or a logger without a row is left out.
    pub elsewhere: &'static [(&'static str, &'static str)],
    /// Options with a key or a password, which is never shown.
    pub secrets: &'static str,
}

pub(crate) fn first_name(names: &str) -> &str {
    names.split_once('|').map_or(names, |(first, _)| first)
}

fn has(names: &str, key: &str) -> bool {
    names.split('|').any(|name| name == key)
}

impl Table {
    /// Returns the row of each option that is converted, or left out for its own reason.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        let alike = self
            .alike
            .iter()
            .flat_map(|(take, options)| options.split_whitespace().map(|names| (names, Memory::Idle, *take)));
        self.rows.iter().copied().chain(alike)
    }

    /// Returns row `index` of these.
    pub fn row(&self, index: usize) -> Row {
        self.rows().nth(index).expect("an index of `row_of`")
    }

    /// Returns the index of the row that converts `key`.
    pub fn row_of(&self, key: &str) -> Option<usize> {
        let (index, (.., take)) = self.rows().enumerate().find(|(_, (names, ..))| has(names, key))?;
        match take {
            Take::As(name) => self.row_of(name),
            _ => Some(index),
        }
    }

    /// Returns every name of the option that is also called `key`.
    #[cfg(test)]
    pub fn names_of(&self, key: &str) -> &'static str {
        self.row_of(key).map_or("", |row| self.row(row).0)
    }

    pub fn used(&self) -> impl Iterator<Item = &'static str> {
        let rows = self.rows.iter().filter(|row| row.1 == Memory::Used).map(|row| row.0);
        rows.chain(self.used.split_whitespace())
    }

    /// Returns the first name of the option with the name `key`, if the plan's rules read it.
    pub fn first_of(&self, key: &str) -> Option<&'static str> {
        self.used().find(|names| has(names, key)).map(first_name)
    }

    /// Returns every name that is written out.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let rows = self.rows().map(|row| row.0);
        let others = self.used.split_whitespace().chain(self.idle.split_whitespace());
        rows.chain(others).flat_map(|names| names.split('|')).filter(|name| !name.ends_with('*'))
    }

    /// Returns true if the plan reads `key`, or knows that it moves no memory.
    pub fn is_known(&self, key: &str) -> bool {
        let mut starts = self.idle.split_whitespace().filter_map(|name| name.strip_suffix('*'));
        self.names().any(|name| name == key) || starts.any(|start| key.starts_with(start))
    }

    /// Returns why an option without a row is left out of a run file.
    pub fn why_left(&self, key: &str) -> &'static str {
        let is_named = self.names().any(|name| name == key);
        let unnamed = if is_named { NOTHING } else { UNKNOWN };
        self.reason_of_part(key).unwrap_or(unnamed)
    }

    /// Returns why an option is left out because of a part of its name.
    pub fn reason_of_part(&self, key: &str) -> Option<&'static str> {
        let is_part = |parts: &str| parts.split_whitespace().any(|part| key.contains(part));
        self.elsewhere.iter().find(|(_, parts)| is_part(parts)).map(|(why, _)| *why)
    }

    /// Returns true if `key` is marked as holding a key or a password.
    pub fn is_secret(&self, key: &str) -> bool {
        self.secrets.split_whitespace().any(|name| name == key)
    }
}

/// Reasons shared by several stacks.
pub(crate) mod why {
    pub const CLUSTER: &str = "cards are not in the run file here: `train --ranks N` takes one for each rank, and `--hosts H` those of several hosts";
    pub const SHARDING: &str = "ranks split neither matrices nor sequences here; what they share out is the plan's choice, or run.zero_stage's";
    pub const ENGINE: &str =
        "no other engine samples here: rollout and trainer are one, and the plan sizes its cache";
    pub const SAME: &str = "rollout and trainer share their weights and kernels: there is nothing to correct";
    pub const EAGER: &str = "there is no other engine here whose graphs could be switched off";
    pub const LOGGING: &str = "metrics are lines of events.jsonl here, and [track] says who else gets them";
    pub const CHECKPOINTS: &str = "checkpoints are in the run directory here: run.dir";
    pub const FILES: &str = "a model is the files of its folder here, and none of its code is run";
    pub const IN_TURN: &str = "one process samples and trains in turn here";
    pub const PLANNED: &str = "the plan chooses it here";
    pub const PACKED: &str = "rows are always packed without padding here";
    pub const PLACEMENT: &str = "all roles share one process here and take turns";
    pub const KERNELS: &str = "kernels are not chosen by name here";
    pub const LOADING: &str = "data is read in the run's own process here";
    pub const PUBLISHING: &str =
        "a run here uploads nothing: `plimsoll checkpoint push RUN hf:org/name` does, afterwards";
    pub const PART: &str = "data is a file here: export this part of the data set";
    pub const ADAPTER: &str = "adapters have no such setting here";
    pub const QUANTISED: &str = "it describes quantised weights";
    pub const RESUME: &str = "plimsoll train RUN --resume does it";
    pub const TOKENIZER: &str = "the tokenizer is the model's own here, or model_options.tokenizer";

    pub const OFF: &str = "switched off there";
    pub const DEFAULT: &str = "as by default there";
    pub const UNSET: &str = "not set there";

    /// The effect on the job of leaving an option out.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Class {
        /// May change the training: data, rewards, the loss, lengths, an adapter.
        Job,
        /// Concerns the machines, the engine or the logger there.
        Engine,
        /// Has no effect there.
        Idle,
    }

    pub fn class_of(why: &str) -> Class {
        const OF_ENGINE: [&str; 13] = [
            CLUSTER,
            SHARDING,
            ENGINE,
            SAME,
            EAGER,
            LOGGING,
            PLANNED,
            PACKED,
            PLACEMENT,
            KERNELS,
            LOADING,
            FILES,
            CHECKPOINTS,
        ];
        match why {
            why if OF_ENGINE.contains(&why) => Class::Engine,
            OFF | DEFAULT | UNSET => Class::Idle,
            _ => Class::Job,
        }
    }
}
