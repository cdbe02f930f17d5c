//! A Rust source with its comments and string contents blanked, so that checks by text do not trip over them. Not a
//! parser: it knows strings, raw strings, characters, lifetimes and nested comments, and nothing else of the language.

/// One `.rs` file.
pub struct Source {
    /// Path from the root.
    pub path: String,
    /// As written.
    pub text: Vec<char>,
    /// The same length, with comments and contents of literals as spaces; quotes and line ends stay.
    pub code: Vec<char>,
    /// Index of the first character of each line.
    line_starts: Vec<usize>,
}

impl Source {
    /// Reads a source.
    pub fn new(path: &str, text: &str) -> Source {
        let text: Vec<char> = text.chars().collect();
        let code = blank(&text);
        let ends = text.iter().enumerate().filter(|(_, c)| **c == '\n').map(|(i, _)| i + 1);
        let line_starts = std::iter::once(0).chain(ends).filter(|&start| start < text.len().max(1)).collect();
        Source { path: path.to_string(), text, code, line_starts }
    }

    /// Number of lines.
    pub fn num_lines(&self) -> usize {
        self.line_starts.len()
    }

    /// The line, from 1, of a character.
    pub fn line_of(&self, index: usize) -> usize {
        self.line_starts.partition_point(|&start| start <= index)
    }

    /// A line as written, from 1.
    pub fn line(&self, line: usize) -> String {
        let start = self.line_starts[line - 1];
        self.text[start..].iter().take_while(|c| **c != '\n').collect()
    }

    /// Where `needle` stands in code, as a whole word at the ends where it begins or ends with a letter.
    pub fn find(&self, needle: &str) -> Vec<usize> {
        let needle: Vec<char> = needle.chars().collect();
        let last = self.code.len().saturating_sub(needle.len());
        (0..=last).filter(|&i| self.code[i..].starts_with(&needle) && self.is_whole(i, &needle)).collect()
    }

    /// The string literal that begins at or after `index` with nothing but space between, if there is one.
    pub fn literal_at(&self, index: usize) -> Option<String> {
        let start = (index..self.code.len()).find(|&i| !self.code[i].is_whitespace())?;
        if self.code[start] != '"' {
            return None;
        }
        let end = (start + 1..self.code.len()).find(|&i| self.code[i] == '"')?;
        Some(self.text[start + 1..end].iter().collect())
    }

    /// Where the tests at the end of the file begin; its length when there are none.
    pub fn tests_start(&self) -> usize {
        self.find("#[cfg(test)]").first().copied().unwrap_or(self.code.len())
    }

    fn is_whole(&self, index: usize, needle: &[char]) -> bool {
        let before = index.checked_sub(1).map(|i| self.code[i]);
        let after = self.code.get(index + needle.len()).copied();
        let joined = |neighbour: Option<char>, own: char| neighbour.is_some_and(is_word) && is_word(own);
        !joined(before, needle[0]) && !joined(after, needle[needle.len() - 1])
    }
}

/// Whether a character can be part of an identifier.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn blank(text: &[char]) -> Vec<char> {
    let mut code = text.to_vec();
    let mut i = 0;
    while i < text.len() {
        let end = literal_end(text, i);
        if let Some((content, end)) = end {
            for c in &mut code[content] {
                if *c != '\n' {
                    *c = ' ';
                }
            }
            i = end;
        } else {
            i += 1;
        }
    }
    code
}

/// If a comment or literal begins at `i`: what to blank of it, and where it ends.
fn literal_end(text: &[char], i: usize) -> Option<(std::ops::Range<usize>, usize)> {
    match (text[i], text.get(i + 1)) {
        ('/', Some('/')) => {
            let end = position(text, i, |at| text[at] == '\n');
            Some((i..end, end))
        }
        ('/', Some('*')) => {
            let end = block_comment_end(text, i);
            Some((i..end, end))
        }
        ('"', _) => {
            let end = quoted_end(text, i + 1, '"');
            Some((i + 1..end, end + 1))
        }
        ('\'', Some('\\')) => {
            let end = quoted_end(text, i + 1, '\'');
            Some((i + 1..end, end + 1))
        }
        ('\'', Some(_)) if text.get(i + 2) == Some(&'\'') => Some((i + 1..i + 2, i + 3)),
        ('r', Some('"' | '#')) if i == 0 || !is_word(text[i - 1]) || text[i - 1] == 'b' => raw_end(text, i),
        _ => None,
    }
}

fn position(text: &[char], from: usize, is_end: impl Fn(usize) -> bool) -> usize {
    (from..text.len()).find(|&at| is_end(at)).unwrap_or(text.len())
}

fn block_comment_end(text: &[char], start: usize) -> usize {
    let (mut depth, mut i) = (0, start);
    while i + 1 < text.len() {
        match (text[i], text[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    text.len()
}

/// The index of the closing quote.
fn quoted_end(text: &[char], start: usize, quote: char) -> usize {
    let mut i = start;
    while i < text.len() && text[i] != quote {
        i += if text[i] == '\\' { 2 } else { 1 };
    }
    i.min(text.len())
}

fn raw_end(text: &[char], start: usize) -> Option<(std::ops::Range<usize>, usize)> {
    let hashes = text[start + 1..].iter().take_while(|c| **c == '#').count();
    let open = start + 1 + hashes;
    if text.get(open) != Some(&'"') {
        return None; // a raw identifier
    }
    let closes = |at: usize| {
        text[at] == '"'
            && text.len() >= at + 1 + hashes
            && text[at + 1..=at + hashes].iter().all(|c| *c == '#')
    };
    let end = position(text, open + 1, closes);
    Some((open + 1..end, (end + 1 + hashes).min(text.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_comments_and_literals() {
        let check = |text: &str, expect: &str| {
            let code: String = Source::new("a.rs", text).code.iter().collect();
            assert_eq!(code, expect, "{text}");
        };
        check("a // {\nb", "a     \nb");
        check("a /* { /* } */ { */ b", "a                   b");
        check(r#"f("{\"}", '{', '\'', 'x')"#, r#"f("    ", ' ', '  ', ' ')"#);
        check("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}");
        check("r#\"{\"#; r\"{\"; r#fn; br\"{\" {", "r#\" \"#; r\" \"; r#fn; br\" \" {");
        check("\"{ // no comment", "\"               ");
        check("'{", "'{"); // not a literal: left as it is
    }

    #[test]
    fn lines_and_words() {
        let source = Source::new("a.rs", "fn a() {}\nfn ab() {}\n");
        assert_eq!(source.num_lines(), 2);
        assert_eq!(source.find("a"), [3]);
        assert_eq!(source.find("fn"), [0, 10]);
        assert_eq!(source.line_of(10), 2);
        assert_eq!(source.line(2), "fn ab() {}");
        assert_eq!(Source::new("a.rs", "").num_lines(), 1);
    }

    #[test]
    fn literal_behind_a_line_break() {
        let source = Source::new("a.rs", "f(\n    \"a-b\",\n)");
        assert_eq!(source.literal_at(2).as_deref(), Some("a-b"));
        assert_eq!(source.literal_at(0), None);
    }
}
