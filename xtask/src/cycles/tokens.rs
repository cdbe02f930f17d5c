//! The words of a source's code without its tests: identifiers, `::` and single signs.

use crate::source::{Source, is_word};

/// Splits the code into tokens and leaves out what `#[cfg(test)]` marks.
pub fn tokens(source: &Source) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut chars = source.code.iter().copied().peekable();
    while let Some(c) = chars.next() {
        if is_word(c) {
            let mut word = String::from(c);
            while let Some(next) = chars.next_if(|c| is_word(*c)) {
                word.push(next);
            }
            found.push(word);
        } else if c == ':' && chars.next_if_eq(&':').is_some() {
            found.push("::".into());
        } else if !c.is_whitespace() {
            found.push(c.into());
        }
    }
    without_tests(&found)
}

/// The name of a module file that `#[cfg(test)]` marks is kept as nothing: its file is named by no other.
fn without_tests(tokens: &[String]) -> Vec<String> {
    let (mut kept, mut i) = (Vec::new(), 0);
    while i < tokens.len() {
        if is_test(&tokens[i..]) {
            i = item_end(tokens, i);
        } else {
            kept.push(tokens[i].clone());
            i += 1;
        }
    }
    kept
}

fn is_test(tokens: &[String]) -> bool {
    let starts =
        |expect: &[&str]| tokens.len() >= expect.len() && tokens.iter().zip(expect).all(|(a, b)| a == b);
    starts(&["#", "[", "cfg", "(", "test", ")", "]"]) || starts(&["#", "[", "cfg", "(", "all", "(", "test"])
}

/// The index after the item at `start`: after its attributes, to its `;`, `,` or the end of its braces.
fn item_end(tokens: &[String], start: usize) -> usize {
    let (mut depth, mut i) = (0, start);
    while i < tokens.len() {
        match tokens[i].as_str() {
            "[" | "(" | "{" => depth += 1,
            "]" | ")" => depth -= 1,
            "}" if depth <= 1 => return if depth == 1 { i + 1 } else { i },
            "}" => depth -= 1,
            ";" | "," if depth == 0 => return i + 1,
            _ => {}
        }
        i += 1;
    }
    i
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_items_are_left_out() {
        let check = |text: &str, expect: &str| {
            assert_eq!(tokens(&Source::new("a.rs", text)).join(" "), expect, "{text}")
        };
        check("use a::b; // c\nf(\"x\")", "use a :: b ; f ( \" \" )");
        check("#[cfg(test)]\nmod tests { f(); { } }\ng", "g");
        check("#[cfg(test)]\n#[path = \"t.rs\"]\nmod tests;\ng", "g");
        check("#[cfg(test)] use a::{b, c}; g", "g");
        check("struct A { #[cfg(test)] b: u8, c: u8 }", "struct A { c : u8 }");
        check("#[cfg(test)] fn f(a: u8) -> u8 { 1 } g", "g");
    }
}
