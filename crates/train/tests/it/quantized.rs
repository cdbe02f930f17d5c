//! Products in 4 bits against the same numbers in full: log-probabilities, and gradients of adapters, to the bit.

use crate::common::{Harness, MIXED, Machine, Setup, read, same_bits};
use plimsoll_arch::{Cache, Caches, LoraShape, LoraTargets, ModelSpec, ParamKind, Quantization};
use plimsoll_base::DType;
use plimsoll_device::Matrix;
use plimsoll_device::nf4::{CODES_OF_WORD, NF4_BLOCK, decode, encode};
use plimsoll_memory::Layout;
use plimsoll_model::{Adapters, Derivatives, PassLimits, Recompute, backward, head};
use plimsoll_train::Sequence;

const PASS: PassLimits = PassLimits {
    rows: 104,
    head_rows: 104,
    listed: 0,
    taught: 0,
    own: plimsoll_model::OwnLogits::NONE,
    segments: 6,
    table_entries: 32,
    copies: 3,
    caches: Caches::paged(16).and(Cache::State, 12),
};
const SCALE: f32 = 1.5;

/// The adapters of a model: all that are built.
fn lora_of(spec: &ModelSpec) -> LoraShape {
    LoraShape { rank: 8, targets: LoraTargets::built_for(spec).of_model(spec) }
}

fn harness(machine: Machine, dtype: DType, recompute: Recompute, quantize: Option<Quantization>) -> Harness {
    harness_of("builtin:nano", machine, dtype, recompute, quantize)
}

fn harness_of(
    source: &str,
    machine: Machine,
    dtype: DType,
    recompute: Recompute,
    quantize: Option<Quantization>,
) -> Harness {
    let plain = Setup::new(source, dtype, PASS);
    let lora = Some((lora_of(&plain.open().spec), SCALE));
    let setup = Setup { machine, recompute, quantize, lora, threads: 2, ..plain };
    Harness::new(setup, Layout::new())
}

/// Rounds every product of a model in full to what its codes stand for.
fn round_products(h: &mut Harness) {
    let table = h.table.clone();
    let parts = h.parts();
    let layout = parts.decoder.params.embed.layout;
    let is_product = |kind| matches!(kind, ParamKind::Weight(_));
    for param in table.params.iter().filter(|param| is_product(param.kind)) {
        let (n, k) = (param.n as usize, param.k as usize);
        let buf = parts.decoder.params.all.slice(param.offset as usize, param.elements as usize);
        let matrix = Matrix::new(buf, n, k, layout);
        let mut values = vec![0.0; n * k];
        parts.dev.read_rows(matrix, 0, &mut values);
        let (mut words, mut scales) = (vec![0; n * k / CODES_OF_WORD], vec![0.0; n * k / NF4_BLOCK]);
        encode(&values, &mut words, &mut scales);
        decode(&words, &scales, &mut values);
        parts.dev.write_rows(matrix, 0, &values);
    }
}

fn gradients(h: &mut Harness, sequences: &[Sequence<'_>]) -> Vec<f32> {
    let (spec, dtype, lora) = (h.spec, h.setup.dtype, lora_of(&h.spec));
    let table = h.setup.adapters(&spec).expect("a harness with adapters");
    let mut parts = h.parts();
    let grads = Adapters::bind(&spec, &table, dtype, lora, SCALE, parts.resident.buf("lora.grads"));
    parts.dev.zero(grads.all);
    parts
        .each_pass(sequences, |parts, pass, heads, _| {
            head(parts.dev, parts.decoder, pass, 1.0);
            let (logprobs, entropy) = (vec![-1.0; heads.len()], vec![0.0; heads.len()]);
            let of = Derivatives::Vocabulary {
                inv_temperature: 1.0,
                logprobs: &logprobs,
                entropy: &entropy,
                divergence: &[],
            };
            backward(parts.dev, parts.decoder, &grads, true, pass, of);
        })
        .unwrap();
    read(parts.dev, grads.all)
}

fn sequences() -> Vec<Sequence<'static>> {
    let ids: Vec<Vec<u32>> = (0..3).map(|i| (0..20 + 9 * i).map(|t| (t * 7 + i) % 15).collect()).collect();
    let sequence =
        |(group, ids): (usize, &'static [u32])| Sequence { group, prompt: &ids[..1], response: &ids[1..] };
    let ids = ids.into_iter().map(|ids| &*ids.leak());
    ids.enumerate().map(sequence).collect()
}

#[test]
fn products_in_codes_are_those_of_their_numbers() {
    let all = sequences();
    for machine in Machine::all() {
        for dtype in [DType::F32, DType::Bf16] {
            let mut whole = harness(machine, dtype, Recompute::None, None);
            let before = whole.logprobs(&all, 1.0).unwrap().0;
            round_products(&mut whole);
            let want = whole.logprobs(&all, 1.0).unwrap().0;
            assert!(!same_bits(&before[2], &want[2]), "rounding to codes moves log-probs");
            let want_grads = gradients(&mut whole, &all);
            assert!(want_grads.iter().any(|g| *g != 0.0));
            for recompute in [Recompute::None, Recompute::Cheap, Recompute::Offload] {
                let mut coded = harness(machine, dtype, recompute, Some(Quantization::Nf4));
                let what = format!("{machine:?} {dtype:?} {recompute:?}");
                let got = coded.logprobs(&all, 1.0).unwrap().0;
                assert!(got.iter().zip(&want).all(|(a, b)| same_bits(a, b)), "log-probs, {what}");
                assert!(same_bits(&gradients(&mut coded, &all), &want_grads), "gradients, {what}");
            }
        }
    }
}

/// Every family whose products are others than a Llama's, with adapters of all that can have them; in f32, as codes are
/// of numbers before they are rounded to bf16.
#[test]
fn products_of_every_family_in_codes_are_those_of_their_numbers() {
    let (all, machine, dtype) = (sequences(), Machine::detect(), DType::F32);
    for preset in ["qwen3.5-moe", "qwen3-next", "ministral-3", "glm-4.5", "deepseek-v2", "gemma-4"] {
        let source = format!("random:nano-{preset}");
        let mut whole = harness_of(&source, machine, dtype, Recompute::None, None);
        round_products(&mut whole);
        let want = whole.logprobs(&all, 1.0).unwrap().0;
        let want_grads = gradients(&mut whole, &all);
        assert!(want_grads.iter().any(|g| *g != 0.0));
        let mut coded = harness_of(&source, machine, dtype, Recompute::Layer, Some(Quantization::Nf4));
        let got = coded.logprobs(&all, 1.0).unwrap().0;
        assert!(got.iter().zip(&want).all(|(a, b)| same_bits(a, b)), "log-probs of {preset}");
        assert!(same_bits(&gradients(&mut coded, &all), &want_grads), "gradients of {preset}");
    }
}

/// Multiplies the blocks of a file in every encoding, llama's order of rows in it.
#[test]
fn products_in_the_blocks_of_a_file_are_those_of_the_file_in_full() {
    check_file(MIXED, Quantization::Gguf);
}

#[test]
fn experts_in_the_blocks_of_a_file_are_those_of_the_file_in_full() {
    check_file("gpt_oss_mxfp4", Quantization::Mxfp4);
}

fn check_file(source: &str, how: Quantization) {
    let all = sequences();
    for machine in Machine::all() {
        for dtype in [DType::F32, DType::Bf16] {
            let mut whole = harness_of(source, machine, dtype, Recompute::None, None);
            let want = whole.logprobs(&all, 1.0).unwrap().0;
            let want_grads = gradients(&mut whole, &all);
            assert!(want_grads.iter().any(|g| *g != 0.0));
            for recompute in [Recompute::None, Recompute::Cheap, Recompute::Layer] {
                let mut coded = harness_of(source, machine, dtype, recompute, Some(how));
                let what = format!("{machine:?} {dtype:?} {recompute:?}");
                let got = coded.logprobs(&all, 1.0).unwrap().0;
                assert!(got.iter().zip(&want).all(|(a, b)| same_bits(a, b)), "log-probs, {what}");
                assert!(same_bits(&gradients(&mut coded, &all), &want_grads), "gradients, {what}");
            }
        }
    }
}
