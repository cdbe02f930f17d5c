//! Matrix products of bf16 by cuBLASLt.
//!
//! Exactness: an output element's order of accumulation must depend on K alone. cuBLASLt keeps to it when split-K is
//! masked out and products of few rows use the algorithm for sixteen (with one row it picks a vector kernel that adds
//! in another order). Algorithms are therefore chosen for M rounded up to a power of two. Candidates that do not add in
//! the reference's order (`trial::Probe`) are dropped: the clock decides how fast a run is, not what it computes.

use super::driver::Gpu;
use super::lt::{Description, Fp8Shape, Lt, Op, Operands, Shape, Status, failed};
use super::trial::{Probe, Trial};
use cudarc::cublaslt::sys::cublasLtMatmulAlgo_t as Algorithm;
use plimsoll_base::Result;
use std::collections::HashMap;
use std::sync::Mutex;

/// Minimum rows for which an algorithm is chosen.
const ROWS_MIN: usize = 16;
/// Rows up to which candidates are timed in the scratch: those of decode passes and similar ones.
const TUNED_ROWS_MAX: usize = 512;
/// Rows for which the reference is the library's first choice.
const REFERENCE_ROWS: usize = 4096;
/// Rows of the product that our own kernel for few rows is compared by.
const FEW_PROBED: usize = 64;
/// Choices requested from the library for one size.
const CANDIDATES: usize = 12;
/// Choices that are timed for a large product: the best is among the first.
const LARGE_CANDIDATES: usize = 8;

/// cuBLASLt with the algorithms chosen so far.
#[derive(Debug)]
pub(crate) struct Blas {
    pub(crate) lt: Lt,
    algorithms: Mutex<HashMap<Shape, Algorithm>>,
    /// Shapes that our own kernel was compared for, and whether it gives the same bits.
    equal: Mutex<HashMap<Shape, bool>>,
    /// Those of products of rounded numbers; none where our own kernel is used.
    pub(crate) of_fp8: Mutex<HashMap<Fp8Shape, Option<Algorithm>>>,
    /// False where speed does not matter: the reference is taken untried, which gives the same bits.
    tunes: bool,
}

impl Blas {
    /// Errors: `cuda-library-missing`, `cuda-failed`.
    pub(crate) fn open(gpu: &Gpu, tunes: bool) -> Result<Blas> {
        Ok(Blas {
            lt: Lt::open(gpu)?,
            algorithms: Mutex::default(),
            equal: Mutex::default(),
            of_fp8: Mutex::default(),
            tunes,
        })
    }

    /// Returns the library's version, such as 130100.
    pub(crate) fn version(&self) -> usize {
        self.lt.version
    }

    /// Queues a product on the stream. `workspace`: (address, bytes).
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
        let description =
            Description::new(self.lt.calls, &shape, operands.bias).map_err(|e| failed(&what(), e))?;
        gpu.bind();
        let algorithm = self.algorithm(gpu, shape, operands, workspace).map_err(|e| failed(&what(), e))?;
        let beta = if shape.add { 1.0 } else { 0.0 };
        self.lt.put(gpu, &description, operands, beta, &algorithm, workspace).map_err(|e| failed(&what(), e))
    }

    /// True if `put`, which queues a product of few rows by other means, gives this library's bits for a shape's N and
    /// K. Found once by a product of its own; `put` may not write beyond that.
    pub(crate) fn has_bits_of(
        &self,
        gpu: &Gpu,
        shape: &Shape,
        workspace: (u64, u64),
        put: impl FnOnce(&Shape, Operands),
    ) -> bool {
        let of = Shape { m: FEW_PROBED, add: false, ..*shape };
        let mut equal = self.equal.lock().unwrap_or_else(|e| e.into_inner());
        *equal.entry(of).or_insert_with(|| {
            let reference = self.reference(&of, workspace.1);
            reference
                .is_ok_and(|of_many| Probe::new(&self.lt, gpu, &of, workspace).is_order_of(&of_many, put))
        })
    }

    /// Returns the algorithm for a shape whose M is rounded up.
    fn algorithm(
        &self,
        gpu: &Gpu,
        shape: Shape,
        operands: Operands,
        workspace: (u64, u64),
    ) -> Status<Algorithm> {
        // Addition is no part of the choice, so that the bits of a sum do not depend on it either.
        let rounded = Shape { m: shape.m.next_power_of_two().max(ROWS_MIN), add: false, ..shape };
        let mut algorithms = self.algorithms.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(algorithm) = algorithms.get(&rounded) {
            return Ok(*algorithm);
        }
        let of = TunedProduct { gpu, rounded, shape, operands, workspace };
        let algorithm = match (shape.op, rounded.m <= TUNED_ROWS_MAX, shape.add) {
            _ if shape.of_many => self.reference(&rounded, workspace.1)?,
            (Op::Forward, _, _) if !self.tunes => self.reference(&rounded, workspace.1)?,
            (Op::BackwardW, _, _) => self.gradient(&of)?,
            _ if !self.tunes => self.lt.choices(&rounded, workspace.1, 1)?[0],
            (Op::Forward, true, _) => self.fastest(&of)?,
            // Adding to the output forbids a timing.
            (Op::Forward, false, true) if operands.added == operands.out => self.first_of_order(&of)?,
            // The output's old values are not read, so it may be written several times.
            (Op::Forward, false, _) | (Op::BackwardX, false, false) => self.fastest_in_place(&of)?,
            _ => self.lt.choices(&rounded, workspace.1, 1)?[0],
        };
        algorithms.insert(rounded, algorithm);
        Ok(algorithm)
    }

    /// Returns the algorithm whose bits all numbers of rows must give.
    fn reference(&self, rounded: &Shape, workspace: u64) -> Status<Algorithm> {
        let many = Shape { m: REFERENCE_ROWS, ..*rounded };
        Ok(self.lt.choices(&many, workspace, 1)?[0])
    }

    /// Returns the library's best choice that adds in the order of the reference, untimed.
    fn first_of_order(&self, of: &TunedProduct<'_>) -> Status<Algorithm> {
        let reference = self.reference(&of.rounded, of.workspace.1)?;
        let probe = of.probe(&self.lt);
        let choices = self.lt.choices(&of.rounded, of.workspace.1, LARGE_CANDIDATES)?;
        Ok(choices.into_iter().find(|choice| probe.is_same(&reference, choice)).unwrap_or(reference))
    }

    /// Returns the best choice for a gradient that is the same whether micro-batches add to it or other ranks sum it:
    /// the fastest, where the gradient is written and not added to.
    fn gradient(&self, of: &TunedProduct<'_>) -> Status<Algorithm> {
        let choices = self.lt.choices(&of.rounded, of.workspace.1, LARGE_CANDIDATES)?;
        let probe = of.probe(&self.lt);
        let once: Vec<_> = choices.iter().copied().filter(|choice| probe.adds_once(choice)).collect();
        let reference = *once.first().unwrap_or(&choices[0]);
        if of.shape.add || !self.tunes {
            return Ok(reference);
        }
        of.best_in_place(&self.lt, reference, once, &probe)
    }

    /// Returns the fastest of the library's choices whose bits are those of the reference.
    fn fastest(&self, of: &TunedProduct<'_>) -> Status<Algorithm> {
        let reference = self.reference(&of.rounded, of.workspace.1)?;
        let (mut candidates, m) = (vec![reference], of.rounded.m);
        for (m, most) in [(m, CANDIDATES), (2 * m, CANDIDATES / 2), (256, CANDIDATES / 2)] {
            // The library offers nothing for a size that it has no choice for.
            let more = self.lt.choices(&Shape { m, ..of.rounded }, of.workspace.1, most).unwrap_or_default();
            for choice in more {
                if candidates.iter().all(|c| c.data != choice.data) {
                    candidates.push(choice);
                }
            }
        }
        let probe = of.probe(&self.lt);
        let trial = Trial::new(&self.lt, of.gpu, &of.shape, of.operands, probe.rest(of.workspace))?;
        Ok(trial.best(reference, candidates, &probe))
    }

    /// Returns the fastest choice for a product of many rows, whose output is large: candidates write it in place.
    fn fastest_in_place(&self, of: &TunedProduct<'_>) -> Status<Algorithm> {
        let mut candidates = self.lt.choices(&of.rounded, of.workspace.1, LARGE_CANDIDATES)?;
        let reference = match of.shape.op {
            Op::Forward => self.reference(&of.rounded, of.workspace.1)?,
            _ => candidates[0],
        };
        if candidates.iter().all(|c| c.data != reference.data) {
            candidates.push(reference);
        }
        of.best_in_place(&self.lt, reference, candidates, &of.probe(&self.lt))
    }
}

/// A product that an algorithm is chosen for. `rounded`: its shape with M rounded up.
struct TunedProduct<'x> {
    gpu: &'x Gpu,
    rounded: Shape,
    shape: Shape,
    operands: Operands,
    workspace: (u64, u64),
}

impl TunedProduct<'_> {
    fn probe<'x>(&'x self, lt: &'x Lt) -> Probe<'x> {
        Probe::new(lt, self.gpu, &self.rounded, self.workspace)
    }

    /// Returns the fastest of the candidates that give the bits of the reference; all write the product's output.
    fn best_in_place(
        &self,
        lt: &Lt,
        reference: Algorithm,
        candidates: Vec<Algorithm>,
        probe: &Probe<'_>,
    ) -> Status<Algorithm> {
        let trial = Trial::in_place(lt, self.gpu, &self.shape, self.operands, probe.rest(self.workspace))?;
        Ok(trial.best(reference, candidates, probe))
    }
}
