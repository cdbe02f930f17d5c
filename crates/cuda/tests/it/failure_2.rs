//! Founding failure 2: in OpenRLHF with vLLM an illegal memory access surfaced in the sampler, far from its cause. Here
//! what would lead to one is refused before the launch or named where it happens. That a slice of host memory is no
//! buffer is shown by the documentation of `Device`, whose second example must not compile.

use crate::rig::{Card, on_card, on_card_with};
use plimsoll_base::{Bytes, DType, Phase, PhaseSet};
use plimsoll_cuda::layouts::head_tile_elements;
use plimsoll_cuda::{CudaDevice, probe};
use plimsoll_device::{
    ALL_KEYS, Backend, Batch, Device, HeadOut, KEY_WORDS, KV_BLOCK, Kv, Logits, NO_PARENT, Norm, OpenOptions,
    Sample, Sampling, Scores,
};
use plimsoll_memory::{Arena, ArenaMap, Layout, Pool};

const CHECKED: OpenOptions = OpenOptions { checked: true, profile: false };
const WIDTH: usize = 64;
const ROWS: usize = 4;

/// A card with a resident weight, one region of the rollout, and two of the update over the same bytes.
fn card(options: OpenOptions) -> Option<(CudaDevice, ArenaMap)> {
    if let Err(error) = probe() {
        eprintln!("skipped: {error}");
        return None;
    }
    let mut layout = Layout::new();
    let mut region = |name: &str, phases: PhaseSet, len: usize| {
        layout.arena(name, "test", Pool::Device, phases, &[len as u64], DType::F32).unwrap();
    };
    region("weight", PhaseSet::RESIDENT, WIDTH);
    region("device.scratch", PhaseSet::RESIDENT, 1 << 20);
    region("rollout.x", PhaseSet::ROLLOUT, ROWS * WIDTH);
    region("update.x", PhaseSet::UPDATE, ROWS * WIDTH);
    region("update.y", PhaseSet::UPDATE, ROWS * WIDTH);
    let map = ArenaMap::new(&layout, 0);
    let mut dev = CudaDevice::new(Bytes(map.used_bytes()), options).unwrap();
    let mut arena = Arena::new(map.clone());
    dev.bind_scratch(arena.split().0.buf("device.scratch"));
    dev.name_regions(&map);
    dev.write_f32(arena.split().0.buf("weight"), 0, &[1.0; WIDTH]);
    Some((dev, map))
}

#[test]
fn failure_2_a_handle_of_a_freed_region_is_named() {
    let Some((dev, map)) = card(CHECKED) else { return };
    // The lifetimes of one arena do not let a handle outlive its phase; those of two do.
    let (mut arena, mut other) = (Arena::new(map.clone()), Arena::new(map));
    let (resident, mut overlay) = arena.split();
    let weight = resident.buf("weight");
    let (_, mut other) = other.split();
    dev.begin_phase(Phase::Rollout, overlay.bytes());
    let rollout = other.enter(Phase::Rollout);
    let stale = rollout.buf("rollout.x");
    dev.write_f32(stale, 0, &[2.0; ROWS * WIDTH]);
    dev.check().unwrap();

    dev.begin_phase(Phase::Update, overlay.bytes());
    let update = overlay.enter(Phase::Update);
    dev.rms_norm(stale, Norm::new(weight, 1e-6), update.buf("update.y"));
    let error = dev.check().unwrap_err();
    assert_eq!(error.slug, "cuda-freed-region");
    for part in ["cuda/src/rows.rs:", "rollout.x belongs to phase rollout", "those of phase update"] {
        assert!(error.message.contains(part), "{part}: {error}");
    }
    // Nothing was launched, and the device goes on.
    dev.write_f32(update.buf("update.x"), 0, &[2.0; ROWS * WIDTH]);
    dev.rms_norm(update.buf("update.x"), Norm::new(weight, 1e-6), update.buf("update.y"));
    dev.check().unwrap();
}

#[test]
fn failure_2_what_a_freed_region_held_is_named_where_it_is_read() {
    for options in [CHECKED, OpenOptions::default()] {
        let Some((dev, map)) = card(options) else { return };
        let mut arena = Arena::new(map);
        let (resident, mut overlay) = arena.split();
        let weight = resident.buf("weight");
        dev.begin_phase(Phase::Rollout, overlay.bytes());
        dev.write_f32(overlay.enter(Phase::Rollout).buf("rollout.x"), 0, &[2.0; ROWS * WIDTH]);
        dev.begin_phase(Phase::Update, overlay.bytes());
        let update = overlay.enter(Phase::Update);
        // The same bytes, as the next phase's region, not yet written.
        let (x, y) = (update.buf("update.x"), update.buf("update.y"));
        dev.rms_norm(x, Norm::new(weight, 1e-6), y);
        if options.checked {
            let error = dev.check().unwrap_err();
            assert_eq!(error.slug, "cuda-not-finite");
            assert!(error.message.contains("rms_norm") && error.message.contains("update.y"), "{error}");
        } else {
            dev.check().unwrap();
            let mut row = [0.0; WIDTH];
            dev.read_f32(y, 0, &mut row);
            assert!(row.iter().all(|&x| (x - 1.0).abs() < 1e-3), "the rollout's numbers were used: {row:?}");
        }
    }
}

#[test]
fn failure_2_a_bad_index_in_a_block_table_is_named() {
    // (dtype, head dim): the kernel of tensor cores and the plain one; a prompt's pass and a decode pass.
    for (dtype, d) in [(DType::Bf16, 64), (DType::F32, 16)] {
        for (first, rows) in [(0, 40), (39, 1)] {
            let blocks = 8;
            let buffers = [
                ("q", dtype, rows * d),
                ("out", dtype, rows * d),
                ("keys", dtype, blocks * KV_BLOCK * d),
                ("values", dtype, blocks * KV_BLOCK * d),
                ("positions", DType::U32, rows),
                ("slots", DType::U32, rows),
                ("segments", DType::U32, 5),
                ("tables", DType::U32, 3),
            ];
            let Some(gpu) = on_card_with(&buffers, CHECKED) else { return };
            for name in ["q", "keys", "values"] {
                gpu.set(name, &vec![0.5; gpu.buf(name).len()]);
            }
            gpu.set_u32("segments", &[0, rows as u32, first, 0, NO_PARENT]);
            let b = |name: &str| gpu.buf(name);
            let kv = Kv { keys: b("keys"), values: b("values"), kv_heads: 1, head_dim: d };
            let batch = Batch {
                positions: b("positions"),
                slots: b("slots"),
                segments: b("segments"),
                tables: b("tables"),
                keys_max: 40,
            };
            for (entry, good) in [(7, true), (8, false), (70_000, false), (u32::MAX, false)] {
                gpu.set_u32("tables", &[1, entry, 2]);
                gpu.dev.attention(b("q"), kv, batch, Scores::of(ALL_KEYS), b("out"), None);
                let Err(error) = gpu.dev.check() else {
                    assert!(good, "entry {entry} of {blocks} blocks went unnoticed");
                    continue;
                };
                assert_eq!((error.slug, good), ("cuda-bad-index", false), "{error}");
                let words = format!("cache block {entry}, the limit is {blocks}");
                assert!(
                    error.message.contains("kernel attention/") && error.message.contains(&words),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn failure_2_bad_sampling_parameters_are_refused_before_the_launch() {
    let (rows, vocab) = (2, 64);
    let buffers = [
        ("x", DType::F32, rows * WIDTH),
        ("w", DType::F32, vocab * WIDTH),
        ("keys", DType::U32, rows * KEY_WORDS),
        ("tile", DType::F32, head_tile_elements(rows, vocab, true) as usize),
        ("tokens", DType::U32, rows),
        ("logprobs", DType::F32, rows),
        ("lse", DType::F32, rows),
        ("entropy", DType::F32, rows),
    ];
    let Some(mut gpu) = on_card(&buffers) else { return };
    gpu.set("x", &vec![0.5; rows * WIDTH]);
    gpu.set("w", &vec![0.5; vocab * WIDTH]);
    gpu.set_u32("keys", &vec![1; rows * KEY_WORDS]);
    let good = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1 };
    let draw = |gpu: &Card, how: Sampling| {
        let b = |name: &str| gpu.buf(name);
        let w = gpu.rows("w", vocab, WIDTH);
        let out = HeadOut { logprobs: b("logprobs"), lse: b("lse"), entropy: b("entropy") };
        let (x, keys, tile, tokens) = (b("x"), b("keys"), b("tile"), b("tokens"));
        gpu.dev.sample(Sample { x, w, keys, how, logits: Logits::times(1.0), tile, tokens, out });
    };
    for how in [
        Sampling { temperature: -1.0, ..good },
        Sampling { temperature: f32::NAN, ..good },
        Sampling { top_p: 0.0, ..good },
        Sampling { top_p: 1.5, ..good },
        Sampling { min_p: -0.1, ..good },
    ] {
        let drawn = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| draw(&gpu, how)));
        assert!(drawn.is_err(), "{how:?}");
    }
    gpu.dev.sync();
    gpu.dev.check().unwrap();
    assert_eq!(gpu.share_written("tokens"), 0.0, "nothing was launched");
    draw(&gpu, good);
    assert!(gpu.get_u32("tokens").iter().all(|&token| token < vocab as u32));
}
