//! Python tokens: names, numbers, texts and operators, with the place where each bracket closes. Drops comments.

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Name,
    Number,
    /// A text without its quotes; `true` for one with names in braces.
    Text(String, bool),
    Operator,
    /// The end of a logical line, outside brackets.
    Newline,
}

#[derive(Clone, Debug)]
pub(super) struct Token {
    pub kind: Kind,
    /// Its bytes in the text.
    pub start: usize,
    pub end: usize,
    pub line: usize,
    /// Index of the closing bracket for an opening one, the number of tokens if it never closes; else its own.
    pub close: usize,
}

const OPERATORS_OF_TWO: [&str; 15] =
    ["==", "!=", "<=", ">=", ":=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "->", "**", "//"];

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    tokens: Vec<Token>,
    open: Vec<usize>,
}

pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut scanner = Scanner { text, at: 0, line: 1, tokens: Vec::new(), open: Vec::new() };
    while let Some(c) = scanner.rest().chars().next() {
        scanner.token(c);
    }
    scanner.push(Kind::Newline, scanner.at);
    let count = scanner.tokens.len();
    for index in scanner.open {
        scanner.tokens[index].close = count;
    }
    scanner.tokens
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn push(&mut self, kind: Kind, end: usize) {
        let close = self.tokens.len();
        self.tokens.push(Token { kind, start: self.at, end, line: self.line, close });
        self.at = end;
    }

    fn token(&mut self, c: char) {
        let rest = self.rest();
        let length = |is_part: fn(char) -> bool| rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        match c {
            '\n' => {
                if self.open.is_empty() {
                    self.push(Kind::Newline, self.at + 1);
                } else {
                    self.at += 1;
                }
                self.line += 1;
            }
            '#' => self.at += rest.find('\n').unwrap_or(rest.len()),
            '\\' if rest.starts_with("\\\n") => {
                self.at += 2;
                self.line += 1;
            }
            '"' | '\'' => self.text_token(""),
            c if c.is_whitespace() || c == '\\' => self.at += c.len_utf8(),
            c if c.is_alphabetic() || c == '_' => {
                let length = length(|c| c.is_alphanumeric() || c == '_');
                let (name, after) = rest.split_at(length);
                let is_prefix = length <= 2 && name.chars().all(|c| "rRbBuUfF".contains(c));
                if is_prefix && after.starts_with(['"', '\'']) {
                    self.text_token(name)
                } else {
                    self.push(Kind::Name, self.at + length)
                }
            }
            c if c.is_ascii_digit() || (c == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit())) => {
                let mut length = length(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_');
                // The sign of an exponent.
                if rest[..length].ends_with(['e', 'E']) && rest[length..].starts_with(['-', '+']) {
                    let digits = rest[length + 1..].find(|c: char| !c.is_ascii_digit());
                    length = digits.map_or(rest.len(), |digits| length + 1 + digits);
                }
                self.push(Kind::Number, self.at + length);
            }
            _ => self.operator(c),
        }
    }

    fn operator(&mut self, c: char) {
        let own = self.tokens.len();
        let two = OPERATORS_OF_TWO.iter().any(|operator| self.rest().starts_with(operator));
        self.push(Kind::Operator, self.at + if two { 2 } else { c.len_utf8() });
        match c {
            '(' | '[' | '{' => self.open.push(own),
            ')' | ']' | '}' => {
                if let Some(open) = self.open.pop() {
                    self.tokens[open].close = own;
                }
            }
            _ => {}
        }
    }

    /// Reads a text with its prefix; an unclosed single-line text ends with its line.
    fn text_token(&mut self, prefix: &str) {
        let quoted = &self.text[self.at + prefix.len()..];
        let mark = ["\"\"\"", "'''"].into_iter().find(|mark| quoted.starts_with(mark));
        let mark = mark.unwrap_or(&quoted[..1]);
        let is_raw = prefix.contains(['r', 'R']);
        let (mut value, mut chars) = (String::new(), quoted[mark.len()..].char_indices());
        let mut length = quoted.len();
        while let Some((index, c)) = chars.next() {
            let at = mark.len() + index;
            if quoted[at..].starts_with(mark) {
                length = at + mark.len();
                break;
            }
            match c {
                '\n' if mark.len() == 1 => {
                    length = at;
                    break;
                }
                '\\' => match chars.next() {
                    Some((_, '\n')) if !is_raw => {}
                    Some((_, 'n')) if !is_raw => value.push('\n'),
                    Some((_, 't')) if !is_raw => value.push('\t'),
                    Some((_, c)) if !is_raw && "\\'\"".contains(c) => value.push(c),
                    Some((_, c)) => value.extend(['\\', c]),
                    None => {}
                },
                _ => value.push(c),
            }
        }
        let whole = prefix.len() + length;
        let lines = self.rest()[..whole].matches('\n').count();
        let is_format = prefix.contains(['f', 'F']);
        self.push(Kind::Text(value, is_format), self.at + whole);
        self.line += lines;
    }
}
