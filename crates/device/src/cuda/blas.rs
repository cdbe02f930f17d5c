//! Matrix products of bf16 by cuBLASLt.
//!
//! Exactness: an output element's order of accumulation must depend on K alone. cuBLASLt keeps to it when split-K is
//! masked out and products of few rows use the algorithm of sixteen (with one row it picks a vector kernel that adds up
//! in another order). Algorithms are therefore chosen for M rounded up to a power of two, and `self_test` compares
//! the bits of every chosen algorithm with those of the largest M before a run begins.

use super::driver::Gpu;
use super::library::{self, Lib};
use cudarc::cublaslt::{result, sys};
use plimsoll_base::{DType, Error, Result};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;

/// Which of a linear layer's three products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// out [M, N] = x [M, K] W [N, K]^T.
    Forward,
    /// out [M, K] = dy [M, N] W [N, K].
    BackwardX,
    /// grad [N, K] = dy [M, N]^T x [M, K].
    BackwardW,
}

/// A product's shape, as far as the choice of its algorithm depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) op: Op,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Storage of the output.
    pub(crate) out: DType,
    /// Added to what the output holds.
    pub(crate) add: bool,
    /// A bias is added to each row.
    pub(crate) bias: bool,
}

/// Addresses of a product's operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    /// W, or dy^T's partner x for `BackwardW`: the operand named first by the library, which counts columns first.
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) out: u64,
    pub(crate) bias: u64,
}

/// Fewest rows for which an algorithm is chosen.
const ROWS_MIN: usize = 16;
/// Every pointer is a multiple of it: rows of matrices are.
static ALIGNMENT: u32 = 16;

/// cuBLASLt with the algorithms chosen so far.
#[derive(Debug)]
pub(crate) struct Blas {
    handle: sys::cublasLtHandle_t,
    algorithms: Mutex<HashMap<Shape, sys::cublasLtMatmulAlgo_t>>,
    /// The library's version, such as 130100.
    pub(crate) version: usize,
}

// SAFETY: a handle may be used from any thread whose context is current.
unsafe impl Send for Blas {}
// SAFETY: as above; cuBLASLt's functions are thread-safe, and the map is behind a lock.
unsafe impl Sync for Blas {}

/// A description of a product and its matrices, destroyed together.
struct Description {
    product: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: each was created by `Description::new` and is destroyed once.
        unsafe {
            let _ = result::destroy_matmul_desc(self.product);
            for layout in [self.a, self.b, self.out] {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

type Status<T> = std::result::Result<T, result::CublasError>;

impl Description {
    fn new(shape: &Shape, bias: u64) -> Status<Description> {
        use sys::cublasLtMatmulDescAttributes_t as D;
        // cublasOperation_t of the library's headers.
        const N: i32 = 0;
        const T: i32 = 1;
        let bf16 = sys::cudaDataType_t::CUDA_R_16BF;
        let out_type = if shape.out == DType::Bf16 { bf16 } else { sys::cudaDataType_t::CUDA_R_32F };
        let (m, n, k) = (shape.m as u64, shape.n as u64, shape.k as u64);
        // The library counts columns first: a row-major [r, c] matrix is its c x r one.
        let (ops, a, b, out) = match shape.op {
            Op::Forward => ((T, N), (k, n), (k, m), (n, m)),
            Op::BackwardX => ((N, N), (k, n), (n, m), (k, m)),
            Op::BackwardW => ((N, T), (k, m), (n, m), (k, n)),
        };
        let layout =
            |kind, (rows, cols): (u64, u64)| result::create_matrix_layout(kind, rows, cols, rows as i64);
        let description = Description {
            product: result::create_matmul_desc(
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cudaDataType_t::CUDA_R_32F,
            )?,
            a: layout(bf16, a)?,
            b: layout(bf16, b)?,
            out: layout(out_type, out)?,
        };
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the description was made above; the value has the attribute's size.
            unsafe { result::set_matmul_desc_attribute(description.product, attribute, value, bytes) }
        };
        set(D::CUBLASLT_MATMUL_DESC_TRANSA, (&raw const ops.0).cast(), size_of_val(&ops.0))?;
        set(D::CUBLASLT_MATMUL_DESC_TRANSB, (&raw const ops.1).cast(), size_of_val(&ops.1))?;
        if shape.bias {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            set(D::CUBLASLT_MATMUL_DESC_EPILOGUE, (&raw const epilogue).cast(), size_of_val(&epilogue))?;
            set(D::CUBLASLT_MATMUL_DESC_BIAS_POINTER, (&raw const bias).cast(), 8)?;
            set(D::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (&raw const bf16).cast(), size_of_val(&bf16))?;
        }
        Ok(description)
    }
}

impl Blas {
    /// Errors: `cuda-library-missing`, `cuda-failed`.
    pub(crate) fn open(gpu: &Gpu) -> Result<Blas> {
        library::open(Lib::CublasLt)?;
        gpu.bind();
        let handle = result::create_handle().map_err(|err| failed("making a handle", err))?;
        // SAFETY: the library is open.
        let version = unsafe { sys::cublasLtGetVersion() };
        Ok(Blas { handle, algorithms: Mutex::default(), version })
    }

    /// Puts a product on the stream. `workspace`: (address, bytes).
    ///
    /// Errors: `cuda-failed`.
    pub(crate) fn product(
        &self,
        gpu: &Gpu,
        shape: Shape,
        operands: Operands,
        workspace: (u64, u64),
    ) -> Result<()> {
        let what = || format!("{shape:?}");
        let description = Description::new(&shape, operands.bias).map_err(|e| failed(&what(), e))?;
        let algorithm = self.algorithm(shape, workspace.1).map_err(|e| failed(&what(), e))?;
        let (alpha, beta) = (1f32, if shape.add { 1f32 } else { 0f32 });
        gpu.bind();
        // SAFETY: the addresses were checked by the launcher to hold matrices of this shape.
        let done = unsafe {
            result::matmul(
                self.handle,
                description.product,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                operands.a as *const c_void,
                description.a,
                operands.b as *const c_void,
                description.b,
                operands.out as *const c_void,
                description.out,
                operands.out as *mut c_void,
                description.out,
                &raw const algorithm,
                workspace.0 as *mut c_void,
                workspace.1 as usize,
                gpu.stream.cast(),
            )
        };
        done.map_err(|e| failed(&what(), e))
    }

    /// The algorithm for a shape whose M is rounded up.
    fn algorithm(&self, shape: Shape, workspace: u64) -> Status<sys::cublasLtMatmulAlgo_t> {
        let rounded = Shape { m: shape.m.next_power_of_two().max(ROWS_MIN), ..shape };
        let mut algorithms = self.algorithms.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(algorithm) = algorithms.get(&rounded) {
            return Ok(*algorithm);
        }
        let algorithm = self.choose(&rounded, workspace)?;
        algorithms.insert(rounded, algorithm);
        Ok(algorithm)
    }

    /// The library's first choice without split-K.
    fn choose(&self, shape: &Shape, workspace: u64) -> Status<sys::cublasLtMatmulAlgo_t> {
        use sys::cublasLtMatmulPreferenceAttributes_t as P;
        let description = Description::new(shape, 16)?;
        let preference = result::create_matmul_pref()?;
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the preference was made above; the value has the attribute's size.
            unsafe { result::set_matmul_pref_attribute(preference, attribute, value, bytes) }
        };
        let found = (|| {
            set(P::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const workspace).cast(), 8)?;
            let none = 0u32; // CUBLASLT_REDUCTION_SCHEME_NONE: one chain of additions along K.
            set(P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, (&raw const none).cast(), 4)?;
            for attribute in [
                P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
            ] {
                set(attribute, (&raw const ALIGNMENT).cast(), 4)?;
            }
            // SAFETY: everything was made above and is alive.
            unsafe {
                result::get_matmul_algo_heuristic(
                    self.handle,
                    description.product,
                    description.a,
                    description.b,
                    description.out,
                    description.out,
                    preference,
                )
            }
        })();
        // SAFETY: made above, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(preference) };
        found.map(|found| found.algo)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made in `open`; the device that owns it has waited for its stream.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

fn failed(what: &str, err: result::CublasError) -> Error {
    Error::new("cuda-failed", format!("cuBLASLt, {what}: {:?}", err.0))
}
