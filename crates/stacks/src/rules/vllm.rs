//! vLLM: its share of a card, what stays while it sleeps, the host copy of its weights, and its first engine's swap.
//!
//! Legend: L layers, h hidden, k key-value heads, d head dim, f feed-forward, T cards of an engine.

use super::torch::{Process, pinned, process};
use crate::plan::hazards::{Hazard, Verdict};
use crate::plan::ledger::{Holder, Item, Phase, When, shown};
use crate::plan::model::{Ffn, Shape, heads};
use plimsoll_arch::ModelSpec;
use plimsoll_base::Bytes;

/// Memory of the card that a sleeping engine keeps: 0.8 to 1.2 GiB were reported at T = 1.
const ASLEEP_BYTES: u128 = 1 << 30;
/// Tokens per KV block.
const BLOCK: u128 = 16;

/// A run's engines, seen from one card.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub group: usize,
    pub tensor_parallel: u64,
    pub share: f64,
    /// The card's memory, to which `share` refers.
    pub card: Bytes,
    /// True if it frees memory between rollouts.
    pub sleeps: bool,
    /// True if its sleeping weights are in pinned host memory (sleep level 1).
    pub host_copy: bool,
    /// True if weights wake before the cache, so a sync does not hold both.
    pub wakes_in_two: bool,
    /// GiB of swap per card for the first engine (before vLLM 0.8).
    pub swap_gib: f64,
    /// True if it runs in a separate process, with its own context.
    pub own_process: bool,
}

const ASLEEP: When = &[Phase::Experience, Phase::Critic, Phase::Update, Phase::Save];
const SHARE_SOURCE: &str = "vLLM 0.7.2 worker/worker.py determine_num_available_blocks: a share of the whole card, weights within it";

impl Engine {
    fn weights(&self, shape: &Shape) -> u128 {
        2 * u128::from(shape.params).div_ceil(u128::from(self.tensor_parallel))
    }

    fn share_bytes(&self) -> u128 {
        (self.card.0 as f64 * self.share) as u128
    }

    pub fn items(&self, shape: &Shape) -> Vec<Item> {
        let holder = Holder { role: "engine", group: self.group };
        let weights = self.weights(shape);
        let mut items = Vec::new();
        if self.own_process {
            items.extend(process(holder, Process::Engine));
        }
        let formula = format!(
            "gpu_memory_utilization {} x {}; of it weights 2 B x P / {} = {}",
            (self.share * 1000.0).round() / 1000.0,
            self.card,
            self.tensor_parallel,
            shown(weights)
        );
        let awake: When = match (self.sleeps, self.wakes_in_two) {
            (false, _) => Phase::ALL,
            (true, true) => &[Phase::Load, Phase::Rollout],
            (true, false) => &[Phase::Load, Phase::Rollout, Phase::Sync],
        };
        items.push(holder.card("share of the card", self.share_bytes(), awake, formula, SHARE_SOURCE));
        if self.sleeps {
            let source =
                "reported: 0.8 to 1.2 GiB stay at one card an engine (vLLM issue 28714, NeMo-RL issue 223)";
            items.push(holder.card("left over asleep", ASLEEP_BYTES, ASLEEP, "1 GiB", source));
        }
        if self.sleeps && self.wakes_in_two {
            let formula = format!("2 B x P / {}; the cache wakes later", self.tensor_parallel);
            let source = "OpenRLHF 0.11.2 trainer/ppo_trainer.py:300-319, wake_up(weights) first";
            items.push(holder.card("weights, awake", weights, &[Phase::Sync], formula, source));
        }
        if self.sleeps && self.host_copy {
            let bytes = sleep_copy(&shape.spec, self.tensor_parallel);
            let formula = "each weight's segment (2 MiB steps, small ones in 20 MiB) pinned to a power of two, and kept";
            let source = "vLLM 0.7.2 device_allocator/cumem.py sleep(level=1); torch 2.6.0 CachingHostAllocator.h:130-132";
            items.push(holder.host("sleep copy of the weights", bytes, Phase::RUNNING, formula, source));
        }
        if self.swap_gib > 0.0 {
            items.push(self.swap(holder, shape));
        }
        items
    }

    /// Returns the first engine's swap space: a pinned tensor per layer, each rounded to a power of two.
    fn swap(&self, holder: Holder, shape: &Shape) -> Item {
        let spec = &shape.spec;
        let (blocks, layer) = swap_layer(spec, self.tensor_parallel, self.swap_gib);
        let (layers, held) = (u128::from(spec.layers.len()), pinned(layer));
        let formula = format!(
            "{} GiB a card are {blocks} blocks; {layers} layers x {} in {} of pinned memory",
            self.swap_gib,
            shown(layer),
            shown(held)
        );
        let source = "vLLM 0.6.3 worker/cache_engine.py _allocate_kv_cache(cpu), config.py swap_space; torch 2.4.0 CachingHostAllocator";
        holder.host("CPU swap", layers * held, Phase::ALL, formula, source)
    }

    /// Returns the hazard of a share too small for the weights and one sequence.
    pub fn hazard(&self, shape: &Shape, tokens: u64) -> Option<Hazard> {
        let (weights, share) = (self.weights(shape), self.share_bytes());
        let kv = u128::from(shape.kv_token().div_ceil(self.tensor_parallel)) * u128::from(tokens);
        (share < weights + kv).then(|| Hazard {
            slug: "vllm-no-kv-memory",
            verdict: Verdict::Problem,
            finding: format!(
                "the engine's share of a card is {}, its weights take {} and one sequence of {tokens} tokens {}",
                shown(share),
                shown(weights),
                shown(kv)
            ),
            because: "the engine measures what is left for its cache at start and refuses to run without".into(),
            remedies: vec![
                "raise gpu_memory_utilization, or the tensor parallel size".into(),
                "shorten the longest sequence".into(),
            ],
            source: SHARE_SOURCE,
        })
    }
}

/// Returns (blocks, bytes of a layer's tensor) for `gib` GiB of swap a card: 2 x 16 x k/T x d x 2 B a block and layer.
pub(crate) fn swap_layer(spec: &ModelSpec, tensor_parallel: u64, gib: f64) -> (u128, u128) {
    let of = heads(spec);
    let heads = u128::from(of.kv_heads).div_ceil(u128::from(tensor_parallel)).max(1);
    let block = 2 * BLOCK * heads * u128::from(of.head_dim) * 2;
    let swap = (gib * (1_u64 << 30) as f64) as u128;
    let blocks = swap / (block * u128::from(spec.layers.len()));
    (blocks, blocks * block)
}

/// Returns the pinned bytes of a card's sleeping weights: segments of 2 MiB steps from 10 MiB on, others in 20 MiB.
pub(crate) fn sleep_copy(spec: &ModelSpec, tensor_parallel: u64) -> u128 {
    const MIB: u128 = 1 << 20;
    let h = u128::from(spec.hidden);
    let of = heads(spec);
    let (q, kv) = (u128::from(of.q_width()), u128::from(of.kv_width()));
    let (layers, ends) = (u128::from(spec.layers.len()), if spec.tied { 1 } else { 2 });
    let split = |elements: u128| (2 * elements).div_ceil(u128::from(tensor_parallel));
    let mut tensors = vec![
        (layers, split(h * (q + 2 * kv))),
        (layers, split(q * h)),
        (ends, split(u128::from(spec.vocab) * h)),
    ];
    for part in Ffn::of(spec) {
        // Gate and up are one tensor; so are all experts' in a layer, whose router is whole on every card.
        let (count, one) = (u128::from(part.layers), u128::from(part.hidden * part.width));
        let experts = part.experts.map_or(1, |(experts, _)| u128::from(experts));
        tensors.extend([(count, split(2 * experts * one)), (count, split(experts * one))]);
        tensors.extend(part.experts.map(|_| (count, 2 * experts * u128::from(part.hidden))));
    }
    let large = |bytes: u128| bytes >= 10 * MIB;
    let own: u128 = tensors
        .iter()
        .filter(|(_, bytes)| large(*bytes))
        .map(|(count, bytes)| count * pinned(bytes.div_ceil(2 * MIB) * 2 * MIB))
        .sum();
    let small: u128 =
        tensors.iter().filter(|(_, bytes)| !large(*bytes)).map(|(count, bytes)| count * bytes).sum();
    own + small.div_ceil(20 * MIB) * pinned(20 * MIB)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::model::preset_of;
    use crate::plan::pool::Pool;

    fn shape(name: &str) -> Shape {
        Shape::policy(preset_of(name).unwrap().1)
    }

    fn engine() -> Engine {
        Engine {
            group: 0,
            tensor_parallel: 2,
            share: 0.5,
            card: Bytes(80 << 30),
            sleeps: true,
            host_copy: false,
            wakes_in_two: true,
            swap_gib: 40.0,
            own_process: false,
        }
    }

    /// 40 GiB a card of Qwen2.5-7B, T = 2: a block is 458 752 B, so 93 622; 1.43 GiB a layer in 2 GiB; 56 GiB a card.
    #[test]
    fn swap_of_40_gib_is_pinned_as_56() {
        let shape = shape("qwen2.5-7b");
        let (blocks, layer) = swap_layer(&shape.spec, 2, 40.0);
        assert_eq!((blocks, layer), (93_622, 93_622 * 16_384));
        let swap = engine().items(&shape).into_iter().find(|item| item.name == "CPU swap").unwrap();
        assert_eq!(swap.bytes, 56 << 30);
        assert_eq!(8 * swap.bytes, 448 << 30);
        // 4 GiB, the default: 7 GiB a card.
        let four = Engine { swap_gib: 4.0, ..engine() }.items(&shape);
        assert_eq!(four.iter().find(|item| item.name == "CPU swap").unwrap().bytes, 7 << 30);
    }

    /// Qwen2.5-7B at T = 1: 32 + 32 + 512 + 256 MiB a layer, and two ends of 2 GiB.
    #[test]
    fn a_sleep_copy_is_nearly_twice_the_weights() {
        let spec = shape("qwen2.5-7b").spec;
        assert_eq!(sleep_copy(&spec, 1), (28 * (32 + 32 + 512 + 256) + 2 * 2048) << 20);
        let ratio = sleep_copy(&spec, 1) as f64 / (2.0 * 7_615_616_512.0);
        assert!((1.5..2.0).contains(&ratio), "{ratio}");
        // SmolLM2-135M: the embedding is 54 MiB in 64; 30 layers of small tensors lie in segments of 20 MiB, 32 pinned.
        let small = shape("smollm2-135m").spec;
        let layer = 2 * (576 * (576 + 2 * 192) + 576 * 576 + 3 * 576 * 1536);
        let segments = (30_u128 * layer).div_ceil(20 << 20);
        assert_eq!(sleep_copy(&small, 1), (64 << 20) + segments * (32 << 20));
    }

    #[test]
    fn an_engine_without_room_for_one_sequence_is_a_problem() {
        let shape = shape("qwen2.5-7b");
        assert!(engine().hazard(&shape, 8192).is_none());
        let small = Engine { share: 0.08, ..engine() };
        assert!(small.hazard(&shape, 8192).unwrap().finding.contains("6.4 GiB"));
        // Asleep, a card holds what is left over and, in a sync, its weights.
        let items = engine().items(&shape);
        let in_phase = |phase| {
            items
                .iter()
                .filter(|item| item.pool == Pool::Device && item.is_in(phase))
                .map(|item| item.bytes)
                .sum::<u128>()
        };
        assert_eq!((in_phase(Phase::Rollout), in_phase(Phase::Update)), (40 << 30, 1 << 30));
        assert_eq!(in_phase(Phase::Sync), 7_615_616_512);
    }
}
