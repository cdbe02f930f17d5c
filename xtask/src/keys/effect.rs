//! Defines an effect: a difference between two runs other than clocks and the setting itself written down.

use std::collections::BTreeMap;

use super::table::Seen;
use crate::same_bits::artefacts::{Artefacts, Kind};

/// Names of what a run leaves, with values.
pub type Values = BTreeMap<String, String>;

/// The plan, bits and output of a run, and how it ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Left {
    pub plan: Values,
    pub bits: Values,
    pub output: Values,
    /// Slug of the error that ended it.
    pub slug: Option<String>,
    /// Its error message.
    pub words: String,
}

impl Left {
    /// Takes the values of `artefacts`. `folder`: where the run was made, which differs from run to run.
    pub fn of(artefacts: &Artefacts, folder: &str) -> Left {
        let mut left = Left::default();
        for kind in Kind::ALL {
            for (name, value) in artefacts.of(kind).iter().filter(|(name, _)| !is_copy_of_settings(name)) {
                let (name, value) = (name.replace(folder, "DIR"), value.replace(folder, "DIR"));
                match kind {
                    Kind::Plan => left.plan.insert(name, value),
                    Kind::Weights => left.bits.insert(name, value),
                    Kind::Samples => {
                        left.bits.insert(name.clone(), value).and(left.output.insert(name, "a file".into()))
                    }
                    // Its other files are copies, checksums, and an account with clocks; their existence is output.
                    Kind::Checkpoints if name.contains("manifest.json") || name.contains("state.json") => {
                        None
                    }
                    Kind::Checkpoints if name.ends_with(".safetensors") => {
                        left.output.insert(name.clone(), "a file".into());
                        left.bits.insert(name, value)
                    }
                    Kind::Checkpoints => left.output.insert(name, "a file".into()),
                    Kind::Events | Kind::Summary => left.output.insert(name, value),
                };
            }
        }
        left
    }

    fn place(&self, seen: &Seen) -> Option<&Values> {
        match seen {
            Seen::Plan => Some(&self.plan),
            Seen::Bits => Some(&self.bits),
            Seen::Output => Some(&self.output),
            Seen::Ends(_) => None,
        }
    }

    /// Removes what differs between two runs of the same settings.
    pub fn without_noise(mut self, again: &Left) -> Left {
        for (ours, theirs) in
            [(&mut self.plan, &again.plan), (&mut self.bits, &again.bits), (&mut self.output, &again.output)]
        {
            ours.retain(|name, value| theirs.get(name) == Some(value));
            // A name that only one of them has would be an effect of any key.
            ours.extend(
                theirs
                    .keys()
                    .filter(|name| !ours.contains_key(*name))
                    .map(|name| (name.clone(), NOISE.into()))
                    .collect::<Vec<_>>(),
            );
        }
        self
    }
}

/// Replaces values that differ between two runs of the same settings.
const NOISE: &str = "differs by itself";

/// Returns true for files that hold the settings as given.
fn is_copy_of_settings(name: &str) -> bool {
    name.contains("run.toml")
}

/// Returns the first effect of `key = value`: a difference between a run without it and one with it; `None` if none.
///
/// A leaf with the key's name and the value is an echo, not an effect.
pub fn effect(seen: &Seen, key: &str, value: &str, before: &Left, after: &Left) -> Option<String> {
    let (Some(old), Some(new)) = (before.place(seen), after.place(seen)) else {
        let Seen::Ends(slug) = seen else { return None };
        let is_new = after.slug.as_ref() == Some(slug) && before.slug.is_none();
        return is_new.then(|| format!("error[{slug}]"));
    };
    // A run that ends with an error leaves less than others, which is no effect of this kind.
    if after.slug.is_some() || before.slug.is_some() {
        return None;
    }
    let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
    names.sort();
    names.dedup();
    let differs = |name: &&&String| {
        old.get(**name).is_none_or(|value| value != NOISE)
            && old.get(**name) != new.get(**name)
            && !is_echo(name, new.get(**name), key, value)
    };
    let name = names.iter().find(differs)?;
    let short = |value: Option<&String>| {
        value.map_or("absent".into(), |value| value.chars().take(40).collect::<String>())
    };
    Some(format!("{name}: {} -> {}", short(old.get(*name)), short(new.get(*name))))
}

/// Returns true if a leaf only repeats the setting: it has the key's name and the value.
fn is_echo(name: &str, leaf: Option<&String>, key: &str, value: &str) -> bool {
    let last = |text: &str| text.rsplit(['.', ' ', '/']).next().unwrap_or(text).to_string();
    let plain = |text: &str| text.trim_matches('"').to_string();
    let same = |leaf: &String| {
        let (leaf, value) = (plain(leaf), plain(value));
        leaf == value
            || matches!((leaf.parse::<f64>(), value.parse::<f64>()), (Ok(a), Ok(b)) if (a as f32) == (b as f32))
    };
    last(name) == last(key) && leaf.is_some_and(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "train.adam_epsilon";

    fn values(pairs: &[(&str, &str)]) -> Values {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    fn left(bits: &[(&str, &str)], output: &[(&str, &str)]) -> Left {
        Left { bits: values(bits), output: values(output), ..Left::default() }
    }

    #[test]
    fn an_echo_is_no_effect() {
        let before = left(
            &[("model.safetensors", "a")],
            &[("events 1 train.adam_epsilon", "1e-8"), ("events 1 loss", "2")],
        );
        for echo in ["1e-3", "0.001", "\"1e-3\""] {
            let after = left(
                &[("model.safetensors", "a")],
                &[("events 1 train.adam_epsilon", echo), ("events 1 loss", "2")],
            );
            assert_eq!(effect(&Seen::Output, KEY, "1e-3", &before, &after), None, "{echo}");
            assert_eq!(effect(&Seen::Bits, KEY, "1e-3", &before, &after), None, "{echo}");
        }
        let after = left(&[], &[("events 1 train.adam_epsilon", "1e-3"), ("events 1 loss", "3")]);
        let found = effect(&Seen::Output, KEY, "1e-3", &before, &after);
        assert_eq!(found.as_deref(), Some("events 1 loss: 2 -> 3"));
    }

    #[test]
    fn copies_of_the_settings_are_left_out() {
        let mut artefacts = Artefacts::default();
        artefacts.insert(Kind::Plan, "out/run/run.toml", "digest".into());
        artefacts.insert(
            Kind::Checkpoints,
            "out/run/checkpoints/step-000001/state/run.toml",
            "digest".into(),
        );
        artefacts.insert(
            Kind::Checkpoints,
            "out/run/checkpoints/step-000001/manifest.json files.state/run.toml.sha256",
            "digest".into(),
        );
        artefacts.insert(
            Kind::Checkpoints,
            "out/run/checkpoints/step-000001/state/state.json plan",
            "digest".into(),
        );
        assert_eq!(Left::of(&artefacts, "/t"), Left::default());
        artefacts.insert(Kind::Events, "out/run/events.jsonl 1 saved path", "\"/t/out/run\"".into());
        assert_eq!(Left::of(&artefacts, "/t").output["out/run/events.jsonl 1 saved path"], "\"DIR/out/run\"");
    }

    #[test]
    fn what_differs_by_itself_is_no_effect() {
        let noisy = |clock: &str| left(&[], &[("clock", clock), ("loss", "2")]);
        let before = noisy("1").without_noise(&noisy("2"));
        assert_eq!(effect(&Seen::Output, KEY, "1", &before, &noisy("3")), None);
        let before = left(&[], &[]).without_noise(&noisy("2"));
        assert_eq!(effect(&Seen::Output, KEY, "1", &before, &noisy("3")), None);
    }

    #[test]
    fn an_error_is_an_effect_only_where_it_is_expected() {
        let ends = |slug: Option<&str>| Left { slug: slug.map(str::to_string), ..left(&[], &[]) };
        let seen = Seen::Ends("reward-failed".into());
        assert!(effect(&seen, KEY, "1", &ends(None), &ends(Some("reward-failed"))).is_some());
        for (before, after) in
            [(None, None), (None, Some("bad-value")), (Some("reward-failed"), Some("reward-failed"))]
        {
            assert_eq!(effect(&seen, KEY, "1", &ends(before), &ends(after)), None);
        }
        let whole = left(&[("model.safetensors", "a")], &[]);
        assert_eq!(effect(&Seen::Bits, KEY, "1", &whole, &ends(Some("bad-value"))), None);
    }
}
