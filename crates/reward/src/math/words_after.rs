//! Words after a value: units, which are noted with their powers, and words that make the value another.

use super::expr::Expr;
use super::lex::Token;
use super::parse::Parser;
use super::units::Unit;

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
