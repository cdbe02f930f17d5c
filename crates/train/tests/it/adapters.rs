//! Adapters against what peft computes in float32: log-probabilities, gradients of A and B, one AdamW step. And against
//! themselves: at every recompute level, in other cuts, and with gradients added to what is there.
//!
//! Tolerances: the same numbers computed in float64 differ from the reference by up to 7.4e-6 in log-probs and 6.8e-7
//! in gradients (the README of the golden files has a table); ours may round as much again in the other direction, so
//! the bounds are about four times these.

use crate::common::{Harness, Machine, Reference, Setup, golden_dir, read, same_bits};
use plimsoll_arch::{Cache, Caches};
use plimsoll_base::{Bytes, DType};
use plimsoll_device::Matrix;
use plimsoll_files::Adapter;
use plimsoll_memory::{Buf, Layout};
use plimsoll_model::{
    Adapters, AdaptersFrom, Derivatives, FlatTensors, ParamTable, PassLimits, Recompute, backward, head,
    load_adapters, save,
};
use plimsoll_train::{Optimizer, PackLimits, Sequence, Share, UpdateOptions};

/// An adapter with the model that it is of.
const GOLDEN: [(&str, &str); 16] = [
    ("llama", "llama"),
    ("llama_qv_rslora", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3_moe", "qwen3_moe"),
    ("qwen3_moe_mixed", "qwen3_moe_mixed"),
    ("qwen3_5_moe", "qwen3_5_moe"),
    ("qwen3_next", "qwen3_next"),
    ("qwen3_5_moe_experts", "qwen3_5_moe"),
    ("glm4_moe_experts", "glm4_moe"),
    ("ministral3", "ministral3"),
    ("gemma4", "gemma4"),
    ("gemma4_moe", "gemma4_moe"),
    ("gemma4_e", "gemma4_e"),
    ("deepseek_v3", "deepseek_v3"),
    ("moonlight", "moonlight"),
];
const PASS: PassLimits = PassLimits {
    rows: 154,
    head_rows: 154,
    listed: 0,
    taught: 0,
    own: plimsoll_model::OwnLogits::NONE,
    segments: 6,
    table_entries: 32,
    copies: 3,
    caches: Caches::paged(16).and(Cache::State, 12),
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

/// A harness with a golden adapter.
fn harness(name: &str, model: &str, setup: Setup) -> (Harness, ParamTable) {
    let folder = golden_dir(&format!("lora/{name}"));
    let spec = Setup::new(model, DType::F32, PASS).open().spec;
    let files = Adapter::open(&folder, &spec).unwrap();
    let lora = Some((files.config.shape(), files.config.scale() as f32));
    let mut h = Harness::new(Setup { lora, ..setup }, Layout::new());
    let table = h.setup.adapters(&spec).unwrap();
    let parts = h.parts();
    let (layout, all) = (parts.decoder.params.embed.layout, parts.resident.buf("lora"));
    load_adapters(parts.dev, &table, layout, &[all], AdaptersFrom::Files(&files), Bytes::mib(1)).unwrap();
    h.merge();
    (h, table)
}

fn ids_of(reference: &Reference) -> Vec<Vec<u32>> {
    (0..3).map(|i| reference.ids(&format!("seq{i}.input_ids"))).collect()
}

/// Every token but the first is a response's.
fn sequences(ids: &[Vec<u32>]) -> Vec<Sequence<'_>> {
    let whole = ids.iter().enumerate();
    whole.map(|(group, s)| Sequence { group, prompt: &s[..1], response: &s[1..] }).collect()
}

/// Gradients of the mean negative log-probability, left in `lora.grads`.
fn gradients(h: &mut Harness, table: &ParamTable, sequences: &[Sequence<'_>], add_first: bool) {
    let (spec, dtype) = (h.spec, h.setup.dtype);
    let (lora, scale) = h.setup.lora.expect("a harness with adapters");
    let count = sequences.iter().map(|s| s.response.len()).sum::<usize>() as f32;
    let mut parts = h.parts();
    let grads = Adapters::bind(&spec, table, dtype, lora, scale, parts.resident.buf("lora.grads"));
    parts.dev.zero(grads.all);
    let mut add = add_first;
    parts
        .each_pass(sequences, |parts, pass, heads, _| {
            head(parts.dev, parts.decoder, pass, 1.0);
            let (by_logprob, by_entropy) = (vec![-1.0 / count; heads.len()], vec![0.0; heads.len()]);
            let of = Derivatives::Vocabulary {
                inv_temperature: 1.0,
                logprobs: &by_logprob,
                entropy: &by_entropy,
                divergence: &[],
            };
            backward(parts.dev, parts.decoder, &grads, add, pass, of);
            add = true;
        })
        .unwrap();
}

/// The rows of a parameter that one tensor of a file holds.
struct Piece<'t> {
    param: &'t plimsoll_model::Param,
    part: &'t plimsoll_model::Part,
    /// The first one's row in the parameter.
    first: usize,
    /// Number among the parameters of the tensor, one for each expert, and their count.
    of: (usize, usize),
}

impl Piece<'_> {
    /// Returns where the tensor has the value of a row and a column.
    fn at(&self, row: u32, column: usize) -> usize {
        let row = self.part.groups.map_or(row, |groups| groups.run(row).0) as usize;
        let (width, (number, count)) = (self.param.k as usize, self.of);
        if self.part.name.ends_with("lora_B.weight") {
            return (row * width + column) * count + number;
        }
        (number * self.part.rows as usize + row) * width + column
    }

    fn len(&self) -> usize {
        self.part.rows as usize * self.param.k as usize * self.of.1
    }
}

fn pieces(table: &ParamTable) -> impl Iterator<Item = Piece<'_>> {
    let runs = table.params.chunk_by(|a, b| a.parts[0].name == b.parts[0].name);
    let params = runs.flat_map(|run| run.iter().enumerate().map(move |(i, param)| (param, (i, run.len()))));
    params.flat_map(|(param, of)| {
        let mut first = 0;
        param.parts.iter().map(move |part| {
            let piece = Piece { param, part, first, of };
            first += part.rows as usize;
            piece
        })
    })
}

/// Each tensor under peft's name, row-major.
fn tensors(h: &mut Harness, table: &ParamTable, region: &str) -> Vec<(String, Vec<f32>)> {
    let parts = h.parts();
    let (layout, all) = (parts.decoder.params.embed.layout, parts.resident.buf(region));
    let mut out: Vec<(String, Vec<f32>)> = Vec::new();
    for piece in pieces(table) {
        if piece.of.0 == 0 {
            out.push((piece.part.name.clone(), vec![0.0; piece.len()]));
        }
        let (_, values) = out.last_mut().expect("the tensor of the piece");
        let matrix = matrix(all, piece.param, layout);
        let mut of_row = vec![0.0; matrix.k];
        for row in 0..piece.part.rows {
            parts.dev.read_rows(matrix, piece.first + row as usize, &mut of_row);
            of_row.iter().enumerate().for_each(|(column, value)| values[piece.at(row, column)] = *value);
        }
    }
    out
}

fn matrix<'a>(
    all: Buf<'a>,
    param: &plimsoll_model::Param,
    layout: plimsoll_device::MatrixLayout,
) -> Matrix<'a> {
    let buf = all.slice(param.offset as usize, param.elements as usize);
    Matrix::new(buf, param.n as usize, param.k as usize, layout)
}

#[test]
fn log_probs_and_gradients_agree_with_peft() {
    for (name, model) in GOLDEN {
        let reference = Reference::open(&format!("lora/{name}"));
        let ids = ids_of(&reference);
        for (machine, merge) in
            Machine::all().into_iter().flat_map(|machine| [(machine, false), (machine, true)])
        {
            let setup = Setup { machine, merge, threads: 2, ..Setup::new(model, DType::F32, PASS) };
            let (mut h, table) = harness(name, model, setup);
            let (logprobs, _) = h.logprobs(&sequences(&ids), 1.0).unwrap();
            for (i, ours) in logprobs.iter().enumerate() {
                let theirs = reference.f32s(&format!("seq{i}.log_probs"));
                let d = largest_difference(ours, &theirs);
                assert!(
                    d < if name == "qwen3_next" { 6e-5 } else { 3e-5 },
                    "{name} {machine:?} seq{i}, merged {merge}: log-probs differ by {d}"
                );
            }
            gradients(&mut h, &table, &sequences(&ids), false);
            for (tensor, ours) in tensors(&mut h, &table, "lora.grads") {
                let d = largest_difference(&ours, &reference.f32s(&format!("grad.{tensor}")));
                // The largest of this Qwen3-Next is seven times as large. There, transformers in f32 is off from itself
                // in f64 by 6.2e-6, and by 1.6e-4 with its adapters merged.
                let bound = match (name, merge) {
                    ("qwen3_next", true) => 3e-4,
                    ("qwen3_next", false) => 4e-5,
                    // There, transformers in f32 is off by 1.8e-6 and 1.5e-6.
                    ("ministral3" | "deepseek_v3", _) => 6e-6,
                    _ => 3e-6,
                };
                assert!(d < bound, "{name} {machine:?} {tensor}, merged {merge}: gradients differ by {d}");
            }
        }
    }
}

/// Shows that files are peft's to the value, those of all experts in one too.
#[test]
fn what_is_saved_is_what_peft_saved() {
    for (name, model) in GOLDEN {
        let (mut h, table) = harness(name, model, Setup::new(model, DType::F32, PASS));
        let parts = h.parts();
        let (layout, all) = (parts.decoder.params.embed.layout, parts.resident.buf("lora"));
        let folder = tempfile::tempdir().unwrap();
        let saved = folder.path().join("adapter_model.safetensors");
        save(parts.dev, &table, layout, &[FlatTensors::weights(all)], &saved, Bytes::mib(1)).unwrap();
        let theirs = golden_dir(&format!("lora/{name}")).join("adapter_model.safetensors");
        let [ours, theirs] = [saved, theirs].map(|path| std::fs::read(path).unwrap());
        let [ours, theirs] =
            [&ours, &theirs].map(|file| safetensors::SafeTensors::deserialize(file).unwrap());
        assert_eq!(ours.len(), theirs.len(), "{name}");
        for (tensor, theirs) in theirs.tensors() {
            let ours = ours.tensor(&tensor).unwrap_or_else(|err| panic!("{name} {tensor}: {err}"));
            assert_eq!((ours.shape(), ours.data()), (theirs.shape(), theirs.data()), "{name} {tensor}");
        }
    }
}

#[test]
fn a_step_from_the_stored_gradients_is_pytorch_s() {
    for (name, model) in GOLDEN {
        let reference = Reference::open(&format!("lora/{name}"));
        for machine in Machine::all() {
            let setup = Setup { machine, ..Setup::new(model, DType::F32, PASS) };
            let (mut h, table) = harness(name, model, setup);
            let parts = h.parts();
            let (layout, all) = (parts.decoder.params.embed.layout, parts.resident.buf("lora"));
            let grads = parts.resident.buf("lora.grads");
            parts.dev.zero(grads);
            for piece in pieces(&table) {
                let values = reference.f32s(&format!("grad.{}", piece.part.name));
                let to = matrix(grads, piece.param, layout);
                for row in 0..piece.part.rows {
                    let of_row: Vec<f32> = (0..to.k).map(|column| values[piece.at(row, column)]).collect();
                    parts.dev.write_rows(to, piece.first + row as usize, &of_row);
                }
            }
            let mut optimizer = Optimizer::new(parts.dev, &table, all, parts.resident, "lora", Share::WHOLE);
            let norm = optimizer.grad_norm(parts.dev, grads);
            let theirs = f64::from(reference.f32s("grad_norm")[0]);
            assert!((norm - theirs).abs() < 2e-6 * theirs, "{name} {machine:?}: norm {norm}, {theirs}");
            optimizer.update(parts.dev, all, grads, None, HOW, norm);
            for (tensor, ours) in tensors(&mut h, &table, "lora") {
                let d = largest_difference(&ours, &reference.f32s(&format!("adamw.{tensor}")));
                // Weights are below 4: two roundings of the weight, one of the step.
                assert!(d <= 5e-7, "{name} {machine:?} {tensor}: differs by {d}");
            }
        }
    }
}

/// Shows that what a recompute level computes again has the bits of what it did not keep, in bf16 too, and in any
/// micro-batches that are added in the same order.
#[test]
fn recomputation_and_the_first_write_change_no_bit() {
    for (name, model) in GOLDEN {
        let ids = ids_of(&Reference::open(&format!("lora/{name}")));
        for (dtype, merge) in
            [(DType::F32, false), (DType::Bf16, false), (DType::F32, true), (DType::Bf16, true)]
        {
            let has_states = matches!(model, "qwen3_5_moe" | "qwen3_next");
            let caches = Caches::paged(0);
            let pack = PackLimits {
                micro_batch_tokens: 70,
                prompt_tokens: 8,
                segments: 8,
                caches: if has_states { caches.and(Cache::State, 0) } else { caches },
            }
            .pass();
            let mut first: Option<Vec<f32>> = None;
            for (recompute, threads, add) in [
                (Recompute::None, 1, false),
                (Recompute::Cheap, 2, false),
                (Recompute::Layer, 1, false),
                (Recompute::None, 2, true),
            ] {
                let setup = Setup { recompute, threads, merge, ..Setup::new(model, dtype, pack) };
                let (mut h, table) = harness(name, model, setup);
                gradients(&mut h, &table, &sequences(&ids), add);
                let parts = h.parts();
                let grads = read(parts.dev, parts.resident.buf("lora.grads"));
                assert!(grads.iter().any(|g| *g != 0.0));
                let expected = first.get_or_insert_with(|| grads.clone());
                assert!(
                    same_bits(expected, &grads),
                    "{name} {dtype:?} {recompute:?} {threads} threads, add {add}, merged {merge}"
                );
            }
        }
    }
}

fn largest_difference(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
