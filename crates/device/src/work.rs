//! The work that an operation is: what a profile compares its time with.

use crate::claims::Access;
use crate::profile::Work;
use crate::{BackwardOp, ForwardOp, Op, UpdateOp};

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
        self.each_buffer(&mut |buf, access, name| {
            // Scratch of products that keep their sums in registers.
            let is_scratch = matches!(name, "tile" | "gradient_tile" | "gate_up" | "pack") && flops > 0;
            let times = match (is_scratch, access != Access::Read && self.reads(name)) {
                (true, _) => 0,
                (false, reads) => 1 + u64::from(reads),
            };
            bytes += times * buf.bytes();
        });
        Work { bytes: if is_of_parts { 0 } else { bytes }, flops }
    }

    /// Returns whether an operand that the operation writes is read by it too.
    fn reads(&self, name: &str) -> bool {
        match *self {
            Op::Forward(ForwardOp::Matmul { add, .. }) => add,
            // Weights that have a copy in f32 come from it.
            Op::Update(UpdateOp::AdamW { bufs, .. }) => name != "weights" || bufs.master.is_none(),
            Op::Update(UpdateOp::Descend { master, .. }) => name != "weights" || master.is_none(),
            Op::Update(UpdateOp::Momentum { .. }) => true,
            Op::Update(UpdateOp::Accumulate { add, .. } | UpdateOp::Fold { add, .. }) => add,
            Op::Backward(BackwardOp::MatmulDx { add, .. }) => add,
            Op::Backward(BackwardOp::MatmulDw { add, .. }) => add && name == "grad",
            Op::Backward(BackwardOp::RmsNormBackward { to, .. }) => name == "dx" || to.add && name == "dw",
            Op::Backward(BackwardOp::BiasBackward { add, .. }) => add,
            _ => false,
        }
    }
}
