//! A setting of a run file as a value: the key that says it, its name, a condition and an example; and two of them that
//! do not go together.

use crate::provenance::{Origin, Provenance, without_users};
use crate::sections::{RunFile, TrainedKind};
use plimsoll_base::{Error, Result, shown};
use plimsoll_textenv::Kind;

/// A key that is set, with a value for the example.
macro_rules! set {
    ($section:ident.$key:ident = $value:literal) => {
        $crate::conflicts::setting::when(
            concat!(stringify!($section), ".", stringify!($key)),
            concat!(stringify!($section), ".", stringify!($key)),
            |run| run.$section.$key.is_some(),
            &[concat!(stringify!($section), ".", stringify!($key), "=", $value)],
        )
    };
}

/// A key that is absent.
macro_rules! unset {
    ($section:ident.$key:ident) => {
        $crate::conflicts::setting::when(
            concat!(stringify!($section), ".", stringify!($key)),
            concat!("no ", stringify!($section), ".", stringify!($key)),
            |run| run.$section.$key.is_none(),
            &[],
        )
    };
}

/// A key with one of its names.
macro_rules! value {
    ($section:ident.$key:ident is $value:expr, $name:literal) => {
        $crate::conflicts::setting::when(
            concat!(stringify!($section), ".", stringify!($key)),
            concat!(stringify!($section), ".", stringify!($key), " = \"", $name, "\""),
            |run| run.$section.$key == $value,
            &[concat!(stringify!($section), ".", stringify!($key), "=", $name)],
        )
    };
}

/// A key above a number, with a value for the example.
macro_rules! above {
    // Its field has another name, because this one is a word of Rust.
    (async.$key:ident > $most:literal, $value:literal) => {
        $crate::conflicts::setting::when(
            concat!("async.", stringify!($key)),
            concat!("async.", stringify!($key), " above ", $most),
            |run| run.asynchrony.$key > $most,
            &[concat!("async.", stringify!($key), "=", $value)],
        )
    };
    ($section:ident.$key:ident > $most:literal, $value:literal) => {
        $crate::conflicts::setting::when(
            concat!(stringify!($section), ".", stringify!($key)),
            concat!(stringify!($section), ".", stringify!($key), " above ", $most),
            |run| run.$section.$key > $most,
            &[concat!(stringify!($section), ".", stringify!($key), "=", $value)],
        )
    };
}

/// A baseline by its name, with what sets it.
macro_rules! advantage {
    ($of:ident, $name:literal, $example:literal) => {
        $crate::conflicts::setting::when(
            "loss.advantage",
            concat!("loss.advantage = \"", $name, "\""),
            |run| run.loss.baseline() == Advantage::$of,
            &[$example],
        )
    };
}

/// Two settings that do not go together.
#[derive(Clone, Copy)]
pub(super) struct Conflict {
    /// The setting that an error points at.
    pub setting: Setting,
    pub with: Setting,
    /// A clause about the second setting, or about both.
    pub why: &'static str,
    /// The setting to take instead; `{key}` is the key of the first one.
    pub hint: &'static str,
    pub slug: &'static str,
}

/// Something that a run file may ask for.
#[derive(Clone, Copy)]
pub(super) struct Setting {
    /// The key or section that says it; `loss.*` for one of several.
    pub key: &'static str,
    /// Its name in the table.
    pub name: &'static str,
    holds: Holds,
    /// The settings that make it so in a small run file, as after `--set`; `-section` is removed.
    pub example: &'static [&'static str],
}

/// How to find out whether a setting is so.
#[derive(Clone, Copy)]
enum Holds {
    When(fn(&RunFile) -> bool),
    /// Returns the key that says it.
    Which(fn(&Case) -> Option<String>),
}

/// A run file that is looked at.
pub(super) struct Case<'r> {
    pub run: &'r RunFile,
    pub at: &'r Provenance,
}

pub(super) const fn when(
    key: &'static str,
    name: &'static str,
    holds: fn(&RunFile) -> bool,
    example: &'static [&'static str],
) -> Setting {
    Setting { key, name, holds: Holds::When(holds), example }
}

pub(super) const fn which(
    key: &'static str,
    name: &'static str,
    holds: fn(&Case) -> Option<String>,
    example: &'static [&'static str],
) -> Setting {
    Setting { key, name, holds: Holds::Which(holds), example }
}

pub(super) const fn no(setting: Setting, with: Setting, why: &'static str, hint: &'static str) -> Conflict {
    Conflict { setting, with, why, hint, slug: "contradictory-keys" }
}

impl Conflict {
    pub const fn slug(self, slug: &'static str) -> Conflict {
        Conflict { slug, ..self }
    }

    /// Returns the error of a run file in which both settings are so.
    pub fn error(&self, case: &Case) -> Option<Error> {
        let (key, with) = (self.setting.key_in(case)?, self.with.key_in(case)?);
        let tree = toml::Value::try_from(case.run).expect("every value of a run file has a form in TOML");
        let (setting, with) = (self.setting.text(&tree, &key), self.with.text(&tree, &with));
        let message = format!("{setting} with {with}, {}", self.why);
        Some(case.at.error(self.slug, &key, &message).hint(self.hint.replace("{key}", &key)))
    }
}

impl Setting {
    pub fn key_in(&self, case: &Case) -> Option<String> {
        match self.holds {
            Holds::When(holds) => holds(case.run).then(|| self.key.to_string()),
            Holds::Which(find) => find(case),
        }
    }

    /// Returns the setting with its value of this run; its name where the value is a list, or a default that no file
    /// has.
    pub fn text(&self, tree: &toml::Value, key: &str) -> String {
        let step = |value: &'_ toml::Value, name: &str| match value {
            toml::Value::Array(items) => items.get(name.parse::<usize>().ok()?).cloned(),
            other => other.get(name).cloned(),
        };
        match key.split('.').try_fold(tree.clone(), |value, name| step(&value, name)) {
            Some(toml::Value::Table(_)) => format!("[{key}]"),
            Some(toml::Value::String(text)) => format!("{key} = \"{}\"", without_users(&shown(&text))),
            Some(toml::Value::Array(_)) if key == self.key => self.name.to_string(),
            None if key == self.key => self.name.to_string(),
            Some(toml::Value::Array(_)) | None => key.to_string(),
            Some(value) => format!("{key} = {value}"),
        }
    }
}

impl Case<'_> {
    /// True if a value of the key, or of a key in the section, was given.
    pub fn is_given(&self, key: &str) -> bool {
        let within =
            |name: &str| name == key || name.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'));
        self.at.origins.iter().any(|(name, origin)| within(name) && *origin != Origin::Method)
    }

    /// Returns the first of these keys that was given.
    pub fn given<K: Into<String>>(&self, keys: impl IntoIterator<Item = K>) -> Option<String> {
        keys.into_iter().map(K::into).find(|key| self.is_given(key))
    }
}

/// Returns the first of these keys for which its condition is true.
pub(super) fn first<const N: usize>(keys: [(&str, bool); N]) -> Option<String> {
    keys.into_iter().find(|(_, is_so)| *is_so).map(|(key, _)| key.to_string())
}

/// True if a small network acts in environments.
pub(super) fn is_policy(run: &RunFile) -> bool {
    run.trains() == TrainedKind::Policy
}

/// True if a language model samples what it learns from.
pub(super) fn samples(run: &RunFile) -> bool {
    run.method.spec().sampling.is_some() && !is_policy(run)
}

/// True if a language model plays episodes.
pub(super) fn plays(run: &RunFile) -> bool {
    run.environment.is_some() && !is_policy(run)
}

/// True if a language model plays in such an environment.
pub(super) fn plays_in(run: &RunFile, is_so: fn(&Kind) -> bool) -> bool {
    let kind = run.environment.as_ref().filter(|_| plays(run)).map(|of| Kind::parse(&of.env));
    kind.and_then(Result::ok).is_some_and(|kind| is_so(&kind))
}
