//! Memory of every PyTorch process, in any framework: context, libraries, pinned rounding, logits, activations.
//!
//! Legend: N tokens of a pass, V vocab, L layers, h hidden, a query heads, k key-value heads, d head dim, f FFN width.

use crate::plan::ledger::{Holder, Item, Phase, When, shown};
use crate::plan::model::{Ffn, Shape, heads};
use plimsoll_arch::ModelSpec;

/// A CUDA context with its modules: 246 to 516 MiB were reported; plans use the upper end.
pub(crate) const CONTEXT_BYTES: u128 = 512 << 20;
const CONTEXT_SOURCE: &str = "reported: 246 to 516 MiB an idle process (TRL issues 5207 and 5750, RLinf issue 272); nvidia-smi shows yours";
/// 32 MiB per handle and stream on Hopper, 8 MiB before it.
const CUBLAS_BYTES: u128 = 33_554_432;
/// Host memory of a trainer process whose model is on its card.
const TRAINER_HOST_BYTES: u128 = 1_700 << 20;
/// Host memory of a process with a vLLM engine in it.
const ENGINE_HOST_BYTES: u128 = 3_600 << 20;

/// Returns the bytes of a pinned allocation of PyTorch: the next power of two.
///
/// Source: torch 2.6.0, `aten/src/ATen/core/CachingHostAllocator.h:130-132`.
pub(crate) fn pinned(bytes: u128) -> u128 {
    if bytes == 0 { 0 } else { bytes.checked_next_power_of_two().unwrap_or(u128::MAX) }
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Process {
    Trainer,
    Engine,
}

/// Returns context, cuBLAS workspace and host memory of one process per card.
pub(crate) fn process(holder: Holder, kind: Process) -> [Item; 3] {
    let (host, source) = match kind {
        Process::Trainer => (
            TRAINER_HOST_BYTES,
            "reported: 1.66 and 1.67 GiB of a process with its model on the card (OpenRLHF issue 171)",
        ),
        Process::Engine => (
            ENGINE_HOST_BYTES,
            "from a report: 11.1 GB a process less 7.0 GiB of pinned swap (verl issue 224)",
        ),
    };
    let cublas = "torch 2.6.0 aten/src/ATen/cuda/CublasHandlePool.cpp:116-134";
    let handle = "33554432 B a handle and stream (8519680 before Hopper)";
    let context = "512 MiB a process and card";
    [
        holder.card("CUDA context", CONTEXT_BYTES, Phase::ALL, context, CONTEXT_SOURCE),
        holder.card("cuBLAS workspace", CUBLAS_BYTES, Phase::ALL, handle, cublas),
        holder.host("Python, PyTorch, libraries", host, Phase::ALL, "a process", source),
    ]
}

/// Returns the buffers of one NCCL communicator over a ring: 16 channels, two directions.
pub(crate) fn nccl(holder: Holder, ranks: u64) -> Option<Item> {
    let formula = "16 channels x 2 directions x 9633792 B; 16 is assumed, NCCL_MAX_NCHANNELS bounds it";
    let source = "NCCL 5067397c src/init.cc:810-830, src/include/device.h:91-115";
    let row = || holder.card("NCCL buffers", 16 * 2 * 9_633_792, Phase::RUNNING, formula, source);
    (ranks > 1).then(row)
}

/// Returns a layer's saved bytes for a token in bf16: 2 (4h + 2ad + 2kd + 3f) + 8 + 4a. In place of 3f, experts save
/// input, gate, up, product and output for each of a token's x experts, and E router logits in f32: 2 x (2h + 3f) + 4E.
pub(crate) fn layer_token_bytes(spec: &ModelSpec) -> u128 {
    let of = heads(spec);
    let (h, a) = (u128::from(spec.hidden), u128::from(of.heads));
    let (q, kv) = (u128::from(of.q_width()), u128::from(of.kv_width()));
    let ffn = |part: Ffn| -> u128 {
        let f = u128::from(part.width);
        match part.experts {
            None => 2 * 3 * f,
            Some((count, chosen)) => 2 * u128::from(chosen) * (2 * h + 3 * f) + 4 * u128::from(count),
        }
    };
    2 * (4 * h + 2 * q + 2 * kv) + Ffn::of(spec).into_iter().map(ffn).fold(0, u128::max) + 8 + 4 * a
}

/// Bytes of logits per token and vocabulary entry.
#[derive(Clone, Copy)]
pub(crate) struct Logits {
    pub bytes: u64,
    pub formula: &'static str,
    pub source: &'static str,
}

impl Logits {
    /// No logits: a model without a head, or one whose logits are never whole.
    pub const NONE: Logits = Logits { bytes: 0, formula: "", source: "" };

    /// Returns the logits of a forward and backward pass that makes them whole, in bf16 and again in f32.
    pub const fn trained(source: &'static str) -> Logits {
        Logits { bytes: 10, formula: "(2 B bf16 + 4 B f32 + 4 B gradient)", source }
    }

    /// Returns the logits of a forward pass alone.
    pub const fn scored(source: &'static str) -> Logits {
        Logits { bytes: 6, formula: "(2 B bf16 + 4 B f32)", source }
    }
}

/// A pass over `tokens` rows by one process.
#[derive(Clone, Copy)]
pub(crate) struct Pass {
    pub holder: Holder,
    pub phases: When,
    pub tokens: u64,
    /// True with a backward pass.
    pub trains: bool,
    /// True if layers keep only their inputs.
    pub recompute: bool,
    pub logits: Logits,
}

impl Pass {
    pub fn items(&self, shape: &Shape) -> Vec<Item> {
        let spec = &shape.spec;
        let (tokens, layers) = (u128::from(self.tokens), u128::from(spec.layers.len()));
        let (layer, input) = (layer_token_bytes(spec), 2 * u128::from(spec.hidden));
        let (bytes, formula) = match (self.trains, self.recompute) {
            (false, _) => (tokens * layer, format!("{tokens} tokens x {layer} B of one layer")),
            (true, true) => (
                tokens * (layers * input + layer),
                format!("{tokens} tokens x ({layers} layers x {input} B kept + {layer} B of one layer)"),
            ),
            (true, false) => {
                (tokens * layers * layer, format!("{tokens} tokens x {layers} layers x {layer} B"))
            }
        };
        let source =
            "arithmetic: tensors that a layer with flash attention saves; eager Hugging Face code keeps more";
        let mut items = vec![self.holder.card("activations", bytes, self.phases, formula, source)];
        items.extend(self.logits(shape));
        items
    }

    pub fn logits(&self, shape: &Shape) -> Option<Item> {
        let Logits { bytes, formula, source } = self.logits;
        let (tokens, vocab) = (u128::from(self.tokens), u128::from(shape.spec.vocab));
        let formula = format!("{tokens} tokens x {vocab} words x {formula}");
        let bytes = tokens * vocab * u128::from(bytes);
        (self.logits.bytes > 0).then(|| self.holder.card("logits", bytes, self.phases, formula, source))
    }
}

/// Returns keys and values of `rows` sequences in a rollout by transformers' `generate()`.
pub(crate) fn kv_cache(
    holder: Holder,
    rows: (u64, &str),
    tokens: u64,
    shape: &Shape,
    source: &'static str,
) -> Item {
    let ((rows, word), each) = (rows, shape.kv_token());
    let bytes = u128::from(rows.saturating_mul(tokens)) * u128::from(each);
    let formula = format!("{rows} {word} x {tokens} tokens x {each} B");
    holder.card("KV cache", bytes, &[Phase::Rollout], formula, source)
}

/// Returns pages of files being written: they count against a container until they are on disk.
pub(crate) fn file_pages(holder: Holder, bytes: u128) -> Item {
    let formula = format!("{} written, until it is on disk", shown(bytes));
    let source = "Linux cgroup documentation: dirty pages of files are charged to the cgroup that wrote them";
    holder.host("file pages of the save", bytes, &[Phase::Save], formula, source).first()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::model::preset_of;

    #[test]
    fn pinned_memory_is_a_power_of_two() {
        for (bytes, expect) in [(0, 0), (1, 1), (4096, 4096), (4097, 8192), (1_533_952_000, 1 << 31)] {
            assert_eq!(pinned(bytes), expect, "{bytes}");
        }
        assert_eq!(pinned(u128::MAX), u128::MAX);
    }

    #[test]
    fn activations_and_logits_of_known_shapes() {
        for (name, bytes) in [("qwen2.5-0.5b", 40_512), ("qwen2.5-1.5b", 73_272), ("qwen2.5-7b", 158_840)] {
            assert_eq!(layer_token_bytes(&preset_of(name).unwrap().1), bytes, "{name}");
        }
        let shape = Shape::policy(preset_of("qwen2.5-7b").unwrap().1);
        let pass = |trains, recompute| Pass {
            holder: Holder { role: "actor", group: 0 },
            phases: &[Phase::Update],
            tokens: 1000,
            trains,
            recompute,
            logits: Logits::trained(""),
        };
        let bytes = |trains, recompute| -> Vec<u128> {
            pass(trains, recompute).items(&shape).iter().map(|item| item.bytes).collect()
        };
        assert_eq!(bytes(false, false), [158_840_000, 1_520_640_000]);
        assert_eq!(bytes(true, false)[0], 28 * 158_840_000);
        assert_eq!(bytes(true, true)[0], 1000 * (28 * 7168 + 158_840));
    }
}
