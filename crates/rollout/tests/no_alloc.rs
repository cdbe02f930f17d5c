//! Hot code borrows: after a first request, a rollout and a whole update allocate nothing, on any thread.
//!
//! The counters are the process's, so this file has a `main` of its own: a test runner's threads allocate too.

mod common;

use common::harness::{Numbers, Setup};
use common::{World, sampling};
use plimsoll_arch::{Cache, Caches};
use plimsoll_base::{DType, Phase};
use plimsoll_model::{Activations, Derivatives, Mode, Pass, Recompute, backward, head, layers};
use plimsoll_rollout::{Engine, EngineLimits, NeverStop, OnFull, Request, Samples};
use plimsoll_train::{Cut, Optimizer, PackLimits, Packer, Packing, Sequence, Share, Units, UpdateOptions};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const GROUP: usize = 4;

/// Allocations, and reallocations, of all threads while `work` runs.
fn allocations(work: impl FnOnce()) -> usize {
    let region = Region::new(ALLOCATOR);
    work();
    let change = region.change();
    change.allocations + change.reallocations
}

fn main() {
    assert!(allocations(|| drop(std::hint::black_box(vec![0u8; 100]))) > 0, "the allocator counts");
    for (source, dtype, offload) in [
        ("qwen3", DType::Bf16, false),
        ("qwen2", DType::F32, false),
        ("qwen2", DType::Bf16, true),
        ("mistral_window", DType::Bf16, false),
    ] {
        let limits = EngineLimits {
            sequences: 6,
            rows: 20,
            samples: 12,
            prompt_tokens: 40,
            new_tokens: 24,
            ahead: false,
            listed: 0,
            own: plimsoll_model::OwnLogits::NONE,
            caches: if source.ends_with("window") {
                Caches::paged(9).and(Cache::Ring { keys: 16 }, 10)
            } else {
                Caches::paged(9)
            },
            // Texts of a request that is drawn again are found, and drafts are right.
            drafts: Some(common::DRAFTS).filter(|_| source == "qwen3"),
        };
        let pack =
            PackLimits { micro_batch_tokens: 128, prompt_tokens: 40, segments: 15, caches: Caches::paged(0) };
        let recompute = Recompute::Cheap;
        let setup = Setup { threads: 2, recompute, offload, ..Setup::new(source, dtype, pack.pass()) };
        let mut world = World::truncating(setup, limits, true);
        // A thread's start allocates: wait until both have run a task.
        let both = std::sync::Barrier::new(2);
        world.harness.dev.cpu().pool().run(2, &|_, _| {
            both.wait();
        });
        let ids: Vec<Vec<u32>> = [40, 17, 3].iter().map(|&n| Numbers::new(4).tokens(n, 96)).collect();
        let prompts: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
        let mut out = Samples::with_capacity(12, 24);
        roll_out(&mut world, &prompts, &mut out);
        update(&mut world, &prompts, &out);
        println!(
            "a rollout and an update of {source} in {dtype:?} allocate nothing, offload {offload} ... ok"
        );
    }
}

fn roll_out(world: &mut World, prompts: &[&[u32]], out: &mut Samples) {
    let mut engine = Engine::new(world.limits, OnFull::Preempt);
    let mut parts = world.harness.parts();
    let phase = parts.overlay.enter(Phase::Rollout);
    let acts = Activations::bind(&phase, Mode::Rollout { truncates: true }, world.limits.pass());
    for (round, top_k) in [0, 0, 30, 0].into_iter().enumerate() {
        let how = plimsoll_device::Sampling { top_k, ..sampling(1.0, 3) };
        let (group_size, first_sample_id) = (GROUP, round as u64 * 100);
        let request = Request {
            prompts,
            group_size,
            max_new_tokens: 24,
            sampling: how,
            eos: &[3, 4],
            first_sample_id,
            numbers: &[],
        };
        let mut preemptions = 0;
        let count = allocations(|| {
            let stats = engine.run(parts.dev, &parts.decoder, acts, &request, &mut NeverStop, out).unwrap();
            preemptions = stats.preemptions;
        });
        assert!(preemptions > 0, "blocks were to run out");
        assert!(round == 0 || count == 0, "request {round}: {count} allocations");
    }
}

fn update(world: &mut World, prompts: &[&[u32]], out: &Samples) {
    let all: Vec<Sequence<'_>> = common::sequences(prompts, out, GROUP);
    let limits = world.harness.setup.pass;
    let mut parts = world.harness.parts();
    let params = parts.decoder.params.clone();
    let mut optimizer =
        Optimizer::new(parts.dev, parts.table, params.all, parts.resident, "actor", Share::WHOLE);
    let how = UpdateOptions {
        muon: None,
        lr: 1e-4,
        betas: (0.9, 0.95),
        epsilon: 1e-8,
        weight_decay: 0.0,
        grad_clip: 1.0,
        seed: 0,
    };
    let mut packer = Packer::new(limits, all.len());
    let phase = parts.overlay.enter(Phase::Update);
    let grads = &parts.grads;
    let units = Units { packing: Packing::default(), hidden: 64 };
    let cut = Cut::multiple(8);
    let acts = Activations::bind(&phase, Mode::Update(Recompute::Cheap), limits);
    let slots = optimizer.slots(&phase, "actor");
    let (mut logprobs, d) = (vec![0.0; limits.head_rows], vec![0.01; limits.head_rows]);
    for step in 0..3 {
        let count = allocations(|| {
            parts.dev.zero(grads.all);
            packer.cut(cut, units, &all, 0..all.len()).unwrap();
            let mut first = 0;
            for index in 0..packer.num_micro_batches() {
                let batch = packer.micro_batch(units.packing, &all, first, index).unwrap();
                let rows = batch.head.len();
                let pass = Pass::upload(parts.dev, acts, batch.index);
                layers(parts.dev, &parts.decoder, &pass);
                head(parts.dev, &parts.decoder, &pass, 1.0);
                parts.dev.read_f32(pass.head_out().logprobs, 0, &mut logprobs[..rows]);
                let d = &d[..rows];
                let of = Derivatives::Vocabulary {
                    inv_temperature: 1.0,
                    logprobs: d,
                    entropy: d,
                    divergence: &[],
                };
                backward(parts.dev, &parts.decoder, grads, true, &pass, of);
                first = batch.sequences.end;
            }
            let norm = optimizer.grad_norm(parts.dev, grads.all);
            optimizer.update(parts.dev, params.all, grads.all, slots, how, norm);
        });
        assert!(step == 0 || count == 0, "step {step}: {count} allocations");
    }
}
