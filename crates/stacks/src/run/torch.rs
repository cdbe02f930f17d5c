//! What every PyTorch process takes, whatever the framework: context, libraries, pinned rounding, logits, activations.
//!
//! Legend: N tokens of a pass, V vocab, L layers, h hidden, a query heads, k key-value heads, d head dim, f feed-forward.

use super::ledger::{Item, Per, Phase, Pool};
use super::model::Shape;
use plimsoll_base::{Bytes, ModelSpec};

/// A CUDA context with its modules: 246 to 516 MiB have been reported; the upper end is planned with.
pub(super) const CONTEXT_BYTES: u128 = 512 << 20;
const CONTEXT_SOURCE: &str = "reported: 246 to 516 MiB an idle process (TRL issues 5207 and 5750, RLinf issue 272); nvidia-smi shows yours";
/// 32 MiB a handle and stream on Hopper, 8 MiB before it.
const CUBLAS_BYTES: u128 = 33_554_432;
/// Host memory of a trainer process whose model is on its card.
const TRAINER_HOST_BYTES: u128 = 1_700 << 20;
/// Host memory of a process with a vLLM engine in it.
const ENGINE_HOST_BYTES: u128 = 3_600 << 20;

/// Bytes of a pinned allocation of PyTorch: the next power of two.
///
/// Source: torch 2.6.0, `aten/src/ATen/core/CachingHostAllocator.h:130-132`.
pub(super) fn pinned(bytes: u128) -> u128 {
    if bytes == 0 { 0 } else { bytes.checked_next_power_of_two().unwrap_or(u128::MAX) }
}

/// What kind of process it is.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Process {
    Trainer,
    Engine,
}

/// Context, cuBLAS workspace and host memory of one process a card.
pub(super) fn process(role: &'static str, group: usize, kind: Process) -> [Item; 3] {
    let row = |name, pool, bytes, formula: &str, source| Item {
        role,
        name,
        pool,
        group,
        per: Per::Rank,
        bytes,
        phases: Phase::ALL,
        formula: formula.into(),
        source,
    };
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
    [
        row("CUDA context", Pool::Device, CONTEXT_BYTES, "512 MiB a process and card", CONTEXT_SOURCE),
        row(
            "cuBLAS workspace",
            Pool::Device,
            CUBLAS_BYTES,
            "33554432 B a handle and stream (8519680 before Hopper)",
            "torch 2.6.0 aten/src/ATen/cuda/CublasHandlePool.cpp:116-134",
        ),
        row("Python, PyTorch, libraries", Pool::Host, host, "a process", source),
    ]
}

/// Buffers of one NCCL communicator over a ring: 16 channels, two directions.
pub(super) fn nccl(role: &'static str, group: usize, ranks: u64) -> Option<Item> {
    (ranks > 1).then(|| Item {
        role,
        name: "NCCL buffers",
        pool: Pool::Device,
        group,
        per: Per::Rank,
        bytes: 16 * 2 * 9_633_792,
        phases: Phase::RUNNING,
        formula: "16 channels x 2 directions x 9633792 B; 16 is assumed, NCCL_MAX_NCHANNELS bounds it".into(),
        source: "NCCL 5067397c src/init.cc:810-830, src/include/device.h:91-115",
    })
}

/// Bytes of one layer's saved tensors for a token in bf16: 2 (4h + 2ad + 2kd + 3f) + 8 + 4a.
pub(super) fn layer_token_bytes(spec: &ModelSpec) -> u128 {
    let (h, f, a) = (u128::from(spec.hidden), u128::from(spec.ffn), u128::from(spec.heads));
    let (q, kv) = (u128::from(spec.q_width()), u128::from(spec.kv_width()));
    2 * (4 * h + 2 * q + 2 * kv + 3 * f) + 8 + 4 * a
}

/// A pass over `tokens` rows by one process.
#[derive(Clone, Copy)]
pub(super) struct Pass {
    pub role: &'static str,
    pub group: usize,
    pub phases: &'static [Phase],
    pub tokens: u64,
    /// With a backward pass.
    pub trains: bool,
    /// Layers keep their inputs only.
    pub recompute: bool,
    /// Bytes of logits a token and word of the vocabulary; 0 for a model without a head.
    pub logits_bytes: u64,
    pub logits_formula: &'static str,
    pub logits_source: &'static str,
}

impl Pass {
    /// Activations and logits.
    pub fn items(&self, shape: &Shape) -> Vec<Item> {
        let spec = &shape.spec;
        let (tokens, layers) = (u128::from(self.tokens), u128::from(spec.layers));
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
        let row = |name, bytes, formula, source| Item {
            role: self.role,
            name,
            pool: Pool::Device,
            group: self.group,
            per: Per::Rank,
            bytes,
            phases: self.phases,
            formula,
            source,
        };
        let mut items = vec![row(
            "activations",
            bytes,
            formula,
            "arithmetic: tensors that a layer with flash attention saves; eager Hugging Face code keeps more",
        )];
        if self.logits_bytes > 0 {
            let vocab = u128::from(spec.vocab);
            let formula = format!("{tokens} tokens x {vocab} words x {}", self.logits_formula);
            items.push(row(
                "logits",
                tokens * vocab * u128::from(self.logits_bytes),
                formula,
                self.logits_source,
            ));
        }
        items
    }
}

/// A row that every rank holds.
#[allow(clippy::too_many_arguments)] // The columns of a row.
pub(super) fn held(
    role: &'static str,
    name: &'static str,
    pool: Pool,
    group: usize,
    bytes: u128,
    phases: &'static [Phase],
    formula: String,
    source: &'static str,
) -> Item {
    Item { role, name, pool, group, per: Per::Rank, bytes, phases, formula, source }
}

/// Pages of files that are being written: they count against a container until they are on disk.
pub(super) fn file_pages(role: &'static str, group: usize, bytes: u128) -> Item {
    let formula = format!("{} written, until it is on disk", Bytes(u64::try_from(bytes).unwrap_or(u64::MAX)));
    let source = "Linux cgroup documentation: dirty pages of files are charged to the cgroup that wrote them";
    Item {
        per: Per::First,
        ..held(role, "file pages of the save", Pool::Host, group, bytes, &[Phase::Save], formula, source)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::preset_of;
    use super::*;

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
            role: "actor",
            group: 0,
            phases: &[Phase::Update],
            tokens: 1000,
            trains,
            recompute,
            logits_bytes: 10,
            logits_formula: "",
            logits_source: "",
        };
        let bytes = |trains, recompute| -> Vec<u128> {
            pass(trains, recompute).items(&shape).iter().map(|item| item.bytes).collect()
        };
        assert_eq!(bytes(false, false), [158_840_000, 1_520_640_000]);
        assert_eq!(bytes(true, false)[0], 28 * 158_840_000);
        assert_eq!(bytes(true, true)[0], 1000 * (28 * 7168 + 158_840));
    }
}
