//! The work that an operation is: what a profile compares its time with.

use crate::profile::Work;
use crate::{BackwardOp, ForwardOp, Op};

impl Op<'_> {
    /// Returns [M, N, K] of an operation that is a product of matrices.
    pub fn product(&self) -> Option<[usize; 3]> {
        let of = |x: plimsoll_memory::Buf<'_>, n: usize, k: usize| Some([x.len() / k, n, k]);
        match *self {
            Op::Forward(op) => match op {
                ForwardOp::Matmul { x, w, .. } | ForwardOp::MatmulAdd { x, w, .. } => of(x, w.n, w.k),
                ForwardOp::Gated { x, w, .. } | ForwardOp::Head { x, w, .. } => of(x, w.n, w.k),
                ForwardOp::Adapted { x, of: layer, .. } => of(x, layer.w.n, layer.w.k),
                ForwardOp::Sample { args } => of(args.x, args.w.n, args.w.k),
                _ => None,
            },
            Op::Backward(op) => match op {
                BackwardOp::MatmulDx { dy, w, .. } => Some([dy.len() / w.n, w.n, w.k]),
                BackwardOp::MatmulDw { dy, grad, .. } => Some([dy.len() / grad.n, grad.n, grad.k]),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the operation's work.
    pub fn work(&self) -> Work {
        let flops = self.product().map_or(0, |[m, n, k]| 2 * (m * n * k) as u64);
        // Tables and caches of which only some rows are used.
        let is_of_parts = matches!(
            self,
            Op::Forward(
                ForwardOp::Embed { .. }
                    | ForwardOp::Rope { .. }
                    | ForwardOp::CopyKv { .. }
                    | ForwardOp::Attention { .. }
                    | ForwardOp::GatherRows { .. }
            )
        ) || matches!(
            self.name(),
            "attention_backward" | "rope_backward" | "embed_backward" | "head_backward" | "head_divergence"
        );
        let mut bytes = 0;
        self.each_buffer(&mut |buf, _, name| {
            // Scratch of products that keep their sums in registers.
            let is_scratch = matches!(name, "tile" | "gradient_tile" | "gate_up" | "pack") && flops > 0;
            bytes += if is_scratch { 0 } else { buf.bytes() };
        });
        Work { bytes: if is_of_parts { 0 } else { bytes }, flops }
    }
}
