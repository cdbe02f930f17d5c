//! Remembers results by the shape of a line, so a log that repeats itself is not judged again and again.
//!
//! Two lines have one shape if they differ in times, fractions and large numbers only. A rule whose expression did not
//! match a line's message, whatever surrounds it, matches no line of that shape. Failures that the run survived several
//! times are put off, and looked at only if it did not go on.

/// Shapes to remember. Another one replaces an old one.
const SLOTS: usize = 1 << 15;
/// Whole numbers of up to three digits belong to the shape: exit codes, signals, HTTP statuses, error numbers.
const DIGITS_KEPT: usize = 3;
/// Mixed letters and digits in a row that form a name and not a word: 16 are 64 bits.
const NAME_BYTES: usize = 16;
/// Times that a run survives lines of a shape before they are put off.
const SURVIVED_OFTEN: u8 = 4;

#[derive(Debug)]
pub struct Memo {
    /// Words of bits per slot.
    words: usize,
    shapes: Vec<u64>,
    /// A bit for each rule that does not match.
    failed: Vec<u64>,
    /// True for a line of metrics.
    steps: Vec<Option<bool>>,
    survived: Vec<u8>,
    /// The file in which the run survived them.
    files: Vec<usize>,
    /// Rules that failed on a line and its neighbours: a hash of both.
    nearby: Vec<u64>,
}

impl Memo {
    pub fn new(rules: usize) -> Memo {
        let words = rules.div_ceil(64);
        Memo {
            words,
            shapes: vec![0; SLOTS],
            failed: vec![0; SLOTS * words],
            steps: vec![None; SLOTS],
            survived: vec![0; SLOTS],
            files: vec![0; SLOTS],
            nearby: vec![0; SLOTS],
        }
    }

    /// Returns the slot of a shape, empty if another one had it.
    pub fn slot(&mut self, shape: u64) -> usize {
        let slot = shape as usize % SLOTS;
        if self.shapes[slot] != shape {
            self.shapes[slot] = shape;
            self.failed[slot * self.words..][..self.words].fill(0);
            (self.steps[slot], self.survived[slot]) = (None, 0);
        }
        slot
    }

    pub fn has_failed(&self, slot: usize, rule: usize) -> bool {
        self.failed[slot * self.words + rule / 64] >> (rule % 64) & 1 == 1
    }

    pub fn fails(&mut self, slot: usize, rule: usize) {
        self.failed[slot * self.words + rule / 64] |= 1 << (rule % 64);
    }

    /// Returns true if a rule that spans lines failed on a line of this shape with neighbours of this shape.
    pub fn has_failed_nearby(&self, shape: u64, rule: usize) -> bool {
        let key = nearby(shape, rule);
        self.nearby[key as usize % SLOTS] == key
    }

    pub fn fails_nearby(&mut self, shape: u64, rule: usize) {
        let key = nearby(shape, rule);
        self.nearby[key as usize % SLOTS] = key;
    }

    pub fn is_step(&self, slot: usize) -> Option<bool> {
        self.steps[slot]
    }

    pub fn set_step(&mut self, slot: usize, is_step: bool) {
        self.steps[slot] = Some(is_step);
    }

    /// Records that the run went on after a line of that shape.
    pub fn survives(&mut self, shape: u64, file: usize) {
        let slot = self.slot(shape);
        if self.files[slot] != file {
            (self.files[slot], self.survived[slot]) = (file, 0);
        }
        self.survived[slot] = self.survived[slot].saturating_add(1);
    }

    pub fn is_survived(&self, slot: usize, file: usize) -> bool {
        self.survived[slot] >= SURVIVED_OFTEN && self.files[slot] == file
    }
}

/// Returns a hash of a shape and a rule, which is not 0.
fn nearby(shape: u64, rule: usize) -> u64 {
    let hash =
        (shape ^ (rule as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (hash ^ hash >> 32).max(1)
}

/// Returns the shape of a line, which is not 0.
pub fn shape(line: &[u8]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut mix = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let (mut at, mut before) = (0, b' ');
    while let Some(&byte) = line.get(at) {
        let is_begin = byte.is_ascii_alphabetic() && !before.is_ascii_alphanumeric();
        let name = if is_begin { name_end(line, at) } else { at };
        if name - at >= NAME_BYTES && line[at..name].iter().any(u8::is_ascii_digit) {
            mix(b'0');
            (at, before) = (name, b'0');
            continue;
        }
        if !byte.is_ascii_digit() || before.is_ascii_alphabetic() || before == b'_' {
            mix(byte);
            // A digit after a letter does not end a name: EL0004, cuda12.
            before = if byte.is_ascii_digit() { before } else { byte };
            at += 1;
            continue;
        }
        let name = name_end(line, at);
        if name - at >= NAME_BYTES {
            mix(b'0');
            (at, before) = (name, b'0');
            continue;
        }
        let (end, is_whole) = number_end(line, at);
        if is_whole && end - at <= DIGITS_KEPT {
            line[at..end].iter().for_each(|digit| mix(*digit))
        } else {
            mix(b'0')
        }
        (at, before) = (end, b'0');
    }
    hash ^= hash >> 29;
    hash.max(1)
}

/// Returns the end of the letters and digits that begin at `at`.
fn name_end(line: &[u8], at: usize) -> usize {
    line[at..].iter().position(|byte| !byte.is_ascii_alphanumeric()).map_or(line.len(), |end| at + end)
}

/// Returns the end of a number, a fraction or a time that begins at `at`, and whether it is a whole number.
fn number_end(line: &[u8], at: usize) -> (usize, bool) {
    let is_digit = |at: usize| line.get(at).is_some_and(u8::is_ascii_digit);
    let (mut end, mut is_whole) = (at, true);
    loop {
        if is_digit(end) {
            end += 1;
        } else if matches!(line.get(end), Some(b'.' | b':')) && is_digit(end + 1) {
            (end, is_whole) = (end + 2, false);
        } else {
            return (end, is_whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_shape() {
        let same = |a: &str, b: &str| shape(a.as_bytes()) == shape(b.as_bytes());
        for (a, b) in [
            ("2026-03-01 10:11:12,512 loss: 0.41", "2026-03-01 11:59:07,512 loss: 12.5"),
            ("step 10000 of 250000", "step 99999 of 250000"),
            ("Worker ID: 1c94f0c8a181db92a78aa3a8 x", "Worker ID: fc5934994a3279b1d55eadb6 x"),
            ("(WorkerDict pid=71876) x", "(WorkerDict pid=4000) x"),
        ] {
            assert!(same(a, b), "{a} {b}");
        }
        for (a, b) in [
            ("exited with code 0", "exited with code 1"),
            ("status 137", "status 139"),
            ("loss: nan", "loss: 0.4"),
            ("EL0004: x", "EJ0001: x"),
            ("exit code 0.", "exit code 1."),
            ("a", "b"),
        ] {
            assert!(!same(a, b), "{a} {b}");
        }
        assert_ne!(shape(b""), 0);
    }

    #[test]
    fn what_is_learnt_of_a_shape_ends_with_its_slot() {
        let mut memo = Memo::new(100);
        let slot = memo.slot(7);
        memo.fails(slot, 99);
        memo.set_step(slot, true);
        (0..4).for_each(|_| memo.survives(7, 2));
        assert!(memo.has_failed(slot, 99) && !memo.has_failed(slot, 35));
        assert!(memo.is_survived(slot, 2) && !memo.is_survived(slot, 1));
        assert_eq!(memo.slot(7 + SLOTS as u64), slot);
        assert!(!memo.has_failed(slot, 99) && !memo.is_survived(slot, 2) && memo.is_step(slot).is_none());
    }
}
