//! Low-rank adapters of the products of experts.
//!
//! Legend: as in `experts.rs`; a product has K inputs and N outputs, and S blocks of rank r.

use crate::{Adapter, AdapterBlock, Experts, Routes, RowsOf};
use plimsoll_memory::Buf;

/// Maximum blocks of an expert adapter: gate and up.
pub const EXPERTS_BLOCKS_MAX: usize = 2;

/// Low-rank adapters of a product of experts: each expert has its own A, and its own B for each block.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsAdapter<'a> {
    /// [S r, K] of each expert: A of each block, one after the other.
    pub a: Experts<'a>,
    /// S blocks in order of their outputs: [n, r] of each expert, and the first of the n outputs.
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

    /// Returns r.
    pub fn rank(&self) -> usize {
        self.a.n / self.blocks().count()
    }

    /// Returns one expert's adapter.
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

/// Gradients of expert adapters: dB_i = dy_i^T u_i of each block and dA = du^T x, over an expert's pairs by row.
#[derive(Clone, Copy, Debug)]
pub struct AdaptExpertsBackward<'a> {
    /// [M, K] or [P, K] e: from the forward pass.
    pub x: Buf<'a>,
    pub x_has: RowsOf,
    /// [P, S r] e: from the forward pass.
    pub u: Buf<'a>,
    /// [M, N] or [P, N] e: gradient of the product.
    pub dy: Buf<'a>,
    pub dy_has: RowsOf,
    /// [P, S r] e: result of `adapt_experts_dx`.
    pub du: Buf<'a>,
    pub routes: Routes<'a>,
    /// Written, or added to when `add`; zero, or unchanged, without pairs. f32 or bf16. The scale is not read.
    pub grads: ExpertsAdapter<'a>,
    pub add: bool,
    /// Scratch (e) sized by `Layouts::pack` for M rows and each product; written.
    pub pack: Buf<'a>,
}
