//! Values as bytes, for exchange among ranks: a header, then numbers as they are in memory, and texts and lists after
//! their lengths. A reader trusts no length: it allocates only what the bytes can fill, and says where they are wrong.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// First bytes of a message; the digit is the format's version.
const MAGIC: [u8; 4] = *b"PLX1";
/// Magic, kind, error flag, and the number of bytes that follow.
const HEADER_BYTES: usize = 4 + 1 + 1 + 8;

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Samples = 1,
    Episodes = 2,
    Advantages = 3,
    Teacher = 4,
    Carry = 5,
    Graded = 6,
    Apart = 7,
}

/// A value that was read, or words on why it cannot be.
pub(crate) type Read<T> = std::result::Result<T, String>;

/// A value that ranks send as bytes.
pub(crate) trait Packed: Sized {
    /// Minimum size of a value in bytes, at least 1.
    const LEAST: usize;

    fn put(&self, to: &mut Writer);
    fn take(from: &mut Reader<'_>) -> Read<Self>;

    fn put_all(items: &[Self], to: &mut Writer) {
        items.iter().for_each(|item| item.put(to));
    }

    /// Reads `count` values, which `from` has room for.
    fn take_all(count: usize, from: &mut Reader<'_>) -> Read<Vec<Self>> {
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(Self::take(from)?);
        }
        Ok(items)
    }
}

/// Returns a rank's message: its value, or the error that ended its part.
pub(crate) fn pack<T: Packed>(kind: Kind, own: Read<&T>) -> Vec<u8> {
    let put = |to: &mut Writer| match own {
        Ok(value) => value.put(to),
        Err(ref words) => words.put(to),
    };
    let mut to = Writer { bytes: Vec::new(), length: 0, counts: true };
    put(&mut to);
    let length = to.length;
    to = Writer { bytes: Vec::with_capacity(HEADER_BYTES + length), length: 0, counts: false };
    to.raw(&MAGIC);
    to.raw(&[kind as u8, own.is_err().into()]);
    to.raw(&(length as u64).to_le_bytes());
    put(&mut to);
    debug_assert_eq!(to.bytes.len(), HEADER_BYTES + length);
    to.bytes
}

/// Reads another rank's message: its value, or its error in words.
pub(crate) fn unpack<T: Packed>(kind: Kind, bytes: &[u8]) -> Read<Read<T>> {
    let mut from = Reader { bytes, at: 0 };
    let magic = from.raw(MAGIC.len())?;
    if magic != MAGIC {
        return Err(format!("it begins with {magic:02x?}, not with {MAGIC:02x?}"));
    }
    let (of, is_error) = (from.raw(1)?[0], from.raw(1)?[0]);
    if of != kind as u8 || is_error > 1 {
        return Err(format!("it is of kind {of} and {is_error}, not of {} and 0 or 1", kind as u8));
    }
    let (length, rest) = (u64::take(&mut from)?, from.left());
    if length != rest as u64 {
        return Err(format!("{rest} bytes follow its header, not {length}"));
    }
    let value = match is_error {
        0 => Ok(T::take(&mut from)?),
        _ => Err(String::take(&mut from)?),
    };
    match from.left() {
        0 => Ok(value),
        left => Err(format!("{left} bytes are left at its end")),
    }
}

#[derive(Debug)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    length: usize,
    /// True while only the length is computed.
    counts: bool,
}

impl Writer {
    fn raw(&mut self, bytes: &[u8]) {
        self.length += bytes.len();
        if !self.counts {
            self.bytes.extend_from_slice(bytes);
        }
    }

    fn words(&mut self, words: impl ExactSizeIterator<Item = u32>) {
        self.length += 4 * words.len();
        if !self.counts {
            let start = self.bytes.len();
            self.bytes.resize(start + 4 * words.len(), 0);
            let into = self.bytes[start..].as_chunks_mut::<4>().0;
            into.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
        }
    }
}

#[derive(Debug)]
pub(crate) struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn raw(&mut self, count: usize) -> Read<&'b [u8]> {
        let (at, left) = (self.at, self.left());
        if count > left {
            return Err(format!("at byte {at}: {count} bytes, and {left} are left"));
        }
        self.at += count;
        Ok(&self.bytes[at..at + count])
    }

    /// Reads how many values follow, each of at least `least` bytes.
    fn count(&mut self, least: usize) -> Read<usize> {
        let at = self.at;
        let (count, left) = (u32::take(self)? as usize, self.left());
        match count.checked_mul(least).is_some_and(|bytes| bytes <= left) {
            true => Ok(count),
            false => {
                Err(format!("at byte {at}: {count} values of {least} bytes or more, and {left} are left"))
            }
        }
    }

    fn words(&mut self, count: usize) -> Read<impl Iterator<Item = u32> + use<'b>> {
        Ok(self.raw(4 * count)?.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)))
    }

    /// Returns the error of an impossible value.
    pub(crate) fn refuse<T>(&self, what: &str) -> Read<T> {
        Err(format!("before byte {}: {what}", self.at))
    }
}

impl Packed for u32 {
    const LEAST: usize = 4;

    fn put(&self, to: &mut Writer) {
        to.raw(&self.to_le_bytes());
    }
    fn take(from: &mut Reader<'_>) -> Read<u32> {
        Ok(u32::from_le_bytes(from.raw(4)?.try_into().expect("four bytes")))
    }
    fn put_all(items: &[u32], to: &mut Writer) {
        to.words(items.iter().copied());
    }
    fn take_all(count: usize, from: &mut Reader<'_>) -> Read<Vec<u32>> {
        Ok(from.words(count)?.collect())
    }
}

/// Sent as its bits, which may be NaN.
impl Packed for f32 {
    const LEAST: usize = 4;

    fn put(&self, to: &mut Writer) {
        self.to_bits().put(to);
    }
    fn take(from: &mut Reader<'_>) -> Read<f32> {
        u32::take(from).map(f32::from_bits)
    }
    fn put_all(items: &[f32], to: &mut Writer) {
        to.words(items.iter().map(|x| x.to_bits()));
    }
    fn take_all(count: usize, from: &mut Reader<'_>) -> Read<Vec<f32>> {
        Ok(from.words(count)?.map(f32::from_bits).collect())
    }
}

impl Packed for u64 {
    const LEAST: usize = 8;

    fn put(&self, to: &mut Writer) {
        to.raw(&self.to_le_bytes());
    }
    fn take(from: &mut Reader<'_>) -> Read<u64> {
        Ok(u64::from_le_bytes(from.raw(8)?.try_into().expect("eight bytes")))
    }
}

/// Sent as a `u64`.
impl Packed for usize {
    const LEAST: usize = 8;

    fn put(&self, to: &mut Writer) {
        (*self as u64).put(to);
    }
    fn take(from: &mut Reader<'_>) -> Read<usize> {
        let count = u64::take(from)?;
        usize::try_from(count).or_else(|_| from.refuse(&format!("{count} is too large to count")))
    }
}

/// Sent as its bits.
impl Packed for f64 {
    const LEAST: usize = 8;

    fn put(&self, to: &mut Writer) {
        self.to_bits().put(to);
    }
    fn take(from: &mut Reader<'_>) -> Read<f64> {
        u64::take(from).map(f64::from_bits)
    }
}

impl Packed for bool {
    const LEAST: usize = 1;

    fn put(&self, to: &mut Writer) {
        to.raw(&[u8::from(*self)]);
    }
    fn take(from: &mut Reader<'_>) -> Read<bool> {
        match from.raw(1)?[0] {
            byte @ (0 | 1) => Ok(byte == 1),
            byte => from.refuse(&format!("{byte} is neither 0 nor 1")),
        }
    }
}

impl Packed for String {
    const LEAST: usize = 4;

    fn put(&self, to: &mut Writer) {
        (self.len() as u32).put(to);
        to.raw(self.as_bytes());
    }
    fn take(from: &mut Reader<'_>) -> Read<String> {
        let count = from.count(1)?;
        let text = std::str::from_utf8(from.raw(count)?);
        text.map(str::to_string).or_else(|err| from.refuse(&err.to_string()))
    }
}

impl<T: Packed> Packed for Option<T> {
    const LEAST: usize = 1;

    fn put(&self, to: &mut Writer) {
        self.is_some().put(to);
        if let Some(value) = self {
            value.put(to);
        }
    }
    fn take(from: &mut Reader<'_>) -> Read<Option<T>> {
        bool::take(from)?.then(|| T::take(from)).transpose()
    }
}

impl<T: Packed> Packed for Vec<T> {
    const LEAST: usize = 4;

    fn put(&self, to: &mut Writer) {
        (self.len() as u32).put(to);
        T::put_all(self, to);
    }
    fn take(from: &mut Reader<'_>) -> Read<Vec<T>> {
        let count = from.count(T::LEAST)?;
        T::take_all(count, from)
    }
}

impl<A: Packed, B: Packed> Packed for (A, B) {
    const LEAST: usize = A::LEAST + B::LEAST;

    fn put(&self, to: &mut Writer) {
        self.0.put(to);
        self.1.put(to);
    }
    fn take(from: &mut Reader<'_>) -> Read<(A, B)> {
        Ok((A::take(from)?, B::take(from)?))
    }
}

/// Writes small and rare values as JSON text.
pub(crate) fn put_json(value: &impl Serialize, to: &mut Writer) {
    serde_json::to_string(value).expect("plain data").put(to);
}

pub(crate) fn take_json<T: DeserializeOwned>(from: &mut Reader<'_>) -> Read<T> {
    let text = String::take(from)?;
    serde_json::from_str(&text).or_else(|err| from.refuse(&err.to_string()))
}

/// Implements `Packed` for a struct, field by field.
macro_rules! packed {
    ($name:ty { $($field:ident: $of:ty),+ $(,)? }) => {
        impl $crate::rollout::packed::Packed for $name {
            const LEAST: usize = 0 $(+ <$of as $crate::rollout::packed::Packed>::LEAST)+;

            fn put(&self, to: &mut $crate::rollout::packed::Writer) {
                $(<$of as $crate::rollout::packed::Packed>::put(&self.$field, to);)+
            }
            fn take(
                from: &mut $crate::rollout::packed::Reader<'_>,
            ) -> $crate::rollout::packed::Read<Self> {
                Ok(Self { $($field: <$of as $crate::rollout::packed::Packed>::take(from)?),+ })
            }
        }
    };
}

/// Implements `Packed` for small and rare types, as JSON text.
macro_rules! packed_as_json {
    ($($name:ty),+) => {$(
        impl $crate::rollout::packed::Packed for $name {
            const LEAST: usize = <String as $crate::rollout::packed::Packed>::LEAST;

            fn put(&self, to: &mut $crate::rollout::packed::Writer) {
                $crate::rollout::packed::put_json(self, to);
            }
            fn take(
                from: &mut $crate::rollout::packed::Reader<'_>,
            ) -> $crate::rollout::packed::Read<Self> {
                $crate::rollout::packed::take_json(from)
            }
        }
    )+};
}
pub(crate) use {packed, packed_as_json};

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct One {
        ids: Vec<u32>,
        logprobs: Vec<f32>,
        text: String,
        total: Option<f32>,
        named: Vec<(String, u64)>,
        is_last: bool,
    }
    packed!(One {
        ids: Vec<u32>,
        logprobs: Vec<f32>,
        text: String,
        total: Option<f32>,
        named: Vec<(String, u64)>,
        is_last: bool,
    });

    fn one(seed: u32) -> One {
        One {
            ids: (0..seed * 3).collect(),
            logprobs: (0..seed * 3).map(|x| -(x as f32) / 7.0).collect(),
            text: "eins, zwei, größer ".repeat(seed as usize),
            total: (seed % 2 == 1).then_some(0.1 * seed as f32),
            named: (0..u64::from(seed)).map(|x| (format!("n{x}"), x << 40)).collect(),
            is_last: seed == 4,
        }
    }

    fn many() -> Vec<One> {
        (0..5).map(one).collect()
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let bytes = pack(Kind::Samples, Ok(&many()));
        assert_eq!(unpack(Kind::Samples, &bytes), Ok(Ok(many())));
        let bytes = pack::<Vec<One>>(Kind::Episodes, Err("a-slug: words".into()));
        assert_eq!(unpack::<Vec<One>>(Kind::Episodes, &bytes), Ok(Err("a-slug: words".into())));
        let floats = vec![f32::NAN, -0.0, f32::from_bits(0x7fa0_0001), f32::INFINITY, f32::MIN_POSITIVE];
        let bytes = pack(Kind::Samples, Ok(&floats));
        let back: Vec<f32> = unpack(Kind::Samples, &bytes).expect("it is whole").expect("no error");
        assert!(back.iter().map(|x| x.to_bits()).eq(floats.iter().map(|x| x.to_bits())));
    }

    #[test]
    fn a_message_that_was_cut_or_changed_is_refused_and_never_believed() {
        let bytes = pack(Kind::Samples, Ok(&many()));
        let read = |bytes: &[u8]| unpack::<Vec<One>>(Kind::Samples, bytes);
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
        }
        assert!(read(&[&bytes[..], &[0]].concat()).is_err());
        assert!(unpack::<Vec<One>>(Kind::Episodes, &bytes).is_err());
        // A length field of each list in turn that claims more than there is.
        for at in 0..bytes.len() - 4 {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            // Numbers may be anything; what is read then is no larger than what was sent.
            if let Ok(Ok(items)) = read(&bytes) {
                assert!(items.len() == 5 && at >= HEADER_BYTES, "byte {at}");
            }
        }
        let words = read(b"PLX1\x01\x00\x04\0\0\0\0\0\0\0\xff\xff\xff\xff").expect_err("no values follow");
        assert_eq!(words, "at byte 14: 4294967295 values of 18 bytes or more, and 0 are left");
        assert!(read(b"{\"Ok\":[]}").expect_err("JSON").starts_with("it begins with [7b, 22, 4f, 6b]"));
    }
}

#[cfg(test)]
#[path = "packed_tests.rs"]
mod more_tests;
