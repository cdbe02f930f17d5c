//! Compiles data/signatures.toml: classes, rules, and one automaton over all literals.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use regex::Regex;
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::LazyLock;

use super::text::regex;

const DATA: &str = include_str!("../../data/signatures.toml");

/// The weight of a class's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// May be the first cause.
    #[default]
    Cause,
    /// Follows a death.
    Secondary,
    /// Kills no process.
    Warning,
}

#[derive(Clone, Debug)]
pub struct Class {
    pub slug: String,
    pub level: Level,
    /// Classes that it replaces within a burst of lines.
    pub refines: Vec<usize>,
    /// Causes that a warning of it explains.
    pub leads_to: Vec<usize>,
}

/// Judgements by numbers and frames, in `judge/` or `readings`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judge {
    /// Out of memory on a card: five numbers and the innermost frames.
    CudaOom,
    /// A fault on the card: was memory unmapped meanwhile?
    IllegalAccess,
    /// No space: on what?
    NoSpace,
    /// The kernel killed a process for the whole machine.
    KernelKill,
    /// An abort in native code.
    Aborted,
    /// A row of a card's process table.
    SharedCard,
    /// What sleep left on the card.
    SleepResidue,
    /// A container's count of kills.
    OomCounter,
    /// A reading of memory.
    Reading,
}

/// An activity that a line reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// A rollout engine released its memory.
    Sleep,
    /// It took its memory again.
    Wake,
    /// Graphs are captured.
    Capture,
    /// Cached memory is released.
    CacheRelease,
    /// A checkpoint is written.
    Save,
    /// A checkpoint is read.
    Load,
    /// There is a rollout engine.
    Rollout,
    /// The allocator works with expandable segments.
    Expandable,
}

pub const MARKS: usize = Mark::Expandable as usize + 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The index of a class.
    Class(usize),
    Judge(Judge),
    Mark(Mark),
    /// A line that looks like a fault (0) or a complaint (1).
    Suspicious(usize),
}

#[derive(Debug)]
pub struct Rule {
    pub about: About,
    /// Must match from within the line.
    pub regex: Option<Regex>,
    /// The match may begin a line before the literal, because terminals wrap messages.
    pub wraps: bool,
    /// The match may continue in the next lines.
    pub spans_lines: bool,
    /// Must match the lines before or the line.
    pub needs: Option<Regex>,
    /// Must not match the line and those after it.
    pub unless: Option<Regex>,
    /// Must not match the lines before either.
    pub unless_before: Option<Regex>,
}

#[derive(Debug)]
pub struct Signatures {
    /// In the order of the file.
    pub classes: Vec<Class>,
    /// In the order of the file.
    pub rules: Vec<Rule>,
    pub automaton: AhoCorasick,
    /// The rules of each literal.
    pub rules_of: Vec<Vec<usize>>,
    pub literal_bytes_max: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    class: Vec<ClassRow>,
    judge: Vec<JudgeRow>,
    mark: Vec<MarkRow>,
    suspicious: Vec<SuspiciousRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassRow {
    slug: String,
    #[serde(default)]
    level: Level,
    #[serde(default)]
    refines: Vec<String>,
    #[serde(default)]
    leads_to: Vec<String>,
    #[serde(default)]
    sign: Vec<SignRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JudgeRow {
    name: Judge,
    sign: Vec<SignRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MarkRow {
    name: Mark,
    find: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SuspiciousRow {
    #[serde(rename = "name")]
    _name: String,
    find: Vec<String>,
    regex: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignRow {
    find: Vec<String>,
    regex: Option<String>,
    needs: Option<String>,
    unless: Option<String>,
    unless_before: Option<String>,
}

impl Signatures {
    /// Returns the embedded signatures, compiled at the first use.
    pub fn embedded() -> &'static Signatures {
        static EMBEDDED: LazyLock<Signatures> = LazyLock::new(Signatures::compile);
        &EMBEDDED
    }

    fn compile() -> Signatures {
        let file: File = toml::from_str(DATA).expect("the signatures are TOML of this shape");
        let index_of = |slug: &String| {
            file.class.iter().position(|row| row.slug == *slug).expect("a class names classes of the file")
        };
        let classes = file.class.iter().map(|row| Class {
            slug: row.slug.clone(),
            level: row.level,
            refines: row.refines.iter().map(index_of).collect(),
            leads_to: row.leads_to.iter().map(index_of).collect(),
        });
        let classes: Vec<Class> = classes.collect();
        let mut rules = Rules::default();
        // Marks first: a judgement sees the marks of its own line.
        for row in &file.mark {
            let find = row.find.clone();
            rules.push(About::Mark(row.name), &SignRow { find, ..SignRow::default() });
        }
        for (index, row) in file.class.iter().enumerate() {
            row.sign.iter().for_each(|sign| rules.push(About::Class(index), sign));
        }
        for row in &file.judge {
            row.sign.iter().for_each(|sign| rules.push(About::Judge(row.name), sign));
        }
        for (index, row) in file.suspicious.into_iter().enumerate() {
            let sign = SignRow { find: row.find, regex: Some(row.regex), ..SignRow::default() };
            rules.push(About::Suspicious(index), &sign);
        }
        rules.finish(classes)
    }

    pub fn class(&self, slug: &str) -> usize {
        self.classes
            .iter()
            .position(|class| class.slug == slug)
            .expect("a judgement names classes of the file")
    }

    pub fn slugs(&self) -> impl Iterator<Item = &str> {
        self.classes.iter().map(|class| class.slug.as_str())
    }
}

/// Rules under construction.
#[derive(Default)]
struct Rules {
    rules: Vec<Rule>,
    literals: Vec<String>,
    rules_of: Vec<Vec<usize>>,
    known: HashMap<String, usize>,
}

impl Rules {
    fn push(&mut self, about: About, sign: &SignRow) {
        let compiled = |pattern: &Option<String>| pattern.as_deref().map(regex);
        for literal in &sign.find {
            let next = self.literals.len();
            let index = *self.known.entry(literal.clone()).or_insert(next);
            if index == next {
                self.literals.push(literal.clone());
                self.rules_of.push(Vec::new());
            }
            self.rules_of[index].push(self.rules.len());
        }
        self.rules.push(Rule {
            about,
            regex: compiled(&sign.regex),
            wraps: sign
                .regex
                .as_deref()
                .is_some_and(|pattern| pattern.contains(r"\s+") && !pattern.starts_with('^')),
            spans_lines: sign
                .regex
                .as_deref()
                .is_some_and(|pattern| pattern.contains(r"\s+") || pattern.contains(r"[\s\S]")),
            needs: compiled(&sign.needs),
            unless: compiled(&sign.unless),
            unless_before: compiled(&sign.unless_before),
        });
    }

    fn finish(self, classes: Vec<Class>) -> Signatures {
        // A DFA reads one table entry a byte, whatever the number of literals; overlapping matches need the standard kind.
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .kind(Some(AhoCorasickKind::DFA))
            .build(&self.literals)
            .expect("some hundreds of short literals");
        Signatures {
            classes,
            rules: self.rules,
            automaton,
            rules_of: self.rules_of,
            literal_bytes_max: self.literals.iter().map(String::len).max().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_compiles_and_names_each_class_once() {
        let signatures = Signatures::embedded();
        let mut slugs: Vec<&str> = signatures.slugs().collect();
        assert_eq!(slugs.len(), 54);
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), 54);
    }
}
