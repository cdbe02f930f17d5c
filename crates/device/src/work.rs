//! The work that an operation is: what a profile compares its time with.

use crate::Op;
use crate::claims::Access;
use crate::profile::Work;

impl Op<'_> {
    /// Returns [M, N, K] of an operation that is a product of matrices.
    pub fn product(&self) -> Option<[usize; 3]> {
        let of = |x: plimsoll_memory::Buf<'_>, n: usize, k: usize| Some([x.len() / k, n, k]);
        match *self {
            Op::Matmul { x, w, .. } | Op::MatmulAdd { x, w, .. } => of(x, w.n, w.k),
            Op::Gated { x, w, .. } | Op::Head { x, w, .. } => of(x, w.n, w.k),
            Op::Adapted { x, of: layer, .. } | Op::AdaptedSlots { x, of: layer, .. } => {
                of(x, layer.w.n, layer.w.k)
            }
            Op::Sample { args } => of(args.x, args.w.n, args.w.k),
            Op::MatmulFp8 { x, of: rounded, .. } => of(x, rounded.w.n, rounded.w.k),
            Op::MatmulFp8Dx { dy, of: rounded, .. } => {
                Some([dy.len() / rounded.w.n, rounded.w.n, rounded.w.k])
            }
            Op::MatmulDx { dy, w, .. } => Some([dy.len() / w.n, w.n, w.k]),
            Op::MatmulDw { dy, grad, .. } => Some([dy.len() / grad.n, grad.n, grad.k]),
            _ => None,
        }
    }

    /// Returns the operation's work.
    pub fn work(&self) -> Work {
        let flops = self.product().map_or(0, |[m, n, k]| 2 * (m * n * k) as u64);
        // Tables and caches of which only some rows are used.
        let is_of_parts = matches!(
            self.name(),
            "embed"
                | "rope"
                | "copy_kv"
                | "attention"
                | "gather_rows"
                | "attention_backward"
                | "rope_backward"
                | "embed_backward"
                | "replace_rows"
                | "head_backward"
                | "head_divergence"
        );
        let mut bytes = 0;
        self.each_buffer(&mut |buf, access, name| {
            // Scratch of products that keep their sums in registers.
            let is_scratch =
                matches!(name, "tile" | "gradient_tile" | "gate_up" | "pack" | "rows" | "turned")
                    && flops > 0;
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
            Op::Matmul { add, .. } => add,
            // Weights that have a copy in f32 come from it.
            Op::AdamW { bufs, .. } => name != "weights" || bufs.master.is_none(),
            Op::Descend { master, .. } => name != "weights" || master.is_none(),
            Op::Momentum { .. } => true,
            Op::Accumulate { add, .. } | Op::Fold { add, .. } | Op::WeighRows { add, .. } => add,
            Op::MatmulDx { add, .. } => add,
            Op::MatmulDw { add, .. } => add && name == "grad",
            Op::RmsNormBackward { to, .. } => name == "dx" || to.add && name == "dw",
            Op::BiasBackward { add, .. } => add,
            _ => false,
        }
    }
}
