//! Rows of tokens, against the CPU.

use crate::both::{bits, matrix_len, normal};
use crate::rig::{on_card, on_card_with, twin};
use plimsoll_base::DType::{Bf16, F32, U32};
use plimsoll_device::{Backend, Device, OpenOptions};

#[test]
fn rows_of_tokens_are_looked_up_and_their_gradients_added_in_order() {
    // One token that is everywhere, and tokens that occur once; widths with and without groups of four.
    let (vocab, rows) = (50, 700);
    let ids: Vec<u32> = (0..rows as u32).map(|i| if i % 3 == 0 { 7 } else { i * i % 49 }).collect();
    for e in [F32, Bf16] {
        for h in [576, 33] {
            let sizes = |table: usize| {
                [
                    ("table", e, table),
                    ("grad", e, table),
                    ("ids", U32, rows),
                    ("out", F32, rows * h),
                    ("d", F32, rows * h),
                ]
            };
            let Some(mut gpu) = on_card(&sizes(vocab * h)) else { return };
            let cpu = twin(&sizes(matrix_len(vocab, h, e)));
            let (table, grad) = (normal(1, vocab * h, 1.0, e), normal(2, vocab * h, 1.0, e));
            let d = normal(3, rows * h, 1.0, F32);
            for (name, x) in [("table", &table), ("grad", &grad), ("d", &d)] {
                gpu.set(name, x);
            }
            gpu.set_u32("ids", &ids);
            gpu.dev.embed(gpu.rows("table", vocab, h), gpu.buf("ids"), gpu.buf("out"));
            let want: Vec<f32> = ids.iter().flat_map(|&id| &table[id as usize * h..][..h]).copied().collect();
            assert_eq!(gpu.get("out"), want, "{e:?} {h}");
            let (size, mut stored) = (e.bytes() as usize, vec![0; 3 * h * e.bytes() as usize]);
            gpu.dev.read_stored(gpu.rows("table", vocab, h), 2, &mut stored);
            // A bf16 number is the upper half of an f32.
            let upper = |x: &f32| x.to_le_bytes()[4 - size..].to_vec();
            assert_eq!(stored, table[2 * h..5 * h].iter().flat_map(upper).collect::<Vec<u8>>());
            cpu.set_matrix("grad", vocab, h, e, &grad);
            cpu.set("d", &d);
            cpu.set_u32("ids", &ids);
            cpu.dev.embed_backward(cpu.buf("d"), cpu.buf("ids"), cpu.matrix("grad", vocab, h, e));
            gpu.dev.embed_backward(gpu.buf("d"), gpu.buf("ids"), gpu.rows("grad", vocab, h));
            let mut twin = vec![0.0; vocab * h];
            cpu.dev.read_rows(cpu.matrix("grad", vocab, h, e), 0, &mut twin);
            assert_eq!(bits(&gpu.get("grad")), bits(&twin), "{e:?} {h}: the CPU's order");
            gpu.check_guards();
        }
    }
}

#[test]
fn a_bias_is_added_to_each_row_as_on_the_cpu() {
    let (rows, n) = (77, 100);
    for e in [F32, Bf16] {
        let sizes = [("x", F32, rows * n), ("bias", e, n)];
        let Some(mut gpu) = on_card(&sizes) else { return };
        let cpu = twin(&sizes);
        for (name, x) in [("x", normal(1, rows * n, 1.0, F32)), ("bias", normal(2, n, 1.0, e))] {
            gpu.set(name, &x);
            cpu.set(name, &x);
        }
        gpu.dev.add_bias(gpu.buf("x"), gpu.buf("bias"));
        cpu.dev.add_bias(cpu.buf("x"), cpu.buf("bias"));
        assert_eq!(bits(&gpu.get("x")), bits(&cpu.get("x")), "{e:?}");
        gpu.check_guards();
    }
}

#[test]
fn a_token_beyond_the_vocabulary_is_named_by_a_checked_build() {
    let sizes = [("table", Bf16, 50 * 64), ("ids", U32, 3), ("out", F32, 3 * 64)];
    let Some(gpu) = on_card_with(&sizes, OpenOptions { checked: true, profile: false }) else { return };
    gpu.set_u32("ids", &[1, 50, 2]);
    gpu.dev.embed(gpu.rows("table", 50, 64), gpu.buf("ids"), gpu.buf("out"));
    let error = gpu.dev.check().unwrap_err();
    assert_eq!(error.slug, "cuda-bad-index");
    assert!(error.message.contains("rows/gather_bf16") && error.message.contains("token id 50"), "{error}");
}
