//! Text to tokens: LaTeX commands, numbers with their separators, words and units.

use super::units::{UNITS, is_unit};

/// Most tokens of an answer; a longer one is compared as text only.
const TOKENS_MAX: usize = 8192;
/// Longest list whose commas are looked at for spaces.
const LIST_CHARS_MAX: usize = 160;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// Digits with at most one point, separators dropped.
    Number(String),
    /// A variable.
    Letter(String),
    /// Words that mean nothing to arithmetic.
    Text(String),
    /// A command, without its backslash; functions written without one too.
    Command(String),
    /// `and`.
    And,
    /// `or`.
    Or,
    /// Any other sign; `{` and `}` are LaTeX groups, `⦃` and `⦄` braces that show.
    Sign(char),
}

/// A token and whether white space was before it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spaced {
    pub token: Token,
    pub space: bool,
}

/// Functions that answers spell without a backslash.
const FUNCTIONS: [&str; 27] = [
    "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "sqrt", "sin", "cos", "tan", "cot", "sec", "csc",
    "log", "ln", "exp", "gcd", "lcm", "max", "min", "det", "pi", "infty", "infinity", "abs", "cup", "theta",
];

fn connector(word: &str) -> Option<Token> {
    match word {
        "and" => Some(Token::And),
        "or" => Some(Token::Or),
        _ => None,
    }
}

struct Lexer<'a> {
    chars: Vec<char>,
    at: usize,
    /// The brackets that hold lists and are open: true if their commas have spaces after them.
    open: Vec<bool>,
    group_commas: bool,
    out: Vec<Spaced>,
    space: bool,
    nested: &'a mut u32,
}

/// Cuts an answer into tokens; `None` if it has too many or a command that it cannot place.
///
/// `group_commas`: `1,234` outside brackets is one number.
pub(crate) fn tokens(text: &str, group_commas: bool) -> Option<Vec<Spaced>> {
    lex(text, group_commas, &mut 0)
}

fn lex(text: &str, group_commas: bool, nested: &mut u32) -> Option<Vec<Spaced>> {
    // Text inside text inside text: no answer means that.
    *nested += 1;
    if *nested > 64 || text.len() > 16 * TOKENS_MAX {
        return None;
    }
    let mut lexer = Lexer {
        chars: text.chars().collect(),
        at: 0,
        open: Vec::new(),
        group_commas,
        out: Vec::new(),
        space: false,
        nested,
    };
    while lexer.at < lexer.chars.len() {
        lexer.step()?;
        if lexer.out.len() > TOKENS_MAX {
            return None;
        }
    }
    Some(lexer.out)
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn push(&mut self, token: Token) {
        self.out.push(Spaced { token, space: self.space });
        self.space = false;
    }

    fn step(&mut self) -> Option<()> {
        let c = self.peek(0);
        match c {
            c if c.is_whitespace() || c == '~' => {
                self.space = true;
                self.at += 1;
            }
            '0'..='9' => self.number(),
            '.' if self.peek(1).is_ascii_digit() => self.number(),
            'a'..='z' | 'A'..='Z' => self.letters(),
            '\\' => return self.command(),
            '%' => {
                self.at += 1;
                self.push(Token::Sign('%'));
            }
            // `5!=120` is a factorial, `x != 5` a relation.
            '<' | '>' | '!' if self.peek(1) == '=' && !(c == '!' && self.follows_digit()) => {
                let name = match c {
                    '<' => "le",
                    '>' => "ge",
                    _ => "ne",
                };
                self.at += 2;
                self.push(Token::Command(name.into()));
            }
            _ => {
                self.at += 1;
                match c {
                    '(' | '[' => self.open_list(),
                    ')' | ']' => drop(self.open.pop()),
                    _ => {}
                }
                self.push(Token::Sign(c));
            }
        }
        Some(())
    }

    /// Notes the bracket that was just read: in `(1,000, 2)` a comma without a space is within a number.
    fn open_list(&mut self) {
        let (mut depth, mut before) = (0, ' ');
        let mut spaced = false;
        for &c in self.chars[self.at..].iter().take(LIST_CHARS_MAX) {
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' if depth == 0 => break,
                ')' | ']' => depth -= 1,
                '}' if depth == 0 && before == '\\' => break,
                _ => spaced |= depth == 0 && before == ',' && (c == ' ' || c == '\\'),
            }
            before = c;
        }
        self.open.push(spaced);
    }

    fn follows_digit(&self) -> bool {
        self.at > 0 && self.chars[self.at - 1].is_ascii_digit()
    }

    fn number(&mut self) {
        let mut text = String::new();
        let mut grouped = false;
        loop {
            if self.peek(0).is_ascii_digit() {
                text.push(self.peek(0));
                self.at += 1;
            } else if let Some(length) = self.separator(&text, grouped) {
                grouped = true;
                self.at += length;
            } else {
                break;
            }
        }
        if self.peek(0) == '.' && self.peek(1).is_ascii_digit() {
            text.push('.');
            self.at += 1;
            while self.peek(0).is_ascii_digit() {
                text.push(self.peek(0));
                self.at += 1;
            }
        } else if self.peek(0) == '.' && !matches!(self.peek(1), '.' | '\\') {
            // `5.` is 5.
            self.at += 1;
        }
        if let Some(repeating) = self.repeating_digits() {
            return self.repeating_decimal(&text, &repeating);
        }
        if let Some(exponent) = self.exponent() {
            return self.push_all(["(", &text, "\\cdot", "10", "^", "{", &exponent, "}", ")"]);
        }
        // `4 x 10^5`: between two numbers the letter is a sign.
        if let [.., before, Spaced { token: sign @ Token::Letter(_), .. }] = self.out.as_mut_slice()
            && matches!(before.token, Token::Number(_))
            && matches!(sign, Token::Letter(letter) if letter == "x" || letter == "X")
        {
            *sign = Token::Command("times".into());
        }
        self.push(Token::Number(text));
    }

    /// Reads the digits of `\overline{36}`, `\bar 3` or `\dot{1}4285\dot{7}` after a decimal, if they are next.
    fn repeating_digits(&mut self) -> Option<String> {
        let ahead: String = self.chars[self.at..].iter().take(48).collect();
        let point = usize::from(ahead.starts_with('.'));
        let marked = |text: &str, name: &str| -> Option<(String, usize)> {
            let rest = text.strip_prefix(name)?;
            let (digits, end) = match rest.strip_prefix('{') {
                Some(rest) => rest.split_once('}').map(|(digits, _)| (digits, digits.len() + 2))?,
                None => {
                    let end = rest.find(|c| c != ' ')? + 1;
                    (rest.get(end - 1..end)?, end)
                }
            };
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| (digits.to_string(), name.len() + end))
        };
        let text = &ahead[point..];
        let (mut digits, mut end) =
            ["\\overline", "\\bar", "\\dot"].iter().find_map(|name| marked(text, name))?;
        // Dots are on the first and the last digit of those that repeat.
        if text.starts_with("\\dot") {
            let between = text[end..].bytes().take_while(u8::is_ascii_digit).count();
            if let Some((last, length)) = marked(&text[end + between..], "\\dot") {
                digits = format!("{digits}{}{last}", &text[end..end + between]);
                end += between + length;
            }
        }
        let decimal =
            point == 1 || self.chars[..self.at].iter().rev().find(|c| !c.is_ascii_digit()) == Some(&'.');
        if !decimal || digits.len() > 12 {
            return None;
        }
        self.at += point + end;
        Some(digits)
    }

    /// Reads `0.1\overline{6}` as (16 - 1) / (99 - 9) = 15/90.
    fn repeating_decimal(&mut self, before: &str, repeating: &str) {
        let plain = before.replace('.', "");
        let places = before.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        let all = format!("{plain}{repeating}");
        let below = format!("{}{}", "9".repeat(repeating.len()), "0".repeat(places));
        self.push_all(["(", "(", &all, "-", &plain, ")", "/", &below, ")"]);
    }

    /// Reads the exponent of `1.5e3`, if digits follow at once.
    fn exponent(&mut self) -> Option<String> {
        let sign = usize::from(matches!(self.peek(1), '+' | '-'));
        let digits: String =
            self.chars[self.at..].iter().skip(1 + sign).take(7).take_while(|c| c.is_ascii_digit()).collect();
        if !matches!(self.peek(0), 'e' | 'E') || digits.is_empty() || digits.len() > 6 {
            return None;
        }
        let minus = if self.peek(1) == '-' { "-" } else { "" };
        self.at += 1 + sign + digits.len();
        Some(format!("{minus}{digits}"))
    }

    /// Pushes short tokens: digits, a command with its backslash, or one sign; a sign before digits is its own.
    fn push_all<const N: usize>(&mut self, tokens: [&str; N]) {
        for token in tokens {
            let token = match token.strip_prefix('-') {
                Some(rest) if !rest.is_empty() => {
                    self.push(Token::Sign('-'));
                    rest
                }
                _ => token,
            };
            match token.strip_prefix('\\') {
                Some(name) => self.push(Token::Command(name.into())),
                None if token.starts_with(|c: char| c.is_ascii_digit()) => {
                    self.push(Token::Number(token.into()))
                }
                None => token.chars().for_each(|c| self.push(Token::Sign(c))),
            }
        }
    }

    /// Returns the length of a thousands separator here, if exactly three digits follow.
    fn separator(&self, digits: &str, grouped: bool) -> Option<usize> {
        let ahead: String = (0..8).map(|k| self.peek(k)).collect();
        let comma = self.group_commas && self.open.last().is_none_or(|&spaced| spaced || self.peek(1) == '0');
        let marks = ["{,}", ",\\!", "\\,", "\\!", "{\\,}", "\\;", "\\:", "\\ ", ",", " ", "~"];
        let mark =
            marks.into_iter().find(|mark| ahead.starts_with(mark)).filter(|&mark| mark != "," || comma)?;
        let length = mark.len();
        if matches!(mark, " " | "~") && self.is_fraction_after(length) {
            return None;
        }
        // `,\! 111` has a space in it as well.
        let spaces = if ahead.starts_with(",\\!") {
            (length..).take_while(|&k| self.peek(k) == ' ').take(4).count()
        } else {
            0
        };
        let length = length + spaces;
        let three =
            (0..3).all(|k| self.peek(length + k).is_ascii_digit()) && !self.peek(length + 3).is_ascii_digit();
        let first = !grouped && digits.len() <= 3 && !digits.is_empty();
        let well_placed = first || (grouped && digits.len() > 3);
        (three && well_placed).then_some(length)
    }

    /// True if the digits from there on are those of a fraction: `2 300/400` is a mixed number.
    fn is_fraction_after(&self, length: usize) -> bool {
        let rest = &self.chars[(self.at + length).min(self.chars.len())..];
        rest.iter().take(16).find(|c| !(c.is_ascii_digit() || **c == ' ')) == Some(&'/')
    }

    fn letters(&mut self) {
        let run: String = self.chars[self.at..].iter().take_while(|c| c.is_ascii_alphabetic()).collect();
        let after_number =
            matches!(self.out.last().map(|last| &last.token), Some(Token::Number(_) | Token::Sign('}')));
        if let Some(connector) = connector(&run) {
            self.at += run.len();
            return self.push(connector);
        }
        if run == "mod" {
            self.at += run.len();
            return self.push(Token::Command(run));
        }
        let unit = run.len() >= 2 && UNITS.iter().any(|&(name, _)| name == run);
        if unit && after_number && run != "min" {
            self.at += run.len();
            return self.push(Token::Text(run));
        }
        // `km/h`
        if let [.., Spaced { token: Token::Text(unit), .. }, Spaced { token: Token::Sign('/'), .. }] =
            self.out.as_slice()
            && is_unit(unit)
            && is_unit(&run)
        {
            self.at += run.len();
            return self.push(Token::Text(run));
        }
        if let Some(name) = FUNCTIONS.iter().find(|name| run.starts_with(*name)) {
            let rest = run.len() - name.len();
            // `maximum` is a word; `sinx` is a function of x.
            if rest <= 1 {
                self.at += name.len();
                return self.push(Token::Command((*name).into()));
            }
        }
        if run.len() >= 4 {
            self.at += run.len();
            return self.push(Token::Text(run));
        }
        self.at += 1;
        self.push(Token::Letter(run[..1].to_string()));
    }

    fn command(&mut self) -> Option<()> {
        let name: String = self.chars[self.at + 1..].iter().take_while(|c| c.is_ascii_alphabetic()).collect();
        if name.is_empty() {
            let sign = self.peek(1);
            self.at += 2;
            match sign {
                '{' => {
                    self.open_list();
                    self.push(Token::Sign('⦃'));
                }
                '}' => {
                    self.open.pop();
                    self.push(Token::Sign('⦄'));
                }
                '%' => self.push(Token::Sign('%')),
                '|' => self.push(Token::Sign('|')),
                '\\' => self.push(Token::Command("newline".into())),
                ',' | ';' | ':' | '!' | ' ' | '>' | '\n' | '\0' => self.space = true,
                '$' | '(' | ')' | '[' | ']' => self.space = true,
                _ => return None,
            }
            return Some(());
        }
        self.at += 1 + name.len();
        match name.as_str() {
            "left" | "right" | "big" | "Big" | "bigg" | "Bigg" | "bigl" | "bigr" | "Bigl" | "Bigr"
            | "biggl" | "biggr" => {
                // `\left.` shows nothing.
                if self.peek(0) == '.' {
                    self.at += 1;
                }
            }
            "displaystyle" | "textstyle" | "limits" | "quad" | "qquad" | "rm" | "bf" | "it" | "enspace"
            | "thinspace" => {
                self.space = true;
            }
            "text" | "textbf" | "textit" | "textrm" | "textnormal" | "mbox" | "hbox" | "emph" | "texttt"
            | "textsf" => {
                return self.styled(true);
            }
            "mathrm" | "operatorname" | "mathbf" | "mathit" | "boldsymbol" | "mathsf" | "bm" => {
                return self.styled(false);
            }
            "lor" | "vee" => self.push(Token::Or),
            "land" | "wedge" => self.push(Token::And),
            "Omega" if matches!(self.out.last().map(|last| &last.token), Some(Token::Number(_))) => {
                self.push(Token::Text("ohm".into()));
            }
            "langle" => {
                self.open_list();
                self.push(Token::Sign('('));
            }
            "rangle" => {
                self.open.pop();
                self.push(Token::Sign(')'));
            }
            "mathbb" | "mathcal" => {
                let inner = self.group()?;
                self.push(Token::Letter(format!("\\mathbb{{{}}}", inner.trim())));
            }
            "begin" | "end" => {
                let inner = self.group()?;
                self.push(Token::Command(format!("{name} {}", inner.trim())));
            }
            _ => self.push(Token::Command(name)),
        }
        Some(())
    }

    /// Reads the text of the next group; braces inside must match.
    fn group(&mut self) -> Option<String> {
        while self.peek(0) == ' ' {
            self.at += 1;
        }
        if self.peek(0) != '{' {
            let one = self.peek(0);
            self.at += 1;
            return (one != '\0').then(|| one.to_string());
        }
        let (start, mut depth) = (self.at + 1, 0usize);
        while self.at < self.chars.len() {
            match self.peek(0) {
                '\\' => self.at += 1,
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(self.chars[start..self.at - 1].iter().collect());
            }
        }
        None
    }

    /// Reads `\text{…}` (`words`) or `\mathrm{…}`: connectors and mathematics are parsed, the rest is text.
    fn styled(&mut self, words: bool) -> Option<()> {
        let inner = self.group()?;
        let trimmed = inner.trim_matches(|c: char| c.is_whitespace() || matches!(c, ',' | '.' | ';'));
        if trimmed.is_empty() {
            if inner.contains([',', ';']) {
                self.push(Token::Sign(','));
            }
            self.space = true;
            return Some(());
        }
        if let Some(connector) = connector(trimmed) {
            self.push(connector);
            return Some(());
        }
        let latex = if words { super::words::phrase(trimmed) } else { None };
        let variable = matches!(self.out.last().map(|last| &last.token), Some(Token::Letter(_)));
        let infix = super::words::infix(trimmed).filter(|latex| variable || !latex.starts_with("\\in"));
        if let Some(latex) = latex.or(infix) {
            let tokens = lex(latex, self.group_commas, self.nested)?;
            self.out.extend(tokens);
            return Some(());
        }
        let prose = words && trimmed.chars().filter(char::is_ascii_alphabetic).count() > 1;
        if prose && !trimmed.contains(|c: char| c.is_ascii_digit() || c == '\\') {
            self.push(Token::Text(trimmed.to_string()));
            return Some(());
        }
        let after_number =
            matches!(self.out.last().map(|last| &last.token), Some(Token::Number(_) | Token::Sign('}')));
        if after_number && is_unit(trimmed) {
            // `5\,\mathrm{cm}`
            self.push(Token::Text(trimmed.to_string()));
            return Some(());
        }
        let inner_tokens = lex(&inner, self.group_commas, self.nested)?;
        let single_unit = words
            && inner_tokens.len() == 1
            && matches!(inner_tokens[0].token, Token::Letter(_))
            && !self.out.is_empty();
        if single_unit {
            // `5\text{ m}`: a unit, where `\text{E}` alone is a name.
            self.push(Token::Text(trimmed.to_string()));
        } else {
            self.space = true;
            self.out.extend(inner_tokens);
        }
        Some(())
    }
}
