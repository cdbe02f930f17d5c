//! Removes colours and other escape sequences from text in pieces.

use memchr::memchr;

/// Removes colours and other escape sequences, including those split between two reads.
#[derive(Debug, Default)]
pub struct Colours {
    state: Escape,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Escape {
    #[default]
    None,
    Begun,
    Control,
    Command,
}

impl Colours {
    /// Compacts the text to the front. Returns its length.
    pub fn strip(&mut self, bytes: &mut [u8]) -> usize {
        const ESCAPE: u8 = 0x1b;
        if self.state == Escape::None && memchr(ESCAPE, bytes).is_none() {
            return bytes.len();
        }
        let (mut kept, mut at) = (0, 0);
        while at < bytes.len() {
            if self.state == Escape::None {
                // Text up to the next sequence is moved at once.
                let end = memchr(ESCAPE, &bytes[at..]).map_or(bytes.len(), |found| at + found);
                bytes.copy_within(at..end, kept);
                (kept, at) = (kept + end - at, end);
            }
            let Some(&byte) = bytes.get(at) else { break };
            at += 1;
            // A line end ends any sequence: a truncated one must not swallow the rest of the log.
            self.state = match (self.state, byte) {
                (_, ESCAPE) => Escape::Begun,
                (_, b'\n' | b'\r') => {
                    bytes[kept] = byte;
                    kept += 1;
                    Escape::None
                }
                (Escape::Begun, b'[') => Escape::Control,
                (Escape::Begun, b']') => Escape::Command,
                (Escape::Begun, _) | (Escape::Control, 0x40..=0x7e) | (Escape::Command, 0x07) => Escape::None,
                (state, _) => state,
            };
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go_wherever_they_are_cut() {
        let text = b"a\x1b[1;31mb\x1b[0mc\x1b]0;title\x07d\x1b[3\ne";
        for cut in 0..text.len() {
            let (mut first, mut second) = (text[..cut].to_vec(), text[cut..].to_vec());
            let mut colours = Colours::default();
            let (n, m) = (colours.strip(&mut first), colours.strip(&mut second));
            assert_eq!([&first[..n], &second[..m]].concat(), b"abcd\ne", "{cut}");
        }
    }
}
