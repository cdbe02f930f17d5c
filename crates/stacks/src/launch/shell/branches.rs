//! The state of a script's variables after its branches: words that every arm has are known, and the rest is marked.

use super::expand::{BRANCH, Variables};
use super::word::{WORDS_MAX, Word};
use std::collections::{BTreeMap, BTreeSet};

/// A branch of the script, after which its variables are unknown.
#[derive(Default)]
pub(super) struct Branch {
    /// Each name that the current arm has set, with its earlier value.
    pub touched: Vec<(String, Option<Vec<Word>>)>,
    /// Names that earlier arms have set, with the words they may have added. Names set in inner branches are already
    /// unknown; only an assignment, noted here too, makes one known again.
    others: BTreeMap<String, Arms>,
    pub is_case: bool,
    /// Number of arms; `has_default` if one of them always runs.
    arms: usize,
    pub has_default: bool,
    /// True in an arm for machines that are not supported.
    is_elsewhere: bool,
}

/// A variable's words after each arm that sets it; `None` after one that makes it unknown.
type Arms = Vec<Option<Vec<Word>>>;

impl Branch {
    pub fn new(is_case: bool) -> Branch {
        Branch { is_case, ..Branch::default() }
    }

    /// Records a command in a branch: the pattern of an arm, or the condition.
    pub fn begin_arm(&mut self, words: &[Word]) {
        if !self.touched.is_empty() {
            return;
        }
        let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
        // The file runs on another kind of machine: `npu)`, `if [ "$DEVICE" = npu ]`.
        self.is_elsewhere |= matches!(texts.as_slice(), ["npu"] | ["[" | "[[", _, "=" | "==", "npu", ..]);
        // One of the kinds of machines is this one.
        self.has_default |= self.is_case && (self.is_elsewhere || texts == ["*"]);
    }

    /// Undoes the assignments of an arm, for the next arm or the end.
    pub fn end_arm(&mut self, variables: &mut Variables, is_end: bool) {
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
        self.arms += usize::from(!(is_elsewhere || is_end && self.is_case && after.is_empty()));
        for (name, words) in after.into_iter().filter(|_| !is_elsewhere) {
            self.others.entry(name).or_default().push(words);
        }
    }

    /// Sets each variable's state after the branch.
    pub fn end(self, variables: &mut Variables) {
        for (name, set) in self.others {
            let keeps = !self.has_default || set.len() < self.arms;
            let before = keeps.then(|| variables.take(&name).unwrap_or_default());
            let all: Option<Vec<Vec<Word>>> = before.map(Some).into_iter().chain(set).collect();
            match all.and_then(|all| joined(&all)) {
                Some(words) => variables.set(&name, words),
                None => variables.depends(&name),
            }
        }
    }
}

/// Returns a variable's words after a branch that leaves one of `all`: words in each are known. `None` if not options.
fn joined(all: &[Vec<Word>]) -> Option<Vec<Word>> {
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
            let open = Word { open: word.open.or(Some(BRANCH)), ..word.clone() };
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
    let has_several = match first.is_some_and(|first| first.starts_with("--")) {
        true => all.count() > 1,
        false => all.filter(|text| text.contains('=')).count() > 1,
    };
    is_first && has_several && !word.text.contains('`') && !word.text.contains("$(")
}

/// Returns the parts of a text; a part with an unknown variable is unknown.
pub(super) fn parts(word: &Word) -> impl Iterator<Item = Word> {
    let one = |text: &str| Word {
        text: text.into(),
        open: word.open.filter(|_| text.contains('$')),
        line: word.line,
    };
    word.text.split_whitespace().map(one)
}
