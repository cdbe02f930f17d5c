//! Intervals as many countries write them, with brackets turned outwards: `]1,2]` is `(1,2]`, `[0,1[` is `[0,1)`.

use super::lex::{Spaced, Token};

/// Most tokens of an interval.
const TOKENS_MAX: usize = 64;

/// Replaces brackets that are turned outwards by round ones.
pub(super) fn plain_intervals(tokens: &mut [Spaced]) {
    for open in 0..tokens.len() {
        let Token::Sign(mark @ ('[' | ']')) = tokens[open].token else { continue };
        let begins = open.checked_sub(1).is_none_or(|before| !ends_value(&tokens[before].token));
        if !begins {
            continue;
        }
        let Some((close, end)) = close_of(tokens, open) else { continue };
        if mark == '[' && end == ']' {
            continue;
        }
        if tokens.get(close + 1).is_some_and(|next| begins_value(&next.token)) {
            continue;
        }
        let round = |mark: char, turned: char, round: char| if mark == turned { round } else { mark };
        tokens[open].token = Token::Sign(round(mark, ']', '('));
        tokens[close].token = Token::Sign(round(end, '[', ')'));
    }
}

/// Returns the bracket that closes the pair that opens at `open`, and its mark.
fn close_of(tokens: &[Spaced], open: usize) -> Option<(usize, char)> {
    let (mut depth, mut commas) = (0u32, 0);
    for (at, spaced) in tokens.iter().enumerate().skip(open + 1).take(TOKENS_MAX) {
        let Token::Sign(mark) = spaced.token else { continue };
        match mark {
            '(' | '{' | '\u{2983}' => depth += 1,
            ')' | '}' | '\u{2984}' if depth == 0 => return None,
            ')' | '}' | '\u{2984}' => depth -= 1,
            ',' | ';' if depth == 0 => commas += 1,
            '[' | ']' if depth == 0 => return (commas == 1).then_some((at, mark)),
            _ => {}
        }
    }
    None
}

/// True if a value may end with this token, so that a bracket after it closes something, or belongs to it.
fn ends_value(token: &Token) -> bool {
    match token {
        Token::Number(_) | Token::Letter(_) | Token::Text(_) => true,
        Token::Sign(mark) => matches!(mark, ')' | ']' | '}' | '\u{2984}' | '!' | '%' | '\'' | '_' | '^'),
        Token::Command(name) => !matches!(
            name.as_str(),
            "cup" | "bigcup" | "cap" | "bigcap" | "setminus" | "backslash" | "in" | "equiv" | "to"
        ),
        Token::And | Token::Or => false,
    }
}

/// True if a value begins with this token.
fn begins_value(token: &Token) -> bool {
    match token {
        Token::Number(_) | Token::Letter(_) | Token::Text(_) => true,
        Token::Sign(mark) => matches!(mark, '(' | '[' | '{' | '\u{2983}'),
        Token::Command(name) => matches!(name.as_str(), "frac" | "dfrac" | "sqrt" | "pi" | "infty"),
        Token::And | Token::Or => false,
    }
}
