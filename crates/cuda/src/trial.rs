//! Trials of a product's algorithm: how fast it is, and whether it adds in the order of another.

use super::driver::{Gpu, Mark};
use super::lt::{Description, Lt, Op, Operands, Shape, Status};
use cudarc::cublaslt::{result, sys};
use cudarc::driver::result as cuda;
use plimsoll_base::DType;
use plimsoll_base::rng::{Stream, permutation, philox};

/// Products of a timing.
const TIMED: u32 = 8;
const LARGE_TIMED: u32 = 3;
/// Bytes of a large output that are compared.
const COMPARED_BYTES: u64 = 8 << 20;
/// Maximum rows and columns of a probe's output, and different ones among them.
const PROBE_ROWS: usize = 64;
const PROBE_COLS: usize = 128;
const PROBE_PATTERNS: usize = 16;
/// Maximum terms of each sum of a gradient's probe: there is no order to compare, only whether there is one sum.
const PROBE_TERMS: usize = 512;

/// A product whose result is nothing but the rounding of its partial sums, so that another order of additions gives
/// other bits: every term has its negative elsewhere along the contraction, and the exact sum is 0.
///
/// A trial on the actual operands does not distinguish orders: a short sum rounded to bf16 seldom shows its order.
pub(crate) struct Probe<'x> {
    lt: &'x Lt,
    gpu: &'x Gpu,
    /// None where it does not fit the workspace or the driver refused: then no two algorithms are the same.
    product: Option<ProbeProduct>,
}

struct ProbeProduct {
    shape: Shape,
    description: Description,
    operands: Operands,
    out_bytes: usize,
    /// Workspace of the algorithms: (address, bytes).
    workspace: (u64, u64),
}

impl<'x> Probe<'x> {
    /// Returns a probe of `shape`'s contraction in the upper half of the workspace.
    pub(crate) fn new(lt: &'x Lt, gpu: &'x Gpu, shape: &Shape, workspace: (u64, u64)) -> Probe<'x> {
        Probe { lt, gpu, product: probe_product(lt, gpu, shape, workspace) }
    }

    /// Returns the part of the workspace that the probe's operands leave.
    pub(crate) fn rest(&self, workspace: (u64, u64)) -> (u64, u64) {
        self.product.as_ref().map_or(workspace, |of| of.workspace)
    }

    /// True if both add in the same order.
    pub(crate) fn is_same(&self, a: &sys::cublasLtMatmulAlgo_t, b: &sys::cublasLtMatmulAlgo_t) -> bool {
        a.data == b.data || self.bits(a).is_some_and(|bits| Some(bits) == self.bits(b))
    }

    /// True if the algorithm adds to the output what it would have written: one addition of the product, rounded to the
    /// output's dtype. Others begin their sums with what the output holds.
    pub(crate) fn adds_once(&self, algorithm: &sys::cublasLtMatmulAlgo_t) -> bool {
        self.sums(algorithm).is_some_and(|(got, want)| got == want)
    }

    /// Returns what an algorithm leaves when it adds to an output, and that output plus what it writes alone.
    fn sums(&self, algorithm: &sys::cublasLtMatmulAlgo_t) -> Option<(Vec<u8>, Vec<u8>)> {
        let of = self.product.as_ref()?;
        let written = self.bits(algorithm)?;
        let out = of.shape.out;
        let width = out.bytes() as usize;
        // About as large as the sum that is added, so that either shows in the result.
        let before: Vec<u8> = (0..of.out_bytes / width)
            .flat_map(|i| {
                number_bytes(from_bf16(bf16_number(philox(0, Stream::Bench, i as u64, 0)[0])) / 64.0, out)
            })
            .collect();
        let want = before.chunks_exact(width).zip(written.chunks_exact(width));
        let want = want.flat_map(|(a, b)| number_bytes(number_of(a) + number_of(b), out)).collect();
        // SAFETY: the output has as many bytes, and `bits` waited for the stream.
        unsafe { cuda::memcpy_htod_sync(of.operands.out, &before) }.ok()?;
        self.put(algorithm, 1.0)?;
        Some((output(self.gpu, of.operands.out, of.out_bytes)?, want))
    }

    /// True if `put`, which queues the probe's product by other means, adds in the algorithm's order.
    pub(crate) fn is_order_of(
        &self,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        put: impl FnOnce(&Shape, Operands),
    ) -> bool {
        let (Some(of), Some(wanted)) = (self.product.as_ref(), self.bits(algorithm)) else { return false };
        if forget(self.gpu, of.operands.out, of.out_bytes).is_none() {
            return false;
        }
        put(&of.shape, of.operands);
        output(self.gpu, of.operands.out, of.out_bytes) == Some(wanted)
    }

    fn put(&self, algorithm: &sys::cublasLtMatmulAlgo_t, beta: f32) -> Option<()> {
        let of = self.product.as_ref()?;
        self.lt.put(self.gpu, &of.description, of.operands, beta, algorithm, of.workspace).ok()
    }

    fn bits(&self, algorithm: &sys::cublasLtMatmulAlgo_t) -> Option<Vec<u8>> {
        let of = self.product.as_ref()?;
        forget(self.gpu, of.operands.out, of.out_bytes)?;
        self.put(algorithm, 0.0)?;
        output(self.gpu, of.operands.out, of.out_bytes)
    }
}

fn from_bf16(bits: u16) -> f32 {
    half::bf16::from_bits(bits).to_f32()
}

/// Returns a number of an output, from its bytes.
fn number_of(bytes: &[u8]) -> f32 {
    match *bytes {
        [a, b] => from_bf16(u16::from_le_bytes([a, b])),
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
        _ => unreachable!("outputs are bf16 or f32"),
    }
}

/// Returns the bytes of a number in an output.
fn number_bytes(x: f32, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::Bf16 => half::bf16::from_f32(x).to_bits().to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    }
}

/// Returns a bf16 number from random bits: sign, 2^0 to 2^6, seven bits of mantissa.
fn bf16_number(r: u32) -> u16 {
    ((r >> 16 & 0x8000) | ((127 + (r >> 8 & 0xff) % 7) << 7) | (r & 0x7f)) as u16
}

/// Writes the operands once the stream has passed any other use of the workspace.
fn probe_product(lt: &Lt, gpu: &Gpu, shape: &Shape, workspace: (u64, u64)) -> Option<ProbeProduct> {
    let half = workspace.1 / 2 / 256 * 256;
    let at = workspace.0 + half;
    let small = probe_shape(shape, half)?;
    let (x, w) = probe_operands(&small);
    let bias = vec![0u16; small.n];
    let place = |bytes: &mut u64, len: usize| {
        let here = at + *bytes;
        *bytes += (2 * len as u64).next_multiple_of(256);
        here
    };
    let mut used = 0;
    let [to_x, to_w, to_bias] = [x.len(), w.len(), bias.len()].map(|len| place(&mut used, len));
    let operands = Operands { a: to_w, b: to_x, added: at + used, out: at + used, bias: to_bias, scale: 1.0 };
    gpu.wait().ok()?;
    for (to, from) in [(to_x, &x), (to_w, &w), (to_bias, &bias)] {
        // SAFETY: `probe_shape` leaves room for all three and the output in the workspace, which nothing uses now.
        unsafe { cuda::memcpy_htod_sync(to, from) }.ok()?;
    }
    let description = Description::new(lt.calls, &small, to_bias).ok()?;
    let out_bytes = small.out_bytes() as usize;
    Some(ProbeProduct { shape: small, description, operands, out_bytes, workspace: (workspace.0, half) })
}

/// Returns the largest probe of a shape's contraction that fits into `bytes`.
fn probe_shape(shape: &Shape, bytes: u64) -> Option<Shape> {
    let (rows, contracted, cols) = match shape.op {
        Op::Forward => (shape.m.min(PROBE_ROWS), shape.k, shape.n.min(PROBE_COLS)),
        Op::BackwardX => (shape.m.min(PROBE_ROWS), shape.n, shape.k.min(PROBE_COLS)),
        Op::BackwardW => (shape.n.min(PROBE_COLS), shape.m.min(PROBE_TERMS), shape.k.min(PROBE_COLS)),
    };
    let (mut rows, mut cols) = (rows, cols);
    loop {
        let (m, n, k) = match shape.op {
            Op::Forward => (rows, cols, contracted),
            Op::BackwardX => (rows, contracted, cols),
            Op::BackwardW => (contracted, rows, cols),
        };
        let elements = (rows + cols) * contracted + n + 2 * rows * cols;
        if 2 * elements as u64 + 4 * 256 <= bytes {
            return Some(Shape { bias: shape.bias, ..Shape::new(shape.op, m, n, k, shape.out) });
        }
        // Widths are multiples of 8, and so are their halves down to here.
        match (rows > PROBE_PATTERNS, cols > PROBE_PATTERNS) {
            (_, true) => cols = (cols / 2).next_multiple_of(8).max(PROBE_PATTERNS),
            (true, false) => rows = (rows / 2).next_multiple_of(8),
            (false, false) => return None,
        }
    }
}

/// Returns `b` and `a` of a probe in bf16: terms of up to 2^12 times one another's size, each with its negative.
fn probe_operands(shape: &Shape) -> (Vec<u16>, Vec<u16>) {
    let contracted = match shape.op {
        Op::Forward => shape.k,
        Op::BackwardX => shape.n,
        Op::BackwardW => shape.m,
    };
    let order = permutation(0, Stream::Bench, 0, contracted);
    let (mut x, mut w) = (vec![[0u16; PROBE_PATTERNS]; contracted], vec![[0u16; PROBE_PATTERNS]; contracted]);
    for (pair, places) in order.chunks_exact(2).enumerate() {
        let (a, b) = (places[0] as usize, places[1] as usize);
        for pattern in 0..PROBE_PATTERNS {
            let [r, s, ..] = philox(0, Stream::Bench, pair as u64, 1 + pattern as u64);
            (x[a][pattern], x[b][pattern]) = (bf16_number(r), bf16_number(r));
            (w[a][pattern], w[b][pattern]) = (bf16_number(s), bf16_number(s) ^ 0x8000);
        }
    }
    // The contraction runs along the rows of a matrix, or down its columns.
    let along = |of: &[[u16; PROBE_PATTERNS]], rows: usize| -> Vec<u16> {
        (0..rows).flat_map(|row| of.iter().map(move |patterns| patterns[row % PROBE_PATTERNS])).collect()
    };
    let down = |of: &[[u16; PROBE_PATTERNS]], cols: usize| -> Vec<u16> {
        of.iter().flat_map(|patterns| (0..cols).map(move |col| patterns[col % PROBE_PATTERNS])).collect()
    };
    match shape.op {
        Op::Forward => (along(&x, shape.m), along(&w, shape.n)),
        Op::BackwardX => (along(&x, shape.m), down(&w, shape.k)),
        Op::BackwardW => (down(&x, shape.n), down(&w, shape.k)),
    }
}

/// Fills an output with NaN: an element that a product leaves unwritten must not pass by what an earlier product wrote.
pub(crate) fn forget(gpu: &Gpu, out: u64, len: usize) -> Option<()> {
    // SAFETY: the output has as many bytes.
    unsafe { cuda::memset_d8_async(out, 0xff, len, gpu.stream) }.ok()
}

/// Returns an output's bytes once the stream has written them.
pub(crate) fn output(gpu: &Gpu, out: u64, len: usize) -> Option<Vec<u8>> {
    gpu.wait().ok()?;
    let mut bytes = vec![0u8; len];
    // SAFETY: the output has as many bytes.
    unsafe { cuda::memcpy_dtoh_sync(&mut bytes, out) }.ok()?;
    Some(bytes)
}

/// Compares algorithms on the actual operands, with the output in the scratch or in its place.
pub(crate) struct Trial<'x> {
    lt: &'x Lt,
    gpu: &'x Gpu,
    /// In the scratch, of as many rows as it holds.
    description: Description,
    operands: Operands,
    workspace: (u64, u64),
    /// Bytes of the output that are compared.
    out_bytes: u64,
    /// True if these bytes hold this output and nothing else, not even what it is added to.
    is_own: bool,
    /// 1 if another matrix is added.
    beta: f32,
    timed: u32,
    begin: Mark,
    end: Mark,
}

impl<'x> Trial<'x> {
    pub(crate) fn new(
        lt: &'x Lt,
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
            lt,
            gpu,
            description: Description::new(lt.calls, &held, operands.bias)?,
            operands: Operands { added: scratch.0, out: scratch.0, ..operands },
            // It would be in the output. Algorithms that need one are not taken.
            workspace: (0, 0),
            out_bytes: held.out_bytes(),
            is_own: true,
            beta: 0.0,
            timed: TIMED,
            begin: mark()?,
            end: mark()?,
        })
    }

    pub(crate) fn in_place(
        lt: &'x Lt,
        gpu: &'x Gpu,
        shape: &Shape,
        operands: Operands,
        workspace: (u64, u64),
    ) -> Status<Trial<'x>> {
        let unsupported = result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED);
        let mark = || Mark::new(gpu).map_err(|_| unsupported);
        Ok(Trial {
            lt,
            gpu,
            description: Description::new(lt.calls, shape, operands.bias)?,
            operands,
            workspace,
            out_bytes: shape.out_bytes().min(COMPARED_BYTES),
            is_own: shape.is_whole() && !shape.add,
            beta: if shape.add { 1.0 } else { 0.0 },
            timed: LARGE_TIMED,
            begin: mark()?,
            end: mark()?,
        })
    }

    /// Returns the fastest of the candidates that gives the reference's bits, here and in the probe.
    pub(crate) fn best(
        &self,
        reference: sys::cublasLtMatmulAlgo_t,
        candidates: Vec<sys::cublasLtMatmulAlgo_t>,
        probe: &Probe<'_>,
    ) -> sys::cublasLtMatmulAlgo_t {
        let mut timed: Vec<(f64, sys::cublasLtMatmulAlgo_t)> =
            candidates.into_iter().filter_map(|c| Some((self.seconds(&c)?, c))).collect();
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        let wanted = self.bits(&reference);
        let same = |choice: &sys::cublasLtMatmulAlgo_t| {
            wanted.is_some() && self.bits(choice) == wanted && probe.is_same(&reference, choice)
        };
        timed.into_iter().map(|(_, choice)| choice).find(same).unwrap_or(reference)
    }

    fn put(&self, algorithm: &sys::cublasLtMatmulAlgo_t) -> Option<()> {
        self.lt.put(self.gpu, &self.description, self.operands, self.beta, algorithm, self.workspace).ok()
    }

    /// Returns the seconds of a candidate, if it runs.
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

    /// Returns the bytes that an algorithm gives.
    fn bits(&self, algorithm: &sys::cublasLtMatmulAlgo_t) -> Option<Vec<u8>> {
        if self.is_own {
            forget(self.gpu, self.operands.out, self.out_bytes as usize)?;
        }
        self.put(algorithm)?;
        output(self.gpu, self.operands.out, self.out_bytes as usize)
    }
}
