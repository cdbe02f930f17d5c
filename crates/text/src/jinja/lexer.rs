//! Splits a template into tokens by Jinja's rules, with `trim_blocks` and `lstrip_blocks` as Hugging Face sets them:
//! drops the line end after a block tag, and the white space between a line's start and a block tag.

use super::meter::{Fault, Result, TAGS_MAX};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'s> {
    /// Text outside tags, trimmed.
    Data(&'s str),
    /// `{{` and `}}`.
    EmitBegin,
    EmitEnd,
    /// `{%` and `%}`.
    TagBegin,
    TagEnd,
    Name(&'s str),
    Text(String),
    Int(i64),
    Float(f64),
    Sign(&'static str),
}

/// Longest first, so that `**` is not read as two `*`.
const SIGNS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",", ";",
];

/// Returns the tokens of `source`, whose line ends are `\n`, each with its line.
pub(super) fn tokens(source: &str) -> Result<Vec<(Token<'_>, u32)>> {
    // Jinja leaves out one line end at the end of a template.
    let source = source.strip_suffix('\n').unwrap_or(source);
    let mut lexer =
        Lexer { source, at: 0, counted_to: 0, line: 1, line_starts: true, tags: 0, tokens: Vec::new() };
    while lexer.at < source.len() {
        lexer.outside()?;
    }
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    /// Line ends before this byte are in `line`.
    counted_to: usize,
    line: u32,
    /// True if the text at `at` begins a line.
    line_starts: bool,
    tags: usize,
    tokens: Vec<(Token<'s>, u32)>,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn line_at(&mut self, at: usize) -> u32 {
        let passed = &self.source.as_bytes()[self.counted_to..at];
        self.line += passed.iter().filter(|&&byte| byte == b'\n').count() as u32;
        self.counted_to = at;
        self.line
    }

    fn fault<T>(&mut self, what: impl Into<String>) -> Result<T> {
        Err(Box::new(Fault { line: self.line_at(self.at), what: what.into() }))
    }

    fn push(&mut self, token: Token<'s>) {
        let line = self.line_at(self.at);
        self.tokens.push((token, line));
    }

    /// Reads text up to the next tag, and the tag.
    fn outside(&mut self) -> Result<()> {
        let rest = self.rest();
        let Some(begin) = first_tag(rest) else {
            self.push(Token::Data(rest));
            self.at = self.source.len();
            return Ok(());
        };
        let kind = rest.as_bytes()[begin + 1];
        let mark = rest.as_bytes().get(begin + 2).copied().filter(|mark| b"-+".contains(mark));
        let text = self.trimmed(&rest[..begin], kind, mark);
        if !text.is_empty() {
            self.push(Token::Data(text));
        }
        self.at += begin;
        self.tags += 1;
        if self.tags > TAGS_MAX {
            return self
                .fault(format!("more than {TAGS_MAX} tags, in a template of {} bytes", self.source.len()));
        }
        let begin = self.at;
        self.at += 2 + usize::from(mark.is_some());
        match kind {
            b'#' => self.comment(begin),
            b'%' => match raw_begin(self.rest()) {
                Some(length) => self.raw(length),
                None => self.tag(Token::TagBegin, "%}"),
            },
            _ => self.tag(Token::EmitBegin, "}}"),
        }
    }

    /// Leaves out the white space before a tag that the tag's mark or `lstrip_blocks` removes.
    fn trimmed(&self, text: &'s str, kind: u8, mark: Option<u8>) -> &'s str {
        match mark {
            Some(b'-') => text.trim_end(),
            None if kind != b'{' => {
                let line_start = text.rfind('\n').map_or(0, |at| at + 1);
                let is_line = line_start > 0 || self.line_starts;
                let is_blank = text[line_start..].chars().all(char::is_whitespace);
                if is_line && is_blank { &text[..line_start] } else { text }
            }
            _ => text,
        }
    }

    /// Passes the end of a tag, which has `length` bytes from here on, and the white space that it removes.
    fn pass_end(&mut self, length: usize, mark: Option<u8>, trims_line: bool) {
        self.at += length;
        let rest = self.rest();
        match mark {
            Some(b'-') => self.at += rest.len() - rest.trim_start().len(),
            None if trims_line && rest.starts_with('\n') => self.at += 1,
            _ => {}
        }
        self.line_starts = self.source[..self.at].ends_with('\n');
    }

    fn comment(&mut self, begin: usize) -> Result<()> {
        let Some(end) = self.rest().find("#}") else {
            self.at = begin;
            return self.fault("a comment without its end, `#}`");
        };
        let mark = mark_before(&self.rest()[..end]);
        self.at += end;
        self.pass_end(2, mark, true);
        Ok(())
    }

    /// Reads `{% raw %}...{% endraw %}`, from `length` bytes before its text.
    fn raw(&mut self, length: usize) -> Result<()> {
        let is_marked = self.rest()[..length].ends_with("-%}");
        self.pass_end(length, is_marked.then_some(b'-'), false);
        let (text, mut from) = (self.rest(), 0);
        while let Some(begin) = text[from..].find("{%").map(|at| from + at) {
            let open = begin + 2 + usize::from(text[begin + 2..].starts_with(['-', '+']));
            let inside = text[open..].trim_start();
            if let Some(after) = inside.strip_prefix("endraw")
                && let Some(end) = end_of_plain_tag(after)
            {
                let mark = text.as_bytes().get(begin + 2).copied().filter(|mark| b"-+".contains(mark));
                let data = self.trimmed(&text[..begin], b'%', mark);
                self.push(Token::Data(data));
                let (closing, marked) = end;
                self.at += text.len() - after.len();
                self.pass_end(closing, marked, true);
                return Ok(());
            }
            from = begin + 2;
        }
        self.fault("`raw` without `endraw`")
    }

    /// Reads the tokens of a tag up to `end`, which brackets may contain.
    fn tag(&mut self, begin: Token<'s>, end: &'static str) -> Result<()> {
        let is_block = begin == Token::TagBegin;
        self.push(begin);
        let mut brackets: Vec<char> = Vec::new();
        loop {
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start().len();
            let rest = self.rest();
            if brackets.is_empty() {
                let mark = rest.bytes().next().filter(|&mark| mark == b'-' || (mark == b'+' && is_block));
                let mark = mark.filter(|_| rest[1..].starts_with(end));
                if mark.is_some() || rest.starts_with(end) {
                    self.push(if is_block { Token::TagEnd } else { Token::EmitEnd });
                    self.pass_end(end.len() + usize::from(mark.is_some()), mark, is_block);
                    return Ok(());
                }
            }
            let Some(first) = rest.chars().next() else {
                return self.fault(format!("a tag without its end, `{end}`"));
            };
            self.token(first)?;
            if let Some((Token::Sign(sign), _)) = self.tokens.last() {
                match *sign {
                    "(" | "[" | "{" => brackets.push(first),
                    ")" | "]" | "}" => {
                        let opened = brackets.pop();
                        if !matches!((opened, first), (Some('('), ')') | (Some('['), ']') | (Some('{'), '}'))
                        {
                            return self.fault(format!("`{first}` closes no bracket"));
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// Reads one token, whose first character is given.
    fn token(&mut self, first: char) -> Result<()> {
        let rest = self.rest();
        if first.is_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            self.push(Token::Name(&rest[..end]));
            self.at += end;
            return Ok(());
        }
        match first {
            '0'..='9' => self.number(),
            '"' | '\'' => self.text(first),
            _ => {
                let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) else {
                    return self.fault(format!("unexpected character {first:?}"));
                };
                self.push(Token::Sign(sign));
                self.at += sign.len();
                Ok(())
            }
        }
    }

    fn number(&mut self) -> Result<()> {
        let rest = self.rest();
        let digits = |text: &str| text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'_').count();
        let whole = digits(rest);
        let mut end = whole;
        // `a.0.b` is two attributes, not the number 0.b.
        if self.tokens.last().is_none_or(|(token, _)| *token != Token::Sign(".")) {
            if rest[end..].starts_with('.') && rest[end + 1..].starts_with(|c: char| c.is_ascii_digit()) {
                end += 1 + digits(&rest[end + 1..]);
            }
            if let Some(power) = rest[end..].strip_prefix(['e', 'E']) {
                let sign = usize::from(power.starts_with(['+', '-']));
                let count = digits(&power[sign..]);
                end += if count > 0 { 1 + sign + count } else { 0 };
            }
        }
        let text = rest[..end].replace('_', "");
        let token = if end == whole {
            text.parse().ok().map(Token::Int)
        } else {
            text.parse().ok().map(Token::Float)
        };
        match token {
            Some(token) => {
                self.push(token);
                self.at += end;
                Ok(())
            }
            None => self.fault(format!("the number {} is beyond 2^63", plimsoll_base::shown(&text))),
        }
    }

    fn text(&mut self, quote: char) -> Result<()> {
        let mut out = String::new();
        let mut chars = self.rest()[1..].char_indices();
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.push(Token::Text(out));
                self.at += at + 2;
                return Ok(());
            }
            match c {
                '\\' => match escape(&mut chars) {
                    Some(Escape::Char(c)) => out.push(c),
                    Some(Escape::Nothing) => {}
                    Some(Escape::Other(c)) => out.extend(['\\', c]),
                    None => break,
                },
                c => out.push(c),
            }
        }
        self.fault(format!("a text without its end, `{quote}`"))
    }
}

enum Escape {
    Char(char),
    /// A line end after a backslash.
    Nothing,
    /// Not an escape: the backslash stays.
    Other(char),
}

/// Reads what follows a backslash, as Python does.
fn escape(chars: &mut std::str::CharIndices) -> Option<Escape> {
    let (_, c) = chars.next()?;
    Some(Escape::Char(match c {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'v' => '\u{b}',
        '\\' | '\'' | '"' => c,
        '\n' => return Some(Escape::Nothing),
        'x' | 'u' | 'U' => {
            let length = [('x', 2), ('u', 4), ('U', 8)].into_iter().find(|(name, _)| *name == c)?.1;
            let rest = chars.as_str();
            let digits = rest.get(..length).filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()))?;
            chars.nth(length - 1)?;
            char::from_u32(u32::from_str_radix(digits, 16).ok()?)?
        }
        '0'..='7' => {
            let mut code = c.to_digit(8)?;
            for _ in 0..2 {
                let Some(digit) = chars.as_str().chars().next().and_then(|c| c.to_digit(8)) else { break };
                code = code * 8 + digit;
                chars.next();
            }
            char::from_u32(code)?
        }
        other => return Some(Escape::Other(other)),
    }))
}

/// Finds the first `{{`, `{%` or `{#`.
fn first_tag(text: &str) -> Option<usize> {
    text.match_indices('{')
        .map(|(at, _)| at)
        .find(|at| text.as_bytes().get(at + 1).is_some_and(|next| b"{%#".contains(next)))
}

fn mark_before(text: &str) -> Option<u8> {
    text.bytes().last().filter(|mark| b"-+".contains(mark))
}

/// Returns the length of ` raw %}` if the text begins so.
fn raw_begin(text: &str) -> Option<usize> {
    let after = text.trim_start().strip_prefix("raw")?;
    let (closing, mark) = end_of_plain_tag(after)?;
    (mark != Some(b'+')).then(|| text.len() - after.len() + closing)
}

/// Returns the length of ` %}` and its mark if the text begins so.
fn end_of_plain_tag(text: &str) -> Option<(usize, Option<u8>)> {
    let inside = text.trim_start();
    let blank = text.len() - inside.len();
    [("%}", None), ("-%}", Some(b'-')), ("+%}", Some(b'+'))]
        .into_iter()
        .find(|(end, _)| inside.starts_with(end))
        .map(|(end, mark)| (blank + end.len(), mark))
}
