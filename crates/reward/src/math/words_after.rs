//! Words after a value: units, which are noted with their powers, and words that make the value another.

use super::expr::Expr;
use super::lex::{Spaced, Token};
use super::parse::Parser;
use super::units::Unit;
use std::ops::Range;

/// Most tokens of a unit above or below the line.
const UNIT_TOKENS_MAX: usize = 24;

/// Words after a value that make it another, or none.
const CHANGING: [&str; 39] = [
    "is",
    "was",
    "are",
    "wrong",
    "incorrect",
    "false",
    "but",
    "nor",
    "unless",
    "maybe",
    "perhaps",
    "could",
    "might",
    "may",
    "not",
    "no",
    "or",
    "and",
    "than",
    "least",
    "most",
    "more",
    "less",
    "except",
    "either",
    "times",
    "plus",
    "minus",
    "million",
    "billion",
    "thousand",
    "hundred",
    "to",
    "dozen",
    "if",
    "when",
    "where",
    "for",
    "only",
];

impl Parser {
    /// Drops words after a value, unless they change it.
    pub(super) fn units(&mut self, value: Expr) -> Option<Expr> {
        if matches!(value, Expr::Text(_)) {
            return None;
        }
        let (mut percent, mut unit) = (false, Unit::default());
        while let Some(Token::Text(text)) = self.peek().cloned() {
            let lower = text.to_lowercase();
            let words: Vec<&str> =
                lower.split(|c: char| !c.is_alphanumeric() && c != '%').filter(|w| !w.is_empty()).collect();
            if words.iter().any(|word| CHANGING.contains(word)) || words.len() > 6 {
                return None;
            }
            // `5 squared` is 25, `5 m squared` an area.
            if unit.is_empty() && matches!(words.first(), Some(&("squared" | "cubed"))) {
                return None;
            }
            match lower.trim() {
                "a.m." | "am" | "a.m" => self.note_unit("am".into()),
                "p.m." | "pm" | "p.m" => self.note_unit("pm".into()),
                _ => unit.words(&text),
            }
            percent |= words.iter().any(|word| matches!(*word, "%" | "percent" | "pct" | "percentage"));
            self.skip(1);
            // `\text{ cm}^2`, `\text{m}/\text{s}`
            if self.at_sign('^') && self.ahead(1).is_some() {
                self.skip(1);
                match self.deeper(Parser::script)? {
                    Expr::Number(power) => unit.power(power.parse().ok()?),
                    Expr::Neg(power) => {
                        let Expr::Number(power) = *power else { return None };
                        unit.power(-power.parse::<i32>().ok()?);
                    }
                    _ => {}
                }
            }
            if self.at_sign('/') && matches!(self.ahead(1), Some(Token::Text(_))) {
                self.skip(1);
                unit.words("/");
            }
        }
        if let Some(unit) = unit.spelling() {
            self.note_unit(unit);
        }
        Some(if percent { Expr::Percent(Box::new(value)) } else { value })
    }

    fn note_unit(&mut self, unit: String) {
        self.mixed_units |= self.unit.as_ref().is_some_and(|known| *known != unit);
        self.unit.get_or_insert(unit);
    }
}

/// Writes `\frac{\text{m}}{\text{s}^2}` after a number as `\text{m}/\text{s}^2`.
pub(super) fn unit_fractions(tokens: &mut Vec<Spaced>) {
    let is_fraction = |token: &Token| matches!(token, Token::Command(name) if matches!(name.as_str(), "frac" | "dfrac" | "tfrac"));
    let mut at = 1;
    while at < tokens.len() {
        let after_number = matches!(tokens[at - 1].token, Token::Number(_) | Token::Sign('}'));
        let groups = (after_number && is_fraction(&tokens[at].token)).then(|| {
            let above = unit_group(tokens, at + 1)?;
            let below = unit_group(tokens, above.end + 1)?;
            let single =
                tokens[below.clone()].iter().filter(|t| matches!(t.token, Token::Text(_))).count() == 1;
            single.then_some((above, below))
        });
        if let Some((above, below)) = groups.flatten() {
            let end = below.end + 1;
            let slash = Spaced { token: Token::Sign('/'), space: false };
            let unit: Vec<Spaced> =
                tokens[above].iter().cloned().chain([slash]).chain(tokens[below].iter().cloned()).collect();
            tokens.splice(at..end, unit);
        }
        at += 1;
    }
}

/// Returns the tokens within the braces that open at `open`, if they are text with powers.
fn unit_group(tokens: &[Spaced], open: usize) -> Option<Range<usize>> {
    if tokens.get(open)?.token != Token::Sign('{') || !matches!(tokens.get(open + 1)?.token, Token::Text(_)) {
        return None;
    }
    let mut depth = 0;
    for (at, spaced) in tokens.iter().enumerate().skip(open + 1).take(UNIT_TOKENS_MAX) {
        match &spaced.token {
            Token::Sign('}') if depth == 0 => return Some(open + 1..at),
            Token::Sign('}') => depth -= 1,
            Token::Sign('{') => depth += 1,
            Token::Text(_) | Token::Number(_) | Token::Sign('^' | '-') => {}
            _ => return None,
        }
    }
    None
}
