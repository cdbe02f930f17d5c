//! Numbers in a text, each read whole: with its separators, its fraction, its exponent, or as no number at all.

use std::fmt;

/// Longest number in characters; a longer one is no answer.
const NUMBER_CHARS_MAX: usize = 200;
/// Most signs, currency marks, asterisks and spaces between the start of a number and its digits.
const MARKS_MAX: usize = 8;
/// Most places of a fraction that is written as a decimal.
const PLACES_MAX: usize = 40;
/// Separators between the groups of a number's digits.
const SEPARATORS: [&str; 11] =
    [",\\!", "{,}", "\\,", "\\!", ",", "'", "_", " ", "\u{a0}", "\u{202f}", "\u{2009}"];
/// Words after a number that multiply it, and their zeros.
const SCALES: [(&str, usize); 5] =
    [("hundred", 2), ("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12)];

/// Says what a text says where a number is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Number(Decimal),
    /// A fraction in lowest terms that no decimal equals.
    Fraction(bool, u128, u128),
    /// A time, a power, a list, an expression: no number, and equal only to the same text.
    Other(String),
}

/// A decimal number in one form: no leading or trailing zeros, no sign on zero.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    negative: bool,
    whole: String,
    fraction: String,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Said::Number(Decimal { negative, whole, fraction }) => {
                let (sign, point) =
                    (if *negative { "-" } else { "" }, if fraction.is_empty() { "" } else { "." });
                let whole = if whole.is_empty() { "0" } else { whole };
                write!(f, "{sign}{whole:.40}{point}{fraction:.40}")
            }
            Said::Fraction(negative, above, below) => {
                write!(f, "{}{above}/{below}", if *negative { "-" } else { "" })
            }
            Said::Other(text) => write!(f, "`{text:.40}`, which is no number"),
        }
    }
}

impl Decimal {
    /// Makes a decimal of digits; the last `places` of them are after the point.
    fn new(negative: bool, digits: &str, places: usize) -> Decimal {
        let padded = format!("{}{digits}", "0".repeat((places + 1).saturating_sub(digits.len())));
        let (whole, fraction) = padded.split_at(padded.len() - places);
        let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
        let negative = negative && !(whole.is_empty() && fraction.is_empty());
        Decimal { negative, whole: whole.into(), fraction: fraction.into() }
    }
}

/// Where the digits of other scripts begin: Arabic, Persian, Devanagari, Bengali, Thai.
const ZEROS: [u32; 5] = [0x660, 0x6f0, 0x966, 0x9e6, 0xe50];
/// Digits of mathematics, bold to monospaced: five rows of ten.
const MATHEMATICAL: std::ops::RangeInclusive<u32> = 0x1d7ce..=0x1d7ff;

/// Returns the characters of a text, those of full width, digits of other scripts and slashes of fractions as ASCII.
pub(super) fn plain_digits(text: &str) -> Vec<char> {
    let digit = |value: u32| char::from_digit(value, 10);
    let other = |c: char| {
        let code = c as u32;
        let script = ZEROS.iter().find_map(|zero| code.checked_sub(*zero).filter(|value| *value < 10));
        let mathematical = || MATHEMATICAL.contains(&code).then(|| (code - MATHEMATICAL.start()) % 10);
        script.or_else(mathematical).and_then(digit).unwrap_or(c)
    };
    let plain = |c: char| match c {
        '\u{2044}' | '\u{2215}' => '/',
        '\u{66b}' => '.',
        '\u{66c}' => ',',
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(c as u32 - 0xfee0).unwrap_or(c),
        '\u{2212}' | '\u{2013}' => '-',
        c if c.is_ascii() => c,
        c => other(c),
    };
    text.chars().map(plain).collect()
}

/// Returns what a text says at each number. `whole`: an operation on numbers is one text, no number.
pub(super) fn numbers(chars: &[char], whole: bool) -> impl Iterator<Item = Said> {
    let text = Text { chars, whole };
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < chars.len() {
            if let Some((said, end)) = text.said_at(at) {
                at = end;
                return Some(said);
            }
            at += text.skipped(at);
        }
        None
    })
}

struct Text<'t> {
    chars: &'t [char],
    whole: bool,
}

/// Digits as they are written, without separators.
struct Digits {
    text: String,
    places: usize,
    end: usize,
}

impl Text<'_> {
    fn at(&self, i: usize) -> char {
        self.chars.get(i).copied().unwrap_or(' ')
    }

    fn digit(&self, i: usize) -> bool {
        self.at(i).is_ascii_digit()
    }

    fn is(&self, i: usize, text: &str) -> bool {
        text.chars().enumerate().all(|(k, c)| self.chars.get(i + k) == Some(&c))
    }

    /// Returns how much of the text no number begins in: exponents and indices with their digits, else one character.
    fn skipped(&self, i: usize) -> usize {
        if matches!(self.at(i), '^' | '_') && i + 1 < self.chars.len() {
            let brace = usize::from(self.at(i + 1) == '{');
            let sign = usize::from(self.at(i + 1 + brace) == '-');
            let digits = (i + 1 + brace + sign..self.chars.len()).take_while(|&k| self.digit(k)).count();
            return 1 + if digits > 0 { brace + sign + digits } else { 0 };
        }
        1
    }

    /// Reads the number that starts at `start` (a sign, a digit, a point before one, or a fraction's command). Also
    /// returns the index after it.
    fn said_at(&self, start: usize) -> Option<(Said, usize)> {
        let mut i = start;
        let before = if start == 0 { ' ' } else { self.chars[start - 1] };
        let negative = self.at(i) == '-';
        if negative {
            // In `7-2` the sign is a subtraction.
            if before.is_alphanumeric() || before == ')' {
                return None;
            }
            i += 1;
        }
        // Bounded: each of a megabyte of currency marks would read all those after it.
        while i < start + MARKS_MAX
            && (matches!(self.at(i), '$' | '€' | '£' | '¥' | '*')
                || (self.at(i) == '\\' && self.at(i + 1) == '$')
                || (i > start && self.at(i) == ' '))
        {
            i += 1;
        }
        if self.is(i, "\\sqrt") {
            let end = self.expression_end(i);
            return Some((self.other(start, end), end));
        }
        if self.at(i) == '\\' {
            let (above, below, end) = self.fraction_command(i)?;
            return Some(self.ended(start, (fraction(negative, &above, &below), end)));
        }
        // A sign or currency mark counts only with its number; digits start one at their first.
        let point = self.at(i) == '.' && self.digit(i + 1) && !before.is_ascii_digit();
        if !(self.digit(i) || point) {
            return None;
        }
        let digits = self.digits(i)?;
        let found = match digits {
            Ok(digits) => self.number(negative, digits),
            Err(end) => (self.other(start, end), end),
        };
        Some(self.ended(start, found))
    }

    fn other(&self, start: usize, end: usize) -> Said {
        let text = &self.chars[start..end.min(start + NUMBER_CHARS_MAX).min(self.chars.len())];
        Said::Other(text.iter().filter(|c| !matches!(c, ' ' | '$' | '*')).collect())
    }

    /// Reads digits with separators and one point; an error is the end of what only looks like a number.
    fn digits(&self, start: usize) -> Option<Result<Digits, usize>> {
        let (mut i, mut text, mut group, mut grouped, mut right) = (start, String::new(), 0, false, true);
        loop {
            if self.digit(i) {
                (group, i) = (group + 1, i + 1);
                text.push(self.at(i - 1));
                continue;
            }
            let mark = SEPARATORS.into_iter().find(|mark| self.is(i, mark));
            let Some(mark) = mark.filter(|_| group > 0) else { break };
            let next = i + mark.chars().count();
            let three = (0..3).all(|k| self.digit(next + k)) && !self.digit(next + 3);
            let placed = if grouped { group == 3 } else { group <= 3 };
            if three && placed && !(mark == " " && self.at(next + 3) == '/') {
                (i, group, grouped) = (next, 0, true);
            } else if mark == "," && self.digit(next) {
                // `12,5`: a decimal comma, or a list; either way not the number 12.
                (i, group, grouped, right) = (next, 0, true, false);
            } else {
                break;
            }
        }
        let mut places = 0;
        while self.at(i) == '.' && self.digit(i + 1) {
            right &= places == 0;
            i += 1;
            while self.digit(i) {
                text.push(self.at(i));
                (places, i) = (places + 1, i + 1);
            }
        }
        right &= i - start <= NUMBER_CHARS_MAX;
        Some(if right { Ok(Digits { text, places, end: i }) } else { Err(i) })
    }

    /// Returns the number that digits and what follows them make.
    fn number(&self, negative: bool, digits: Digits) -> (Said, usize) {
        let Digits { text, places, end } = digits;
        let decimal = |places| Said::Number(Decimal::new(negative, &text, places));
        // `2 1/2`, `2\frac{1}{2}`, `1/2`
        let whole_part = (places == 0).then_some(text.as_str());
        let mixed = end + usize::from(self.at(end) == ' ');
        if let (Some(whole), Some((above, below, end))) = (
            whole_part,
            self.fraction_command(mixed).or_else(|| self.plain_fraction(mixed).filter(|_| mixed > end)),
        ) {
            return (mixed_number(negative, whole, &above, &below), end);
        }
        if let Some(below) = self.below(end).filter(|_| places == 0) {
            return (fraction(negative, &text, &below.text), below.end);
        }
        // `1.5e3`
        let sign = usize::from(matches!(self.at(end + 1), '+' | '-'));
        if matches!(self.at(end), 'e' | 'E') && self.digit(end + 1 + sign) {
            let from = end + 1 + sign;
            let digits: String =
                (from..from + 4).map(|k| self.at(k)).take_while(char::is_ascii_digit).collect();
            let stop = from + (from..self.chars.len()).take_while(|&k| self.digit(k)).count();
            let exponent = digits.parse::<usize>().unwrap_or(usize::MAX);
            if exponent > NUMBER_CHARS_MAX || stop - from > 3 {
                return (self.other(end - 1, stop), stop);
            }
            return match self.at(end + 1) {
                '-' => (decimal(places + exponent), stop),
                _ => (Said::Number(scaled(negative, &text, places, exponent)), stop),
            };
        }
        let after = end + usize::from(self.at(end) == ' ');
        let scale = SCALES.iter().find(|(word, _)| {
            let stop = after + word.len() + usize::from(self.at(after + word.len()) == 's');
            after > end && self.is(after, word) && !self.at(stop).is_alphabetic()
        });
        if let Some((word, zeros)) = scale {
            return (Said::Number(scaled(negative, &text, places, *zeros)), after + word.len());
        }
        if after > end && self.is(after, "dozen") && places == 0 {
            let dozens = text.parse::<u128>().ok().and_then(|n| n.checked_mul(12));
            let number = dozens.map(|n| Said::Number(Decimal::new(negative, &n.to_string(), 0)));
            return (number.unwrap_or(Said::Other(text.clone())), after + "dozen".len());
        }
        (decimal(places), end)
    }

    /// Returns the digits after a slash at `i`.
    fn below(&self, i: usize) -> Option<Digits> {
        let found = (self.at(i) == '/' && self.digit(i + 1)).then(|| self.digits(i + 1))??.ok()?;
        (found.places == 0).then_some(found)
    }

    /// Reads `1/2`.
    fn plain_fraction(&self, i: usize) -> Option<(String, String, usize)> {
        let length = (i..i + 8).take_while(|&k| self.digit(k)).count();
        let below = (length > 0).then(|| self.below(i + length))??;
        Some((self.chars[i..i + length].iter().collect(), below.text, below.end))
    }

    /// Reads `\frac{1}{2}`, `\dfrac12`.
    fn fraction_command(&self, i: usize) -> Option<(String, String, usize)> {
        let name = ["\\frac", "\\dfrac", "\\tfrac", "\\cfrac"].into_iter().find(|name| self.is(i, name))?;
        let argument = |i: usize| {
            let i = i + usize::from(self.at(i) == ' ');
            if self.at(i) != '{' {
                return self.digit(i).then(|| (self.at(i).to_string(), i + 1));
            }
            let digits: String =
                (i + 1..i + 40).map(|k| self.at(k)).take_while(char::is_ascii_digit).collect();
            let end = i + 1 + digits.len();
            (!digits.is_empty() && self.at(end) == '}').then_some((digits, end + 1))
        };
        let (above, end) = argument(i + name.len())?;
        let (below, end) = argument(end)?;
        Some((above, below, end))
    }

    /// Takes what makes the number before it another: a power, a time, an operation.
    fn ended(&self, start: usize, (said, end): (Said, usize)) -> (Said, usize) {
        let spaces = (end..end + 3).take_while(|&k| self.at(k) == ' ' && k < self.chars.len()).count();
        let next = end + spaces;
        let root = self.is(next, "\\sqrt") || self.is(next, "\\pi");
        let sign = matches!(self.at(end), '^' | ':' | '/') && (self.digit(end + 1) || self.at(end) == '^');
        let power = self.is(end, "**") && self.digit(end + 2);
        let exponent = matches!(
            self.at(end),
            '\u{b2}' | '\u{b3}' | '\u{b9}' | '\u{2070}'..='\u{207f}' | '\u{bc}'..='\u{be}' | '\u{2150}'..='\u{215e}' | 'π' | '√'
        );
        if root || sign || power || exponent {
            let stop = self.expression_end(end);
            return (self.other(start, stop), stop);
        }
        if self.whole && self.operation(next).is_some() {
            let stop = self.expression_end(end);
            let equals = stop + usize::from(self.at(stop) == ' ');
            if self.at(equals) != '=' {
                return (self.other(start, stop), stop);
            }
            // `30+12 = 42`: the value is after the last sign.
            let rest = &self.chars[equals + 1..];
            let line =
                &rest[..rest.iter().position(|&c| c == '\n').unwrap_or(rest.len()).min(NUMBER_CHARS_MAX)];
            let value = numbers(line, false).last();
            return value.map_or((self.other(start, stop), stop), |value| (value, self.chars.len()));
        }
        (said, end)
    }

    /// Returns the index of the number after an operation at `i`.
    fn operation(&self, i: usize) -> Option<usize> {
        let names = ["\\times", "\\cdot", "\\div", "+", "-", "*", "/", "x", "\u{d7}", "\u{f7}", "\u{b7}"];
        let name = names.into_iter().find(|name| self.is(i, name))?;
        let from = i + name.chars().count();
        let spaces = (from..from + 3).take_while(|&k| self.at(k) == ' ').count();
        let opens = usize::from(self.at(from + spaces) == '(');
        self.digit(from + spaces + opens).then_some(from + spaces + opens)
    }

    /// Returns the end of an expression that goes on at `i`.
    fn expression_end(&self, i: usize) -> usize {
        let mut end = i;
        while end < i + NUMBER_CHARS_MAX && end < self.chars.len() {
            let c = self.at(end);
            if let Some(next) = self.operation(end) {
                end = next;
                continue;
            }
            let first = end == i && c != ' ';
            let inside = c.is_ascii_digit() || matches!(c, '^' | '{' | '}' | '(' | ')' | '_');
            let joint = matches!(c, '.' | ',' | ':' | '/') && self.digit(end + 1);
            let space = c == ' ' && self.operation(end + 1).is_some();
            let command = ["\\sqrt", "\\pi"].iter().any(|name| self.is(end, name));
            let name = c.is_alphabetic() && self.chars[i..end].contains(&'\\');
            if !(first || inside || joint || space || command || name) {
                break;
            }
            end += 1;
        }
        end
    }
}

/// Returns the number with `zeros` more of them.
fn scaled(negative: bool, digits: &str, places: usize, zeros: usize) -> Decimal {
    let more = zeros.saturating_sub(places);
    Decimal::new(negative, &format!("{digits}{}", "0".repeat(more)), places.saturating_sub(zeros))
}

fn mixed_number(negative: bool, whole: &str, above: &str, below: &str) -> Said {
    let whole_part = || {
        let (whole, above, below) =
            (whole.parse::<u128>().ok()?, above.parse::<u128>().ok()?, below.parse::<u128>().ok()?);
        whole.checked_mul(below)?.checked_add(above)
    };
    match whole_part() {
        Some(sum) => fraction(negative, &sum.to_string(), below),
        None => Said::Other(format!("{whole} {above}/{below}")),
    }
}

/// Returns a quotient as a decimal where one equals it, else in lowest terms.
fn fraction(negative: bool, above: &str, below: &str) -> Said {
    let other = || Said::Other(format!("{above}/{below}"));
    let (Ok(a), Ok(b)) = (above.parse::<u128>(), below.parse::<u128>()) else { return other() };
    if b == 0 {
        return other();
    }
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    let (a, b) = (a / x, b / x);
    let (mut digits, mut rest, mut places) = ((a / b).to_string(), a % b, 0);
    while rest != 0 && places < PLACES_MAX {
        let Some(ten) = rest.checked_mul(10) else { return Said::Fraction(negative, a, b) };
        digits.push_str(&(ten / b).to_string());
        (rest, places) = (ten % b, places + 1);
    }
    if rest != 0 {
        return Said::Fraction(negative, a, b);
    }
    Said::Number(Decimal::new(negative, &digits, places))
}
