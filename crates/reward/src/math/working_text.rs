//! The working before a number in a sentence: `the total is 12 + 30 = 42` means the same as the equation alone.

/// Farthest that working reaches before its number.
const WORKING_CHARS_MAX: usize = 160;
/// Words that are part of the working: after them comes only its rest.
const PARTS: [&str; 12] =
    ["times", "plus", "minus", "of", "by", "over", "and", "squared", "divided", "less", "to", "half"];

/// Returns the sides of an equation of numbers that ends at `start`, with their signs of equality.
///
/// `whole`: the text begins here. Where the first side may be only the end of one, as in `x + 3 = 8`, it is left out;
/// nothing is returned where none is left.
pub(super) fn with_working(chars: &[char], start: usize, whole: bool) -> Option<String> {
    let mut from = start;
    while from > 0 && matches!(chars[from - 1], ' ' | '$' | '*') {
        from -= 1;
    }
    if from == 0 || chars[from - 1] != '=' {
        return None;
    }
    while let Some(length) = taken_before(chars, from) {
        from -= length;
        if start - from > WORKING_CHARS_MAX {
            return None;
        }
    }
    let text: String = chars[from..start].iter().filter(|c| **c != '$').collect();
    let mut sides: Vec<&str> = text.split('=').collect();
    // What follows the last sign is white space before the number.
    sides.pop();
    let first = unlisted(sides.first()?);
    if is_side(first) && begins(chars, from, whole) {
        sides[0] = first;
    } else {
        sides.remove(0);
    }
    let known = !sides.is_empty() && sides.iter().all(|side| side.contains(|c: char| c.is_ascii_digit()));
    known.then(|| sides.iter().map(|side| format!("{} = ", side.trim())).collect())
}

/// Returns the length of the part of an equation that ends at `end`.
fn taken_before(chars: &[char], end: usize) -> Option<usize> {
    let last = *chars[..end].last()?;
    let before = |k: usize| end.checked_sub(k).map(|at| chars[at]);
    let next = chars[end..].iter().find(|c| **c != ' ').copied();
    let digit_next = chars.get(end).is_some_and(char::is_ascii_digit);
    match last {
        '0'..='9' => {
            // Two numbers with nothing between them belong to two sentences.
            let apart = chars.get(end) == Some(&' ') && next.is_some_and(|c| c.is_ascii_digit());
            (!apart).then_some(1)
        }
        '+' | '-' | '*' | '/' | '(' | ')' | '^' | '!' | '%' | '=' | ' ' | '$' => Some(1),
        '.' | ',' if digit_next => before(2).filter(|c| last == '.' || c.is_ascii_digit()).map(|_| 1),
        'x' if before(2) == Some(' ')
            && chars.get(end) == Some(&' ')
            && next.is_some_and(|c| c.is_ascii_digit()) =>
        {
            let earlier = chars[..end - 2].iter().rev().find(|c| **c != ' ');
            earlier.is_some_and(|c| c.is_ascii_digit()).then_some(1)
        }
        _ => ["\\times", "\\cdot", "\\div"].into_iter().find_map(|name| {
            let ends = chars[..end].iter().rev().copied().zip(name.chars().rev());
            (end >= name.len() && ends.take(name.len()).all(|(a, b)| a == b)).then_some(name.len())
        }),
    }
}

/// True if the first side begins at `from`: at a line's start, after a mark, or after a word that is not part of it.
fn begins(chars: &[char], from: usize, whole: bool) -> bool {
    let before: Vec<char> = chars[..from].iter().rev().take(16).copied().collect();
    let Some(&last) = before.first() else { return whole };
    if !last.is_alphabetic() {
        return matches!(last, '\n' | ':' | ';' | '.' | '!' | '?' | '"' | ',');
    }
    let word: String = before.iter().take_while(|c| c.is_alphabetic()).collect();
    let mark = before.get(word.chars().count()).copied();
    let word: String = word.chars().rev().collect::<String>().to_lowercase();
    word.chars().count() >= 2 && mark != Some('\\') && !PARTS.contains(&word.as_str())
}

/// Returns a side without a list or bold mark before it, and without a bracket that closes after the equation.
fn unlisted(side: &str) -> &str {
    let side = side.trim_start_matches([' ', '*']);
    let side = side.strip_prefix("- ").unwrap_or(side);
    let count = |c: char| side.matches(c).count();
    if count('(') == count(')') + 1 { side.strip_prefix('(').unwrap_or(side) } else { side }
}

/// True for an operation on numbers with matching brackets; a number alone may be the end of `6 times 7`.
fn is_side(side: &str) -> bool {
    let side = side.trim();
    let depth = side.chars().try_fold(0i32, |depth, c| match c {
        '(' => Some(depth + 1),
        ')' => (depth > 0).then_some(depth - 1),
        _ => Some(depth),
    });
    let operation = side
        .char_indices()
        .any(|(at, c)| at > 0 && matches!(c, '+' | '-' | '*' | '/' | '^' | '!' | '%' | 'x' | '\\'));
    depth == Some(0)
        && operation
        && side.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '(' | '-' | '.'))
}
