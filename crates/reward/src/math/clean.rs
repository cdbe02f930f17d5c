//! Gives equal notation one spelling: Unicode signs as LaTeX, without delimiters and spacing.
//!
//! Every pass is linear in the text.

/// Signs and their LaTeX; an empty string drops the sign.
const SIGNS: [(char, &str); 62] = [
    ('−', "-"),
    ('–', "-"),
    ('×', "\\times "),
    ('·', "\\cdot "),
    ('⋅', "\\cdot "),
    ('÷', "\\div "),
    ('±', "\\pm "),
    ('∓', "\\mp "),
    ('√', "\\sqrt "),
    ('≤', "\\le "),
    ('⩽', "\\le "),
    ('≥', "\\ge "),
    ('⩾', "\\ge "),
    ('≠', "\\ne "),
    ('≈', "\\approx "),
    ('∞', "\\infty "),
    ('∪', "\\cup "),
    ('∩', "\\cap "),
    ('∈', "\\in "),
    ('∅', "\\emptyset "),
    ('°', "^\\circ "),
    ('½', "\\frac{1}{2}"),
    ('⅓', "\\frac{1}{3}"),
    ('⅔', "\\frac{2}{3}"),
    ('¼', "\\frac{1}{4}"),
    ('¾', "\\frac{3}{4}"),
    ('⅕', "\\frac{1}{5}"),
    ('⅛', "\\frac{1}{8}"),
    ('π', "\\pi "),
    ('θ', "\\theta "),
    ('α', "\\alpha "),
    ('β', "\\beta "),
    ('γ', "\\gamma "),
    ('λ', "\\lambda "),
    ('μ', "\\mu "),
    ('ω', "\\omega "),
    ('²', "^{2}"),
    ('³', "^{3}"),
    ('¹', "^{1}"),
    ('⁴', "^{4}"),
    ('⁻', "^-"),
    ('ℝ', "\\mathbb{R}"),
    ('ℤ', "\\mathbb{Z}"),
    ('ℕ', "\\mathbb{N}"),
    ('′', "'"),
    ('’', "'"),
    ('€', ""),
    ('£', ""),
    ('¥', ""),
    ('\u{200b}', ""),
    ('\u{200c}', ""),
    ('\u{200d}', ""),
    ('\u{feff}', ""),
    ('\u{2009}', "\\,"),
    ('\u{202f}', "\\,"),
    ('△', "\\triangle "),
    ('∠', "\\angle "),
    ('∨', "\\lor "),
    ('∧', "\\land "),
    ('。', "."),
    ('、', ","),
    ('％', "%"),
];

/// Replaces Unicode signs; full-width forms become ASCII, white space a plain space or line feed.
pub(crate) fn plain_signs(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
        } else if let Some(&(_, latex)) = SIGNS.iter().find(|&&(sign, _)| sign == c) {
            out.push_str(latex);
        } else if ('\u{ff01}'..='\u{ff5e}').contains(&c) {
            out.extend(char::from_u32(c as u32 - 0xfee0));
        } else {
            out.push(if c.is_whitespace() { ' ' } else { c });
        }
    }
    out
}

/// Undoes doubled backslashes: of a text escaped twice, and before a command outside a matrix.
pub(crate) fn single_backslashes(text: &str) -> String {
    if !text.contains("\\\\") {
        return text.to_string();
    }
    // `\\\end` is a row's end and a command; only exactly two backslashes are one that was escaped.
    let doubled = |name: &str| text.match_indices(name).any(|(at, _)| !text[..at].ends_with('\\'));
    if doubled("\\\\begin{") || doubled("\\\\boxed") || doubled("\\\\end{") {
        return text.replace("\\\\", "\\");
    }
    if text.contains("\\begin") {
        return text.to_string();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\\\\") {
        out.push_str(&rest[..at]);
        rest = &rest[at + 2..];
        if rest.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '{' | '}' | '(' | '[')) {
            out.push('\\');
        } else {
            out.push(' ');
        }
    }
    out.push_str(rest);
    out
}

/// Returns the answer without dollar signs, delimiters, markup and a final full stop.
pub(crate) fn bare(text: &str) -> String {
    let mut text = text.replace("\\\\$", "").replace("\\$", "").replace('$', " ");
    for mark in ["\\(", "\\)", "\\[", "\\]", "**", "```", "`"] {
        if text.contains(mark) {
            text = text.replace(mark, " ");
        }
    }
    // `= 8` is the end of a line whose value is 8, `\approx 3.14` one whose value is rounded.
    let mut text = text.trim_start().trim_start_matches('=');
    for sign in ["\\approx", "\\simeq", "\\thickapprox"] {
        let rest = text.trim_start().strip_prefix(sign);
        text = rest.filter(|rest| !rest.starts_with(|c: char| c.is_ascii_alphabetic())).unwrap_or(text);
    }
    let trimmed = text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '.' | ',' | ';' | ':'));
    // A point that opens a decimal stays: `.5`.
    let start = text.find(trimmed).unwrap_or(0);
    let decimal = trimmed.starts_with(|c: char| c.is_ascii_digit()) && text[..start].ends_with('.');
    if decimal { format!(".{trimmed}") } else { trimmed.to_string() }
}

/// Removes white space, except between letters or digits: `1 2` is not `12`.
pub(crate) fn spelling(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut space = false;
    for c in text.chars() {
        if c.is_whitespace() {
            space = true;
            continue;
        }
        if space && c.is_alphanumeric() && out.ends_with(char::is_alphanumeric) {
            out.push(' ');
        }
        space = false;
        out.push(c);
    }
    out
}

/// Returns the letters of an answer made of words, without commands of style, braces and spaces.
///
/// `None` if digits, scripts or other commands show that it is not: there braces distinguish `2^{n+1}` from `2^n+1`.
pub(crate) fn words(text: &str) -> Option<String> {
    let letters = all_letters(text);
    // Case tells variables apart, not words.
    let word = letters.len() >= 2 && letters.chars().all(char::is_alphabetic);
    let letters = if word { letters.to_lowercase() } else { letters };
    let plain = |c: char| {
        c.is_alphabetic() || matches!(c, '-' | ',' | '.' | '\'' | '(' | ')' | '!' | '?' | '/' | ':' | ';')
    };
    (letters.chars().any(char::is_alphabetic) && letters.chars().all(plain)).then_some(letters)
}

/// Returns the text without commands of style, braces and white space.
pub(crate) fn all_letters(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if c == '\\' {
            let name: String = rest[1..].chars().take_while(char::is_ascii_alphabetic).collect();
            let style = matches!(
                name.as_str(),
                "text"
                    | "textbf"
                    | "textit"
                    | "textrm"
                    | "textnormal"
                    | "mbox"
                    | "hbox"
                    | "mathrm"
                    | "mathbf"
                    | "mathit"
                    | "operatorname"
                    | "left"
                    | "right"
                    | "quad"
                    | "qquad"
                    | "displaystyle"
                    | "boldsymbol"
                    | "rm"
                    | "bf"
            );
            if name.is_empty() {
                // `\,` and the like are spacing; `\{` and `\%` are themselves.
                let next = rest[1..].chars().next();
                if let Some(next) = next.filter(|next| !matches!(next, ',' | ';' | ':' | '!' | ' ' | '>')) {
                    out.push('\\');
                    out.push(next);
                }
                rest = &rest[1 + next.map_or(0, char::len_utf8)..];
                continue;
            }
            if !style {
                out.push('\\');
                out.push_str(&name);
            }
            rest = &rest[1 + name.len()..];
            continue;
        }
        if !(c.is_whitespace() || matches!(c, '{' | '}' | '$' | '~')) {
            out.push(c);
        }
        rest = &rest[c.len_utf8()..];
    }
    let inner = out.strip_prefix('(').and_then(|inner| inner.strip_suffix(')'));
    let choice = inner.filter(|inner| inner.len() == 1 && inner.bytes().all(|b| b.is_ascii_alphabetic()));
    choice.map(str::to_string).unwrap_or(out)
}
