//! Secrets in words, listed or as shell text: `--api-key KEY`, `--api-key=KEY`, `API_KEY=KEY`, `-u name:password`.

use super::keys::without_keys;
use super::named::{is_call, is_of_wandb, is_wandb_key};
use super::names::is_name_of_secret;
use super::values::{WITHHELD, is_open};
use std::mem;
use std::ops::Range;

/// Options that take `name:password`.
const OF_USERS: [&str; 4] = ["-u", "-U", "--user", "--proxy-user"];
/// Words after which a W&B key may follow: `wandb login --relogin KEY`.
const WORDS_AFTER_WANDB: u32 = 3;

/// Removes secrets from the words of a command, in order.
#[derive(Debug, Default)]
pub struct CommandWords {
    before: Before,
    after_wandb: u32,
}

/// Says what a word implies about the next one.
#[derive(Debug, Default, PartialEq)]
enum Before {
    #[default]
    Nothing,
    /// It is the value of an option that holds a secret.
    Secret,
    /// It may be `name:password`.
    User,
    /// It is a login of `.netrc`; `password KEY` follows.
    Login,
    LoginName,
}

impl CommandWords {
    /// True if the next word is a secret, whatever it is.
    pub fn expects_secret(&self) -> bool {
        self.before == Before::Secret
    }

    /// Returns the replacement of a word; `None` if it is no option, value or assignment with a secret.
    ///
    /// `word` is as a shell reads it, `raw` as it was written.
    pub(super) fn replaced(&mut self, word: &str, raw: &str) -> Option<String> {
        let before = mem::take(&mut self.before);
        let is_near_wandb = self.after_wandb > 0;
        self.after_wandb =
            if is_of_wandb(word) { WORDS_AFTER_WANDB } else { self.after_wandb.saturating_sub(1) };
        let is_option = word.len() > 1 && word.starts_with('-') && !word.contains(['=', ' ', ':']);
        let withheld = Some(WITHHELD.to_string());
        match before {
            Before::Secret if !is_option || !word.starts_with("--") => {
                return if is_open(word) { Some(word.to_string()) } else { withheld };
            }
            Before::User if word.contains(':') => return withheld,
            Before::Login => self.before = Before::LoginName,
            Before::LoginName if word == "password" => self.before = Before::Secret,
            _ => {}
        }
        if is_near_wandb && is_wandb_key(word) {
            return withheld;
        }
        if is_option {
            self.before = match () {
                () if OF_USERS.contains(&word.trim_end_matches(',')) => Before::User,
                () if is_name_of_secret(word) => Before::Secret,
                () => Before::Nothing,
            };
            return None;
        }
        if word == "login" {
            self.before = Before::Login;
        }
        let is_python = raw.split_once('=').is_some_and(|(_, value)| is_call(value));
        if is_python { None } else { assigned(word) }
    }
}

/// Returns `NAME=(not shown)` for `NAME=value`, `--name=value`, `+a.name=value`, `Name: value`; `None` if not secret.
fn assigned(word: &str) -> Option<String> {
    let at = word.find(['=', ':'])?;
    let (name, value) = (&word[..at], &word[at + 1..]);
    let is_name = !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '+'));
    let is_address = word[at..].starts_with("://");
    let is_user = OF_USERS.contains(&name) && value.contains(':');
    let is_secret = is_name && !is_address && !is_open(value) && (is_user || is_name_of_secret(name));
    // Prose after a colon is judged with the text around it.
    let is_prose = word[at..].starts_with(": ") && value.trim().contains(' ') && !is_header(name);
    (is_secret && !is_prose).then(|| format!("{}{WITHHELD}", &word[..=at]))
}

fn is_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with("authorization") || name.ends_with("cookie") || name.starts_with("x-")
}

/// Cuts the secrets among the words of a text; `clean_quoted` cleans the content of quotes.
pub(super) fn without_arguments(text: &str, clean_quoted: &dyn Fn(&str) -> String) -> String {
    let (mut clean, mut at) = (String::with_capacity(text.len()), 0);
    let mut words = CommandWords::default();
    for word in split(text) {
        clean += &text[at..word.start];
        at = word.end;
        let raw = &text[word.start..word.end];
        match words.replaced(&word.cooked, raw) {
            Some(instead) if instead == word.cooked => clean += raw,
            Some(instead) => clean += &instead,
            None if raw == word.cooked => clean += raw,
            None => clean += &requoted(text, &word, clean_quoted),
        }
    }
    clean + &text[at..]
}

/// Cleans the content of a word's quotes, which may be a command.
fn requoted(text: &str, word: &Word, clean_quoted: &dyn Fn(&str) -> String) -> String {
    let whole = without_keys(&word.cooked);
    if whole != word.cooked {
        // A key in several pieces.
        return quoted(&whole);
    }
    let (mut clean, mut at) = (String::new(), word.start);
    for Span { raw, cooked } in &word.spans {
        let held = &word.cooked[cooked.clone()];
        let inner = clean_quoted(held);
        clean += &text[at..raw.start];
        clean += &if inner == held { text[raw.clone()].to_string() } else { quoted(&inner) };
        at = raw.end;
    }
    clean + &text[at..word.end]
}

/// Quotes a text for a shell.
fn quoted(text: &str) -> String {
    if text.contains(['"', '\\', '$', '`']) {
        format!("'{}'", text.replace('\'', "'\\''"))
    } else {
        format!("\"{text}\"")
    }
}

struct Word {
    start: usize,
    end: usize,
    /// The word without quotes and escapes.
    cooked: String,
    spans: Vec<Span>,
}

/// A quoted part of a word: its range in the text with quotes, and in the word without them.
struct Span {
    raw: Range<usize>,
    cooked: Range<usize>,
}

/// Splits at white space outside quotes, including line breaks: a command may span several lines.
fn split(text: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut chars = text.char_indices().peekable();
    let (mut word, mut quote): (Option<Word>, Option<char>) = (None, None);
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map(|(_, next)| *next);
        let is_continued = c == '\\' && next == Some('\n');
        if quote.is_none() && (c.is_whitespace() || is_continued) {
            words.extend(word.take());
            chars.next_if(|_| is_continued);
            continue;
        }
        let mut end = at + c.len_utf8();
        let word = word.get_or_insert_with(|| Word::at(at));
        match (quote, c) {
            (None, '(') if text[at..].starts_with(WITHHELD) => {
                while chars.next_if(|(next, _)| *next < at + WITHHELD.len()).is_some() {}
                word.cooked += WITHHELD;
                end = at + WITHHELD.len();
            }
            // `$'...'` has escapes, as double quotes have.
            (None, '$') if next == Some('\'') => {
                chars.next();
                end += 1;
                quote = Some('$');
                word.open(at);
            }
            (None, '\'' | '"') => {
                quote = Some(c);
                word.open(at);
            }
            (Some('$'), '\'') | (Some('\''), '\'') | (Some('"'), '"') => {
                quote = None;
                word.close(end);
            }
            (None | Some('"' | '$'), '\\') => {
                if let Some((at, escaped)) = chars.next() {
                    let is_kept = quote == Some('"') && !['"', '\\', '$', '`', '\n'].contains(&escaped);
                    word.cooked.extend(is_kept.then_some('\\'));
                    word.cooked.push(escaped);
                    end = at + escaped.len_utf8();
                }
            }
            _ => word.cooked.push(c),
        }
        word.end = end;
    }
    if let Some(word) = &mut word
        && quote.is_some()
    {
        word.close(text.len());
    }
    words.extend(word);
    words
}

impl Word {
    fn at(start: usize) -> Word {
        Word { start, end: start, cooked: String::new(), spans: Vec::new() }
    }

    fn open(&mut self, at: usize) {
        let cooked = self.cooked.len();
        self.spans.push(Span { raw: at..at, cooked: cooked..cooked });
    }

    fn close(&mut self, end: usize) {
        if let Some(span) = self.spans.last_mut() {
            (span.raw.end, span.cooked.end) = (end, self.cooked.len());
        }
    }
}
