//! Mixed numbers: a whole number and the proper fraction after it are one value, to which a sign after them belongs.

use super::expr::Expr;
use super::lex::Token;
use super::parse::Parser;

impl Parser {
    /// Takes the proper fraction right after a whole number: `2\frac{1}{3}`, `2\frac13`, `2{1\over 3}`, `2 1/3`.
    pub(super) fn mixed(&mut self, whole: &Expr) -> Option<Expr> {
        let Expr::Number(whole) = whole else { return None };
        let (above, below, length) = self.fraction_ahead()?;
        let is_mixed = match (whole.parse::<u64>(), above.parse::<u64>(), below.parse::<u64>()) {
            (Ok(_), Ok(above), Ok(below)) => above < below,
            _ => false,
        };
        let number = |digits: &str| Box::new(Expr::Number(digits.into()));
        let fraction = is_mixed.then(|| Expr::Quotient(number(above), number(below)))?;
        self.skip(length);
        Some(fraction)
    }

    /// Returns the two numbers of the fraction ahead, and how many tokens it has.
    fn fraction_ahead(&self) -> Option<(&str, &str, usize)> {
        let number = |at: usize| match self.ahead(at) {
            Some(Token::Number(text)) => Some((text.as_str(), at + 1)),
            Some(Token::Sign('{')) => match (self.ahead(at + 1), self.ahead(at + 2)) {
                (Some(Token::Number(text)), Some(Token::Sign('}'))) => Some((text.as_str(), at + 3)),
                _ => None,
            },
            _ => None,
        };
        let over = |at: usize| match self.ahead(at) {
            Some(Token::Sign('/')) => true,
            Some(Token::Command(name)) => name == "over",
            _ => false,
        };
        Some(match self.ahead(0)? {
            Token::Command(name)
                if matches!(name.as_str(), "frac" | "dfrac" | "tfrac" | "cfrac" | "sfrac") =>
            {
                match number(1)? {
                    (digits, 2) if digits.len() == 2 => (&digits[..1], &digits[1..], 2),
                    (digits, 2) if digits.len() > 2 => return None,
                    (above, at) => number(at)
                        .filter(|(below, end)| *end == at + 3 || below.len() == 1)
                        .map(|(below, end)| (above, below, end))?,
                }
            }
            Token::Sign('{') if over(2) && self.ahead(4) == Some(&Token::Sign('}')) => {
                (number(1)?.0, number(3)?.0, 5)
            }
            // `1/2 1/3` are two fractions.
            Token::Number(above) if self.space_before() && self.ahead(1) == Some(&Token::Sign('/')) => {
                let divides = self.earlier() == Some(&Token::Sign('/'));
                (above.as_str(), number(2).filter(|(_, end)| *end == 3 && !divides)?.0, 3)
            }
            _ => return None,
        })
    }
}
