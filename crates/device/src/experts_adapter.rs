//! Low-rank adapters of the products of experts.
//!
//! Legend: as in `experts.rs`; a product has K inputs and N outputs, and S blocks of rank r.

use crate::{Adapter, AdapterBlock, Experts, Routes, RowsOf};
use plimsoll_memory::Buf;

/// Blocks of an adapter of experts, at most: gate and up.
pub const EXPERTS_BLOCKS_MAX: usize = 2;

/// Low-rank adapters of a product of experts: each expert has an A, and a B of each block, of its own.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsAdapter<'a> {
    /// [S r, K] of each expert: A of each block, one after the other.
    pub a: Experts<'a>,
    /// S of them, the first ones, by their outputs: [n, r] of each expert, and the first of the n outputs.
    pub blocks: [Option<(Experts<'a>, usize)>; EXPERTS_BLOCKS_MAX],
    /// N: outputs of the product.
    pub n: usize,
    pub scale: f32,
}

impl<'a> ExpertsAdapter<'a> {
    /// Returns the blocks, each with its number and its first output.
    pub fn blocks(&self) -> impl Iterator<Item = (usize, Experts<'a>, usize)> {
        self.blocks.into_iter().flatten().enumerate().map(|(i, (b, first))| (i, b, first))
    }

    /// r.
    pub fn rank(&self) -> usize {
        self.a.n / self.blocks().count()
    }

    /// The adapter of one.
    pub fn of(&self, expert: usize) -> Adapter<'a> {
        let mut adapter = Adapter { a: self.a.of(expert), blocks: Default::default(), scale: self.scale };
        for (i, b, first) in self.blocks() {
            adapter.blocks[i] = Some(AdapterBlock { b: b.of(expert), first });
        }
        adapter
    }

    /// Checks that blocks fit each other, the product, its experts, and u of P pairs or its gradient.
    pub fn check(&self, routes: &Routes<'_>, u: Buf<'_>) {
        self.of(0).check_width(self.n);
        let counts = self.blocks().map(|(_, b, _)| b.count).chain([self.a.count]);
        assert!(counts.into_iter().all(|count| count == routes.count()), "an A and a B of each expert");
        assert_eq!(u.len(), routes.pairs() * self.a.n, "u of {} pairs, S r = {}", routes.pairs(), self.a.n);
    }
}

/// The gradients of adapters of experts: for each expert dB_i = dy_i^T u_i of each block, and dA = du^T x, over its pairs, rows ascending.
#[derive(Clone, Copy, Debug)]
pub struct AdaptExpertsBackward<'a> {
    /// [M, K] or [P, K] e: the forward's.
    pub x: Buf<'a>,
    pub x_has: RowsOf,
    /// [P, S r] e: the forward's.
    pub u: Buf<'a>,
    /// [M, N] or [P, N] e: gradient of the product.
    pub dy: Buf<'a>,
    pub dy_has: RowsOf,
    /// [P, S r] e: what `adapt_experts_dx` gave.
    pub du: Buf<'a>,
    pub routes: Routes<'a>,
    /// Written, or added to when `add`: zero, or what was there, for an expert without pairs. f32 or bf16. The scale is not read.
    pub grads: ExpertsAdapter<'a>,
    pub add: bool,
    /// As `Layouts::pack` says for M rows and each product, e; written.
    pub pack: Buf<'a>,
}
