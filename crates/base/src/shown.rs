//! Prints values from other people's files in messages: truncated, with their length, so an error stays a line.

use std::borrow::Cow;
use std::path::Path;

/// Most characters of a value in a message.
const VALUE_CHARS_MAX: usize = 80;
/// Most characters of an error's line: the longest lines of facts have about 400.
pub(crate) const LINE_CHARS_MAX: usize = 2000;

/// Returns a value for a message: whole if it is short, else its beginning and its length.
pub fn shown(value: &str) -> Cow<'_, str> {
    shown_within(value, VALUE_CHARS_MAX)
}

/// Returns a value for a message: whole up to `chars_max` characters, else its beginning and its length.
pub fn shown_within(value: &str, chars_max: usize) -> Cow<'_, str> {
    match value.char_indices().nth(chars_max) {
        None => Cow::Borrowed(value),
        Some((end, _)) => Cow::Owned(format!("{}... ({} bytes)", &value[..end], value.len())),
    }
}

/// Returns an address without user, password and query, which may hold secrets.
pub fn shown_address(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let Some((scheme, rest)) = url[..end].split_once("://") else { return url[..end].to_string() };
    let host = rest.find('/').unwrap_or(rest.len());
    let start = rest[..host].rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}://{}", &rest[start..])
}

/// Returns a path for a message. What is named as a file may be an address, with a password in it.
pub fn shown_path(path: &Path) -> String {
    let text = path.display().to_string();
    if text.contains("://") { shown_address(&text) } else { text }
}

/// Returns a number for a message: all its digits if they are few, else in scientific notation.
pub fn shown_number(value: f64) -> String {
    let is_long = value.is_finite() && value != 0.0 && !(1e-6..1e15).contains(&value.abs());
    if is_long { format!("{value:e}") } else { value.to_string() }
}

/// Returns a number with a fixed number of decimal places, in scientific notation from 10^15 on.
pub fn shown_places(value: f64, places: usize) -> String {
    let is_long = value.is_finite() && value.abs() >= 1e15;
    if is_long { format!("{value:.places$e}") } else { format!("{value:.places$}") }
}

/// Cuts the middle out of a line that is too long: its subject is at the start, the reason often at the end.
pub(crate) fn cut_line(line: String) -> String {
    let count = line.chars().count();
    if count <= LINE_CHARS_MAX {
        return line;
    }
    let place = |index: usize| line.char_indices().nth(index).map_or(line.len(), |(at, _)| at);
    let (head, tail) = (place(LINE_CHARS_MAX * 3 / 4), place(count - LINE_CHARS_MAX / 4));
    format!("{} ... {} bytes left out ... {}", &line[..head], tail - head, &line[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn an_address_is_shown_without_what_it_hides() {
        for (url, shown) in [
            ("http://user:pw@h:1/a?b=c@d#e", "http://h:1/a"),
            ("https://h?x=http://u@i/", "https://h"),
            ("http://h/a@b", "http://h/a@b"),
            ("h:80", "h:80"),
        ] {
            assert_eq!(shown_address(url), shown);
        }
        let error = Error::io("data-missing", Path::new("http://u:pw@h/a?k=v"), &std::io::Error::other("no"));
        assert_eq!(error.message, "http://h/a: no");
        assert_eq!(shown_path(Path::new("a?b#c@d")), "a?b#c@d");
    }

    #[test]
    fn long_values_are_cut_and_short_ones_stay() {
        assert_eq!(shown("größe"), "größe");
        assert_eq!(shown(&"é".repeat(80)), "é".repeat(80));
        assert_eq!(shown(&"é".repeat(100_000)), format!("{}... (200000 bytes)", "é".repeat(80)));
        for (value, text) in
            [(0.0, "0"), (1e-6, "0.000001"), (1.7e308, "1.7e308"), (-2.5e20, "-2.5e20"), (4096.0, "4096")]
        {
            assert_eq!(shown_number(value), text);
        }
        for (value, text) in [(0.5, "0.500"), (-1e14, "-100000000000000.000"), (3.4e38, "3.400e38")] {
            assert_eq!(shown_places(value, 3), text);
        }
    }

    /// Whatever a crate quotes: an error of a 100 KB value was a line of 100 KB.
    #[test]
    fn r_an_error_printed_a_value_of_any_length() {
        let error = Error::new("bad-value", format!("key = {} is too long", "é".repeat(100_000)))
            .fact("x".repeat(1 << 20))
            .hint("short");
        assert!(error.message.starts_with("key = éé") && error.message.ends_with("éé is too long"));
        assert!(error.message.contains(" bytes left out "), "{}", error.message);
        assert!(error.to_string().chars().count() < 3 * LINE_CHARS_MAX);
        let whole = "y".repeat(LINE_CHARS_MAX);
        assert_eq!(Error::usage("bad-value", whole.clone()).message, whole);
    }
}
