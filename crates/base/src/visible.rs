//! Escapes other people's text for a terminal, as `\u{1b}`: whatever would move the cursor, change colours or titles,
//! reach the clipboard or reorder letters. Letters of all scripts and their joiners stay.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns true for what a terminal acts on or hides: control characters other than line feed and tab, direction marks,
/// line and paragraph separators, and zero-width characters other than the joiners of scripts and emoji.
pub fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\0'..='\x08'
            | '\x0b'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'
            | '\u{200e}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Returns text in which every hidden character is written as `\u{...}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, |out, c| write!(out, "\\u{{{:x}}}", u32::from(c)))
}

/// Returns JSON with hidden characters as `\u....`, which has the same values: outside strings JSON has none.
pub fn visible_json(text: &str) -> Cow<'_, str> {
    escaped(text, |out, c| {
        c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}"))
    })
}

fn escaped(text: &str, escape: impl Fn(&mut String, char) -> std::fmt::Result) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden(c) { escape(&mut out, c).expect("a string takes all text") } else { out.push(c) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_written_out() {
        for (text, expect) in [
            ("a\x1b[2Jb\x1b]0;t\x07", "a\\u{1b}[2Jb\\u{1b}]0;t\\u{7}"),
            ("\u{9b}31m\u{7f}\0\r\u{85}", "\\u{9b}31m\\u{7f}\\u{0}\\u{d}\\u{85}"),
            ("\u{202e}abc\u{2066}\u{200f}\u{61c}", "\\u{202e}abc\\u{2066}\\u{200f}\\u{61c}"),
            ("a\u{200b}b\u{feff}\u{e0041}\u{2028}", "a\\u{200b}b\\u{feff}\\u{e0041}\\u{2028}"),
        ] {
            assert_eq!(visible(text), expect);
        }
        for c in (0..0x30000).filter_map(char::from_u32).chain((0xe0000..0xe0100).filter_map(char::from_u32))
        {
            let is_control = c.is_control() && c != '\n' && c != '\t';
            assert!(!is_control || is_hidden(c), "{:x}", u32::from(c));
        }
    }

    #[test]
    fn letters_of_all_scripts_stay() {
        for text in [
            "a\n\tb",
            "größe 日本語 עברית عربى",
            "👩\u{200d}💻 नी\u{200d} می\u{200c}خواهم",
            "▁▂█ é \u{fffd}",
            "",
        ] {
            assert!(matches!(visible(text), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn json_stands_for_the_same_values() {
        let value = serde_json::json!({ "\u{9b}a": "\u{202e}\u{e0041}\x1b\u{7f}ö\n" });
        let text = value.to_string();
        let shown = visible_json(&text);
        assert!(!shown.contains(is_hidden) && shown.contains("ö"), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), value);
    }
}
