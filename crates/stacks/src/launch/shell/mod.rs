//! Shell scripts: their commands, with variables expanded, and the settings on a command line.

mod branches;
mod condition;
mod expand;
mod reader;
pub(crate) mod word;

pub(crate) use expand::BRANCH;

use crate::setting::{Setting, unquote};
use reader::Script;
use word::Word;

/// Most additional commands to list.
const OTHERS_MAX: usize = 16;
const FURTHER: &str =
    "a further command of a trainer: the first one counts, each other needs a file of its own";

/// Reads the commands of a shell script and the variables set before or between them.
pub(crate) fn script(text: &str) -> Script {
    reader::read(text)
}

/// The command that starts a trainer.
#[derive(Debug)]
pub(crate) struct Command {
    words: Vec<Word>,
    at: usize,
    /// Later trainer commands in the script, as settings that are not imported.
    pub others: Vec<Setting>,
}

impl Command {
    /// Returns the word that names the trainer, with its line.
    pub fn word(&self) -> &Word {
        &self.words[self.at]
    }

    /// Returns the word that names the trainer.
    pub fn trainer(&self) -> &str {
        &self.words[self.at].text
    }

    /// Moves the lines of a command that is a part of a larger text down by `by`.
    pub fn move_lines(&mut self, by: usize) {
        self.words.iter_mut().for_each(|word| word.line += by);
    }

    /// Returns the word before the one that names the trainer.
    pub fn before(&self) -> Option<&Word> {
        self.at.checked_sub(1).map(|at| &self.words[at])
    }

    pub fn arguments(&self) -> &[Word] {
        &self.words[self.at + 1..]
    }

    /// Returns the flags before the trainer's name, each with one word at most: `accelerate launch --num_processes 8`.
    pub fn launcher(&self) -> Vec<Setting> {
        // A plain name is the argument of a program, as in `trl grpo`, and not a value of the flag before it.
        let is_name = !self.trainer().contains(['.', '/']);
        let words = &self.words[..self.at.saturating_sub(usize::from(is_name))];
        let mut given: Vec<Setting> = Vec::new();
        for (index, word) in words.iter().enumerate() {
            let Some(name) = word.text.strip_prefix("--").filter(|name| !name.is_empty()) else { continue };
            let next = words.get(index + 1).filter(|next| !next.text.starts_with('-'));
            let plain = Word::default();
            let (key, value, from) = match (name.split_once('='), next) {
                (Some((key, value)), _) => (key, value, word),
                (None, Some(next)) => (name, next.text.as_str(), next),
                (None, None) => (name, "", &plain),
            };
            given.push(setting(key.replace('-', "_"), value, word.line, from));
        }
        given
    }
}

/// Returns the commands within `bash -c "..."`, or the command itself.
fn inner(words: Vec<Word>) -> Vec<Vec<Word>> {
    let is_shell = |word: &Word| matches!(word.text.rsplit('/').next(), Some("bash" | "sh"));
    let takes_text = |word: &Word| matches!(word.text.as_str(), "-c" | "-lc" | "-ec" | "-xc");
    let found = words.windows(3).find(|three| is_shell(&three[0]) && takes_text(&three[1]));
    let Some(text) = found.map(|three| three[2].clone()) else { return vec![words] };
    let placed = |word: Word| Word { line: text.line, ..word };
    script(&text.text).commands.into_iter().map(|words| words.into_iter().map(placed).collect()).collect()
}

/// Finds the first command in which `trainer_at` finds the word that names a trainer.
pub(crate) fn trainer(script: &str, trainer_at: impl Fn(&[Word]) -> Option<usize>) -> Option<Command> {
    let mut found: Option<Command> = None;
    for words in self::script(script).commands.into_iter().flat_map(inner) {
        let Some(at) = trainer_at(&words) else { continue };
        match &mut found {
            None => found = Some(Command { words, at, others: Vec::new() }),
            Some(first) if first.others.len() < OTHERS_MAX => {
                let one = Setting::new(&words[at].text, "", words[at].line);
                first.others.push(Setting { unreadable: Some(FURTHER), ..one });
            }
            Some(_) => {}
        }
    }
    found
}

/// Reads `--flag value value`, `--flag=value` and `--switch`; words before the first flag are their own names.
pub(crate) fn flags(words: &[Word]) -> Vec<Setting> {
    let mut given: Vec<Setting> = Vec::new();
    for word in words {
        match (word.text.strip_prefix("--").filter(|name| !name.is_empty()), given.last_mut()) {
            (Some(name), _) => {
                let (key, value) = name.split_once('=').unwrap_or((name, ""));
                given.push(setting(key, value, word.line, word));
            }
            // `"${NONE[@]}"` is not a word at all.
            (None, _) if word.text.is_empty() => {}
            (None, Some(last)) => {
                last.value += if last.value.is_empty() { "" } else { ", " };
                last.value += &word.text;
                if last.unreadable.is_none() {
                    (last.unreadable, last.branch) = (word.open, word.branch);
                }
            }
            (None, None) => {
                given.push(setting(&word.text, "", word.line, word));
            }
        }
    }
    given
}

/// Returns a setting that is as readable as `word`.
fn setting(key: impl Into<String>, value: impl Into<String>, line: usize, word: &Word) -> Setting {
    Setting { unreadable: word.open, branch: word.branch, ..Setting::new(key, value, line) }
}

/// Reads `key=value`, `+key=value`, `--key=value`; a word without `=` is its own name.
pub(crate) fn overrides(words: &[Word]) -> Vec<Setting> {
    let one = |word: &Word| {
        let (key, value) = word.text.split_once('=').unwrap_or((&word.text, ""));
        setting(key.trim_start_matches(['+', '-']), unquote(value), word.line, word)
    };
    words.iter().filter(|word| !word.text.is_empty()).map(one).collect()
}
