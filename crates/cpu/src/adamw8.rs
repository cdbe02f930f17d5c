//! AdamW with 8-bit moments: each block is widened, updated in f32, and rounded stochastically under its own scale.
//! There is no master copy. Random numbers are those of bf16 states, so nothing depends on threads or cuts.

use super::CpuDevice;
use super::adamw::{random_bits, updated};
use super::elementwise::split;
use super::lanes::{LANES, Lanes, by_dtype, simd_fn};
use super::norm::{load_any, store_any};
use plimsoll_base::DType;
use plimsoll_device::codes::{CODE_BLOCK, Code, Coded, E4M3, E5M3, by_code, encode_blocks, largest};
use plimsoll_device::{AdamW, AdamWBufs, MatrixLayout, Update};
use plimsoll_memory::Buf;

pub(super) fn adamw(dev: &CpuDevice, how: AdamW, bufs: AdamWBufs<'_>, scales: [Buf<'_>; 2]) {
    let AdamWBufs { weights, grad, m, v, master, .. } = bufs;
    assert!(how.step >= 1, "steps count from 1");
    assert!(master.is_none(), "8-bit moments have no master copy");
    let n = weights.len();
    assert_eq!([grad.len(), m.len(), v.len()], [n; 3], "lengths of a parameter");
    for (codes, scales) in [m, v].into_iter().zip(scales) {
        Coded { codes, scales }.check();
    }
    let update = Update::new(how);
    by_dtype!(weights, W => by_dtype!(grad, G => {
        let (w, g) = (dev.write::<W>(weights), dev.read::<G>(grad));
        let (m, v) = (dev.write::<E4M3>(m), dev.write::<E5M3>(v));
        let scales = scales.map(|buf| dev.write::<f32>(buf));
        split(dev, n.div_ceil(CODE_BLOCK), CODE_BLOCK, &|part| {
            for block in part {
                let start = block * CODE_BLOCK;
                let len = CODE_BLOCK.min(n - start);
                // SAFETY: blocks are disjoint, and each is one task's.
                let (w, m, v, [m_scale, v_scale]) = unsafe {
                    let scales = [scales[0].range(block, 1), scales[1].range(block, 1)];
                    (w.range(start, len), m.range(start, len), v.range(start, len), scales)
                };
                let first = update.first_element + start as u64;
                let (g, m, v) = (&g[start..start + len], (m, &mut m_scale[0]), (v, &mut v_scale[0]));
                update_block::<W, G>(dev.isa(), &update, first, w, g, m, v);
            }
        });
    }));
}

simd_fn! {
    /// Updates one block, whose first element is number `first` among all parameters. `m`, `v`: codes and scale.
    fn update_block[W: Lanes, G: Lanes](
        s: S, how: &Update, first: u64, w: &mut [W], g: &[G], m: (&mut [E4M3], &mut f32), v: (&mut [E5M3], &mut f32),
    ) {
        let (mut m_values, mut v_values) = ([0.0; CODE_BLOCK], [0.0; CODE_BLOCK]);
        widen(m.0, *m.1, &mut m_values);
        widen(v.0, *v.1, &mut v_values);
        let (m_parts, v_parts) = (m_values.as_chunks_mut::<LANES>().0, v_values.as_chunks_mut::<LANES>().0);
        // Lanes beyond the parameter's end have zero gradient and moments, and keep them.
        for ((at, m), v) in (0..w.len()).step_by(LANES).zip(m_parts).zip(v_parts) {
            let here = at..(at + LANES).min(w.len());
            let grad = s.mul(load_any(s, &g[here.clone()]), s.splat(how.grad_scale));
            let old = load_any(s, &w[here.clone()]);
            let (mut new, moments) = updated(s, how, old, grad, [f32::load(s, m), f32::load(s, v)]);
            if W::DTYPE == DType::Bf16 {
                new = s.round_stochastically(new, random_bits(s, how.keys, first + at as u64)[0]);
            }
            store_any(s, &mut w[here], new);
            f32::store(s, m, moments[0]);
            f32::store(s, v, moments[1]);
        }
        (*m.1, *v.1) = (E4M3::scale_of(largest(&m_values)), E5M3::scale_of(largest(&v_values)));
        for (i, (m_code, v_code)) in m.0.iter_mut().zip(v.0).enumerate() {
            let [m_random, v_random] = random_of_moments(how.keys, first + i as u64);
            *m_code = E4M3::encode(m_values[i], *m.1, m_random);
            *v_code = E5M3::encode(v_values[i], *v.1, v_random);
        }
    }
}

#[inline(always)]
fn widen<C: Code>(codes: &[C], scale: f32, values: &mut [f32; CODE_BLOCK]) {
    for (value, code) in values.iter_mut().zip(codes) {
        *value = code.decode(scale);
    }
}

/// Returns the second and third number of `random_bits` for one element.
#[inline(always)]
fn random_of_moments(keys: [u32; 2], element: u64) -> [u32; 2] {
    let fold = |x: u32, n: u32| x ^ (x >> n);
    let second = ((element >> 32) as u32).wrapping_mul(0x9e37_79b9) ^ keys[1];
    let x = fold(element as u32 ^ keys[0], 16).wrapping_mul(0x7feb_352d);
    let x = fold(fold(x, 15).wrapping_add(second).wrapping_mul(0x846c_a68b), 16);
    let y = fold(x.wrapping_add(second).wrapping_mul(0x7feb_352d), 15).wrapping_mul(0x846c_a68b);
    [x >> 16, y >> 16]
}

pub(super) fn read_codes(
    dev: &CpuDevice,
    src: Coded<'_>,
    k: usize,
    layout: MatrixLayout,
    first_row: usize,
    dst: &mut [f32],
) {
    src.check();
    by_code!(src.codes, C => {
        let (codes, scales) = (dev.read::<C>(src.codes), dev.read::<f32>(src.scales));
        for (row, out) in dst.chunks_exact_mut(k).enumerate() {
            for (col, out) in out.iter_mut().enumerate() {
                let at = layout.index(k, first_row + row, col);
                *out = codes[at].decode(scales[at / CODE_BLOCK]);
            }
        }
    });
}

pub(super) fn write_codes(dev: &CpuDevice, src: Buf<'_>, dst: Coded<'_>) {
    dst.check();
    assert_eq!(src.len(), dst.codes.len(), "lengths of what becomes codes");
    let n = src.len();
    by_dtype!(src, T => by_code!(dst.codes, C => {
        let (x, codes, scales) = (dev.read::<T>(src), dev.write::<C>(dst.codes), dev.write::<f32>(dst.scales));
        split(dev, n.div_ceil(CODE_BLOCK), CODE_BLOCK, &|part| {
            let mut values = [0.0; CODE_BLOCK];
            for block in part {
                let start = block * CODE_BLOCK;
                let values = &mut values[..CODE_BLOCK.min(n - start)];
                for (value, x) in values.iter_mut().zip(&x[start..]) {
                    *value = crate::Real::to_f32(*x);
                }
                // SAFETY: blocks are disjoint, and each is one task's.
                unsafe { encode_blocks(values, codes.range(start, values.len()), scales.range(block, 1)) };
            }
        });
    }));
}
