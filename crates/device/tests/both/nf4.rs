//! Weights of 4 bits on a device against the numbers of their codes, to the bit.
#![allow(dead_code)] // Each binary uses its part.

use super::{Machine, Rig, Sized, normal, round};
use plimsoll_base::DType::{self, F32, U32};
use plimsoll_base::Encoding;
use plimsoll_device::nf4::{decode, encode};
use plimsoll_device::{Blocks, Codes, Layouts, block_elements, matrix_elements};

/// One block, rows that end no panel, and more words than a block of threads has.
pub const SHAPES: [(usize, usize); 4] = [(1, 64), (17, 128), (40, 192), (100, 1024)];

pub fn buffers(kind: &'static Layouts, (n, k): (usize, usize), e: DType) -> Vec<Sized<'static>> {
    let (codes, scales) = block_elements(Encoding::Nf4, n as u64, k as u64);
    let dense = matrix_elements(kind, n as u64, k as u64, e);
    vec![("codes", U32, codes as usize), ("scales", F32, scales as usize), ("dense", e, dense as usize)]
}

/// Panics unless weights written in two parts become what their codes stand for, rounded once.
pub fn check<D: Machine>(rig: &mut Rig<D>, (n, k): (usize, usize), e: DType, how: &str) {
    let x = normal(1, n * k, 0.02, F32);
    let w = Blocks::new(Encoding::Nf4, (rig.buf("codes"), Some(rig.buf("scales"))), n, k);
    let first = n / 3;
    rig.dev.write_rounded(w, first, &x[first * k..]);
    rig.dev.write_rounded(w, 0, &x[..first * k]);
    rig.dev.dequantize(Codes::of(w), rig.matrix("dense", n, k, e));
    let (mut words, mut scales, mut want) = (vec![0; n * k / 8], vec![0.0; n * k / 64], vec![0.0; n * k]);
    encode(&x, &mut words, &mut scales);
    decode(&words, &scales, &mut want);
    let want: Vec<f32> = want.into_iter().map(|x| round(x, e)).collect();
    let (got, padding_is_zero) = rig.get_matrix("dense", n, k, e);
    assert_eq!(got, want, "[{n}, {k}] {}, {how}", e.name());
    assert!(padding_is_zero, "padding of [{n}, {k}] {}, {how}", e.name());
    rig.check_guards();
}
