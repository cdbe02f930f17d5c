//! The answer that a sentence announces, without the clause after it: `the answer is 42, since 3 * 14 = 42` says 42.
//!
//! The answer is the mathematics at the beginning of the sentence. It ends at the first word that is no part of it, at
//! a remark in brackets, or with the line. Where that word changes the value (`6 times 7`, `3 or maybe 4`) the sentence
//! announces nothing at its beginning, and its last expression counts.

use super::cue::{CHANGING, Cue, is_mark, last_cue};
use super::expression::{find_unescaped, last_expression};
use super::prose::{after_command, is_bare, is_known, prose_words};
use super::{clean, parse, words};

/// Longest remark in brackets, in bytes.
const REMARK_BYTES_MAX: usize = 240;
/// Most brackets of a sentence that are looked into.
const REMARKS_MAX: usize = 16;
/// Most words before an answer that say nothing about it.
const LEADS_MAX: usize = 4;

/// Words between the announcement and the answer.
const LEADS: &[&str] = &[
    "therefore",
    "thus",
    "then",
    "hence",
    "so",
    "simply",
    "just",
    "exactly",
    "precisely",
    "clearly",
    "obviously",
    "indeed",
    "now",
    "also",
    "still",
    "only",
    "really",
    "actually",
    "definitely",
    "certainly",
    "of course",
    "in fact",
    "as follows",
    "equal to",
    "equals",
    "given by",
    "found to be",
    "going to be",
    "approximately",
    "about",
    "roughly",
    "around",
    "the number",
    "the value",
    "the integer",
    "the fraction",
    "the expression",
    "the set",
    "the point",
    "the pair",
    "the interval",
    "option",
    "choice",
];

/// Words that make a value another after a comma as well.
const CHANGING_LATER: &[&str] = &[
    "times",
    "plus",
    "minus",
    "divided",
    "multiplied",
    "but",
    "nor",
    "unless",
    "maybe",
    "perhaps",
    "possibly",
    "could",
    "might",
    "or",
];

/// Words that begin a clause; any other after a value is the thing that is counted.
const CLAUSES: &[&str] = &[
    "since",
    "because",
    "as",
    "for",
    "when",
    "where",
    "if",
    "so",
    "which",
    "that",
    "after",
    "before",
    "by",
    "with",
    "from",
    "given",
    "assuming",
    "not",
    "in",
    "on",
    "at",
    "under",
    "using",
    "due",
    "thanks",
    "whenever",
    "while",
    "provided",
    "considering",
    "although",
    "though",
    "hence",
    "thus",
    "therefore",
    "making",
    "giving",
    "following",
    "according",
    "see",
    "we",
];

/// Words that say why, after an answer that is itself in a sentence.
const REASONS: &[&str] =
    &["since", "because", "given", "considering", "assuming", "provided", "due", "thanks", "although"];

/// Words after `and` that begin a sentence of their own.
const SUBJECTS: &[&str] = &[
    "we",
    "it",
    "this",
    "that",
    "the",
    "there",
    "they",
    "he",
    "she",
    "you",
    "i",
    "so",
    "not",
    "thus",
    "hence",
    "therefore",
    "then",
    "our",
    "its",
    "each",
    "no",
    "is",
];

#[derive(Debug, PartialEq)]
pub(super) struct Announced {
    pub text: String,
    /// An exclamation mark was after it, outside a formula.
    pub exclaimed: bool,
}

/// Returns what the last announcement in a text announces.
pub(super) fn announced(text: &str) -> Option<Announced> {
    let plain = |text: String| Announced { text, exclaimed: false };
    let sentence = match last_cue(text)? {
        Cue::Before(clause) => return last_expression(clause).map(plain),
        Cue::After(sentence) => sentence.trim(),
    };
    let marks = |c: char| c.is_whitespace() || is_mark(c);
    let said = sentence.trim_matches(marks).trim_end_matches('.').trim_end_matches(marks);
    let said = said.trim_end_matches('?').trim_end_matches(marks);
    let said = if said.ends_with("!!") { said.trim_end_matches('!') } else { said };
    let (said, exclaimed) = match said.strip_suffix('!') {
        Some(before) if before.ends_with(|c: char| !matches!(c, '!' | '\\')) => {
            (before.trim_matches(marks), true)
        }
        _ => (said, false),
    };
    if said.is_empty() {
        return last_expression(sentence).map(plain);
    }
    if let Some(head) = head(said) {
        let exclaimed = exclaimed && head.len() == said.len();
        return Some(Announced { text: with_unit(head).unwrap_or(head.to_string()), exclaimed });
    }
    if is_bare(said) || word_before_clause(said).is_some() {
        return Some(Announced { text: word_before_clause(said).unwrap_or(said).to_string(), exclaimed });
    }
    // `6 million` is no 6.
    if let Some(scaled) = scaled(said) {
        return Some(plain(scaled.to_string()));
    }
    last_expression(before_reason(said)).or_else(|| last_expression(sentence)).map(plain)
}

/// True if the text has words that announce an answer.
pub(super) fn has_cue(text: &str) -> bool {
    last_cue(text).is_some()
}

/// Writes the unit after a number in words as text: in a sentence, the m of `5 m^2` is no name.
fn with_unit(head: &str) -> Option<String> {
    let (number, unit) = head.split_once(' ')?;
    let plain = number.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ',' | '-' | '/'));
    let (name, power) = unit.split_once('^').map_or((unit, ""), |(name, power)| (name, power));
    let known = matches!(name, "m" | "g" | "s" | "h" | "L")
        && power.chars().all(|c| c.is_ascii_digit() || "{}-".contains(c));
    let power = if power.is_empty() { String::new() } else { format!("^{power}") };
    (plain && known).then(|| format!("{number}\\text{{ {name}}}{power}"))
}

/// Returns the sentence from its answer on.
fn without_lead(sentence: &str) -> &str {
    let trim = |text: &'_ str| -> usize {
        text.len()
            - text
                .trim_start_matches(|c: char| c.is_whitespace() || is_mark(c) || matches!(c, ',' | ':'))
                .len()
    };
    let mut rest = &sentence[trim(sentence)..];
    for _ in 0..LEADS_MAX {
        let after = |lead: &&str| {
            let head = rest.get(..lead.len())?;
            let tail = &rest[lead.len()..];
            (head.eq_ignore_ascii_case(lead) && !tail.starts_with(char::is_alphanumeric)).then_some(tail)
        };
        let Some(tail) = LEADS.iter().find_map(after) else { break };
        rest = &tail[trim(tail)..];
    }
    rest
}

/// Returns the answer at the beginning of a sentence; `None` if there is none, or what follows changes it.
fn head(sentence: &str) -> Option<&str> {
    let text = without_lead(sentence);
    let mut scan = Scan { text, at: 0, end: 0, comma: None, number_alone: true };
    let stop = loop {
        match scan.step() {
            Step::On => {}
            Step::Stop(stop) => break stop,
        }
    };
    let head = match stop {
        Stop::End => &text[..scan.end],
        Stop::Clause => &text[..scan.end],
        Stop::Word(word) => scan.before_word(&word)?,
    };
    let head = head.trim_end_matches(|c: char| {
        c.is_whitespace() || is_mark(c) || matches!(c, ',' | ';' | ':' | '-' | '=')
    });
    let bare = clean::bare(head);
    let is_answer =
        !bare.is_empty() && (words::choice(&bare).is_some() || parse::parse(&bare, true).is_some());
    is_answer.then_some(head)
}

enum Step {
    On,
    Stop(Stop),
}

enum Stop {
    /// The sentence ends.
    End,
    /// A mark or a remark that no value goes on after.
    Clause,
    /// A word, in small letters.
    Word(String),
}

/// How far the mathematics at the beginning of a text reaches.
struct Scan<'t> {
    text: &'t str,
    at: usize,
    /// The end of the last piece of mathematics.
    end: usize,
    /// The last comma between two pieces.
    comma: Option<usize>,
    /// All so far is one number.
    number_alone: bool,
}

impl<'t> Scan<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn take(&mut self, length: usize) -> Step {
        self.at += length;
        self.end = self.at;
        Step::On
    }

    fn pass(&mut self, length: usize) -> Step {
        self.at += length;
        Step::On
    }

    fn step(&mut self) -> Step {
        let rest = self.rest();
        let Some(c) = rest.chars().next() else { return Step::Stop(Stop::End) };
        if let Some(length) = formula(rest) {
            self.number_alone = false;
            return self.take(length);
        }
        match c {
            c if c.is_whitespace() || is_mark(c) => self.pass(c.len_utf8()),
            '\u{2014}' | '\u{2026}' | '\u{2192}' | '\u{21d2}' | '?' => Step::Stop(Stop::Clause),
            // Ticks and faces.
            '\u{2600}'..='\u{27bf}' | '\u{1f000}'..='\u{1faff}' => Step::Stop(Stop::Clause),
            ':' if [":)", ":-)", ":D"].iter().any(|face| rest.starts_with(face)) => Step::Stop(Stop::Clause),
            '.' | '-' | '=' if ["...", "--", "=>"].iter().any(|mark| rest.starts_with(mark)) => {
                Step::Stop(Stop::Clause)
            }
            ':' if rest[1..].starts_with(' ') && self.end == self.at && prose_words(rest) > 0 => {
                Step::Stop(Stop::Clause)
            }
            ',' | ';' => {
                let number = c == ',' && rest[1..].starts_with(|c: char| c.is_ascii_digit());
                if !number {
                    self.comma = Some(self.at);
                }
                self.pass(1)
            }
            '.' => self.pass(1),
            '(' if self.end > 0 && self.modulus().is_some() => {
                let length = self.modulus().unwrap_or(1);
                self.take(length)
            }
            '(' | '[' if self.end > 0 && self.is_remark() => Step::Stop(Stop::Clause),
            '\\' => {
                self.number_alone = false;
                let length = rest.len() - after_command(rest).len();
                self.take(length)
            }
            c if c.is_alphabetic() => self.word(),
            c => {
                self.number_alone &= c.is_ascii_digit() || matches!(c, '$' | '%');
                self.take(c.len_utf8())
            }
        }
    }

    /// Returns the length of `(mod 7)`.
    fn modulus(&self) -> Option<usize> {
        let inner = self.rest()[1..].trim_start();
        let named = ["mod", "\\mod", "\\bmod"].iter().any(|name| inner.starts_with(name));
        let near = &self.rest()[..self.rest().floor_char_boundary(REMARK_BYTES_MAX)];
        named.then(|| near.find(')').map(|end| end + 1))?
    }

    /// True for brackets with words in them, or with the working of a number before them.
    fn is_remark(&self) -> bool {
        let rest = self.rest();
        let close = if rest.starts_with('(') { ')' } else { ']' };
        let near = &rest[..rest.floor_char_boundary(REMARK_BYTES_MAX)];
        let Some(end) = near[1..].find(close) else { return prose_words(near) > 0 };
        let inner = near[1..=end].trim();
        let plain = ["\\times", "\\cdot", "\\div"]
            .iter()
            .fold(inner.to_string(), |text, name| text.replace(name, ""));
        let working = self.number_alone
            && self.end < self.at
            && inner.contains(|c: char| c.is_ascii_digit())
            && !plain.contains(|c: char| c.is_alphabetic() && c != 'x');
        working || inner.starts_with('=') || prose_words(inner) > 0
    }

    fn word(&mut self) -> Step {
        let rest = self.rest();
        let length = rest.find(|c: char| !c.is_alphabetic() && c != '\'').unwrap_or(rest.len());
        let (word, tail) = rest.split_at(length);
        let before = self.text[..self.at].chars().next_back();
        let attached = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit() || matches!(c, '_' | '^'));
        let next = tail.trim_start().chars().next();
        let latin = ["i.e", "e.g"].iter().any(|short| rest.starts_with(short));
        // `a` before a word, `in` after a number: no names, and no inches.
        let article =
            matches!(word, "a" | "an") && tail.starts_with(' ') && next.is_some_and(|c| c.is_alphanumeric());
        let earlier = self.text[..self.at].trim_end();
        let letters = earlier.chars().rev().take(2).filter(|c| c.is_alphabetic()).count();
        let place = word == "in" && next.is_some_and(|c| c.is_alphanumeric() || c == '$') && letters != 1;
        let alone = !attached(before) && !attached(tail.chars().next());
        let prose = alone && word.chars().count() >= 2 && !is_known(word);
        if matches!(word, "and" | "or") && self.end > 0 {
            return self.connector(word, tail, length);
        }
        if latin || article || place || prose || !word.is_ascii() {
            return Step::Stop(Stop::Word(word.to_lowercase()));
        }
        self.number_alone = false;
        self.take(length)
    }

    /// Goes on after `and` and `or` if mathematics follows.
    fn connector(&mut self, word: &str, tail: &str, length: usize) -> Step {
        let next: String = tail
            .trim_start()
            .chars()
            .take_while(|c| c.is_alphabetic())
            .flat_map(char::to_lowercase)
            .collect();
        if word == "and" && SUBJECTS.contains(&next.as_str()) {
            return Step::Stop(Stop::Clause);
        }
        if next.chars().count() >= 2 && !is_known(&next) {
            // `3 or maybe 4`, `2 and also 5`: more than the first.
            return Step::Stop(Stop::Word(if word == "and" { "and" } else { "but" }.into()));
        }
        self.number_alone = false;
        self.pass(length)
    }

    /// Returns the mathematics before a word; `None` if the word changes it.
    fn before_word(&self, word: &str) -> Option<&'t str> {
        let between = &self.text[self.end..self.at];
        let apart = between.contains([',', ';', '-', ':']);
        let changes = if apart { CHANGING_LATER.contains(&word) } else { CHANGING.contains(&word) };
        if self.end == 0 || changes {
            return None;
        }
        let mut head = &self.text[..self.end];
        let after = self.rest()[word.len().min(self.rest().len())..].trim_start();
        if word == "of" && after.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '$' | '\\')) {
            return None;
        }
        // `x, where x = 5` says what x is.
        let named = !head.contains(|c: char| c.is_ascii_digit() || c == '\\');
        if named && matches!(word, "where" | "with" | "which") {
            return None;
        }
        if word == "per" || word == "each" {
            head = head.trim_end_matches(|c: char| c.is_alphabetic() || c.is_whitespace());
        }
        // `42, 3 for each`: a list is not joined by a comma alone before the thing that it counts.
        let counted = !apart && !CLAUSES.contains(&word);
        match self.comma.filter(|&comma| counted && comma < self.end) {
            Some(comma)
                if !head[..comma].contains(',') && !head.contains(" and ") && !head.contains(" or ") =>
            {
                Some(&head[..comma])
            }
            _ => Some(head),
        }
    }
}

/// Returns the length of the formula at the beginning of a text; money is none.
fn formula(text: &str) -> Option<usize> {
    let (open, close) = [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")]
        .into_iter()
        .find(|(open, _)| text.starts_with(open))?;
    let end = find_unescaped(text, open.len(), close)?;
    let inner = &text[open.len()..end];
    let money = open == "$"
        && inner.starts_with(|c: char| c.is_ascii_digit())
        && (prose_words(inner) > 0 || inner.ends_with([' ', '(']));
    (!money && !inner.trim().is_empty()).then_some(end + close.len())
}

/// Returns a number at the beginning with a word that multiplies it.
fn scaled(sentence: &str) -> Option<&str> {
    let text = without_lead(sentence);
    let number = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ',' | '$' | '-')))?;
    let rest = text[number..].trim_start();
    let word = &rest[..rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len())];
    let single = word.to_lowercase();
    let scales = ["hundred", "thousand", "million", "billion", "trillion", "dozen"];
    let end = text.len() - rest.len() + word.len();
    (number > 0 && scales.contains(&single.trim_end_matches('s'))).then(|| &text[..end])
}

/// Returns an answer of words before a clause: `yes, since 3 is prime`, `Tuesday (3 days later)`.
fn word_before_clause(sentence: &str) -> Option<&str> {
    let text = without_lead(sentence);
    let marked = text.find([',', '(', '[', ';', '\u{2014}']);
    let worded = REASONS.iter().filter_map(|word| text.find(&format!(" {word} "))).min();
    let end = marked.into_iter().chain(worded).min()?;
    let head = text[..end].trim_end_matches(|c: char| c.is_whitespace() || is_mark(c));
    let capital = |word: &str| word.starts_with(char::is_uppercase);
    let plain = [
        "yes", "no", "true", "false", "none", "never", "always", "odd", "even", "zero", "one", "two",
        "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    ];
    let word = head.split_whitespace().all(capital) || plain.contains(&head.to_lowercase().as_str());
    let adverb = head.ends_with("ly");
    (!head.is_empty() && !adverb && head.split_whitespace().count() <= 3 && is_bare(head))
        .then_some(head)
        .filter(|head| word || words::phrase(head).is_some())
}

/// Cuts a sentence before what says why, if a value is before that.
fn before_reason(sentence: &str) -> &str {
    let Some(first) = sentence.find(|c: char| c.is_ascii_digit() || c == '$' || c == '\\') else {
        return sentence;
    };
    let rest = &sentence[first..];
    let reasons = REASONS.iter().filter_map(|word| rest.find(&format!(" {word} ")));
    let other = [", as ", ", not "].iter().filter_map(|words| rest.find(words));
    let remark = rest.match_indices(" (").take(REMARKS_MAX).find_map(|(at, _)| {
        let inner = &rest[at + 2..rest.floor_char_boundary(at + 2 + REMARK_BYTES_MAX)];
        (prose_words(inner.split(')').next().unwrap_or("")) > 0).then_some(at)
    });
    let end = reasons.chain(other).chain(remark).min().unwrap_or(rest.len());
    let cut = &sentence[..first + end];
    if end < rest.len() { cut } else { before_people(sentence, first) }
}

/// Cuts `there are 42 ways for 3 people` before `for`: one value, and one more after a preposition.
fn before_people(sentence: &str, first: usize) -> &str {
    let rest = &sentence[first..];
    let places = [" for ", " in ", " with ", " from ", " among ", " between ", " out of "];
    let Some(at) = places.iter().filter_map(|word| rest.find(word)).min() else { return sentence };
    let numbers = |text: &str| {
        text.split(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ',' | '/')))
            .filter(|part| part.contains(|c: char| c.is_ascii_digit()))
            .count()
    };
    let (value, more) = rest.split_at(at);
    let single = numbers(value) == 1 && numbers(more) == 1 && !more.contains([',', '=', '$', '\\']);
    if single { &sentence[..first + at] } else { sentence }
}
