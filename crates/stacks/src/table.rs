//! What is known of a stack's options, in one table that `import` and `doctor --run` both read.

use crate::unbuilt::Unbuilt;

/// Why an option is left out that no table knows.
pub(crate) const UNKNOWN: &str = "this option is not known here";
/// Why one is left out that only the plan's table knows.
const NOTHING: &str = "nothing here corresponds to it";

/// What an option does to the memory of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// A rule of the plan reads it.
    Used,
    /// It moves no memory.
    Idle,
}

/// What an option becomes in a run file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// The text, unchanged, under our key.
    Text(&'static str),
    Integer(&'static str),
    Number(&'static str),
    /// A whole number of steps; 0 and below is never, which is our absent key.
    Every(&'static str),
    /// A name for a name.
    Names(&'static str, &'static [(&'static str, &'static str)]),
    /// True is this value under our key; false leaves the key out.
    On(&'static str, &'static str),
    /// One number for both clips.
    Clips,
    /// Two numbers: `loss.clip_low`, `loss.clip_high`.
    ClipPair,
    /// Two numbers: `train.betas`.
    Betas,
    /// -1 is 0: all tokens.
    TopK,
    /// Variables of the chat template, as one value: `{"enable_thinking": False}`.
    Variables,
    /// One of them that is on or off.
    Variable(&'static str),
    /// True is `recompute = "layer"`, false `"none"`.
    Recompute,
    /// True adds this to `memory.offload`.
    Offload(&'static str),
    /// Read together with others by the stack's own function.
    Later,
    /// A part of an adapter's description, read together with its other parts.
    Adapter,
    /// A class whose methods the model plays or calls, or functions that it calls, read by the stack's own function. It
    /// is not built if the file does not show it.
    Environment,
    /// Another name of the option with this first name; the plan tells the two apart.
    As(&'static str),
    /// Left out, with the reason: a sentence.
    Lost(&'static str),
    /// If it is on, the job is another one here, and is refused.
    NotBuilt(Unbuilt),
}

/// (names of one option separated by `|`, what it does to memory, what it becomes here). Rules ask for the first name.
pub(crate) type Row = (&'static str, Memory, Take);

/// One stack's options; each name is in it once.
pub(crate) struct Table {
    /// The stack's name.
    pub stack: &'static str,
    /// Options that become something in a run file, or are left out for a reason of their own.
    pub rows: &'static [Row],
    /// Names of the other options that rules of the plan read, as in a row, with white space between options.
    pub used: &'static str,
    /// Names of the other options that move no memory; `x*` is any name that begins with `x`.
    pub idle: &'static str,
    /// (reason, parts of names): why an option of a cluster, an engine or a logger without a row is left out.
    pub elsewhere: &'static [(&'static str, &'static str)],
    /// Names of options that hold a key or a password, which is shown nowhere.
    pub secrets: &'static str,
}

pub(crate) fn first_name(names: &str) -> &str {
    names.split_once('|').map_or(names, |(first, _)| first)
}

fn has(names: &str, key: &str) -> bool {
    names.split('|').any(|name| name == key)
}

impl Table {
    /// The index of the row that says what `key` becomes in a run file.
    pub fn row_of(&self, key: &str) -> Option<usize> {
        let index = self.rows.iter().position(|(names, ..)| has(names, key))?;
        match self.rows[index].2 {
            Take::As(name) => self.row_of(name),
            _ => Some(index),
        }
    }

    /// Returns every name of the option that is also called `key`.
    #[cfg(test)]
    pub fn names_of(&self, key: &str) -> &'static str {
        self.row_of(key).map_or("", |row| self.rows[row].0)
    }

    pub fn used(&self) -> impl Iterator<Item = &'static str> {
        let rows = self.rows.iter().filter(|row| row.1 == Memory::Used).map(|row| row.0);
        rows.chain(self.used.split_whitespace())
    }

    /// The first name of the option that is also called `key`, if the plan's rules read it.
    pub fn first_of(&self, key: &str) -> Option<&'static str> {
        self.used().find(|names| has(names, key)).map(first_name)
    }

    /// Every name that is written out.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let rows = self.rows.iter().map(|row| row.0);
        let others = self.used.split_whitespace().chain(self.idle.split_whitespace());
        rows.chain(others).flat_map(|names| names.split('|')).filter(|name| !name.ends_with('*'))
    }

    /// True if the plan reads `key`, or knows that it moves no memory.
    pub fn is_known(&self, key: &str) -> bool {
        let mut starts = self.idle.split_whitespace().filter_map(|name| name.strip_suffix('*'));
        self.names().any(|name| name == key) || starts.any(|start| key.starts_with(start))
    }

    /// Why an option without a row is left out of a run file.
    pub fn why_left(&self, key: &str) -> &'static str {
        let is_named = self.names().any(|name| name == key);
        let unnamed = if is_named { NOTHING } else { UNKNOWN };
        self.reason_of_part(key).unwrap_or(unnamed)
    }

    /// Why an option is left out whose name has a part that says what it is about.
    pub fn reason_of_part(&self, key: &str) -> Option<&'static str> {
        let is_part = |parts: &str| parts.split_whitespace().any(|part| key.contains(part));
        self.elsewhere.iter().find(|(_, parts)| is_part(parts)).map(|(why, _)| *why)
    }

    /// True if `key` is marked as one that holds a key or a password.
    pub fn is_secret(&self, key: &str) -> bool {
        self.secrets.split_whitespace().any(|name| name == key)
    }
}

/// Reasons that several stacks share.
pub(crate) mod why {
    pub const CLUSTER: &str = "cards are not in the run file here: `train --ranks N` takes one for each rank";
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

    /// What leaving an option out for a reason means for the job.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Class {
        /// It may change what is learnt: data, rewards, the loss, lengths, an adapter.
        Job,
        /// It is about the machines, the engine or the logger there.
        Engine,
        /// It does nothing there.
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
