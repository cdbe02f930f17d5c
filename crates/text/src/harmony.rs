//! Parses responses in the harmony format of gpt-oss: messages one after the other, each in a channel. The first one's
//! `<|start|>assistant` is in the prompt.
//!
//! ```text
//! <|channel|>analysis<|message|>Two numbers.<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a":2,"b":3}<|call|>
//! ```
//!
//! The words of `analysis` are thinking, those of `commentary` and `final` text. A message to a function is a call. Its
//! recipient may be before or after the channel, and the form of its words is ` json` or ` <|constrain|>json`. A header
//! that breaks off, a channel that is none of these and a call that is no JSON stay text, with their marks.
//! Source: openai/harmony, `docs/format.md` and `StreamableParser`.

use crate::said::{Said, overlap, written_arguments};
use plimsoll_base::json_marked;

pub(crate) const START: &str = "<|start|>";
pub(crate) const CHANNEL: &str = "<|channel|>";
pub(crate) const CONSTRAIN: &str = "<|constrain|>";
pub(crate) const MESSAGE: &str = "<|message|>";
pub(crate) const END: &str = "<|end|>";
/// Tokens that end a response: an answer is complete, or a function is called.
pub(crate) const ENDS: [&str; 2] = ["<|return|>", "<|call|>"];
/// Marks after which a message's words are over.
const AFTER_WORDS: [&str; 4] = [END, ENDS[0], ENDS[1], START];
/// Longest header; a longer one is text. A function's name has at most 64 characters.
const HEADER_BYTES_MAX: usize = 512;

/// Finds thinking, text and calls in one response, piece by piece, in time linear in the text.
#[derive(Clone, Debug, Default)]
pub struct Harmony {
    /// True if there are functions to call.
    has_tools: bool,
    place: Place,
    /// What is not said yet: a header, a call, or the possible beginning of a mark.
    held: String,
    /// Bytes of `held` that have no mark, so that a long call is searched once.
    searched: usize,
    has_thought: bool,
    has_text: bool,
    /// True if a message of the same kind came before: a line break separates them.
    is_next: bool,
}

/// The place in the format that was reached.
#[derive(Clone, Debug, Default)]
enum Place {
    /// In the header whose beginning is in the prompt.
    #[default]
    First,
    /// After a message.
    Between,
    /// In a header that begins with `<|start|>`.
    Header,
    Thought,
    Text,
    /// In the words of a call; the header is held too.
    Call {
        name: String,
        header_bytes: usize,
    },
}

impl Harmony {
    pub(crate) fn new(has_tools: bool) -> Harmony {
        Harmony { has_tools, ..Harmony::default() }
    }

    pub(crate) fn push(&mut self, text: &str, said: &mut Vec<Said>) {
        self.held.push_str(text);
        while self.step(said) {}
    }

    /// Says what is held, at the end of the response. A call may end with it.
    pub(crate) fn finish(&mut self, said: &mut Vec<Said>) {
        match std::mem::replace(&mut self.place, Place::Between) {
            Place::Thought => self.say(true, self.held.len(), said),
            Place::Call { name, header_bytes } => {
                let is_begun = !self.held[header_bytes..].trim().is_empty();
                self.call(is_begun.then_some(name), header_bytes, self.held.len(), said);
            }
            Place::First | Place::Header => {
                self.begin(false);
                self.say(false, self.held.len(), said);
            }
            Place::Text => self.say(false, self.held.len(), said),
            Place::Between if self.held.trim().is_empty() => self.held.clear(),
            Place::Between => {
                self.begin(false);
                self.say(false, self.held.len(), said);
            }
        }
    }

    /// Takes the next part of what is held. Returns false if that needs more text.
    fn step(&mut self, said: &mut Vec<Said>) -> bool {
        match std::mem::take(&mut self.place) {
            Place::First => self.first(said),
            Place::Between => self.between(),
            Place::Header => self.header(START.len(), said),
            Place::Thought => self.words(true, said),
            Place::Text => self.words(false, said),
            Place::Call { name, header_bytes } => {
                let Some((at, mark)) = self.next_mark(&AFTER_WORDS, self.searched) else {
                    self.searched = header_bytes.max(self.held.len().saturating_sub(mark_bytes_max() - 1));
                    self.searched = self.held.floor_char_boundary(self.searched);
                    self.place = Place::Call { name, header_bytes };
                    return false;
                };
                self.place = Place::Between;
                self.call(Some(name), header_bytes, at, said);
                self.pass(mark);
                true
            }
        }
    }

    /// Reads the header of the first message. A response may repeat the prompt's mark, or begin with words alone.
    fn first(&mut self, said: &mut Vec<Said>) -> bool {
        let begun = self.held.trim_start();
        if begun.starts_with(START) {
            self.place = Place::Between;
            return true;
        }
        let begins = ["assistant", "to=", START, CHANNEL, CONSTRAIN, MESSAGE, END, ENDS[0], ENDS[1]];
        if begins.iter().any(|mark| mark.starts_with(begun) || begun.starts_with(mark)) {
            return self.header(0, said);
        }
        self.begin(false);
        self.place = Place::Text;
        true
    }

    fn between(&mut self) -> bool {
        let begun = self.held.trim_start();
        if begun.starts_with(START) {
            self.held.drain(..self.held.len() - begun.len());
            self.place = Place::Header;
            return true;
        }
        if START.starts_with(begun) {
            self.place = Place::Between;
            return false;
        }
        self.begin(false);
        self.place = Place::Text;
        true
    }

    /// Reads a header, whose words begin at byte `from` of what is held.
    fn header(&mut self, from: usize, said: &mut Vec<Said>) -> bool {
        let Some((at, mark)) = self.next_mark(&[MESSAGE, END, ENDS[0], ENDS[1], START], from) else {
            if self.held.len() <= HEADER_BYTES_MAX {
                self.place = if from == 0 { Place::First } else { Place::Header };
                return false;
            }
            self.begin(false);
            self.place = Place::Text;
            return true;
        };
        if mark != MESSAGE {
            self.begin(false);
            self.say(false, at, said);
            self.place = Place::Between;
            self.pass(mark);
            return true;
        }
        let whole = at + MESSAGE.len();
        let header = Header::read(&self.held[from..at], from > 0);
        match header.and_then(|header| self.kind(&header)) {
            Some(Place::Call { name, .. }) => {
                self.searched = whole;
                self.place = Place::Call { name, header_bytes: whole };
            }
            Some(place) => {
                self.held.drain(..whole);
                self.begin(matches!(place, Place::Thought));
                self.place = place;
            }
            // The header stays in the text.
            None => {
                self.begin(false);
                self.say(false, whole, said);
                self.place = Place::Text;
            }
        }
        true
    }

    /// Returns what a message with this header is. `None` if the format has no such message, or there are no functions
    /// to call.
    fn kind(&self, header: &Header<'_>) -> Option<Place> {
        let to = header.recipient.filter(|to| !["all", "user"].contains(to));
        match (to, header.channel) {
            (Some(to), None | Some("analysis" | "commentary" | "final")) => {
                let name = to.strip_prefix("functions.").unwrap_or(to);
                let is_call = is_word(name) && name != "assistant" && self.has_tools;
                is_call.then(|| Place::Call { name: name.to_string(), header_bytes: 0 })
            }
            (Some(_), Some(_)) => None,
            (None, Some("analysis")) => Some(Place::Thought),
            (None, Some("final" | "commentary")) => Some(Place::Text),
            (None, _) => None,
        }
    }

    fn words(&mut self, is_thought: bool, said: &mut Vec<Said>) -> bool {
        match self.next_mark(&AFTER_WORDS, 0) {
            Some((at, mark)) => {
                self.say(is_thought, at, said);
                self.place = Place::Between;
                self.pass(mark);
                true
            }
            None => {
                let held = AFTER_WORDS.map(|mark| overlap(&self.held, mark)).into_iter().max().unwrap_or(0);
                self.say(is_thought, self.held.len() - held, said);
                self.place = if is_thought { Place::Thought } else { Place::Text };
                false
            }
        }
    }

    /// Takes a call whose words end at byte `end` of what is held; one that is no call is text, with its header. No
    /// words are no argument, if a mark follows; without a `name` the call has broken off before its first word.
    fn call(&mut self, name: Option<String>, header_bytes: usize, end: usize, said: &mut Vec<Said>) {
        self.searched = 0;
        let words = self.held[header_bytes..end].trim();
        let arguments = json_marked(if words.is_empty() { "{}" } else { words }).ok();
        match name.zip(arguments.filter(serde_json::Value::is_object)) {
            Some((name, arguments)) => {
                said.push(Said::Call { name, arguments: written_arguments(words, &arguments) });
                self.held.drain(..end);
            }
            None => {
                self.begin(false);
                self.say(false, end, said);
            }
        }
    }

    /// Returns the first of these marks in what is held, from a byte on, and its place.
    fn next_mark(&self, marks: &[&'static str], from: usize) -> Option<(usize, &'static str)> {
        let find = |mark: &&'static str| Some((from + self.held[from..].find(*mark)?, *mark));
        marks.iter().filter_map(find).min()
    }

    /// Takes away the mark that ended a message; one that begins the next stays.
    fn pass(&mut self, mark: &str) {
        if mark != START {
            self.held.drain(..mark.len());
        }
    }

    /// Begins a message.
    fn begin(&mut self, is_thought: bool) {
        self.is_next = if is_thought { self.has_thought } else { self.has_text };
    }

    /// Says the first `bytes` of what is held.
    fn say(&mut self, is_thought: bool, bytes: usize, said: &mut Vec<Said>) {
        if bytes == 0 {
            return;
        }
        let mut text: String = self.held.drain(..bytes).collect();
        if std::mem::take(&mut self.is_next) {
            text.insert(0, '\n');
        }
        *(if is_thought { &mut self.has_thought } else { &mut self.has_text }) = true;
        said.push(if is_thought { Said::Thought(text) } else { Said::Text(text) });
    }
}

/// Returns whether a header's word may be a function's name, or the form of a message's words.
fn is_word(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

fn mark_bytes_max() -> usize {
    AFTER_WORDS.iter().map(|mark| mark.len()).max().unwrap_or(0)
}

/// A message's header, without its role.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Header<'t> {
    channel: Option<&'t str>,
    recipient: Option<&'t str>,
}

impl<'t> Header<'t> {
    /// Reads a header before `<|message|>`. `None` if it is not one of the assistant's in the format.
    fn read(text: &'t str, has_role: bool) -> Option<Header<'t>> {
        let (before, after) = text.split_once(CHANNEL).unwrap_or((text, ""));
        let end = after.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(after.len());
        let (channel, after) = after.split_at(end);
        let has_channel = text.contains(CHANNEL);
        if (has_channel && channel.is_empty()) || after.contains(CHANNEL) {
            return None;
        }
        let mut header = Header { channel: has_channel.then_some(channel), recipient: None };
        let words = [before, after].into_iter().flat_map(|part| part.split(CONSTRAIN));
        let mut words = words.flat_map(str::split_whitespace).peekable();
        let is_assistant = words.next_if_eq(&"assistant").is_some();
        if has_role && !is_assistant {
            return None;
        }
        let mut has_form = false;
        for word in words {
            let to = word.strip_prefix("to=").or_else(|| word.starts_with("functions.").then_some(word));
            match to {
                Some(to) if header.recipient.is_none() && !to.is_empty() => header.recipient = Some(to),
                None if !has_form && is_word(word) => has_form = true,
                _ => return None,
            }
        }
        Some(header)
    }
}

#[cfg(test)]
#[path = "harmony_tests.rs"]
mod tests;
