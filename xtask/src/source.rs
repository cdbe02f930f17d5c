//! A Rust source, parsed once for all checks.

use proc_macro2::{Delimiter, LexError, TokenStream, TokenTree};

use crate::finding::Finding;

pub struct Source {
    /// Path from the root.
    pub path: String,
    pub text: String,
    pub file: syn::File,
    /// All tokens in order, including group delimiters. A doc comment is an attribute with a string.
    pub tokens: Vec<Token>,
}

pub struct Token {
    pub text: String,
    pub line: usize,
}

impl Source {
    /// Parses a file. Errors: text that is not Rust.
    pub fn new(path: &str, text: &str) -> Result<Source, Finding> {
        let refuse = |line, message: String| Finding::new(path, line, format!("not Rust: {message}"));
        let stream: TokenStream = text.parse().map_err(|err: LexError| refuse(1, err.to_string()))?;
        let file = syn::parse_file(text).map_err(|err| refuse(err.span().start().line, err.to_string()))?;
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        Ok(Source { path: path.to_string(), text: text.to_string(), file, tokens })
    }

    /// Returns the tokens from each occurrence of `words` (tokens separated by spaces) before the tests.
    pub fn find(&self, words: &str) -> Vec<&[Token]> {
        let end = find(&self.tokens, "# [ cfg ( test ) ]").next().unwrap_or(self.tokens.len());
        find(&self.tokens[..end], words).map(|start| &self.tokens[start..end]).collect()
    }
}

fn find(tokens: &[Token], words: &str) -> impl Iterator<Item = usize> {
    let words: Vec<&str> = words.split(' ').collect();
    let windows = tokens.windows(words.len()).enumerate();
    windows
        .filter(move |(_, window)| window.iter().map(|token| &token.text).eq(&words))
        .map(|(start, _)| start)
}

/// Returns the tokens of a macro or an attribute, flattened.
pub fn words(stream: TokenStream) -> Vec<String> {
    let mut tokens = Vec::new();
    flatten(stream, &mut tokens);
    tokens.into_iter().map(|token| token.text).collect()
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        let mut push = |text: String| tokens.push(Token { text, line });
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                push(open.to_string());
                flatten(group.stream(), tokens);
                tokens.push(Token { text: close.to_string(), line: group.span_close().start().line });
            }
            leaf => push(leaf.to_string()),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A source that is Rust.
    pub fn source(path: &str, text: &str) -> Source {
        Source::new(path, text).unwrap_or_else(|finding| panic!("{finding}: {text}"))
    }

    #[test]
    fn tokens_are_found_outside_of_texts_comments_and_tests() {
        let text = "//! a::b(\nfn f() {\n    /* a::b( */ g(\"a::b(\");\n    a::b(\n        1);\n}\n\
                    #[cfg(test)]\nmod tests { fn g() { a::b(2) } }\n";
        let source = source("a.rs", text);
        let found = source.find("a : : b (");
        assert_eq!(
            (found.len(), found[0][0].line, found[0][5].text.as_str(), found[0][5].line),
            (1, 4, "1", 5)
        );
    }

    #[test]
    fn a_text_that_is_not_rust_is_a_finding() {
        for text in ["fn f(", "fn f() {\n    ) }", "f();"] {
            assert!(Source::new("a.rs", text).err().expect(text).message.starts_with("not Rust: "), "{text}");
        }
    }
}
