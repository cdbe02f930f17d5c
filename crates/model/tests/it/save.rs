//! Flat buffers through a safetensors file and back: every architecture, every storage, to the bit.

use plimsoll_base::{Bytes, DType, PhaseSet};
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_device::{CODE_BLOCK, Coded, Device, MatrixLayout, Run};
use plimsoll_files::{FileRecord, OpenModel, record_of};
use plimsoll_memory::{Arena, ArenaMap, Buf, Layout, Pool};
use plimsoll_model::{
    FlatTensors, ParamTable, Params, Place, SpreadFile, SpreadTensors, Together, load, restore, restore_own,
    save, save_together, saved_bytes,
};
use std::path::{Path, PathBuf};
use std::sync::{Barrier, Mutex};

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
            let table = ParamTable::new(&model.spec, &plimsoll_cpu::LAYOUTS, weights);
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
            let order = MatrixLayout::of_weights(&plimsoll_cpu::LAYOUTS, weights);
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

/// Elements of a passage that no matrix of the models here fits.
const PASSAGE: u64 = 32 * CODE_BLOCK as u64;

/// Cuts a buffer into runs of whole blocks that do not follow its tensors.
fn parts<'a>(len: usize, of: impl Fn(usize, usize) -> Place<'a>) -> Vec<(Run, Place<'a>)> {
    let each = 7 * CODE_BLOCK;
    let part = |start: usize| {
        let n = each.min(len - start);
        (Run { start: start as u64, elements: n as u64 }, of(start, n))
    };
    (0..len).step_by(each).map(part).collect()
}

/// All that is saved of a model: weights, moments in f32 and in codes. `empty` is a second set, to be read into.
struct States<'a> {
    dev: &'a CpuDevice,
    table: &'a ParamTable,
    order: MatrixLayout,
    full: [FlatTensors<'a>; 3],
    empty: [FlatTensors<'a>; 3],
    passages: [Buf<'a>; 3],
}

impl<'a> States<'a> {
    fn spread(&self, of: [FlatTensors<'a>; 3]) -> [SpreadTensors<'a>; 3] {
        let place = |set: FlatTensors<'a>, at: usize, n: usize| match set.scales {
            None => Place::Numbers(set.buf.slice(at, n)),
            Some(scales) => Place::Codes(Coded { codes: set.buf, scales }.slice(at, n)),
        };
        of.map(|set| {
            let places = parts(self.table.elements as usize, |at, n| place(set, at, n));
            SpreadTensors { prefix: set.prefix, dtype: set.dtype(), places }
        })
    }

    fn file<'x>(&'x self, path: &'x Path, sets: &'x [SpreadTensors<'a>]) -> SpreadFile<'x, 'a> {
        SpreadFile { path, table: self.table, layout: self.order, sets, staging: Bytes::mib(1) }
    }

    /// Writes the file as several ranks do, each in a thread. Returns what each gets of it.
    fn write(&self, path: &Path, ranks: usize) -> Vec<Option<FileRecord>> {
        let (met, said) = (Barrier::new(ranks), Mutex::new(vec![Vec::new(); ranks]));
        let write = |rank: usize| {
            let exchange = &mut |own: &[u8]| {
                said.lock().expect("no panic")[rank] = own.to_vec();
                met.wait();
                let all = said.lock().expect("no panic").clone();
                met.wait();
                Ok(all)
            };
            let (sets, with) = (self.spread(self.full), Together { rank, ranks, exchange });
            save_together(self.dev, self.file(path, &sets), self.passages[rank], with).expect("room")
        };
        std::thread::scope(|scope| {
            let write = &write;
            let hands: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || write(rank))).collect();
            hands.into_iter().map(|hand| hand.join().expect("no panic")).collect()
        })
    }

    fn numbers(&self, set: FlatTensors<'_>) -> Vec<u32> {
        match set.scales {
            None => values(self.dev, set.buf),
            Some(scales) => numbers(self.dev, Coded { codes: set.buf, scales }),
        }
    }
}

fn with_states(name: &str, weights: DType, body: impl FnOnce(&States<'_>)) {
    let source = golden(name);
    let model = OpenModel::open(source.to_str().expect("UTF-8"), None, false).expect("a golden model");
    let table = &ParamTable::new(&model.spec, &plimsoll_cpu::LAYOUTS, weights);
    let mut layout = Layout::new();
    let mut region = |name: &str, n: u64, dtype| {
        layout.arena(name, "test", Pool::Host, PhaseSet::RESIDENT, &[n], dtype).expect("small");
    };
    let (n, blocks) = (table.elements, table.elements.div_ceil(CODE_BLOCK as u64));
    for set in ["full", "empty"] {
        region(&format!("{set}.a"), n, weights);
        region(&format!("{set}.m"), n, DType::F32);
        region(&format!("{set}.c"), n, DType::E4M3);
        region(&format!("{set}.s"), blocks, DType::F32);
    }
    (0..3).for_each(|rank| region(&format!("passage{rank}"), PASSAGE, DType::F32));
    let mut arena = Arena::new(ArenaMap::new(&layout, 0));
    let dev = &CpuDevice::new(Bytes(arena.map().used_bytes()), 1, Isa::detect()).expect("small");
    let resident = arena.split().0;
    let all = resident.buf("full.a");
    load(dev, &model, table, &Params::bind(&model.spec, table, weights, all), 0, Bytes::mib(1))
        .expect("small");
    let mut state = vec![0f32; n as usize];
    dev.read_f32(all, 0, &mut state);
    state.iter_mut().enumerate().for_each(|(i, x)| *x *= 1.0 + (i % 1000) as f32 * 1e-5);
    let sets = |set: &str| {
        let buf = |what: &str| resident.buf(&format!("{set}.{what}"));
        [
            FlatTensors::weights(buf("a")),
            FlatTensors { prefix: "adam_m.", buf: buf("m"), scales: None, stored: None },
            FlatTensors { prefix: "adam_v.", buf: buf("c"), scales: Some(buf("s")), stored: None },
        ]
    };
    let [full, empty] = ["full", "empty"].map(sets);
    dev.write_f32(full[1].buf, 0, &state);
    dev.write_codes(full[1].buf, Coded { codes: full[2].buf, scales: resident.buf("full.s") });
    let order = MatrixLayout::of_weights(&plimsoll_cpu::LAYOUTS, weights);
    let passages = [0, 1, 2].map(|rank| resident.buf(&format!("passage{rank}")));
    body(&States { dev, table, order, full, empty, passages });
}

#[test]
fn ranks_write_the_file_of_one_and_read_their_parts_of_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, weights) in [("llama", DType::Bf16), ("qwen2", DType::F32), ("phi4_mini", DType::Bf16)] {
        with_states(name, weights, |states| {
            let &States { dev, table, order, full, empty, passages } = states;
            let alone = folder.path().join(name);
            let record = save(dev, table, order, &full, &alone, Bytes::mib(1)).expect("room");
            for ranks in 1..=3 {
                let path = folder.path().join(format!("{name}.{ranks}"));
                let records = states.write(&path, ranks);
                assert_eq!(records[0].as_ref(), Some(&record), "{name} {ranks}");
                assert!(records[1..].iter().all(Option::is_none));
                assert!(std::fs::read(&path).unwrap() == std::fs::read(&alone).unwrap(), "{name} {ranks}");
            }
            let read = |sets: &[SpreadTensors<'_>]| restore_own(dev, states.file(&alone, sets), passages[0]);
            // Each of two ranks reads every other run.
            for rank in 0..2 {
                let own = states.spread(empty).map(|set| {
                    let places = set.places.into_iter().skip(rank).step_by(2).collect();
                    SpreadTensors { places, ..set }
                });
                read(&own).expect("what was saved");
            }
            for (saved, restored) in full.into_iter().zip(empty) {
                assert!(states.numbers(saved) == states.numbers(restored), "{name} {}", saved.prefix);
            }
            let error = read(&states.spread(empty)[..1]).unwrap_err();
            assert_eq!(error.slug, "checkpoint-damaged", "{error}");
        });
    }
}
