//! What the row of a key says next to its doc comment, type and default: whether it must be given, which numbers it
//! takes, whether a resumed run may change it, and its names in other stacks.

use super::limits::bad_value;
use super::provenance::Provenance;
use super::values::ByteSize;
use plimsoll_base::{Bytes, Result};
use toml::Value;

/// A key of a section of the run file.
#[derive(Debug)]
pub(crate) struct Key {
    /// For example `rollout.group_size`; in a list of tables without the index, `reward.kind`.
    pub path: &'static str,
    pub facts: &'static [Fact],
}

/// One thing that a row says about its key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fact {
    /// Its section has no meaning without it; its default is never read.
    Required,
    Takes(Numbers),
    Resumes(Resumes),
    /// Names of other stacks that become the key: in its own section, or as `section.name` in another.
    Also(Becomes, &'static [&'static str]),
    /// In `[environment]`: the kind of environment that has it; a key without one is of all.
    Of(Player),
    /// In `[[reward]]`: only `kind = "judge"` has it.
    OfJudge,
}

/// The player of an environment, or where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Player {
    /// A language model.
    Text,
    /// A small network.
    Native,
    /// Either, where the environment runs in worker processes.
    Workers,
}

/// The numbers that a key takes, and each number of a list; sizes count as bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Numbers {
    /// From the first to the second.
    Range(f64, f64),
    /// Those for which the function is true, in words.
    Such(&'static str, fn(f64) -> bool),
}

/// The changes that a resumed run may make to a key that the run began with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resumes {
    /// Nothing: it decides bits.
    #[default]
    Never,
    /// Change it: it moves no bit.
    Freely,
    /// Change it with `--replan`, and with it the order of sums.
    Replanned,
    /// Nothing, and "auto" is what the checkpoint has stored, even with `--replan`.
    Stored,
}

/// How a name of another stack becomes the key of its row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Becomes {
    /// It is the key; its value stays.
    Key,
    /// It was the key's name here; its value stays, and a note says the new name.
    Renamed,
    /// One number for both clips.
    Clips,
    /// A number of sequences, as a token limit.
    Sequences,
    /// True is `"layer"`, false `"none"`.
    Recompute,
    /// True is `["optimizer"]`.
    OffloadOptimizer,
    /// Refused: a share of the card's memory.
    CardFraction,
    /// Read and ignored.
    Nothing,
}

pub(crate) const REQUIRED: Fact = Fact::Required;
pub(crate) const FREELY: Fact = Fact::Resumes(Resumes::Freely);
pub(crate) const REPLANNED: Fact = Fact::Resumes(Resumes::Replanned);
pub(crate) const STORED: Fact = Fact::Resumes(Resumes::Stored);
pub(crate) const TEXT: Fact = Fact::Of(Player::Text);
pub(crate) const NATIVE: Fact = Fact::Of(Player::Native);
pub(crate) const WORKERS: Fact = Fact::Of(Player::Workers);
pub(crate) const OF_JUDGE: Fact = Fact::OfJudge;
pub(crate) const COUNT: Fact = such("a whole number of at least 1", |count| count >= 1.0);
pub(crate) const NOT_ZERO: Fact = such("a number above 0", |number| number > 0.0);
// The kernels compute in f32: what is infinite there is refused, and so is what is 0 there.
pub(crate) const NOT_NEGATIVE: Fact = such("a number that is finite in f32 and not negative", |number| {
    (number as f32).is_finite() && number >= 0.0
});
pub(crate) const ABOVE_ZERO: Fact = such("a number that is finite and above 0 in f32", |number| {
    (number as f32).is_finite() && number as f32 > 0.0
});
pub(crate) const FINITE: Fact = such("a finite number", f64::is_finite);
pub(crate) const SHARE: Fact = Fact::Takes(Numbers::Range(0.0, 1.0));

pub(crate) const fn within(low: f64, high: f64) -> Fact {
    Fact::Takes(Numbers::Range(low, high))
}

pub(crate) const fn such(takes: &'static str, has: fn(f64) -> bool) -> Fact {
    Fact::Takes(Numbers::Such(takes, has))
}

pub(crate) const fn also(names: &'static [&'static str]) -> Fact {
    Fact::Also(Becomes::Key, names)
}

pub(crate) const fn renamed(names: &'static [&'static str]) -> Fact {
    Fact::Also(Becomes::Renamed, names)
}

impl Numbers {
    fn has(self, number: f64) -> bool {
        match self {
            Numbers::Range(low, high) => (low..=high).contains(&number),
            Numbers::Such(_, has) => has(number),
        }
    }

    /// Names them.
    pub fn words(self) -> String {
        match self {
            Numbers::Range(low, high) => format!("a number from {low} to {high}"),
            Numbers::Such(takes, _) => takes.to_string(),
        }
    }
}

impl Key {
    /// Returns the section, such as `distill.endpoint`, and the name in it.
    pub fn parts(&self) -> (&'static str, &'static str) {
        self.path.rsplit_once('.').expect("a row's path is of a section and a name")
    }

    pub fn is_required(&self) -> bool {
        self.facts.iter().any(|fact| matches!(fact, Fact::Required))
    }

    pub fn is_of_judge(&self) -> bool {
        self.facts.iter().any(|fact| matches!(fact, Fact::OfJudge))
    }

    pub fn resumes(&self) -> Resumes {
        let of = |fact: &Fact| if let Fact::Resumes(how) = fact { Some(*how) } else { None };
        self.facts.iter().find_map(of).unwrap_or_default()
    }

    /// Returns the numbers that it takes, if not all.
    pub fn takes(&self) -> Option<Numbers> {
        let of = |fact: &Fact| if let Fact::Takes(numbers) = fact { Some(*numbers) } else { None };
        self.facts.iter().find_map(of)
    }

    /// Returns the names of other stacks that become it, whatever becomes of their values.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let of = |fact: &Fact| if let Fact::Also(_, names) = fact { *names } else { &[] };
        self.facts.iter().flat_map(of).copied()
    }

    /// Requires that the key takes each number of the value that `path` has.
    pub fn check(&self, path: &str, value: &Value, at: &Provenance) -> Result<()> {
        let Some(takes) = self.takes() else { return Ok(()) };
        match numbers(value).into_iter().find(|&number| !takes.has(number)) {
            None => Ok(()),
            Some(number) if value.is_str() => Err(bad_value(at, path, Bytes(number as u64), &takes.words())),
            Some(number) => Err(bad_value(at, path, number, &takes.words())),
        }
    }
}

/// Returns the numbers of a value: none of a text that is no size.
fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Integer(number) => vec![*number as f64],
        Value::Float(number) => vec![*number],
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        Value::String(_) => {
            value.clone().try_into().map_or(Vec::new(), |ByteSize(Bytes(bytes))| vec![bytes as f64])
        }
        _ => Vec::new(),
    }
}
