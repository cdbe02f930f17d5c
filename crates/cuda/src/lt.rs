//! cuBLASLt's calls: it describes products of bf16 matrices, lists algorithms for one, and queues one on the stream.

use super::bindings::CublasLt;
use super::driver::Gpu;
use cudarc::cublaslt::{result, sys};
use plimsoll_base::{DType, Error, Result, slugs};
use std::ffi::c_void;

/// One of a linear layer's three products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// out [M, N] = x [M, K] W [N, K]^T.
    Forward,
    /// out [M, K] = dy [M, N] W [N, K].
    BackwardX,
    /// grad [N, K] = dy [M, N]^T x [M, K].
    BackwardW,
}

/// The parts of a product's shape that the choice of its algorithm depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) op: Op,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) strides: Strides,
    /// Storage of the output.
    pub(crate) out: DType,
    /// Added to what the output holds.
    pub(crate) add: bool,
    /// A bias is added to each row.
    pub(crate) bias: bool,
    /// The algorithm is that of many rows for any M, untried. Else the bits of `BackwardX` are those of M rounded up.
    pub(crate) of_many: bool,
}

/// Elements from row to row of the matrices of `Operands`: more than a row has for a run of columns of a wider matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Strides {
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) out: usize,
}

impl Shape {
    /// Returns a product of whole matrices, which is written.
    pub(crate) fn new(op: Op, m: usize, n: usize, k: usize, out: DType) -> Shape {
        let strides = match op {
            Op::Forward => Strides { a: k, b: k, out: n },
            Op::BackwardX => Strides { a: k, b: n, out: k },
            Op::BackwardW => Strides { a: k, b: n, out: k },
        };
        Shape { op, m, n, k, strides, out, add: false, bias: false, of_many: false }
    }

    /// Returns the bytes from the output's first element to its last.
    pub(crate) fn out_bytes(&self) -> u64 {
        let rows = match self.op {
            Op::Forward | Op::BackwardX => self.m,
            Op::BackwardW => self.n,
        };
        ((rows - 1) * self.strides.out + self.out_cols()) as u64 * self.out.bytes()
    }

    /// True if no other matrix's elements lie between the rows of the output.
    pub(crate) fn is_whole(&self) -> bool {
        self.strides.out == self.out_cols()
    }

    fn out_cols(&self) -> usize {
        match self.op {
            Op::Forward => self.n,
            Op::BackwardX | Op::BackwardW => self.k,
        }
    }
}

/// Addresses and scale of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    /// W, or dy^T's partner x for `BackwardW`: the operand named first by the library, which counts columns first.
    pub(crate) a: u64,
    pub(crate) b: u64,
    /// The matrix that is added to, if any: the output itself or another of its shape.
    pub(crate) added: u64,
    pub(crate) out: u64,
    pub(crate) bias: u64,
    /// Factor on the product; no part of the choice of its algorithm.
    pub(crate) scale: f32,
}

/// Alignment of every pointer, because rows of matrices have it.
static ALIGNMENT: u32 = 16;

/// The parts of a product of rounded numbers, x [M, K] W [N, K]^T, that the choice of its algorithm depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fp8Shape {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Storage of the output.
    pub(crate) out: DType,
    /// A matrix is added.
    pub(crate) add: bool,
    /// A bias is added to each row.
    pub(crate) bias: bool,
}

// cublasOperation_t of the library's headers.
const N: i32 = 0;
const T: i32 = 1;
const BF16: sys::cudaDataType_t = sys::cudaDataType_t::CUDA_R_16BF;

/// A description of a product and its matrices, destroyed together.
pub(crate) struct Description {
    lt: &'static CublasLt,
    product: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: each was created by `Description::new` and is destroyed once.
        unsafe {
            let _ = (self.lt.cublasLtMatmulDescDestroy)(self.product);
            for layout in [self.a, self.b, self.out] {
                let _ = (self.lt.cublasLtMatrixLayoutDestroy)(layout);
            }
        }
    }
}

pub(crate) type Status<T> = std::result::Result<T, result::CublasError>;

impl Description {
    pub(crate) fn new(lt: &'static CublasLt, shape: &Shape, bias: u64) -> Status<Description> {
        let (m, n, k) = (shape.m as u64, shape.n as u64, shape.k as u64);
        // The library counts columns first: a row-major [r, c] matrix is its c x r one.
        let (ops, a, b, out) = match shape.op {
            Op::Forward => ((T, N), (k, n), (k, m), (n, m)),
            Op::BackwardX => ((N, N), (k, n), (n, m), (k, m)),
            Op::BackwardW => ((N, T), (k, m), (n, m), (k, n)),
        };
        let Strides { a: a_stride, b: b_stride, out: out_stride } = shape.strides;
        let matrices = [(a, a_stride), (b, b_stride), (out, out_stride)];
        let description = Description::of(lt, (BF16, shape.out), ops, matrices)?;
        if shape.bias {
            description.add_bias(bias)?;
        }
        Ok(description)
    }

    /// Describes a product of two matrices of rounded numbers: W [N, K] with scales [N / 128, K / 128], and x [M, K]
    /// with scales [K / 128, M]. `scales`, of W and of x, and `bias` are addresses.
    pub(crate) fn fp8(
        lt: &'static CublasLt,
        shape: &Fp8Shape,
        scales: (u64, u64),
        bias: u64,
    ) -> Status<Description> {
        use sys::cublasLtMatmulDescAttributes_t as D;
        use sys::cublasLtMatmulMatrixScale_t as Scale;
        let &Fp8Shape { m, n, k, out, .. } = shape;
        let cols = |rows: usize, cols: usize| ((rows as u64, cols as u64), rows);
        let e4m3 = sys::cudaDataType_t::CUDA_R_8F_E4M3;
        let description = Description::of(lt, (e4m3, out), (T, N), [cols(k, n), cols(k, m), cols(n, m)])?;
        let of_w = Scale::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
        let of_x = Scale::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
        description.set(D::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &of_w)?;
        description.set(D::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &of_x)?;
        description.set(D::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scales.0)?;
        description.set(D::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scales.1)?;
        if shape.bias {
            description.add_bias(bias)?;
        }
        Ok(description)
    }

    /// Describes a product of matrices of (rows, columns), counting columns first, and their strides.
    fn of(
        lt: &'static CublasLt,
        (operands, out): (sys::cudaDataType_t, DType),
        ops: (i32, i32),
        matrices: [((u64, u64), usize); 3],
    ) -> Status<Description> {
        use sys::cublasLtMatmulDescAttributes_t as D;
        let out = if out == DType::Bf16 { BF16 } else { sys::cudaDataType_t::CUDA_R_32F };
        let layout = |kind, ((rows, cols), stride): ((u64, u64), usize)| {
            let mut layout = std::ptr::null_mut();
            // SAFETY: a valid place for the handle.
            let made =
                unsafe { (lt.cublasLtMatrixLayoutCreate)(&mut layout, kind, rows, cols, stride as i64) };
            made.result().map(|()| layout)
        };
        let mut product = std::ptr::null_mut();
        let (compute, scale) =
            (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F);
        // SAFETY: a valid place for the handle.
        unsafe { (lt.cublasLtMatmulDescCreate)(&mut product, compute, scale) }.result()?;
        let description = Description {
            lt,
            product,
            a: layout(operands, matrices[0])?,
            b: layout(operands, matrices[1])?,
            out: layout(out, matrices[2])?,
        };
        description.set(D::CUBLASLT_MATMUL_DESC_TRANSA, &ops.0)?;
        description.set(D::CUBLASLT_MATMUL_DESC_TRANSB, &ops.1)?;
        Ok(description)
    }

    /// Adds a bias in bf16 to each row.
    fn add_bias(&self, bias: u64) -> Status<()> {
        use sys::cublasLtMatmulDescAttributes_t as D;
        self.set(D::CUBLASLT_MATMUL_DESC_EPILOGUE, &sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS)?;
        self.set(D::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        self.set(D::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &BF16)
    }

    fn set<V>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &V) -> Status<()> {
        let (at, bytes) = ((&raw const *value).cast::<c_void>(), size_of::<V>());
        // SAFETY: the description is alive; the value has the attribute's size.
        unsafe { (self.lt.cublasLtMatmulDescSetAttribute)(self.product, attribute, at, bytes) }.result()
    }
}

/// Returns cuBLASLt's version, such as 130100.
///
/// Errors: `cuda-library-missing`.
pub(crate) fn version() -> Result<usize> {
    let lt = CublasLt::open()?;
    // SAFETY: it takes nothing.
    Ok(unsafe { (lt.cublasLtGetVersion)() })
}

/// Formats a version for display: `13.1.0`.
pub(crate) fn dotted(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// The library and a handle of it.
#[derive(Debug)]
pub(crate) struct Lt {
    pub(crate) calls: &'static CublasLt,
    handle: sys::cublasLtHandle_t,
    pub(crate) version: usize,
}

// SAFETY: a handle may be used from any thread whose context is current.
unsafe impl Send for Lt {}
// SAFETY: cuBLASLt's functions are thread-safe.
unsafe impl Sync for Lt {}

impl Lt {
    /// Errors: `cuda-library-missing`, `cuda-failed`.
    pub(crate) fn open(gpu: &Gpu) -> Result<Lt> {
        let version = version()?;
        gpu.bind();
        let (calls, mut handle) = (CublasLt::open()?, std::ptr::null_mut());
        // SAFETY: a valid place for the handle.
        unsafe { (calls.cublasLtCreate)(&mut handle) }
            .result()
            .map_err(|err| failed("making a handle", err))?;
        Ok(Lt { calls, handle, version })
    }

    /// Queues out = scale product + beta out.
    pub(crate) fn put(
        &self,
        gpu: &Gpu,
        description: &Description,
        operands: Operands,
        beta: f32,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        workspace: (u64, u64),
    ) -> Status<()> {
        let alpha = operands.scale;
        // SAFETY: the addresses were checked by the launcher to hold matrices of this shape.
        unsafe {
            (self.calls.cublasLtMatmul)(
                self.handle,
                description.product,
                (&raw const alpha).cast(),
                operands.a as *const c_void,
                description.a,
                operands.b as *const c_void,
                description.b,
                (&raw const beta).cast(),
                operands.added as *const c_void,
                description.out,
                operands.out as *mut c_void,
                description.out,
                algorithm,
                workspace.0 as *mut c_void,
                workspace.1 as usize,
                gpu.stream.cast(),
            )
        }
        .result()
    }

    /// Returns the library's choices without split-K, its best first; at least one.
    pub(crate) fn choices(
        &self,
        shape: &Shape,
        workspace: u64,
        most: usize,
    ) -> Status<Vec<sys::cublasLtMatmulAlgo_t>> {
        self.choices_of(&Description::new(self.calls, shape, 16)?, workspace, most)
    }

    /// Returns the library's choices for a product as described, as `choices` does.
    pub(crate) fn choices_of(
        &self,
        description: &Description,
        workspace: u64,
        most: usize,
    ) -> Status<Vec<sys::cublasLtMatmulAlgo_t>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as P;
        let mut preference = std::ptr::null_mut();
        // SAFETY: a valid place for the handle.
        unsafe { (self.calls.cublasLtMatmulPreferenceCreate)(&mut preference) }.result()?;
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the preference was made above; the value has the attribute's size.
            unsafe { (self.calls.cublasLtMatmulPreferenceSetAttribute)(preference, attribute, value, bytes) }
                .result()
        };
        let found = (|| {
            set(P::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const workspace).cast(), 8)?;
            // CUBLASLT_REDUCTION_SCHEME_NONE: one chain of additions along K.
            let scheme = 0u32;
            set(P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, (&raw const scheme).cast(), 4)?;
            for attribute in [
                P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
            ] {
                set(attribute, (&raw const ALIGNMENT).cast(), 4)?;
            }
            let mut found: Vec<sys::cublasLtMatmulHeuristicResult_t> = Vec::with_capacity(most);
            let mut count = 0;
            // SAFETY: everything was made above and is alive; the library writes at most `most` results and their
            // number.
            unsafe {
                (self.calls.cublasLtMatmulAlgoGetHeuristic)(
                    self.handle,
                    description.product,
                    description.a,
                    description.b,
                    description.out,
                    description.out,
                    preference,
                    most as i32,
                    found.as_mut_ptr(),
                    &mut count,
                )
                .result()?;
                found.set_len(count as usize);
            }
            let usable: Vec<_> = found.iter().filter(|f| f.state.result().is_ok()).map(|f| f.algo).collect();
            if usable.is_empty() {
                Err(result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED))
            } else {
                Ok(usable)
            }
        })();
        // SAFETY: made above, destroyed once.
        let _ = unsafe { (self.calls.cublasLtMatmulPreferenceDestroy)(preference) };
        found
    }
}

impl Drop for Lt {
    fn drop(&mut self) {
        // SAFETY: made in `open`; the device that owns it has waited for its stream.
        let _ = unsafe { (self.calls.cublasLtDestroy)(self.handle) };
    }
}

pub(crate) fn failed(what: &str, err: result::CublasError) -> Error {
    Error::new(slugs::CUDA_FAILED, format!("cuBLASLt, {what}: {:?}", err.0))
}
