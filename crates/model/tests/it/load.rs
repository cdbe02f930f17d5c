//! Weights into the arena: threads and the size of the staging buffers move no bit.

use plimsoll_arch::ModelSpec;
use plimsoll_base::{Bytes, DType, PhaseSet, Result};
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_device::{Device, Layouts, MatrixLayout};
use plimsoll_files::{OpenModel, config_json};
use plimsoll_memory::{Arena, ArenaMap, Layout, Pool};
use plimsoll_model::{FlatTensors, ParamTable, Params, load, save};
use std::path::Path;

/// A tiny model whose embedding is long enough for several threads.
fn model() -> OpenModel {
    let mut model = OpenModel::open("random:nano", None, false).expect("a preset");
    model.spec = ModelSpec { vocab: 40_001, ..model.spec };
    model
}

/// Saves a random model in a folder. Returns its bits.
fn saved(random: &OpenModel, weights: DType, folder: &Path) -> Vec<u32> {
    let path = folder.join("model.safetensors");
    let made = loaded(random, &plimsoll_cpu::LAYOUTS, weights, Bytes::mib(64), Some(&path)).expect("weights");
    let config = config_json(&random.spec, weights, &random.token_ids());
    std::fs::write(folder.join("config.json"), config.to_string()).expect("room");
    made
}

fn open(folder: &Path) -> OpenModel {
    OpenModel::open(folder.to_str().expect("UTF-8"), None, false).expect("what was saved")
}

/// Bits of all parameters, loaded through a staging of `staging`; written to `save_to` too if that is given.
fn loaded(
    model: &OpenModel,
    kind: &'static Layouts,
    weights: DType,
    staging: Bytes,
    save_to: Option<&Path>,
) -> Result<Vec<u32>> {
    let table = ParamTable::new(&model.spec, kind, weights);
    let mut layout = Layout::new();
    layout.arena("all", "test", Pool::Host, PhaseSet::RESIDENT, &[table.elements], weights).expect("small");
    let mut arena = Arena::new(ArenaMap::new(&layout, 0));
    let dev = CpuDevice::new(Bytes(arena.map().used_bytes()), 1, Isa::detect()).expect("small");
    let resident = arena.split().0;
    let all = resident.buf("all");
    load(&dev, model, &table, &Params::bind(&model.spec, &table, weights, all), 7, staging)?;
    if let Some(path) = save_to {
        let order = MatrixLayout::of_weights(kind, weights);
        save(&dev, &table, order, &[FlatTensors::weights(all)], path, staging).expect("room");
    }
    let mut out = vec![0f32; all.len()];
    dev.read_f32(all, 0, &mut out);
    Ok(out.into_iter().map(f32::to_bits).collect())
}

#[test]
fn threads_and_staging_move_no_bit() {
    let random = model();
    for weights in [DType::F32, DType::Bf16] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let made = saved(&random, weights, folder.path());
        for kind in [&plimsoll_cpu::LAYOUTS, &plimsoll_cuda::LAYOUTS] {
            let get = |model: &OpenModel, staging| {
                loaded(model, kind, weights, Bytes::mib(staging), None).expect("weights")
            };
            assert!(get(&random, 1) == get(&random, 64), "random {weights:?} {kind:?}");
            let file = open(folder.path());
            let by_one = get(&file, 1);
            assert!(by_one == get(&file, 64), "{weights:?} {kind:?}");
            match kind {
                kind if kind == &plimsoll_cpu::LAYOUTS => assert!(by_one == made, "{weights:?}"),
                // Places of random numbers differ between devices, those of a file's do not.
                _ => {
                    let embed = values_of(&file, "model.embed_tokens.weight");
                    assert!(by_one.windows(embed.len()).any(|values| values == embed), "{weights:?}");
                }
            }
        }
    }
}

fn values_of(file: &OpenModel, name: &str) -> Vec<u32> {
    let shape = &file.tensor(name).expect("it is there").shape;
    let mut out = vec![0f32; (shape[0] * shape[1]) as usize];
    file.read_rows(name, 0..shape[0], &mut [0; 4096], &mut out).expect("its rows");
    out.into_iter().map(f32::to_bits).collect()
}

#[test]
fn the_first_value_that_is_no_number_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    saved(&model(), DType::Bf16, folder.path());
    let file = folder.path().join("model.safetensors");
    let at = open(folder.path()).tensor("model.embed_tokens.weight").expect("it is there").offset as usize;
    let mut bytes = std::fs::read(&file).expect("it is there");
    // In the second of two threads' rows.
    for element in [2_000_003, 2_300_000] {
        bytes[at + element * 2..][..2].copy_from_slice(&0xff80u16.to_le_bytes());
    }
    std::fs::write(&file, bytes).expect("room");
    for kind in [&plimsoll_cpu::LAYOUTS, &plimsoll_cuda::LAYOUTS] {
        let error =
            loaded(&open(folder.path()), kind, DType::Bf16, Bytes::mib(64), None).expect_err("infinity");
        assert_eq!(error.slug, "model-weight-not-finite");
        assert!(
            error.to_string().contains("`model.embed_tokens.weight` holds -inf at element 2000003"),
            "{error}"
        );
    }
}
