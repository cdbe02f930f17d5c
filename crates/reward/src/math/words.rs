//! Answers in words: phrases with a value, the words between formulas, and choices with their text.

/// Longest phrase, in letters.
const LETTERS_MAX: usize = 40;

/// Phrases, by their letters alone, and their LaTeX.
///
/// A limit that does not exist and an undefined value are one answer: the choice of words is the author's.
const PHRASES: &[(&str, &str)] = &[
    ("allrealnumbers", "\\mathbb{R}"),
    ("allreals", "\\mathbb{R}"),
    ("anyrealnumber", "\\mathbb{R}"),
    ("allrealx", "\\mathbb{R}"),
    ("allrealvaluesofx", "\\mathbb{R}"),
    ("realnumbers", "\\mathbb{R}"),
    ("therealnumbers", "\\mathbb{R}"),
    ("thesetofallrealnumbers", "\\mathbb{R}"),
    ("nosolution", "\\emptyset"),
    ("nosolutions", "\\emptyset"),
    ("therearenosolutions", "\\emptyset"),
    ("thereisnosolution", "\\emptyset"),
    ("emptyset", "\\emptyset"),
    ("theemptyset", "\\emptyset"),
    ("infinity", "\\infty"),
    ("infinite", "\\infty"),
    ("positiveinfinity", "\\infty"),
    ("plusinfinity", "\\infty"),
    ("negativeinfinity", "-\\infty"),
    ("minusinfinity", "-\\infty"),
    ("dne", UNDEFINED),
    ("doesnotexist", UNDEFINED),
    ("doesn'texist", UNDEFINED),
    ("thelimitdoesnotexist", UNDEFINED),
    ("undefined", UNDEFINED),
    ("notdefined", UNDEFINED),
    ("isundefined", UNDEFINED),
];

const UNDEFINED: &str = "\\operatorname{undefined}";

/// Words inside a formula and their LaTeX.
const INFIX: [(&str, &str); 16] = [
    ("mod", "\\mod "),
    ("where", ","),
    ("with", ","),
    ("for", ","),
    ("for all", ","),
    ("for any", ","),
    ("for every", ","),
    ("for some", ","),
    ("for each", ","),
    ("is an integer", "\\in\\mathbb{Z}"),
    ("is any integer", "\\in\\mathbb{Z}"),
    ("an integer", "\\in\\mathbb{Z}"),
    ("integer", "\\in\\mathbb{Z}"),
    ("all real numbers except", "\\mathbb{R}\\setminus "),
    ("all reals except", "\\mathbb{R}\\setminus "),
    ("triangle", "\\triangle "),
];

/// Returns the LaTeX of an answer that is a phrase.
pub(crate) fn phrase(text: &str) -> Option<&'static str> {
    // Most answers are formulas; they have other signs or are longer.
    if text.len() > 4 * LETTERS_MAX || !text.contains(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    let letters = super::clean::all_letters(text).to_lowercase();
    let letters = letters.trim_end_matches('.');
    PHRASES.iter().find(|&&(phrase, _)| phrase == letters).map(|&(_, latex)| latex)
}

/// Returns the LaTeX for words between the parts of a formula.
pub(crate) fn infix(words: &str) -> Option<&'static str> {
    let words = words.trim();
    INFIX.iter().find(|&&(infix, _)| infix == words).map(|&(_, latex)| latex)
}

/// Returns the phrase at the end of a text in sentences, so that no number before it is taken for the answer.
pub(crate) fn closing(text: &str) -> Option<&'static str> {
    let tail = &text[text.ceil_char_boundary(text.len().saturating_sub(64))..];
    let tail =
        tail.trim_end_matches(|c: char| c.is_whitespace() || matches!(c, '.' | '*' | '!')).to_lowercase();
    let phrases = ["does not exist", "no solution", "no solutions", "undefined", "all real numbers"];
    let phrase = phrases.into_iter().find(|phrase| tail.ends_with(phrase))?;
    // `not all real numbers` has another meaning.
    let before = &tail[..tail.len() - phrase.len()];
    let denied =
        before.split_whitespace().any(|word| matches!(word, "not" | "never") || word.ends_with("n't"));
    (!denied).then_some(phrase)
}

/// A choice of a question: its letter, and its text where the answer repeats it.
#[derive(Debug, PartialEq)]
pub(crate) struct Choice {
    pub letter: char,
    pub text: Option<String>,
}

/// Reads `B`, `(B)`, `B) 12`, `B. 12`, `B: 12` or `(B) 12`, with or without commands of style.
///
/// `(B)12` and `(B) - 12` could be a product and a difference, so the text must follow white space or the end of a
/// style, and begin with what can begin an answer.
pub(crate) fn choice(text: &str) -> Option<Choice> {
    let (head, styled) = unstyled(text)?;
    let head = head.trim_start();
    let open = head.starts_with('(');
    let mut chars = head[usize::from(open)..].chars();
    let letter = chars.next().filter(|c| ('A'..='H').contains(c))?;
    let rest = chars.as_str();
    if rest.trim().is_empty() && !open {
        return Some(Choice { letter, text: None });
    }
    let mark = rest.chars().next()?;
    if !(mark == ')' || (!open && matches!(mark, '.' | ':'))) {
        return None;
    }
    let rest = &rest[1..];
    let spaced =
        styled || rest.starts_with([' ', '\n']) || rest.starts_with("\\ ") || rest.starts_with("\\text");
    let rest = ["\\ ", "\\,", "\\;", "\\:", "\\quad"]
        .iter()
        .fold(rest.trim(), |rest, space| rest.strip_prefix(space).map_or(rest, str::trim));
    if rest.is_empty() {
        return Some(Choice { letter, text: None });
    }
    let minus_apart = rest.starts_with("- ");
    let begins = !rest.starts_with([')', ',', ';', '+', '*', '/', '^', '=', '<', '>', '(', '&', '|', '!']);
    let begins = begins
        && !["\\cdot", "\\times", "\\cup", "\\cap", "\\text{and", "\\text{ and", "and ", "or "]
            .iter()
            .any(|join| rest.starts_with(join));
    (spaced && begins && !minus_apart && !names_choice(rest))
        .then(|| Choice { letter, text: Some(rest.to_string()) })
}

/// True if a text holds the mark of a choice: `(B) 12 or (C) 13` chooses nothing.
fn names_choice(text: &str) -> bool {
    let mut before = [' ', ' '];
    text.chars().any(|c| {
        let alone = !before[0].is_alphanumeric() && ('A'..='H').contains(&before[1]);
        before = [before[1], c];
        alone && matches!(c, ')' | '.' | ':')
    })
}

/// Returns the text without the style command around its beginning, and true if that style ended.
fn unstyled(text: &str) -> Option<(String, bool)> {
    let text = text.trim_start();
    if !text.starts_with('\\') {
        // Most answers are not choices: nothing is copied for them.
        let begins = text.starts_with(|c: char| c == '(' || ('A'..='H').contains(&c));
        return begins.then(|| (text.to_string(), false));
    }
    let (name, rest) = text[1..].split_once('{')?;
    if !matches!(
        name.trim(),
        "text" | "textbf" | "textrm" | "textit" | "mathrm" | "mathbf" | "mbox" | "boldsymbol"
    ) {
        return None;
    }
    let end = rest.find('}')?;
    (!rest[..end].contains('{'))
        .then(|| (format!("{}{}", &rest[..end], &rest[end + 1..]), end + 1 < rest.len()))
}

/// Reads three or more capitals and nothing else: an order or a name, in which no two may be exchanged.
pub(crate) fn capitals(text: &str) -> Option<String> {
    if text.len() > 64 {
        return None;
    }
    let letters = super::clean::all_letters(text);
    (letters.len() >= 3 && letters.bytes().all(|b| b.is_ascii_uppercase())).then_some(letters)
}
