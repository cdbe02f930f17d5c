//! Conditions of branches by the values that a script sets: `[ "$A" = "1" ]`, `[[ -n $A && $B == x* ]]`, `case $A in`.
//! A result is true, false or, where a part is not known, nothing.

use super::word::Word;

/// The commands between `if` and `then`.
#[derive(Default)]
pub(super) struct Condition {
    /// The result up to now; `None` before the first command.
    pub result: Option<Option<bool>>,
    /// The operator before the next command.
    joint: Joint,
    /// True within `[[ a && b ]]`, which the reader splits.
    is_open: bool,
    /// True once it holds what is not evaluated.
    is_beyond: bool,
    /// True if it asks for a kind of machine that is not supported.
    pub is_elsewhere: bool,
}

#[derive(Clone, Copy, Default)]
enum Joint {
    #[default]
    Next,
    And,
    Or,
}

impl Condition {
    /// Reads a command that ends at `end`.
    pub fn command(&mut self, words: &[Word], end: &str) {
        let is_opener = |word: &&Word| matches!(word.text.as_str(), "if" | "elif" | "while" | "until");
        let words = if words.first().as_ref().is_some_and(is_opener) { &words[1..] } else { words };
        // A pipe, a sub-shell, or arithmetic in brackets.
        self.is_beyond |= matches!(end, "|" | "&" | "(" | ")");
        if words.is_empty() {
            return;
        }
        let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
        self.is_elsewhere |= matches!(texts.as_slice(), ["[" | "[[", _, "=" | "==", "npu", ..]);
        let own = if self.is_beyond { None } else { self.part(words) };
        self.result = Some(match (self.joint, self.result) {
            (Joint::And, Some(before)) => and(before, own),
            (Joint::Or, Some(before)) => or(before, own),
            _ => own,
        });
        self.joint = match end {
            "&&" => Joint::And,
            "||" => Joint::Or,
            _ => Joint::Next,
        };
    }

    /// Returns whether a command after it runs, by the operator before that.
    pub fn lets_run(&self) -> Option<bool> {
        let result = self.result.flatten();
        match self.joint {
            Joint::Or => result.map(|result| !result),
            _ => result,
        }
    }

    fn part(&mut self, words: &[Word]) -> Option<bool> {
        let closes = words.last().is_some_and(|word| word.text == "]]");
        if self.is_open {
            self.is_open = !closes;
            return expression(&words[..words.len() - usize::from(closes)], true);
        }
        self.is_open = words[0].text == "[[" && !closes;
        test(words)
    }
}

/// Returns the result of a command that is a test; `None` for another one.
pub(super) fn test(words: &[Word]) -> Option<bool> {
    let first = words.first().filter(|word| word.open.is_none())?;
    let last = words.last().map_or("", |word| word.text.as_str());
    let inside = |close: &str| &words[1..words.len() - usize::from(last == close && words.len() > 1)];
    match first.text.as_str() {
        "true" | ":" if words.len() == 1 => Some(true),
        "false" if words.len() == 1 => Some(false),
        "!" => test(&words[1..]).map(|result| !result),
        "[" if last == "]" => expression(inside("]"), false),
        "[[" => expression(inside("]]"), true),
        "test" => expression(&words[1..], false),
        _ => None,
    }
}

/// Returns true for a command that is a test: `[ a = b ]`, `test a`.
pub(super) fn is_test(words: &[Word]) -> bool {
    words.first().is_some_and(|word| matches!(word.text.as_str(), "[" | "[[" | "test"))
}

fn and(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (one, other) => Some(one? && other?),
    }
}

fn or(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(true), _) | (_, Some(true)) => Some(true),
        (one, other) => Some(one? || other?),
    }
}

/// Evaluates the words between the brackets; `has_patterns` for `[[`, whose right side is one.
fn expression(words: &[Word], has_patterns: bool) -> Option<bool> {
    for (operator, join) in [("-o", or as fn(_, _) -> _), ("-a", and)] {
        if let Some(at) = words.iter().position(|word| word.text == operator && word.open.is_none()) {
            let (one, other) = (&words[..at], &words[at + 1..]);
            return join(expression(one, has_patterns), expression(other, has_patterns));
        }
    }
    match words {
        [not, rest @ ..] if not.text == "!" && !rest.is_empty() => {
            expression(rest, has_patterns).map(|result| !result)
        }
        [one] => known(one).map(|text| !text.is_empty()),
        [operator, one] => match operator.text.as_str() {
            "-n" => known(one).map(|text| !text.is_empty()),
            "-z" => known(one).map(str::is_empty),
            _ => None,
        },
        [one, operator, other] => compared(one, &operator.text, other, has_patterns),
        _ => None,
    }
}

fn compared(one: &Word, operator: &str, other: &Word, has_patterns: bool) -> Option<bool> {
    let numbers = || Some((plain(one)?.parse::<i64>().ok()?, plain(other)?.parse::<i64>().ok()?));
    let is_same =
        || if has_patterns { fits(plain(one)?, plain(other)?) } else { Some(plain(one)? == plain(other)?) };
    match operator {
        "=" | "==" => is_same(),
        "!=" => is_same().map(|same| !same),
        "-eq" => numbers().map(|(a, b)| a == b),
        "-ne" => numbers().map(|(a, b)| a != b),
        "-lt" => numbers().map(|(a, b)| a < b),
        "-le" => numbers().map(|(a, b)| a <= b),
        "-gt" => numbers().map(|(a, b)| a > b),
        "-ge" => numbers().map(|(a, b)| a >= b),
        _ => None,
    }
}

/// Returns whether the word of a `case` fits one of the patterns of an arm.
pub(super) fn matches(word: &Word, patterns: &[Word]) -> Option<bool> {
    let one = |pattern: &Word| match plain(pattern)? {
        "*" => Some(true),
        pattern => fits(plain(word)?, pattern),
    };
    patterns.iter().map(one).fold(Some(false), or)
}

fn known(word: &Word) -> Option<&str> {
    word.open.is_none().then_some(word.text.as_str())
}

/// Returns a text to compare: a folder of this or another machine is none.
fn plain(word: &Word) -> Option<&str> {
    known(word).filter(|text| !text.contains("$(") && !text.starts_with("$HOME"))
}

/// Returns whether a text fits a pattern of `*` and `?`; `None` for a set in brackets.
fn fits(text: &str, pattern: &str) -> Option<bool> {
    if pattern.contains(['[', '\\']) {
        return None;
    }
    let (text, pattern): (Vec<char>, Vec<char>) = (text.chars().collect(), pattern.chars().collect());
    let (mut at, mut of, mut star) = (0, 0, None);
    while at < text.len() {
        match pattern.get(of) {
            Some('*') => {
                star = Some((of, at));
                of += 1;
            }
            Some(&c) if c == '?' || c == text[at] => (at, of) = (at + 1, of + 1),
            // The last star takes one more character.
            _ => match &mut star {
                Some((place, from)) => {
                    *from += 1;
                    (at, of) = (*from, *place + 1);
                }
                None => return Some(false),
            },
        }
    }
    Some(pattern[of..].iter().all(|&c| c == '*'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Word> {
        let one = |text: &str| Word {
            text: text.trim_matches('"').into(),
            open: (text == "?").then_some("not known"),
            ..Word::default()
        };
        text.split(' ').map(one).collect()
    }

    #[test]
    fn tests_of_known_values() {
        for (text, expect) in [
            ("[ 1 = 1 ]", Some(true)),
            ("[ 1 = 2 ]", Some(false)),
            ("[ 1 != 2 ]", Some(true)),
            ("test a == a", Some(true)),
            ("[ 10 -gt 9 ]", Some(true)),
            ("[ x -gt 9 ]", None),
            ("[ -n \"\" ]", Some(false)),
            ("[ -z \"\" ]", Some(true)),
            ("[ ! -z a ]", Some(true)),
            ("! [ a = a ]", Some(false)),
            ("[ ? = 1 ]", None),
            ("[ ? = 1 -o a = a ]", Some(true)),
            ("[ ? = 1 -a a = b ]", Some(false)),
            ("[[ qwen3-8b == qwen3* ]]", Some(true)),
            ("[[ llama == qwen3* ]]", Some(false)),
            ("[[ a == [ab] ]]", None),
            ("[ qwen3 = qwen* ]", Some(false)),
            ("[ -f x ]", None),
            ("true", Some(true)),
            ("false", Some(false)),
            ("grep x", None),
            ("[ $HOME/x = $HOME/x ]", None),
        ] {
            assert_eq!(test(&words(text)), expect, "{text}");
        }
    }

    #[test]
    fn patterns_of_a_case() {
        for (word, patterns, expect) in [
            ("a", "a b", Some(true)),
            ("b", "a b", Some(true)),
            ("c", "a b", Some(false)),
            ("c", "*", Some(true)),
            ("?", "*", Some(true)),
            ("?", "a", None),
            ("a", "? a", Some(true)),
            ("c", "? a", None),
            ("qwen-2", "*-2", Some(true)),
            ("aab", "*ab", Some(true)),
        ] {
            let (word, patterns) = (words(word).remove(0), words(patterns));
            assert_eq!(matches(&word, &patterns), expect, "{word:?} {patterns:?}");
        }
    }
}
