//! The arms of a script's branches: which of them run, as far as the file says it, and the variables after them. Words
//! that every arm has are known, and the rest is marked.

use super::condition::{self, Condition};
use super::expand::{BRANCH, Variables};
use super::word::{WORDS_MAX, Word};
use std::collections::{BTreeMap, BTreeSet};

/// Whether the commands of an arm run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Arm {
    /// Its condition holds, by values that the file sets.
    Always,
    /// Its condition is not known.
    #[default]
    Maybe,
    /// Its condition does not hold, or an arm before it always runs.
    Never,
}

/// A branch of the script: `if`, `case` or a loop.
#[derive(Default)]
pub(super) struct Branch {
    /// Its line, from 1.
    line: usize,
    is_while: bool,
    pub arm: Arm,
    /// True within an arm that never runs.
    is_passed_over: bool,
    /// True once an arm runs whenever it is reached: later ones never do.
    is_decided: bool,
    /// True once an arm may run.
    has_maybe: bool,
    /// The condition of `if` or `elif` up to now.
    condition: Condition,
    /// The word of `case`, and the patterns of the next arm; `None` outside them.
    pub case: Option<Case>,
    /// Each name that the current arm has set, with its earlier value.
    pub touched: Vec<(String, Option<Vec<Word>>)>,
    /// Names that earlier arms have set, with the words they may have added. Names set in inner branches are already
    /// unknown; only an assignment, noted here too, makes one known again.
    others: BTreeMap<String, Arms>,
    /// Number of arms that may run; `has_default` if one of them always does.
    arms: usize,
    has_default: bool,
    /// True in an arm for machines that are not supported, or that ends the script.
    is_elsewhere: bool,
}

/// The word of `case WORD in`, and the patterns before an arm.
#[derive(Default)]
pub(super) struct Case {
    word: Option<Word>,
    patterns: Vec<Word>,
    /// True before the `)` of an arm.
    is_pattern: bool,
}

/// A variable's words after each arm that sets it; `None` after one that makes it unknown.
type Arms = Vec<Option<Vec<Word>>>;

impl Branch {
    /// Begins a branch at `line`; `is_passed_over` within an arm that never runs.
    pub fn new(word: &str, line: usize, is_passed_over: bool) -> Branch {
        let case = (word == "case").then(Case::default);
        let arm = if is_passed_over { Arm::Never } else { Arm::Maybe };
        Branch { line, is_while: word == "while", arm, is_passed_over, case, ..Branch::default() }
    }

    /// Begins an arm that runs if `result` holds; `None` if that is not known.
    pub fn decide(&mut self, result: Option<bool>) {
        self.arm = match result {
            _ if self.is_passed_over || self.is_decided => Arm::Never,
            Some(false) => Arm::Never,
            Some(true) if !self.has_maybe => Arm::Always,
            _ => Arm::Maybe,
        };
        self.has_maybe |= self.arm == Arm::Maybe;
        self.is_decided |= result == Some(true);
        self.has_default |= result == Some(true);
    }

    /// Begins the condition of a further arm.
    pub fn begin_condition(&mut self) {
        self.condition = Condition::default();
        self.arm = if self.is_passed_over || self.is_decided { Arm::Never } else { Arm::Maybe };
    }

    /// Begins the arm after `then`, by the conditions before it.
    pub fn decide_by_condition(&mut self) {
        let Condition { result, is_elsewhere, .. } = std::mem::take(&mut self.condition);
        self.decide(result.flatten());
        self.is_elsewhere |= is_elsewhere && self.arm == Arm::Maybe;
    }

    /// Begins the body of a loop, which never runs if its condition does not hold at first.
    pub fn begin_loop(&mut self) {
        let result = std::mem::take(&mut self.condition).result.flatten();
        self.decide(result.filter(|holds| self.is_while && !holds));
    }

    /// Reads a command that ends at `end`, `&&` and `||` included: a part of a condition, or patterns of `case`.
    pub fn command(&mut self, words: &[Word], end: &str) {
        match &mut self.case {
            Some(case) => {
                let first = words.first().is_some_and(|word| word.text == "case");
                if first && case.word.is_none() {
                    case.word = words.get(1).cloned();
                    case.is_pattern = true;
                }
                if !case.is_pattern {
                    return;
                }
                case.patterns.extend(words.iter().skip(if first { 3 } else { 0 }).cloned());
                if end == ")" {
                    self.pattern();
                }
            }
            None => self.condition.command(words, end),
        }
    }

    /// Ends the script in this arm: what it sets is nowhere after the branch.
    pub fn exits(&mut self) {
        self.is_elsewhere |= self.arm == Arm::Maybe;
    }

    /// Begins the arm of a `case` after its patterns.
    fn pattern(&mut self) {
        let Some(case) = &mut self.case else { return };
        let patterns = std::mem::take(&mut case.patterns);
        case.is_pattern = false;
        let result = case.word.as_ref().and_then(|word| condition::matches(word, &patterns));
        // The file runs on another kind of machine, and one of the kinds is this one.
        let is_elsewhere = patterns.iter().any(|pattern| pattern.text == "npu");
        self.decide(result);
        self.is_elsewhere = is_elsewhere && self.arm == Arm::Maybe;
        self.has_default |= self.is_elsewhere;
    }

    /// Undoes the assignments of an arm, for the next arm or the end.
    pub fn end_arm(&mut self, variables: &mut Variables) {
        // The arm's value of each name, and before it the oldest value, which is undone last.
        let mut after: BTreeMap<String, Option<Vec<Word>>> = BTreeMap::new();
        for (name, before) in self.touched.drain(..).rev() {
            let now = variables.take(&name);
            after.entry(name.clone()).or_insert(now);
            match before {
                Some(words) => variables.set(&name, words),
                None => variables.forget(&name),
            }
        }
        let is_elsewhere = std::mem::take(&mut self.is_elsewhere);
        self.arms += usize::from(!is_elsewhere && self.arm == Arm::Maybe);
        for (name, words) in after.into_iter().filter(|_| !is_elsewhere) {
            self.others.entry(name).or_default().push(words);
        }
        if let Some(case) = &mut self.case {
            case.is_pattern = true;
            self.arm = Arm::Never;
        }
    }

    /// Sets each variable's state after the branch.
    pub fn end(self, variables: &mut Variables) {
        for (name, set) in self.others {
            let keeps = !self.has_default || set.len() < self.arms;
            let before = keeps.then(|| variables.take(&name).unwrap_or_default());
            let all: Option<Vec<Vec<Word>>> = before.map(Some).into_iter().chain(set).collect();
            match all.and_then(|all| joined(&all, self.line)) {
                Some(words) => variables.set(&name, words),
                None => variables.depends(&name, self.line),
            }
        }
    }
}

/// Returns a variable's words after a branch that leaves one of `all`: words in each are known. `None` if not options.
fn joined(all: &[Vec<Word>], line: usize) -> Option<Vec<Word>> {
    let all: Vec<Vec<Word>> = all.iter().map(|words| options(words)).collect();
    if all.windows(2).all(|two| two[0] == two[1]) {
        return all.into_iter().next();
    }
    let count: usize = all.iter().map(Vec::len).sum();
    if count > WORDS_MAX || all.iter().all(|words| words.len() == 1) {
        return None;
    }
    let texts = |words: &[Word]| words.iter().map(|word| word.text.clone()).collect::<BTreeSet<String>>();
    let common = all.iter().map(|words| texts(words)).reduce(|some, more| &some & &more)?;
    let is_sure = |word: &Word| common.contains(&word.text);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for words in &all {
        let first = words.iter().position(is_sure).unwrap_or(0);
        for (index, word) in words.iter().enumerate().filter(|(_, word)| !is_sure(word)) {
            let branch = if word.branch == 0 { line } else { word.branch };
            let open = Word { open: word.open.or(Some(BRANCH)), branch, ..word.clone() };
            if index < first { before.push(open) } else { after.push(open) }
        }
    }
    let sure = all[0].iter().filter(|word| is_sure(word)).cloned();
    Some(before.into_iter().chain(sure).chain(after).collect())
}

/// Returns the words of a variable; a text of options is split at its spaces.
fn options(words: &[Word]) -> Vec<Word> {
    match words {
        [one] if holds_options(one) => parts(one).collect(),
        words => words.to_vec(),
    }
}

/// Returns true for a text of several options, each of which is known by itself, even if others in it are not.
pub(super) fn holds_options(word: &Word) -> bool {
    let is_option = |text: &&str| text.contains('=') || text.starts_with("--");
    let (all, first) = (word.text.split_whitespace(), word.text.split_whitespace().next());
    let is_first = first.as_ref().is_some_and(is_option);
    // One option may have a value with spaces.
    let has_several = if first.is_some_and(|first| first.starts_with("--")) {
        all.count() > 1
    } else {
        all.filter(|text| text.contains('=')).count() > 1
    };
    is_first && has_several && !word.text.contains('`') && !word.text.contains("$(")
}

/// Returns the parts of a text; a part with an unknown variable is unknown.
pub(super) fn parts(word: &Word) -> impl Iterator<Item = Word> {
    let one = |text: &str| Word {
        text: text.into(),
        open: word.open.filter(|_| text.contains('$')),
        ..word.clone()
    };
    word.text.split_whitespace().map(one)
}
