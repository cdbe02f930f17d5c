//! Tells words of a language from words and names of formulas.

use super::units::UNITS;

/// True if the text is an answer and nothing else: no sentence around it.
pub(super) fn is_bare(text: &str) -> bool {
    let text = text.trim();
    if text.len() > 4000 {
        return false;
    }
    let words = prose_words(text);
    let mathematics = text.contains('$')
        || text.contains("\\(")
        || text.contains("\\[")
        || text.contains(|c: char| c.is_ascii_digit());
    words == 0 || (words <= 3 && !mathematics)
}

/// Counts words outside commands and their text arguments, except units, connectors, function names and capitals.
pub(super) fn prose_words(text: &str) -> usize {
    let mut count = 0;
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_alphabetic() || c == '\\') {
        let before = rest[..at].chars().next_back();
        rest = &rest[at..];
        if rest.starts_with('\\') {
            rest = after_command(rest);
            continue;
        }
        let end = rest.find(|c: char| !c.is_alphabetic() && c != '\'').unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        let next = tail.chars().next();
        rest = tail;
        let attached = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit() || matches!(c, '_' | '^'));
        if word.chars().count() >= 2 && !is_known(word) && !attached(before) && !attached(next) {
            count += 1;
        }
    }
    count
}

/// True for words that formulas have: connectors, functions, units and names of capitals.
pub(super) fn is_known(word: &str) -> bool {
    let capitals = word.len() <= 4 && word.chars().all(char::is_uppercase);
    let named = matches!(
        word,
        "and" | "or" | "sin" | "cos" | "tan" | "log" | "exp" | "sqrt" | "gcd" | "lcm" | "max" | "pi"
    );
    let differential =
        matches!(word, "dx" | "dy" | "dz" | "dt" | "du" | "dv" | "dr" | "ds" | "dA" | "dV" | "dS");
    capitals || named || differential || UNITS.iter().any(|&(name, _)| name == word)
}

/// Returns the text after a command and, for text commands and environments, after their group.
pub(super) fn after_command(text: &str) -> &str {
    let name_end = text[1..].find(|c: char| !c.is_ascii_alphabetic()).map_or(text.len(), |at| at + 1);
    let name = &text[1..name_end];
    if name.is_empty() {
        let skip = text[1..].chars().next().map_or(0, char::len_utf8);
        return &text[1 + skip..];
    }
    let rest = &text[name_end..];
    let grouped = name.starts_with("text")
        || matches!(name, "mbox" | "hbox" | "mathrm" | "operatorname" | "begin" | "end" | "mathbf");
    match (grouped, rest.starts_with('{'), rest.find('}')) {
        (true, true, Some(end)) => &rest[end + 1..],
        _ => rest,
    }
}
