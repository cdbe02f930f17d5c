//! Tiny models of other shapes than nano's, with its tokenizer.

use crate::common::in_turn;
use crate::made;
use crate::ranks::{ended, left};
use crate::run::{Run, SMALL, number};
use plimsoll_arch::expected_tensors;
use plimsoll_files::spec_from_config;
use serde_json::{Map, Value};
use std::fs;
use std::path::Path;

const NANO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../files/assets/nano");

/// A short run of the model in a folder.
pub fn run_of(model: &str) -> String {
    SMALL.replace("builtin:nano", model).replace("1e-6", "1e-4") + "cut_multiple = 4\n"
}

/// Writes a model into a folder that is not there yet: nano with other keys in its configuration, and other weights.
pub fn write(to: &Path, keys: &Value) {
    fs::create_dir(to).expect("a folder");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(Path::new(NANO).join(name), to.join(name)).expect("a file");
    }
    let read = fs::read(Path::new(NANO).join("config.json")).expect("a file");
    let mut config: Value = serde_json::from_slice(&read).expect("JSON");
    for (key, value) in keys.as_object().expect("keys") {
        config[key] = value.clone();
    }
    fs::write(to.join("config.json"), config.to_string()).expect("a file");
    let spec = spec_from_config(&config, "config.json").expect("a shape");
    let tensors = expected_tensors(&spec);
    let (header, _) = made::header_and_data(&tensors);
    let value = |(number, (name, shape)): (usize, &(String, Vec<u64>))| {
        let (of_norm, elements) = (name.ends_with("norm.weight"), shape.iter().product::<u64>());
        let wave = move |i: u64| 0.3 * (12.9898 * i as f32 + 78.233 * number as f32).sin();
        (0..elements).flat_map(move |i| if of_norm { 1f32 } else { wave(i) }.to_le_bytes())
    };
    let data: Vec<u8> = tensors.iter().enumerate().flat_map(value).collect();
    let file = made::safetensors(&Value::Object(header).to_string(), &data);
    fs::write(to.join("model.safetensors"), file).expect("a file");
}

/// Trains case `index` on 1, 2 and 3 ranks, on two of them in turn: they leave the same bytes, and the trainer has the
/// log-probabilities of the rollout.
pub fn check_ranks(folder: &Run, index: usize, name: &str, sets: &[&str]) {
    let mut one = None;
    for ranks in in_turn(index, &[1, 2, 3]) {
        let (dir, flag) = (format!("{name}-{ranks}"), format!("--ranks={ranks}"));
        let (code, said) = ended(folder.output(&dir, &[&[&*flag], sets].concat()));
        assert_eq!(code, Some(0), "{name} on {ranks}: {said}");
        let left = left(folder, &dir);
        assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "{name} on {ranks} ranks");
        for step in folder.metrics(&dir) {
            assert_eq!(number(&step, "rollout/logprob_mismatch_max"), 0.0, "{name} on {ranks}: {step}");
        }
    }
}

/// Trains at a learning rate of 0, on one rank and on two: checkpoints are the model, and so are those of runs of them,
/// because what a checkpoint says of itself is the model's again.
pub fn check_unchanged(folder: &Run) {
    let sets = ["train.learning_rate=0", "model_options.dtype=f32", "train.steps=1"];
    folder.train("same", &sets);
    folder.train("spread", &[&sets[..], &["--ranks=2", "run.zero_stage=3"]].concat());
    let model = tensors(&folder.read("model/model.safetensors"));
    assert!(model.len() > 30);
    for run in ["same", "spread"] {
        let saved = format!("{run}/checkpoints/latest");
        assert!(tensors(&folder.read(&format!("{saved}/model.safetensors"))) == model, "{run}");
        let again = format!("model={}", folder.text_path(&saved));
        folder.train(&format!("{run} again"), &[&sets[..], &[&*again]].concat());
        let file = format!("{run} again/checkpoints/latest/model.safetensors");
        assert!(tensors(&folder.read(&file)) == model, "{run}");
    }
}

/// Returns the tensors of a file: name, shape and bytes.
pub fn tensors(file: &[u8]) -> Vec<(String, Value, Vec<u8>)> {
    let (length, rest) = file.split_first_chunk::<8>().expect("a length");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Map<String, Value> = serde_json::from_slice(header).expect("JSON");
    let entries = header.into_iter().filter(|(name, _)| name != "__metadata__");
    let mut all: Vec<_> = entries
        .map(|(name, entry)| {
            let at = |i: usize| entry["data_offsets"][i].as_u64().expect("an offset") as usize;
            (name, entry["shape"].clone(), data[at(0)..at(1)].to_vec())
        })
        .collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}
