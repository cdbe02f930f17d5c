//! Towers over images in models of text and images: sizes, names, and what is refused.

use plimsoll_arch::{Family, Gate, Gelu, ModelSpec, RopeAxes, TokenRun, TowerMlp, TowerNorm, tower_tensors};
use plimsoll_base::DType;
use plimsoll_files::{
    OpenModel, check_against, is_written_whole, sight_from_config, spec_from_config, whole_config_json,
    whole_name,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name)
}

fn config(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(name).join("config.json")).unwrap()).unwrap()
}

#[test]
fn towers_are_read_with_all_of_their_tensors() {
    for (name, family, axes, deep, parameters) in [
        ("qwen3_vl", Family::Qwen3, [4, 2, 2], &[0, 1][..], 44_640),
        ("qwen3_5_vl", Family::Qwen35, [2, 1, 1], &[], 40_248),
    ] {
        let model = OpenModel::open(golden(name).to_str().unwrap(), None, false).unwrap();
        check_against(&model).unwrap();
        let sight = model.sight().unwrap().unwrap();
        let tower = sight.tower;
        assert_eq!((model.spec.family, model.spec.is_wrapped), (family, true), "{name}");
        assert_eq!(sight.axes, RopeAxes::Woven(axes), "{name}");
        assert_eq!((sight.image_token, sight.around), (58, [56, 55]), "{name}");
        assert_eq!((tower.depth, tower.hidden, tower.heads, tower.ffn, tower.out), (2, 16, 2, 24, 32));
        assert_eq!((tower.patch, tower.merge, tower.frames, tower.positions), (4, 2, 2, Some(6)));
        assert_eq!((tower.mlp, tower.deep.as_slice()), (TowerMlp::Plain(Gelu::Tanh), deep), "{name}");
        assert_eq!(model.spec.parameters() + tower.parameters(), parameters, "{name}");
        let patch = &tower_tensors(&tower)[0];
        let (mut staging, mut out) = (vec![0; 4096], vec![0.0; patch.elements() as usize]);
        model.read_elements(&patch.name, 0, &mut staging, &mut out).unwrap();
        assert!(out.iter().all(|x| x.is_finite()) && out.iter().any(|x| *x != 0.0), "{name}");
    }
    let text = OpenModel::open(golden("qwen3").to_str().unwrap(), None, false).unwrap();
    assert_eq!(text.sight().unwrap(), None);
}

#[test]
fn towers_with_windows_are_read_from_files_of_both_ages() {
    let model = OpenModel::open(golden("qwen2_5_vl").to_str().unwrap(), None, false).unwrap();
    check_against(&model).unwrap();
    let (text, sight) = (model.spec, model.sight().unwrap().unwrap());
    let tower = sight.tower;
    assert_eq!((text.family, text.is_wrapped), (Family::Qwen2, true));
    assert_eq!((sight.axes, sight.image_token, sight.around), (RopeAxes::Runs([2, 3, 3]), 58, [56, 55]));
    assert_eq!((tower.norm, tower.mlp), (TowerNorm::Rms, TowerMlp::Gated(Gate::Silu)));
    assert_eq!((tower.window_side(), tower.sees_windows(0), tower.sees_windows(1)), (Some(2), true, false));
    assert_eq!((tower.positions, tower.patch_bias, tower.patch), (None, false, 4));
    assert_eq!(text.parameters() + tower.parameters(), 31_616);
    // Published files have the text's keys next to the tower's, and older names.
    let whole = config("qwen2_5_vl");
    let mut flat = whole.clone();
    let own = flat.as_object_mut().unwrap();
    let of_text = own.remove("text_config").unwrap();
    own.extend(of_text.as_object().unwrap().clone().into_iter().filter(|(key, _)| key != "model_type"));
    own.remove("rope_parameters");
    own.extend([
        ("rope_scaling".into(), json!({ "type": "mrope", "mrope_section": [2, 3, 3] })),
        ("rope_theta".into(), json!(1e6)),
    ]);
    flat["vision_config"]["in_chans"] = json!(3);
    let suppressed = sight.placeholders;
    assert_eq!(ModelSpec { suppressed, ..spec_from_config(&flat, "config.json").unwrap() }, text);
    assert_eq!(sight_from_config(&flat, &text, "config.json").unwrap(), Some(sight));
    for (key, value, slug) in [
        ("window_size", json!(7), "model-config-invalid"),
        ("window_size", json!(1 << 20), "model-config-invalid"),
        ("fullatt_block_indexes", json!([2]), "model-config-invalid"),
        ("fullatt_block_indexes", json!("all"), "model-config-invalid"),
        ("hidden_act", json!("quick_gelu"), "model-unsupported"),
        ("in_chans", json!(1), "model-unsupported"),
    ] {
        let mut changed = flat.clone();
        changed["vision_config"][key] = value.clone();
        let error = sight_from_config(&changed, &text, "config.json").unwrap_err();
        assert_eq!(error.slug, slug, "{key} = {value}: {error}");
    }
    // What neither kind of file says is as in the class, whose sizes are those of the largest model.
    let bare = json!({ "model_type": "qwen2_5_vl", "vision_config": {} });
    let published = ModelSpec::preset("qwen2.5-72b").unwrap();
    let expect = ModelSpec { rms_eps: 1e-5, is_wrapped: true, max_positions: 32_768, ..published };
    assert_eq!(spec_from_config(&bare, "config.json").unwrap(), expect);
}

#[test]
fn what_files_leave_out_is_as_published() {
    // Qwen3-VL-8B writes all; a bare object has the class's sizes.
    let text = ModelSpec { hidden: 3584, ..ModelSpec::preset("qwen3-8b").unwrap() };
    let bare = json!({ "model_type": "qwen3_vl", "vision_config": {} });
    let sight = sight_from_config(&bare, &text, "config.json").unwrap().unwrap();
    assert_eq!((sight.tower.depth, sight.tower.hidden, sight.tower.head_dim()), (27, 1152, 72));
    assert_eq!((sight.tower.positions, sight.tower.deep.as_slice()), (Some(48), &[8, 16, 24][..]));
    assert_eq!((sight.axes, sight.image_token), (RopeAxes::Woven([24, 20, 20]), 151_655));
    let other = json!({ "model_type": "gemma3", "vision_config": {} });
    assert_eq!(sight_from_config(&other, &text, "config.json").unwrap(), None);
}

#[test]
fn towers_that_are_not_built_are_refused_by_key() {
    let plain = config("qwen3_vl");
    let text = OpenModel::open(golden("qwen3_vl").to_str().unwrap(), None, false).unwrap().spec;
    for (key, value, slug) in [
        ("num_heads", json!(3), "model-config-invalid"),
        ("num_heads", json!(0), "model-config-invalid"),
        ("depth", json!(1_000_000), "model-config-invalid"),
        ("hidden_size", json!(4_000_000_000_u32), "model-config-invalid"),
        ("patch_size", json!(-1), "model-config-invalid"),
        ("spatial_merge_size", json!(1000), "model-config-invalid"),
        ("num_position_embeddings", json!(37), "model-config-invalid"),
        ("out_hidden_size", json!(33), "model-config-invalid"),
        ("in_channels", json!(1), "model-unsupported"),
        ("hidden_act", json!("relu"), "model-unsupported"),
        ("deepstack_visual_indexes", json!([0, 2]), "model-config-invalid"),
        ("deepstack_visual_indexes", json!([1, 0]), "model-unsupported"),
        ("deepstack_visual_indexes", json!([0, "1"]), "model-config-invalid"),
        ("rope_parameters", json!({ "rope_theta": -1.0 }), "model-config-invalid"),
    ] {
        let mut changed = plain.clone();
        changed["vision_config"][key] = value.clone();
        let error = sight_from_config(&changed, &text, "config.json").unwrap_err();
        assert_eq!(error.slug, slug, "{key} = {value}: {error}");
    }
    for section in [json!([4, 2]), json!([4, 2, 3]), json!("4"), json!([-4, 2, 2])] {
        let mut changed = plain.clone();
        changed["text_config"]["rope_parameters"]["mrope_section"] = section;
        let error = sight_from_config(&changed, &text, "config.json").unwrap_err();
        assert_eq!(error.slug, "model-config-invalid", "{error}");
    }
}

#[test]
fn a_tower_without_its_tensors_is_refused_where_it_is_asked_for() {
    for (change, slug) in [(json!({ "depth": 3 }), "model-tensor-missing"), (json!({ "ffn": 0 }), "")] {
        let folder = tempfile::tempdir().unwrap();
        let mut changed = config("qwen3_5_vl");
        changed["vision_config"].as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        std::fs::write(folder.path().join("config.json"), changed.to_string()).unwrap();
        let weights = "model.safetensors";
        std::fs::copy(golden("qwen3_5_vl").join(weights), folder.path().join(weights)).unwrap();
        // The text opens, whatever the tower is.
        let model = OpenModel::open(folder.path().to_str().unwrap(), None, false).unwrap();
        check_against(&model).unwrap();
        assert_eq!(model.sight().map_err(|error| error.slug).err().unwrap_or_default(), slug);
    }
}

/// Returns a file of the golden model whose matrices of experts have outputs as rows.
fn turned(from: &[u8]) -> Vec<u8> {
    let begins = 8 + u64::from_le_bytes(from[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&from[8..begins]).unwrap();
    let mut data = from[begins..].to_vec();
    for (_, tensor) in
        header.as_object_mut().unwrap().iter_mut().filter(|(name, _)| name.contains(".experts."))
    {
        let number = |value: &Value| value.as_u64().unwrap() as usize;
        let [experts, rows, columns] = [0, 1, 2].map(|axis| number(&tensor["shape"][axis]));
        let first = number(&tensor["data_offsets"][0]);
        for (expert, row, column) in
            (0..experts * rows * columns).map(|i| (i / (rows * columns), i / columns % rows, i % columns))
        {
            let at = |i: usize| 4 * (expert * rows * columns + i);
            let value = &from[begins + first + at(row * columns + column)..][..4];
            data[first + at(column * rows + row)..][..4].copy_from_slice(value);
        }
        tensor["shape"] = json!([experts, columns, rows]);
    }
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

#[test]
fn experts_in_one_tensor_are_read_apart_whichever_way_they_are_turned() {
    let open = |folder: &Path| OpenModel::open(folder.to_str().unwrap(), None, false).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(golden("qwen3_vl_moe/config.json"), folder.path().join("config.json")).unwrap();
    let bytes = std::fs::read(golden("qwen3_vl_moe/model.safetensors")).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), turned(&bytes)).unwrap();
    let models = [open(&golden("qwen3_vl_moe")), open(folder.path())];
    let spec = models[0].spec;
    assert_eq!((spec.family, spec.is_wrapped, models[1].spec), (Family::Qwen3Moe, true, spec));
    let experts = spec.layer(1).experts().unwrap();
    assert!(experts.normalizes && !experts.is_fused && spec.layer(0).experts().is_none());
    assert_eq!(models[0].sight().unwrap().unwrap().tower.deep.as_slice(), [1]);
    for model in &models {
        check_against(model).unwrap();
    }
    for (matrix, [n, k]) in [("gate_proj", [48, 32]), ("up_proj", [48, 32]), ("down_proj", [32, 48])] {
        for (expert, rows) in [(0, 0..n), (2, 5..9), (1, n - 1..n)] {
            let name = format!("model.layers.1.mlp.experts.{expert}.{matrix}.weight");
            let [a, b] = [0, 1].map(|of| {
                let mut out = vec![0.0; ((rows.end - rows.start) * k) as usize];
                models[of].read_rows(&name, rows.clone(), &mut [0; 64], &mut out).unwrap();
                out
            });
            assert!(a == b && a.iter().any(|x| *x != 0.0), "{name} {rows:?}");
        }
    }
}

#[test]
fn what_is_written_of_a_whole_model_is_read_again() {
    for preset in ["tiny-vl", "qwen2.5-vl-3b", "qwen3-vl-4b", "qwen3.5-0.8b", "qwen3.5-35b-a3b"] {
        let model = OpenModel::open(&format!("random:{preset}"), None, false).unwrap();
        let (spec, sight) = (model.spec, model.sight().unwrap().unwrap());
        let whole = whole_config_json(&model, &spec, &sight, DType::Bf16, &model.token_ids()).unwrap();
        let read = ModelSpec { suppressed: sight.placeholders, ..spec_from_config(&whole, preset).unwrap() };
        assert_eq!(read, ModelSpec { is_wrapped: true, ..spec }, "{preset}");
        assert_eq!(sight_from_config(&whole, &spec, preset).unwrap(), Some(sight), "{preset}");
    }
    // That of files stays as it is, but for the dtype.
    for (name, dtype) in [("qwen3_vl", "bfloat16"), ("qwen2_5_vl", "bfloat16")] {
        let model = OpenModel::open(golden(name).to_str().unwrap(), None, false).unwrap();
        let sight = model.sight().unwrap().unwrap();
        let mut whole =
            whole_config_json(&model, &model.spec, &sight, DType::Bf16, &model.token_ids()).unwrap();
        let published = config(name);
        for key in ["dtype", "torch_dtype"] {
            if let Some(own) = published.get(key) {
                assert_eq!(whole[key], dtype, "{name}");
                whole[key] = own.clone();
            }
        }
        for part in ["text_config", "vision_config"] {
            whole[part] = published[part].clone();
        }
        assert_eq!(whole, published, "{name}");
        assert_eq!(sight.placeholders, TokenRun { first: 57, count: 2 });
    }
    let of_experts = OpenModel::open(golden("qwen3_vl_moe").to_str().unwrap(), None, false).unwrap();
    assert!(!is_written_whole(of_experts.spec.family));
    let names = ["model.norm.weight", "lm_head.weight", "model.visual.pos_embed.weight"];
    let whole = ["model.language_model.norm.weight", names[1], names[2]];
    assert_eq!(names.map(whole_name), whole);
}
