//! Reads a tensor of a request: dense or CSR, of four types, into a dense one whose size was bounded before it exists.

use super::proto::{WireFields, WireValue, push_integers};
use plimsoll_base::{Error, Result};

/// Most axes of a tensor.
const AXES_MAX: usize = 2;

/// Numbers of a tensor, row by row.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    Floats(Vec<f32>),
    Integers(Vec<i64>),
}

/// A dense tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// [rows] or [rows, columns].
    pub shape: Vec<usize>,
    pub numbers: Numbers,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    F32,
    I64,
    I32,
    Bf16,
}

impl Kind {
    fn of(number: i64, name: &str) -> Result<Kind> {
        Ok(match number {
            1 => Kind::F32,
            2 => Kind::I64,
            3 => Kind::I32,
            4 => Kind::Bf16,
            other => {
                let message = format!("{name} has the dtype {other}");
                return Err(Error::new("tinker-bad-request", message)
                    .hint("the dtypes are float32 (1), int64 (2), int32 (3) and bfloat16 (4)"));
            }
        })
    }

    fn bytes(self) -> usize {
        match self {
            Kind::I64 => 8,
            Kind::F32 | Kind::I32 => 4,
            Kind::Bf16 => 2,
        }
    }

    fn numbers(self, bytes: &[u8]) -> Numbers {
        match self {
            Kind::F32 => {
                Numbers::Floats(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
            }
            // It is the upper half of an f32.
            Kind::Bf16 => Numbers::Floats(
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16))
                    .collect(),
            ),
            Kind::I64 => Numbers::Integers(integers(bytes)),
            Kind::I32 => Numbers::Integers(
                bytes.as_chunks().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect(),
            ),
        }
    }
}

/// Reads a `Tensor`, of which at most `most` numbers may exist when it is dense.
///
/// Errors: `tinker-bad-request`, which begins with `name`.
pub fn read(name: &str, bytes: &[u8], most: usize) -> Result<Dense> {
    let mut fields = WireFields::of("Tensor", bytes);
    let (mut dense, mut sparse, mut kind, mut shape) = (None, None, 0, Vec::new());
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => (dense, sparse) = (Some(value.bytes(name)?), None),
            2 => (dense, sparse) = (None, Some(value.bytes(name)?)),
            3 => kind = value.integer(name)?,
            4 => push_integers(value, "Tensor.shape", AXES_MAX, &mut shape)?,
            _ => {}
        }
    }
    let kind = Kind::of(kind, name)?;
    let shape: Option<Vec<usize>> = shape.into_iter().map(|n| usize::try_from(n).ok()).collect();
    let shape = shape.ok_or_else(|| bad(name, "its shape has a negative number"))?;
    let count = shape.iter().try_fold(1usize, |count, n| count.checked_mul(*n));
    let count = count.filter(|count| *count <= most);
    let count = count.ok_or_else(|| {
        bad(name, &format!("its shape {shape:?} has more numbers than the {most} that a request may have"))
    })?;
    let Some(sparse) = sparse else {
        let dense = dense.unwrap_or_default();
        if dense.len() % kind.bytes() != 0 || dense.len() / kind.bytes() > most {
            return Err(bad(name, &format!("{} bytes are no tensor of this dtype", dense.len())));
        }
        let given = dense.len() / kind.bytes();
        let shape = if shape.is_empty() { vec![given] } else { shape };
        if shape.iter().product::<usize>() != given {
            return Err(bad(name, &format!("its shape {shape:?} and its {given} numbers differ")));
        }
        return Ok(Dense { shape, numbers: kind.numbers(dense) });
    };
    let [rows, columns] = shape[..] else {
        return Err(bad(name, "a sparse tensor has two axes"));
    };
    let numbers = spread(name, sparse, kind, (rows, columns), count)?;
    Ok(Dense { shape, numbers })
}

/// Makes a dense tensor of a CSR one; what is not listed is 0.
fn spread(
    name: &str,
    bytes: &[u8],
    kind: Kind,
    (rows, columns): (usize, usize),
    count: usize,
) -> Result<Numbers> {
    let mut parts: [&[u8]; 3] = [&[]; 3];
    let mut fields = WireFields::of("SparseCsr", bytes);
    while let Some((number, value)) = fields.next()? {
        if let Some(part) = usize::try_from(number).ok().and_then(|n| parts.get_mut(n.wrapping_sub(1))) {
            *part = value.bytes(name)?;
        }
    }
    let [values, starts, indices] = parts;
    let listed = values.len() / kind.bytes();
    let has_lengths = starts.len() == rows.saturating_add(1).saturating_mul(8) && indices.len() == listed * 8;
    if !has_lengths || values.len() != listed * kind.bytes() {
        let message =
            format!("{listed} values with {} row starts and {} columns", starts.len() / 8, indices.len() / 8);
        return Err(bad(name, &format!("{message} are no CSR tensor of {rows} rows")));
    }
    let (starts, indices) = (integers(starts), integers(indices));
    let goes_up = starts.first() == Some(&0)
        && starts.last() == Some(&(listed as i64))
        && starts.windows(2).all(|pair| pair[0] <= pair[1]);
    if !goes_up || !indices.iter().all(|column| usize::try_from(*column).is_ok_and(|c| c < columns)) {
        return Err(bad(name, "its row starts or columns are outside of the tensor"));
    }
    let place = |row: usize, at: usize| row * columns + indices[at].unsigned_abs() as usize;
    let at = |row: usize| starts[row].unsigned_abs() as usize..starts[row + 1].unsigned_abs() as usize;
    Ok(match kind.numbers(values) {
        Numbers::Floats(values) => {
            let mut dense = vec![0.0; count];
            (0..rows).for_each(|row| at(row).for_each(|i| dense[place(row, i)] = values[i]));
            Numbers::Floats(dense)
        }
        Numbers::Integers(values) => {
            let mut dense = vec![0; count];
            (0..rows).for_each(|row| at(row).for_each(|i| dense[place(row, i)] = values[i]));
            Numbers::Integers(dense)
        }
    })
}

fn integers(bytes: &[u8]) -> Vec<i64> {
    bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()
}

fn bad(name: &str, what: &str) -> Error {
    Error::new("tinker-bad-request", format!("{name}: {what}"))
}

impl WireValue<'_> {
    /// Reads token ids that are int32 bytes.
    ///
    /// Errors: `tinker-bad-request`.
    pub fn tokens(self, name: &str) -> Result<Vec<u32>> {
        let bytes = self.bytes(name)?;
        let (words, rest) = bytes.as_chunks::<4>();
        let tokens: Option<Vec<u32>> =
            words.iter().map(|word| u32::try_from(i32::from_le_bytes(*word)).ok()).collect();
        tokens.filter(|_| rest.is_empty()).ok_or_else(|| bad(name, "its bytes are no token ids of int32"))
    }
}
