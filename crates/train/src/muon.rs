//! Muon for the matrices of layers: momentum, orthogonalised by Newton-Schulz iterations, is the step.
//!
//! A matrix is a tensor as published: q, k, v, gate and up, and each expert, by itself, though they are stored as one.
//! Each rank updates the momentum of its own elements, reads those of a whole matrix from the others, computes the same
//! step as they do, and applies its own elements of it: the number of ranks moves no bit. The iterations are in f32.
//!
//! AdamW's first moment is Muon's momentum of these matrices. The second is there too and stays 0.

use crate::matrices::{MuonBufs, Shape, within};
use crate::optimizer::Optimizer;
use plimsoll_algo::update::{MUON_EPSILON, MuonOptions, UpdateOptions};
use plimsoll_base::DType;
use plimsoll_device::{Arrange, Descent, Device, Matrix, MatrixLayout, Momentum, OwnedRun, Run};
use plimsoll_memory::Buf;
use std::ops::Range;

impl Optimizer<'_> {
    /// Replaces the rank's gradient sums of matrices by what is to be orthogonalised, and updates their momentum.
    /// `grads`: as for `update`. Other ranks may read them when all have done so.
    pub fn add_momentum(&self, dev: &dyn Device, grads: Buf<'_>, how: UpdateOptions, grad_norm: f64) {
        let (Some(matrices), Some(muon)) = (&self.matrices, how.muon) else { return };
        let (rest, nesterov) = ((1.0 - muon.momentum) as f32, muon.nesterov);
        let how = Momentum { rest, nesterov, grad_scale: how.grad_scale(grad_norm) };
        for OwnedRun { run, at } in &matrices.own {
            let (at, len) = (*at as usize, run.elements as usize);
            dev.momentum(how, grads.slice(at, len), self.momentum().slice(at, len));
        }
    }

    /// Makes Muon's step for the rank's elements of matrices, after `add_momentum` on all ranks.
    ///
    /// `grads`: as left by it. `weights`: as for `update`.
    pub fn step_matrices(
        &self,
        dev: &dyn Device,
        weights: Buf<'_>,
        grads: Buf<'_>,
        bufs: MuonBufs<'_>,
        how: UpdateOptions,
    ) {
        let (Some(matrices), Some(muon)) = (&self.matrices, how.muon) else { return };
        let descent = Descent { keep: (1.0 - muon.lr * muon.weight_decay) as f32, rate: muon.lr as f32 };
        for group in &matrices.groups {
            let momentum = self.whole(dev, grads, bufs, group.run);
            let from = Matrix::new(momentum, group.rows, group.k, matrices.order);
            let direction = direct(dev, from, &group.parts, bufs, &muon);
            for OwnedRun { run, at } in within(&matrices.own, group.run) {
                let (at, len) = (at as usize, run.elements as usize);
                let from = if self.weights_are_shard { at } else { run.start as usize };
                let step = direction.slice((run.start - group.run.start) as usize, len);
                let master = self.master().map(|master| master.slice(at, len));
                dev.descend(descent, step, weights.slice(from, len), master);
            }
        }
    }

    /// Runs an iteration once for the largest matrix, on zeros: weights and states stay.
    pub fn rehearse_matrices(&self, dev: &dyn Device, bufs: MuonBufs<'_>) {
        let groups = self.matrices.iter().flat_map(|matrices| &matrices.groups);
        let shapes = groups.flat_map(|of| of.parts.iter().map(|rows| Shape::of(rows.len(), of.k)));
        if let Some(shape) = shapes.max_by_key(|shape| shape.s * shape.l) {
            dev.zero(bufs.rows);
            orthogonalized(dev, shape, bufs, &MuonOptions { iterations: 1, ..MuonOptions::default() });
        }
    }

    /// Returns the elements of a run from all ranks.
    fn whole<'b>(&self, dev: &dyn Device, grads: Buf<'b>, bufs: MuonBufs<'b>, run: Run) -> Buf<'b> {
        let Some(taken) = bufs.taken else {
            return grads.slice(run.start as usize, run.elements as usize);
        };
        let whole = taken.slice(0, run.elements as usize);
        let mine = || within(self.owned(), run);
        let of = |OwnedRun { run, at }: OwnedRun| grads.slice(at as usize, run.elements as usize);
        let place = |part: Run| whole.slice((part.start - run.start) as usize, part.elements as usize);
        mine().for_each(|owned| dev.accumulate(of(owned), place(owned.run), false));
        let others = || self.share().others();
        let theirs =
            |rank| within(self.owned_by(rank), run).map(move |owned| (of(owned).of_rank(rank), owned));
        let copies = others().flat_map(theirs).map(|(from, owned)| (from, place(owned.run)));
        let given =
            dev.trade().is_some().then(|| others().flat_map(|rank| mine().map(move |own| (rank, of(own)))));
        dev.exchange(&copies.collect::<Vec<_>>(), &given.into_iter().flatten().collect::<Vec<_>>());
        whole
    }
}

/// Orthogonalises each tensor of a group and scales it by the factor of its rate, in the order of the weights.
fn direct<'b>(
    dev: &dyn Device,
    from: Matrix<'_>,
    parts: &[Range<usize>],
    bufs: MuonBufs<'b>,
    how: &MuonOptions,
) -> Buf<'b> {
    let to = Matrix { buf: bufs.direction.slice(0, from.buf.len()), ..from };
    if to.buf.len() > to.n * to.k {
        // Padding of weights stays 0.
        dev.zero(to.buf);
    }
    for part in parts {
        let (rows, cols) = (part.len(), from.k);
        let shape @ Shape { s, l, turned } = Shape::of(rows, cols);
        let x = bufs.rows.slice(0, s * l);
        let take = Arrange { from: part.start, to: 0, rows: s, turned };
        dev.arrange(from, Matrix::new(x, s, l, MatrixLayout::Rows), take);
        let x = orthogonalized(dev, shape, bufs, how);
        dev.scale(x, how.rate.factor(rows, cols) as f32);
        let put = Arrange { from: 0, to: part.start, rows, turned };
        dev.arrange(Matrix::new(x, s, l, MatrixLayout::Rows), to, put);
    }
    to.buf
}

/// Orthogonalises the matrix [s, l] in the first half of `bufs.rows`; returns where it is then.
///
/// Each iteration is X <- a X + b (X X^T) X + c (X X^T)^2 X, which moves all singular values of X towards 1.
/// Source: `torch.optim.Muon`, `_zeropower_via_newtonschulz`.
fn orthogonalized<'b>(dev: &dyn Device, shape: Shape, bufs: MuonBufs<'b>, how: &MuonOptions) -> Buf<'b> {
    let Shape { s, l, .. } = shape;
    let half = bufs.rows.len() / 2;
    let (mut x, mut next) = (bufs.rows.slice(0, s * l), bufs.rows.slice(half, s * l)); // [s, l]
    let half = bufs.squares.len() / 2;
    let (gram, sum) = (bufs.squares.slice(0, s * s), bufs.squares.slice(half, s * s)); // [s, s]
    let [a, b, c] = how.coefficients.map(|x| x as f32);
    let order = MatrixLayout::of_weights(dev.kind(), DType::F32);
    let matrix = |x: Buf<'_>, [n, k]: [usize; 2], turned: bool| {
        let elements = order.elements(n as u64, k as u64) as usize;
        let out = Matrix::new(bufs.matrix.slice(0, elements), n, k, order);
        let [rows, cols] = if turned { [k, n] } else { [n, k] };
        dev.arrange(Matrix::new(x, rows, cols, MatrixLayout::Rows), out, Arrange::whole(n, turned));
        out
    };
    let norm = dev.sum_squares(x).sqrt().max(MUON_EPSILON);
    dev.scale(x, (1.0 / norm) as f32);
    for _ in 0..how.iterations {
        dev.matmul(x, matrix(x, [s, l], false), None, gram, false);
        let w = matrix(gram, [s, s], false);
        dev.accumulate(gram, sum, false);
        dev.scale(sum, b);
        dev.scale(gram, c);
        dev.matmul(gram, w, None, sum, true); // b G + c G G^T, G = X X^T.
        dev.accumulate(x, next, false);
        dev.scale(next, a);
        dev.matmul(sum, matrix(x, [l, s], true), None, next, true);
        (x, next) = (next, x);
    }
    x
}
