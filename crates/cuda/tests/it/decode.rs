//! Moving a decode pass on by one position.

use crate::rig::{on_card, on_card_with, twin};
use plimsoll_base::DType;
use plimsoll_device::{Backend, Batch, Device, KEY_WORDS, KV_BLOCK, NO_PARENT, OpenOptions, Slots};
use plimsoll_memory::Buf;

const ROWS: usize = 37;
const ENTRIES: usize = 4;

fn buffers() -> Vec<(&'static str, DType, usize)> {
    [
        ("ids", 1),
        ("tokens", 1),
        ("keys", KEY_WORDS),
        ("positions", 1),
        ("slots", 1),
        ("segments", 5),
        ("tables", ENTRIES),
        ("window_slots", 1),
        ("window_tables", ENTRIES),
    ]
    .map(|(name, each)| (name, DType::U32, ROWS * each))
    .to_vec()
}

/// Positions that stay in a block, and positions that cross into the next.
fn fill(set: &dyn Fn(&str, &[u32])) {
    let rows = 0..ROWS as u32;
    let position = |i: u32| 10 + i;
    set("tokens", &rows.clone().map(|i| 100 + i).collect::<Vec<_>>());
    set("ids", &[7; ROWS]);
    set("positions", &rows.clone().map(position).collect::<Vec<_>>());
    set("tables", &(0..(ROWS * ENTRIES) as u32).map(|e| 1000 - e).collect::<Vec<_>>());
    set("window_tables", &(0..(ROWS * ENTRIES) as u32).map(|e| 3 + e % 7).collect::<Vec<_>>());
    set("window_slots", &[9; ROWS]);
    let slot = |i: u32| (1000 - i * ENTRIES as u32) * KV_BLOCK as u32 + position(i);
    set("slots", &rows.clone().map(slot).collect::<Vec<_>>());
    let segment = |i: u32| [i, 1, position(i), i * ENTRIES as u32, NO_PARENT];
    set("segments", &rows.clone().flat_map(segment).collect::<Vec<_>>());
    set("keys", &rows.flat_map(|i| [i, 5, position(i) - 3, 7, 0]).collect::<Vec<_>>());
}

fn batch(buf: &dyn Fn(&str) -> Buf<'static>) -> Batch<'static> {
    Batch {
        positions: buf("positions"),
        slots: buf("slots"),
        segments: buf("segments"),
        tables: buf("tables"),
        keys_max: ENTRIES * KV_BLOCK,
    }
}

fn window(buf: &dyn Fn(&str) -> Buf<'static>) -> Option<Slots<'static>> {
    Some(Slots { slots: buf("window_slots"), tables: buf("window_tables") })
}

#[test]
fn advance_gives_what_the_cpu_gives() {
    let Some(gpu) = on_card(&buffers()) else { return };
    let cpu = twin(&buffers());
    fill(&|name, x| gpu.set_u32(name, x));
    fill(&|name, x| cpu.set_u32(name, x));
    for step in 0..9 {
        // With one cache, and with two.
        let with = |of: Option<Slots<'static>>| of.filter(|_| step >= 4);
        let b = |name: &str| gpu.buf(name);
        gpu.dev.advance(batch(&b), with(window(&b)), b("ids"), b("tokens"), b("keys"));
        let b = |name: &str| cpu.buf(name);
        cpu.dev.advance(batch(&b), with(window(&b)), b("ids"), b("tokens"), b("keys"));
        let expect = (0..ROWS as u32).map(|i| {
            let position = 11 + i + step;
            let entry = i * ENTRIES as u32 + position / KV_BLOCK as u32;
            if step < 4 { 9 } else { (3 + entry % 7) * KV_BLOCK as u32 + position % KV_BLOCK as u32 }
        });
        assert_eq!(cpu.get_u32("window_slots"), expect.collect::<Vec<_>>(), "step {step}");
    }
    for name in ["ids", "positions", "slots", "window_slots", "segments", "keys"] {
        assert_eq!(gpu.get_u32(name), cpu.get_u32(name), "{name}");
    }
}

#[test]
fn a_position_beyond_the_table_is_named_by_a_checked_build() {
    let Some(gpu) = on_card_with(&buffers(), OpenOptions { checked: true, profile: false }) else {
        return;
    };
    fill(&|name, x| gpu.set_u32(name, x));
    let mut segments = gpu.get_u32("segments");
    segments[4 * 5 + 3] = 100_000;
    gpu.set_u32("segments", &segments);
    let b = |name: &str| gpu.buf(name);
    gpu.dev.advance(batch(&b), None, b("ids"), b("tokens"), b("keys"));
    let error = gpu.dev.check().unwrap_err();
    assert_eq!(error.slug, "cuda-bad-index");
    assert!(error.message.contains("decode/advance") && error.message.contains("segment 100000"), "{error}");
    gpu.dev.check().unwrap();
}
