//! Element types of buffers: storage only. Arithmetic is always f32, whatever the storage.

crate::names! {
    /// Storage type of one element, by its name in run files and plans.
    DType {
        /// IEEE binary32.
        F32 = "f32",
        /// The upper half of a binary32.
        Bf16 = "bf16",
        /// Unsigned 32-bit: token ids, positions, block tables.
        U32 = "u32",
        /// Bytes: staging buffers, text.
        U8 = "u8",
        /// A sign, four exponent bits, three mantissa bits, times a block's scale: first moments.
        E4M3 = "e4m3",
        /// Five exponent bits, three mantissa bits, times a block's scale: second moments.
        E5M3 = "e5m3",
    }
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
}
