//! Detects streams that are not logs: bytes that are not text, or lines that never end.

use super::limits::{BINARY_BYTES_MAX, LINE_BYTES_MAX};
use memchr::memrchr2;
use plimsoll_base::Bytes;

/// Tells whether input is text: lines that end, of printable characters.
#[derive(Debug, Default)]
pub struct Text {
    /// Bytes since the last line end.
    unended: u64,
    bytes: u64,
    /// Bytes of parts that are not text.
    binary: u64,
}

impl Text {
    /// Bytes of a part to judge its kind by.
    const SAMPLE: usize = 4 << 10;

    pub fn see(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.unended = match memrchr2(b'\n', b'\r', bytes) {
            Some(at) => (bytes.len() - at) as u64,
            None => self.unended + bytes.len() as u64,
        };
        let sample = &bytes[..bytes.len().min(Text::SAMPLE)];
        let strange = sample.iter().filter(|byte| matches!(byte, 0..=6 | 14..=26 | 28..=31 | 127)).count();
        if strange * 20 > sample.len() {
            self.binary += bytes.len() as u64;
        }
    }

    pub fn is_binary(&self) -> bool {
        self.bytes >= Text::SAMPLE as u64 && self.binary * 2 > self.bytes
    }

    /// Returns why reading stops.
    pub fn refuses(&self, is_endless: bool) -> Option<String> {
        if self.unended > LINE_BYTES_MAX {
            return Some(format!("no line ended within {}: it is no log", Bytes(LINE_BYTES_MAX)));
        }
        let is_junk = is_endless && self.bytes > BINARY_BYTES_MAX && self.is_binary();
        is_junk.then(|| format!("{} of it were binary: it is no log", Bytes(BINARY_BYTES_MAX)))
    }
}
