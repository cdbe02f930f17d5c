//! Every byte of the plan is needed, and no other byte is written.
//!
//! The arena is filled with a pattern, a phase runs at its limits, and what still holds the pattern was not used. A
//! byte may be written with the pattern's own value, so each phase runs with two patterns: a byte is untouched if it
//! holds the pattern both times. Between the regions lie guard bands, which must hold it always.

use crate::common::harness::{Harness, Machine, Numbers, Setup, dtypes, resident_gradients};
use crate::common::{World, sampling};
use plimsoll_arch::{
    Attention, Cache, DeltaSpec, ExpertsSpec, Family, FileShape, GlobalHeads, LayerSet, LayersWith,
    ModelSpec, SigmoidSpec, Window, Windows,
};
use plimsoll_base::{Bytes, DType, Phase, PhaseSet};
use plimsoll_device::Sampling;
use plimsoll_memory::{Binding, Layout};
use plimsoll_model::{
    Activations, Decoder, Derivatives, Mode, ParamTable, Params, Pass, Recompute, activations_layout,
    backward, head, layers, load, values,
};
use plimsoll_rollout::{Engine, EngineLimits, OnFull, Request, Samples};
use plimsoll_train::{Optimizer, PackLimits, Packer, Sequence, Share, UpdateOptions, optimizer_layout};

const PATTERNS: [u8; 2] = [0xA5, 0x3C];
const GUARD: u64 = 4096;
const POSITIONS: usize = 384;
/// Sequences of the rollout; all of one group, whose blocks are full but for one slot of the prompt's last.
const GROUP: usize = 8;
/// Two blocks and fifteen slots, which every response copies.
const PROMPT: usize = 47;
/// The last token has no key: 15 + 33 slots are three blocks.
const NEW_TOKENS: usize = 34;
/// Responses of the update, of 15 + 65 slots each, in two chunks of states.
const CHILDREN: usize = 5;
const RESPONSE: usize = 66;
const ROWS: usize = PROMPT + CHILDREN * (RESPONSE - 1);

/// A router of sigmoids in groups, which chooses all experts.
const SIGMOID: SigmoidSpec = SigmoidSpec { groups: 1, groups_chosen: 1, factor: 1.5 };

fn spec(family: Family) -> ModelSpec {
    let joined = family.architecture().joins_dense;
    let shape = FileShape {
        family,
        // Two whole tiles of the head.
        vocab: 1024,
        hidden: 64,
        layers: 3,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        ffn: 96,
        qkv_bias: matches!(family, Family::Qwen2 | Family::Granite | Family::GptOss),
        output_bias: matches!(family, Family::Granite | Family::GptOss),
        mlp_bias: family == Family::Granite,
        qk_norms: family.architecture().qk_norms,
        tied: family != Family::Qwen2,
        attention: match family.architecture().windows {
            Windows::AllButEvery { .. } => {
                let window =
                    Window { keys: 64, layers: LayerSet::all_but_every(3, 3), rope_theta: Some(1e4) };
                let has_global = family.architecture().has_global_heads;
                let global = GlobalHeads { kv_heads: 1, head_dim: 64, keys_are_values: true };
                let global = has_global.then_some(global);
                let sinks = family.architecture().has_sinks;
                Attention { window: Some(window), global, sinks, ..Attention::default() }
            }
            _ if family == Family::Qwen35 => {
                Attention { rotated: Some(16), gated: true, ..Attention::default() }
            }
            _ if family == Family::Phi3 => Attention { rotated: Some(24), ..Attention::default() },
            _ => Attention::default(),
        },
        // Two layers of three, with more heads of values than of keys.
        delta: family.architecture().has_delta.then_some(LayersWith {
            layers: LayerSet::all_but_every(3, 3),
            each: DeltaSpec { key_heads: 2, value_heads: 4, key_dim: 16, value_dim: 32 },
        }),
        // The first layer is dense and narrower than the experts of the others, each of which gets all rows.
        experts: family.architecture().has_experts.then_some(LayersWith {
            layers: LayerSet::of(3, |layer| layer > 0 || family == Family::GptOss),
            each: ExpertsSpec {
                count: 3,
                chosen: 3,
                ffn: 48,
                normalizes: true,
                sigmoid: family.architecture().has_sigmoid_router.then_some(SIGMOID),
                balance: 0.001,
                shared: (family.architecture().has_shared_expert || joined).then_some(32),
                gates_shared: !family.architecture().has_routed_keys && !joined,
                is_fused: family == Family::GptOss || joined,
                biased: family.architecture().has_biased_experts,
            },
        }),
        ..ModelSpec::preset("nano").unwrap().file_shape()
    };
    shape.spec()
}

fn pack_limits(family: Family) -> PackLimits {
    let caches = spec(family).caches(0).iter().map(|of| (of.cache, 0)).collect();
    PackLimits { micro_batch_tokens: ROWS, prompt_tokens: PROMPT, segments: CHILDREN + 1, caches }
}

fn engine_limits(family: Family) -> EngineLimits {
    // Of the prompt three, of each response three.
    let blocks = 3 + 3 * GROUP;
    EngineLimits {
        sequences: GROUP,
        rows: PROMPT,
        samples: GROUP,
        prompt_tokens: PROMPT,
        new_tokens: NEW_TOKENS,
        ahead: false,
        listed: 0,
        own: plimsoll_model::OwnLogits::NONE,
        // As many of all blocks: none is given back before the last one is taken.
        caches: (spec(family).caches(usize::MAX).iter())
            .map(|of| (of.cache, if of.cache.has_blocks() { blocks } else { GROUP + 1 }))
            .collect(),
        drafts: None,
    }
}

fn world(family: Family, dtype: DType, recompute: Recompute, threads: usize, truncates: bool) -> World {
    let setup = Setup::new("random:nano", dtype, pack_limits(family).pass());
    let setup =
        Setup { spec: Some(spec(family)), recompute, threads, positions: POSITIONS, guard: GUARD, ..setup };
    let critic = critic_layout(&setup);
    World::with(setup, engine_limits(family), truncates, critic)
}

/// A critic of the actor's shape: resident regions, and those of its phase.
fn critic_layout(setup: &Setup) -> Layout {
    let (spec, dtype, target) = (setup.open().spec, setup.dtype, setup.target());
    let table = ParamTable::critic(&spec, target.kind, dtype);
    let mut layout = Layout::new();
    let shape = [table.elements];
    layout.arena("critic.weights", "test", target.pool, PhaseSet::RESIDENT, &shape, dtype).unwrap();
    let states =
        optimizer_layout("critic", &table, dtypes(dtype), target.pool, Phase::Critic, false, 1).unwrap();
    layout.extend(resident_gradients(states));
    layout
        .extend(activations_layout(&spec, dtype, target, Mode::Critic(setup.recompute), setup.pass).unwrap());
    // A reward model's weights are of the critic's shape, and here they are the critic's.
    layout.extend(activations_layout(&spec, dtype, target, Mode::Reward(0), setup.pass).unwrap());
    layout
}

fn rollout(world: &mut World, how: Sampling) {
    let prompt = Numbers::new(1).tokens(PROMPT, 1024);
    let request = Request {
        prompts: &[&prompt],
        group_size: GROUP,
        max_new_tokens: NEW_TOKENS,
        sampling: how,
        eos: &[],
        first_sample_id: 0x0123_4567_89ab_cdef,
        numbers: &[],
    };
    let mut out = Samples::with_capacity(GROUP, NEW_TOKENS);
    let mut engine = Engine::new(world.limits, OnFull::WorstCase);
    let stats = world.sample_with(&mut engine, &request, &mut out).unwrap();
    // The prompt in one pass, then everyone together: all limits are reached at once.
    assert_eq!(stats.passes, NEW_TOKENS as u64);
}

/// Two micro-batches: one reaches rows, segments, blocks, tables and copies, the other rows and head rows.
fn trained(h: &mut Harness, mode: Mode) {
    let mut numbers = Numbers::new(2);
    let prompt = numbers.tokens(PROMPT, 1024);
    let responses: Vec<Vec<u32>> = (0..CHILDREN).map(|_| numbers.tokens(RESPONSE, 1024)).collect();
    let (one, long) = (numbers.tokens(1, 1024), numbers.tokens(ROWS, 1024));
    let mut all: Vec<Sequence<'_>> =
        responses.iter().map(|response| Sequence { group: 0, prompt: &prompt, response }).collect();
    all.push(Sequence { group: 1, prompt: &one, response: &long });
    let limits = h.setup.pass;
    let (spec, dtype, model) = (h.spec, h.setup.dtype, h.setup.open());
    let mut parts = h.parts();
    let mut decoder = parts.decoder.clone();
    let (mut role, mut table) = ("actor", parts.table.clone());
    if let Mode::Critic(_) | Mode::Reward(_) = mode {
        (role, table) = ("critic", ParamTable::critic(&spec, parts.dev.kind(), dtype));
        let params = Params::bind(&spec, &table, dtype, parts.resident.buf("critic.weights"));
        load(parts.dev, &model, &table, &params, 1, Bytes(4 << 20)).unwrap();
        decoder = Decoder { params, ..decoder };
    }
    let params = &decoder.params;
    let mut optimizer = Optimizer::new(parts.dev, &table, params.all, parts.resident, role, Share::WHOLE);
    let grads = Params::bind(&spec, &table, dtype, parts.resident.buf(&format!("{role}.grads")));
    parts.dev.zero(grads.all);
    let phase = parts.overlay.enter(mode.phase());
    let acts = Activations::bind(&phase, mode, limits);
    let mut packer = Packer::new(limits, 0);
    let mut first = 0;
    while first < all.len() {
        let batch = packer.pack(&all, first).unwrap();
        let (index, end) = (batch.index, batch.sequences.end);
        assert_eq!(index.ids.len(), limits.rows);
        let whole = &index.caches[Cache::PAGED];
        match first {
            0 => assert_eq!(
                (index.num_segments(), whole.tables.len(), whole.copies.len() / 3),
                (limits.segments, limits.table_entries, limits.copies)
            ),
            _ => assert_eq!(index.head_rows.len(), limits.head_rows),
        }
        let pass = Pass::upload(parts.dev, acts, index);
        layers(parts.dev, &decoder, &pass);
        let d = vec![0.01; index.head_rows.len()];
        if let Mode::Critic(_) | Mode::Reward(_) = mode {
            values(parts.dev, &decoder, &pass);
        } else {
            head(parts.dev, &decoder, &pass, 0.7);
        }
        let of = match mode {
            Mode::Critic(_) => Some(Derivatives::Values(&d)),
            Mode::Update(_) => Some(Derivatives::Vocabulary {
                inv_temperature: 0.7,
                logprobs: &d,
                entropy: &d,
                divergence: &[],
            }),
            _ => None,
        };
        if let Some(of) = of {
            backward(parts.dev, &decoder, &grads, true, &pass, of);
        }
        first = end;
    }
    assert_eq!(first, CHILDREN + 1);
    if let Mode::Critic(_) | Mode::Update(_) = mode {
        let norm = optimizer.grad_norm(parts.dev, grads.all);
        optimizer.update(parts.dev, params.all, grads.all, None, HOW, norm);
    }
}

const HOW: UpdateOptions = UpdateOptions {
    muon: None,
    lr: 1e-3,
    betas: (0.9, 0.95),
    epsilon: 1e-8,
    weight_decay: 0.01,
    grad_clip: 1.0,
    seed: 1,
};

/// The arena after a phase, for each pattern.
fn poisoned(world: &mut World, run: impl Fn(&mut World)) -> [Vec<u8>; 2] {
    let bytes = world.harness.arena.map().used_bytes();
    PATTERNS.map(|pattern| {
        world.harness.dev.cpu().fill_raw(pattern);
        world.harness.load();
        run(world);
        world.harness.dev.cpu().raw(0, bytes).to_vec()
    })
}

fn untouched(after: &[Vec<u8>; 2], range: std::ops::Range<u64>) -> usize {
    let range = range.start as usize..range.end as usize;
    let pairs = after[0][range.clone()].iter().zip(&after[1][range]);
    pairs.filter(|&(&a, &b)| a == PATTERNS[0] && b == PATTERNS[1]).count()
}

/// Adds the regions of which more than one byte in a hundred is untouched.
fn check_used(after: &[Vec<u8>; 2], regions: &[Binding], words: &str, wrong: &mut Vec<String>) {
    for region in regions {
        let bytes = region.elements as u64 * region.dtype.bytes();
        let idle = untouched(after, region.offset..region.offset + bytes);
        if idle as u64 * 100 > bytes {
            wrong.push(format!("{words}: {idle} of {bytes} bytes of {} are never used", region.name));
        }
    }
}

/// Adds the regions after which something was written: padding, guard band, and everything past the last region.
fn check_guards(after: &[Vec<u8>; 2], regions: &[Binding], last: bool, words: &str, wrong: &mut Vec<String>) {
    for (i, region) in regions.iter().enumerate() {
        let start = region.offset + region.elements as u64 * region.dtype.bytes();
        let is_end = last && i + 1 == regions.len();
        let end = if is_end { after[0].len() as u64 } else { region.offset + region.bytes + GUARD };
        let written = (end - start) as usize - untouched(after, start..end);
        if written > 0 {
            wrong.push(format!("{words}: {written} bytes after {} were written", region.name));
        }
    }
}

fn check(family: Family, dtype: DType, recompute: Recompute, truncates: bool) {
    let how = if truncates { Sampling { top_p: 0.9, ..sampling(1.0, 5) } } else { sampling(1.0, 5) };
    let words = format!("{family:?} {dtype:?} {recompute:?} truncates {truncates}");
    let mut wrong = Vec::new();
    // One thread: which thread takes a task is chance, and so is which part of a scratch buffer is used.
    let mut world = world(family, dtype, recompute, 1, truncates);
    assert!(dtypes(dtype).has_master() == (dtype == DType::Bf16));
    for phase in Phase::ALL {
        let after = poisoned(&mut world, |world| match phase {
            Phase::Rollout => rollout(world, how),
            Phase::Reward => trained(&mut world.harness, Mode::Reward(0)),
            Phase::Score => trained(&mut world.harness, Mode::Score),
            Phase::Critic => trained(&mut world.harness, Mode::Critic(recompute)),
            Phase::Update => trained(&mut world.harness, Mode::Update(recompute)),
        });
        let map = world.harness.arena.map();
        check_used(&after, map.phase(phase), &words, &mut wrong);
        check_guards(&after, map.phase(phase), true, &words, &mut wrong);
        check_guards(&after, map.resident(), false, &words, &mut wrong);
        // Each role's resident regions are used up in the phase that updates it.
        let is_critics = |region: &&Binding| region.name.starts_with("critic.");
        let resident = map.resident().iter().filter(|region| is_critics(region) == (phase == Phase::Critic));
        if matches!(phase, Phase::Critic | Phase::Update) {
            check_used(&after, &resident.cloned().collect::<Vec<_>>(), &words, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// These tests read the arena's bytes, which are in this process on a CPU only.
fn reads_raw_bytes() -> bool {
    let is_cpu = Machine::detect() != Machine::Cuda;
    if !is_cpu {
        eprintln!("skipped: the arena of a card is not in this process");
    }
    is_cpu
}

#[test]
fn f32_uses_every_region_to_its_end() {
    if !reads_raw_bytes() {
        return;
    }
    check(Family::Qwen3, DType::F32, Recompute::None, false);
    check(Family::Llama, DType::F32, Recompute::Cheap, true);
    check(Family::Qwen2, DType::F32, Recompute::Layer, false);
    check(Family::Olmo3, DType::F32, Recompute::Layer, false);
    check(Family::Olmo3, DType::F32, Recompute::Offload, false);
    check(Family::Phi3, DType::F32, Recompute::Cheap, false);
    check(Family::Qwen3Moe, DType::F32, Recompute::Cheap, false);
    check(Family::Granite, DType::F32, Recompute::Cheap, false);
    check(Family::Qwen35, DType::F32, Recompute::Cheap, false);
    check(Family::Qwen35, DType::F32, Recompute::None, true);
    check(Family::Glm4Moe, DType::F32, Recompute::Cheap, false);
    check(Family::Gemma4, DType::F32, Recompute::Cheap, false);
    check(Family::GptOss, DType::F32, Recompute::Cheap, false);
}

#[test]
fn bf16_uses_every_region_to_its_end() {
    if !reads_raw_bytes() {
        return;
    }
    check(Family::Qwen2, DType::Bf16, Recompute::None, true);
    check(Family::Qwen3, DType::Bf16, Recompute::Cheap, false);
    check(Family::Qwen3, DType::Bf16, Recompute::Layer, false);
    check(Family::Llama, DType::Bf16, Recompute::Layer, false);
    check(Family::Gemma2, DType::Bf16, Recompute::Layer, false);
    check(Family::Gemma3, DType::Bf16, Recompute::Cheap, false);
    check(Family::Olmo3, DType::Bf16, Recompute::None, true);
    check(Family::Qwen3Moe, DType::Bf16, Recompute::None, false);
    check(Family::Phi3, DType::Bf16, Recompute::Layer, false);
    check(Family::Qwen3Moe, DType::Bf16, Recompute::Layer, false);
    check(Family::Granite, DType::Bf16, Recompute::Layer, true);
    check(Family::Qwen35, DType::Bf16, Recompute::Layer, false);
    check(Family::Qwen35, DType::Bf16, Recompute::None, false);
    check(Family::Glm4Moe, DType::Bf16, Recompute::Layer, false);
    check(Family::Gemma4, DType::Bf16, Recompute::Layer, false);
    check(Family::GptOss, DType::Bf16, Recompute::Layer, false);
}

/// Several threads write no further than one.
#[test]
fn two_threads_write_past_no_region() {
    if !reads_raw_bytes() {
        return;
    }
    for dtype in [DType::F32, DType::Bf16] {
        let mut world = world(Family::Qwen3, dtype, Recompute::None, 2, true);
        let mut wrong = Vec::new();
        for (phase, mode) in [(Phase::Rollout, None), (Phase::Update, Some(Mode::Update(Recompute::None)))] {
            let after = poisoned(&mut world, |world| match mode {
                None => rollout(world, Sampling { top_k: 5, ..sampling(1.0, 5) }),
                Some(mode) => trained(&mut world.harness, mode),
            });
            let map = world.harness.arena.map();
            check_guards(&after, map.phase(phase), true, "two threads", &mut wrong);
            check_guards(&after, map.resident(), false, "two threads", &mut wrong);
        }
        assert!(wrong.is_empty(), "{dtype:?}: {}", wrong.join("\n"));
        world.harness.dev.as_dyn().sync();
    }
}
