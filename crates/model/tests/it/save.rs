//! Flat buffers through a safetensors file and back: every architecture, every storage, to the bit.

use plimsoll_base::{Bytes, DType, PhaseSet};
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_device::{CODE_BLOCK, Coded, Device, DeviceKind, MatrixLayout};
use plimsoll_files::{OpenModel, record_of};
use plimsoll_memory::{Arena, ArenaMap, Buf, Layout, Pool};
use plimsoll_model::{FlatTensors, ParamTable, Params, load, restore, save, saved_bytes};
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn values(dev: &CpuDevice, buf: Buf<'_>) -> Vec<u32> {
    let mut out = vec![0f32; buf.len()];
    dev.read_f32(buf, 0, &mut out);
    out.into_iter().map(f32::to_bits).collect()
}

fn numbers(dev: &CpuDevice, coded: Coded<'_>) -> Vec<u32> {
    let mut out = vec![0f32; coded.codes.len()];
    dev.read_codes(coded, 1, MatrixLayout::Rows, 0, &mut out);
    out.into_iter().map(f32::to_bits).collect()
}

#[test]
fn what_is_saved_comes_back_to_the_bit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.safetensors");
    for name in ["llama", "qwen2", "qwen3", "mistral", "llama_bias", "phi4_mini"] {
        let source = golden(name);
        let model = OpenModel::open(source.to_str().expect("UTF-8"), None, false).expect("a golden model");
        for weights in [DType::Bf16, DType::F32] {
            let table = ParamTable::new(&model.spec, DeviceKind::Cpu, weights);
            let mut layout = Layout::new();
            for (buf, dtype) in [("a", weights), ("m", DType::F32), ("b", weights), ("n", DType::F32)] {
                let n = &[table.elements];
                layout.arena(buf, "test", Pool::Host, PhaseSet::RESIDENT, n, dtype).expect("small");
            }
            for (codes, scales) in [("c", "c_scales"), ("d", "d_scales")] {
                let blocks = table.elements.div_ceil(CODE_BLOCK as u64);
                for (buf, dtype, n) in [(codes, DType::E4M3, table.elements), (scales, DType::F32, blocks)] {
                    layout.arena(buf, "test", Pool::Host, PhaseSet::RESIDENT, &[n], dtype).expect("small");
                }
            }
            let mut arena = Arena::new(ArenaMap::new(&layout, 0));
            let dev = CpuDevice::new(Bytes(arena.map().used_bytes()), 1, Isa::detect()).expect("small");
            let resident = arena.split().0;
            let buf = |name: &str| resident.buf(name);
            let params = |name| Params::bind(&model.spec, &table, weights, buf(name));
            load(&dev, &model, &table, &params("a"), 0, Bytes::mib(1)).expect("a golden model");
            // States have values that bf16 does not hold, and padding that is zero.
            let mut state = vec![0f32; buf("a").len()];
            dev.read_f32(buf("a"), 0, &mut state);
            state.iter_mut().enumerate().for_each(|(i, x)| *x *= 1.0 + (i % 1000) as f32 * 1e-5);
            dev.write_f32(buf("m"), 0, &state);
            let order = MatrixLayout::of_weights(plimsoll_device::DeviceKind::Cpu, weights);
            let coded = |name: &str| Coded { codes: buf(name), scales: buf(&format!("{name}_scales")) };
            dev.write_codes(buf("m"), coded("c"));
            let sets = |a: &'static str, m: &'static str, c: &'static str| {
                let Coded { codes, scales } = coded(c);
                [
                    FlatTensors::weights(buf(a)),
                    FlatTensors { prefix: "adam_m.", buf: buf(m), scales: None, stored: None },
                    FlatTensors { prefix: "adam_v.", buf: codes, scales: Some(scales), stored: None },
                ]
            };
            let through = Some(buf("n"));
            let record = save(&dev, &table, order, &sets("a", "m", "c"), &path, Bytes::mib(1)).expect("room");
            assert_eq!(record, record_of(&path).expect("it is there"));
            assert!(record.bytes <= saved_bytes(&table, &[weights, DType::F32, DType::Bf16]), "{name}");
            let read =
                |sets: &[FlatTensors<'_>]| restore(&dev, &table, order, sets, through, &path, Bytes::mib(1));
            // Codes go through "n", so they come before it.
            let [a, m, c] = sets("b", "n", "d");
            read(&[c, a, m]).expect("what was saved");
            let numbers = |name: &str| numbers(&dev, coded(name));
            assert!(numbers("c") == numbers("d"), "{name} {weights:?} codes");
            assert!(numbers("c").iter().any(|&x| x != 0));
            for (saved, restored) in [("a", "b"), ("m", "n")] {
                assert!(
                    values(&dev, buf(saved)) == values(&dev, buf(restored)),
                    "{name} {weights:?} {saved}"
                );
            }
            let error = read(&[FlatTensors::weights(buf("b"))]).unwrap_err();
            assert_eq!(error.slug, "checkpoint-damaged", "{error}");
            if weights == DType::Bf16 {
                let error = read(&sets("n", "b", "d")).unwrap_err();
                assert!(error.message.contains("this run has f32"), "{error}");
            }
        }
    }
}
