//! Text to tokens: LaTeX commands, numbers with their separators, words and units.

/// Most tokens of an answer; a longer one is compared as text only.
const TOKENS_MAX: usize = 8192;

/// A token.
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
    /// `and`, `or`.
    Connector,
    /// Any other sign; `{` and `}` are LaTeX groups, `⦃` and `⦄` braces that show.
    Sign(char),
}

/// A token and whether white space stood before it.
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

/// Words after a number that are units, and the unit that they all mean.
pub(crate) const UNITS: [(&str, &str); 84] = [
    ("%", "%"),
    ("percent", "%"),
    ("pct", "%"),
    ("percentage", "%"),
    ("degrees", "deg"),
    ("degree", "deg"),
    ("deg", "deg"),
    ("mm", "mm"),
    ("millimeters", "mm"),
    ("cm", "cm"),
    ("centimeters", "cm"),
    ("centimeter", "cm"),
    ("centimetres", "cm"),
    ("m", "m"),
    ("meters", "m"),
    ("meter", "m"),
    ("metres", "m"),
    ("km", "km"),
    ("kilometers", "km"),
    ("kilometer", "km"),
    ("kilometres", "km"),
    ("in", "in"),
    ("inch", "in"),
    ("inches", "in"),
    ("ft", "ft"),
    ("foot", "ft"),
    ("feet", "ft"),
    ("yd", "yd"),
    ("yard", "yd"),
    ("yards", "yd"),
    ("mi", "mi"),
    ("mile", "mi"),
    ("miles", "mi"),
    ("mph", "mph"),
    ("kph", "kph"),
    ("g", "g"),
    ("gram", "g"),
    ("grams", "g"),
    ("kg", "kg"),
    ("kilograms", "kg"),
    ("kilogram", "kg"),
    ("lb", "lb"),
    ("lbs", "lb"),
    ("pound", "lb"),
    ("pounds", "lb"),
    ("oz", "oz"),
    ("ounce", "oz"),
    ("ounces", "oz"),
    ("s", "s"),
    ("sec", "s"),
    ("second", "s"),
    ("seconds", "s"),
    ("min", "min"),
    ("mins", "min"),
    ("minute", "min"),
    ("minutes", "min"),
    ("h", "h"),
    ("hr", "h"),
    ("hrs", "h"),
    ("hour", "h"),
    ("hours", "h"),
    ("day", "day"),
    ("days", "day"),
    ("week", "week"),
    ("weeks", "week"),
    ("month", "month"),
    ("months", "month"),
    ("year", "year"),
    ("years", "year"),
    ("cent", "cent"),
    ("cents", "cent"),
    ("dollar", "dollar"),
    ("dollars", "dollar"),
    ("liter", "l"),
    ("liters", "l"),
    ("litres", "l"),
    ("ml", "ml"),
    ("gallon", "gal"),
    ("gallons", "gal"),
    ("unit", "unit"),
    ("units", "unit"),
    ("square", "square"),
    ("cubic", "cubic"),
    ("radians", "rad"),
];

struct Lexer<'a> {
    chars: Vec<char>,
    at: usize,
    /// Depth of brackets that hold lists.
    depth: u32,
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
    // Text inside text inside text: nobody means that.
    *nested += 1;
    if *nested > 64 || text.len() > 16 * TOKENS_MAX {
        return None;
    }
    let mut lexer = Lexer {
        chars: text.chars().collect(),
        at: 0,
        depth: 0,
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
            '<' | '>' | '!' if self.peek(1) == '=' => {
                let name = match c {
                    '<' => "le",
                    '>' => "ge",
                    _ => "ne",
                };
                self.at += 2;
                self.push(Token::Command(name.into()));
            }
            _ => {
                match c {
                    '(' | '[' => self.depth += 1,
                    ')' | ']' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                }
                self.at += 1;
                self.push(Token::Sign(c));
            }
        }
        Some(())
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
        self.push(Token::Number(text));
    }

    /// The length of a thousands separator at this place, if three digits and no fourth follow.
    fn separator(&self, digits: &str, grouped: bool) -> Option<usize> {
        let ahead: String = (0..8).map(|k| self.peek(k)).collect();
        let comma = self.group_commas && self.depth == 0;
        let length = ["{,}", ",\\!", "\\,", "\\!", "{\\,}", ","]
            .into_iter()
            .find(|mark| ahead.starts_with(mark))
            .filter(|&mark| mark != "," || comma)
            .map(str::len)?;
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

    fn letters(&mut self) {
        let run: String = self.chars[self.at..].iter().take_while(|c| c.is_ascii_alphabetic()).collect();
        let after_number =
            matches!(self.out.last().map(|last| &last.token), Some(Token::Number(_) | Token::Sign('}')));
        if matches!(run.as_str(), "and" | "or") {
            self.at += run.len();
            return self.push(Token::Connector);
        }
        let unit = run.len() >= 2 && UNITS.iter().any(|&(name, _)| name == run);
        if unit && after_number && run != "min" {
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
                    self.depth += 1;
                    self.push(Token::Sign('⦃'));
                }
                '}' => {
                    self.depth = self.depth.saturating_sub(1);
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

    /// The text of the group that follows; braces inside must match.
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

    /// The contents of `\text{…}` (`words`) or `\mathrm{…}`: connectors and mathematics are read, the rest is text.
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
        if matches!(trimmed, "and" | "or") {
            self.push(Token::Connector);
            return Some(());
        }
        let prose = words && trimmed.chars().filter(char::is_ascii_alphabetic).count() > 1;
        if prose && !trimmed.contains(|c: char| c.is_ascii_digit() || c == '\\') {
            self.push(Token::Text(trimmed.to_string()));
            return Some(());
        }
        let inner = lex(&inner, self.group_commas, self.nested)?;
        let single_unit =
            words && inner.len() == 1 && matches!(inner[0].token, Token::Letter(_)) && !self.out.is_empty();
        if single_unit {
            // `5\text{ m}`: a unit, where `\text{E}` alone is a name.
            self.push(Token::Text(trimmed.to_string()));
        } else {
            self.space = true;
            self.out.extend(inner);
        }
        Some(())
    }
}
