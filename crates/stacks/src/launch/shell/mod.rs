//! Shell scripts: their commands, with the script's own variables filled in, and the settings on a command line.

use crate::setting::{Setting, unquote};
use std::collections::BTreeMap;

/// Longest value after a variable is filled in: variables may name each other, and must not grow without end.
pub(crate) const VALUE_BYTES_MAX: usize = 1 << 16;
pub(crate) const VARIABLE: &str = "holds a variable that the file does not set";

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Word {
    pub text: String,
    /// True if a variable in it is not known.
    pub open: bool,
    /// Where it begins, from 1.
    pub line: usize,
}

/// What a script says: its commands, and the variables that it sets.
pub(crate) struct Script {
    pub commands: Vec<Vec<Word>>,
    /// `NAME`, value, line.
    pub variables: Vec<(String, String, usize)>,
}

/// The words after the first one for which `is_trainer` is true, in the command that has it.
pub(crate) fn arguments(script: &str, is_trainer: impl Fn(&str) -> bool) -> Option<Vec<Word>> {
    self::script(script).commands.into_iter().find_map(|mut words| {
        let at = words.iter().position(|word| is_trainer(&word.text))?;
        Some(words.split_off(at + 1))
    })
}

/// The commands of a shell script and the variables that stand before or between them.
pub(crate) fn script(script: &str) -> Script {
    let chars: Vec<char> = script.chars().collect();
    let line_after = |line: &mut u32, &c: &char| {
        let own = *line;
        *line += u32::from(c == '\n');
        Some(own)
    };
    let lines = chars.iter().scan(1, line_after).collect();
    let mut shell = Shell { chars, lines, at: 0, variables: BTreeMap::new(), assigned: Vec::new() };
    let mut commands = Vec::new();
    while shell.at < shell.chars.len() {
        let words = shell.command();
        if !words.is_empty() {
            commands.push(words);
        }
    }
    Script { commands, variables: shell.assigned }
}

struct Shell {
    chars: Vec<char>,
    /// The line of each character.
    lines: Vec<u32>,
    at: usize,
    variables: BTreeMap<String, String>,
    assigned: Vec<(String, String, usize)>,
}

impl Shell {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    /// Up to the end of a line that is not continued, `;`, `&` or `|`.
    fn command(&mut self) -> Vec<Word> {
        let mut words: Vec<Word> = Vec::new();
        while let Some(c) = self.peek(0) {
            match c {
                '\\' if self.peek(1) == Some('\n') => self.at += 2,
                '\\' if self.peek(1) == Some('\r') && self.peek(2) == Some('\n') => self.at += 3,
                '\n' | ';' | '&' | '|' => {
                    self.at += 1;
                    break;
                }
                '#' => {
                    while self.peek(0).is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                c if c.is_whitespace() => self.at += 1,
                _ => {
                    let word = self.word();
                    let is_head = words.is_empty();
                    if !(is_head && (word.text == "export" || self.assigns(&word))) {
                        words.push(word);
                    }
                }
            }
        }
        words
    }

    /// Keeps `NAME=value` at the head of a command.
    fn assigns(&mut self, word: &Word) -> bool {
        let Some((name, value)) = word.text.split_once('=') else { return false };
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if is_name && !word.open {
            self.variables.insert(name.into(), value.into());
            self.assigned.push((name.into(), value.into(), word.line));
        }
        is_name
    }

    fn word(&mut self) -> Word {
        let line = self.lines.get(self.at).map_or(0, |&line| line as usize);
        let (mut word, mut quote) = (Word { line, ..Word::default() }, None);
        while let Some(c) = self.peek(0) {
            self.at += 1;
            match (quote, c) {
                (Some(open), _) if c == open => quote = None,
                (None, '\'' | '"') => quote = Some(c),
                (Some('\''), _) => word.text.push(c),
                (_, '$') => self.variable(&mut word),
                (_, '`') => {
                    word.open = true;
                    word.text.push(c);
                }
                (_, '\\') if self.peek(0) == Some('\n') => self.at += 1,
                (_, '\\') if quote.is_none() || self.peek(0).is_some_and(|c| "\"\\$`".contains(c)) => {
                    word.text.extend(self.peek(0));
                    self.at += 1;
                }
                (None, _) if c.is_whitespace() || matches!(c, ';' | '&' | '|') => {
                    self.at -= 1;
                    break;
                }
                _ => word.text.push(c),
            }
        }
        word
    }

    /// `$NAME`, `${NAME}`, `${NAME:-default}`; anything else stays as it is written.
    fn variable(&mut self, word: &mut Word) {
        let braced = self.peek(0) == Some('{');
        let start = self.at + usize::from(braced);
        let mut end = start;
        while self.chars.get(end).is_some_and(|&c| c.is_ascii_alphanumeric() || c == '_') {
            end += 1;
        }
        let name: String = self.chars[start.min(self.chars.len())..end].iter().collect();
        let mut default = None;
        if braced {
            let close = self.chars[end..].iter().take(VALUE_BYTES_MAX).position(|&c| c == '}');
            let Some(close) = close else {
                word.open = true;
                word.text.push('$');
                return;
            };
            let inside: String = self.chars[end..end + close].iter().collect();
            default = inside.strip_prefix(":-").or(inside.strip_prefix('-')).map(str::to_string);
            end += close + 1;
        }
        match self.variables.get(&name).cloned().or(default) {
            Some(value) if !name.is_empty() && word.text.len() + value.len() <= VALUE_BYTES_MAX => {
                word.text += &value;
            }
            _ => {
                word.open = true;
                word.text.push('$');
                word.text.extend(&self.chars[self.at..end]);
            }
        }
        self.at = end;
    }
}

/// `--flag value value`, `--flag=value` and `--switch`; words before the first flag keep their own name.
pub(crate) fn flags(words: &[Word]) -> Vec<Setting> {
    let mut given: Vec<Setting> = Vec::new();
    for word in words {
        let unreadable = word.open.then_some(VARIABLE);
        match (word.text.strip_prefix("--").filter(|name| !name.is_empty()), given.last_mut()) {
            (Some(name), _) => {
                let (key, value) = name.split_once('=').unwrap_or((name, ""));
                given.push(Setting { unreadable, ..Setting::new(key, value, word.line) });
            }
            (None, Some(last)) => {
                last.value += if last.value.is_empty() { "" } else { ", " };
                last.value += &word.text;
                last.unreadable = last.unreadable.or(unreadable);
            }
            (None, None) => {
                given.push(Setting { unreadable, ..Setting::new(&word.text, "", word.line) });
            }
        }
    }
    given
}

/// `key=value`, `+key=value`; a word without `=` keeps its own name.
pub(crate) fn overrides(words: &[Word]) -> Vec<Setting> {
    let one = |word: &Word| {
        let (key, value) = word.text.split_once('=').unwrap_or((&word.text, ""));
        let setting = Setting::new(key.trim_start_matches('+'), unquote(value), word.line);
        Setting { unreadable: word.open.then_some(VARIABLE), ..setting }
    };
    words.iter().map(one).collect()
}
