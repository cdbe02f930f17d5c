//! A stack's settings by name: aliases, defaults, switches and numbers with bounds; and what nobody knows.

use super::verdict::Values;
use plimsoll_base::{Error, Result};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Largest count that a setting may be: 2^40 tokens, rows or cards are a slip of the hand.
const COUNT_MAX: u64 = 1 << 40;

/// One setting of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The stack's key, or one of ours: `env.NAME`, `version.PACKAGE`, `machine.KEY`.
    pub key: String,
    /// Its value; empty for a switch.
    pub value: String,
    /// Where it stands, from 1; 0 if it was given by hand.
    pub line: usize,
    /// Why the value cannot be taken as it stands, if so.
    pub unreadable: Option<&'static str>,
}

/// The names that a stack's rules know.
pub(super) struct Names {
    /// Those that move memory, `first|second|...` for several names of one setting.
    pub used: &'static [&'static str],
    /// Those that move none. A name that ends in `*` stands for all that begin so.
    pub idle: &'static [&'static str],
}

impl Names {
    fn first_of(&self, key: &str) -> Option<&'static str> {
        let row = self.used.iter().find(|row| row.split('|').any(|name| name == key))?;
        row.split('|').next()
    }

    fn is_idle(&self, key: &str) -> bool {
        self.idle.iter().any(|name| match name.strip_suffix('*') {
            Some(start) => key.starts_with(start),
            None => *name == key,
        })
    }
}

/// Settings as a stack's rules ask for them.
#[derive(Clone)]
pub(super) struct Options {
    names: &'static Names,
    settings: Vec<Setting>,
    /// Defaults that were taken.
    taken: RefCell<BTreeSet<String>>,
}

impl Options {
    pub fn new(names: &'static Names, settings: Vec<Setting>) -> Options {
        Options { names, settings, taken: RefCell::default() }
    }

    /// The same with other values, for a what-if; `None` takes a setting away.
    pub fn with(&self, changes: &[(&str, Option<String>)]) -> Options {
        let mut changed = self.clone();
        for (name, value) in changes {
            changed.settings.retain(|one| self.names.first_of(&one.key) != Some(name));
            if let Some(value) = value {
                let (key, value) = ((*name).to_string(), value.clone());
                changed.settings.push(Setting { key, value, line: 0, unreadable: None });
            }
        }
        changed
    }

    /// The setting called `name`, which is the first name of its row; the last one counts.
    pub fn find(&self, name: &str) -> Option<&Setting> {
        debug_assert!(
            name.contains('.') || self.names.first_of(name) == Some(name),
            "{name} is no first name of a row"
        );
        let is_it = |one: &&Setting| one.key == name || self.names.first_of(&one.key) == Some(name);
        let one = self.settings.iter().rev().find(is_it)?;
        (!matches!(one.value.as_str(), "None" | "null" | "~")).then_some(one)
    }

    fn readable(&self, name: &str) -> Result<Option<&Setting>> {
        match self.find(name) {
            Some(one) => match one.unreadable {
                Some(why) => Err(invalid(one, why).hint(format!("say it by hand: --set {}=VALUE", one.key))),
                None => Ok(Some(one)),
            },
            None => Ok(None),
        }
    }

    /// True if the file says it.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Its words.
    pub fn text(&self, name: &str) -> Result<Option<&str>> {
        Ok(self.readable(name)?.map(|one| one.value.as_str()))
    }

    /// Its words, or the framework's default.
    pub fn text_or(&self, name: &str, default: &'static str) -> Result<&str> {
        Ok(match self.text(name)? {
            Some(text) => text,
            None => {
                self.take_default(name, default);
                default
            }
        })
    }

    /// A switch: there without a word, or true or false.
    pub fn flag_or(&self, name: &str, default: bool) -> Result<bool> {
        let Some(one) = self.readable(name)? else {
            self.take_default(name, &default.to_string());
            return Ok(default);
        };
        match one.value.trim().to_ascii_lowercase().as_str() {
            "" | "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" => Ok(false),
            _ => Err(invalid(one, "is neither true nor false")),
        }
    }

    /// A switch turned `to` true or false, if it is readable and stands the other way.
    pub fn turn(&self, name: &'static str, default: bool, to: bool) -> Option<Values> {
        let word = if to { "True" } else { "False" };
        (self.flag_or(name, default) == Ok(!to)).then(|| vec![(name, Some(word.into()))])
    }

    /// A whole number from 1 on.
    pub fn count(&self, name: &str) -> Result<Option<u64>> {
        match self.whole(name)? {
            Some(0) => Err(invalid(self.find(name).expect("it is there"), "must be at least 1")),
            other => Ok(other),
        }
    }

    /// A whole number from 1 on, or the framework's default.
    pub fn count_or(&self, name: &str, default: u64) -> Result<u64> {
        Ok(match self.count(name)? {
            Some(count) => count,
            None => {
                self.take_default(name, &default.to_string());
                default
            }
        })
    }

    /// A whole number from 0 on; -1, which frameworks write for "never", is 0.
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

    /// A number from 0 on, or the framework's default.
    pub fn number_or(&self, name: &str, default: f64) -> Result<f64> {
        let Some(one) = self.readable(name)? else {
            self.take_default(name, &default.to_string());
            return Ok(default);
        };
        let value = one.value.trim().parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
        value.ok_or_else(|| invalid(one, "is not a number from 0 on"))
    }

    /// A share: above 0, at most 1.
    pub fn share_or(&self, name: &str, default: f64) -> Result<f64> {
        let share = self.number_or(name, default)?;
        match self.find(name) {
            Some(one) if share <= 0.0 || share > 1.0 => Err(invalid(one, "is no share: above 0, at most 1")),
            _ => Ok(share),
        }
    }

    /// True if a setting has the first of several names: the oldest one.
    pub fn has_first_names(&self) -> bool {
        let firsts = self.names.used.iter().filter_map(|row| row.split_once('|')).map(|(first, _)| first);
        firsts.into_iter().any(|first| self.settings.iter().any(|one| one.key == first))
    }

    /// What the file pins a package to.
    pub fn version(&self, package: &str) -> Option<&Setting> {
        let key = format!("version.{package}");
        self.settings.iter().rev().find(|one| one.key == key)
    }

    fn take_default(&self, name: &str, value: &str) {
        self.taken.borrow_mut().insert(format!("{name} = {value}"));
    }

    /// Defaults of the framework that the plan rests on.
    pub fn defaults(&self) -> Vec<String> {
        self.taken.borrow().iter().cloned().collect()
    }

    /// Settings that have no rule and are not known to move nothing, each with its line.
    pub fn unknown(&self) -> Vec<String> {
        let is_ours = |key: &str| ["env.", "version.", "machine."].iter().any(|start| key.starts_with(start));
        let is_known =
            |key: &str| is_ours(key) || self.names.first_of(key).is_some() || self.names.is_idle(key);
        let shown = |one: &Setting| match one.line {
            0 => one.key.clone(),
            line => format!("{} (line {line})", one.key),
        };
        self.settings.iter().filter(|one| !is_known(&one.key)).map(shown).collect()
    }
}

pub(super) fn invalid(one: &Setting, why: &str) -> Error {
    let place = if one.line == 0 { String::new() } else { format!("line {}: ", one.line) };
    Error::usage("run-value-invalid", format!("{place}`{}` = `{}`: {why}", one.key, one.value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names = Names { used: &["a.b|b", "c", "d", "e"], idle: &["log_*", "seed"] };

    fn options(pairs: &[(&str, &str)]) -> Options {
        static HERE: Names = NAMES;
        let one = |(index, (key, value)): (usize, &(&str, &str))| Setting {
            key: (*key).into(),
            value: (*value).into(),
            line: index + 1,
            unreadable: (*value == "$X").then_some("holds a variable that the file does not set"),
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
