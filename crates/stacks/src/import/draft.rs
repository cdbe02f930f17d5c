//! The draft of a run file: which key of the launch file became which key here, and what happened to the rest.

use crate::setting::{Setting, flag, integer, list, number};
use crate::table::{Table, Take, first_name};
use plimsoll_base::{Error, Result};

/// How one stack's settings become a run file.
pub(crate) struct Import {
    /// What the stack is called in comments.
    pub title: &'static str,
    /// What its files are, for the help.
    pub file: &'static str,
    /// (first name, value) that holds there where a file says nothing, and differs from ours or has no default here.
    pub defaults: &'static [(&'static str, &'static str)],
    /// Takes what needs several keys together: method, steps, batches, data, rewards.
    pub combine: fn(&mut Draft) -> Result<()>,
}

/// What happened to a setting of the file.
pub(super) enum Fate {
    Pending,
    Carried,
    Changed(String),
    Left(String),
}

/// A setting of the file, or a default of the stack.
pub(super) struct Entry {
    pub given: Setting,
    /// Index of its row in the table.
    row: Option<usize>,
    pub is_default: bool,
    pub fate: Fate,
}

/// A value taken from the file, and where it came from.
pub(crate) struct Taken {
    pub value: String,
    pub from: String,
    index: usize,
}

/// A line of the run file.
pub(super) struct Line {
    pub key: String,
    /// As TOML.
    pub value: String,
    pub from: String,
}

/// What is known of the run file so far.
pub(crate) struct Draft {
    table: &'static Table,
    pub(super) import: &'static Import,
    pub(super) entries: Vec<Entry>,
    pub(super) lines: Vec<Line>,
    /// Where each reward came from, and its lines.
    pub(super) rewards: Vec<(String, Vec<(&'static str, String)>)>,
    /// What the file does not say and a run file must.
    pub(super) chosen: Vec<String>,
}

impl Draft {
    pub fn new(table: &'static Table, import: &'static Import, settings: Vec<Setting>) -> Draft {
        let entry = |given: Setting, is_default| {
            let row = table.row_of(&given.key);
            Entry { given, row, is_default, fate: Fate::Pending }
        };
        let mut entries: Vec<Entry> = settings.into_iter().map(|given| entry(given, false)).collect();
        for index in 0..entries.len() {
            let row = entries[index].row;
            if row.is_some() && entries[index + 1..].iter().any(|later| later.row == row) {
                entries[index].fate = Fate::Left("set again further on, which counts".into());
            }
        }
        for &(key, value) in import.defaults {
            let default = entry(Setting::new(key, value, 0), true);
            if !entries.iter().any(|entry| entry.row == default.row) {
                entries.push(default);
            }
        }
        Draft { table, import, entries, lines: Vec::new(), rewards: Vec::new(), chosen: Vec::new() }
    }

    /// True if a key of the file has a row in the table.
    pub fn knows_any(&self) -> bool {
        self.entries.iter().any(|entry| !entry.is_default && entry.row.is_some())
    }

    /// Applies the table, then what takes several keys together.
    pub fn translate(&mut self) -> Result<()> {
        // In the order of the table, where a name of one clip comes after the name of both.
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        order.sort_by_key(|&index| self.entries[index].row);
        for index in order {
            let Entry { given, row, fate, .. } = &self.entries[index];
            let fate = match row {
                _ if !matches!(fate, Fate::Pending) => continue,
                _ if given.unreadable.is_some() => Fate::Left(given.unreadable.unwrap_or_default().into()),
                None => Fate::Left(self.table.why_left(&given.key).into()),
                _ if given.is_unset() => Fate::Left("not set".into()),
                Some(row) => self.apply(index, self.table.rows[*row].2),
            };
            self.entries[index].fate = fate;
        }
        (self.import.combine)(self)
    }

    fn apply(&mut self, index: usize, take: Take) -> Fate {
        let text = self.entries[index].given.value.clone();
        let real = |text: &str| number(text).map(|value| format!("{value:?}"));
        let one = |key, value: String| vec![(key, value)];
        let pairs: Option<Vec<(&str, String)>> = match take {
            Take::Later | Take::As(_) => return Fate::Pending,
            Take::Lost(why) => return Fate::Left(why.into()),
            Take::Text(key) => Some(one(key, quoted(&text))),
            Take::Integer(key) => integer(&text).map(|value| one(key, value.to_string())),
            Take::Every(key) => integer(&text).map(|value| match value > 0 {
                true => one(key, value.to_string()),
                false => Vec::new(),
            }),
            Take::Number(key) => real(&text).map(|value| one(key, value)),
            Take::Names(key, names) => {
                let name = names.iter().find(|(theirs, _)| text.eq_ignore_ascii_case(theirs));
                name.map(|(_, ours)| one(key, quoted(ours)))
            }
            Take::On(key, value) => {
                flag(&text).map(|on| if on { one(key, quoted(value)) } else { Vec::new() })
            }
            Take::Clips => real(&text).map(|value| clips(value.clone(), value)),
            Take::ClipPair | Take::Betas => match list(&text).as_slice() {
                [low, high] => real(low).zip(real(high)).map(|(low, high)| match take {
                    Take::Betas => one("train.betas", format!("[{low}, {high}]")),
                    _ => clips(low, high),
                }),
                _ => None,
            },
            Take::TopK => integer(&text).map(|value| one("rollout.top_k", value.max(0).to_string())),
            Take::Recompute => {
                flag(&text).map(|on| one("train.recompute", quoted(if on { "layer" } else { "none" })))
            }
            Take::Offload(what) => flag(&text).map(|on| if on { self.offload(what) } else { Vec::new() }),
        };
        let from = self.origin(index);
        let Some(pairs) = pairs else { return Fate::Left("a value that has no counterpart here".into()) };
        for (key, value) in pairs {
            self.set_toml(key, value, &from);
        }
        Fate::Carried
    }

    fn offload(&self, what: &str) -> Vec<(&'static str, String)> {
        let before = self.get("memory.offload").map(|list| list.trim_matches(['[', ']']).to_string());
        let items: Vec<String> = before.into_iter().chain([quoted(what)]).collect();
        vec![("memory.offload", format!("[{}]", items.join(", ")))]
    }

    fn origin(&self, index: usize) -> String {
        let entry = &self.entries[index];
        match entry.is_default {
            true => format!("default of {}: {}", self.import.title, entry.given.key),
            false => entry.given.key.clone(),
        }
    }

    /// Takes a setting by its first name, from the file or the stack's defaults.
    pub fn take(&mut self, name: &str) -> Option<Taken> {
        let is_it = |entry: &Entry| {
            let row = entry.row.map(|row| first_name(self.table.rows[row].0));
            row == Some(name) && !matches!(entry.fate, Fate::Left(_))
        };
        let index = self.entries.iter().rposition(is_it)?;
        self.entries[index].fate = Fate::Carried;
        Some(Taken { value: self.entries[index].given.value.clone(), from: self.origin(index), index })
    }

    /// Takes a setting that is not empty.
    pub fn take_text(&mut self, name: &str) -> Option<Taken> {
        self.take(name).filter(|taken| !taken.value.is_empty())
    }

    /// Takes a whole number above 0; anything else is left out by name.
    pub fn take_count(&mut self, name: &str) -> Option<(i64, Taken)> {
        let taken = self.take(name)?;
        match integer(&taken.value).filter(|&count| count > 0) {
            Some(count) => Some((count, taken)),
            None => {
                self.leave(&taken, "not a whole number above 0");
                None
            }
        }
    }

    /// Takes a number; anything else is left out by name.
    pub fn take_number(&mut self, name: &str) -> Option<(f64, Taken)> {
        let taken = self.take(name)?;
        match number(&taken.value) {
            Some(value) => Some((value, taken)),
            None => {
                self.leave(&taken, "not a number");
                None
            }
        }
    }

    /// Takes a switch and returns whether it is on.
    pub fn is_on(&mut self, name: &str) -> bool {
        self.take(name).is_some_and(|taken| flag(&taken.value).unwrap_or(false))
    }

    /// Takes a setting, if it is there, only to list it as left out.
    pub fn leave_out(&mut self, name: &str, why: &str) {
        if let Some(taken) = self.take(name) {
            self.leave(&taken, why);
        }
    }

    /// Lists a value that was not carried over.
    pub fn leave(&mut self, taken: &Taken, why: &str) {
        self.entries[taken.index].fate = Fate::Left(why.into());
    }

    /// Lists a value that means something slightly different here.
    pub fn change(&mut self, taken: &Taken, how: &str) {
        self.entries[taken.index].fate = Fate::Changed(how.into());
    }

    /// Lists what the file does not say and was chosen here.
    pub fn choose(&mut self, what: &str) {
        self.chosen.push(what.into());
    }

    pub fn set_text(&mut self, key: &str, value: &str, from: &str) {
        self.set_toml(key, quoted(value), from);
    }

    pub fn set_toml(&mut self, key: &str, value: impl ToString, from: &str) {
        self.lines.retain(|line| line.key != key);
        self.lines.push(Line { key: key.into(), value: value.to_string(), from: from.into() });
    }

    pub fn add_reward(&mut self, from: &str, lines: Vec<(&'static str, String)>) {
        self.rewards.push((from.into(), lines));
    }

    /// Returns the value of one of our keys, as TOML.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.lines.iter().find(|line| line.key == key).map(|line| line.value.as_str())
    }

    pub fn count(&self, key: &str) -> Option<i64> {
        self.get(key).and_then(integer)
    }

    /// Returns the sequences of a step, if both factors are known.
    pub fn sequences(&self) -> Option<i64> {
        self.count("rollout.prompts_per_step")?.checked_mul(self.count("rollout.group_size")?)
    }

    /// Refuses a method that is not here.
    pub fn no_method(taken: &Taken) -> Error {
        let what = format!("`{}` is `{}`, which is no method here", taken.from, taken.value);
        Error::usage("import-no-method", what).hint(
            "change it to one that is, for example GRPO, and import again; docs/methods.md lists the methods",
        )
    }
}

fn clips(low: String, high: String) -> Vec<(&'static str, String)> {
    vec![("loss.clip_low", low), ("loss.clip_high", high)]
}

/// Returns the TOML of a string.
pub(crate) fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}
