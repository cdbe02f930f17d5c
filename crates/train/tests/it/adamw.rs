//! One AdamW step against PyTorch's, from the stored gradients and from our own.

use crate::common::{GOLDEN, Harness, Machine, Reference, Setup, dtypes, place_in_file, tensors};
use plimsoll_arch::{Cache, Caches};
use plimsoll_base::{Bytes, DType, Phase};
use plimsoll_device::{Device, Matrix};
use plimsoll_memory::Layout;
use plimsoll_model::{FlatTensors, Params, PassLimits, save};
use plimsoll_train::{Optimizer, OptimizerDType, Sequence, Share, UpdateOptions};

const PASS: PassLimits = PassLimits {
    rows: 320,
    head_rows: 320,
    listed: 0,
    taught: 0,
    own: plimsoll_model::OwnLogits::NONE,
    segments: 6,
    table_entries: 64,
    copies: 3,
    caches: Caches::paged(32).and(Cache::State, 18),
};
const HOW: UpdateOptions = UpdateOptions {
    muon: None,
    lr: 1e-3,
    betas: (0.9, 0.95),
    epsilon: 1e-8,
    weight_decay: 0.01,
    grad_clip: 0.0,
    seed: 0,
};

/// Writes the tensors that are trained, under their Hugging Face names into a flat buffer.
pub fn write(
    dev: &dyn Device,
    table: &plimsoll_model::ParamTable,
    all: &Params<'_>,
    value: impl Fn(&str) -> Vec<f32>,
) {
    for param in table.params.iter().filter(|param| !param.is_fixed()) {
        let buf = all.all.slice(param.offset as usize, param.elements as usize);
        let mut row = 0;
        for part in &param.parts {
            let of_file = value(&part.name);
            let width = param.k.max(1) as usize;
            let values: Vec<f32> =
                (0..of_file.len()).map(|i| of_file[place_in_file(part, width, i)]).collect();
            if param.is_vector() {
                dev.write_f32(buf, row, &values)
            } else {
                let matrix = Matrix::new(buf, param.n as usize, param.k as usize, all.embed.layout);
                dev.write_rows(matrix, row, &values);
            }
            row += part.rows as usize;
        }
    }
}

/// Checks against `adamw.*` within `bound`, relative above 4, over elements that `keep` takes by reference gradient.
fn check(
    name: &str,
    ours: &[(String, Vec<f32>)],
    reference: &Reference,
    keep: impl Fn(f32) -> bool,
    bound: f32,
) {
    for (tensor, ours) in ours {
        let theirs = reference.f32s(&format!("adamw.{tensor}"));
        let grads = reference.f32s(&format!("grad.{tensor}"));
        assert_eq!(ours.len(), theirs.len(), "{name} {tensor}");
        for ((&a, &b), &g) in ours.iter().zip(&theirs).zip(&grads) {
            assert!(
                !keep(g) || (a - b).abs() <= bound * (b.abs() / 4.0).max(1.0),
                "{name} {tensor}: {a} and {b} where the gradient is {g}"
            );
        }
    }
}

#[test]
fn a_step_from_the_stored_gradients_is_pytorch_s() {
    for name in GOLDEN {
        let reference = Reference::open(name);
        for machine in Machine::all() {
            let mut h = Harness::new(
                Setup { machine, threads: 2, ..Setup::new(name, DType::F32, PASS) },
                Layout::new(),
            );
            let parts = h.parts();
            let params = &parts.decoder.params;
            let mut optimizer =
                Optimizer::new(parts.dev, parts.table, params.all, parts.resident, "actor", Share::WHOLE);
            write(parts.dev, parts.table, &parts.grads, |tensor| reference.f32s(&format!("grad.{tensor}")));
            let norm = optimizer.grad_norm(parts.dev, parts.grads.all);
            let theirs = f64::from(reference.f32s("grad_norm")[0]);
            assert!(
                (norm - theirs).abs() < 2e-6 * theirs,
                "{name} {machine:?}: norm {norm}, reference {theirs}"
            );
            optimizer.update(parts.dev, params.all, parts.grads.all, None, HOW, norm);
            // Two roundings of the weight, one of the step.
            check(name, &tensors(parts.dev, parts.table, params), &reference, |_| true, 5e-7);
        }
    }
}

#[test]
fn a_step_from_our_own_gradients_is_pytorch_s_where_the_gradient_has_a_sign() {
    for name in GOLDEN {
        let reference = Reference::open(name);
        let ids: Vec<Vec<u32>> = (0..3).map(|i| reference.ids(&format!("seq{i}.input_ids"))).collect();
        let sequences: Vec<Sequence<'_>> = ids
            .iter()
            .enumerate()
            .map(|(group, s)| Sequence { group, prompt: &s[..1], response: &s[1..] })
            .collect();
        let count = sequences.iter().map(|s| s.response.len()).sum::<usize>() as f32;
        let mut h = Harness::new(Setup::new(name, DType::F32, PASS), Layout::new());
        let (_, sum) = h.gradients(&sequences, 1.0, |_, _| (-1.0 / count, 0.0));
        assert!((sum as f32 - reference.f32s("loss")[0]).abs() < 4e-6, "{name}: loss {sum}");
        let parts = h.parts();
        let params = &parts.decoder.params;
        let ours = tensors(parts.dev, parts.table, &parts.grads);
        let mut optimizer =
            Optimizer::new(parts.dev, parts.table, params.all, parts.resident, "actor", Share::WHOLE);
        for (tensor, ours) in &ours {
            let theirs = reference.f32s(&format!("grad.{tensor}"));
            let d = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // Of the two families that multiply embeddings gradients are five times as large. About four times the
            // difference of transformers in f32 from itself in f64, which README.md of the goldens has.
            let bound = match name {
                "gemma3" | "granite" => 6e-6,
                "qwen3_next" => 1.5e-5,
                _ => 1.5e-6,
            };
            assert!(d < bound, "{name} {tensor}: gradients differ by {d}");
        }
        let norm = optimizer.grad_norm(parts.dev, parts.grads.all);
        optimizer.update(parts.dev, params.all, parts.grads.all, None, HOW, norm);
        // The step is lr * g / (|g| + 1e-8): at |g| = 1e-5 an error of 6e-6 does not turn its sign, and the size of
        // the step moves by lr * 1e-8 / |g|^2 * error, below 1e-6.
        check(name, &tensors(parts.dev, parts.table, params), &reference, |g| g.abs() > 1e-5, 1e-6);
    }
}

/// bf16 weights with an f32 master follow the f32 run and round once, at the end.
#[test]
fn bf16_weights_are_the_rounded_master_and_clipping_scales_the_gradient() {
    let pass = PASS;
    let reference = Reference::open("qwen3");
    let mut h = Harness::new(Setup::new("qwen3", DType::Bf16, pass), Layout::new());
    assert!(dtypes(DType::Bf16).has_master());
    let parts = h.parts();
    let params = &parts.decoder.params;
    let mut optimizer =
        Optimizer::new(parts.dev, parts.table, params.all, parts.resident, "actor", Share::WHOLE);
    write(parts.dev, parts.table, &parts.grads, |tensor| reference.f32s(&format!("grad.{tensor}")));
    let norm = optimizer.grad_norm(parts.dev, parts.grads.all);
    for _ in 0..3 {
        optimizer.update(
            parts.dev,
            params.all,
            parts.grads.all,
            None,
            UpdateOptions { grad_clip: 1.0, ..HOW },
            norm,
        );
    }
    let master = crate::common::read(parts.dev, parts.resident.buf("actor.master"));
    let weights = crate::common::read(parts.dev, params.all);
    // Round to nearest even on the upper 16 bits.
    let rounded = |x: f32| f32::from_bits((x.to_bits() + 0x7fff + (x.to_bits() >> 16 & 1)) & 0xffff_0000);
    assert!(
        master.iter().zip(&weights).all(|(&m, &w)| rounded(m) == w),
        "weights are not their master's rounding"
    );
    let m = crate::common::read(parts.dev, parts.resident.buf("actor.adam_m"));
    let grads = crate::common::read(parts.dev, parts.grads.all);
    // After three equal gradients m = (1 - 0.9^3) g / norm.
    let largest =
        m.iter().zip(&grads).map(|(&m, &g)| (m - 0.271 * g / norm as f32).abs()).fold(0.0, f32::max);
    assert!(largest < 1e-7, "first moments are off by {largest}");
}

/// Moments are rounded after the update, so the first one is that of f32 moments to the bit; the next ones stay near.
#[test]
fn moments_of_8_bits_step_as_moments_of_f32() {
    let reference = Reference::open("qwen3");
    let run = |optimizer: OptimizerDType, steps: usize| {
        let setup = Setup { optimizer, ..Setup::new("qwen3", DType::F32, PASS) };
        let mut h = Harness::new(setup, Layout::new());
        let parts = h.parts();
        let params = &parts.decoder.params;
        let mut optimizer =
            Optimizer::new(parts.dev, parts.table, params.all, parts.resident, "actor", Share::WHOLE);
        write(parts.dev, parts.table, &parts.grads, |tensor| reference.f32s(&format!("grad.{tensor}")));
        for _ in 0..steps {
            optimizer.update(parts.dev, params.all, parts.grads.all, None, HOW, 1.0);
        }
        crate::common::read(parts.dev, params.all)
    };
    assert!(run(OptimizerDType::Int8, 1) == run(OptimizerDType::F32, 1), "the first step");
    let (ours, exact) = (run(OptimizerDType::Int8, 5), run(OptimizerDType::F32, 5));
    // Codes are an eighth off each, so a later step is by a tenth: a fifth of a step after four of them. A gradient
    // below 2^-17 of its block's largest may lose its steps whole.
    let squares: f32 = ours.iter().zip(&exact).map(|(a, b)| ((a - b) / HOW.lr).powi(2)).sum();
    let rms = (squares / ours.len() as f32).sqrt();
    assert!(rms > 0.01 && rms < 0.25, "weights differ by {rms} steps");
}

/// Bits of the weights and of every state after three updates, and of the states in files' order.
fn updated(setup: Setup, in_parts: bool) -> Vec<Vec<u8>> {
    let mut h = Harness::new(setup, Layout::new());
    let mut parts = h.parts();
    let params = &parts.decoder.params;
    let mut optimizer =
        Optimizer::new(parts.dev, parts.table, params.all, parts.resident, "actor", Share::WHOLE);
    let phase = parts.overlay.enter(Phase::Update);
    let slots = optimizer.slots(&phase, "actor");
    assert_eq!(slots.is_some(), parts.setup.offload);
    for step in 1..=3 {
        let grads: Vec<f32> = (0..params.all.len())
            .map(|i| ((i * 7919 + step * 104_729) % 1000) as f32 * 1e-5 - 5e-3)
            .collect();
        parts.dev.write_f32(parts.grads.all, 0, &grads);
        let (grads, how) = (parts.grads.all, UpdateOptions { seed: 7, ..HOW });
        if !in_parts {
            optimizer.update(parts.dev, params.all, grads, slots, how, 1.0);
            continue;
        }
        let (mut end, mut count) = (0, 0);
        optimizer.update_in_parts(parts.dev, params.all, grads, how, 1.0, &mut |part| {
            assert_eq!(part.start, end);
            (end, count) = (part.end(), count + 1);
        });
        assert!(end == params.all.len() as u64 && count <= 8, "{count} parts to {end}");
    }
    parts.dev.sync();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let saved = |sets: &[FlatTensors<'_>], name: &str| {
        let path = folder.path().join(name);
        save(parts.dev, parts.table, params.embed.layout, sets, &path, Bytes::mib(1)).expect("room");
        std::fs::read(path).expect("it is there")
    };
    vec![saved(&[FlatTensors::weights(params.all)], "w"), saved(&optimizer.states(), "s")]
}

#[test]
fn offloaded_states_give_the_bits_of_resident_ones() {
    for (weights, optimizer) in [
        (DType::F32, OptimizerDType::F32),
        (DType::Bf16, OptimizerDType::F32),
        (DType::Bf16, OptimizerDType::Bf16),
        (DType::Bf16, OptimizerDType::Int8),
    ] {
        for (machine, threads) in Machine::all().into_iter().flat_map(|machine| [(machine, 1), (machine, 2)])
        {
            let setup = Setup { machine, threads, optimizer, ..Setup::new("qwen3", weights, PASS) };
            let offloaded = Setup { offload: true, guard: 512, ..setup.clone() };
            assert!(
                updated(setup, false) == updated(offloaded, false),
                "{weights:?} {optimizer:?} {machine:?} x{threads}"
            );
        }
    }
}

#[test]
fn an_update_by_parts_has_the_bits_of_the_whole() {
    for (weights, optimizer) in [
        (DType::F32, OptimizerDType::F32),
        (DType::Bf16, OptimizerDType::F32),
        (DType::Bf16, OptimizerDType::Bf16),
        (DType::Bf16, OptimizerDType::Int8),
    ] {
        for machine in Machine::all() {
            let setup = Setup { machine, threads: 2, optimizer, ..Setup::new("qwen3", weights, PASS) };
            assert!(
                updated(setup.clone(), true) == updated(setup, false),
                "{weights:?} {optimizer:?} {machine:?}"
            );
        }
    }
}
