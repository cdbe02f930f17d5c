//! The GGUF container, versions 2 and 3, little-endian: metadata values and the table of tensors. Every count is
//! compared with the bytes left before anything is allocated for it.
//!
//! Source: the GGUF specification of the ggml project.

use crate::gguf::names::{ALIGNMENT, MAGIC, key, kind};
use crate::storage::Storage;
use plimsoll_base::{Bytes, Encoding, Error, Result, shown, shown_number};
use std::collections::HashMap;
use std::fmt;

const KEYS_MAX: u64 = 1 << 16;
const TENSORS_MAX: u64 = 1 << 17;
const ARRAY_MAX: u64 = 1 << 23; // tokens and merges of the largest vocabularies are below 2^20
const STRING_BYTES_MAX: u64 = 16 << 20;
const HEADER_BYTES_MAX: u64 = 1 << 30;
/// Most memory for metadata: a list of bytes takes eight times its size, 262,144 tokens with merges take 50 MiB.
const METADATA_BYTES_MAX: u64 = 192 << 20;
/// Memory of a string besides its text: pointer, length and capacity, and the allocator's header.
const STRING_BYTES: u64 = 40;
const AXES_MAX: u32 = 4;
const WINDOW_BYTES: usize = 1 << 18;
/// Unsupported types in files, by their number in ggml.
#[rustfmt::skip]
const OTHER_TYPES: [(u32, &str); 23] = [
    (9, "Q8_1"), (10, "Q2_K"), (11, "Q3_K"), (15, "Q8_K"), (16, "IQ2_XXS"), (17, "IQ2_XS"),
    (18, "IQ3_XXS"), (19, "IQ1_S"), (20, "IQ4_NL"), (21, "IQ3_S"), (22, "IQ2_S"), (23, "IQ4_XS"),
    (24, "I8"), (25, "I16"), (26, "I32"), (27, "I64"), (28, "F64"), (29, "IQ1_M"),
    (34, "TQ1_0"), (35, "TQ2_0"), (39, "MXFP4"), (40, "NVFP4"), (41, "Q1_0"),
];

#[derive(Debug)]
pub(crate) struct Gguf {
    /// The file's name in messages.
    pub(crate) file: String,
    pub(crate) metadata: HashMap<String, GgufValue>,
    pub(crate) tensors: Vec<GgufTensor>,
}

/// One metadata value, integers widened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GgufValue {
    Int(i64),
    Float(f64),
    Bool(bool),
    Str(String),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Bools(Vec<bool>),
    Strs(Vec<String>),
}

/// Shows a value in messages: a list by its length, text by its beginning.
impl fmt::Display for GgufValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = match self {
            GgufValue::Int(n) => return write!(f, "{n}"),
            GgufValue::Float(x) => return f.write_str(&shown_number(*x)),
            GgufValue::Bool(b) => return write!(f, "{b}"),
            GgufValue::Str(text) => return write!(f, "{:?}", shown(text)),
            GgufValue::Ints(list) => list.len(),
            GgufValue::Floats(list) => list.len(),
            GgufValue::Bools(list) => list.len(),
            GgufValue::Strs(list) => list.len(),
        };
        write!(f, "a list of {length}")
    }
}

/// One tensor, its axes slowest first, its offset from the start of the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GgufTensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) encoding: Encoding,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Gguf {
    /// Reads and checks the header of `storage`.
    pub(crate) fn parse(storage: &Storage) -> Result<Gguf> {
        let mut reader = Reader { storage, position: 0, window: Vec::new(), window_start: 0, held_bytes: 0 };
        let magic = reader.bytes::<4>()?;
        if magic != MAGIC {
            return Err(reader.corrupt(format!("begins with {magic:02x?}, a GGUF file begins with `GGUF`")));
        }
        let version = reader.u32()?;
        if !(2..=3).contains(&version) {
            return Err(reader.corrupt(format!("GGUF version {version}, read are 2 and 3")));
        }
        let num_tensors = reader.count(TENSORS_MAX, 24, "tensors")?;
        let num_keys = reader.count(KEYS_MAX, 13, "metadata keys")?;
        let mut metadata = HashMap::with_capacity(num_keys);
        for _ in 0..num_keys {
            let key = reader.string()?;
            let kind = reader.u32()?;
            let value = reader.value(kind, &key)?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(reader.corrupt(format!("metadata key `{}` is there twice", shown(&key))));
            }
        }
        let mut tensors = Vec::with_capacity(num_tensors);
        for _ in 0..num_tensors {
            tensors.push(reader.tensor()?);
        }
        let alignment = match metadata.get(key::ALIGNMENT) {
            None => ALIGNMENT,
            Some(GgufValue::Int(n)) if *n > 0 && *n <= 1 << 20 && (*n as u64).is_power_of_two() => *n as u64,
            Some(other) => return Err(reader.corrupt(format!("general.alignment = {other}"))),
        };
        let data_start = reader.position.div_ceil(alignment) * alignment;
        place_tensors(&mut tensors, data_start, alignment, &reader)?;
        Ok(Gguf { file: storage.name(), metadata, tensors })
    }
}

/// Makes offsets relative to the file, and requires that tensors are inside it and disjoint.
fn place_tensors(tensors: &mut [GgufTensor], data_start: u64, alignment: u64, reader: &Reader) -> Result<()> {
    let file_bytes = reader.storage.bytes();
    for tensor in tensors.iter_mut() {
        let name = shown(&tensor.name).into_owned();
        if tensor.offset % alignment != 0 {
            let what = format!("tensor `{name}` at offset {}, not a multiple of {alignment}", tensor.offset);
            return Err(reader.corrupt(what));
        }
        let start = data_start.checked_add(tensor.offset);
        let end = start.and_then(|start| start.checked_add(tensor.bytes));
        let (Some(start), Some(end)) = (start, end) else {
            return Err(
                reader.corrupt(format!("tensor `{name}` at offset {} ends beyond 2^64", tensor.offset))
            );
        };
        if end > file_bytes {
            let message = format!(
                "{}: tensor `{name}` ends at byte {end}, the file has {file_bytes}",
                reader.storage.name()
            );
            return Err(Error::new("model-file-truncated", message).hint("fetch or copy the file again"));
        }
        tensor.offset = start;
    }
    let mut order: Vec<&GgufTensor> = tensors.iter().collect();
    order.sort_by_key(|t| t.offset);
    for pair in order.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            let (first, second) = (shown(&pair[0].name), shown(&pair[1].name));
            return Err(reader.corrupt(format!("tensors `{first}` and `{second}` overlap")));
        }
    }
    order.sort_by(|a, b| a.name.cmp(&b.name));
    match order.windows(2).find(|pair| pair[0].name == pair[1].name) {
        Some(pair) => Err(reader.corrupt(format!("tensor `{}` is listed twice", shown(&pair[0].name)))),
        None => Ok(()),
    }
}

/// A sequential reader with a window of fixed size.
struct Reader<'a> {
    storage: &'a Storage,
    position: u64,
    window: Vec<u8>,
    window_start: u64,
    /// Memory of what was read so far.
    held_bytes: u64,
}

impl Reader<'_> {
    fn left(&self) -> u64 {
        self.storage.bytes() - self.position
    }

    fn read(&mut self, out: &mut [u8]) -> Result<()> {
        if out.len() as u64 > self.left() {
            let what = format!("the header goes on beyond the file's {} bytes", self.storage.bytes());
            return Err(self.corrupt(what));
        }
        if self.position + out.len() as u64 > HEADER_BYTES_MAX {
            return Err(self.corrupt(format!("header of more than {HEADER_BYTES_MAX} bytes")));
        }
        if out.len() > WINDOW_BYTES {
            self.storage.read_exact_at(out, self.position)?;
        } else {
            let window_end = self.window_start + self.window.len() as u64;
            if self.position < self.window_start || self.position + out.len() as u64 > window_end {
                self.window.resize(WINDOW_BYTES.min(self.left() as usize), 0);
                self.window_start = self.position;
                self.storage.read_exact_at(&mut self.window, self.position)?;
            }
            let at = (self.position - self.window_start) as usize;
            out.copy_from_slice(&self.window[at..at + out.len()]);
        }
        self.position += out.len() as u64;
        Ok(())
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        self.read(&mut out)?;
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// Reads a count of items of at least `least_bytes` each.
    fn count(&mut self, limit: u64, least_bytes: u64, what: &str) -> Result<usize> {
        let count = self.u64()?;
        if count > limit || count > self.left() / least_bytes {
            let left = self.left();
            return Err(
                self.corrupt(format!("{count} {what} announced, {left} bytes are left (limit {limit})"))
            );
        }
        Ok(count as usize)
    }

    /// Counts memory before it is allocated.
    fn hold(&mut self, bytes: u64) -> Result<()> {
        self.held_bytes += bytes;
        if self.held_bytes > METADATA_BYTES_MAX {
            let (held, limit) = (Bytes(self.held_bytes), Bytes(METADATA_BYTES_MAX));
            return Err(
                self.corrupt(format!("metadata and names that take {held} in memory, the limit is {limit}"))
            );
        }
        Ok(())
    }

    fn string(&mut self) -> Result<String> {
        let length = self.count(STRING_BYTES_MAX, 1, "bytes of a string")?;
        self.hold(STRING_BYTES + length as u64)?;
        let mut bytes = vec![0; length];
        self.read(&mut bytes)?;
        String::from_utf8(bytes).map_err(|e| self.corrupt(format!("a string is not UTF-8: {e}")))
    }

    fn value(&mut self, number: u32, key: &str) -> Result<GgufValue> {
        match number {
            kind::STRING => self.string().map(GgufValue::Str),
            kind::ARRAY => self.array(key),
            _ => self.scalar(number, key),
        }
    }

    fn scalar(&mut self, kind: u32, key: &str) -> Result<GgufValue> {
        Ok(match kind {
            0 => GgufValue::Int(self.bytes::<1>()?[0].into()),
            1 => GgufValue::Int((self.bytes::<1>()?[0] as i8).into()),
            2 => GgufValue::Int(u16::from_le_bytes(self.bytes()?).into()),
            3 => GgufValue::Int(i16::from_le_bytes(self.bytes()?).into()),
            4 => GgufValue::Int(self.u32()?.into()),
            5 => GgufValue::Int(i32::from_le_bytes(self.bytes()?).into()),
            6 => GgufValue::Float(f32::from_le_bytes(self.bytes()?).into()),
            7 => GgufValue::Bool(self.bytes::<1>()?[0] != 0),
            10 => {
                let wide = self.u64()?;
                let narrow = i64::try_from(wide).ok();
                GgufValue::Int(narrow.ok_or_else(|| self.corrupt(format!("{key} = {wide}, above 2^63")))?)
            }
            11 => GgufValue::Int(i64::from_le_bytes(self.bytes()?)),
            12 => GgufValue::Float(f64::from_le_bytes(self.bytes()?)),
            _ => {
                return Err(self.corrupt(format!("metadata key `{}` has value type {kind}", shown(key))));
            }
        })
    }

    fn array(&mut self, key: &str) -> Result<GgufValue> {
        let kind = self.u32()?;
        let least_bytes = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            _ => {
                let key = shown(key);
                return Err(self.corrupt(format!("metadata key `{key}` is a list of value type {kind}")));
            }
        };
        let count = self.count(ARRAY_MAX, least_bytes, "items of a list")?;
        if kind == 8 {
            // Not reserved up front: a string takes 24 bytes in memory but may take 8 in the file.
            return (0..count).map(|_| self.string()).collect::<Result<_>>().map(GgufValue::Strs);
        }
        self.hold(count as u64 * if kind == 6 || kind == 12 { 4 } else { 8 })?;
        let (mut ints, mut floats, mut bools) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..count {
            match self.scalar(kind, key)? {
                GgufValue::Int(n) => ints.push(n),
                GgufValue::Float(x) => floats.push(x as f32),
                GgufValue::Bool(b) => bools.push(b),
                _ => unreachable!("a scalar is one of these"),
            }
        }
        Ok(match kind {
            6 | 12 => GgufValue::Floats(floats),
            7 => GgufValue::Bools(bools),
            _ => GgufValue::Ints(ints),
        })
    }

    fn tensor(&mut self) -> Result<GgufTensor> {
        let name = self.string()?;
        let axes = self.u32()?;
        if !(1..=AXES_MAX).contains(&axes) {
            let name = shown(&name);
            return Err(self.corrupt(format!("tensor `{name}` has {axes} axes, read are 1 to {AXES_MAX}")));
        }
        let mut shape = (0..axes).map(|_| self.u64()).collect::<Result<Vec<u64>>>()?;
        // GGUF lists the fastest axis first.
        shape.reverse();
        let kind = self.u32()?;
        let offset = self.u64()?;
        let encoding = Encoding::of_gguf(kind).ok_or_else(|| self.unknown_encoding(&name, kind))?;
        let bytes = if shape.contains(&0) { None } else { encoding.tensor_bytes(&shape) };
        let bytes = bytes.ok_or_else(|| {
            let name = shown(&name);
            self.corrupt(format!("tensor `{name}` of shape {shape:?} cannot be {}", encoding.name()))
        })?;
        Ok(GgufTensor { name, shape, encoding, offset, bytes })
    }

    fn unknown_encoding(&self, name: &str, kind: u32) -> Error {
        let kind = match OTHER_TYPES.iter().find(|(number, _)| *number == kind) {
            Some((number, name)) => format!("{name}, which is GGUF type {number}"),
            None => format!("GGUF type {kind}"),
        };
        let message = format!("{}: tensor `{}` has {kind}", self.storage.name(), shown(name));
        Error::new("model-unsupported", message)
            .fact("read are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K")
            .hint("take a file of another quantisation, Q8_0 for instance")
    }

    fn corrupt(&self, what: String) -> Error {
        let message = format!("{}: {what} (byte {})", self.storage.name(), self.position);
        Error::new("model-file-corrupt", message).hint("fetch or copy the file again")
    }
}
