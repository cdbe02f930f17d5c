//! Adapters in peft's files: read rightly, and refused by name when they are of another kind, lie or do not fit.

use crate::common;

use common::safetensors;
use plimsoll_arch::{
    Family, FileShape, LoraShape, LoraTarget, LoraTargets, ModelSpec, SightSpec, tower_adapted,
};
use plimsoll_files::{
    ADAPTER_CONFIG, ADAPTER_WEIGHTS, Adapter, Head, LoraPart, OpenModel, adapter_config_json,
    adapter_tensor_name, adapter_tensors, spec_from_config, tower_adapter_name,
};
use serde_json::{Value, json};
use std::path::Path;

const RANK: u32 = 3;

/// Two layers; hidden 4, q width 4, kv width 2, feed-forward 8.
fn model() -> ModelSpec {
    let mut config = common::config();
    config["num_hidden_layers"] = 2.into();
    spec_from_config(&config, "config.json").unwrap()
}

fn shape() -> LoraShape {
    LoraShape { rank: RANK, targets: LoraTargets::new([LoraTarget::Q, LoraTarget::Down]).unwrap() }
}

/// A configuration as peft 0.17 writes it.
fn config() -> Value {
    json!({
        "alpha_pattern": {}, "auto_mapping": null, "base_model_name_or_path": "org/base", "bias": "none",
        "corda_config": null, "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false,
        "inference_mode": true, "init_lora_weights": true, "layer_replication": null, "layers_pattern": null,
        "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 6, "lora_bias": false,
        "lora_dropout": 0.05, "megatron_config": null, "megatron_core": "megatron.core",
        "modules_to_save": null, "peft_type": "LORA", "qalora_group_size": 16, "r": RANK, "rank_pattern": {},
        "revision": null, "target_modules": ["down_proj", "q_proj"], "target_parameters": null,
        "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_dora": false, "use_qalora": false,
        "use_rslora": false,
    })
}

type Tensors = Vec<(String, Vec<u64>)>;

fn write(folder: &Path, config: &Value, tensors: &Tensors) {
    let (header, data) = common::header_and_data(tensors);
    std::fs::write(folder.join(ADAPTER_CONFIG), config.to_string()).unwrap();
    std::fs::write(folder.join(ADAPTER_WEIGHTS), safetensors(&Value::Object(header).to_string(), &data))
        .unwrap();
}

fn open(config: &Value, tensors: &Tensors) -> plimsoll_base::Result<Adapter> {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), config, tensors);
    Adapter::open(folder.path(), &model())
}

/// The good files with one change, and the error.
fn refusal(change: impl FnOnce(&mut Value, &mut Tensors)) -> plimsoll_base::Error {
    let (mut config, mut tensors) = (config(), adapter_tensors(shape(), &model()));
    change(&mut config, &mut tensors);
    open(&config, &tensors).expect_err("the files are wrong")
}

#[test]
fn names_are_those_of_peft() {
    let name = adapter_tensor_name(&model(), shape().targets, (11, None), LoraTarget::Gate, LoraPart::B);
    assert_eq!(name, "base_model.model.model.layers.11.mlp.gate_proj.lora_B.weight");
    let tensors = adapter_tensors(shape(), &model());
    assert_eq!(tensors.len(), 2 * 2 * 2);
    let first = ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".to_string(), vec![3, 4]);
    assert_eq!(tensors[0], first);
    assert_eq!((tensors[2].1.as_slice(), tensors[3].1.as_slice()), (&[3, 8][..], &[4, 3][..]));
    let values: u64 = tensors.iter().map(|(_, axes)| axes.iter().product::<u64>()).sum();
    assert_eq!(values, shape().parameters(&model()));
}

#[test]
fn an_adapter_is_read_value_by_value() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = adapter_tensors(shape(), &model());
    write(folder.path(), &config(), &tensors);
    let adapter = Adapter::open(folder.path(), &model()).unwrap();
    let found = &adapter.config;
    assert_eq!((found.shape(), found.alpha, found.rslora, found.scale()), (shape(), 6.0, false, 2.0));
    assert_eq!(found.base.as_deref(), Some("org/base"));
    for (staging_bytes, first) in [(4, 0), (7, 5), (4096, 0)] {
        let mut out = [f32::NAN; 7];
        let mut staging = vec![0; staging_bytes];
        adapter
            .read(
                &adapter_tensor_name(&model(), shape().targets, (1, None), LoraTarget::Q, LoraPart::B),
                first,
                &mut staging,
                &mut out,
            )
            .unwrap();
        let expect: Vec<f32> = (0..7).map(|i| common::value(5, first as usize + i)).collect();
        assert_eq!(out[..], expect, "tensor 5 of the list is layer 1, q, B");
    }
}

/// peft and vLLM take an adapter of a language model inside a larger one by the names that it has there.
#[test]
fn names_follow_what_the_base_is_part_of() {
    let wrapped = ModelSpec { is_wrapped: true, ..model() };
    let name = |model: &ModelSpec| {
        adapter_tensor_name(model, shape().targets, (1, None), LoraTarget::Q, LoraPart::B)
    };
    assert_eq!(
        name(&wrapped),
        "base_model.model.model.language_model.layers.1.self_attn.q_proj.lora_B.weight"
    );
    let folder = tempfile::tempdir().unwrap();
    for prefix in ["model.layers.", "model.language_model.layers.", "language_model.model.layers."] {
        let rename = |(name, shape): (String, Vec<u64>)| (name.replacen("model.layers.", prefix, 1), shape);
        let tensors: Tensors = adapter_tensors(shape(), &model()).into_iter().map(rename).collect();
        write(folder.path(), &config(), &tensors);
        for base in [&model(), &wrapped] {
            let (adapter, mut out) = (Adapter::open(folder.path(), base).unwrap(), [f32::NAN; 7]);
            adapter.read(&name(base), 0, &mut [0; 64], &mut out).unwrap();
            let expect: Vec<f32> = (0..7).map(|i| common::value(5, i)).collect();
            assert_eq!(out[..], expect, "{prefix}: tensor 5 of the list");
        }
    }
    let mut twice = adapter_tensors(shape(), &model());
    twice.push((twice[0].0.replacen("model.layers.", "model.language_model.layers.", 1), twice[0].1.clone()));
    write(folder.path(), &config(), &twice);
    assert_eq!(Adapter::open(folder.path(), &wrapped).unwrap_err().slug, "model-file-corrupt");
}

/// Those of a tower are next to those of its text, of all its linear layers.
#[test]
fn adapters_of_a_tower_are_all_there_or_refused() {
    let (wrapped, folder) = (ModelSpec { is_wrapped: true, ..model() }, tempfile::tempdir().unwrap());
    let tower = SightSpec::preset("tiny-vl").unwrap().tower;
    let mut all = adapter_tensors(shape(), &wrapped);
    for layer in tower_adapted(&tower).iter().flatten() {
        for (part, shape) in LoraPart::ALL.into_iter().zip([[RANK, layer.cols], [layer.rows, RANK]]) {
            all.push((tower_adapter_name(&layer.name, part), shape.map(u64::from).to_vec()));
        }
    }
    let has = |name: &str| all.iter().any(|(own, _)| own == name);
    assert!(has("base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight"));
    let mut config = config();
    let open = |config: &Value, tensors: &Tensors, sees: bool| {
        write(folder.path(), config, tensors);
        Adapter::open_seeing(folder.path(), &wrapped, || Ok(sees.then_some(tower)))
    };
    let found = open(&config, &all, true).expect("the tensors decide").config;
    assert_eq!((found.tower, found.shape()), (Some(tower), shape()));
    config["target_modules"] = adapter_config_json(&found, &wrapped)["target_modules"].clone();
    assert!(config["target_modules"].as_array().is_some_and(|names| names.contains(&json!("attn.qkv"))));
    let old = |(name, shape): &(String, Vec<u64>)| {
        (name.replace("model.model.visual", "model.visual"), shape.clone())
    };
    assert_eq!(
        open(&config, &all.iter().map(old).collect(), true).expect("old names").config.tower,
        Some(tower)
    );
    assert_eq!(open(&config, &all, false).unwrap_err().slug, "adapter-unsupported");
    let wrong = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = all.clone();
        change(&mut tensors);
        open(&config, &tensors, true).unwrap_err().slug
    };
    assert_eq!(wrong(&|all| drop(all.pop())), "adapter-damaged");
    assert_eq!(wrong(&|all| all.last_mut().unwrap().1[1] += 1), "adapter-damaged");
    let patches = "base_model.model.model.visual.patch_embed.proj.lora_A.weight";
    assert_eq!(wrong(&|all| all.push((patches.into(), vec![3, 4]))), "adapter-unsupported");
    let of_text =
        |tensors: &Tensors| tensors.iter().filter(|(name, _)| !name.contains("visual")).cloned().collect();
    assert_eq!(open(&config, &of_text(&all), true).expect("of the text alone").config.tower, None);
    config["target_modules"] = json!(["attn.qkv"]);
    assert_eq!(open(&config, &all, true).unwrap_err().slug, "adapter-unsupported");
}

#[test]
fn what_is_written_is_read_back() {
    for (alpha, rslora) in [(6.0, false), (1.5, true)] {
        let mut wanted = open(&config(), &adapter_tensors(shape(), &model())).unwrap().config;
        (wanted.alpha, wanted.rslora) = (alpha, rslora);
        wanted.base = rslora.then(|| "models/m".to_string());
        let written = adapter_config_json(&wanted, &model());
        assert_eq!(written["lora_alpha"].is_i64(), alpha == 6.0, "peft declares an integer");
        let again = open(&written, &adapter_tensors(shape(), &model())).unwrap();
        assert_eq!(again.config, wanted);
    }
}

#[test]
fn targets_are_those_that_have_tensors() {
    for modules in [
        json!("all-linear"),
        json!(r".*\.(q_proj|down_proj)"),
        json!(["self_attn.q_proj", "mlp.down_proj"]),
        json!(["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"]),
    ] {
        let mut config = config();
        config["target_modules"] = modules.clone();
        let found = open(&config, &adapter_tensors(shape(), &model()));
        assert_eq!(found.unwrap().config.targets, shape().targets, "{modules}");
    }
    let error = refusal(|config, _| config["target_modules"] = json!(["q_proj", "v_proj"]));
    assert_eq!(error.slug, "adapter-damaged", "{error}");
    assert!(error.message.contains("are q_proj, v_proj, and the weights have q_proj, down_proj"), "{error}");
}

#[test]
fn other_kinds_of_adapter_are_refused_by_key_and_value() {
    for (key, value) in [
        ("peft_type", json!("LOHA")),
        ("task_type", json!("TOKEN_CLS")),
        ("bias", json!("lora_only")),
        ("use_dora", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("rank_pattern", json!({ "q_proj": 8 })),
        ("alpha_pattern", json!({ "q_proj": 8 })),
        ("lora_bias", json!(true)),
        ("fan_in_fan_out", json!(true)),
        ("layers_to_transform", json!([0])),
        ("layer_replication", json!([[0, 1], [0, 1]])),
        ("trainable_token_indices", json!([1, 2])),
        ("target_parameters", json!(["experts"])),
        ("target_parameters", json!(["mlp.experts.gate.weight"])),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("init_lora_weights", json!("OLoRA")),
        ("init_lora_weights", json!("lora_ga")),
        ("init_lora_weights", json!("a way of next year")),
        ("kasa_config", json!({ "beta": 0.1 })),
        ("monteclora_config", json!({ "num_samples": 4 })),
        ("velora_config", json!({ "group_size": 4 })),
        ("use_next_years_kind", json!(true)),
        ("target_modules", json!(["q_proj", "lm_head"])),
        ("target_modules", json!(["query_key_value"])),
        ("r", json!(512)),
    ] {
        let error = refusal(|config, _| config[key] = value.clone());
        assert_eq!(error.slug, "adapter-unsupported", "{key}: {error}");
        assert!(error.message.contains(key) && !error.hints.is_empty(), "{key}: {error}");
    }
    for name in [
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.lm_head.lora_A.weight",
        "base_model.model.lm_head.modules_to_save.weight",
        "base_model.model.model.layers.0.self_attn.qkv_proj.lora_A.weight",
    ] {
        let error = refusal(|_, tensors| tensors.push((name.into(), vec![1, 1])));
        assert_eq!(error.slug, "adapter-unsupported", "{name}: {error}");
        assert!(error.message.contains(name), "{error}");
    }
}

#[test]
fn what_says_nothing_of_the_computation_is_left_alone() {
    for (key, value) in [
        ("init_lora_weights", json!("Gaussian")),
        ("init_lora_weights", json!("mica")),
        ("init_lora_weights", json!(false)),
        ("peft_version", json!("0.99")),
        ("qalora_group_size", json!(16)),
        ("eva_config", json!({ "rho": 2.0 })),
        ("next_years_kind", json!({})),
    ] {
        let mut config = config();
        config[key] = value.clone();
        open(&config, &adapter_tensors(shape(), &model())).unwrap_or_else(|e| panic!("{key} {value}: {e}"));
    }
}

/// The head of a reward model is in peft's file, whole, next to the adapters.
#[test]
fn an_adapter_of_a_reward_model_has_its_head() {
    const SCORE: &str = "base_model.model.score.weight";
    let scored = |modules: Value, score: Option<Vec<u64>>| {
        let (mut config, mut tensors) = (config(), adapter_tensors(shape(), &model()));
        (config["task_type"], config["modules_to_save"]) = (json!("SEQ_CLS"), modules);
        tensors.extend(score.map(|shape| (SCORE.to_string(), shape)));
        open(&config, &tensors)
    };
    for modules in [json!(["score"]), json!(["classifier", "score"]), Value::Null] {
        let adapter = scored(modules, Some(vec![1, 4])).unwrap();
        assert_eq!(adapter.config.head, Head::Score);
        let mut head = [f32::NAN; 4];
        adapter.read(SCORE, 0, &mut [0; 16], &mut head).unwrap();
        let last = adapter_tensors(shape(), &model()).len();
        assert_eq!(head.to_vec(), (0..4).map(|i| common::value(last, i)).collect::<Vec<f32>>());
        let written = adapter_config_json(&adapter.config, &model());
        assert_eq!(written["task_type"], "SEQ_CLS");
        assert_eq!(written["modules_to_save"], json!(["score"]));
    }
    for (modules, score, slug, words) in [
        (json!(["score"]), None, "adapter-damaged", "no tensor `base_model.model.score.weight`"),
        (json!(["score"]), Some(vec![1, 5]), "adapter-other-base", "5 columns, and the model is 4 wide"),
        (json!(["score"]), Some(vec![3, 4]), "adapter-unsupported", "is [3, 4], and the head"),
        (json!(["score"]), Some(vec![4]), "adapter-unsupported", "is [4], and the head"),
        (json!(["score", "embed_tokens"]), Some(vec![1, 4]), "adapter-unsupported", "trained in full"),
    ] {
        let error = scored(modules, score).unwrap_err();
        assert_eq!(error.slug, slug, "{error}");
        assert!(error.message.contains(words), "{error}");
    }
    let error = refusal(|_, tensors| tensors.push((SCORE.into(), vec![1, 4])));
    assert_eq!(error.slug, "adapter-damaged", "{error}");
    assert!(error.message.contains("task_type is not"), "{error}");
}

#[test]
fn configurations_that_lie_are_damaged() {
    for (key, value, words) in [
        ("r", json!(0), "r = 0, expected"),
        ("r", json!(-3), "r = -3"),
        ("r", json!("3"), "\"3\""),
        ("r", Value::Null, "`r` is absent"),
        ("lora_alpha", json!(0), "above 0"),
        ("lora_alpha", json!(1e300), "1e300"),
        ("lora_alpha", Value::Null, "`lora_alpha` is absent"),
        ("use_rslora", json!("yes"), "true or false"),
        ("target_modules", json!([]), "a list of names"),
        ("target_modules", json!([3]), "a list of names"),
        ("target_modules", Value::Null, "`target_modules` is absent"),
        ("peft_type", Value::Null, "`peft_type` is absent"),
        // The file says 4 and the tensors are of rank 3.
        ("r", json!(4), "with r = 4"),
        ("base_quantization", json!("nf5"), "\"nf4\""),
        // Rows of four weights: no run here can have made it.
        ("base_quantization", json!("nf4"), "no whole blocks of 64"),
    ] {
        let error = refusal(|config, _| config[key] = value.clone());
        assert_eq!(error.slug, "adapter-damaged", "{key} {value}: {error}");
        assert!(error.message.contains(words), "{key} {value}: {error}");
    }
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &config(), &adapter_tensors(shape(), &model()));
    for text in ["{\"r\":", "[]", &"[".repeat(100_000)] {
        std::fs::write(folder.path().join(ADAPTER_CONFIG), text).unwrap();
        assert_eq!(Adapter::open(folder.path(), &model()).unwrap_err().slug, "adapter-damaged");
    }
    std::fs::write(folder.path().join(ADAPTER_CONFIG), vec![b' '; 2 << 20]).unwrap();
    assert_eq!(Adapter::open(folder.path(), &model()).unwrap_err().slug, "model-file-corrupt");
}

#[test]
fn tensors_too_many_missing_or_of_a_wrong_rank_are_damaged() {
    let absent = refusal(|_, tensors| drop(tensors.remove(3)));
    assert_eq!(absent.slug, "adapter-damaged", "{absent}");
    assert!(absent.message.contains("layers.0.mlp.down_proj.lora_B.weight"), "{absent}");
    let unknown = ["x", "base_model.model.model.layers.01.mlp.down_proj.lora_B.weight", "lora_A.weight"];
    for name in unknown {
        let error = refusal(|_, tensors| tensors.push((name.into(), vec![1, 1])));
        assert_eq!(error.slug, "adapter-damaged", "{name}: {error}");
        assert!(error.message.contains(name), "{error}");
    }
    assert!(refusal(|_, tensors| tensors.clear()).message.contains("no tensors"));
    for (index, axes) in [(0, vec![4, 4]), (1, vec![4, 2]), (0, vec![12]), (1, vec![4, 3, 1])] {
        let error = refusal(|_, tensors| tensors[index].1 = axes.clone());
        assert_eq!(error.slug, "adapter-damaged", "{axes:?}: {error}");
        assert!(error.message.contains(&format!("{axes:?}")), "{error}");
    }
}

#[test]
fn an_adapter_of_another_model_names_its_base() {
    let wide = refusal(|_, tensors| tensors[0].1 = vec![3, 5]);
    let deep = {
        let two = model().file_shape();
        let model = FileShape { layers: 3, ..two }.spec();
        let (config, tensors) = (config(), adapter_tensors(shape(), &model));
        open(&config, &tensors).unwrap_err()
    };
    let shallow = refusal(|_, tensors| tensors.truncate(4));
    let far = refusal(|_, tensors| {
        tensors
            .push(("base_model.model.model.layers.4294967295.mlp.up_proj.lora_A.weight".into(), vec![3, 4]));
    });
    for (error, words) in [
        (wide, "has shape [3, 5], expected [3, 4]"),
        (deep, "is of layer 2, and the model has 2"),
        (shallow, "1 layers have an adapter, and the model has 2"),
        (far, "is of layer 4294967295"),
    ] {
        assert_eq!(error.slug, "adapter-other-base", "{error}");
        assert!(error.message.contains(words), "{error}");
        assert!(error.to_string().contains("the adapter was trained on org/base"), "{error}");
    }
}

#[test]
fn weights_are_checked_as_those_of_models_are() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = adapter_tensors(shape(), &model());
    write(folder.path(), &config(), &tensors);
    let path = folder.path().join(ADAPTER_WEIGHTS);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert_eq!(Adapter::open(folder.path(), &model()).unwrap_err().slug, "model-file-truncated");

    let (mut header, data) = common::header_and_data(&tensors);
    let quantised = json!({ "dtype": "U8", "shape": [48], "data_offsets": [0, 48] });
    header.insert(tensors[0].0.clone(), quantised);
    std::fs::write(&path, safetensors(&Value::Object(header).to_string(), &data)).unwrap();
    let error = Adapter::open(folder.path(), &model()).unwrap_err();
    assert!(error.message.contains("dtype U8; F32, F16 and BF16 are read"), "{error}");
}

#[test]
fn a_base_that_the_user_did_not_name_is_not_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config();
    config["base_model_name_or_path"] = json!("hf:no-such-org/no-such-base");
    write(folder.path(), &config, &adapter_tensors(shape(), &model()));
    let error = OpenModel::open(&folder.path().display().to_string(), None, true).unwrap_err();
    assert_eq!(error.slug, "model-not-local", "{error}");
    assert!(format!("{error:?}").contains("it is the base of the adapter"), "{error:?}");
}

#[test]
fn a_folder_that_is_no_adapter_says_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let hint = |words: &str| {
        let error = Adapter::open(folder.path(), &model()).unwrap_err();
        assert_eq!(error.slug, "model-file-missing", "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    hint("as peft's save_pretrained makes it");
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    hint("this is a whole model");
    std::fs::write(folder.path().join("adapter_model.bin"), "").unwrap();
    std::fs::write(folder.path().join(ADAPTER_CONFIG), "{}").unwrap();
    hint("only safetensors are read");
    let absent = Adapter::open(&folder.path().join("absent"), &model()).unwrap_err();
    assert_eq!(absent.slug, "model-file-missing", "{absent}");
}

/// Files that peft 0.17 saved, next to the tiny models that they belong to.
#[test]
fn files_of_peft_are_read() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden");
    for (name, model, targets, rslora) in [
        ("llama", "llama", "all-linear", false),
        ("llama_qv_rslora", "llama", "q_proj, v_proj", true),
        ("qwen2", "qwen2", "all-linear", false),
        ("qwen3", "qwen3", "all-linear", false),
        ("qwen3_moe", "qwen3_moe", "all-linear", false),
        ("qwen3_moe_mixed", "qwen3_moe_mixed", "v_proj, gate_proj, down_proj", false),
        (
            "qwen3_5_moe",
            "qwen3_5_moe",
            "q_proj, k_proj, v_proj, o_proj, in_proj_qkv, in_proj_z, in_proj_b, in_proj_a, out_proj, \
             shared_expert.gate_proj, shared_expert.up_proj, shared_expert.down_proj",
            false,
        ),
        ("qwen3_next", "qwen3_next", "q_proj, v_proj, o_proj, in_proj_qkvz, in_proj_ba, out_proj", false),
        (
            "qwen3_5_moe_experts",
            "qwen3_5_moe",
            "q_proj, in_proj_z, experts.gate_up_proj, experts.down_proj",
            false,
        ),
        ("glm4_moe_experts", "glm4_moe", "v_proj, experts.gate_up_proj", false),
        ("deepseek_v3", "deepseek_v3", "o_proj, q_a_proj, q_b_proj, kv_a_proj_with_mqa, kv_b_proj", false),
        (
            "moonlight",
            "moonlight",
            "q_proj, kv_b_proj, shared_experts.gate_proj, shared_experts.up_proj, shared_experts.down_proj",
            false,
        ),
    ] {
        let config = std::fs::read(golden.join(model).join("config.json")).unwrap();
        let spec = spec_from_config(&serde_json::from_slice(&config).unwrap(), "config.json").unwrap();
        let adapter = Adapter::open(&golden.join("lora").join(name), &spec).unwrap();
        let found = &adapter.config;
        assert_eq!((found.rank, found.alpha, found.rslora), (4, 8.0, rslora), "{name}");
        assert_eq!((found.targets.to_string().as_str(), found.base.as_deref()), (targets, Some(model)));
        let target = found.targets.iter().next().unwrap();
        let (_, width) = target.widths(&spec, 1);
        let mut out = vec![0.0; (width * found.rank) as usize];
        let tensor = adapter_tensor_name(&spec, found.targets, (1, None), target, LoraPart::B);
        adapter.read(&tensor, 0, &mut [0; 4096], &mut out).unwrap();
        assert!(out.iter().all(|value| value.is_finite() && *value != 0.0), "{name}: B is random");
    }
    // Of the same widths in some of the layers, and not in all.
    let config = std::fs::read(golden.join("qwen3/config.json")).unwrap();
    let spec = spec_from_config(&serde_json::from_slice(&config).unwrap(), "config.json").unwrap();
    let error = Adapter::open(&golden.join("lora/llama"), &spec).unwrap_err();
    assert_eq!(error.slug, "adapter-other-base", "{error}");
    // Of linear attention, where the base has none.
    let error = Adapter::open(&golden.join("lora/qwen3_5_moe"), &spec).unwrap_err();
    assert_eq!(error.slug, "adapter-other-base", "{error}");
    let words = "is of a linear layer that layer 0 of the model does not have";
    assert!(error.message.contains(words), "{error}");
    // The same widths where q, k and v are one tensor: a merge would not find them.
    let config = std::fs::read(golden.join("llama/config.json")).unwrap();
    let spec = spec_from_config(&serde_json::from_slice(&config).unwrap(), "config.json").unwrap();
    let error = Adapter::open(&golden.join("lora/llama"), &ModelSpec { family: Family::Phi3, ..spec });
    let error = error.unwrap_err();
    assert!(error.slug == "adapter-unsupported" && error.message.contains("`qkv_proj`"), "{error}");
}

#[test]
fn an_adapters_folder_opens_as_its_base_with_the_tokenizer_next_to_it() {
    let nano = OpenModel::open("builtin:nano", None, false).unwrap();
    let (folder, mut config) = (tempfile::tempdir().unwrap(), config());
    config["base_model_name_or_path"] = json!("builtin:nano");
    write(folder.path(), &config, &adapter_tensors(shape(), &nano.spec));
    let open = |folder: &Path| OpenModel::open(folder.to_str().unwrap(), None, false);
    let model = open(folder.path()).unwrap();
    assert_eq!((model.spec, model.tokenizer == nano.tokenizer), (nano.spec, true));
    assert_eq!(model.adapter.as_ref().map(|adapter| adapter.config.shape()), Some(shape()));
    std::fs::write(folder.path().join("tokenizer.json"), "{\"own\": 1}").unwrap();
    let own = open(folder.path()).unwrap().tokenizer.tokenizer_json;
    assert_eq!(own.as_deref(), Some(&b"{\"own\": 1}"[..]));
    // A base that is an adapter itself, and none.
    let above = tempfile::tempdir().unwrap();
    for (base, words) in
        [(json!(folder.path().to_str().unwrap()), "is an adapter"), (json!(null), "names no base")]
    {
        config["base_model_name_or_path"] = base;
        write(above.path(), &config, &adapter_tensors(shape(), &nano.spec));
        let error = open(above.path()).unwrap_err();
        assert!(error.slug == "adapter-damaged" && error.message.contains(words), "{error}");
    }
}
