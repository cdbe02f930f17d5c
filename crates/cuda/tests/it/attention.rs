//! Attention on a card: lengths of its chunks and pieces, the CPU, checked builds, and sizes of its scratch.

use crate::both::attention::checks::{Cuts, allowed, check_cuts, check_gradients, check_rows, to_cut};
use crate::both::attention::{
    FAMILY, Pass, Piece, SHAPES, SUNK, Sequence, Spec, latent, sequences, shape, sunk, windowed,
};
use crate::both::{check_close, close, f64s};
use crate::rig::{on_card, on_card_with, run_on_card, twin};
use plimsoll_base::DType::{Bf16, F32};
use plimsoll_cuda::{CudaDevice, attention_backward_scratch_bytes, attention_scratch_bytes};
use plimsoll_device::{Backend, Device, OpenOptions};

#[test]
fn rows_are_close_to_the_f64_reference() {
    let positions = || (0..1100).step_by(53).chain([511, 512, 1023, 1024, 1099]);
    let all = || SHAPES.into_iter().chain(SUNK);
    run_on_card(|open| all().for_each(|s| check_rows(open, s, 1100, 0..1100, positions())));
}

#[test]
fn bits_of_a_row_do_not_depend_on_calls_segments_chunks_or_unused_slots() {
    let prefills = &[1, 15, 16, 40, 63, 64, 100, 500, 511, 512, 513, 1023, 1024, 1099];
    let edges = [0, 1, 15, 16, 31, 63, 64, 511, 512, 513, 1022, 1023, 1024, 1025];
    let decodes: Vec<usize> = (500..530).step_by(3).chain(edges).collect();
    let bounds = |p: usize| vec![p + 1, (p + 1).next_multiple_of(512), 4096];
    let cuts = Cuts { prefills, decodes: &decodes, bounds };
    let all = || SHAPES.into_iter().chain(SUNK);
    run_on_card(|open| all().for_each(|s| drop(check_cuts(open, s, &to_cut(s, 1100), &cuts))));
}

/// A root alone; a root with three children, one of which leaves its prefix early; a long root, which is cut into
/// pieces; and one whose children are, with a segment of another group between them.
const FAMILIES: [Spec; 12] = [
    (None, 0, 21),
    (None, 0, 40),
    (Some(1), 40, 25),
    (Some(1), 33, 3),
    (Some(1), 40, 1),
    (None, 0, 600),
    (None, 0, 70),
    (Some(6), 70, 300),
    (Some(1), 16, 30),
    (Some(6), 65, 150),
    (Some(6), 3, 10),
    (Some(6), 70, 200),
];

#[test]
fn gradients_of_long_groups_are_close_to_the_f64_reference_and_the_same_bits_each_time() {
    let shapes = [
        shape(9, 3, 64, Bf16),
        shape(6, 1, 128, Bf16),
        shape(7, 1, 16, Bf16),
        shape(4, 2, 48, F32),
        windowed(1, shape(9, 3, 64, Bf16)),
        windowed(40, shape(6, 1, 128, Bf16)),
        windowed(130, shape(2, 1, 256, Bf16)),
        windowed(37, shape(9, 3, 64, F32)),
        shape(8, 2, 256, Bf16),
        latent(16, 64, 576, Bf16),
        latent(2, 64, 576, F32),
        sunk(windowed(128, shape(16, 2, 64, Bf16))),
        sunk(shape(4, 2, 48, F32)),
    ];
    run_on_card(|open| shapes.iter().for_each(|&s| check_gradients(open, s, &FAMILIES)));
}

#[test]
fn the_cpu_agrees() {
    for s in [
        shape(9, 3, 64, Bf16),
        shape(8, 1, 128, Bf16),
        shape(9, 3, 64, F32),
        windowed(40, shape(6, 1, 128, Bf16)),
        windowed(130, shape(2, 1, 256, Bf16)),
        shape(8, 2, 256, Bf16),
        latent(16, 64, 576, Bf16),
        latent(2, 64, 576, F32),
        sunk(shape(9, 3, 64, Bf16)),
        sunk(shape(9, 3, 64, F32)),
    ] {
        let pass = Pass::whole(s, &sequences(s, &FAMILY));
        let Some(mut gpu) = on_card(&pass.buffers()) else { return };
        let got = pass.backward(&mut gpu, &pass.dout());
        let want = pass.backward(&mut twin(&pass.buffers()), &pass.dout()).map(|x| f64s(&x));
        let scale: Vec<f64> = want[0].iter().map(|&x| allowed::<CudaDevice>(s.e, x)).collect();
        let is_used = |i: usize| i % s.d >= s.unused();
        let of_used =
            |x: &[f64]| x.iter().enumerate().filter(|(i, _)| is_used(*i)).map(|(_, &x)| x).collect();
        let [mine, want_out, scale]: [Vec<f64>; 3] = [&f64s(&got[0]), &want[0], &scale].map(|x| of_used(x));
        let mine: Vec<f32> = mine.into_iter().map(|x| x as f32).collect();
        check_close(&mine, &want_out, &scale, 2.0, &format!("{s:?} out"));
        let gradients = if s.e == Bf16 { 4e-2 } else { 1e-4 };
        close(&format!("{s:?} dq"), &got[1], &want[1], gradients);
        close(&format!("{s:?} dkv"), &got[2], &want[2], gradients);
    }
}

/// Prompts with groups of responses, of more and of fewer rows than a block has, some of which leave the prompt early.
fn groups(prompt: usize, responses: usize) -> Vec<Spec> {
    let mut specs = Vec::new();
    let mut sizes = [8, 3, 33, 1, 16].into_iter().cycle();
    let (mut left, mut own) = (responses, 0);
    while left > 0 {
        let (root, size) = (specs.len(), left.min(sizes.next().expect("endless")));
        specs.push((None, 0, prompt));
        for _ in 0..size {
            own += 1;
            let prefix = if own % 11 == 0 { prompt - 300 } else { prompt };
            specs.push((Some(root), prefix, 1 + own % 40));
        }
        left -= size;
    }
    specs
}

#[test]
fn rows_that_share_keys_have_the_bits_of_rows_with_copies_of_their_own() {
    let two = shape(2, 1, 64, Bf16);
    for (s, prompt, responses) in [
        (two, 1040, 264),
        (shape(4, 2, 128, Bf16), 560, 136),
        (windowed(530, two), 1040, 264),
        (sunk(two), 1040, 264),
    ] {
        let shared = sequences(s, &groups(prompt, responses));
        let mut next = 1;
        let alone: Vec<_> = shared
            .iter()
            .map(|x| {
                let table: Vec<u32> = (next..).take(x.table.len()).collect();
                next += table.len() as u32;
                Sequence { parent: None, prefix: 0, table, ..x.clone() }
            })
            .collect();
        let rows: Vec<Piece> = shared
            .iter()
            .enumerate()
            .filter(|(_, x)| x.parent.is_some())
            .map(|(i, x)| (i, x.len - 1, x.len))
            .collect();
        let of = |all: &[Sequence]| {
            let pass = Pass::new(s, all, usize::MAX, &rows);
            let bits = |x: Vec<f32>| x.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            on_card(&pass.buffers()).map(|mut gpu| pass.forward(&mut gpu).map(bits))
        };
        let (Some(of_shared), Some(of_alone)) = (of(&shared), of(&alone)) else { return };
        assert!(of_shared == of_alone, "{s:?}");
    }
}

#[test]
fn a_bad_entry_of_a_block_table_is_named_by_a_checked_build() {
    let shapes = [
        shape(9, 3, 64, Bf16),
        shape(9, 3, 64, F32),
        shape(8, 2, 256, Bf16),
        latent(16, 64, 576, Bf16),
        latent(2, 64, 576, F32),
    ];
    for (s, from) in shapes.into_iter().flat_map(|s| [(s, 0), (s, 89)]) {
        let mut pass = Pass::new(s, &sequences(s, &[(None, 0, 90)]), 90, &[(0, from, 90)]);
        pass.tables[3] = 1_000_000;
        for backward in [false, true] {
            let options = OpenOptions { checked: true, profile: false };
            let Some(gpu) = on_card_with(&pass.buffers(), options) else { return };
            pass.fill(&gpu);
            if backward {
                ["out", "lse", "dout"].iter().for_each(|name| gpu.dev.zero(gpu.buf(name)));
                pass.attend_backward(&gpu);
            } else {
                pass.attend(&gpu, None);
            }
            let error = gpu.dev.check().unwrap_err();
            assert_eq!(error.slug, "cuda-bad-index", "{s:?}: {error}");
            assert!(error.message.contains("cache block 1000000"), "{error}");
        }
    }
}

#[test]
fn scratch_grows_with_chunks_up_to_a_bound_on_rows() {
    assert_eq!(attention_scratch_bytes(64, 9, 3, 64, 512), 0);
    assert_eq!(attention_scratch_bytes(64, 9, 3, 64, 513), 64 * 9 * 2 * 66 * 4);
    assert_eq!(attention_scratch_bytes(10_000, 9, 3, 64, 4096), attention_scratch_bytes(341, 9, 3, 64, 4096));
    // Latents: values alone, and blocks of 64 heads.
    assert_eq!(attention_scratch_bytes(64, 16, 1, 576, 513), 64 * 16 * 2 * 514 * 4);
    assert_eq!(attention_scratch_bytes(2000, 128, 1, 576, 513), 512 * 128 * 2 * 514 * 4);
    // Delta, and results of pieces: 12,288 rows, or as many as the pass has where it has more; few where it has few.
    for (rows, parts) in [(64, 512), (4096, 12288), (65536, 65536)] {
        let bytes = attention_backward_scratch_bytes(rows, 8, 9, 3, 64);
        let least = (rows * 9 + parts * 2 * 3 * 64) * 4;
        assert!((least..least + rows * 4 + (64 << 10)).contains(&bytes), "{rows}: {bytes}");
    }
    // Latents: whole tiles of the pass, and the last ones of segments that many rows see, for each 16 heads.
    for (rows, heads) in [(64, 16), (4096, 4), (4096, 20), (65536, 64)] {
        let bytes = attention_backward_scratch_bytes(rows, 8, heads, 1, 576);
        let tiles = rows / 64 + 8.min(2 * rows * heads.div_ceil(64) / 129);
        let least = (rows * heads + tiles * 64 * (heads / 16).max(1) * 2 * 576) * 4;
        let most = least + rows * (4 + heads / 16) + (64 << 10);
        assert!((least..most).contains(&bytes), "{rows}: {bytes}");
    }
}
