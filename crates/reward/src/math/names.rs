//! Names of several capitals: segments, vectors, triangles, angles. Their letters are not factors.
//!
//! A triangle is its letters in their order: of two that are congruent or similar the order tells which sides
//! correspond, and an answer that asks for one triangle can repeat the order of the question.

use super::expr::Expr;
use super::lex::Token;
use super::parse::Parser;

/// Most letters of a name.
const LETTERS_MAX: usize = 8;

impl Parser {
    /// Reads the name after `\triangle`, `\overline` etc.: two or more capitals, or one after `\triangle` and `\angle`.
    pub(super) fn figure(&mut self, command: &str) -> Option<Expr> {
        let (letters, tokens) = self.capitals()?;
        let points = letters.iter().filter(|c| c.is_ascii_uppercase()).count();
        let plain = points == letters.len();
        let either_way = || {
            let turned: Vec<char> = letters.iter().rev().copied().collect();
            if plain && turned < letters { turned } else { letters.clone() }
        };
        let kind_and_letters = match (command, points) {
            // A segment is its length: AB.
            ("overline" | "bar", 2) if plain => {
                self.skip(tokens);
                let factors = letters.iter().map(|c| Expr::Symbol(c.to_string()));
                return Some(Expr::Product(factors.collect()));
            }
            ("overline" | "bar", 3..) => ("overline", letters),
            ("vec" | "overrightarrow", 2..) => ("vector", letters),
            ("overleftrightarrow", 2) => ("line", either_way()),
            ("widehat" | "overarc", 2..) => ("arc", either_way()),
            ("triangle", 3) => ("triangle", letters),
            ("angle" | "measuredangle", 3) => ("angle", either_way()),
            ("angle" | "measuredangle", 1) if plain => ("angle", letters),
            _ => return None,
        };
        self.skip(tokens);
        Some(Expr::Symbol(format!("{} {}", kind_and_letters.0, String::from_iter(kind_and_letters.1))))
    }

    /// Returns capitals with their primes, in braces or not, and the number of their tokens.
    fn capitals(&self) -> Option<(Vec<char>, usize)> {
        let braced = self.at_sign('{');
        let (mut letters, mut tokens) = (Vec::new(), usize::from(braced));
        while let Some(token) = self.ahead(tokens) {
            match token {
                Token::Letter(name) if name.len() == 1 && name.as_bytes()[0].is_ascii_uppercase() => {
                    letters.extend(name.chars());
                }
                Token::Text(name) if name.bytes().all(|b| b.is_ascii_uppercase()) => {
                    letters.extend(name.chars())
                }
                Token::Sign('\'') => letters.push('\''),
                _ => break,
            }
            tokens += 1;
            if letters.len() > LETTERS_MAX {
                return None;
            }
        }
        if braced && self.ahead(tokens) != Some(&Token::Sign('}')) {
            return None;
        }
        // `\angle A_1` has a separate name.
        let tokens = tokens + usize::from(braced);
        (!letters.is_empty() && self.ahead(tokens) != Some(&Token::Sign('_'))).then_some((letters, tokens))
    }
}
