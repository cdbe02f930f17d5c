//! Reads each embedded example as a separate log and builds the confusion table of the classes.
//!
//! `data/examples/` has them: `=== CLASS | EXPECTED | name`, then the lines. An example with EXPECTED = CLASS is
//! positive; others are near misses and must be named EXPECTED: another class, `unknown` or `none`.

use super::data::THEMES;
use super::general::intent_of;
use super::intents::{Intent, intents};
use super::signatures::{About, Rule, Signatures};
use super::{Diagnosis, Limits, diagnose, input::Input};
use plimsoll_base::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;

/// The expected name of a log without failures.
const NONE: &str = "none";

#[derive(Clone, Copy, Debug)]
pub struct Example {
    pub class: &'static str,
    pub expected: &'static str,
    pub name: &'static str,
    pub text: &'static str,
}

impl Example {
    pub fn is_positive(&self) -> bool {
        self.class == self.expected
    }

    pub fn diagnose(&self) -> Result<Diagnosis> {
        diagnose(vec![Input::Stream("example".into(), Box::new(Cursor::new(self.text)))], Limits::default())
    }
}

pub fn examples() -> impl Iterator<Item = Example> {
    let of = |examples: &'static str| examples.strip_prefix("=== ").unwrap_or_default().split("\n=== ");
    let parts = THEMES.iter().flat_map(move |theme| of(theme.examples));
    parts.filter_map(|part| {
        let (head, text) = part.split_once('\n')?;
        let mut fields = head.splitn(3, " | ");
        let (class, expected, name) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Example { class, expected, name, text })
    })
}

/// How many logs used a sign or an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignUse {
    pub class: String,
    /// Its first words, or its expression.
    pub sign: String,
    pub logs: u64,
}

/// Returns how many of `logs`, each read by itself, have a line of each sign, or are named by each intent.
///
/// Errors: those of `diagnose`.
pub fn sign_uses(logs: Vec<Input>) -> Result<Vec<SignUse>> {
    let signatures = Signatures::embedded();
    let (mut signs, mut meant) = (vec![0; signatures.rules.len()], vec![0; intents().len()]);
    for log in logs {
        let found = super::scan(vec![log], Limits::default())?;
        signs.iter_mut().zip(&found.uses).for_each(|(logs, lines)| *logs += u64::from(*lines > 0));
        let of_log = found.suspicions.iter().filter_map(|suspect| intent_of(signatures, suspect));
        of_log.collect::<BTreeSet<usize>>().into_iter().for_each(|intent| meant[intent] += 1);
    }
    let slug = |class: usize| signatures.classes[class].slug.clone();
    let of_rule = |(rule, logs): (&Rule, u64)| match rule.about {
        About::Class(class) => Some(SignUse { class: slug(class), sign: rule.words.join(" | "), logs }),
        _ => None,
    };
    let of_intent = |(intent, logs): (&Intent, u64)| SignUse {
        class: intent.class.clone(),
        sign: format!("intent: {}", intent.name),
        logs,
    };
    let signs = signatures.rules.iter().zip(signs).filter_map(of_rule);
    Ok(signs.chain(intents().iter().zip(meant).map(of_intent)).collect())
}

#[derive(Debug, Default)]
pub struct Confusion {
    /// Counts of (expected, named) pairs that occur.
    pub cells: BTreeMap<(String, String), u64>,
    /// Examples with an unexpected name.
    pub wrong: Vec<(Example, String)>,
    /// (positive examples, near misses) per class.
    pub sizes: BTreeMap<String, (u64, u64)>,
}

impl Confusion {
    pub fn run() -> Result<Confusion> {
        let mut confusion = Confusion::default();
        for slug in Signatures::embedded().slugs() {
            confusion.sizes.insert(slug.into(), (0, 0));
        }
        for example in examples() {
            let named = example.diagnose()?.slug.unwrap_or(NONE.into());
            *confusion.cells.entry((example.expected.into(), named.clone())).or_default() += 1;
            let size = confusion.sizes.entry(example.class.into()).or_default();
            if example.is_positive() {
                size.0 += 1
            } else {
                size.1 += 1
            }
            if named != example.expected {
                confusion.wrong.push((example, named));
            }
        }
        Ok(confusion)
    }

    /// Formats one row for each class: examples, near misses, right and wrong names.
    pub fn table(&self) -> String {
        let mut text =
            format!("{:<30} {:>8} {:>6}  {:>5}  otherwise\n", "expected", "examples", "misses", "right");
        let mut names: Vec<&String> =
            self.cells.keys().map(|(expected, _)| expected).chain(self.sizes.keys()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let (positive, near) = self.sizes.get(name).copied().unwrap_or_default();
            let of = self.cells.iter().filter(|((expected, _), _)| expected == name);
            let (right, wrong): (Vec<_>, Vec<_>) = of.partition(|((expected, named), _)| expected == named);
            let right: u64 = right.iter().map(|(_, count)| **count).sum();
            let wrong: Vec<String> =
                wrong.iter().map(|((_, named), count)| format!("{named} {count}")).collect();
            let wrong = if wrong.is_empty() { "-".to_string() } else { wrong.join(", ") };
            text += &format!("{name:<30} {positive:>8} {near:>6}  {right:>5}  {wrong}\n");
        }
        let total: u64 = self.cells.values().sum();
        text += &format!("{} of {total} examples on the diagonal\n", total - self.wrong.len() as u64);
        for (example, named) in &self.wrong {
            text += &format!(
                "wrong: {} | {} | {}: named {named}\n",
                example.class, example.expected, example.name
            );
        }
        text
    }
}
