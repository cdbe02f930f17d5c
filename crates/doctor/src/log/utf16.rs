//! Reads UTF-16 text, as PowerShell and some Windows loggers write it, as UTF-8.

use std::io::{self, BufReader, Cursor, Read};

/// Bytes to detect the type of a stream, or to convert at once.
const BLOCK_BYTES: usize = 4096;

/// Reads the next `BLOCK_BYTES` of a stream; fewer only at its end, or if nothing more comes in time.
pub fn block(read: &mut impl Read) -> io::Result<Vec<u8>> {
    let (mut block, mut length) = (vec![0; BLOCK_BYTES], 0);
    while length < BLOCK_BYTES {
        match read.read(&mut block[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            // The next read returns it again.
            Err(err) if err.kind() == io::ErrorKind::TimedOut && length > 0 => break,
            Err(err) => return Err(err),
        }
    }
    block.truncate(length);
    Ok(block)
}

/// Returns the stream as UTF-8, `head` first.
pub fn text_of(head: Vec<u8>, read: Box<dyn Read>) -> Box<dyn Read> {
    let order = utf16(&head);
    let whole = Cursor::new(head).chain(read);
    match order {
        Some(little) => {
            let read = BufReader::with_capacity(1 << 16, whole);
            Box::new(Utf16 { read, little, high: None, pending: Vec::new() })
        }
        None => Box::new(whole),
    }
}

/// Returns true for little-endian UTF-16, by its mark or by zeros in every other byte; `None` if it is not UTF-16.
fn utf16(head: &[u8]) -> Option<bool> {
    match head {
        [0xff, 0xfe, ..] => return Some(true),
        [0xfe, 0xff, ..] => return Some(false),
        _ => {}
    }
    let zeros = |odd: usize| head.iter().skip(odd).step_by(2).filter(|byte| **byte == 0).count();
    let (even, odd, pairs) = (zeros(0), zeros(1), head.len() / 2);
    let most = |count: usize| pairs >= 8 && count * 10 >= pairs * 9;
    match (most(even), most(odd)) {
        (false, true) => Some(true),
        (true, false) => Some(false),
        _ => None,
    }
}

/// Converts UTF-16 to UTF-8, unit by unit.
struct Utf16<R> {
    read: R,
    little: bool,
    high: Option<u16>,
    pending: Vec<u8>,
}

impl<R: Read> Utf16<R> {
    fn push(&mut self, unit: u16) {
        let mut put = |c: char| self.pending.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        match (self.high.take(), unit) {
            (Some(high), 0xdc00..=0xdfff) => {
                put(char::decode_utf16([high, unit]).next().and_then(|c| c.ok()).unwrap_or('\u{fffd}'));
            }
            (high, _) => {
                if high.is_some() {
                    put('\u{fffd}');
                }
                match unit {
                    0xfeff => {}
                    0xd800..=0xdbff => self.high = Some(unit),
                    _ => put(char::from_u32(u32::from(unit)).unwrap_or('\u{fffd}')),
                }
            }
        }
    }
}

impl<R: Read> Read for Utf16<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.pending.is_empty() {
            let chunk = block(&mut self.read)?;
            if chunk.is_empty() {
                return Ok(0);
            }
            for pair in chunk.chunks_exact(2) {
                let pair = [pair[0], pair[1]];
                self.push(if self.little { u16::from_le_bytes(pair) } else { u16::from_be_bytes(pair) });
            }
        }
        let length = buffer.len().min(self.pending.len());
        buffer[..length].copy_from_slice(&self.pending[..length]);
        self.pending.drain(..length);
        Ok(length)
    }
}
