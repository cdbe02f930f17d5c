//! Reads a script into commands: words, quotes, comments, redirections, here documents, assignments and branches.

use super::branches::{Arm, Branch, holds_options, parts};
use super::condition::{self, Condition};
use super::expand::{Closings, Variables};
use super::word::{VALUE_BYTES_MAX, WORDS_MAX, Word};
use std::collections::VecDeque;

/// A script's commands and the variables that it sets.
pub(crate) struct Script {
    pub commands: Vec<Vec<Word>>,
    /// `NAME`, value, line.
    pub variables: Vec<(String, String, usize)>,
}

const TOO_LONG: &str = "holds more than a variable may hold here";
/// Deepest nesting of branches.
const BRANCHES_MAX: usize = 64;

/// An assignment's effect on a variable's earlier value.
enum Before {
    Goes,
    /// `NAME+=text` appends to the text, `NAME+=(a b)` adds words.
    Grows {
        is_list: bool,
    },
}

pub(super) struct Shell {
    chars: Vec<char>,
    /// The line of each character.
    lines: Vec<u32>,
    pub(super) at: usize,
    /// End of the script, or of a here document.
    end: usize,
    closings: Closings,
    variables: Variables,
    branches: Vec<Branch>,
    /// Number of branches nested too deep to follow.
    deeper: usize,
    /// Number of open `{`.
    braces: usize,
    /// The tests before this command, `[ a = b ] &&`, if there are any.
    guard: Option<Condition>,
    /// End marks of the here documents that the current line begins.
    documents: VecDeque<String>,
    assigned: Vec<(String, String, usize)>,
}

pub(super) fn read(text: &str) -> Script {
    let chars: Vec<char> = text.chars().collect();
    let line_after = |line: &mut u32, &c: &char| {
        let own = *line;
        *line += u32::from(c == '\n');
        Some(own)
    };
    let lines = chars.iter().scan(1, line_after).collect();
    let mut shell = Shell {
        closings: Closings::of(&chars),
        end: chars.len(),
        chars,
        lines,
        at: 0,
        variables: Variables::new(),
        branches: Vec::new(),
        deeper: 0,
        braces: 0,
        guard: None,
        documents: VecDeque::new(),
        assigned: Vec::new(),
    };
    let mut commands = Vec::new();
    shell.commands(&mut commands);
    Script { commands, variables: shell.assigned }
}

impl Shell {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars[..self.end].get(self.at + ahead).copied()
    }

    fn commands(&mut self, into: &mut Vec<Vec<Word>>) {
        while self.at < self.end {
            let words = self.command();
            if !words.is_empty() {
                into.push(words);
            }
            while !self.documents.is_empty() && self.chars.get(self.at.wrapping_sub(1)) == Some(&'\n') {
                self.document(into);
            }
        }
    }

    /// Reads the text of a here document as a separate script, so that a quote in it ends with it.
    fn document(&mut self, into: &mut Vec<Vec<Word>>) {
        let Some(mark) = self.documents.pop_front() else { return };
        let (mut close, mut after) = (self.end, self.end);
        let mut start = self.at;
        while start < self.end {
            let length = self.chars[start..self.end].iter().position(|&c| c == '\n');
            let line_end = length.map_or(self.end, |length| start + length);
            let line: String = self.chars[start..line_end].iter().collect();
            if line.trim() == mark {
                (close, after) = (start, (line_end + 1).min(self.end));
                break;
            }
            start = line_end + 1;
        }
        let (end, waiting) = (std::mem::replace(&mut self.end, close), std::mem::take(&mut self.documents));
        while self.at < self.end {
            let words = self.command();
            if !words.is_empty() {
                into.push(words);
            }
        }
        (self.end, self.at, self.documents) = (end, after, waiting);
    }

    /// Reads up to the end of an uncontinued line, `;`, `&`, `|` or a bracket.
    fn command(&mut self) -> Vec<Word> {
        let mut words: Vec<Word> = Vec::new();
        let mut is_head = true;
        while let Some(c) = self.peek(0) {
            match c {
                '\\' if self.peek(1) == Some('\n') => self.at += 2,
                '\\' if self.peek(1) == Some('\r') && self.peek(2) == Some('\n') => self.at += 3,
                '&' if self.peek(1) == Some('>') => self.redirection(),
                '<' | '>' => {
                    // `2>file`: the number is the redirection's.
                    let is_joined = self.at > 0 && self.chars[self.at - 1].is_ascii_digit();
                    words.pop_if(|last| is_joined && last.text.chars().all(|c| c.is_ascii_digit()));
                    self.redirection();
                }
                '\n' | ';' | '&' | '|' | '(' | ')' => {
                    self.at += 1;
                    let is_joined = "&|".contains(c) && self.peek(0) == Some(c);
                    self.at += usize::from(is_joined);
                    self.ended(&mut words, &c.to_string().repeat(1 + usize::from(is_joined)));
                    if c == ';'
                        && self.peek(0) == Some(';')
                        && self.branches.last().is_some_and(|one| one.case.is_some())
                    {
                        self.restore(false);
                    }
                    break;
                }
                '#' => {
                    while self.peek(0).is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                c if c.is_whitespace() => self.at += 1,
                _ if is_head && self.assignment() => {}
                _ => {
                    let before = words.len();
                    self.word(true, &mut words);
                    if is_head && words.len() == before + 1 && self.is_opener(&words[before].text) {
                        words.pop();
                    } else {
                        is_head = words.is_empty();
                    }
                }
            }
        }
        words
    }

    /// Looks at a command that ends at `end`: it may be a part of a condition, and after a test it may not run at all.
    fn ended(&mut self, words: &mut Vec<Word>, end: &str) {
        if self.deeper == 0
            && let Some(branch) = self.branches.last_mut()
        {
            branch.command(words, end);
        }
        self.braces += usize::from(words.last().is_some_and(|word| word.text == "{"));
        let first = words.first().map_or("", |word| word.text.as_str());
        match first {
            "}" => self.braces = self.braces.saturating_sub(1),
            "exit" | "return" if self.braces == 0 && self.guard.is_none() && self.deeper == 0 => {
                self.branches.last_mut().into_iter().for_each(Branch::exits);
            }
            _ => {}
        }
        let mut guard = self.guard.take();
        let is_passed_over = guard.as_ref().is_some_and(|guard| guard.lets_run() == Some(false));
        if ["&&", "||"].contains(&end) && (guard.is_some() || condition::is_test(words)) {
            guard.get_or_insert_default().command(words, end);
            self.guard = guard;
        }
        if is_passed_over || self.is_passed_over() {
            words.clear();
        }
    }

    /// Returns true within an arm that never runs.
    fn is_passed_over(&self) -> bool {
        self.branches.last().is_some_and(|branch| branch.arm == Arm::Never)
    }

    fn open_branch(&mut self, word: &str) {
        let line = self.lines.get(self.at.saturating_sub(1)).map_or(0, |&line| line as usize);
        match self.branches.len() {
            0..BRANCHES_MAX => self.branches.push(Branch::new(word, line, self.is_passed_over())),
            _ => self.deeper += 1,
        }
    }

    /// Returns true for a word after which a command begins, and follows branches.
    fn is_opener(&mut self, word: &str) -> bool {
        match word {
            "if" | "for" | "while" | "until" | "case" | "select" => self.open_branch(word),
            "then" if self.deeper == 0 => {
                self.branches.last_mut().into_iter().for_each(Branch::decide_by_condition);
            }
            "do" if self.deeper == 0 => {
                self.branches.last_mut().into_iter().for_each(Branch::begin_loop);
            }
            "else" | "elif" => {
                self.restore(false);
                if let Some(branch) = self.branches.last_mut().filter(|_| self.deeper == 0) {
                    match word {
                        "else" => branch.decide(Some(true)),
                        _ => branch.begin_condition(),
                    }
                }
            }
            "fi" | "done" | "esac" => self.restore(true),
            _ => {}
        }
        self.braces += usize::from(word == "{");
        matches!(word, "export" | "declare" | "local" | "readonly" | "typeset" | "then" | "do" | "else" | "{")
    }

    /// Undoes the assignments of an arm: at `else` for the other arm, at the end for good.
    fn restore(&mut self, is_end: bool) {
        if self.deeper > 0 {
            self.deeper -= usize::from(is_end);
            return;
        }
        let Some(mut branch) = self.branches.pop() else { return };
        branch.end_arm(&mut self.variables);
        if is_end { branch.end(&mut self.variables) } else { self.branches.push(branch) }
    }

    /// Skips `> file`, `2>&1`, `< file`, and records `<< MARK`.
    fn redirection(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(|c| "<>&|-".contains(c)) {
            self.at += 1;
        }
        let operator: String = self.chars[start..self.at].iter().collect();
        while self.peek(0).is_some_and(|c| c == ' ' || c == '\t') {
            self.at += 1;
        }
        if self.peek(0).is_none_or(|c| c.is_whitespace() || "();&|<>".contains(c)) {
            return;
        }
        let mut target = Vec::new();
        self.word(false, &mut target);
        if let (true, Some(mark)) = (operator.starts_with("<<") && !operator.starts_with("<<<"), target.pop())
        {
            self.documents.push_back(mark.text);
        }
    }

    /// Keeps `NAME=value`, `NAME+=value` and `NAME=(a b)` at the head of a command; false if there is none.
    fn assignment(&mut self) -> bool {
        let is_name = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        let length = self.chars[self.at..self.end].iter().take_while(|c| is_name(c)).count();
        let adds = self.peek(length) == Some('+');
        let sign = self.at + length + usize::from(adds);
        if length == 0 || self.chars[..self.end].get(sign) != Some(&'=') {
            return false;
        }
        let name: String = self.chars[self.at..self.at + length].iter().collect();
        let line = self.lines[self.at] as usize;
        self.at = sign + 1;
        let mut words = Vec::new();
        let is_list = self.peek(0) == Some('(');
        if is_list {
            self.at += 1;
            self.list(&mut words);
        } else {
            self.word(false, &mut words);
            if words.is_empty() {
                words.push(Word { line, ..Word::default() });
            }
            if let [word] = words.as_slice()
                && word.open.is_none()
                && !self.is_passed_over()
            {
                self.assigned.push((name.clone(), word.text.clone(), line));
            }
        }
        let before = if adds { Before::Grows { is_list } } else { Before::Goes };
        // `[ a = b ] && NAME=value` is a branch.
        let result = self.guard.as_ref().map(Condition::lets_run);
        let is_branch = result.is_some() && self.branches.len() < BRANCHES_MAX && self.deeper == 0;
        if is_branch {
            self.branches.push(Branch::new("if", line, self.is_passed_over()));
            self.branches.last_mut().expect("there is one").decide(result.flatten());
        }
        self.keep(&name, words, before);
        if is_branch {
            self.restore(true);
        }
        true
    }

    fn keep(&mut self, name: &str, mut words: Vec<Word>, what_was: Before) {
        if self.is_passed_over() {
            return;
        }
        // An arm that always runs is as no branch: what it sets depends on the branch around it.
        if let Some(at) = self.branches.iter().rposition(|branch| branch.arm == Arm::Maybe) {
            let before = self.variables.value(name);
            self.branches[at].touched.push((name.into(), before));
        }
        if let (Before::Grows { is_list }, Some(mut all)) = (what_was, self.variables.take(name)) {
            match (is_list, all.as_mut_slice(), words.as_slice()) {
                // Like the shell, appends text to the first word of an array.
                (false, [one, ..], [more]) if one.text.len() + more.text.len() <= VALUE_BYTES_MAX => {
                    one.text += &more.text;
                    one.doubt(more);
                }
                (true, all_words, _) if all_words.len() + words.len() <= WORDS_MAX => all.append(&mut words),
                _ => all = vec![Word { open: Some(TOO_LONG), ..Word::default() }],
            }
            words = all;
        }
        self.variables.set(name, words);
    }

    /// Reads the words of `(a b c)` up to its closing bracket.
    fn list(&mut self, into: &mut Vec<Word>) {
        while let Some(c) = self.peek(0) {
            match c {
                ')' => {
                    self.at += 1;
                    return;
                }
                '#' => {
                    while self.peek(0).is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                '\\' if self.peek(1) == Some('\n') => self.at += 2,
                c if c.is_whitespace() || "(;&|<>".contains(c) => self.at += 1,
                _ => self.word(true, into),
            }
        }
    }

    /// Reads one word, or several if `splits` and a variable outside quotes has several.
    fn word(&mut self, splits: bool, into: &mut Vec<Word>) {
        let line = self.lines.get(self.at).map_or(0, |&line| line as usize);
        let (mut word, mut quote, mut has_text) = (Word { line, ..Word::default() }, None, false);
        while let Some(c) = self.peek(0) {
            if quote.is_none() && (c.is_whitespace() || ";&|)<>".contains(c)) {
                break;
            }
            self.at += 1;
            has_text |= c != '$';
            match (quote, c) {
                (Some(open), _) if c == open => quote = None,
                (None, '\'' | '"') => quote = Some(c),
                (Some('\''), _) => word.text.push(c),
                (_, '$') => {
                    let (chars, end) = (&self.chars[..self.end], &mut self.at);
                    let pieces = self.variables.expand(chars, &self.closings, end, 0);
                    let splits = splits && quote.is_none();
                    has_text |= join(&mut word, pieces, splits, into);
                }
                (None, '~') if word.text.is_empty() && self.peek(0).is_none_or(|c| c == '/') => {
                    match self.variables.get("HOME").and_then(|home| home.first()) {
                        Some(home) => word.text += &home.text,
                        None => word.text.push('~'),
                    }
                }
                (_, '`') => {
                    word.open = Some(super::expand::OUTPUT);
                    word.text.push(c);
                }
                (_, '\\') if self.peek(0) == Some('\n') => self.at += 1,
                (_, '\\') if quote.is_none() || self.peek(0).is_some_and(|c| "\"\\$`".contains(c)) => {
                    word.text.extend(self.peek(0));
                    self.at += 1;
                }
                (None, '(') if self.peek(0) == Some(')') => {
                    word.text += "()";
                    self.at += 1;
                }
                _ => word.text.push(c),
            }
        }
        self.at = self.at.min(self.end);
        if has_text {
            into.push(word);
        }
    }
}

/// Appends a variable's value; true if a word has begun or continues.
fn join(word: &mut Word, pieces: Vec<Word>, splits: bool, into: &mut Vec<Word>) -> bool {
    let mut has_text = false;
    let several = pieces.len() > 1;
    for (index, piece) in pieces.into_iter().enumerate() {
        if index > 0 {
            let line = word.line;
            into.push(std::mem::replace(word, Word { line, ..Word::default() }));
        }
        if several || piece.branch > 0 {
            word.line = if piece.line > 0 { piece.line } else { word.line };
        }
        let is_open = piece.open.is_some() && !holds_options(&piece);
        if !splits || is_open || piece.text.contains("$(") {
            word.doubt(&piece);
            has_text |= !piece.text.is_empty() || !splits;
            word.text += &piece.text;
            continue;
        }
        for (part, one) in parts(&piece).enumerate() {
            let begins_with_space = part == 0 && piece.text.starts_with(char::is_whitespace);
            if (part > 0 || begins_with_space) && !word.text.is_empty() {
                let line = word.line;
                into.push(std::mem::replace(word, Word { line, ..Word::default() }));
            }
            word.text += &one.text;
            word.doubt(&one);
            has_text = true;
        }
    }
    has_text
}
