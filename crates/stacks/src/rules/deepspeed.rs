//! DeepSpeed's ZeRO stages: memory to train a model on each rank's card and host, with hard-wired buckets.
//!
//! Legend: P parameters, N ranks. Bucket sizes are defaults: frameworks leave them at "auto", which without the Hugging
//! Face Trainer means the default (`runtime/config_utils.py:56`, `runtime/zero/config.py:113-244`, 0.16.0).

use super::torch::pinned;
use crate::plan::ledger::{Holder, Item, Phase, When};
use crate::plan::model::{Ffn, Shape};

const BUCKET: u128 = 500_000_000;
/// `stage3_max_live_parameters` and `stage3_prefetch_bucket_size`, elements.
const LIVE: u128 = 1_000_000_000 + 50_000_000;
const SUB_GROUP: u128 = 1_000_000_000;

const STAGE_2: &str = "DeepSpeed 0.16.0 runtime/zero/stage_1_and_2.py:390-405, 675-700";
const STAGE_2_GRADS: &str = "DeepSpeed 0.12.6 runtime/zero/stage_1_and_2.py:1143-1195";
const STAGE_3: &str = "DeepSpeed 0.16.0 runtime/zero/stage3.py:509-555, 828-960, 1025-1068";
const CONFIG: &str = "DeepSpeed 0.16.0 runtime/zero/config.py:113-244";
const OFFLOAD_STATES: &str = "DeepSpeed 0.16.0 runtime/zero/stage3.py:2830-2915, offload_states.py";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Zero {
    pub stage: u64,
    pub ranks: u64,
    /// True if optimizer, master weights and gradients are on the host.
    pub offload: bool,
    /// True if the offload has `pin_memory`.
    pub pin: bool,
    /// True if master weights are pinned too (DeepSpeed from 0.14.1 on).
    pub pin_master: bool,
    pub grad_bytes: u64,
    /// True with more than one backward pass per update.
    pub accumulates: bool,
    /// True if states leave the card between updates (`offload_states`).
    pub sleep: bool,
}

impl Zero {
    /// Returns the part of `shape` that a rank owns if states are sharded.
    fn shard(&self, shape: &Shape) -> u128 {
        u128::from(shape.params).div_ceil(u128::from(self.ranks.max(1)))
    }

    /// Returns the file and version of the stage's rules.
    const fn source(&self) -> &'static str {
        if self.stage == 3 { STAGE_3 } else { STAGE_2 }
    }

    /// Returns the rows of a model that is trained in `update`.
    pub fn training(&self, holder: Holder, shape: &Shape, update: When) -> Vec<Item> {
        let (params, shard) = (u128::from(shape.params), self.shard(shape));
        let mut items = self.weights(holder, shape);
        items.push(self.loading(holder, shape));
        let bucket = BUCKET.min(params);
        let formula = format!("reduce_bucket_size min(5e8, P) = {bucket} elements x 2 B");
        items.push(holder.card("reduce bucket", 2 * bucket, update, formula, CONFIG));
        if self.offload {
            items.extend(self.on_host(holder, shape, update));
            return items;
        }
        let owned = if self.stage == 0 { params } else { shard };
        let kept: When = if self.sleep { update } else { Phase::RUNNING };
        let formula = format!("12 B x {owned} (f32 master, m, v)");
        items.push(holder.card("master weights and Adam", 12 * owned, kept, formula, self.source()));
        let (grads, each) = (if self.stage >= 2 { shard } else { params }, u128::from(self.grad_bytes));
        let phases = if self.stage == 3 && !self.sleep { Phase::RUNNING } else { update };
        items.push(holder.card(
            "gradients",
            each * grads,
            phases,
            format!("{each} B x {grads}"),
            self.source(),
        ));
        if self.sleep {
            let states = 3 * sub_groups(shard) + pinned(each * shard);
            let formula = "master, m, v by sub-groups of 1e9, gradients, each pinned to a power of two";
            items.push(holder.host(
                "states asleep (pinned)",
                states,
                Phase::RUNNING,
                formula,
                OFFLOAD_STATES,
            ));
        }
        items
    }

    pub fn weights(&self, holder: Holder, shape: &Shape) -> Vec<Item> {
        let (params, shard) = (u128::from(shape.params), self.shard(shape));
        if self.stage < 3 {
            return vec![holder.card("weights", 2 * params, Phase::ALL, format!("2 B x {params}"), STAGE_2)];
        }
        let live = LIVE.min(params);
        let formula = format!("2 B x min(P, max_live 1e9 + prefetch 5e7) = {live} elements");
        vec![
            holder.card("weights", 2 * shard, Phase::ALL, format!("2 B x {shard} of ZeRO-3"), STAGE_3),
            holder.card("gathered weights", 2 * live, passes_of(holder.role), formula, CONFIG),
        ]
    }

    /// Returns the row of reading a checkpoint: below ZeRO-3 every rank reads the whole model on its host.
    pub fn loading(&self, holder: Holder, shape: &Shape) -> Item {
        let bytes = 2 * u128::from(shape.params);
        let source = "transformers from_pretrained; under ZeRO-3 rank 0 reads and the others take their part";
        let item = holder.host("model as it is read", bytes, &[Phase::Load], "2 B x P", source);
        if self.stage == 3 { item.first() } else { item }
    }

    fn on_host(&self, holder: Holder, shape: &Shape, update: When) -> Vec<Item> {
        let (shard, source) = (self.shard(shape), self.source());
        let host = |name, bytes, formula| holder.host(name, bytes, Phase::RUNNING, formula, source);
        let pin = |bytes: u128| if self.pin { pinned(bytes) } else { bytes };
        let word = if self.pin { "pinned to a power of two" } else { "not pinned" };
        let mut items = vec![host("Adam m and v", 8 * shard, format!("8 B x {shard}"))];
        if self.stage == 3 {
            items.push(host("master weights", 4 * shard, format!("4 B x {shard}")));
            let grads = if self.pin { sub_groups(shard) } else { 4 * shard };
            items.push(host("f32 gradients", grads, format!("4 B x {shard} by sub-groups of 1e9, {word}")));
            let flat = pin(u128::from(self.grad_bytes) * shard);
            items.push(host("gradient buffer", flat, format!("{} B x {shard}, {word}", self.grad_bytes)));
            return items;
        }
        let master = if self.pin_master { pin(4 * shard) } else { 4 * shard };
        let how = if self.pin_master && self.pin { ", pinned to a power of two" } else { "" };
        items.push(host("master weights", master, format!("4 B x {shard}{how}")));
        items.push(host("f32 gradients", pin(4 * shard), format!("4 B x {shard}, {word}")));
        let largest = 2 * u128::from(shape.largest());
        let formula = format!("2 B x {} of the largest tensor", shape.largest());
        items.push(host("gradient in flight", pin(largest), format!("{formula}, {word}")));
        items.push(holder.card("gradient in flight", largest, update, formula, STAGE_2));
        if self.accumulates {
            // Made at the first backward pass and kept: one buffer per tensor, in the weights' type.
            let bytes = if self.pin { accumulated(shape, shard, self.ranks) } else { 2 * shard };
            let formula =
                format!("2 B x {shard}, a buffer a tensor, {word}: more than one backward pass an update");
            let name = "accumulated gradients";
            items.push(holder.host(name, bytes, Phase::RUNNING, formula, STAGE_2_GRADS));
        }
        items
    }
}

/// Returns the bytes of buffers of 4 B per parameter in sub-groups, each pinned to a power of two.
fn sub_groups(shard: u128) -> u128 {
    (shard / SUB_GROUP) * pinned(4 * SUB_GROUP) + pinned(4 * (shard % SUB_GROUP))
}

/// Returns the bytes of pinned buffers, 2 B per parameter of a rank's part: each matrix is rounded by itself.
fn accumulated(shape: &Shape, shard: u128, ranks: u64) -> u128 {
    let spec = &shape.spec;
    let h = u128::from(spec.hidden);
    let of = &shape.heads;
    let (q, kv) = (u128::from(of.q_width()), u128::from(of.kv_width()));
    let attention = 2 * pinned(2 * h * q) + 2 * pinned(2 * h * kv);
    let ffn = |part: Ffn| -> u128 {
        let each = part.matrices().into_iter().map(|elements| pinned(2 * u128::from(elements)));
        u128::from(part.layers) * each.sum::<u128>()
    };
    let ends = if spec.tied { 1 } else { 2 } * pinned(2 * u128::from(spec.vocab) * h);
    let whole =
        u128::from(spec.layers.len()) * attention + shape.ffn().into_iter().map(ffn).sum::<u128>() + ends;
    (whole / u128::from(ranks.max(1))).max(2 * shard)
}

/// Returns the phases in which a role's passes gather weights.
fn passes_of(role: &'static str) -> &'static [Phase] {
    match role {
        "actor" => &[Phase::Experience, Phase::Update],
        "critic" => &[Phase::Experience, Phase::Critic],
        _ => &[Phase::Experience],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::model::preset_of;
    use crate::plan::pool::Pool;

    const ACTOR: Holder = Holder { role: "actor", group: 0 };
    const UPDATE: &[Phase] = &[Phase::Update];

    fn zero(stage: u64, ranks: u64) -> Zero {
        Zero {
            stage,
            ranks,
            offload: false,
            pin: true,
            pin_master: true,
            grad_bytes: 2,
            accumulates: false,
            sleep: false,
        }
    }

    fn bytes(items: &[Item], name: &str, pool: Pool) -> u128 {
        items.iter().filter(|item| item.name == name && item.pool == pool).map(|item| item.bytes).sum()
    }

    #[test]
    fn stages_shard_what_they_say() {
        let shape = Shape::policy(preset_of("qwen2.5-7b").unwrap().1);
        let p = 7_615_616_512_u128;
        for (stage, weights, grads, states) in [
            (0, 2 * p, 2 * p, 12 * p),
            (1, 2 * p, 2 * p, 12 * p / 8),
            (2, 2 * p, 2 * p / 8, 12 * p / 8),
            (3, 2 * p / 8, 2 * p / 8, 12 * p / 8),
        ] {
            let items = zero(stage, 8).training(ACTOR, &shape, UPDATE);
            let of = |name| bytes(&items, name, Pool::Device);
            assert_eq!((of("weights"), of("gradients")), (weights, grads), "stage {stage}");
            assert_eq!(of("master weights and Adam"), states, "stage {stage}");
            assert_eq!(of("reduce bucket"), 1_000_000_000, "stage {stage}");
        }
        let small = Shape::policy(preset_of("smollm2-135m").unwrap().1);
        let items = zero(3, 1).training(ACTOR, &small, UPDATE);
        assert_eq!(bytes(&items, "reduce bucket", Pool::Device), 2 * 134_515_008);
        assert_eq!(bytes(&items, "gathered weights", Pool::Device), 2 * 134_515_008);
    }

    /// 13 264 901 120 parameters over 4 ranks: 3 316 225 280 each.
    #[test]
    fn cpu_adam_takes_16_bytes_a_parameter_and_pinning_rounds() {
        let shape = Shape::policy(preset_of("baichuan-13b").unwrap().1);
        let shard = 3_316_225_280_u128;
        let plain = Zero { offload: true, pin: false, pin_master: false, ..zero(2, 4) };
        let items = plain.training(ACTOR, &shape, UPDATE);
        let of = |items: &[Item], name| bytes(items, name, Pool::Host);
        assert_eq!(
            of(&items, "master weights") + of(&items, "f32 gradients") + of(&items, "Adam m and v"),
            16 * shard
        );
        assert_eq!(of(&items, "accumulated gradients"), 0);
        let more = Zero { accumulates: true, ..plain }.training(ACTOR, &shape, UPDATE);
        assert_eq!(of(&more, "accumulated gradients"), 2 * shard);
        // 12.35 GiB of gradients become 16 GiB.
        let pinned = Zero { pin: true, ..plain }.training(ACTOR, &shape, UPDATE);
        assert_eq!((of(&pinned, "f32 gradients"), of(&pinned, "master weights")), (16 << 30, 4 * shard));
        let both = Zero { pin: true, pin_master: true, ..plain }.training(ACTOR, &shape, UPDATE);
        assert_eq!(of(&both, "master weights"), 16 << 30);
        // ZeRO-3: three sub-groups of 1e9, 3.73 GiB each in 4, and one of 0.316e9, 1.18 GiB in 2.
        let third = Zero { stage: 3, pin: true, ..plain }.training(ACTOR, &shape, UPDATE);
        assert_eq!(of(&third, "f32 gradients"), (3 * 4 + 2) << 30);
        assert_eq!(of(&third, "gradient buffer"), 8 << 30);
    }

    #[test]
    fn states_that_sleep_are_on_the_card_in_their_update_alone() {
        let shape = Shape::policy(preset_of("qwen2.5-7b").unwrap().1);
        let items = Zero { sleep: true, ..zero(3, 8) }.training(ACTOR, &shape, UPDATE);
        let states = items.iter().find(|item| item.name == "master weights and Adam").unwrap();
        assert_eq!(states.phases, UPDATE);
        // 951 952 064 a rank: 3.55 GiB in 4, three times; 1.77 GiB of gradients in 2.
        assert_eq!(bytes(&items, "states asleep (pinned)", Pool::Host), (3 * 4 + 2) << 30);
    }
}
