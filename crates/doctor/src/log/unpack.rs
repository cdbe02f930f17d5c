//! Unpacks gzipped logs, and stops at one that unpacks to more than a log would.

use flate2::read::MultiGzDecoder;
use std::cell::Cell;
use std::io::{self, BufReader, Read};
use std::rc::Rc;

/// Logs of a single progress bar unpack to some 200 times their size; the format allows 1032.
const RATIO_MAX: u64 = 400;
/// Bytes up to which any ratio is accepted.
const FREE_BYTES: u64 = 1 << 30;

pub struct Unpacked<R> {
    text: MultiGzDecoder<BufReader<Counted<R>>>,
    packed: Rc<Cell<u64>>,
    unpacked: u64,
}

impl<R: Read> Unpacked<R> {
    pub fn new(read: R) -> Unpacked<R> {
        let packed = Rc::new(Cell::new(0));
        let counted = Counted { read, count: packed.clone() };
        let text = MultiGzDecoder::new(BufReader::with_capacity(1 << 16, counted));
        Unpacked { text, packed, unpacked: 0 }
    }
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.unpacked > FREE_BYTES + RATIO_MAX * self.packed.get() {
            let what = format!("it unpacks to more than {RATIO_MAX} times its size, which no log does");
            return Err(io::Error::other(what));
        }
        let count = self.text.read(buffer)?;
        self.unpacked += count as u64;
        Ok(count)
    }
}

/// Counts the bytes read.
struct Counted<R> {
    read: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.read.read(buffer)?;
        self.count.set(self.count.get() + count as u64);
        Ok(count)
    }
}
