//! Directories of safetensors: read rightly, and refused by name when they are cut, bent or lie.

use crate::common;

use common::*;
use plimsoll_files::{OpenModel, check_against};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;

fn open(dir: &Path) -> Result<OpenModel, plimsoll_base::Error> {
    let model = OpenModel::open(dir.to_str().unwrap(), None, false)?;
    check_against(&model)?;
    Ok(model)
}

/// The slug and message of opening a model with these weights.
fn refusal(weights: &[u8]) -> (&'static str, String) {
    let dir = tempfile::tempdir().unwrap();
    let error = open(&directory(dir.path(), weights)).expect_err("the file is wrong");
    (error.slug, error.message)
}

/// The valid file with its header changed.
fn bent(change: impl Fn(&mut serde_json::Map<String, Value>)) -> Vec<u8> {
    let (mut header, data) = header_and_data(&shapes());
    change(&mut header);
    safetensors(&Value::Object(header).to_string(), &data)
}

#[test]
fn rows_are_read_through_any_staging() {
    let dir = tempfile::tempdir().unwrap();
    let model = open(&directory(dir.path(), &valid_safetensors())).unwrap();
    assert_eq!(model.eos_token_ids, [1]);
    assert_eq!(model.file_bytes, valid_safetensors().len() as u64);
    for staging_bytes in [4, 6, 64, 4096] {
        let mut staging = vec![0; staging_bytes];
        for (number, (name, shape)) in shapes().iter().enumerate() {
            let width = shape[1..].iter().product::<u64>() as usize;
            for rows in [0..shape[0], 1..shape[0], 1..2, 2..2] {
                let mut out = vec![f32::NAN; (rows.end - rows.start) as usize * width];
                model.read_rows(name, rows.clone(), &mut staging, &mut out).unwrap();
                let first = rows.start as usize * width;
                let expect: Vec<f32> = (first..first + out.len()).map(|i| value(number, i)).collect();
                assert_eq!(out, expect, "{name} {rows:?}");
            }
        }
    }
    let unknown = model.read_rows("x", 0..1, &mut [0; 8], &mut [0.0]).unwrap_err();
    assert_eq!(unknown.slug, "model-tensor-missing");
}

#[test]
fn bf16_and_f16_become_f32() {
    let dir = tempfile::tempdir().unwrap();
    let header = json!({ "a": { "dtype": "BF16", "shape": [3], "data_offsets": [0, 6] },
                         "b": { "dtype": "F16", "shape": [1, 2], "data_offsets": [6, 10] } });
    let bf16 = [1.0f32, -2.5, f32::INFINITY].map(|v| half::bf16::from_f32(v).to_le_bytes()).concat();
    let f16 = [0.1f32, 65504.0].map(|v| half::f16::from_f32(v).to_le_bytes()).concat();
    let path = directory(dir.path(), &safetensors(&header.to_string(), &[bf16, f16].concat()));
    let model = OpenModel::open(path.to_str().unwrap(), None, false).unwrap();
    let (mut a, mut b) = ([0.0; 3], [0.0; 2]);
    model.read_rows("a", 0..3, &mut [0; 16], &mut a).unwrap();
    model.read_rows("b", 0..1, &mut [0; 16], &mut b).unwrap();
    assert_eq!(a, [1.0, -2.5, f32::INFINITY]);
    assert_eq!(b, [half::f16::from_f32(0.1).to_f32(), 65504.0]);
}

#[test]
fn a_cut_file_is_truncated_wherever_it_is_cut() {
    let whole = valid_safetensors();
    for bytes in [0, 7, 8, 9, 100, whole.len() - 1] {
        let (slug, message) = refusal(&whole[..bytes]);
        assert_eq!(slug, "model-file-truncated", "{bytes}: {message}");
        assert!(message.contains("model.safetensors"), "{message}");
    }
}

#[test]
fn lying_headers_are_corrupt() {
    let entry =
        |shape: Value, offsets: Value| json!({ "dtype": "F32", "shape": shape, "data_offsets": offsets });
    let embed = "model.embed_tokens.weight";
    let norm = "model.norm.weight";
    let set = |name: &'static str, value: Value| bent(move |h| drop(h.insert(name.into(), value.clone())));
    let two = {
        let (header, data) = header_and_data(&shapes()[..1]);
        let text = Value::Object(header).to_string();
        let doubled = format!("{},{}", &text[..text.len() - 1], &text[1..]);
        safetensors(&doubled, &data)
    };
    for (what, weights, words) in [
        ("huge shape", set(embed, entry(json!([4294967296u64, 4294967296u64]), json!([0, 96]))), "overflows"),
        ("other size", set(embed, entry(json!([6, 5]), json!([0, 96]))), "takes 120 bytes"),
        ("negative offset", set(embed, entry(json!([6, 4]), json!([-96, 0]))), "not valid"),
        ("negative axis", set(embed, entry(json!([-6, 4]), json!([0, 96]))), "not valid"),
        ("ends before it begins", set(embed, entry(json!([6, 4]), json!([96, 0]))), "before it begins"),
        ("overlap", set(norm, entry(json!([4]), json!([0, 16]))), "inside the one that ends at"),
        ("hole", set(embed, entry(json!([5, 4]), json!([0, 80]))), "nothing owns"),
        ("zero axis", set(embed, entry(json!([0, 4]), json!([0, 0]))), "none of them 0"),
        ("no axis", set(embed, entry(json!([]), json!([0, 4]))), "one to 8 axes"),
        (
            "other dtype",
            set(embed, json!({ "dtype": "I64", "shape": [6, 2], "data_offsets": [0, 96] })),
            "I64",
        ),
        ("fields missing", set(embed, json!({ "dtype": "F32" })), "not valid"),
        ("twice", two, "twice"),
        ("more bytes than tensors", [valid_safetensors(), vec![0; 3]].concat(), "bytes follow"),
        ("no JSON", safetensors("{\"a\":", &[]), "not valid"),
        ("no object", safetensors("[]", &[]), "not valid"),
        ("deep", safetensors(&"[".repeat(100_000), &[]), "not valid"),
        ("huge header", [&(100_000_001u64).to_le_bytes()[..], &[b' '; 64]].concat(), "100000001"),
    ] {
        let (slug, message) = refusal(&weights);
        assert_eq!(slug, "model-file-corrupt", "{what}: {message}");
        assert!(message.contains(words), "{what}: {message}");
    }
    let beyond = set(norm, entry(json!([4611686018427387904u64]), json!([0, u64::MAX])));
    assert_eq!(refusal(&beyond).0, "model-file-corrupt");
    // The last tensor grows beyond the data; its beginning is where the one before it ends.
    let longer = bent(|h| {
        let start = h[norm]["data_offsets"][0].as_u64().unwrap();
        h.insert(norm.into(), entry(json!([400]), json!([start, start + 1600])));
    });
    assert_eq!(refusal(&longer).0, "model-file-truncated");
}

#[test]
fn tensors_must_be_those_of_the_config() {
    let drop_last = |n: usize| {
        let (header, data) = header_and_data(&shapes()[..shapes().len() - n]);
        safetensors(&Value::Object(header).to_string(), &data)
    };
    let plus = |name: &str, shape: Vec<u64>| {
        let mut all = shapes();
        all.push((name.into(), shape));
        let (header, data) = header_and_data(&all);
        safetensors(&Value::Object(header).to_string(), &data)
    };
    let mut turned = shapes();
    turned[9].1 = vec![8, 4];
    let (header, data) = header_and_data(&turned);
    for (weights, slug, words) in [
        (drop_last(1), "model-tensor-missing", "`model.norm.weight` (1 missing)"),
        (drop_last(2), "model-tensor-missing", "(2 missing)"),
        (plus("model.layers.0.mlp.experts.0", vec![2]), "model-tensor-unexpected", "experts"),
        (plus("base_model.lora_A.weight", vec![2, 2]), "model-tensor-unexpected", "lora_A"),
        (
            safetensors(&Value::Object(header).to_string(), &data),
            "model-tensor-shape",
            "[8, 4], the config gives [4, 8]",
        ),
    ] {
        let (found, message) = refusal(&weights);
        assert_eq!(found, slug, "{message}");
        assert!(message.contains(words), "{message}");
    }
    let dir = tempfile::tempdir().unwrap();
    open(&directory(dir.path(), &plus("model.layers.0.self_attn.rotary_emb.inv_freq", vec![6, 4]))).unwrap();
    // The head of a tied model is left alone where it is the embedding, and refused where it is another.
    let (slug, message) = refusal(&plus("lm_head.weight", vec![6, 4]));
    assert_eq!(slug, "model-tensor-unexpected", "{message}");
    assert!(message.contains("differs from the embedding in row 0"), "{message}");
    let (mut header, mut data) = header_and_data(&shapes());
    let mut entry = header["model.embed_tokens.weight"].clone();
    let offsets = [0, 1].map(|i| entry["data_offsets"][i].as_u64().unwrap() as usize);
    let end = data.len();
    data.extend_from_within(offsets[0]..offsets[1]);
    entry["data_offsets"] = json!([end, data.len()]);
    header.insert("lm_head.weight".into(), entry);
    open(&directory(dir.path(), &safetensors(&Value::Object(header).to_string(), &data))).unwrap();
}

#[test]
fn shards_are_read_and_must_agree_with_their_index() {
    let dir = tempfile::tempdir().unwrap();
    let all = shapes();
    std::fs::write(dir.path().join("config.json"), config().to_string()).unwrap();
    let shard = |tensors: &[(String, Vec<u64>)]| {
        let (header, data) = header_and_data(tensors);
        safetensors(&Value::Object(header).to_string(), &data)
    };
    let index = |map: Value| {
        std::fs::write(
            dir.path().join("model.safetensors.index.json"),
            json!({ "weight_map": map }).to_string(),
        )
        .unwrap()
    };
    std::fs::write(dir.path().join("a.safetensors"), shard(&all[..4])).unwrap();
    std::fs::write(dir.path().join("b.safetensors"), shard(&all[4..])).unwrap();
    let owner = |i: usize| if i < 4 { "a.safetensors" } else { "b.safetensors" };
    let map: Value = all
        .iter()
        .enumerate()
        .map(|(i, (n, _))| (n.clone(), json!(owner(i))))
        .collect::<serde_json::Map<_, _>>()
        .into();
    index(map.clone());
    let model = open(dir.path()).unwrap();
    assert_eq!(model.tensors.len(), all.len());
    let mut norm = [0.0; 4];
    model.read_rows("model.norm.weight", 0..4, &mut [0; 16], &mut norm).unwrap();
    assert_eq!(norm[1], value(6, 1)); // the seventh tensor of its shard
    let with = |name: &str, value: Value| {
        let mut map = map.clone();
        if value.is_null() {
            drop(map.as_object_mut().unwrap().remove(name))
        } else {
            map[name] = value
        };
        map
    };
    for (map, slug) in [
        (with("model.norm.weight", json!("a.safetensors")), "model-file-corrupt"),
        (with("model.norm.weight", Value::Null), "model-file-corrupt"),
        (with("model.norm.weight", json!("../b.safetensors")), "model-file-corrupt"),
        (with("model.norm.weight", json!("/etc/passwd")), "model-file-corrupt"),
        (with("lm_head.weight", json!("a.safetensors")), "model-tensor-missing"),
        (with("lm_head.weight", json!("c.safetensors")), "model-file-missing"),
        (json!(7), "model-file-corrupt"),
    ] {
        index(map.clone());
        assert_eq!(open(dir.path()).unwrap_err().slug, slug, "{map}");
    }
}

#[test]
fn absent_and_strange_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let slug = |path: &Path| open(path).unwrap_err().slug;
    assert_eq!(slug(&dir.path().join("gone")), "model-file-missing");
    assert_eq!(slug(dir.path()), "model-file-missing");
    std::fs::write(dir.path().join("config.json"), "{").unwrap();
    assert_eq!(slug(dir.path()), "model-file-corrupt");
    assert_eq!(slug(&dir.path().join("config.json")), "model-file-unreadable");
    std::fs::write(dir.path().join("config.json"), config().to_string()).unwrap();
    assert_eq!(slug(dir.path()), "model-file-missing");
    std::fs::create_dir(dir.path().join("model.safetensors")).unwrap();
    assert_eq!(slug(dir.path()), "model-file-unreadable");
    std::fs::remove_dir(dir.path().join("model.safetensors")).unwrap();
    std::os::unix::fs::symlink("model.safetensors", dir.path().join("model.safetensors")).unwrap();
    assert_eq!(slug(dir.path()), "model-file-unreadable");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Random bytes are refused; they never panic and never allocate what they announce.
    #[test]
    fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        refusal(&bytes);
    }

    /// A valid file with some bytes changed is refused by name or is still a whole model; every row can be read.
    #[test]
    fn bent_files_never_panic(changes in proptest::collection::vec((0usize..1200, any::<u8>()), 1..6)) {
        let mut bytes = valid_safetensors();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let dir = tempfile::tempdir().unwrap();
        if let Ok(model) = open(&directory(dir.path(), &bytes)) {
            for tensor in &model.tensors {
                let mut out = vec![0.0; tensor.shape.iter().product::<u64>() as usize];
                model.read_rows(&tensor.name, 0..tensor.shape[0], &mut [0; 64], &mut out).unwrap();
            }
        }
    }
}
