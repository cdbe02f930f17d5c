//! A checkpoint's manifest and state. Both are sealed by checksums, which would stop nearly every change, so the
//! manifest is sealed again after it was changed.

use crate::mutate::Shape;
use crate::target::{Bounds, JSON_PIECES, Subject, Target};
use plimsoll_base::Result;
use plimsoll_files::digest;
use plimsoll_run::checkpoint::{MANIFEST, Manifest, RunState, STATE_JSON};
use serde_json::Value;
use tempfile::TempDir;

pub(super) const TARGET: Target = Target {
    name: "checkpoint",
    reads: "manifest and state of a checkpoint, sealed again",
    shape: Shape::Json,
    bounds: Bounds::FILE,
    pieces: &JSON_PIECES,
    open: || {
        let folder = tempfile::tempdir().expect("a folder for two files");
        std::fs::create_dir(folder.path().join("state")).expect("a folder can be made");
        std::fs::write(folder.path().join("model.safetensors"), b"12345678")
            .expect("the file can be written");
        let record = serde_json::json!({ "bytes": 8, "sha256": digest(b"12345678") });
        let manifest = serde_json::json!({
            "format": 1, "step": 4, "resumable": true, "source": "builtin:nano", "version": "0.1.0",
            "files": { "model.safetensors": record, "a/b": record },
        });
        let state = RunState::blank(Default::default()).to_text();
        let corpus = vec![manifest.to_string().into_bytes(), state.into_bytes()];
        Box::new(Checkpoint { folder, corpus })
    },
};

struct Checkpoint {
    folder: TempDir,
    corpus: Vec<Vec<u8>>,
}

impl Subject for Checkpoint {
    fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    fn read(&mut self, input: &[u8]) -> Result<()> {
        let folder = self.folder.path();
        std::fs::write(folder.join(MANIFEST), sealed(input)).expect("the file can be written");
        std::fs::write(folder.join(STATE_JSON), input).expect("the file can be written");
        let manifest = Manifest::read(folder).and_then(|manifest| manifest.verify(folder));
        let state = RunState::read(folder).map(drop);
        // Every input is one of the two at most.
        if state.is_ok() { state } else { manifest }
    }
}

/// The input with its own checksum, if it is an object of JSON.
fn sealed(input: &[u8]) -> Vec<u8> {
    let Ok(Value::Object(mut object)) = serde_json::from_slice(input) else { return input.to_vec() };
    object.shift_remove("sha256");
    let pretty =
        |object: &serde_json::Map<String, Value>| serde_json::to_string_pretty(object).expect("it is JSON");
    let sum = digest(pretty(&object).as_bytes());
    object.insert("sha256".into(), sum.into());
    (pretty(&object) + "\n").into_bytes()
}
