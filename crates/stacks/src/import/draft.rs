//! The draft of a run file: which key of the launch file became which key here, and the fate of the rest.

use crate::defaults::is_default;
use crate::launch::python::NESTED;
use crate::setting::{Setting, TRAINER, flag, integer, list, number};
use crate::subject::{Subject, subject_of};
use crate::table::why::{self, Class, class_of};
use crate::table::{Table, Take, first_name};
use crate::unbuilt::{self, Unbuilt};
use plimsoll_base::{Error, Result, WITHHELD};
use std::collections::BTreeSet;

/// The conversion of one stack's settings to a run file.
pub(crate) struct Import {
    /// The stack's name in comments.
    pub title: &'static str,
    /// Its kind of file, for the help.
    pub file: &'static str,
    /// Takes the settings of an adapter, if the stack has any.
    pub adapter: Option<fn(&mut Draft)>,
    /// Takes the settings about images, if rows with images are read.
    pub images: Option<fn(&mut Draft)>,
    pub jobs: &'static [Job],
    /// (trainer, method) for trainers without a job: our nearest method.
    pub nearest: &'static [(&'static str, &'static str)],
}

/// The job of one or several trainers of a stack.
pub(crate) struct Job {
    /// Their values of the setting `trainer`.
    pub trainers: &'static [&'static str],
    /// Whose defaults these are, if not the stack's own.
    pub of: Option<&'static str>,
    /// (first name, value) of the stack's defaults that differ from ours, or have none here.
    pub defaults: &'static [(&'static str, &'static str)],
    /// (first name, conversion) where it differs from the stack's table.
    pub takes: &'static [(&'static str, Take)],
    /// Converts what needs several keys together: method, steps, batches, data, rewards.
    pub combine: fn(&mut Draft) -> Result<()>,
}

impl Import {
    pub fn job(&self, trainer: &str) -> Option<&'static Job> {
        self.jobs.iter().find(|job| job.trainers.contains(&trainer))
    }
}

pub(super) enum Fate {
    Pending,
    Carried,
    Changed(String),
    Left(String),
    NotBuilt(Unbuilt),
}

/// A setting of the file, or a default of the stack.
pub(super) struct Entry {
    pub given: Setting,
    row: Option<usize>,
    pub is_default: bool,
    pub fate: Fate,
}

/// A value from the file, and its origin.
pub(crate) struct Taken {
    pub value: String,
    pub from: String,
    /// Its place in the file, `line 4: `, or nothing.
    place: String,
    index: usize,
}

pub(super) struct Line {
    pub key: String,
    /// The value in TOML.
    pub value: String,
    pub from: String,
}

pub(crate) struct Draft {
    table: &'static Table,
    pub(super) import: &'static Import,
    job: &'static Job,
    pub(super) entries: Vec<Entry>,
    pub(super) lines: Vec<Line>,
    /// The origin and the lines of each reward.
    pub(super) rewards: Vec<(String, Vec<(&'static str, String)>)>,
    /// Choices that the file does not make and a run file must.
    pub(super) chosen: Vec<String>,
    /// Keys without a value that only the user knows, and why.
    pub missing: Vec<String>,
    /// Omissions that are not settings of the stack.
    pub(super) further: Vec<String>,
    /// The file's surroundings, such as variables that it sets.
    surroundings: Vec<Setting>,
}

impl Draft {
    pub fn new(
        table: &'static Table,
        import: &'static Import,
        job: &'static Job,
        settings: Vec<Setting>,
        surroundings: Vec<Setting>,
    ) -> Draft {
        let entry = |given: Setting, is_default| {
            let row = table.row_of(&given.key);
            Entry { given, row, is_default, fate: Fate::Pending }
        };
        let mut entries: Vec<Entry> = settings.into_iter().map(|given| entry(given, false)).collect();
        let mut seen = BTreeSet::new();
        for entry in entries.iter_mut().rev() {
            if entry.row.is_some_and(|row| !seen.insert(row)) {
                entry.fate = Fate::Left("set again further on, which counts".into());
            }
        }
        for &(key, value) in job.defaults {
            let default = entry(Setting::new(key, value, 0), true);
            if !entries.iter().any(|entry| entry.row == default.row) {
                entries.push(default);
            }
        }
        let (lines, rewards, chosen, missing, further) = Default::default();
        Draft { table, import, job, entries, lines, rewards, chosen, missing, further, surroundings }
    }

    /// Returns whose defaults these are, if not the stack's own.
    pub fn defaults_of(&self) -> Option<&'static str> {
        self.job.of
    }

    /// Applies the table, then converts what needs several keys together.
    pub fn translate(&mut self) -> Result<()> {
        // In the order of the table, where the name of one clip follows the name of both.
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        order.sort_by_key(|&index| self.entries[index].row);
        let mut unread: Vec<(&'static str, usize)> = Vec::new();
        for index in order {
            let Entry { given, row, fate, .. } = &self.entries[index];
            let take = row.map(|row| self.take_of(row));
            let fate = match (given.unreadable, take) {
                _ if !matches!(fate, Fate::Pending) => continue,
                // Whether it is on cannot be said.
                (Some(_), Some(Take::NotBuilt(what))) => {
                    Fate::NotBuilt(subject_of(&given.key).map_or(what, Unbuilt::Unread))
                }
                (_, Some(Take::NotBuilt(what))) if unbuilt::asks(given) => Fate::NotBuilt(what),
                (_, Some(Take::NotBuilt(_))) => Fate::Left(why::OFF.into()),
                (Some(_), Some(Take::Adapter)) => Fate::NotBuilt(Unbuilt::Unread(Subject::Adapter)),
                (Some(NESTED), Some(Take::Environment)) => Fate::NotBuilt(Unbuilt::Nested),
                (Some(_), Some(Take::Environment)) => Fate::NotBuilt(Unbuilt::Turns),
                (_, Some(Take::Lost(why))) => Fate::Left(why.into()),
                (Some(why), Some(take)) => match subject_of(&given.key) {
                    Some(subject) => Fate::NotBuilt(Unbuilt::Unread(subject)),
                    None => {
                        unread.extend(take.decides().map(|key| (key, index)));
                        Fate::Left(not_read(why, given))
                    }
                },
                (Some(why), None) => match self.without_row(given) {
                    Fate::Left(reason) if class_of(&reason) == Class::Job => Fate::Left(not_read(why, given)),
                    fate => fate,
                },
                (None, None) => self.without_row(given),
                (None, Some(_)) if given.is_unset() => Fate::Left(why::UNSET.into()),
                (None, Some(take)) => self.apply(index, take),
            };
            self.entries[index].fate = fate;
        }
        (self.job.combine)(self)?;
        // A run file without such a key would be a job of other lengths, batches or rates.
        for (key, index) in unread {
            if self.get(key).is_none() {
                let first = self.entries[index].row.map_or("", |row| first_name(self.table.row(row).0));
                self.miss(key, first, "its value");
            }
        }
        Ok(())
    }

    /// Decides about an option without a row. One that changes the job refuses it, unless it is off or at its default.
    fn without_row(&self, given: &Setting) -> Fate {
        let (table, key) = (self.table, given.key.as_str());
        let Some(subject) = subject_of(key) else { return Fate::Left(table.why_left(key).into()) };
        match () {
            () if !unbuilt::asks(given) || self.is_switched_off(key) => Fate::Left(why::OFF.into()),
            () if is_default(table.stack, key, &given.value) => Fate::Left(why::DEFAULT.into()),
            // Sizes of a grading model's engine.
            () if subject == Subject::Judge && table.reason_of_part(key).is_some() => {
                Fate::Left(table.why_left(key).into())
            }
            () => Fate::NotBuilt(Unbuilt::Unknown(subject)),
        }
    }

    /// Returns true if the file disables a section of `key`, `section.enable = False`, or what `key` is of,
    /// `rejection_sample = False` next to `rejection_sample_multiplier`.
    fn is_switched_off(&self, key: &str) -> bool {
        let is_of = |one: &Setting| {
            key.strip_prefix(one.key.as_str()).is_some_and(|rest| rest.starts_with('_'))
                && flag(&one.value) == Some(false)
        };
        if self.entries.iter().any(|entry| is_of(&entry.given)) {
            return true;
        }
        let is_off = |section: &str| {
            let is_switch = |one: &Setting| {
                one.key.strip_prefix(section).is_some_and(|rest| matches!(rest, ".enable" | ".enabled"))
            };
            let switch = self.entries.iter().rev().map(|entry| &entry.given).find(|one| is_switch(one));
            switch.is_some_and(|one| flag(&one.value) == Some(false))
        };
        key.match_indices('.').any(|(at, _)| is_off(&key[..at]))
    }

    /// Returns what a row of the table becomes in this job.
    fn take_of(&self, row: usize) -> Take {
        let (names, _, take) = self.table.row(row);
        let own = self.job.takes.iter().find(|(name, _)| *name == first_name(names));
        own.map_or(take, |(_, take)| *take)
    }

    fn apply(&mut self, index: usize, take: Take) -> Fate {
        let text = self.entries[index].given.value.clone();
        let real = |text: &str| number(text).map(|value| format!("{value:?}"));
        let one = |key, value: String| vec![(key, value)];
        let pairs: Option<Vec<(&str, String)>> = match take {
            Take::Later | Take::Adapter | Take::Environment | Take::As(_) => return Fate::Pending,
            Take::Lost(_) | Take::NotBuilt(_) => unreachable!("decided by the caller"),
            Take::Text(key) => Some(one(key, quoted(&text))),
            Take::Integer(key) => integer(&text).map(|value| one(key, value.to_string())),
            Take::Every(key) => {
                integer(&text).map(|value| if value > 0 { one(key, value.to_string()) } else { Vec::new() })
            }
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
            Take::Variables => variables(&text).map(|value| one("data.template_args", value)),
            Take::Variable(name) => {
                let value = flag(&text).map_or_else(|| quoted(&text), |on| on.to_string());
                Some(one("data.template_args", self.with_variable(name, &value)))
            }
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

    /// Returns the variables of the chat template with one more.
    fn with_variable(&self, name: &str, value: &str) -> String {
        let before =
            self.get("data.template_args").map(|table| table.trim_matches(['{', '}', ' ']).to_string());
        let items: Vec<String> = before.into_iter().chain([format!("{name} = {value}")]).collect();
        format!("{{ {} }}", items.join(", "))
    }

    fn offload(&self, what: &str) -> Vec<(&'static str, String)> {
        let before = self.get("memory.offload").map(|list| list.trim_matches(['[', ']']).to_string());
        let items: Vec<String> = before.into_iter().chain([quoted(what)]).collect();
        vec![("memory.offload", format!("[{}]", items.join(", ")))]
    }

    fn origin(&self, index: usize) -> String {
        let entry = &self.entries[index];
        if entry.is_default {
            format!("default of {}: {}", self.job.of.unwrap_or(self.import.title), entry.given.key)
        } else if entry.given.key == TRAINER {
            // Not a key of the file: it follows from a command or a class.
            format!("its trainer: {}", entry.given.value)
        } else {
            entry.given.key.clone()
        }
    }

    /// Takes a setting by its first name, from the file or the stack's defaults.
    pub fn take(&mut self, name: &str) -> Option<Taken> {
        let is_it = |entry: &Entry| {
            let row = entry.row.map(|row| first_name(self.table.row(row).0));
            row == Some(name) && !matches!(entry.fate, Fate::Left(_) | Fate::NotBuilt(_))
        };
        let index = self.entries.iter().rposition(is_it)?;
        self.entries[index].fate = Fate::Carried;
        let given = &self.entries[index].given;
        let place = if given.line == 0 { String::new() } else { given.place() + ": " };
        Some(Taken { value: given.value.clone(), from: self.origin(index), place, index })
    }

    pub fn take_text(&mut self, name: &str) -> Option<Taken> {
        self.take(name).filter(|taken| !taken.value.is_empty())
    }

    /// Takes a whole number above 0; lists anything else as left out.
    pub fn take_count(&mut self, name: &str) -> Option<(i64, Taken)> {
        let count = |text: &str| integer(text).filter(|&count| count > 0);
        self.take_read(name, count, "not a whole number above 0")
    }

    /// Takes a number; lists anything else as left out.
    pub fn take_number(&mut self, name: &str) -> Option<(f64, Taken)> {
        self.take_read(name, number, "not a number")
    }

    fn take_read<T>(&mut self, name: &str, read: fn(&str) -> Option<T>, or: &str) -> Option<(T, Taken)> {
        let taken = self.take(name)?;
        let value = read(&taken.value);
        if value.is_none() {
            self.leave(&taken, or);
        }
        Some((value?, taken))
    }

    /// Returns true if the file or the stack's defaults have this setting.
    pub fn has(&self, name: &str) -> bool {
        let of = |entry: &Entry| entry.row.map(|row| first_name(self.table.row(row).0));
        self.entries.iter().any(|entry| of(entry) == Some(name) && !entry.given.is_unset())
    }

    /// Returns true if the file itself has this setting.
    pub fn is_written(&self, name: &str) -> bool {
        let of = |entry: &Entry| entry.row.map(|row| first_name(self.table.row(row).0));
        self.entries
            .iter()
            .any(|entry| of(entry) == Some(name) && !entry.is_default && !entry.given.is_unset())
    }

    /// Returns true if a setting of the file is the number 0.
    pub fn is_zero(&self, name: &str) -> bool {
        let is_it = |entry: &Entry| entry.row.is_some_and(|row| first_name(self.table.row(row).0) == name);
        self.entries
            .iter()
            .any(|entry| is_it(entry) && !entry.is_default && number(&entry.given.value) == Some(0.0))
    }

    /// Gives a setting a value that follows from others, as a default of the stack.
    pub fn give(&mut self, name: &str, value: &str) {
        let row = self.table.row_of(name);
        self.entries.push(Entry {
            given: Setting::new(name, value, 0),
            row,
            is_default: true,
            fate: Fate::Pending,
        });
    }

    /// Returns true if the file has an option of exactly this name, known or not.
    pub fn is_given(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.given.key == key)
    }

    pub fn is_on(&mut self, name: &str) -> bool {
        self.take(name).is_some_and(|taken| flag(&taken.value).unwrap_or(false))
    }

    /// Takes a setting, if present, only to list it as left out.
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

    /// Lists a choice that the file does not make.
    pub fn choose(&mut self, what: &str) {
        self.chosen.push(what.into());
    }

    /// Lists an omission that is not a setting of the stack: a whole line.
    pub fn remark(&mut self, line: String) {
        self.further.push(line);
    }

    /// Lists a value that needs an unbuilt feature.
    pub fn is_not_built(&mut self, taken: &Taken, what: Unbuilt) {
        self.entries[taken.index].fate = Fate::NotBuilt(what);
    }

    /// Lists the settings that need unbuilt features, and whether each is a default of the stack.
    pub fn refused(&self) -> Vec<(Unbuilt, &Setting, bool)> {
        let of = |entry: &'_ Entry| match entry.fate {
            Fate::NotBuilt(what) => Some(what),
            _ => None,
        };
        self.entries.iter().filter_map(|entry| Some((of(entry)?, &entry.given, entry.is_default))).collect()
    }

    /// Returns whose defaults count: the stack's, or another package's.
    pub fn title(&self) -> &'static str {
        self.job.of.unwrap_or(self.import.title)
    }

    /// Lists the settings that need unbuilt features.
    pub fn not_built(&self) -> Vec<(Unbuilt, &Setting)> {
        self.refused().into_iter().map(|(what, given, _)| (what, given)).collect()
    }

    /// Writes a key without a value, which a plan refuses by name; `name` is the setting that would have it.
    pub fn miss(&mut self, key: &str, name: &str, write: &str) {
        let why = self.why_missing(name);
        self.set_toml(key, "\"\"", &format!("{why}: write {write}"));
        self.missing.push(format!("{key}: {why}: write {write}"));
    }

    /// Writes `key` without a value if a setting that it follows from cannot be read, and returns true then.
    pub fn misses(&mut self, key: &str, names: &[&str]) -> bool {
        let unread = names.iter().copied().find(|name| self.unread(name).is_some());
        if let Some(name) = unread {
            self.miss(key, name, "its value");
        }
        unread.is_some()
    }

    /// Returns the setting `name` if its value cannot be read.
    pub fn unread(&self, name: &str) -> Option<&Setting> {
        let is_it = |entry: &&Entry| entry.row.is_some_and(|row| first_name(self.table.row(row).0) == name);
        self.entries.iter().rev().find(is_it).map(|entry| &entry.given).filter(|one| one.unreadable.is_some())
    }

    /// Lists a setting that needs an unbuilt feature, whatever its fate.
    pub fn refuse(&mut self, given: &Setting, what: Unbuilt) {
        for entry in self.entries.iter_mut().filter(|entry| entry.given == *given) {
            entry.fate = Fate::NotBuilt(what);
        }
    }

    /// Returns why the setting `name` gave nothing: its value, or its absence.
    pub fn why_missing(&self, name: &str) -> String {
        let is_it = |entry: &&Entry| entry.row.is_some_and(|row| first_name(self.table.row(row).0) == name);
        match self.entries.iter().rev().find(is_it) {
            Some(Entry { given, fate: Fate::Left(why), .. }) => format!("{}: {why}", given.shown()),
            _ => format!("the file does not say {name}"),
        }
    }

    pub fn set_text(&mut self, key: &str, value: &str, from: &str) {
        self.set_toml(key, quoted(value), from);
    }

    pub fn set_toml(&mut self, key: &str, value: impl ToString, from: &str) {
        self.lines.retain(|line| line.key != key);
        self.lines.push(Line { key: key.into(), value: value.to_string(), from: from.into() });
    }

    /// Moves the value of one of our keys to another, if it has one.
    pub fn rename(&mut self, key: &str, to: &str) {
        let Some(at) = self.lines.iter().position(|line| line.key == key) else { return };
        let line = self.lines.remove(at);
        self.lines.push(Line { key: to.into(), ..line });
    }

    /// Removes a line that no setting of the file has written.
    pub fn drop_line(&mut self, key: &str) {
        self.lines.retain(|line| line.key != key);
    }

    /// Returns the file's value of an environment variable, if it can be read.
    pub fn variable(&self, name: &str) -> Option<&str> {
        let is_it = |one: &&Setting| one.key.strip_prefix("env.") == Some(name);
        let one = self.surroundings.iter().rev().find(is_it)?;
        // A secret's presence is reported; a value with a secret in it is not.
        let is_part = one.is_withheld && one.value != WITHHELD;
        let value = Some(one.value.as_str()).filter(|_| !is_part)?;
        (!value.is_empty() && !value.contains(['$', '`'])).then_some(value)
    }

    pub fn add_reward(&mut self, from: &str, lines: Vec<(&'static str, String)>) {
        self.rewards.push((from.into(), lines));
    }

    pub fn has_reward(&self) -> bool {
        !self.rewards.is_empty()
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

    /// Returns the refusal of a method that does not exist here.
    pub fn no_method(taken: &Taken) -> Error {
        let what = format!("{}`{}` is `{}`, which is no method here", taken.place, taken.from, taken.value);
        Error::usage("import-no-method", what).hint(
            "change it to one that is, for example GRPO, and import again; docs/methods.md lists the methods",
        )
    }
}

fn clips(low: String, high: String) -> Vec<(&'static str, String)> {
    vec![("loss.clip_low", low), ("loss.clip_high", high)]
}

/// Returns why a setting is left out whose value cannot be read.
fn not_read(why: &str, given: &Setting) -> String {
    if given.branch == 0 { why.into() } else { format!("{why} (line {})", given.branch) }
}

/// Returns the TOML of a string.
pub(crate) fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

/// Converts a dict of Python or JSON to an inline table, if all its values are simple.
fn variables(text: &str) -> Option<String> {
    let word = |word: &str| match word {
        "True" => "true".to_string(),
        "False" => "false".to_string(),
        other => other.to_string(),
    };
    let mut json = String::new();
    for (index, part) in text.split('\'').enumerate() {
        if index > 0 {
            json.push('"');
        }
        json += &part
            .split_inclusive(|c: char| !c.is_alphanumeric())
            .map(|piece| {
                let end = piece.trim_end_matches(|c: char| !c.is_alphanumeric());
                word(end) + &piece[end.len()..]
            })
            .collect::<String>();
    }
    // JSON is used as written.
    let found: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).or_else(|_| serde_json::from_str(&json)).ok()?;
    let is_bare =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let pairs: Option<Vec<String>> = found
        .iter()
        .map(|(name, value)| {
            let is_simple = value.is_boolean() || value.is_number() || value.is_string();
            (is_simple && is_bare(name)).then(|| format!("{name} = {value}"))
        })
        .collect();
    Some(format!("{{ {} }}", pairs?.join(", ")))
}
