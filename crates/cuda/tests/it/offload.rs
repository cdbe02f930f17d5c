//! Offloaded regions on a card: page-locked memory, and copies that run during operations without being seen.

use crate::both::{bits, normal};
use plimsoll_base::{Bytes, DType, PhaseSet};
use plimsoll_cuda::{CudaDevice, probe};
use plimsoll_device::{AdamW, AdamWBufs, Backend, Device, OFFLOAD_SLOTS, OpenOptions};
use plimsoll_memory::{Arena, ArenaMap, Buf, Layout, Pool, Resident};
use std::time::Instant;

/// Elements of a slot, and slots' worth of parameters; the last is not full.
const CHUNK: usize = 4 << 20;
const N: usize = 9 * CHUNK - 1_001;

const HOW: AdamW = AdamW {
    lr: 1e-2,
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-8,
    weight_decay: 0.1,
    step: 1,
    grad_scale: 0.37,
    seed: 42,
    first_element: 0,
};

/// Weights, gradient, states in the arena; states in host memory; slots.
fn layout() -> Layout {
    let mut layout = Layout::new();
    for name in ["w", "g", "m", "v"] {
        layout.arena(name, "test", Pool::Device, PhaseSet::RESIDENT, &[N as u64], DType::F32).unwrap();
    }
    for name in ["m_slots", "v_slots"] {
        let shape = [OFFLOAD_SLOTS as u64, CHUNK as u64];
        layout.arena(name, "test", Pool::Device, PhaseSet::RESIDENT, &shape, DType::F32).unwrap();
    }
    for name in ["m_host", "v_host"] {
        layout.offloaded(name, "test", &[N as u64], DType::F32).unwrap();
    }
    layout
}

fn read(dev: &CudaDevice, buf: Buf<'_>) -> Vec<u32> {
    let mut out = vec![0.0; buf.len()];
    dev.read_f32(buf, 0, &mut out);
    dev.check().unwrap();
    bits(&out)
}

/// Returns what the optimizer does with offloaded states.
fn through_slots(dev: &CudaDevice, r: Resident<'_>, how: AdamW) {
    let len = |start: usize| CHUNK.min(N - start);
    let slot =
        |name: &str, start: usize| r.buf(name).slice(start / CHUNK % OFFLOAD_SLOTS * CHUNK, len(start));
    let pairs = |start: usize| {
        ["m", "v"].map(|name| {
            let host = r.buf(&format!("{name}_host")).slice(start, len(start));
            (host, slot(&format!("{name}_slots"), start))
        })
    };
    let bring = |start: usize| dev.offload_in(start / CHUNK % OFFLOAD_SLOTS, &mut pairs(start).into_iter());
    dev.offload_begin();
    [0, CHUNK].into_iter().for_each(bring);
    for start in (0..N).step_by(CHUNK) {
        let index = start / CHUNK % OFFLOAD_SLOTS;
        dev.offload_wait(index);
        let bufs = AdamWBufs {
            weights: r.buf("w").slice(start, len(start)),
            grad: r.buf("g").slice(start, len(start)),
            m: slot("m_slots", start),
            v: slot("v_slots", start),
            scales: None,
            master: None,
        };
        dev.adamw(AdamW { first_element: start as u64, ..how }, bufs);
        dev.offload_out(index, &mut pairs(start).into_iter().map(|(host, slot)| (slot, host)));
        if start + 2 * CHUNK < N {
            bring(start + 2 * CHUNK);
        }
    }
}

#[test]
fn states_that_pass_through_slots_are_updated_as_resident_ones() {
    if let Err(error) = probe() {
        return eprintln!("skipped: {error}");
    }
    let mut arena = Arena::new(ArenaMap::new(&layout(), 0));
    let mut dev = CudaDevice::new(Bytes(arena.map().used_bytes()), OpenOptions::default()).unwrap();
    dev.take_offloaded(Bytes(arena.map().offloaded_bytes())).unwrap();
    let r = arena.split().0;
    let mut results = Vec::new();
    for [m, v] in [["m", "v"], ["m_host", "v_host"]] {
        dev.write_f32(r.buf("w"), 0, &normal(1, N, 1.0, DType::F32));
        // Reads and writes of the host reach offloaded buffers as they reach others.
        dev.write_f32(r.buf(m), 0, &normal(2, N, 0.1, DType::F32));
        dev.zero(r.buf(v));
        for step in 1..=4 {
            dev.write_f32(r.buf("g"), 0, &normal(10 + step, N, 0.1, DType::F32));
            dev.sync();
            let started = Instant::now();
            let how = AdamW { step, ..HOW };
            match m {
                "m_host" => through_slots(&dev, r, how),
                _ => dev.adamw(
                    how,
                    AdamWBufs {
                        weights: r.buf("w"),
                        grad: r.buf("g"),
                        m: r.buf(m),
                        v: r.buf(v),
                        scales: None,
                        master: None,
                    },
                ),
            }
            dev.sync();
            let seconds = started.elapsed().as_secs_f64();
            println!(
                "{m} step {step}: {:.3} ms, {:.1} GB/s of states each way",
                seconds * 1e3,
                8e-9 * N as f64 / seconds
            );
        }
        results.push([r.buf("w"), r.buf(m), r.buf(v)].map(|buf| read(&dev, buf)));
    }
    assert!(results[0] == results[1], "bits depend on where states are");
}

#[test]
fn memory_that_the_host_does_not_have_is_a_named_error() {
    if let Err(error) = probe() {
        return eprintln!("skipped: {error}");
    }
    let mut dev = CudaDevice::new(Bytes(1 << 20), OpenOptions::default()).unwrap();
    let error = dev.take_offloaded(Bytes(1 << 50)).unwrap_err();
    assert_eq!(error.slug, "host-allocation-failed");
    assert!(error.hints.iter().any(|hint| hint.contains("memory.offload")), "{error}");
}
