//! Compiles the signatures of data/: classes, rules, and the search for all literals.

use super::data::{LINES, THEMES};
use super::literals::Literals;
use super::text::regex;
use regex::Regex;
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

/// The weight of a class's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// May be the first cause.
    #[default]
    Cause,
    /// Often survived: the cause only if no step follows it and the logs have no `Cause`.
    Survivable,
    /// Follows a death.
    Secondary,
    /// Kills no process.
    Warning,
    /// Never the answer, only shown next to one.
    Note,
    /// A kind of failure: named instead of `unknown`.
    General,
}

#[derive(Clone, Debug)]
pub struct Class {
    pub slug: String,
    pub level: Level,
    /// True if its words occur in the messages of other classes: on one line, those win.
    pub is_broad: bool,
    /// Named only if no other fault follows: the awaited work has then begun.
    pub is_alone: bool,
    /// Classes that it replaces within a burst of lines.
    pub refines: Vec<usize>,
    /// Causes that its warning explains.
    pub leads_to: Vec<usize>,
    pub reads: Vec<Read>,
}

/// A regular expression compiled on first use: most logs need few, each takes 0.2 MiB, and all a quarter of a second.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    compiled: OnceLock<Regex>,
}

impl Pattern {
    pub fn new(text: &str) -> Pattern {
        Pattern { text: text.to_string(), compiled: OnceLock::new() }
    }

    pub fn regex(&self) -> &Regex {
        self.compiled.get_or_init(|| regex(&self.text))
    }

    pub fn is_match(&self, text: &str) -> bool {
        self.regex().is_match(text)
    }
}

/// Numbers and names in a sign's line, and their reason.
#[derive(Clone, Debug)]
pub struct Read {
    pattern: Pattern,
    /// A sentence, with `{name}` for the groups of `regex`.
    pub says: String,
    /// The first step in that case.
    pub first: Option<String>,
}

impl Read {
    pub fn regex(&self) -> &Regex {
        self.pattern.regex()
    }
}

/// Judgements by numbers and frames, in `judge/` or `readings`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judge {
    /// Out of memory on a card: five numbers and the innermost frames.
    CudaOom,
    /// A fault on the card: was memory unmapped meanwhile?
    IllegalAccess,
    NoSpace,
    /// The kernel killed a process for the whole machine.
    KernelKill,
    /// An abort in native code.
    Aborted,
    /// A row of a card's process table.
    SharedCard,
    SleepResidue,
    /// A container's count of kills.
    OomCounter,
    Reading,
    /// An engine's start found less free memory than it should use.
    StartupMemory,
    /// A step's loss or norm is not a number.
    NanStep,
    /// A watchdog's report of a collective.
    Collective,
}

impl Judge {
    /// Returns true if it judges all lines of a file together.
    pub fn sums_up(self) -> bool {
        use Judge::{Collective, NanStep, OomCounter, Reading, SharedCard};
        matches!(self, Reading | SharedCard | OomCounter | NanStep | Collective)
    }
}

/// An activity that a line reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// A rollout engine released its memory.
    Sleep,
    Wake,
    Capture,
    CacheRelease,
    Save,
    Load,
    Rollout,
    Expandable,
    /// Ray found its disk nearly full.
    DiskNearlyFull,
    /// A step of training.
    Step,
    Finish,
    /// A full bar over steps.
    FullBar,
    /// An end that failed runs print too: a successful one if nothing else was found.
    Goodbye,
    /// Another stage or run begins.
    Begin,
    /// A row about a pod or a job: `roster` reads it.
    Member,
    /// The program tries again, with less, or leaves out what failed.
    Recover,
    /// Counts around steps, and bars: `counters` reads its literals.
    Counter,
}

pub const MARKS: usize = Mark::Counter as usize + 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    Class(usize),
    Judge(Judge),
    Mark(Mark),
    /// A name of the framework that wrote the log.
    Framework(usize),
    /// A row of lines that look like a fault or a complaint.
    Suspicious(usize),
}

/// Lines of no class that look like a failure.
#[derive(Clone, Debug)]
pub struct Suspicious {
    /// 0 fault, 1 complaint.
    pub rank: usize,
    /// True if the words count even on a line that its logger calls information or a warning.
    pub at_any_level: bool,
}

#[derive(Debug)]
pub struct Rule {
    pub about: About,
    /// Level of its events; the events of a judgement have the level of their class.
    pub level: Option<Level>,
    /// Excludes lines that their logger calls information or a warning.
    pub is_loud: bool,
    /// Programs of which one must have failed in the line's command.
    pub programs: Vec<String>,
    /// True if a list of possible causes is evidence too.
    pub lists: bool,
    /// The words of its literals.
    pub words: Vec<String>,
    /// Must match from within the line.
    pub regex: Option<Pattern>,
    /// True if the match may begin a line before the literal, because terminals wrap messages.
    pub wraps: bool,
    /// True if the match may continue in the next lines.
    pub spans_lines: bool,
    /// Must match the line or the lines before it.
    pub needs: Option<Pattern>,
    /// Must not match the line or those after it.
    pub unless: Option<Pattern>,
    /// Must not match the lines before either.
    pub unless_before: Option<Pattern>,
    /// Must not match the lines after it, beyond what `unless` reads.
    pub unless_after: Option<Pattern>,
    pub literals: Vec<usize>,
}

/// A sign of a class of level `general`.
#[derive(Debug)]
pub struct General {
    pub class: usize,
    /// Matches the line, or from within it the next three.
    pub pattern: Pattern,
    pub unless: Option<Pattern>,
}

impl General {
    fn of(class: usize, level: Level, sign: &SignRow) -> Option<General> {
        let pattern = sign.regex.as_deref().filter(|_| level == Level::General && sign.find.is_empty())?;
        Some(General {
            class,
            pattern: Pattern::new(pattern),
            unless: sign.unless.as_deref().map(Pattern::new),
        })
    }
}

#[derive(Debug)]
pub struct Signatures {
    pub classes: Vec<Class>,
    pub frameworks: Vec<String>,
    pub suspicious: Vec<Suspicious>,
    pub rules: Vec<Rule>,
    pub literals: Literals,
    /// The rules of each literal.
    pub rules_of: Vec<Vec<usize>>,
    /// True if a literal's only rule is that of steps.
    pub is_of_steps: Vec<bool>,
    /// True for a literal of counters.
    pub is_counter: Vec<bool>,
    /// Signs of the kind of a line without a class; the first match counts.
    pub generals: Vec<General>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassFile {
    class: Vec<ClassRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LineFile {
    judge: Vec<JudgeRow>,
    mark: Vec<MarkRow>,
    framework: Vec<FrameworkRow>,
    suspicious: Vec<SuspiciousRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassRow {
    slug: String,
    #[serde(default)]
    level: Level,
    #[serde(default)]
    alone: bool,
    #[serde(default)]
    broad: bool,
    #[serde(default)]
    refines: Vec<String>,
    #[serde(default)]
    leads_to: Vec<String>,
    #[serde(default)]
    sign: Vec<SignRow>,
    #[serde(default)]
    read: Vec<ReadRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadRow {
    regex: String,
    says: String,
    first: Option<String>,
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
    regex: Option<String>,
    unless: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FrameworkRow {
    name: String,
    find: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SuspiciousRow {
    #[serde(rename = "name")]
    _name: String,
    rank: usize,
    #[serde(default)]
    at_any_level: bool,
    find: Vec<String>,
    regex: String,
    unless: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignRow {
    /// Empty for a class of level `general`.
    #[serde(default)]
    find: Vec<String>,
    level: Option<Level>,
    #[serde(default)]
    loud: bool,
    /// Programs of which one must have failed.
    #[serde(default)]
    program: Vec<String>,
    #[serde(default)]
    lists: bool,
    regex: Option<String>,
    needs: Option<String>,
    unless: Option<String>,
    unless_before: Option<String>,
    unless_after: Option<String>,
}

impl Signatures {
    /// Returns the embedded signatures, compiled at the first use.
    pub fn embedded() -> &'static Signatures {
        static EMBEDDED: LazyLock<Signatures> = LazyLock::new(Signatures::compile);
        &EMBEDDED
    }

    fn compile() -> Signatures {
        const SHAPE: &str = "the signatures are TOML of this shape";
        let files = THEMES.iter().map(|theme| toml::from_str::<ClassFile>(theme.signatures).expect(SHAPE));
        let rows: Vec<ClassRow> = files.flat_map(|file| file.class).collect();
        let lines: LineFile = toml::from_str(LINES).expect(SHAPE);
        let mut rules = Rules::default();
        // Marks first: a judgement sees the marks of its own line.
        for row in lines.mark {
            if row.name == Mark::Counter {
                rules.count(&row.find);
                continue;
            }
            let MarkRow { name, find, regex, unless } = row;
            rules.push(About::Mark(name), None, &SignRow { find, regex, unless, ..SignRow::default() });
        }
        for (index, row) in lines.framework.iter().enumerate() {
            let find = row.find.clone();
            rules.push(About::Framework(index), None, &SignRow { find, ..SignRow::default() });
        }
        let mut generals = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            for sign in &row.sign {
                match General::of(index, row.level, sign) {
                    Some(general) => generals.push(general),
                    None => rules.push(About::Class(index), Some(row.level), sign),
                }
            }
        }
        for row in &lines.judge {
            row.sign.iter().for_each(|sign| rules.push(About::Judge(row.name), None, sign));
        }
        let mut suspicious = Vec::new();
        for (index, row) in lines.suspicious.into_iter().enumerate() {
            let SuspiciousRow { rank, at_any_level, find, regex, unless, .. } = row;
            suspicious.push(Suspicious { rank, at_any_level });
            let sign = SignRow { find, regex: Some(regex), unless, ..SignRow::default() };
            rules.push(About::Suspicious(index), None, &sign);
        }
        let frameworks = lines.framework.into_iter().map(|row| row.name).collect();
        Signatures { generals, ..rules.finish(classes(rows), frameworks, suspicious) }
    }

    pub fn class(&self, slug: &str) -> usize {
        let at = self.classes.iter().position(|class| class.slug == slug);
        at.expect("a judgement names classes of the file")
    }

    pub fn slugs(&self) -> impl Iterator<Item = &str> {
        self.classes.iter().map(|class| class.slug.as_str())
    }
}

fn classes(rows: Vec<ClassRow>) -> Vec<Class> {
    let slugs: Vec<String> = rows.iter().map(|row| row.slug.clone()).collect();
    let indices = |names: &[String]| {
        let index_of = |name: &String| slugs.iter().position(|slug| slug == name);
        names.iter().map(|name| index_of(name).expect("a class names classes of the data")).collect()
    };
    let read = |row: ReadRow| Read { pattern: Pattern::new(&row.regex), says: row.says, first: row.first };
    rows.into_iter()
        .map(|row| Class {
            level: row.level,
            is_alone: row.alone,
            is_broad: row.broad,
            refines: indices(&row.refines),
            leads_to: indices(&row.leads_to),
            slug: row.slug,
            reads: row.read.into_iter().map(read).collect(),
        })
        .collect()
}

#[derive(Default)]
struct Rules {
    rules: Vec<Rule>,
    literals: Vec<String>,
    rules_of: Vec<Vec<usize>>,
    known: HashMap<String, usize>,
    counted: Vec<usize>,
}

impl Rules {
    /// Adds literals that `counters` reads, whatever rules they have besides.
    fn count(&mut self, find: &[String]) {
        self.counted = find.iter().map(|literal| self.literal(literal)).collect();
    }

    fn literal(&mut self, literal: &str) -> usize {
        let next = self.literals.len();
        let index = *self.known.entry(literal.to_string()).or_insert(next);
        if index == next {
            self.literals.push(literal.to_string());
            self.rules_of.push(Vec::new());
        }
        index
    }

    fn push(&mut self, about: About, level: Option<Level>, sign: &SignRow) {
        let compiled = |pattern: &Option<String>| pattern.as_deref().map(Pattern::new);
        let mut literals = Vec::new();
        for literal in &sign.find {
            let index = self.literal(literal);
            self.rules_of[index].push(self.rules.len());
            literals.push(index);
        }
        let pattern = sign.regex.as_deref().unwrap_or_default();
        let has_gap = pattern.contains(r"\s+");
        self.rules.push(Rule {
            about,
            level: sign.level.or(level),
            is_loud: sign.loud,
            programs: sign.program.clone(),
            lists: sign.lists,
            words: sign.find.clone(),
            regex: compiled(&sign.regex),
            wraps: has_gap && !pattern.starts_with('^'),
            spans_lines: has_gap || pattern.contains(r"[\s\S]"),
            needs: compiled(&sign.needs),
            unless: compiled(&sign.unless),
            unless_before: compiled(&sign.unless_before),
            unless_after: compiled(&sign.unless_after),
            literals,
        });
    }

    fn finish(self, classes: Vec<Class>, frameworks: Vec<String>, suspicious: Vec<Suspicious>) -> Signatures {
        let is_step = |rule: &usize| self.rules[*rule].about == About::Mark(Mark::Step);
        let is_of_steps = self.rules_of.iter().map(|rules| rules.iter().all(is_step)).collect();
        let is_counter = (0..self.literals.len()).map(|literal| self.counted.contains(&literal)).collect();
        Signatures {
            is_of_steps,
            is_counter,
            classes,
            frameworks,
            suspicious,
            generals: Vec::new(),
            rules: self.rules,
            literals: Literals::new(&self.literals),
            rules_of: self.rules_of,
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
        let count = slugs.len();
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), count);
        // What is compiled when it is needed.
        signatures.classes.iter().flat_map(|class| &class.reads).for_each(|read| drop(read.regex().clone()));
        let of_general = |general: &General| [Some(general.pattern.clone()), general.unless.clone()];
        let of_rule = |rule: &Rule| {
            [&rule.regex, &rule.needs, &rule.unless, &rule.unless_before, &rule.unless_after]
                .map(Clone::clone)
        };
        let all = signatures.generals.iter().flat_map(of_general);
        let all = all.chain(signatures.rules.iter().flat_map(of_rule));
        all.flatten().for_each(|pattern| drop(pattern.regex().clone()));
    }
}
