//! The last bytes of a stream, for a worker's last words.

/// Keeps the last `capacity` bytes pushed.
#[derive(Debug)]
pub(crate) struct Ring {
    bytes: Vec<u8>,
    capacity: usize,
}

impl Ring {
    pub(crate) fn new(capacity: usize) -> Ring {
        Ring { bytes: Vec::with_capacity(capacity), capacity }
    }

    pub(crate) fn push(&mut self, new: &[u8]) {
        let new = &new[new.len().saturating_sub(self.capacity)..];
        let surplus = (self.bytes.len() + new.len()).saturating_sub(self.capacity);
        self.bytes.drain(..surplus);
        self.bytes.extend_from_slice(new);
    }

    /// Returns the last `lines` lines that are not blank, oldest first.
    pub(crate) fn last_lines(&self, lines: usize) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.bytes);
        let mut last: Vec<String> = text
            .lines()
            .rev()
            .filter(|line| !line.trim().is_empty())
            .take(lines)
            .map(str::to_string)
            .collect();
        last.reverse();
        last
    }

    pub(crate) fn contains(&self, needle: &str) -> bool {
        String::from_utf8_lossy(&self.bytes).contains(needle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_bytes_are_kept() {
        let mut ring = Ring::new(8);
        for part in ["abc\n", "defghij\n", "k\n"] {
            ring.push(part.as_bytes());
        }
        assert_eq!(ring.last_lines(5), ["fghij", "k"]);
        ring.push(&[b'x'; 100]);
        assert_eq!(ring.last_lines(1), ["xxxxxxxx"]);
    }
}
