//! Variables of a script: `$NAME`, `${NAME:-default}`, `${NAME[@]}`, `$((1024 * 20))`. Output of commands is unknown.

use super::word::{VALUE_BYTES_MAX, VARIABLE, Word};
use crate::launch::arithmetic;
use crate::launch::source::HOME;
use std::collections::BTreeMap;

/// Most bytes of all expanded variables in a script: each use of a long one adds its length.
const FILLED_BYTES_MAX: usize = 16 << 20;
/// Deepest `${A:-${B:-...}}`.
const DEPTH_MAX: usize = 8;
const ARITHMETIC_CHARS_MAX: usize = 256;
/// Longest command that is kept because it prints a folder.
const FOLDER_CHARS_MAX: usize = 160;
pub(super) const OUTPUT: &str = "holds the output of a command, and nothing is run here";
pub(crate) const BRANCH: &str = "is set in a branch whose condition is not known here";

/// The closing bracket of each `${` and `$(`, by the index of its opening one.
pub(super) struct Closings(BTreeMap<usize, usize>);

impl Closings {
    /// Finds all in one pass, so brackets that never close cost no extra time.
    pub fn of(chars: &[char]) -> Closings {
        let (mut open, mut closings) = (Vec::<(char, usize)>::new(), BTreeMap::new());
        for (at, &c) in chars.iter().enumerate() {
            let after_dollar = at > 0 && chars[at - 1] == '$';
            match c {
                '{' if after_dollar => open.push(('}', at)),
                '(' if after_dollar || open.last().is_some_and(|(close, _)| *close == ')') => {
                    open.push((')', at));
                }
                '}' | ')' => {
                    // Brackets opened since then were never closed.
                    while let Some((close, start)) = open.pop() {
                        if close == c {
                            closings.insert(start, at);
                            break;
                        }
                    }
                }
                _ => {}
            }
        }
        Closings(closings)
    }

    fn of_bracket(&self, at: usize, end: usize) -> Option<usize> {
        self.0.get(&at).copied().filter(|&close| close < end)
    }
}

pub(super) struct Variables {
    known: BTreeMap<String, Vec<Word>>,
    /// Names whose value depends on a branch, and its line.
    branched: BTreeMap<String, usize>,
    filled_bytes: usize,
}

impl Variables {
    pub fn new() -> Variables {
        let mut variables = Variables { known: BTreeMap::new(), branched: BTreeMap::new(), filled_bytes: 0 };
        variables.set("HOME", known(HOME.into()));
        variables
    }

    pub fn get(&self, name: &str) -> Option<&Vec<Word>> {
        self.known.get(name)
    }

    pub fn set(&mut self, name: &str, words: Vec<Word>) {
        self.branched.remove(name);
        self.known.insert(name.into(), words);
    }

    /// Removes a variable, to give it another value.
    pub fn take(&mut self, name: &str) -> Option<Vec<Word>> {
        self.known.remove(name)
    }

    pub fn forget(&mut self, name: &str) {
        self.known.remove(name);
    }

    /// Makes a name unknown, because its value depends on the branch at `line`.
    pub fn depends(&mut self, name: &str, line: usize) {
        self.forget(name);
        self.branched.insert(name.into(), line);
    }

    /// Expands the text after the `$` before `at`, and moves `at` to its end. Several words are those of an array.
    pub fn expand(&mut self, chars: &[char], closings: &Closings, at: &mut usize, depth: usize) -> Vec<Word> {
        let start = *at;
        match chars.get(start) {
            Some('(') if chars.get(start + 1) == Some(&'(') => {
                let inside = &chars[start + 2..(start + 2 + ARITHMETIC_CHARS_MAX).min(chars.len())];
                if let Some(length) = closing_pair(inside) {
                    *at = start + 2 + length + 2;
                    let text: String = inside[..length].iter().collect();
                    let value_of = |name: &str| self.text(name)?.trim().parse().ok();
                    return match arithmetic::evaluate(&text, &value_of) {
                        Some(value) => known(value.to_string()),
                        None => open(format!("$(({text}))"), VARIABLE),
                    };
                }
            }
            Some('(') => {
                if let Some(close) = closings.of_bracket(start, chars.len()) {
                    *at = close + 1;
                    let command: String = chars[start + 1..close].iter().take(FOLDER_CHARS_MAX).collect();
                    if is_folder(&command) {
                        return known(format!("$({command})"));
                    }
                    // `$(expr 16 / $N)` counts like `$((16 / N))`.
                    if let Some(sum) = command.trim().strip_prefix("expr ") {
                        let value_of = |name: &str| self.text(name)?.trim().parse().ok();
                        if let Some(value) = arithmetic::evaluate(&sum.replace("\\*", "*"), &value_of) {
                            return known(value.to_string());
                        }
                    }
                    // Enough to recognize it.
                    let text: String = chars[start..=close].iter().take(160).collect();
                    return open(format!("${text}"), OUTPUT);
                }
            }
            // The file is read as if it were started without arguments.
            Some('#') => {
                *at += 1;
                return known("0".into());
            }
            Some('{') => {
                if let Some(close) = closings.of_bracket(start, chars.len())
                    && close - start <= VALUE_BYTES_MAX
                {
                    *at = close + 1;
                    return self.braced(chars, closings, start + 1..close, depth);
                }
            }
            _ => {
                let is_name = |c: &&char| c.is_ascii_alphanumeric() || **c == '_';
                let length = chars[start..].iter().take_while(is_name).count();
                let name: String = chars[start..start + length].iter().collect();
                *at = start + length;
                return self.value(&name).unwrap_or_else(|| self.unknown(&name, format!("${name}")));
            }
        }
        open("$".into(), VARIABLE)
    }

    /// Expands `NAME`, `NAME:-default`, `NAME[@]` between the braces.
    fn braced(
        &mut self,
        chars: &[char],
        closings: &Closings,
        inside: std::ops::Range<usize>,
        depth: usize,
    ) -> Vec<Word> {
        let is_name = |c: &&char| c.is_ascii_alphanumeric() || **c == '_';
        let length = chars[inside.clone()].iter().take_while(is_name).count();
        let name: String = chars[inside.start..inside.start + length].iter().collect();
        let operator_at = inside.start + length;
        let rest: String = chars[operator_at..inside.end].iter().take(3).collect();
        let written = || format!("${{{}}}", chars[inside.clone()].iter().take(160).collect::<String>());
        let operator = [":-", ":=", ":?", "-", "=", "?", "[@]", "[*]"]
            .into_iter()
            .find(|operator| rest.starts_with(operator));
        if operator.is_none() && !rest.is_empty() {
            return self.unknown(&name, written());
        }
        if let Some(words) = self.value(&name) {
            return words;
        }
        match operator {
            // A variable that a branch may have set has no default.
            _ if self.branched.contains_key(&name) => self.unknown(&name, written()),
            Some(operator @ (":-" | ":=" | "-" | "=")) if depth < DEPTH_MAX => {
                let mut at = operator_at + operator.len();
                let word = self.default(&chars[..inside.end], closings, &mut at, depth + 1);
                if operator.ends_with('=') && word.open.is_none() {
                    self.set(&name, vec![word.clone()]);
                }
                vec![word]
            }
            _ => self.unknown(&name, written()),
        }
    }

    /// Returns the text after `:-`, with its variables expanded and its quotes removed.
    fn default(&mut self, chars: &[char], closings: &Closings, at: &mut usize, depth: usize) -> Word {
        let mut word = Word::default();
        while let Some(&c) = chars.get(*at) {
            *at += 1;
            match c {
                '$' => {
                    for piece in self.expand(chars, closings, at, depth) {
                        word.text += &piece.text;
                        word.doubt(&piece);
                    }
                }
                '\'' | '"' => {}
                '\\' => {
                    word.text.extend(chars.get(*at));
                    *at += 1;
                }
                '`' => word.open = Some(OUTPUT),
                _ => word.text.push(c),
            }
        }
        word
    }

    /// Returns the text of a variable of one word.
    fn text(&self, name: &str) -> Option<&str> {
        match self.get(name)?.as_slice() {
            [word] if word.open.is_none() => Some(&word.text),
            _ => None,
        }
    }

    /// Copies the value of a variable; `None` once copies are too large.
    pub fn value(&mut self, name: &str) -> Option<Vec<Word>> {
        let words = self.known.get(name).filter(|_| self.filled_bytes <= FILLED_BYTES_MAX)?;
        self.filled_bytes += words.iter().map(|word| word.text.len() + size_of::<Word>()).sum::<usize>();
        let is_short = words.iter().all(|word| word.text.len() <= VALUE_BYTES_MAX);
        (is_short && self.filled_bytes <= FILLED_BYTES_MAX).then(|| words.clone())
    }

    fn unknown(&self, name: &str, written: String) -> Vec<Word> {
        match self.branched.get(name) {
            Some(&branch) => vec![Word { text: written, open: Some(BRANCH), branch, line: 0 }],
            None => open(written, VARIABLE),
        }
    }
}

fn open(text: String, why: &'static str) -> Vec<Word> {
    vec![Word { text, open: Some(why), ..Word::default() }]
}

/// Returns true for a command that prints a folder of the script: `cd "$(dirname "$0")/.." && pwd`.
fn is_folder(command: &str) -> bool {
    let command = command.trim();
    let is_whole = command.len() < FOLDER_CHARS_MAX && !command.contains([';', '|', '`', '\n']);
    let ends = command.ends_with("pwd") || command.ends_with("pwd -P");
    is_whole && ((command.starts_with("cd ") && ends) || command == "pwd" || command.starts_with("dirname "))
}

fn known(text: String) -> Vec<Word> {
    vec![Word { text, ..Word::default() }]
}

/// Returns the number of characters before the closing `))`.
fn closing_pair(inside: &[char]) -> Option<usize> {
    let mut depth = 0;
    for (index, &c) in inside.iter().enumerate() {
        match c {
            '(' => depth += 1,
            ')' if depth > 0 => depth -= 1,
            ')' => return (inside.get(index + 1) == Some(&')')).then_some(index),
            _ => {}
        }
    }
    None
}
