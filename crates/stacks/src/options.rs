//! A run's settings for the rules of a plan: aliases, defaults, switches and numbers with bounds.

use crate::setting::{SURROUNDINGS, Setting, flag, number};
use crate::table::{Table, first_name};
use plimsoll_base::{Error, Result};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Largest count: 2^40 tokens, rows or cards are a typing error.
const COUNT_MAX: u64 = 1 << 40;

/// New values of settings by name; `None` removes a setting.
pub(crate) type Values = Vec<(&'static str, Option<String>)>;

pub(crate) fn set(name: &'static str, value: impl ToString) -> Values {
    vec![(name, Some(value.to_string()))]
}

/// A change of settings that a plan tries as a remedy: its description, and new values; `None` if it does not apply.
pub(crate) type Change = (&'static str, fn(&Options) -> Option<Values>);

/// A run's settings, and the framework's defaults that the rules have used.
#[derive(Clone)]
pub(crate) struct Options {
    table: &'static Table,
    settings: Vec<Setting>,
    taken: RefCell<BTreeSet<String>>,
}

impl Options {
    pub fn new(table: &'static Table, settings: Vec<Setting>) -> Options {
        Options { table, settings, taken: RefCell::default() }
    }

    /// Returns the options with other values, for a what-if; `None` removes a setting.
    pub fn with(&self, changes: &[(&str, Option<String>)]) -> Options {
        let mut changed = self.clone();
        for (name, value) in changes {
            changed.settings.retain(|one| self.table.first_of(&one.key) != Some(name));
            if let Some(value) = value {
                changed.settings.push(Setting::new(*name, value.clone(), 0));
            }
        }
        changed
    }

    /// Returns the setting called `name`, the first name of its row; the last occurrence counts.
    pub fn find(&self, name: &str) -> Option<&Setting> {
        debug_assert!(self.table.first_of(name) == Some(name), "{name} is no first name of a used option");
        let one = self.settings.iter().rev().find(|one| self.table.first_of(&one.key) == Some(name))?;
        (!one.is_unset()).then_some(one)
    }

    /// Returns which of two settings comes later in the file; `one` if neither is there.
    pub fn later(&self, one: &'static str, other: &'static str) -> &'static str {
        let names = self.settings.iter().rev().filter(|setting| !setting.is_unset());
        let mut names = names.filter_map(|setting| self.table.first_of(&setting.key));
        names.find(|name| [one, other].contains(name)).unwrap_or(one)
    }

    fn readable(&self, name: &str) -> Result<Option<&Setting>> {
        let Some(one) = self.find(name) else { return Ok(None) };
        match one.unreadable {
            Some(why) => Err(invalid(one, why).hint(format!("say it by hand: --set {}=VALUE", one.key))),
            None => Ok(Some(one)),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    pub fn text(&self, name: &str) -> Result<Option<&str>> {
        Ok(self.readable(name)?.map(|one| one.value.as_str()))
    }

    /// Returns the setting's text, or the framework's default.
    pub fn text_or(&self, name: &str, default: &'static str) -> Result<&str> {
        Ok(self.or(self.text(name)?, name, default))
    }

    /// Returns a switch: present without a word, or true or false.
    pub fn flag_or(&self, name: &str, default: bool) -> Result<bool> {
        let read = |one: &Setting| flag(&one.value).ok_or_else(|| invalid(one, "is neither true nor false"));
        Ok(self.or(self.readable(name)?.map(read).transpose()?, name, default))
    }

    /// Turns a switch `to` true or false; `None` if it already is, or is unreadable.
    pub fn turn(&self, name: &'static str, default: bool, to: bool) -> Option<Values> {
        let word = if to { "True" } else { "False" };
        (self.flag_or(name, default) == Ok(!to)).then(|| set(name, word))
    }

    /// Adds a switch without a word, or removes it; `None` if it already is so, or is unreadable.
    pub fn switch(&self, name: &'static str, to: bool) -> Option<Values> {
        (self.flag_or(name, false) == Ok(!to)).then(|| vec![(name, to.then(String::new))])
    }

    /// Returns a share reduced by 0.2, if it is larger than `above`.
    pub fn smaller_share(&self, name: &'static str, default: f64, above: f64) -> Option<Values> {
        let share = self.share_or(name, default).ok()?;
        (share > above).then(|| set(name, format!("{:.2}", share - 0.2)))
    }

    /// Returns a whole number from 1 on.
    pub fn count(&self, name: &str) -> Result<Option<u64>> {
        match self.whole(name)? {
            Some(0) => Err(invalid(self.find(name).expect("it is there"), "must be at least 1")),
            other => Ok(other),
        }
    }

    /// Returns a whole number from 1 on, or the framework's default.
    pub fn count_or(&self, name: &str, default: u64) -> Result<u64> {
        Ok(self.or(self.count(name)?, name, default))
    }

    /// Returns a whole number from 0 on; -1, which frameworks use for "never", is 0.
    pub fn whole(&self, name: &str) -> Result<Option<u64>> {
        let Some(one) = self.readable(name)? else { return Ok(None) };
        let text = one.value.trim().replace('_', "");
        if text == "-1" {
            return Ok(Some(0));
        }
        let exact = text.parse::<u64>().ok();
        // `1e6`; f64 counts exactly up to 2^53.
        let real = || text.parse::<f64>().ok().filter(|v| v.fract() == 0.0 && (0.0..9e15).contains(v));
        match exact.or_else(|| real().map(|value| value as u64)) {
            Some(count) if count <= COUNT_MAX => Ok(Some(count)),
            Some(_) => Err(invalid(one, "is more than 2^40")),
            None => Err(invalid(one, "is not a whole number from 0 on")),
        }
    }

    /// Returns a number from 0 on, or the framework's default.
    pub fn number_or(&self, name: &str, default: f64) -> Result<f64> {
        let read = |one: &Setting| {
            let value = number(&one.value).filter(|value| *value >= 0.0);
            value.ok_or_else(|| invalid(one, "is not a number from 0 on"))
        };
        Ok(self.or(self.readable(name)?.map(read).transpose()?, name, default))
    }

    /// Returns a share above 0, at most 1.
    pub fn share_or(&self, name: &str, default: f64) -> Result<f64> {
        let share = self.number_or(name, default)?;
        match self.find(name) {
            Some(one) if share <= 0.0 || share > 1.0 => Err(invalid(one, "is no share: above 0, at most 1")),
            _ => Ok(share),
        }
    }

    /// Returns true if a setting uses the first, oldest of several names.
    pub fn has_first_names(&self) -> bool {
        let mut olds = self.table.used().filter(|names| names.contains('|')).map(first_name);
        olds.any(|first| self.settings.iter().any(|one| one.key == first))
    }

    /// Returns the version that the file pins a package to.
    pub fn version(&self, package: &str) -> Option<&Setting> {
        let key = format!("version.{package}");
        self.settings.iter().rev().find(|one| one.key == key)
    }

    /// Returns the file's value, or the default, which the plan then lists.
    fn or<T: std::fmt::Display>(&self, found: Option<T>, name: &str, default: T) -> T {
        if found.is_none() {
            self.taken.borrow_mut().insert(format!("{name} = {default}"));
        }
        found.unwrap_or(default)
    }

    /// Returns the framework's defaults that the plan is based on.
    pub fn defaults(&self) -> Vec<String> {
        self.taken.borrow().iter().cloned().collect()
    }

    /// Returns settings without a rule that are not known to move no memory, each with its line.
    pub fn unknown(&self) -> Vec<String> {
        let is_ours = |key: &str| SURROUNDINGS.iter().any(|start| key.starts_with(start));
        let is_known = |key: &str| is_ours(key) || self.table.is_known(key);
        let shown = |one: &Setting| match one.place() {
            place if place.is_empty() => one.key.clone(),
            place => format!("{} ({place})", one.key),
        };
        self.settings.iter().filter(|one| !is_known(&one.key)).map(shown).collect()
    }
}

pub(crate) fn invalid(one: &Setting, why: &str) -> Error {
    let place = if one.line == 0 { String::new() } else { one.place() + ": " };
    Error::usage("run-value-invalid", format!("{place}`{}` = `{}`: {why}", one.key, one.value))
}

/// Refuses two settings that cannot both hold.
pub(crate) fn contradiction(message: impl Into<String>, hint: &str) -> Error {
    Error::usage("run-settings-contradict", message).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> Options {
        static HERE: Table = Table {
            stack: "none",
            rows: &[],
            alike: &[],
            used: "a.b|b c d e",
            idle: "log_* seed",
            elsewhere: &[],
            secrets: "",
        };
        let one = |(index, (key, value)): (usize, &(&str, &str))| Setting {
            unreadable: (*value == "$X").then_some("holds a variable that the file does not set"),
            ..Setting::new(*key, *value, index + 1)
        };
        Options::new(&HERE, pairs.iter().enumerate().map(one).collect())
    }

    #[test]
    fn names_defaults_and_what_is_not_known() {
        let given =
            options(&[("b", "1"), ("a.b", "2"), ("log_every", "1"), ("seed", "3"), ("frob", "4"), ("c", "")]);
        assert_eq!(given.count_or("a.b", 9).unwrap(), 2);
        assert_eq!(given.count_or("d", 9).unwrap(), 9);
        assert!(given.flag_or("c", false).unwrap());
        assert_eq!((given.unknown(), given.defaults()), (vec!["frob (line 5)".into()], vec!["d = 9".into()]));
        let changed = given.with(&[("a.b", Some("7".into())), ("c", None)]);
        assert_eq!((changed.count("a.b").unwrap(), changed.has("c")), (Some(7), false));
    }

    #[test]
    fn values_out_of_bounds_are_named_with_their_line() {
        for (value, words) in [
            ("-3", "not a whole number"),
            ("x", "not a whole number"),
            ("0", "at least 1"),
            ("99999999999999999999", "not a whole number"),
            ("2000000000000", "more than 2^40"),
            ("1.5", "not a whole number"),
            ("$X", "a variable that the file does not set"),
        ] {
            let error = options(&[("c", value)]).count("c").unwrap_err();
            assert_eq!(error.slug, "run-value-invalid", "{value}");
            assert!(error.message.starts_with("line 1: `c`") && error.message.contains(words), "{error}");
        }
        assert_eq!(options(&[("c", "1e3")]).count("c").unwrap(), Some(1000));
        assert_eq!(options(&[("c", "-1")]).whole("c").unwrap(), Some(0));
        for (value, ok) in
            [("0.5", true), ("1", true), ("0", false), ("1.5", false), ("-1", false), ("nan", false)]
        {
            assert_eq!(options(&[("c", value)]).share_or("c", 0.9).is_ok(), ok, "{value}");
        }
        assert_eq!(options(&[("c", "maybe")]).flag_or("c", true).unwrap_err().slug, "run-value-invalid");
    }
}
