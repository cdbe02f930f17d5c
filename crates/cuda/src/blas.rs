//! Matrix products of bf16 by cuBLASLt.
//!
//! Exactness: an output element's order of accumulation must depend on K alone. cuBLASLt keeps to it when split-K is
//! masked out and products of few rows use the algorithm of sixteen (with one row it picks a vector kernel that adds up
//! in another order). Algorithms are therefore chosen for M rounded up to a power of two. Where candidates are timed, those
//! whose bits are not the reference's are dropped: the clock decides how fast a run is, not what it computes.

use super::bindings::CublasLt;
use super::driver::{Gpu, Mark};
use cudarc::cublaslt::{result, sys};
use cudarc::driver::result as cuda;
use plimsoll_base::{DType, Error, Result, slugs};
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
    pub(crate) strides: Strides,
    /// Storage of the output.
    pub(crate) out: DType,
    /// Added to what the output holds.
    pub(crate) add: bool,
    /// A bias is added to each row.
    pub(crate) bias: bool,
    /// The algorithm is that of many rows whatever M, untried. Without it the bits of `BackwardX` are those of M rounded up.
    pub(crate) of_many: bool,
}

/// Elements from row to row, as `Operands` names the matrices: more than a row has where it is a run of columns of a wider one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Strides {
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) out: usize,
}

impl Shape {
    /// A product of whole matrices, which is written.
    pub(crate) fn new(op: Op, m: usize, n: usize, k: usize, out: DType) -> Shape {
        let strides = match op {
            Op::Forward => Strides { a: k, b: k, out: n },
            Op::BackwardX => Strides { a: k, b: n, out: k },
            Op::BackwardW => Strides { a: k, b: n, out: k },
        };
        Shape { op, m, n, k, strides, out, add: false, bias: false, of_many: false }
    }

    /// Bytes from the output's first element to its last.
    fn out_bytes(&self) -> u64 {
        let (rows, cols) = match self.op {
            Op::Forward => (self.m, self.n),
            Op::BackwardX => (self.m, self.k),
            Op::BackwardW => (self.n, self.k),
        };
        ((rows - 1) * self.strides.out + cols) as u64 * self.out.bytes()
    }
}

/// What a product is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    /// W, or dy^T's partner x for `BackwardW`: the operand named first by the library, which counts columns first.
    pub(crate) a: u64,
    pub(crate) b: u64,
    /// What is added to, where something is: the output itself or another matrix of its shape.
    pub(crate) added: u64,
    pub(crate) out: u64,
    pub(crate) bias: u64,
    /// Of the product; no part of the choice of its algorithm.
    pub(crate) scale: f32,
}

/// Fewest rows for which an algorithm is chosen.
const ROWS_MIN: usize = 16;
/// Rows up to which candidates are timed in the scratch: those of decode passes and their neighbours.
const TUNED_ROWS_MAX: usize = 512;
/// Rows for which the reference is the library's first choice.
const REFERENCE_ROWS: usize = 4096;
/// From this version on the first choice for more rows than are timed was seen to give the bits of the reference at every width;
/// with 12.4 products of K = 64 were not equal.
const SAME_BITS_OF_MANY_ROWS: usize = 130_000;
/// Choices asked of the library for one size.
const CANDIDATES: usize = 12;
/// Of them, those that are timed where the product is large: the best is among the first.
const LARGE_CANDIDATES: usize = 8;
/// Products of a timing.
const TIMED: u32 = 8;
const LARGE_TIMED: u32 = 3;
/// Bytes of a large output that are compared.
const COMPARED_BYTES: u64 = 8 << 20;
/// Every pointer is a multiple of it: rows of matrices are.
static ALIGNMENT: u32 = 16;

/// cuBLASLt with the algorithms chosen so far.
#[derive(Debug)]
pub(crate) struct Blas {
    lt: &'static CublasLt,
    handle: sys::cublasLtHandle_t,
    algorithms: Mutex<HashMap<Shape, sys::cublasLtMatmulAlgo_t>>,
    /// False where speed is no concern: the reference is taken untried, which gives the same bits.
    tunes: bool,
    /// The library's version, such as 130100.
    pub(crate) version: usize,
}

// SAFETY: a handle may be used from any thread whose context is current.
unsafe impl Send for Blas {}
// SAFETY: cuBLASLt's functions are thread-safe, and a lock guards the map.
unsafe impl Sync for Blas {}

/// A description of a product and its matrices, destroyed together.
struct Description {
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

type Status<T> = std::result::Result<T, result::CublasError>;

impl Description {
    fn new(lt: &'static CublasLt, shape: &Shape, bias: u64) -> Status<Description> {
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
        let layout = |kind, (rows, cols): (u64, u64), stride: usize| {
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
            a: layout(bf16, a, shape.strides.a)?,
            b: layout(bf16, b, shape.strides.b)?,
            out: layout(out_type, out, shape.strides.out)?,
        };
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the description was made above; the value has the attribute's size.
            unsafe { (lt.cublasLtMatmulDescSetAttribute)(description.product, attribute, value, bytes) }
                .result()
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

/// cuBLASLt's version, such as 130100.
///
/// Errors: `cuda-library-missing`.
pub(crate) fn version() -> Result<usize> {
    let lt = CublasLt::open()?;
    // SAFETY: it takes nothing.
    Ok(unsafe { (lt.cublasLtGetVersion)() })
}

/// A version as people write it: `13.1.0`.
pub(crate) fn dotted(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

impl Blas {
    /// Errors: `cuda-library-missing`, `cuda-failed`.
    pub(crate) fn open(gpu: &Gpu, tunes: bool) -> Result<Blas> {
        let version = version()?;
        gpu.bind();
        let (lt, mut handle) = (CublasLt::open()?, std::ptr::null_mut());
        // SAFETY: a valid place for the handle.
        unsafe { (lt.cublasLtCreate)(&mut handle) }.result().map_err(|err| failed("making a handle", err))?;
        Ok(Blas { lt, handle, algorithms: Mutex::default(), tunes, version })
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
        let description = Description::new(self.lt, &shape, operands.bias).map_err(|e| failed(&what(), e))?;
        gpu.bind();
        let algorithm = self.algorithm(gpu, shape, operands, workspace).map_err(|e| failed(&what(), e))?;
        let beta = if shape.add { 1.0 } else { 0.0 };
        self.put(gpu, &description, operands, beta, &algorithm, workspace).map_err(|e| failed(&what(), e))
    }

    /// out = scale product + beta out.
    fn put(
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
            (self.lt.cublasLtMatmul)(
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

    /// The algorithm for a shape whose M is rounded up.
    fn algorithm(
        &self,
        gpu: &Gpu,
        shape: Shape,
        operands: Operands,
        workspace: (u64, u64),
    ) -> Status<sys::cublasLtMatmulAlgo_t> {
        // Whether something is added is no part of the choice, so that the bits of a sum do not depend on it either.
        let rounded = Shape { m: shape.m.next_power_of_two().max(ROWS_MIN), add: false, ..shape };
        let mut algorithms = self.algorithms.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(algorithm) = algorithms.get(&rounded) {
            return Ok(*algorithm);
        }
        let algorithm = match (shape.op, rounded.m <= TUNED_ROWS_MAX, shape.add) {
            _ if shape.of_many => self.reference(&rounded, workspace.1)?,
            (Op::Forward, _, _) if !self.tunes => self.reference(&rounded, workspace.1)?,
            // Where an addition forbids a trial, only newer libraries were seen to have one order at every width.
            (Op::Forward, false, true) if self.version < SAME_BITS_OF_MANY_ROWS => {
                self.reference(&rounded, workspace.1)?
            }
            _ if !self.tunes => self.choices(&rounded, workspace.1, 1)?[0],
            (Op::Forward, true, _) => self.fastest(gpu, &rounded, &shape, operands, workspace)?,
            // What the output holds is not read, and will be written: it may be written several times.
            (Op::Forward | Op::BackwardX, false, false) => {
                self.fastest_in_place(gpu, &rounded, &shape, operands, workspace)?
            }
            _ => self.choices(&rounded, workspace.1, 1)?[0],
        };
        algorithms.insert(rounded, algorithm);
        Ok(algorithm)
    }

    /// The algorithm whose bits those of every number of rows are.
    fn reference(&self, rounded: &Shape, workspace: u64) -> Status<sys::cublasLtMatmulAlgo_t> {
        let many = Shape { m: REFERENCE_ROWS, ..*rounded };
        Ok(self.choices(&many, workspace, 1)?[0])
    }

    /// The fastest of the library's choices whose bits are those of the reference.
    fn fastest(
        &self,
        gpu: &Gpu,
        rounded: &Shape,
        shape: &Shape,
        operands: Operands,
        workspace: (u64, u64),
    ) -> Status<sys::cublasLtMatmulAlgo_t> {
        let reference = self.reference(rounded, workspace.1)?;
        let mut candidates = vec![reference];
        for (m, most) in [(rounded.m, CANDIDATES), (2 * rounded.m, CANDIDATES / 2), (256, CANDIDATES / 2)] {
            // A size for which the library has no choice offers none.
            let more = self.choices(&Shape { m, ..*rounded }, workspace.1, most).unwrap_or_default();
            for choice in more {
                if candidates.iter().all(|c| c.data != choice.data) {
                    candidates.push(choice);
                }
            }
        }
        Ok(Trial::new(self, gpu, shape, operands, workspace)?.best(reference, candidates))
    }

    /// The same for a product of many rows, whose output is large: candidates write it where it will be.
    fn fastest_in_place(
        &self,
        gpu: &Gpu,
        rounded: &Shape,
        shape: &Shape,
        operands: Operands,
        workspace: (u64, u64),
    ) -> Status<sys::cublasLtMatmulAlgo_t> {
        let mut candidates = self.choices(rounded, workspace.1, LARGE_CANDIDATES)?;
        let reference = match shape.op {
            Op::Forward => self.reference(rounded, workspace.1)?,
            _ => candidates[0],
        };
        if candidates.iter().all(|c| c.data != reference.data) {
            candidates.push(reference);
        }
        Ok(Trial::in_place(self, gpu, shape, operands, workspace)?.best(reference, candidates))
    }

    /// The library's choices without split-K, its best first; at least one.
    fn choices(&self, shape: &Shape, workspace: u64, most: usize) -> Status<Vec<sys::cublasLtMatmulAlgo_t>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as P;
        let description = Description::new(self.lt, shape, 16)?;
        let mut preference = std::ptr::null_mut();
        // SAFETY: a valid place for the handle.
        unsafe { (self.lt.cublasLtMatmulPreferenceCreate)(&mut preference) }.result()?;
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the preference was made above; the value has the attribute's size.
            unsafe { (self.lt.cublasLtMatmulPreferenceSetAttribute)(preference, attribute, value, bytes) }
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
            // SAFETY: everything was made above and is alive; the library writes at most `most` results and says how
            // many they are.
            unsafe {
                (self.lt.cublasLtMatmulAlgoGetHeuristic)(
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
            match usable.is_empty() {
                true => Err(result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)),
                false => Ok(usable),
            }
        })();
        // SAFETY: made above, destroyed once.
        let _ = unsafe { (self.lt.cublasLtMatmulPreferenceDestroy)(preference) };
        found
    }
}

/// Comparing algorithms on the operands at hand, with the output in the scratch or in its place.
struct Trial<'x> {
    blas: &'x Blas,
    gpu: &'x Gpu,
    /// In the scratch, of as many rows as it holds.
    description: Description,
    operands: Operands,
    workspace: (u64, u64),
    /// Bytes of the output that are compared.
    out_bytes: u64,
    timed: u32,
    begin: Mark,
    end: Mark,
}

impl<'x> Trial<'x> {
    fn new(
        blas: &'x Blas,
        gpu: &'x Gpu,
        shape: &Shape,
        operands: Operands,
        scratch: (u64, u64),
    ) -> Status<Trial<'x>> {
        let row_bytes = shape.strides.out as u64 * shape.out.bytes();
        let m = shape.m.min((scratch.1 / row_bytes) as usize);
        let unsupported = result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED);
        if m == 0 {
            return Err(unsupported);
        }
        let held = Shape { m, ..*shape };
        let mark = || Mark::new(gpu).map_err(|_| unsupported);
        Ok(Trial {
            blas,
            gpu,
            description: Description::new(blas.lt, &held, operands.bias)?,
            operands: Operands { added: scratch.0, out: scratch.0, ..operands },
            // It would lie in the output. Algorithms that need one are not taken.
            workspace: (0, 0),
            out_bytes: held.out_bytes(),
            timed: TIMED,
            begin: mark()?,
            end: mark()?,
        })
    }

    fn in_place(
        blas: &'x Blas,
        gpu: &'x Gpu,
        shape: &Shape,
        operands: Operands,
        workspace: (u64, u64),
    ) -> Status<Trial<'x>> {
        let unsupported = result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED);
        let mark = || Mark::new(gpu).map_err(|_| unsupported);
        Ok(Trial {
            blas,
            gpu,
            description: Description::new(blas.lt, shape, operands.bias)?,
            operands,
            workspace,
            out_bytes: shape.out_bytes().min(COMPARED_BYTES),
            timed: LARGE_TIMED,
            begin: mark()?,
            end: mark()?,
        })
    }

    /// The fastest of the candidates that gives the reference's bits.
    fn best(
        &self,
        reference: sys::cublasLtMatmulAlgo_t,
        candidates: Vec<sys::cublasLtMatmulAlgo_t>,
    ) -> sys::cublasLtMatmulAlgo_t {
        let mut timed: Vec<(f64, sys::cublasLtMatmulAlgo_t)> =
            candidates.into_iter().filter_map(|c| Some((self.seconds(&c)?, c))).collect();
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        let wanted = self.bits(&reference);
        let same = |choice: &sys::cublasLtMatmulAlgo_t| wanted.is_some() && self.bits(choice) == wanted;
        timed.into_iter().map(|(_, choice)| choice).find(same).unwrap_or(reference)
    }

    fn put(&self, algorithm: &sys::cublasLtMatmulAlgo_t) -> Option<()> {
        self.blas.put(self.gpu, &self.description, self.operands, 0.0, algorithm, self.workspace).ok()
    }

    /// Seconds of a candidate, if it runs.
    fn seconds(&self, candidate: &sys::cublasLtMatmulAlgo_t) -> Option<f64> {
        self.put(candidate)?;
        // SAFETY: the event and the stream are alive.
        unsafe { cuda::event::record(self.begin.0, self.gpu.stream) }.ok()?;
        for _ in 0..self.timed {
            self.put(candidate)?;
        }
        // SAFETY: the event and the stream are alive.
        unsafe { cuda::event::record(self.end.0, self.gpu.stream) }.ok()?;
        Some(self.end.seconds_since(&self.begin)? / f64::from(self.timed))
    }

    /// The bytes that an algorithm gives.
    fn bits(&self, algorithm: &sys::cublasLtMatmulAlgo_t) -> Option<Vec<u8>> {
        self.put(algorithm)?;
        self.gpu.wait().ok()?;
        let mut bytes = vec![0u8; self.out_bytes as usize];
        // SAFETY: the output has as many bytes.
        unsafe { cuda::memcpy_dtoh_sync(&mut bytes, self.operands.out) }.ok()?;
        Some(bytes)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made in `open`; the device that owns it has waited for its stream.
        let _ = unsafe { (self.lt.cublasLtDestroy)(self.handle) };
    }
}

fn failed(what: &str, err: result::CublasError) -> Error {
    Error::new(slugs::CUDA_FAILED, format!("cuBLASLt, {what}: {:?}", err.0))
}
