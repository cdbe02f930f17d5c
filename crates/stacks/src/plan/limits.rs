//! The machine of a plan: numbers by hand, from the file, or read here, each with its source.

use super::pool::Pool;
use crate::{options::invalid, setting::Setting};
use plimsoll_base::{Bytes, Error, Result};

/// A value and its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Known<T> {
    pub value: T,
    /// `--gpus`, `line 3`, `/proc/meminfo`, ...
    pub source: String,
    /// True if a person set it for this plan: then a file does not change it.
    pub by_hand: bool,
}

/// A machine's resources; unknown ones are not judged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    pub gpus: Option<Known<u64>>,
    pub gpu_bytes: Option<Known<Bytes>>,
    /// Memory for a node's processes: a container's limit.
    pub host_bytes: Option<Known<Bytes>>,
    pub shm_bytes: Option<Known<Bytes>>,
    /// The kernel: major, minor.
    pub kernel: Option<Known<(u32, u32)>>,
    /// Environment variables of the trainer.
    pub variables: Vec<(String, Known<String>)>,
}

impl Limits {
    pub(crate) fn with_settings(&self, settings: &[Setting]) -> Result<Limits> {
        let mut limits = self.clone();
        for one in settings {
            let source = format!("{} of the file", one.place());
            if let Some(name) = one.key.strip_prefix("env.") {
                let known = Known { value: one.value.clone(), source, by_hand: false };
                if !limits.variables.iter().any(|(own, known)| own == name && known.by_hand) {
                    limits.variables.retain(|(own, _)| own != name);
                    limits.variables.push((name.into(), known));
                }
                continue;
            }
            let bytes = || {
                Bytes::parse(&one.value)
                    .map_err(|err| invalid(one, "is not a number of bytes").fact(err.message))
            };
            match one.key.as_str() {
                "machine.gpus" => {
                    let count = one.value.parse::<u64>().ok().filter(|count| (1..=1024).contains(count));
                    let count = count.ok_or_else(|| invalid(one, "is not a number of cards, 1 to 1024"))?;
                    replace(&mut limits.gpus, count, source);
                }
                "machine.host_memory" => replace(&mut limits.host_bytes, bytes()?, source),
                "machine.shm" => replace(&mut limits.shm_bytes, bytes()?, source),
                _ => {}
            }
        }
        Ok(limits)
    }

    /// Returns the bytes available in `pool`.
    pub(crate) fn of(&self, pool: Pool) -> Option<&Known<Bytes>> {
        match pool {
            Pool::Device => self.gpu_bytes.as_ref(),
            Pool::Host => self.host_bytes.as_ref(),
            Pool::Shm => self.shm_bytes.as_ref(),
        }
    }

    /// Returns a card's memory.
    ///
    /// Errors: `run-machine-unknown`.
    pub(crate) fn card(&self) -> Result<Bytes> {
        let known = self.of(Pool::Device).map(|known| known.value);
        known.ok_or_else(|| unknown("memory of a card", "--gpu-memory 80GiB"))
    }

    /// Returns the number of cards of a node.
    ///
    /// Errors: `run-machine-unknown`.
    pub(crate) fn cards(&self) -> Result<u64> {
        self.gpus.as_ref().map(|known| known.value).ok_or_else(|| unknown("number of cards", "--gpus 8"))
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&Known<String>> {
        self.variables.iter().find(|(own, _)| own == name).map(|(_, known)| known)
    }
}

fn replace<T>(slot: &mut Option<Known<T>>, value: T, source: String) {
    if !slot.as_ref().is_some_and(|known| known.by_hand) {
        *slot = Some(Known { value, source, by_hand: false });
    }
}

fn unknown(what: &str, flag: &str) -> Error {
    Error::usage("run-machine-unknown", format!("the {what} is not known"))
        .fact("neither the file nor this machine says it")
        .hint(format!("give it: {flag}"))
}

/// A version's first three numbers.
pub(crate) type Version = (u32, u32, u32);

pub(crate) fn numbers(version: &str) -> Version {
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(key: &str, value: &str) -> Setting {
        Setting::new(key, value, 4)
    }

    #[test]
    fn a_hand_wins_over_the_file_and_the_file_over_readings() {
        let known = |value, by_hand| Some(Known { value, source: "x".into(), by_hand });
        let limits = Limits { gpus: known(2, true), ..Limits::default() };
        let file =
            [setting("machine.gpus", "8"), setting("machine.host_memory", "500GB"), setting("env.A", "b")];
        let merged = limits.with_settings(&file).unwrap();
        assert_eq!(merged.cards().unwrap(), 2);
        assert_eq!(merged.host_bytes.as_ref().unwrap().value, Bytes(500_000_000_000));
        assert_eq!(merged.variable("A").unwrap().value, "b");
        let read = Limits { gpus: known(2, false), ..Limits::default() };
        assert_eq!(read.with_settings(&file).unwrap().cards().unwrap(), 8);
        assert_eq!(merged.card().unwrap_err().slug, "run-machine-unknown");
        for (key, value) in [("machine.gpus", "-1"), ("machine.gpus", "99999"), ("machine.shm", "much")] {
            let error = Limits::default().with_settings(&[setting(key, value)]).unwrap_err();
            assert_eq!(error.slug, "run-value-invalid", "{key} {value}");
        }
    }

    #[test]
    fn versions_are_three_numbers() {
        for (text, expect) in
            [("0.8.1", (0, 8, 1)), ("1.10.0.dev0", (1, 10, 0)), ("0.2", (0, 2, 0)), ("x", (0, 0, 0))]
        {
            assert_eq!(numbers(text), expect, "{text}");
        }
    }
}
