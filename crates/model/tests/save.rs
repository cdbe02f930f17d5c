//! Flat buffers through a safetensors file and back: every architecture, every storage, to the bit.

use plimsoll_base::{Bytes, DType, PhaseSet};
use plimsoll_device::cpu::{CpuDevice, Isa};
use plimsoll_device::{Device, DeviceKind, MatrixLayout};
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

#[test]
fn what_is_saved_comes_back_to_the_bit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.safetensors");
    for name in ["llama", "qwen2", "qwen3", "mistral"] {
        let source = golden(name);
        let model = OpenModel::open(source.to_str().expect("UTF-8"), None, false).expect("a golden model");
        for weights in [DType::Bf16, DType::F32] {
            let table = ParamTable::new(&model.spec, DeviceKind::Cpu, weights);
            let mut layout = Layout::new();
            for (buf, dtype) in [("a", weights), ("m", DType::F32), ("b", weights), ("n", DType::F32)] {
                let n = &[table.elements];
                layout.arena(buf, "test", Pool::Host, PhaseSet::RESIDENT, n, dtype).expect("small");
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
            let sets = |a: &'static str, m: &'static str| {
                [FlatTensors { prefix: "", buf: buf(a) }, FlatTensors { prefix: "adam_m.", buf: buf(m) }]
            };
            let record = save(&dev, &table, order, &sets("a", "m"), &path, Bytes::mib(1)).expect("room");
            assert_eq!(record, record_of(&path).expect("it is there"));
            assert!(record.bytes <= saved_bytes(&table, &[weights, DType::F32]), "{name}");
            restore(&dev, &table, order, &sets("b", "n"), &path, Bytes::mib(1)).expect("what was saved");
            for (saved, restored) in [("a", "b"), ("m", "n")] {
                assert!(
                    values(&dev, buf(saved)) == values(&dev, buf(restored)),
                    "{name} {weights:?} {saved}"
                );
            }
            let other = [FlatTensors { prefix: "", buf: buf("b") }];
            let error = restore(&dev, &table, order, &other, &path, Bytes::mib(1)).unwrap_err();
            assert_eq!(error.slug, "checkpoint-damaged", "{error}");
            let other = [sets("n", "b")[0], sets("n", "b")[1]];
            if weights == DType::Bf16 {
                let error = restore(&dev, &table, order, &other, &path, Bytes::mib(1)).unwrap_err();
                assert!(error.message.contains("this run has f32"), "{error}");
            }
        }
    }
}
