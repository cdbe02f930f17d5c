//! Model files that are missing, cut, bent, lying or of another kind, through `generate`, `plan` and `train`.

use super::folder::{folder, nano};
use crate::common::{check_error, check_refused, command, plimsoll, text};
use crate::made::{self, Meta};
use crate::run::{Run, refs};
use serde_json::{Value, json};

/// Asks every verb that opens a model; each must refuse it by `slug`, and `train` before it makes a directory.
fn check_model(folder: &Run, model: &str, case: &str, code: i32, slug: &str, contains: &[&str]) {
    let head = format!("error[{slug}]: ");
    let contains: Vec<&str> = std::iter::once(head.as_str()).chain(contains.iter().copied()).collect();
    println!("{case}: {slug}");
    check_refused(&["generate", "--model", model, "--prompt", "1+2="], code, &contains);
    let set = format!("model={model}");
    check_refused(&["plan", &folder.text_path("x.toml"), "--set", &set], code, &contains);
    folder.check_train(&[&set], code, &contains);
}

#[test]
fn a_model_that_is_nowhere() {
    let folder = folder();
    folder.write("empty.gguf", "");
    folder.write("words.gguf", "these are no weights");
    folder.write("file", "x");
    for (model, code, slug, contains) in [
        (folder.text_path("absent"), 1, "model-file-missing", "absent"),
        (folder.text_path("absent.gguf"), 1, "model-file-missing", "absent.gguf"),
        (folder.text_path("empty.gguf"), 1, "model-file-corrupt", "empty.gguf"),
        (folder.text_path("words.gguf"), 1, "model-file-corrupt", "`GGUF`"),
        (folder.text_path("file"), 1, "model-file-unreadable", "not a directory"),
        (folder.text_path(""), 1, "model-file-missing", "config.json"),
        ("random:smollm2-135".into(), 2, "unknown-preset", "did you mean random:smollm2-135m?"),
        ("builtin:micro".into(), 2, "model-source-invalid", "nano"),
        ("hf:../../etc".into(), 2, "model-source-invalid", "org/name"),
        ("s3:bucket".into(), 2, "model-source-invalid", "s3"),
    ] {
        check_model(&folder, &model, &model, code, slug, &[contains]);
    }
}

type Damage = fn(&mut Vec<u8>);

/// Rewrites the header of a safetensors file.
fn with_header(bytes: &mut Vec<u8>, change: impl Fn(&mut Value)) {
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    change(&mut header);
    *bytes = made::safetensors(&header.to_string(), &bytes[8 + length..]);
}

fn set_embed(bytes: &mut Vec<u8>, key: &str, value: Value) {
    with_header(bytes, |header| header["model.embed_tokens.weight"][key] = value.clone());
}

const SAFETENSORS: &[(&str, &str, Damage)] = &[
    ("empty", "model-file-truncated", |b| b.clear()),
    ("length cut", "model-file-truncated", |b| b.truncate(5)),
    ("header cut", "model-file-truncated", |b| b.truncate(100)),
    ("data cut", "model-file-truncated", |b| b.truncate(b.len() - 1)),
    ("data too long", "model-file-corrupt", |b| b.push(0)),
    ("header beyond the file", "model-file-truncated", |b| b[3] = 4),
    ("header of exabytes", "model-file-corrupt", |b| b[7] = 0x7f),
    ("bit in the opening brace", "model-file-corrupt", |b| b[8] ^= 1),
    ("bit in the middle of the header", "model-file-corrupt", |b| {
        let quote = b[9..].iter().position(|&c| c == b'"').expect("a quote") + 9;
        b[quote] ^= 0x80;
    }),
    ("shape of 2^60 rows", "model-file-corrupt", |b| set_embed(b, "shape", json!([1u64 << 60, 128]))),
    ("shape whose product overflows", "model-file-corrupt", |b| {
        set_embed(b, "shape", json!([1u64 << 40, 1u64 << 40]));
    }),
    ("shape below zero", "model-file-corrupt", |b| set_embed(b, "shape", json!([-15, 128]))),
    ("shape without axes", "model-file-corrupt", |b| set_embed(b, "shape", json!([]))),
    ("offset below zero", "model-file-corrupt", |b| set_embed(b, "data_offsets", json!([-4, 4]))),
    ("offsets reversed", "model-file-corrupt", |b| set_embed(b, "data_offsets", json!([3840, 0]))),
    ("offsets of another tensor", "model-file-corrupt", |b| {
        with_header(b, |header| {
            let other = header["model.norm.weight"]["data_offsets"].clone();
            header["model.embed_tokens.weight"]["data_offsets"] = other;
        });
    }),
    ("offsets beyond 2^63", "model-file-corrupt", |b| {
        set_embed(b, "data_offsets", json!([u64::MAX - 3840, u64::MAX]));
    }),
    ("an integer dtype", "model-file-corrupt", |b| set_embed(b, "dtype", json!("I64"))),
    ("another shape", "model-tensor-shape", |b| set_embed(b, "shape", json!([30, 64]))),
    ("a tensor renamed", "model-tensor-missing", |b| {
        with_header(b, |header| {
            let tensors = header.as_object_mut().expect("an object");
            let tensor = tensors.remove("model.norm.weight").expect("it has a norm");
            tensors.insert("model.norm.weights".into(), tensor);
        });
    }),
];

#[test]
fn safetensors_that_are_cut_bent_or_lie() {
    let folder = folder();
    let dir = nano(&folder, "m");
    let model = folder.text_path("m");
    let whole = std::fs::read(dir.join("model.safetensors")).expect("the weights");
    let answer = plimsoll(&["generate", "--model", &model, "--prompt", "1+2=", "--max-new-tokens", "3"]);
    assert_eq!(answer.status.code(), Some(0), "{}", text(&answer.stderr));
    for (case, slug, damage) in SAFETENSORS {
        let mut bytes = whole.clone();
        damage(&mut bytes);
        std::fs::write(dir.join("model.safetensors"), bytes).expect("a file");
        check_model(&folder, &model, case, 1, slug, &[]);
    }
    std::fs::remove_file(dir.join("model.safetensors")).expect("it was there");
    check_model(&folder, &model, "no weights", 1, "model-file-missing", &["model.safetensors"]);
    std::fs::write(dir.join("pytorch_model.bin"), "x").expect("a file");
    check_model(&folder, &model, "pickled weights", 1, "model-file-missing", &["save_pretrained"]);
}

#[test]
fn a_weight_that_is_no_number_is_named_before_anything_is_made() {
    let folder = folder();
    let path = nano(&folder, "m").join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("the weights");
    let end = bytes.len();
    bytes[end - 2..].copy_from_slice(&0x7fc0u16.to_le_bytes()); // a bf16 NaN in the last tensor
    std::fs::write(path, bytes).expect("a file");
    let contains = &["error[model-weight-not-finite]: tensor `", "NaN"];
    check_refused(&["generate", "--model", &folder.text_path("m"), "--prompt", "1+2="], 1, contains);
    folder.check_train(&[&format!("model={}", folder.text_path("m"))], 1, contains);
}

type Lie = fn(&mut Vec<(&'static str, Meta)>, &mut Vec<made::Listed>);

const GGUF: &[(&str, &str, Lie)] = &[
    ("tensors overlap", "model-file-corrupt", |_, t| t[3].offset = t[2].offset),
    ("offset below zero", "model-file-corrupt", |_, t| t[1].offset = -32i64 as u64),
    ("offset beyond the file", "model-file-truncated", |_, t| t[1].offset = 1 << 40),
    ("offset that is not aligned", "model-file-corrupt", |_, t| t[1].offset += 1),
    ("shape of 2^60", "model-file-corrupt", |_, t| t[2].shape = vec![1 << 60, 4]),
    ("shape whose product overflows", "model-file-corrupt", |_, t| t[2].shape = vec![1 << 62, 1 << 62]),
    ("shape with a zero", "model-file-corrupt", |_, t| t[2].shape = vec![0, 4]),
    ("unknown encoding", "model-unsupported", |_, t| t[2].kind = 39),
    ("a tensor is missing", "model-tensor-missing", |_, t| drop(t.pop())),
    ("another shape", "model-tensor-shape", |_, t| t[2].shape = vec![2, 8]),
    ("another architecture", "model-unsupported", |m, _| m[0].1 = Meta::Str("mamba")),
    ("no architecture", "model-config-invalid", |m, _| drop(m.remove(0))),
    ("hidden size of four billion", "model-config-invalid", |m, _| m[1].1 = Meta::U32(u32::MAX)),
    ("hidden size of zero", "model-config-invalid", |m, _| m[1].1 = Meta::U32(0)),
    ("hidden size as text", "model-config-invalid", |m, _| m[1].1 = Meta::Str("four")),
    ("a list of 2^60 tokens", "model-file-corrupt", |m, _| {
        let list = [8u32.to_le_bytes().to_vec(), (1u64 << 60).to_le_bytes().to_vec()].concat();
        m.push(("tokenizer.ggml.scores", Meta::Raw(9, list)));
    }),
    ("a value of unknown type", "model-file-corrupt", |m, _| m.push(("x", Meta::Raw(77, vec![0; 8])))),
    ("a key twice", "model-file-corrupt", |m, _| m.push(("general.architecture", Meta::Str("llama")))),
];

/// Hidden size, query heads, key-value heads, head dimension, feed-forward, vocabulary.
struct Dims(u64, u64, u64, u64, u64, u64);

/// Works as `made::shapes`, of these dimensions.
fn shapes(&Dims(h, a, k, d, f, v): &Dims) -> Vec<(String, Vec<u64>)> {
    let sizes: [&[u64]; 11] = [
        &[v, h],
        &[h],
        &[a * d, h],
        &[k * d, h],
        &[k * d, h],
        &[h, a * d],
        &[h],
        &[f, h],
        &[f, h],
        &[h, f],
        &[h],
    ];
    made::shapes().into_iter().zip(sizes).map(|((name, _), shape)| (name, shape.to_vec())).collect()
}

/// The tiny model with heads of 16 elements, which the kernels take.
fn gguf_of_16(lie: Lie) -> Vec<u8> {
    let mut meta = made::gguf_meta("llama");
    meta.push(("llama.attention.key_length", Meta::U32(16)));
    let (mut tensors, mut data) = (Vec::new(), Vec::<u8>::new());
    for ((_, shape), name) in shapes(&Dims(4, 2, 1, 16, 8, 6)).into_iter().zip(made::GGUF_NAMES) {
        data.resize(data.len().next_multiple_of(32), 0);
        let (offset, values) = (data.len() as u64, shape.iter().product::<u64>());
        data.extend((0..values).flat_map(|i| (0.01 * i as f32).sin().to_le_bytes()));
        tensors.push(made::Listed { name: name.into(), shape, kind: 0, offset });
    }
    lie(&mut meta, &mut tensors);
    made::gguf(&meta, &tensors, &data)
}

#[test]
fn gguf_files_that_are_cut_bent_or_lie() {
    let folder = folder();
    let whole = gguf_of_16(|_, _| {});
    let model = folder.write_bytes("m.gguf", &whole);
    let answer = plimsoll(&["generate", "--model", &model, "--prompt", "abba", "--max-new-tokens", "3"]);
    assert_eq!(answer.status.code(), Some(0), "{}", text(&answer.stderr));
    for (case, slug, lie) in GGUF {
        folder.write_bytes("m.gguf", gguf_of_16(*lie));
        check_model(&folder, &model, case, 1, slug, &[]);
    }
    for (length, slug) in [
        (3, "model-file-corrupt"),
        (30, "model-file-corrupt"),
        (200, "model-file-corrupt"),
        (whole.len() - 40, "model-file-truncated"),
    ] {
        folder.write_bytes("m.gguf", &whole[..length]);
        check_model(&folder, &model, &format!("cut at {length}"), 1, slug, &[]);
    }
    for (case, at, value) in
        [("magic", 0, b'X'), ("version", 4, 9), ("tensors", 15, 0x7f), ("keys", 23, 0xff)]
    {
        let mut bytes = whole.clone();
        bytes[at] = value;
        folder.write_bytes("m.gguf", bytes);
        check_model(&folder, &model, case, 1, "model-file-corrupt", &[]);
    }
}

/// Any single bit of a header may be wrong: the answer is text or a named error, never a panic, never a wait.
#[test]
fn flipped_bits_in_headers_never_panic() {
    let folder = folder();
    let safetensors = nano(&folder, "m").join("model.safetensors");
    let weights = std::fs::read(&safetensors).expect("the weights");
    let header = 8 + u64::from_le_bytes(weights[..8].try_into().expect("8 bytes")) as usize;
    let gguf = gguf_of_16(|_, _| {});
    let header_of_gguf =
        gguf.windows(11).rposition(|name| name == b"output_norm").expect("the last tensor") + 48;
    let cases = [(safetensors, weights, header), (folder.path("m.gguf"), gguf, header_of_gguf)];
    for (path, whole, header) in cases {
        let model = if path.ends_with("m.gguf") { folder.text_path("m.gguf") } else { folder.text_path("m") };
        for i in 0..48 {
            // Odd steps through the header, so that every bit position and every part of it is met.
            let (at, bit) = (i * header / 48 + i % 3, i % 8);
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            std::fs::write(&path, bytes).expect("a file");
            let args = ["generate", "--model", &model, "--prompt", "a", "--max-new-tokens", "2"];
            let output = plimsoll(&args);
            if output.status.code() != Some(0) {
                check_error(&[args[2], &format!("byte {at} bit {bit}")], &output, 1, &["error["]);
            }
        }
    }
}

#[test]
fn a_config_of_what_is_not_built_or_makes_no_sense() {
    let folder = folder();
    let path = nano(&folder, "m").join("config.json");
    let whole: Value = serde_json::from_slice(&std::fs::read(&path).expect("it")).expect("JSON");
    for (case, slug, contains, changes) in [
        ("another architecture", "model-unsupported", "mamba", json!({"model_type": "mamba"})),
        (
            "a classifier",
            "model-unsupported",
            "*ForSequenceClassification",
            json!({"architectures": ["LlamaForSequenceClassification"]}),
        ),
        ("sliding window switched on", "model-unsupported", "sliding", json!({"use_sliding_window": true})),
        ("experts", "model-unsupported", "num_local_experts", json!({"num_local_experts": 8})),
        (
            "unknown rope type",
            "model-unsupported",
            "longrope",
            json!({"rope_scaling": {"rope_type": "longrope"}}),
        ),
        (
            "rope without a factor",
            "model-config-invalid",
            "factor",
            json!({"rope_scaling": {"type": "linear"}}),
        ),
        (
            "quantized",
            "model-unsupported",
            "quantization_config",
            json!({"quantization_config": {"bits": 4}}),
        ),
        ("another activation", "model-unsupported", "gelu", json!({"hidden_act": "gelu"})),
        ("an odd head", "model-unsupported", "head_dim", json!({"head_dim": 63})),
        ("no layers", "model-config-invalid", "num_hidden_layers", json!({"num_hidden_layers": 0})),
        ("layers as text", "model-config-invalid", "num_hidden_layers", json!({"num_hidden_layers": "4"})),
        ("key heads that do not divide", "model-config-invalid", "3", json!({"num_key_value_heads": 3})),
        ("hidden of 2^40", "model-config-invalid", "hidden_size", json!({"hidden_size": 1u64 << 40})),
        ("more layers than weights", "model-tensor-missing", "layers.4", json!({"num_hidden_layers": 5})),
        ("fewer layers than weights", "model-tensor-unexpected", "layers.3", json!({"num_hidden_layers": 3})),
        ("another width", "model-tensor-shape", "[15, 128]", json!({"hidden_size": 64})),
        ("a negative epsilon", "model-config-invalid", "rms_norm_eps", json!({"rms_norm_eps": -1.0})),
    ] {
        let mut config = whole.clone();
        for (key, value) in changes.as_object().expect("an object") {
            config[key] = value.clone();
        }
        std::fs::write(&path, config.to_string()).expect("a file");
        check_model(&folder, &folder.text_path("m"), case, 1, slug, &[contains]);
    }
    for (case, slug, content) in [
        ("config cut", "model-file-corrupt", "{\"model_type\": \"lla"),
        ("config that is a list", "model-config-invalid", "[1, 2]"),
        ("config without keys", "model-config-invalid", "{}"),
        ("config without an end of brackets", "model-file-corrupt", &"[".repeat(100_000)),
    ] {
        std::fs::write(&path, content).expect("a file");
        check_model(&folder, &folder.text_path("m"), case, 1, slug, &["config.json"]);
    }
    std::fs::remove_file(&path).expect("it was there");
    check_model(&folder, &folder.text_path("m"), "no config", 1, "model-file-missing", &["config.json"]);
}

/// Windows, rotary rules and norms that the file's layers cannot have.
#[test]
fn a_config_whose_layers_make_no_sense() {
    let folder = folder();
    let path = nano(&folder, "m").join("config.json");
    let whole: Value = serde_json::from_slice(&std::fs::read(&path).expect("it")).expect("JSON");
    for (case, slug, contains, changes) in [
        (
            "a window of nothing",
            "model-config-invalid",
            "sliding_window = 0",
            json!({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 0}),
        ),
        (
            "types of other layers",
            "model-config-invalid",
            "layer_types names 1 layers",
            json!({"layer_types": ["full_attention"]}),
        ),
        (
            "norms that the file does not have",
            "model-tensor-missing",
            "post_feedforward_layernorm",
            json!({"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"]}),
        ),
        (
            "yarn that is no number",
            "model-config-invalid",
            "factor",
            json!({"rope_scaling": {"rope_type": "yarn", "factor": "NaN"}}),
        ),
    ] {
        let mut config = whole.clone();
        for (key, value) in changes.as_object().expect("an object") {
            config[key] = value.clone();
        }
        std::fs::write(&path, config.to_string()).expect("a file");
        check_model(&folder, &folder.text_path("m"), case, 1, slug, &[contains]);
    }
}

/// Whatever the widths, a model answers and trains, or is refused by name.
#[test]
fn odd_shapes_work_or_are_refused_by_name() {
    let folder = folder();
    let dir = nano(&folder, "m");
    let nano: Value =
        serde_json::from_slice(&std::fs::read(dir.join("config.json")).expect("it")).expect("JSON");
    for dims in [
        Dims(1, 1, 1, 16, 1, 15),
        Dims(5, 3, 1, 16, 7, 15),
        Dims(33, 2, 2, 48, 65, 17),
        Dims(7, 1, 1, 256, 31, 31),
        Dims(4, 2, 1, 2, 8, 15),
        Dims(16, 1, 1, 272, 16, 15),
        Dims(16, 1, 1, 592, 16, 15),
        Dims(16, 2, 1, 24, 16, 15),
    ] {
        let (header, data) = made::header_and_data(&shapes(&dims));
        let weights = made::safetensors(&Value::Object(header).to_string(), &data);
        std::fs::write(dir.join("model.safetensors"), weights).expect("a file");
        let mut config = nano.clone();
        let Dims(h, a, k, d, f, v) = dims;
        for (key, value) in [
            ("hidden_size", h),
            ("num_attention_heads", a),
            ("num_key_value_heads", k),
            ("head_dim", d),
            ("intermediate_size", f),
            ("vocab_size", v),
            ("num_hidden_layers", 1),
        ] {
            config[key] = value.into();
        }
        std::fs::write(dir.join("config.json"), config.to_string()).expect("a file");
        let model = folder.text_path("m");
        if d % 16 != 0 || d > 576 {
            check_model(&folder, &model, "head", 1, "model-unsupported", &[&format!("head_dim = {d}")]);
            continue;
        }
        for dtype in ["bf16", "f32"] {
            let options = [format!("model={model}"), format!("model_options.dtype={dtype}")];
            let args = folder.train_args(&format!("out-{h}-{dtype}"), &[&options[0], &options[1]]);
            let output = plimsoll(&refs(&args));
            let stderr = text(&output.stderr);
            assert!(stderr.contains("step 3/3"), "{config} {dtype}: {stderr}");
        }
    }
}

#[test]
fn a_tokenizer_that_is_missing_or_of_another_model() {
    let folder = folder();
    let path = nano(&folder, "m").join("tokenizer.json");
    let whole = std::fs::read_to_string(&path).expect("a tokenizer");
    for (case, slug, content) in [
        ("tokenizer cut", "tokenizer-invalid", whole[..whole.len() / 2].to_string()),
        ("tokenizer of nothing", "tokenizer-invalid", "{}".into()),
        (
            "more tokens than rows",
            "tokenizer-model-mismatch",
            whole.replacen("\"vocab\": {", "\"vocab\": {\"zz\": 99,", 1),
        ),
    ] {
        assert_ne!(content, whole, "{case}");
        std::fs::write(&path, content).expect("a file");
        check_model(&folder, &folder.text_path("m"), case, 1, slug, &[]);
    }
    std::fs::remove_file(&path).expect("it was there");
    check_model(&folder, &folder.text_path("m"), "no tokenizer", 1, "tokenizer-missing", &[]);
    let absent = format!("model_options.tokenizer={}", folder.text_path("absent.json"));
    folder.check_train(&[&absent], 1, &["error[tokenizer-missing]: ", "absent.json"]);
}

#[test]
fn a_hub_that_is_not_there() {
    let folder = folder();
    let home = folder.text_path("home");
    for (variable, value, slug) in
        [("HF_ENDPOINT", "http://127.0.0.1:9", "hub-unreachable"), ("HF_HUB_OFFLINE", "1", "model-not-local")]
    {
        let (set, out) = ("model=hf:org/name", format!("run.dir={}", folder.text_path("out")));
        for args in [
            &["generate", "--model", "hf:org/name", "--prompt", "1"][..],
            &["plan", &folder.text_path("x.toml"), "--set", set],
            &["train", &folder.text_path("x.toml"), "--set", set, "--set", &out],
        ] {
            let mut command = command(args);
            for inherited in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"] {
                command.env_remove(inherited);
            }
            let output = command.env("HF_HOME", &home).env(variable, value).output().expect("it runs");
            check_error(args, &output, 1, &[&format!("error[{slug}]: "), "org/name"]);
            assert!(!folder.path("out").exists(), "{args:?} left a run directory");
        }
    }
}
