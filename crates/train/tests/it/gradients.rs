//! Gradients through packing: a group's shared prompt changes no gradient, threads change no bit, and finite
//! differences of the packed loss agree.

use crate::common::{Harness, Machine, Numbers, Open, Parts, Setup, read, same_bits, tensors};
use plimsoll_arch::{Caches, ModelSpec};
use plimsoll_base::{DType, PhaseSet};
use plimsoll_device::{MatrixLayout, OwnedRun};
use plimsoll_memory::{Buf, Layout};
use plimsoll_model::{
    Derivatives, ParamTable, Params, Pass, PassLimits, Recompute, RowGradients, Stage, backward,
    backward_part, head,
};
use plimsoll_train::{
    Area, HeadRow, Links, Optimizer, PackLimits, Part, Partial, Sequence, Share, Sum, partial_layout,
};

const MODELS: [&str; 3] = ["qwen3", "qwen2", "llama3_rope"];

/// Prompts with their responses, as a rollout leaves them.
struct Groups {
    prompts: Vec<Vec<u32>>,
    responses: Vec<Vec<Vec<u32>>>,
}

impl Groups {
    /// `shape`: length of the prompt and of its responses.
    fn new(shape: &[(usize, &[usize])]) -> Groups {
        let mut numbers = Numbers::new(11);
        let prompts = shape.iter().map(|&(prompt, _)| numbers.tokens(prompt, 96)).collect();
        let group = |lens: &[usize]| lens.iter().map(|&n| Numbers::new(n as u64).tokens(n, 96)).collect();
        Groups { prompts, responses: shape.iter().map(|&(_, lens)| group(lens)).collect() }
    }

    /// In groups, or each sequence with a prompt of its own.
    fn sequences(&self, shared: bool) -> Vec<Sequence<'_>> {
        let mut all = Vec::new();
        for (g, prompt) in self.prompts.iter().enumerate() {
            for response in &self.responses[g] {
                let group = if shared { g } else { all.len() };
                all.push(Sequence { group, prompt, response });
            }
        }
        all
    }

    fn pass(&self, tokens: usize) -> PassLimits {
        let count = self.responses.iter().map(Vec::len).sum();
        let segments = PackLimits::segments_of(tokens, count, count);
        PackLimits { micro_batch_tokens: tokens, prompt_tokens: 64, segments, caches: Caches::paged(0) }
            .pass()
    }
}

fn groups() -> Groups {
    Groups::new(&[(21, &[5, 1, 12, 30]), (16, &[17, 3]), (1, &[2, 9, 1]), (33, &[1]), (47, &[18, 2, 16, 15])])
}

/// Derivatives that differ from token to token.
fn weight(sequence: usize, token: usize) -> (f32, f32) {
    let x = (sequence * 7 + token * 3) % 11;
    (0.1 * x as f32 - 0.4, if x.is_multiple_of(3) { 0.05 } else { 0.0 })
}

#[test]
fn sharing_a_prompt_changes_no_gradient() {
    let groups = groups();
    for name in MODELS {
        for machine in Machine::all() {
            let mut h = Harness::new(
                Setup { machine, ..Setup::new(name, DType::F32, groups.pass(512)) },
                Layout::new(),
            );
            let (_, shared_sum) = h.gradients(&groups.sequences(true), 0.8, weight);
            let parts = h.parts();
            let shared = tensors(parts.dev, parts.table, &parts.grads);
            let (_, own_sum) = h.gradients(&groups.sequences(false), 0.8, weight);
            let parts = h.parts();
            let own = tensors(parts.dev, parts.table, &parts.grads);
            // The forward passes have the same bits; only the order of the sum over tokens may differ.
            assert!((shared_sum - own_sum).abs() < 1e-9 * own_sum.abs().max(1.0), "{name} {machine:?}");
            for ((tensor, a), (_, b)) in shared.iter().zip(&own) {
                let largest = b.iter().fold(0f32, |m, x| m.max(x.abs()));
                let d = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                // Sums of about 250 rows in another order: a few roundings of the largest element.
                assert!(
                    largest > 1e-3 && d < 3e-6 * largest.max(1.0),
                    "{name} {machine:?} {tensor}: {d} of {largest}"
                );
            }
        }
    }
}

#[test]
fn threads_and_recompute_change_no_bit_of_a_gradient() {
    let groups = groups();
    for (name, dtype) in [
        ("qwen3", DType::F32),
        ("qwen3", DType::Bf16),
        ("qwen2", DType::Bf16),
        ("llama", DType::F32),
        ("olmo3", DType::Bf16),
        ("gemma2", DType::F32),
        ("gemma2", DType::Bf16),
        ("gemma3", DType::F32),
        ("gemma3", DType::Bf16),
        ("qwen3_moe", DType::F32),
        ("qwen3_moe", DType::Bf16),
        ("qwen3_moe_mixed", DType::F32),
        ("qwen3_moe_mixed", DType::Bf16),
        ("glm4_moe_groups", DType::F32),
        ("glm4_moe_groups", DType::Bf16),
        ("gpt_oss", DType::F32),
        ("gpt_oss", DType::Bf16),
        ("gemma4_moe", DType::F32),
        ("gemma4_moe", DType::Bf16),
    ] {
        for machine in Machine::all() {
            let mut first: Option<(Vec<f32>, f64)> = None;
            for (threads, recompute) in [
                (1, Recompute::None),
                (2, Recompute::None),
                (2, Recompute::Layer),
                (2, Recompute::Offload),
                (1, Recompute::Cheap),
            ] {
                let setup =
                    Setup { machine, threads, recompute, ..Setup::new(name, dtype, groups.pass(128)) };
                let mut h = Harness::new(setup, Layout::new());
                let (grads, sum) = h.gradients(&groups.sequences(true), 1.0, weight);
                let norm = h.dev.as_dyn().sum_squares(h.arena.split().0.buf("actor.grads"));
                let (bits, first_norm) = first.get_or_insert_with(|| (grads.clone(), norm));
                assert!(sum.is_finite() && norm > 0.0);
                assert!(
                    same_bits(bits, &grads),
                    "{name} {dtype:?} {machine:?} {threads} threads, {recompute:?}"
                );
                assert_eq!(norm.to_bits(), first_norm.to_bits(), "{name}: the norm on {threads} threads");
            }
        }
    }
}

/// The cut into micro-batches changes the order of sums, not the gradient.
#[test]
fn the_cut_into_micro_batches_changes_rounding_alone() {
    let groups = groups();
    let mut whole: Option<Vec<f32>> = None;
    for tokens in [512, 100, 66] {
        let mut h = Harness::new(Setup::new("qwen3", DType::F32, groups.pass(tokens)), Layout::new());
        let (grads, _) = h.gradients(&groups.sequences(true), 1.0, weight);
        let whole = whole.get_or_insert_with(|| grads.clone());
        let d = grads.iter().zip(whole.iter()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(d < 1e-5, "{tokens} rows: {d}");
    }
}

/// Shows what lets ranks share micro-batches: every operation forms its sum first and adds it to the gradient once. So
/// partial gradients that owners of elements add in order are the gradient, and its norm, of one process.
#[test]
fn partial_gradients_added_by_their_owners_are_the_accumulated_gradient() {
    let groups = groups();
    for (name, dtype, sum) in [
        ("qwen3", DType::F32, DType::F32),
        ("qwen3", DType::Bf16, DType::Bf16),
        ("qwen2", DType::Bf16, DType::F32),
        ("llama", DType::F32, DType::Bf16),
    ] {
        for (machine, threads) in Machine::all().into_iter().flat_map(|machine| [(machine, 1), (machine, 2)])
        {
            let setup = Setup { machine, threads, ..Setup::new(name, dtype, groups.pass(70)) };
            let (spec, pool) = (setup.open().spec, setup.target().pool);
            let table = ParamTable::new(&spec, machine.kind(), dtype);
            let mut extra = Layout::new();
            let partial = if machine == Machine::Cuda { sum } else { DType::F32 };
            extra.extend(partial_layout("part", &table, pool, PhaseSet::RESIDENT, partial).unwrap());
            for (name, dtype) in [("whole", sum), ("shard", sum)] {
                extra.arena(name, "test", pool, PhaseSet::RESIDENT, &[table.elements], dtype).unwrap();
            }
            let mut h = Harness::new(setup, extra);
            let what = format!("{name} {dtype:?} {machine:?} x{threads}");
            let accumulated = accumulated(&mut h, &groups, &what);
            let mut norm = None;
            for ranks in [1, 2, 3, 8] {
                let mut squares = Vec::new();
                for rank in 0..ranks {
                    let mut parts = h.parts();
                    let (dev, share) = (parts.dev, Share { rank, ranks });
                    let optimizer =
                        Optimizer::new(dev, &table, parts.decoder.params.all, parts.resident, "actor", share);
                    let shard = parts.resident.buf("shard");
                    sum_parts(&mut parts, &groups, &optimizer, (&spec, &table, dtype), shard);
                    let added = read(dev, shard);
                    for OwnedRun { run, at } in optimizer.owned() {
                        let own = &added[*at as usize..][..run.elements as usize];
                        let want = &accumulated[run.start as usize..run.end() as usize];
                        assert!(same_bits(want, own), "{what}: rank {rank} of {ranks}, {run:?}");
                    }
                    let mut own = Vec::new();
                    optimizer.squares(dev, shard, &mut own);
                    squares.push(own);
                    if rank + 1 == ranks {
                        let of_all = optimizer.norm_of(&squares);
                        assert_eq!(norm.get_or_insert(of_all).to_bits(), of_all.to_bits(), "{what}: {ranks}");
                    }
                }
            }
        }
    }
}

/// Adds the partial gradients of all micro-batches to an optimizer's shard, stage by stage, as a rank of several does.
fn sum_parts(
    parts: &mut Parts<'_>,
    groups: &Groups,
    optimizer: &Optimizer<'_>,
    (spec, table, dtype): (&ModelSpec, &ParamTable, DType),
    shard: Buf<'_>,
) {
    let buf = |name: &str| parts.resident.buf(name);
    let (dev, ends, slots) = (parts.dev, buf("part.grads"), buf("part.layer_grads"));
    let partial = Partial::over(ends, Some(slots), table);
    let grads = partial.params(spec, table, dtype);
    let mut passes = 0;
    parts
        .each_pass(&groups.sequences(true), |open, pass, heads, _| {
            let (dl, de) = derivatives(open, pass, heads);
            let of = Derivatives::Vocabulary {
                inv_temperature: 0.9,
                logprobs: &dl,
                entropy: &de,
                divergence: &[],
            };
            optimizer.begin_gradients(dev, partial);
            let layout = MatrixLayout::of_weights(dev.kind(), dtype);
            let rows = shard.slice(0, 0);
            let part = Part { grads: partial, layout, d_input: rows, ids: rows, of: None };
            let sum = Sum { shard, folded: None, fold: 1, count: passes + 1 };
            let without_rows = [part];
            let links = Links { parts: &without_rows, first: passes, sum, landing: None, levels: None };
            let after = &mut |stage: Stage| {
                let at = match stage {
                    Stage::Head => (Area::Ends, table.head_run()),
                    Stage::Layer(layer) => (Area::Layer(layer), table.layer_run(layer)),
                };
                optimizer.fold_run(dev, &links, at);
            };
            let RowGradients { d_input, ids } =
                backward_part(open.dev, open.decoder, &grads, false, pass, of, after);
            let with_rows = [Part { d_input, ids, ..part }];
            optimizer.fold_embed(dev, table, &Links { parts: &with_rows, ..links });
            passes += 1;
        })
        .unwrap();
}

/// The gradient that one process accumulates in the region `whole`.
fn accumulated(h: &mut Harness, groups: &Groups, what: &str) -> Vec<f32> {
    let (spec, table, dtype) = (h.spec, h.table.clone(), h.setup.dtype);
    let mut parts = h.parts();
    let grads = Params::bind(&spec, &table, dtype, parts.resident.buf("whole"));
    parts.dev.zero(grads.all);
    let mut passes = 0;
    parts
        .each_pass(&groups.sequences(true), |open, pass, heads, _| {
            let (dl, de) = derivatives(open, pass, heads);
            let of = Derivatives::Vocabulary {
                inv_temperature: 0.9,
                logprobs: &dl,
                entropy: &de,
                divergence: &[],
            };
            backward(open.dev, open.decoder, &grads, passes > 0, pass, of);
            passes += 1;
        })
        .unwrap();
    assert!(passes > 3, "{what}: there is something to add");
    read(parts.dev, grads.all)
}

/// Runs the head, and returns the derivatives of its rows.
fn derivatives(open: &Open<'_, '_>, pass: &Pass<'_>, heads: &[HeadRow]) -> (Vec<f32>, Vec<f32>) {
    head(open.dev, open.decoder, pass, 0.9);
    heads.iter().map(|row| weight(row.sequence as usize, row.token as usize)).unzip()
}

/// The loss at weights moved by `step` along `direction` within one parameter.
fn loss_at(
    h: &mut Harness,
    all: &[Sequence<'_>],
    start: usize,
    base: &[f32],
    direction: &[f32],
    step: f32,
) -> f64 {
    let moved: Vec<f32> = base.iter().zip(direction).map(|(w, d)| w + step * d).collect();
    let parts = h.parts();
    parts.dev.write_f32(parts.decoder.params.all, start, &moved);
    // Read back: the step that was taken is the rounded one, and f64 sums of log-probs keep its effect.
    h.gradients(all, 0.8, weight).1
}

#[test]
fn finite_differences_agree_through_children_segments() {
    let groups = Groups::new(&[(19, &[4, 1, 9]), (16, &[7, 20]), (3, &[2, 14])]);
    for name in MODELS {
        let mut h = Harness::new(Setup::new(name, DType::F32, groups.pass(160)), Layout::new());
        let all = groups.sequences(true);
        let (grads, _) = h.gradients(&all, 0.8, weight);
        let weights = {
            let parts = h.parts();
            crate::common::read(parts.dev, parts.decoder.params.all)
        };
        let params = h.table.params.clone();
        let mut numbers = Numbers::new(2);
        for param in &params {
            let (start, len) = (param.offset as usize, param.elements as usize);
            let (grad, base) = (&grads[start..start + len], &weights[start..start + len]);
            let norm = grad.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
            // Along the gradient, and along a random direction that stays where there are weights.
            let along: Vec<f32> = grad.iter().map(|&g| (f64::from(g) / norm) as f32).collect();
            let kept = grad.iter().filter(|&&g| g != 0.0).count() as f32;
            let random: Vec<f32> = grad
                .iter()
                .map(|&g| if g == 0.0 { 0.0 } else { (2.0 * numbers.below(2) as f32 - 1.0) / kept.sqrt() })
                .collect();
            for direction in [along, random] {
                let expect: f64 =
                    grad.iter().zip(&direction).map(|(&g, &d)| f64::from(g) * f64::from(d)).sum();
                let step = 4e-3;
                let up = loss_at(&mut h, &all, start, base, &direction, step);
                let down = loss_at(&mut h, &all, start, base, &direction, -step);
                let got = (up - down) / (2.0 * f64::from(step));
                // Log-probs of about 60 tokens carry 5e-7 each: 4e-6 / 8e-3 in the quotient; the rest is curvature.
                let bound = 2e-3 + 6e-3 * norm;
                assert!(
                    (got - expect).abs() < bound,
                    "{name} {:?}: {got}, gradient {expect}, norm {norm}",
                    param.kind
                );
            }
            let parts = h.parts();
            parts.dev.write_f32(parts.decoder.params.all, start, base);
        }
    }
}

/// Shows that what a prompt's rows that predict nothing receive comes through attention alone, at every depth of
/// sharing.
#[test]
fn many_children_of_one_prompt_add_up() {
    let lens = vec![3; 24];
    let groups = Groups::new(&[(20, &lens)]);
    let mut h = Harness::new(Setup::new("qwen2", DType::F32, groups.pass(128)), Layout::new());
    let one = Groups::new(&[(20, &[3])]);
    let (many, _) = h.gradients(&groups.sequences(true), 1.0, |_, _| (1.0, 0.0));
    let (single, _) = h.gradients(&one.sequences(true), 1.0, |_, _| (1.0, 0.0));
    let largest = many.iter().fold(0f32, |m, x| m.max(x.abs()));
    let d = many.iter().zip(&single).map(|(m, s)| (m - 24.0 * s).abs()).fold(0.0, f32::max);
    // Twenty-four equal responses: the sum is 24 times one of them, up to the rounding of sums of 70 rows.
    assert!(d < 3e-6 * largest, "{d} of {largest}");
    assert_eq!(h.setup.machine, Machine::detect());
}
