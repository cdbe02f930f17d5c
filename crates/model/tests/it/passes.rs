//! Passes of tiny models: what moves no bit, what is left where, and in which order.

use crate::common::{Fixture, Machine, fixture, golden_dir, whole_sequences};
use plimsoll_arch::{Cache, Caches};
use plimsoll_base::{Bytes, DType, Phase};
use plimsoll_device::{Device, KV_BLOCK, Run};
use plimsoll_memory::{Buf, InPhase};
use plimsoll_model::{
    Activations, Decoder, Derivatives, Layers, Mode, ParamTable, Params, Pass, PassIndex, PassLimits,
    Recompute, Source, Stage, Streamed, StreamedWeights, backward, backward_part, head, layers, load,
    rehearsal_sizes, rope,
};

const ROWS: usize = 40;
const LIMITS: PassLimits = PassLimits {
    rows: ROWS,
    head_rows: ROWS,
    listed: 0,
    taught: 0,
    own: plimsoll_model::OwnLogits::NONE,
    segments: 3,
    table_entries: 8,
    copies: 0,
    caches: Caches::paged(8).and(Cache::State, 12),
};
const UPDATE: Mode = Mode::Update(Recompute::Cheap);
/// One of each mixer and feed-forward part.
const MODELS: [&str; 4] = ["llama", "gemma2", "qwen3_5", "qwen3_moe_mixed"];

/// The decoder, its gradients, all its weights in the host's memory, and the device.
struct Parts<'x, 'a> {
    dev: &'x dyn Device,
    decoder: Decoder<'a>,
    grads: Params<'a>,
    elsewhere: Buf<'a>,
}

fn open(name: &str, dtype: DType) -> Fixture {
    let source = golden_dir(name);
    fixture(source.to_str().unwrap(), dtype, Recompute::Cheap, 2, Machine::detect(), LIMITS)
}

/// Calls `run` with the parts of a model and the regions of a phase.
fn with_parts(
    name: &str,
    dtype: DType,
    phase: Phase,
    run: impl FnOnce(&ParamTable, &Parts<'_, '_>, &InPhase<'_>),
) {
    let mut f = open(name, dtype);
    let (resident, mut overlay) = f.arena.split();
    let dev = f.dev.as_dyn();
    let params = Params::bind(&f.spec, &f.table, f.dtype, resident.buf("actor.weights"));
    let grads = Params::bind(&f.spec, &f.table, f.dtype, resident.buf("actor.grads"));
    load(dev, &f.model, &f.table, &params, 0, Bytes::mib(1)).unwrap();
    let table = resident.buf("rope.table");
    rope::fill(dev, &f.spec, table);
    let elsewhere = resident.buf("offload.actor.weights");
    dev.offload_begin();
    dev.offload_out(0, &mut std::iter::once((params.all, elsewhere)));
    dev.sync();
    let decoder = Decoder { spec: f.spec, dtype: f.dtype, params, rope: table };
    let phase = overlay.enter(phase);
    let parts = Parts { dev, decoder, grads, elsewhere };
    run(&f.table, &parts, &phase);
}

fn ids(len: usize, from: u32) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + from) % 90).collect()
}

fn read(dev: &dyn Device, buf: Buf<'_>) -> Vec<u32> {
    let mut out = vec![0.0; buf.len()];
    dev.read_f32(buf, 0, &mut out);
    out.into_iter().map(f32::to_bits).collect()
}

/// Bits of the log-probabilities of a forward pass.
fn forward(dev: &dyn Device, from: &dyn Layers<'_>, pass: &Pass<'_>) -> Vec<u32> {
    layers(dev, from, pass);
    head(dev, from.decoder(), pass, 1.0);
    read(dev, pass.head_out().logprobs)
}

/// Derivatives that differ from row to row.
fn derivatives(rows: usize) -> [Vec<f32>; 2] {
    [(0..rows).map(|i| -0.01 * (i % 7) as f32).collect(), (0..rows).map(|i| 0.002 * (i % 3) as f32).collect()]
}

fn vocabulary(of: &[Vec<f32>; 2]) -> Derivatives<'_> {
    Derivatives::Vocabulary { inv_temperature: 1.0, logprobs: &of[0], entropy: &of[1], divergence: &[] }
}

#[test]
fn a_decoder_that_streams_computes_the_bits_of_a_resident_one() {
    for (name, dtype) in MODELS.into_iter().flat_map(|name| [(name, DType::F32), (name, DType::Bf16)]) {
        with_parts(name, dtype, Phase::Update, |table, parts, phase| {
            let Parts { dev, decoder, grads, elsewhere } = parts;
            let source: Source<'_> = vec![(Run { start: 0, elements: table.elements }, *elsewhere)];
            let acts = Activations::bind(phase, UPDATE, LIMITS);
            let pass = Pass::upload(*dev, acts, &whole_sequences(&[&ids(15, 3), &ids(25, 40)]));
            let d = derivatives(ROWS);
            let run = |from: &dyn Layers<'_>| {
                let logprobs = forward(*dev, from, &pass);
                backward(*dev, from, grads, false, &pass, vocabulary(&d));
                (logprobs, read(*dev, grads.all))
            };
            let resident = run(decoder);
            // What passes through must be all that it computes with.
            let (spec, rope) = (decoder.spec, decoder.rope);
            let of = StreamedWeights { spec, table, source: &source, rope, adapters: None };
            let streamed = Streamed::begin(*dev, of, phase, "actor");
            dev.zero(decoder.params.all);
            let through = run(&streamed);
            assert!(resident == through, "{name} {dtype:?}");
        });
    }
}

#[test]
fn a_score_has_the_bits_of_an_update() {
    for name in MODELS {
        let index = whole_sequences(&[&ids(15, 3), &ids(25, 40)]);
        let in_mode = |mode: Mode| {
            let mut bits = Vec::new();
            with_parts(name, DType::Bf16, mode.phase(), |_, parts, phase| {
                let pass = Pass::upload(parts.dev, Activations::bind(phase, mode, LIMITS), &index);
                bits = forward(parts.dev, &parts.decoder, &pass);
            });
            bits
        };
        assert!(in_mode(Mode::Score) == in_mode(UPDATE), "{name}");
    }
}

#[test]
fn a_sequence_has_its_bits_alone_and_next_to_others() {
    for name in MODELS {
        with_parts(name, DType::Bf16, Phase::Update, |_, parts, phase| {
            let acts = Activations::bind(phase, UPDATE, LIMITS);
            let (one, other) = (ids(17, 3), ids(23, 40));
            let of = |sequences: &[&[u32]]| {
                forward(
                    parts.dev,
                    &parts.decoder,
                    &Pass::upload(parts.dev, acts, &whole_sequences(sequences)),
                )
            };
            let alone = of(&[&one]);
            assert!(of(&[&one, &other])[..17] == alone, "{name}: first");
            assert!(of(&[&other, &one])[23..] == alone, "{name}: last");
        });
    }
}

#[test]
fn a_temperature_without_end_makes_tokens_equally_likely() {
    with_parts("llama", DType::F32, Phase::Update, |_, parts, phase| {
        let Parts { dev, decoder, .. } = parts;
        let acts = Activations::bind(phase, UPDATE, LIMITS);
        let pass = Pass::upload(*dev, acts, &whole_sequences(&[&ids(9, 3)]));
        layers(*dev, decoder, &pass);
        head(*dev, decoder, &pass, 0.0);
        let even = (decoder.spec.vocab as f32).ln();
        for (buf, value) in [(pass.head_out().logprobs, -even), (pass.head_out().entropy, even)] {
            let bits = read(*dev, buf);
            assert!(bits.iter().all(|&bits| (f32::from_bits(bits) - value).abs() < 1e-5), "{value}");
        }
    });
}

#[test]
fn stages_follow_each_other_from_the_head_to_the_first_layer() {
    for name in MODELS {
        with_parts(name, DType::F32, Phase::Update, |_, parts, phase| {
            let Parts { dev, decoder, grads, .. } = parts;
            let acts = Activations::bind(phase, UPDATE, LIMITS);
            let pass = Pass::upload(*dev, acts, &whole_sequences(&[&ids(15, 3)]));
            forward(*dev, decoder, &pass);
            let (mut stages, d) = (Vec::new(), derivatives(15));
            let after = &mut |stage| stages.push(stage);
            let rows = backward_part(*dev, decoder, grads, false, &pass, vocabulary(&d), after);
            assert_eq!(stages, Stage::all(decoder.spec.layers.len()).collect::<Vec<_>>(), "{name}");
            assert_eq!(stages.len(), 1 + decoder.spec.layers.len() as usize, "{name}");
            assert_eq!((rows.ids.len(), rows.d_input.len()), (15, 15 * decoder.spec.hidden as usize));
            assert_eq!(rows.d_input, acts.row_gradients(15).d_input);
        });
    }
}

#[test]
fn the_gradient_of_rows_that_nobody_reads_is_zero() {
    for name in MODELS {
        with_parts(name, DType::F32, Phase::Update, |_, parts, phase| {
            let Parts { dev, decoder, grads, .. } = parts;
            let mut index = whole_sequences(&[&ids(15, 3)]);
            (index.head_rows, index.targets) = (Vec::new(), Vec::new());
            let pass = Pass::upload(*dev, Activations::bind(phase, UPDATE, LIMITS), &index);
            layers(*dev, decoder, &pass);
            head(*dev, decoder, &pass, 1.0);
            let d = [Vec::new(), Vec::new()];
            backward(*dev, decoder, grads, false, &pass, vocabulary(&d));
            assert_eq!(dev.sum_squares(grads.all), 0.0, "{name}");
        });
    }
}

#[test]
fn a_pass_of_half_the_rows_leaves_the_rest_of_the_gradient_to_the_other() {
    for name in ["llama", "qwen3_5"] {
        with_parts(name, DType::F32, Phase::Update, |_, parts, phase| {
            let Parts { dev, decoder, grads, .. } = parts;
            let acts = Activations::bind(phase, UPDATE, LIMITS);
            let (one, other, d) = (ids(15, 3), ids(25, 40), derivatives(ROWS));
            let pass = |add, sequences: &[&[u32]], from: usize| {
                let pass = Pass::upload(*dev, acts, &whole_sequences(sequences));
                forward(*dev, decoder, &pass);
                let rows = sequences.iter().map(|ids| ids.len()).sum::<usize>();
                let d = d.clone().map(|of| of[from..from + rows].to_vec());
                backward(*dev, decoder, grads, add, &pass, vocabulary(&d));
            };
            pass(false, &[&one, &other], 0);
            let whole = read(*dev, grads.all);
            pass(false, &[&one], 0);
            pass(true, &[&other], 15);
            let halves = read(*dev, grads.all);
            // Sums over rows are formed in another order: f32 of numbers up to 0.1.
            let far = |(a, b): (&u32, &u32)| (f32::from_bits(*a) - f32::from_bits(*b)).abs() > 1e-6;
            assert!(!whole.iter().zip(&halves).any(far), "{name}");
        });
    }
}

#[test]
fn a_rehearsal_has_the_rows_it_is_asked_for_within_the_limits() {
    for (window_blocks, places) in [(0, 0), (4, 0), (0, 12)] {
        let mut limits = PassLimits { caches: Caches::paged(8), ..LIMITS };
        if window_blocks > 0 {
            limits.caches = limits.caches.and(Cache::Ring { keys: 16 }, window_blocks);
        }
        if places > 0 {
            limits.caches = limits.caches.and(Cache::State, places);
        }
        let mut index = PassIndex::with_capacity(&limits);
        let room = index.ids.capacity();
        for rows in rehearsal_sizes(&limits, 32) {
            index.rehearse(&limits, rows, 32, rows.min(9));
            let [whole, ring, states] = &index.caches;
            assert_eq!((index.ids.len(), index.head_rows.len()), (rows, rows.min(9)));
            assert!(index.num_segments() <= limits.segments && whole.tables.len() <= limits.table_entries);
            assert!(whole.slots.iter().all(|slot| *slot / KV_BLOCK as u32 == 7));
            assert_eq!(ring.slots.len(), if window_blocks > 0 { rows } else { 0 });
            assert_eq!(states.slots.len(), if places > 0 { 2 * index.num_segments() } else { 0 });
        }
        index.clear();
        assert_eq!((index.ids.len(), index.ids.capacity()), (0, room), "its room is kept");
    }
}

#[test]
fn sizes_of_rehearsals_descend_from_the_most_rows() {
    for (rows, segments, length) in [(40, 3, 64), (4096, 2, 512), (16, 1, 16), (1000, 1000, 1)] {
        let limits = PassLimits { rows, segments, ..LIMITS };
        let sizes: Vec<usize> = rehearsal_sizes(&limits, length).collect();
        assert_eq!(sizes[0], rows.min(segments * length));
        assert!(sizes.windows(2).all(|pair| pair[1] < pair[0]), "{sizes:?}");
        assert!(*sizes.last().expect("one at least") <= 16, "{sizes:?}");
    }
}
