//! Returns what a device opened for profiling says of its kernels.

/// A kernel's share of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// Name of the kernel, and the sizes of a product: `few_bf16_1_40 8 x 4608 x 3584`.
    pub kernel: String,
    pub launches: u64,
    pub seconds: f64,
    /// Work of the operations that began with it.
    pub work: Work,
}

/// Bytes and operations of an operation, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes of the operands, each read or written once, or where it is both, twice; 0 where an operation uses a part
    /// of them that it finds out.
    pub bytes: u64,
    /// Multiplications and additions of products.
    pub flops: u64,
}
