//! Spaces: the values of an observation or an action. Gymnasium's kinds of fixed size.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The type of one element, under numpy's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    /// One byte, 0 or 1.
    Bool,
    /// 8 bits, signed.
    Int8,
    /// 16 bits, signed.
    Int16,
    /// 32 bits, signed.
    Int32,
    /// 64 bits, signed.
    Int64,
    /// 8 bits, unsigned.
    Uint8,
    /// 16 bits, unsigned.
    Uint16,
    /// 32 bits, unsigned.
    Uint32,
    /// 64 bits, unsigned.
    Uint64,
    /// IEEE binary32.
    Float32,
    /// IEEE binary64.
    Float64,
}

impl ElementType {
    /// Returns the bytes of one element, which are its alignment too.
    pub const fn bytes(self) -> usize {
        match self {
            ElementType::Bool | ElementType::Int8 | ElementType::Uint8 => 1,
            ElementType::Int16 | ElementType::Uint16 => 2,
            ElementType::Int32 | ElementType::Uint32 | ElementType::Float32 => 4,
            ElementType::Int64 | ElementType::Uint64 | ElementType::Float64 => 8,
        }
    }

    /// Returns numpy's name.
    pub const fn name(self) -> &'static str {
        const NAMES: [&str; 11] = [
            "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32",
            "float64",
        ];
        NAMES[self as usize]
    }

    /// Reads the element at the start of `bytes`, in the machine's byte order.
    pub fn read(self, bytes: &[u8]) -> f64 {
        macro_rules! read {
            ($type:ty, $n:literal) => {
                <$type>::from_ne_bytes(*bytes.first_chunk::<$n>().expect("an element has its bytes")) as f64
            };
        }
        match self {
            ElementType::Bool | ElementType::Uint8 => f64::from(bytes[0]),
            ElementType::Int8 => read!(i8, 1),
            ElementType::Int16 => read!(i16, 2),
            ElementType::Int32 => read!(i32, 4),
            ElementType::Int64 => read!(i64, 8),
            ElementType::Uint16 => read!(u16, 2),
            ElementType::Uint32 => read!(u32, 4),
            ElementType::Uint64 => read!(u64, 8),
            ElementType::Float32 => read!(f32, 4),
            ElementType::Float64 => read!(f64, 8),
        }
    }

    /// Writes `value`, rounded to the type, at the start of `bytes`.
    pub fn write(self, value: f64, bytes: &mut [u8]) {
        macro_rules! write {
            ($type:ty, $n:literal) => {
                *bytes.first_chunk_mut::<$n>().expect("an element has its bytes") =
                    (value as $type).to_ne_bytes()
            };
        }
        match self {
            ElementType::Bool => bytes[0] = u8::from(value != 0.0),
            ElementType::Int8 => write!(i8, 1),
            ElementType::Int16 => write!(i16, 2),
            ElementType::Int32 => write!(i32, 4),
            ElementType::Int64 => write!(i64, 8),
            ElementType::Uint8 => write!(u8, 1),
            ElementType::Uint16 => write!(u16, 2),
            ElementType::Uint32 => write!(u32, 4),
            ElementType::Uint64 => write!(u64, 8),
            ElementType::Float32 => write!(f32, 4),
            ElementType::Float64 => write!(f64, 8),
        }
    }
}

/// The values of an observation or an action.
///
/// In JSON: an object with `kind` in lower case and the fields below; an infinite bound is `null`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Space {
    /// An array of numbers.
    Box {
        /// Type of an element.
        dtype: ElementType,
        /// Axes, outermost first; empty for one number.
        shape: Vec<usize>,
        /// Lower bounds: one for all elements, or one for each in memory order.
        #[serde(serialize_with = "write_bounds", deserialize_with = "read_low")]
        low: Vec<f64>,
        /// Upper bounds: one for all elements, or one for each in memory order.
        #[serde(serialize_with = "write_bounds", deserialize_with = "read_high")]
        high: Vec<f64>,
    },
    /// One of `start .. start + n`, as int64.
    Discrete {
        /// Number of values.
        n: u64,
        /// The smallest value.
        #[serde(default)]
        start: i64,
    },
    /// Several choices, each of `0 .. nvec[i]`, as int64.
    MultiDiscrete {
        /// Number of values of each.
        nvec: Vec<u64>,
    },
    /// An array of 0 and 1, as int8.
    MultiBinary {
        /// Axes, outermost first.
        shape: Vec<usize>,
    },
    /// Named parts, in the order of their sorted names.
    Dict {
        /// Name and space.
        spaces: Vec<(String, Space)>,
    },
    /// Parts in order.
    Tuple {
        /// The parts.
        spaces: Vec<Space>,
    },
}

impl Space {
    /// Makes a box of f32 with the same bounds for all elements.
    pub fn box_f32(shape: &[usize], low: f32, high: f32) -> Space {
        Space::Box {
            dtype: ElementType::Float32,
            shape: shape.to_vec(),
            low: vec![low.into()],
            high: vec![high.into()],
        }
    }

    /// Makes a space of `n` choices from 0.
    pub fn discrete(n: u64) -> Space {
        Space::Discrete { n, start: 0 }
    }
}

fn write_bounds<S: Serializer>(bounds: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(bounds.iter().map(|bound| bound.is_finite().then_some(*bound)))
}

fn read_low<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    read_bounds(deserializer, f64::NEG_INFINITY)
}

fn read_high<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    read_bounds(deserializer, f64::INFINITY)
}

fn read_bounds<'de, D: Deserializer<'de>>(deserializer: D, none: f64) -> Result<Vec<f64>, D::Error> {
    let bounds = Vec::<Option<f64>>::deserialize(deserializer)?;
    Ok(bounds.into_iter().map(|bound| bound.unwrap_or(none)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_reads_back_as_it_was_written() {
        use ElementType::*;
        let mut bytes = [0u8; 8];
        for (element, value) in [
            (Bool, 1.0),
            (Int8, -128.0),
            (Int16, -300.0),
            (Int32, -70_000.0),
            (Int64, -5e9),
            (Uint8, 255.0),
            (Uint16, 65_535.0),
            (Uint32, 4e9),
            (Uint64, 1e12),
            (Float32, 0.5),
            (Float64, 0.1),
        ] {
            element.write(value, &mut bytes);
            assert_eq!(element.read(&bytes), value, "{element:?}");
            assert_eq!(serde_json::to_value(element).unwrap(), element.name());
        }
    }

    #[test]
    fn a_space_reads_back_from_json_with_its_infinite_bounds() {
        let space = Space::Dict {
            spaces: vec![
                ("choice".into(), Space::Discrete { n: 3, start: -1 }),
                ("speed".into(), Space::box_f32(&[2], f32::NEG_INFINITY, f32::INFINITY)),
            ],
        };
        let text = serde_json::to_string(&space).unwrap();
        assert!(text.contains(r#""low":[null]"#), "{text}");
        assert_eq!(serde_json::from_str::<Space>(&text).unwrap(), space);
        assert!(serde_json::from_str::<Space>(r#"{"kind":"graph"}"#).is_err());
    }
}
