//! Element types of buffers: storage only. Arithmetic is always f32, whatever the storage.

use serde::{Deserialize, Serialize};

/// Storage type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// The upper half of a binary32.
    Bf16,
    /// Unsigned 32-bit: token ids, positions, block tables.
    U32,
    /// Bytes: staging buffers, text.
    U8,
    /// A sign, four exponent bits, three mantissa bits, times a block's scale: first moments.
    E4M3,
    /// Five exponent bits, three mantissa bits, times a block's scale: second moments.
    E5M3,
}

impl DType {
    /// Returns the bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::Bf16 => 2,
            DType::U8 | DType::E4M3 | DType::E5M3 => 1,
        }
    }

    /// Returns the name in run files and plans.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::U32 => "u32",
            DType::U8 => "u8",
            DType::E4M3 => "e4m3",
            DType::E5M3 => "e5m3",
        }
    }
}
