//! Finds every occurrence of some hundreds of literals in bytes, faster than an automaton reads them.
//!
//! Looks up four bytes at every second place in a table of bits. Each literal has two four-byte windows in it, one for
//! even and one for odd places, so each occurrence is met exactly once. Windows are chosen by how rare their bytes are
//! in logs. A literal that is too short has a window with one byte of any value.

/// Bytes of a window.
const WINDOW: usize = 4;
/// Bytes from one window to the next.
const STRIDE: usize = 2;
/// The shortest literal that has a window for both parities.
const LITERAL_BYTES_MIN: usize = 3;
/// Windows looked up before the first hit is handled.
const BLOCK: usize = 8;
/// 2^18 bits are 32 KiB, which stay in the L1 cache; windows of any value take 8,000 of them.
const HASH_BITS: u32 = 18;
/// Bits of the hash by which places are listed.
const LIST_BITS: u32 = 14;

/// The place of a window in a literal.
#[derive(Clone, Copy, Debug)]
struct Place {
    window: u32,
    literal: u16,
    /// Bytes from the literal's start; -1 if the window begins with an arbitrary byte.
    offset: i16,
}

#[derive(Debug)]
pub struct Literals {
    literals: Vec<Vec<u8>>,
    /// A bit for the hash of each window.
    bits: Box<[u32; 1 << (HASH_BITS - 5)]>,
    /// Sorted by hash.
    places: Vec<Place>,
    /// The first place of each list, and the end.
    lists: Vec<u16>,
    bytes_max: usize,
}

impl Literals {
    /// Compiles literals of at least three bytes, of which each occurs once.
    pub fn new<L: AsRef<[u8]>>(literals: &[L]) -> Literals {
        let literals: Vec<Vec<u8>> = literals.iter().map(|literal| literal.as_ref().to_vec()).collect();
        let mut places: Vec<Place> = Vec::new();
        for (index, literal) in literals.iter().enumerate() {
            assert!(literal.len() >= LITERAL_BYTES_MIN, "the literal {literal:?} is too short");
            let index = u16::try_from(index).expect("fewer than 65,536 literals");
            (0..STRIDE).for_each(|parity| add_places(index, literal, parity, &mut places));
        }
        places.sort_by_key(|place| hash(place.window));
        let mut bits: Box<[u32; 1 << (HASH_BITS - 5)]> = Box::new([0; 1 << (HASH_BITS - 5)]);
        let mut lists = vec![0; (1 << LIST_BITS) + 1];
        for place in &places {
            let hash = hash(place.window);
            bits[hash as usize >> 5] |= 1 << (hash & 31);
            lists[list(hash) + 1] += 1;
        }
        assert!(places.len() <= usize::from(u16::MAX), "{} windows", places.len());
        (0..1 << LIST_BITS).for_each(|at| lists[at + 1] += lists[at]);
        let bytes_max = literals.iter().map(Vec::len).max().unwrap_or(0);
        Literals { literals, bits, places, lists, bytes_max }
    }

    /// Calls `visit` with each (literal, start) in `from..to` whose window is there; `holds` tells if it is an
    /// occurrence. Starts rise, except within the length of a literal.
    pub fn candidates(&self, bytes: &[u8], from: usize, to: usize, mut visit: impl FnMut(usize, usize)) {
        let end = bytes.len().min(to + self.bytes_max);
        let mut at = from;
        let mut look = |window: u32, at: usize| {
            for place in self.places_of(window) {
                let start = at.wrapping_sub_signed(isize::from(place.offset));
                if (from..to).contains(&start) {
                    visit(usize::from(place.literal), start);
                }
            }
        };
        const SPAN: usize = BLOCK * STRIDE;
        while let Some(block) = bytes[..end].get(at..at + SPAN + WINDOW - STRIDE) {
            let mut hits = 0_u32;
            for index in 0..BLOCK {
                hits |= self.is_known(window(block, index * STRIDE)) << index;
            }
            while hits != 0 {
                let place = hits.trailing_zeros() as usize * STRIDE;
                look(window(block, place), at + place);
                hits &= hits - 1;
            }
            at += SPAN;
        }
        while at < end {
            // Bytes past the end are arbitrary, and no literal includes them.
            let mut tail = [0; WINDOW];
            let rest = &bytes[at..bytes.len().min(at + WINDOW)];
            tail[..rest.len()].copy_from_slice(rest);
            look(u32::from_le_bytes(tail), at);
            at += STRIDE;
        }
    }

    /// Returns true if the literal is at `start`.
    pub fn holds(&self, literal: usize, bytes: &[u8], start: usize) -> bool {
        bytes[start..].starts_with(&self.literals[literal])
    }

    fn is_known(&self, window: u32) -> u32 {
        let hash = hash(window);
        self.bits[hash as usize >> 5] >> (hash & 31) & 1
    }

    fn places_of(&self, window: u32) -> impl Iterator<Item = &Place> {
        let list = list(hash(window));
        let range = usize::from(self.lists[list])..usize::from(self.lists[list + 1]);
        self.places[range].iter().filter(move |place| place.window == window)
    }
}

fn window(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + WINDOW].try_into().expect("four bytes"))
}

fn hash(window: u32) -> u32 {
    window.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)
}

fn list(hash: u32) -> usize {
    (hash >> (HASH_BITS - LIST_BITS)) as usize
}

/// Adds a literal's rarest window for places of one parity.
fn add_places(index: u16, literal: &[u8], parity: usize, places: &mut Vec<Place>) {
    let offsets = (parity..literal.len().saturating_sub(WINDOW - 1)).step_by(STRIDE);
    if let Some(offset) = offsets.min_by_key(|&at| commonness(&literal[at..at + WINDOW])) {
        let offset_word = i16::try_from(offset).expect("a literal is short");
        places.push(Place { window: window(literal, offset), literal: index, offset: offset_word });
        return;
    }
    for any in 0..=u8::MAX {
        // Even: the literal and a byte after it. Odd: its last bytes and one after them, or one before it.
        let (text, offset) = match (parity, literal.len()) {
            (0, _) => ([literal[0], literal[1], literal[2], any], 0),
            (_, LITERAL_BYTES_MIN) => ([any, literal[0], literal[1], literal[2]], -1),
            (_, _) => ([literal[1], literal[2], literal[3], any], 1),
        };
        places.push(Place { window: u32::from_le_bytes(text), literal: index, offset });
    }
}

/// Estimates how common bytes are in logs.
fn commonness(bytes: &[u8]) -> u32 {
    let of = |byte: &u8| match byte {
        b'e' | b'a' | b'i' | b'n' | b'o' | b'r' | b's' | b't' | b' ' => 8,
        b'0'..=b'9' | b'.' | b':' | b'c' | b'd' | b'l' | b'm' | b'p' | b'u' => 6,
        b'a'..=b'z' | b'_' | b'/' | b'-' | b'=' | b',' => 4,
        b'E' | b'I' | b'N' | b'O' | b'R' | b'T' => 3,
        b'A'..=b'Z' => 2,
        _ => 1,
    };
    bytes.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(compiled: &Literals, bytes: &[u8], from: usize, to: usize) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        compiled.candidates(bytes, from, to, |literal, start| {
            if compiled.holds(literal, bytes, start) {
                found.push((start, literal));
            }
        });
        found.sort_unstable();
        found
    }

    fn expected(literals: &[&str], bytes: &[u8], from: usize, to: usize) -> Vec<(usize, usize)> {
        let starts = (from..to).flat_map(|start| (0..literals.len()).map(move |literal| (start, literal)));
        starts.filter(|&(start, literal)| bytes[start..].starts_with(literals[literal].as_bytes())).collect()
    }

    #[test]
    fn each_occurrence_is_met_once_wherever_it_is() {
        let literals = [
            "rss",
            "vLLM",
            "Error",
            " loss",
            "loss'",
            "CUDA out of memory",
            "out of memory",
            "vLL",
            "rssrss",
        ];
        let compiled = Literals::new(&literals);
        for literal in literals {
            for place in 0..40 {
                for after in 0..24 {
                    let text = [&b".".repeat(place), literal.as_bytes(), &b".".repeat(after)].concat();
                    for from in 0..3 {
                        let to = text.len() - usize::from(after > 20);
                        let expect = expected(&literals, &text, from, to);
                        assert_eq!(
                            found(&compiled, &text, from, to),
                            expect,
                            "{literal} {place} {after} {from}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn overlapping_occurrences_in_dense_text() {
        // A text of few letters, so that literals of it occur everywhere.
        let mut state = 1_u32;
        let mut letter = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            b"abAB"[(state >> 30) as usize]
        };
        let text: Vec<u8> = (0..4000).map(|_| letter()).collect();
        let literals = ["aba", "abab", "bbaab", "AaBbA", "ABAaba", "babaBAba", "aab"];
        for (from, to) in [(0, text.len()), (1, 2001), (37, 38), (100, 100), (3990, 4000)] {
            let expect = expected(&literals, &text, from, to);
            assert_eq!(found(&Literals::new(&literals), &text, from, to), expect, "{from}..{to}");
        }
        assert!(expected(&literals, &text, 0, text.len()).len() > 100);
    }
}
