//! Units that are written as a fraction after a number.

use super::lex::{Spaced, Token};
use std::ops::Range;

/// Most tokens of a unit above or below the line.
const UNIT_TOKENS_MAX: usize = 24;

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
