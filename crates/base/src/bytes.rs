//! A count of bytes: never a bare `u64`, always checked, printed in binary units.

use crate::{Error, Result};
use std::fmt;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

impl Bytes {
    /// One mebibyte.
    pub const MIB: u64 = 1 << 20;

    /// Returns `n` mebibytes.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    /// Multiplies counts and an element size; an overflow is an error, never a wrap.
    pub fn checked(counts: &[u64], element_bytes: u64) -> Result<Bytes> {
        let product = counts.iter().try_fold(element_bytes, |acc, &n| acc.checked_mul(n));
        // Sizes beyond i64 cannot be addressed either, so they are refused as an overflow.
        product.filter(|&b| b <= i64::MAX as u64).map(Bytes).ok_or_else(|| {
            Error::new(
                "size-overflow",
                format!("a size of {counts:?} elements of {element_bytes} bytes overflows"),
            )
            .hint("check the lengths and counts in the run file or the model's config.json")
        })
    }

    /// Rounds up to a multiple of `align`, which is a power of two.
    pub fn align_up(self, align: u64) -> Bytes {
        debug_assert!(align.is_power_of_two());
        Bytes((self.0 + align - 1) & !(align - 1))
    }

    /// Reads `"60GiB"`, `"500 MB"`, `"1024"`. Decimal units (kB, MB, GB, TB) are powers of 1000.
    pub fn parse(text: &str) -> Result<Bytes> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..digits], text[digits..].trim());
        let factor: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kib" | "k" => 1 << 10,
            "mib" | "m" => 1 << 20,
            "gib" | "g" => 1 << 30,
            "tib" | "t" => 1 << 40,
            "kb" => 1000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(bad_bytes(text)),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Bytes).ok_or_else(|| bad_bytes(text));
        }
        let value = number.parse::<f64>().map_err(|_| bad_bytes(text))? * factor as f64;
        if value.is_finite() && (0.0..9.0e18).contains(&value) {
            Ok(Bytes(value as u64))
        } else {
            Err(bad_bytes(text))
        }
    }
}

fn bad_bytes(text: &str) -> Error {
    Error::usage("bad-bytes", format!("`{text}` is not a number of bytes"))
        .hint("write an integer or a string such as \"60GiB\" or \"500MB\"")
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in UNITS {
            if self.0 >= 1 << shift || shift == 0 {
                return match shift {
                    0 => write!(f, "{} B", self.0),
                    _ => write!(f, "{:.1} {unit}", self.0 as f64 / (1u64 << shift) as f64),
                };
            }
        }
        unreachable!("the last unit has shift 0")
    }
}

impl std::ops::Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}

impl std::ops::AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.0 += other.0;
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(iter: I) -> Bytes {
        iter.fold(Bytes(0), |a, b| a + b)
    }
}

impl serde::Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_binary_decimal_and_plain_numbers() {
        for (text, expect) in
            [("60GiB", 60u64 << 30), ("1024", 1024), ("1.5 MiB", 3 << 19), ("500MB", 500_000_000), ("0", 0)]
        {
            assert_eq!(Bytes::parse(text).unwrap(), Bytes(expect), "{text}");
        }
        for text in ["", "GiB", "-1", "12XB", "99999999999TiB", "nan"] {
            assert_eq!(Bytes::parse(text).unwrap_err().slug, "bad-bytes", "{text}");
        }
    }

    #[test]
    fn an_overflowing_size_is_an_error() {
        assert_eq!(Bytes::checked(&[u64::MAX, 2], 4).unwrap_err().slug, "size-overflow");
        assert_eq!(Bytes::checked(&[3, 5], 4).unwrap(), Bytes(60));
    }
}
