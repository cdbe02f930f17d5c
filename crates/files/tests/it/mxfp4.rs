//! Experts in MXFP4: the numbers of their blocks, to the bit, and halves that do not fit each other.

use plimsoll_base::{Encoding, blocks};
use plimsoll_files::{OpenModel, check_against};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const NAME: &str = "model.layers.0.mlp.experts.gate_up_proj";

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name)
}

fn open(folder: &Path) -> Result<OpenModel, plimsoll_base::Error> {
    let model = OpenModel::open(folder.to_str().unwrap(), None, false)?;
    check_against(&model)?;
    Ok(model)
}

#[test]
fn blocks_of_experts_are_the_numbers_that_transformers_has() {
    let model = open(&golden("gpt_oss_mxfp4")).unwrap();
    assert!(model.has_mxfp4() && !open(&golden("gpt_oss")).unwrap().has_mxfp4());
    let file = fs::read(golden("gpt_oss_mxfp4").join("reference.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&file).unwrap();
    let mut seen = 0;
    for tensor in model.tensors.iter().filter(|tensor| tensor.encoding == Encoding::Mxfp4) {
        let data = file.tensor(&format!("value.{}", tensor.name)).unwrap().data().to_vec();
        let want: Vec<u32> =
            data.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
        let [experts, k, n] = tensor.shape[..] else { panic!("three axes") };
        let (mut found, mut staging) = (vec![0.0; want.len()], vec![0; 512]);
        model.read_rows(&tensor.name, 0..experts, &mut staging, &mut found).unwrap();
        assert_eq!(found.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), want, "{}", tensor.name);
        // Some rows of the matrices, over the edge of an expert.
        let (rows, row_bytes) = (n - 3..n + 2, k / 32 * 17);
        let mut bytes = vec![0; (5 * row_bytes) as usize];
        model.read_blocks(&tensor.name, Encoding::Mxfp4, rows.clone(), &mut bytes).unwrap();
        let mut values = vec![0.0; (5 * k) as usize];
        blocks::decode(Encoding::Mxfp4, &bytes, &[], &mut values);
        for (i, x) in values.iter().enumerate() {
            let (row, column) = (rows.start + i as u64 / k, i as u64 % k);
            let at = (row / n * k + column) * n + row % n;
            assert_eq!(x.to_bits(), want[at as usize], "{} row {row} column {column}", tensor.name);
        }
        seen += 1;
    }
    assert_eq!(seen, 4);
}

/// The header of a file of weights, and its data.
fn parts(bytes: &[u8]) -> (Map<String, Value>, Vec<u8>) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), bytes[8 + length..].to_vec())
}

/// Writes the model with another header and configuration.
fn changed(change: impl FnOnce(&mut Map<String, Value>, &mut Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (mut header, data) = parts(&fs::read(golden("gpt_oss_mxfp4").join("model.safetensors")).unwrap());
    let read = fs::read(golden("gpt_oss_mxfp4").join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&read).unwrap();
    change(&mut header, &mut config);
    let header = Value::Object(header).to_string().into_bytes();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

#[test]
fn halves_that_do_not_fit_are_refused_by_name() {
    let renamed = |header: &mut Map<String, Value>, from: &str, to: &str| {
        let entry = header.remove(&format!("{NAME}{from}")).unwrap();
        header.insert(format!("{NAME}{to}"), entry);
    };
    let shape = |header: &mut Map<String, Value>, of: &str, shape: Value| {
        header[&format!("{NAME}{of}")]["shape"] = shape;
    };
    type Change<'c> = &'c dyn Fn(&mut Map<String, Value>, &mut Value);
    let cases: [(Change<'_>, &str, String); 7] = [
        (
            &|header, _| renamed(header, "_scales", "x_scales"),
            "model-tensor-missing",
            format!("no tensor `{NAME}_scales`"),
        ),
        (
            &|header, _| renamed(header, "_blocks", "_codes"),
            "model-file-corrupt",
            format!("tensor `{NAME}_codes` has dtype U8"),
        ),
        (
            &|header, _| shape(header, "_blocks", json!([5, 64, 4, 8])),
            "model-file-corrupt",
            "[5, 64, 4, 8]".into(),
        ),
        (
            &|header, _| shape(header, "_blocks", json!([5, 128, 1, 16])),
            "model-file-corrupt",
            "[5, 128, 1, 16]".into(),
        ),
        (&|header, _| shape(header, "_scales", json!([5, 32, 4])), "model-file-corrupt", "[5, 32, 4]".into()),
        (
            &|header, _| {
                shape(header, "_blocks", json!([5, 32, 4, 16]));
                shape(header, "_scales", json!([5, 32, 4]));
            },
            "model-tensor-shape",
            format!("tensor `{NAME}` has shape [5, 128, 32]"),
        ),
        (
            &|_, config| drop(config.as_object_mut().unwrap().remove("quantization_config")),
            "model-file-corrupt",
            "has dtype U8; F32, F16 and BF16 are read".into(),
        ),
    ];
    for (change, slug, words) in cases {
        let folder = changed(change);
        let error = open(folder.path()).unwrap_err();
        assert_eq!(error.slug, slug, "{error}");
        assert!(error.message.contains(&words), "{words}: {error}");
    }
    assert!(open(changed(|_, _| ()).path()).is_ok());
}
