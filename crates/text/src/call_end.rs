//! Finds where a call between tags ends: at the first closing tag outside of its object's texts, or after its function.

pub(crate) const OPEN: &str = "<tool_call>";
pub(crate) const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";

/// How far a call was searched for its end, in time linear in its text.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallEnd {
    form: Form,
    /// Bytes that were searched.
    at: usize,
}

/// Says what is between the tags.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Form {
    #[default]
    Unknown,
    /// An object; within a text of it, where that began.
    Object(Option<usize>),
    Function,
    /// Anything else, or an object that is none.
    Other,
}

impl CallEnd {
    /// Takes the first closing tag.
    pub(crate) fn first() -> CallEnd {
        CallEnd { form: Form::Other, at: 0 }
    }

    /// Returns the end of the closing tag. `text`: all after the open tag so far; it only grows between calls.
    pub(crate) fn find(&mut self, text: &str) -> Option<usize> {
        if self.form == Form::Unknown {
            let start = text[self.at..].trim_start();
            self.at = text.len() - start.len();
            self.form = match start {
                "" => return None,
                _ if start.starts_with('{') => Form::Object(None),
                _ if start.starts_with(FUNCTION) => Form::Function,
                _ if FUNCTION.starts_with(start) => return None,
                _ => Form::Other,
            };
        }
        loop {
            if let Form::Object(inside) = self.form
                && let Some(found) = self.in_object(text, inside)
            {
                return found;
            }
            if let Form::Object(_) = self.form {
                continue;
            }
            let from = text.floor_char_boundary(self.at.saturating_sub(CLOSE.len() - 1));
            let Some(at) = text[from..].find(CLOSE).map(|at| from + at) else {
                self.at = text.len();
                return None;
            };
            if self.form == Form::Other || text[..at].trim_end().ends_with(FUNCTION_END) {
                return Some(at + CLOSE.len());
            }
            self.at = at + CLOSE.len() + CLOSE.len() - 1;
        }
    }

    /// Goes on in an object. `None`: it is none, and the search begins again; else what was found.
    fn in_object(&mut self, text: &str, mut inside: Option<usize>) -> Option<Option<usize>> {
        let bytes = text.as_bytes();
        while self.at < bytes.len() {
            match (bytes[self.at], inside) {
                // The byte after it may come later.
                (b'\\', Some(_)) if self.at + 1 == bytes.len() => break,
                (b'\\', Some(_)) => self.at += 1,
                (b'"', Some(_)) => inside = None,
                (b'"', None) => inside = Some(self.at),
                // No text of an object has a line feed: a mark was left out.
                (b'\n', Some(start)) => {
                    (self.form, self.at) = (Form::Other, start);
                    return None;
                }
                (b'<', None) if text[self.at..].starts_with(CLOSE) => {
                    return Some(Some(self.at + CLOSE.len()));
                }
                (b'<', None) if CLOSE.starts_with(&text[self.at..]) => break,
                _ => {}
            }
            self.at += 1;
        }
        self.form = Form::Object(inside);
        Some(None)
    }
}
