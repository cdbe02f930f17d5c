//! Tests what ranks add to their shards: the CPU's bits, whatever the lengths and the places of what is owned.

use crate::both::{bits, normal};
use crate::rig::{on_card, twin};
use plimsoll_base::DType::{Bf16, F32, U32};
use plimsoll_device::{Backend, Device, MatrixLayout, OwnedRun, Run};
use plimsoll_memory::Buf;

#[test]
fn a_partial_gradient_is_added_once_whatever_its_dtype_and_place() {
    let n = 100_003;
    for (from, to) in [(F32, F32), (F32, Bf16), (Bf16, F32), (Bf16, Bf16)] {
        let sizes = [("src", from, n), ("dst", to, n)];
        let Some(mut gpu) = on_card(&sizes) else { return };
        let cpu = twin(&sizes);
        let (src, dst) = (normal(1, n, 1.0, from), normal(2, n, 1.0, to));
        gpu.set("src", &src);
        cpu.set("src", &src);
        gpu.set("dst", &dst);
        cpu.set("dst", &dst);
        for (start, len, add) in [(0, 4096, false), (256, 70_000, true), (1, 1000, true), (3, n - 3, false)] {
            let part = |name, start| (gpu.buf(name).slice(start, len), cpu.buf(name).slice(start, len));
            let ((src, src_cpu), (dst, dst_cpu)) = (part("src", start), part("dst", start));
            gpu.dev.accumulate(src, dst, add);
            cpu.dev.accumulate(src_cpu, dst_cpu, add);
            assert_eq!(bits(&gpu.get("dst")), bits(&cpu.get("dst")), "{from:?} {to:?} {start} {len} {add}");
        }
        gpu.dev.check().unwrap();
        gpu.check_guards();
    }
}

#[test]
fn parts_are_folded_as_one_after_the_other_is_added() {
    // Lengths with whole groups of four, and without.
    let dtypes = [(F32, F32), (F32, Bf16), (Bf16, F32), (Bf16, Bf16)];
    for ((from, to), n) in dtypes.into_iter().flat_map(|of| [(of, 5_003), (of, 5_004)]) {
        let sizes = [("parts", from, 11 * n), ("dst", to, n)];
        let Some(mut gpu) = on_card(&sizes) else { return };
        let cpu = twin(&sizes);
        let (parts, dst) = (normal(1, 11 * n, 1.0, from), normal(2, n, 1.0, to));
        for (count, add) in [(1, false), (2, true), (3, false), (8, true), (11, false)] {
            gpu.set("parts", &parts);
            gpu.set("dst", &dst);
            cpu.set("parts", &parts);
            cpu.set("dst", &dst);
            gpu.dev.fold(&parts_of(gpu.buf("parts"), n, count), gpu.buf("dst"), add);
            cpu.dev.fold(&parts_of(cpu.buf("parts"), n, count), cpu.buf("dst"), add);
            assert_eq!(bits(&gpu.get("dst")), bits(&cpu.get("dst")), "{count} of {from:?} in {to:?}, {add}");
        }
        gpu.dev.check().unwrap();
        gpu.check_guards();
    }
}

fn parts_of(all: Buf<'_>, len: usize, count: usize) -> Vec<Buf<'_>> {
    (0..count).map(|index| all.part(index, len)).collect()
}

#[test]
fn rows_of_tokens_are_added_where_a_shard_holds_them() {
    let (vocab, rows, shard) = (300, 500, 9000);
    let owned = [(0, 256, 0), (1280, 4000, 512), (5536, 100, 4608), (20_000, 1600, 5120)]
        .map(|(start, elements, at)| OwnedRun { run: Run { start, elements }, at });
    // Rows with whole groups of four, and without.
    for (e, h) in [(F32, 72), (Bf16, 72), (F32, 71), (Bf16, 33), (F32, 260)] {
        let sizes = [("d", F32, rows * h), ("ids", U32, rows), ("shard", e, shard)];
        let Some(mut gpu) = on_card(&sizes) else { return };
        let cpu = twin(&sizes);
        let (d, sum) = (normal(1, rows * h, 1.0, F32), normal(2, shard, 1.0, e));
        let ids: Vec<u32> = (0..rows).map(|row| (row * row * 7 % vocab) as u32).collect();
        gpu.set("d", &d);
        gpu.set("shard", &sum);
        gpu.set_u32("ids", &ids);
        cpu.set("d", &d);
        cpu.set("shard", &sum);
        cpu.set_u32("ids", &ids);
        let layout = MatrixLayout::Rows;
        gpu.dev.embed_backward_part(gpu.buf("d"), gpu.buf("ids"), h, layout, &owned, gpu.buf("shard"));
        cpu.dev.embed_backward_part(cpu.buf("d"), cpu.buf("ids"), h, layout, &owned, cpu.buf("shard"));
        gpu.dev.check().unwrap();
        assert_eq!(bits(&gpu.get("shard")), bits(&cpu.get("shard")), "{e:?} {h}");
        assert_ne!(bits(&gpu.get("shard")), bits(&sum), "{e:?} {h}: something was added");
        gpu.check_guards();
    }
}
