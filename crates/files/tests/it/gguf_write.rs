//! GGUF files written and read again: the same model, bit for bit, in the layout of llama.cpp's converter.

use plimsoll_arch::expected_tensors;
use plimsoll_arch::{
    DeltaSpec, ExpertsSpec, Family, FileShape, LayerSet, LayersWith, ModelSpec, RopeScaling, Window,
};
use plimsoll_base::DType;
use plimsoll_files::{GgufDecl, GgufTokenizer, GgufWriter, OpenModel, TokenIds, check_against, gguf_order};
use std::path::{Path, PathBuf};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden");

fn golden(name: &str) -> OpenModel {
    OpenModel::open(&format!("{GOLDEN}/{name}"), None, false).unwrap()
}

/// A golden model that attends as llama.cpp has it in its code, which is what a published one does.
fn published(name: &str) -> OpenModel {
    let mut model = golden(name);
    let (mut spec, every) = (model.spec.file_shape(), if name == "gemma3" { 6 } else { 2 });
    if name.starts_with("gemma") {
        spec.attention.scale = Some(1.0 / (spec.head_dim as f32).sqrt());
        let window = spec.attention.window.unwrap();
        let layers = LayerSet::all_but_every(every, spec.layers);
        spec.attention.window = Some(Window { layers, ..window });
    }
    model.spec = spec.spec();
    model
}

/// Tables with one token for each row.
fn tables(vocab: u32) -> GgufTokenizer {
    GgufTokenizer {
        model: "gpt2".into(),
        pre: "gpt-2".into(),
        tokens: (0..vocab).map(|id| format!("t{id}")).collect(),
        token_types: vec![1; vocab as usize],
        merges: vec!["t 1".into(), "t 2".into()],
        bos: Some(3),
        eos: Some(1),
        pad: Some(4),
        add_bos: Some(true),
        chat_template: Some("{{ messages }}".into()),
        ..GgufTokenizer::default()
    }
}

fn read(model: &OpenModel, name: &str) -> Vec<f32> {
    let tensor = model.tensor(name).unwrap();
    let mut out = vec![0.0; tensor.shape.iter().product::<u64>() as usize];
    model.read_rows(name, 0..tensor.shape[0], &mut [0; 4096], &mut out).unwrap();
    out
}

/// Writes a model, two heads at a time.
fn write(model: &OpenModel, dtype: DType, path: &Path) -> Result<(), plimsoll_base::Error> {
    let ids = TokenIds { eos: vec![1, 5, 6], bos: Some(3), pad: Some(4) };
    let tokenizer = tables(model.spec.vocab);
    let decl = GgufDecl { name: "golden", spec: &model.spec, dtype, tokenizer: &tokenizer, ids: &ids };
    let mut writer = GgufWriter::create(path, &decl)?;
    for (name, shape) in gguf_order(&model.spec) {
        let values = read(model, &name);
        let width = shape[1..].iter().product::<u64>() as usize;
        for rows in values.chunks(2 * model.spec.file_shape().head_dim as usize * width) {
            writer.write_rows(&name, rows, &mut [0; 34])?;
        }
    }
    let record = writer.finish()?;
    assert_eq!(record.bytes, decl.file_bytes()?.0);
    assert_eq!(record.bytes, std::fs::metadata(path).unwrap().len());
    Ok(())
}

fn written(model: &OpenModel, dtype: DType) -> (tempfile::TempDir, PathBuf, OpenModel) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    write(model, dtype, &path).unwrap();
    let again = OpenModel::open(path.to_str().unwrap(), None, false).unwrap();
    check_against(&again).unwrap();
    (dir, path, again)
}

#[test]
fn every_family_comes_back_bit_for_bit() {
    for name in [
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "glm4_moe",
        "glm4_moe_groups",
        "smollm3",
        "olmo2",
        "granite",
        "phi3",
        "gemma2",
        "gemma3",
    ] {
        let model = published(name);
        let (_dir, _, again) = written(&model, DType::F32);
        let mut spec = model.spec;
        if spec.family == Family::Mistral {
            spec.family = Family::Llama; // files of Mistral bear this name
        }
        assert_eq!(again.spec, spec, "{name}");
        assert_eq!(again.token_ids(), TokenIds { eos: vec![1, 5, 6], bos: Some(3), pad: Some(4) });
        assert_eq!(again.tokenizer.gguf, Some(tables(spec.vocab)), "{name}");
        for (tensor, _) in expected_tensors(&spec) {
            let (ours, theirs) = (read(&model, &tensor), read(&again, &tensor));
            // A file of Gemma has 1 + w of a norm, rounded to f32, and so is what is left without the 1.
            let is_whole = name.starts_with("gemma") && tensor.ends_with("norm.weight");
            let bound = if is_whole { 1.2e-7 } else { 0.0 };
            let close = ours.iter().zip(&theirs).all(|(x, y)| (x - y).abs() <= bound * (1.0 + x.abs()));
            assert!(close && ours.len() == theirs.len(), "{name}: {tensor}");
        }
    }
}

/// Names are those of gguf-py's `get_tensor_name_map` for the tensors of transformers, and keys those of its `Keys`.
#[test]
fn names_and_keys_are_those_of_llama_cpp() {
    for (name, arch, of_layer, keys) in [
        (
            "smollm3",
            "smollm3",
            &["attn_norm", "ffn_norm", "attn_q", "ffn_up"][..],
            &["attention.head_count"][..],
        ),
        ("olmo2", "olmo2", &["post_attention_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm"], &[]),
        (
            "granite",
            "granite",
            &["attn_norm", "ffn_norm"],
            &["attention.scale", "embedding_scale", "residual_scale", "logit_scale"],
        ),
        (
            "qwen3_moe",
            "qwen3moe",
            &["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "attn_q_norm"],
            &["expert_count", "expert_used_count", "expert_feed_forward_length"],
        ),
        (
            "glm4_moe",
            "glm4moe",
            &["post_attention_norm", "ffn_gate_inp", "ffn_gate_exps", "ffn_down_shexp"],
            &[
                "expert_shared_count",
                "leading_dense_block_count",
                "expert_gating_func",
                "expert_weights_norm",
                "expert_weights_scale",
            ],
        ),
        ("phi3", "phi3", &["attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down"], &[]),
        (
            "gemma2",
            "gemma2",
            &["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"],
            &["attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"],
        ),
        (
            "gemma3",
            "gemma3",
            &["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm"],
            &["attention.sliding_window", "rope.scaling.factor"],
        ),
    ] {
        let (_dir, path, again) = written(&published(name), DType::F32);
        let bytes = std::fs::read(path).unwrap();
        let holds = |text: &str| {
            // A length comes before each text.
            let text = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
            bytes.windows(text.len()).any(|part| part == text)
        };
        assert!(holds(arch), "{name}");
        for part in of_layer {
            assert!(holds(&format!("blk.1.{part}.weight")), "{name}: {part}");
        }
        for key in keys {
            assert!(holds(&format!("{arch}.{key}")), "{name}: {key}");
        }
        // Norms are whole in files, whatever the model has of them.
        let tensor = again.tensor("model.norm.weight").unwrap();
        let stored = f32::from_le_bytes(bytes[tensor.offset as usize..][..4].try_into().unwrap());
        let offset = if name.starts_with("gemma") { 1.0 } else { 0.0 };
        assert_eq!(stored, read(&published(name), "model.norm.weight")[0] + offset, "{name}");
    }
}

#[test]
fn what_llama_cpp_has_otherwise_in_its_code_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["gemma2", "gemma3", "mistral_window", "olmo3", "phi4_mini", "qwen3_yarn", "llama_bias"] {
        let path = dir.path().join(name);
        let error = write(&golden(name), DType::F32, &path).unwrap_err();
        assert_eq!(error.slug, "model-unsupported", "{name}: {error}");
        assert!(error.message.contains("GGUF form"), "{name}: {error}");
        assert!(!path.exists(), "{name}");
    }
    // What a file does not say a reader takes for the family's own.
    type Change = fn(&mut FileShape);
    let changes: [(&str, Change); 4] = [
        ("gemma2", |spec| spec.attention.score_cap = None),
        ("gemma2", |spec| spec.multipliers.logit_cap = None),
        ("gemma2", |spec| spec.attention.window = None),
        ("gemma3", |spec| spec.attention.window = None),
    ];
    for (name, change) in changes {
        let (path, mut model) = (dir.path().join(name), published(name));
        let mut shape = model.spec.file_shape();
        change(&mut shape);
        model.spec = shape.spec();
        let error = write(&model, DType::F32, &path).unwrap_err();
        assert_eq!(error.slug, "model-unsupported", "{name}: {error}");
        assert!(error.message.contains("without"), "{name}: {error}");
    }
}

#[test]
fn bf16_is_rounded_once_and_vectors_stay_f32() {
    let model = golden("qwen2");
    let (_dir, _, again) = written(&model, DType::Bf16);
    for (name, shape) in expected_tensors(&model.spec) {
        let stored = again.tensor(&name).unwrap();
        assert_eq!(stored.encoding.name(), if shape.len() == 1 { "f32" } else { "bf16" }, "{name}");
        let round = |x: f32| if shape.len() == 1 { x } else { half::bf16::from_f32(x).to_f32() };
        let expect: Vec<f32> = read(&model, &name).into_iter().map(round).collect();
        assert!(read(&again, &name) == expect, "{name}");
    }
}

/// llama.cpp's converter: `w.reshape(heads, 2, d / 2, width).swapaxes(1, 2)`.
#[test]
fn rows_of_q_and_k_lie_as_the_converter_of_llama_cpp_lays_them() {
    for (name, permutes) in [("llama", true), ("mistral", true), ("qwen2", false), ("qwen3", false)] {
        let model = golden(name);
        let (_dir, path, again) = written(&model, DType::F32);
        let bytes = std::fs::read(path).unwrap();
        let shape = model.spec.file_shape();
        let (d, width) = (shape.head_dim as usize, shape.hidden as usize);
        for (tensor, heads) in [("q_proj", shape.heads), ("k_proj", shape.kv_heads)] {
            let tensor = format!("model.layers.1.self_attn.{tensor}.weight");
            let w = read(&model, &tensor);
            let mut expect = Vec::new();
            for head in 0..heads as usize {
                for i in 0..d / 2 {
                    for half in 0..2 {
                        let row = if permutes { half * d / 2 + i } else { 2 * i + half };
                        expect.extend(
                            w[(head * d + row) * width..][..width].iter().flat_map(|x| x.to_le_bytes()),
                        );
                    }
                }
            }
            let info = again.tensor(&tensor).unwrap();
            assert_eq!(info.offset % 32, 0);
            assert!(bytes[info.offset as usize..][..info.bytes as usize] == expect, "{name}: {tensor}");
        }
    }
}

#[test]
fn rotary_scalings_come_back_or_are_refused() {
    let mut model = golden("llama3_rope");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    // First trained with 32 positions, which no file can say.
    let error = write(&model, DType::F32, &path).unwrap_err();
    assert_eq!(error.slug, "model-unsupported");
    assert!(error.message.contains("original_max_position_embeddings: 32"), "{error}");
    assert!(!path.exists());
    let llama3 = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    for scaling in [llama3, RopeScaling::Linear { factor: 2.5 }, RopeScaling::None] {
        (model.spec.rope_scaling, model.spec.rope_theta) = (scaling, 500_000.0);
        let (_dir, _, again) = written(&model, DType::F32);
        assert_eq!(again.spec, model.spec);
    }
}

#[test]
fn more_ends_than_a_file_can_name_are_refused() {
    let model = golden("llama");
    let tokenizer = tables(model.spec.vocab);
    let ids = TokenIds { eos: vec![1, 5, 6, 7], ..TokenIds::default() };
    let decl = GgufDecl { name: "x", spec: &model.spec, dtype: DType::F32, tokenizer: &tokenizer, ids: &ids };
    let error = decl.file_bytes().unwrap_err();
    assert_eq!(error.slug, "model-unsupported");
    assert!(error.message.starts_with("tokens 1, 5, 6, 7 end a response"), "{error}");
}

#[test]
fn experts_that_llama_cpp_computes_otherwise_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut model = golden("qwen3_moe");
    let shape = model.spec.file_shape();
    let experts = shape.experts.unwrap();
    let some = LayerSet::of(shape.layers, |layer| layer > 0);
    for (change, words) in [
        (
            LayersWith { each: ExpertsSpec { normalizes: false, ..experts.each }, ..experts },
            "qwen3moe with norm_topk_prob = false has no GGUF form",
        ),
        (LayersWith { layers: some, ..experts }, "qwen3moe with layers without experts has no GGUF form"),
    ] {
        model.spec = FileShape { experts: Some(change), ..shape }.spec();
        let error = write(&model, DType::F32, &path).unwrap_err();
        assert_eq!(error.slug, "model-unsupported");
        assert!(error.message.contains(words), "{error}");
        assert!(!path.exists());
    }
}

#[test]
fn experts_lie_one_after_the_other_and_routers_are_f32() {
    let model = golden("qwen3_moe");
    let (_dir, _, again) = written(&model, DType::Bf16);
    let tensor = |name: &str| again.tensor(&format!("model.layers.1.mlp.{name}.weight")).unwrap();
    assert_eq!(tensor("gate").encoding.name(), "f32");
    for part in ["gate_proj", "up_proj", "down_proj"] {
        let [first, last] = [0, 5].map(|expert| tensor(&format!("experts.{expert}.{part}")));
        assert_eq!(first.encoding.name(), "bf16");
        assert_eq!(last.offset, first.offset + 5 * first.bytes, "{part}");
    }
    for (name, shape) in expected_tensors(&model.spec) {
        let is_f32 = shape.len() == 1 || name.ends_with(".mlp.gate.weight");
        let round = |x: f32| if is_f32 { x } else { half::bf16::from_f32(x).to_f32() };
        let expect: Vec<f32> = read(&model, &name).into_iter().map(round).collect();
        assert!(read(&again, &name) == expect, "{name}");
    }
}

#[test]
fn a_file_that_is_not_finished_leaves_nothing() {
    let model = golden("llama");
    let dir = tempfile::tempdir().unwrap();
    let (tokenizer, ids) = (tables(model.spec.vocab), TokenIds::default());
    let decl = GgufDecl { name: "x", spec: &model.spec, dtype: DType::F32, tokenizer: &tokenizer, ids: &ids };
    let mut writer = GgufWriter::create(&dir.path().join("m.gguf"), &decl).unwrap();
    writer.write_rows("model.embed_tokens.weight", &[0.0; 64], &mut [0; 4]).unwrap();
    drop(writer);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Every second layer with linear attention, 6 heads of values over 2 of keys.
fn qwen35() -> FileShape {
    let shape = golden("qwen3_5_wide").spec.file_shape();
    let layers = LayerSet::all_but_every(2, shape.layers);
    let each = DeltaSpec { key_heads: 2, value_heads: 6, key_dim: 16, value_dim: 16 };
    FileShape { delta: Some(LayersWith { layers, each }), ..shape }
}

/// Element `i` of tensor `number`, which f32 holds with 1 added, and less 1 again.
fn made(number: usize, i: usize) -> f32 {
    ((i * 7 + number * 13) % 97) as f32 / 128.0 + 0.125
}

fn write_made(spec: &ModelSpec, dtype: DType, path: &Path) -> Result<(), plimsoll_base::Error> {
    let (tokenizer, ids) = (tables(spec.vocab), TokenIds { eos: vec![1], ..TokenIds::default() });
    let decl = GgufDecl { name: "made", spec, dtype, tokenizer: &tokenizer, ids: &ids };
    let mut writer = GgufWriter::create(path, &decl)?;
    for (number, (name, shape)) in gguf_order(spec).into_iter().enumerate() {
        let width = shape[1..].iter().product::<u64>() as usize;
        let values: Vec<f32> = (0..shape[0] as usize * width).map(|i| made(number, i)).collect();
        for rows in values.chunks(10 * width) {
            writer.write_rows(&name, rows, &mut [0; 34])?;
        }
    }
    writer.finish().map(drop)
}

/// `convert_hf_to_gguf.py` (Qwen3_5TextModel): value heads in tiles, norms + 1 except linear attention's, and -e^A.
#[test]
fn linear_attention_lies_as_the_converter_of_llama_cpp_lays_it_and_comes_back() {
    let (spec, dir) = (qwen35().spec(), tempfile::tempdir().unwrap());
    let path = dir.path().join("m.gguf");
    // The same layers with experts, of all in one or each apart: Qwen3_5MoeTextModel.
    let mut sparse = golden("qwen3_5_moe").spec.file_shape();
    sparse.delta =
        Some(LayersWith { layers: LayerSet::all_but_every(2, sparse.layers), ..qwen35().delta.unwrap() });
    let mut apart = sparse;
    apart.experts.as_mut().unwrap().each.is_fused = !sparse.experts.unwrap().each.is_fused;
    let cases =
        [(spec, DType::F32), (spec, DType::Bf16), (sparse.spec(), DType::F32), (apart.spec(), DType::Bf16)];
    for (spec, dtype) in cases {
        write_made(&spec, dtype, &path).unwrap();
        let again = OpenModel::open(path.to_str().unwrap(), None, false).unwrap();
        check_against(&again).unwrap();
        assert_eq!(again.spec, spec);
        for (number, (name, shape)) in gguf_order(&spec).into_iter().enumerate() {
            let expect: Vec<f32> =
                (0..shape.iter().product::<u64>() as usize).map(|i| made(number, i)).collect();
            let found = read(&again, &name);
            let bound = if name.ends_with("A_log") { 1e-6 } else { 0.0 };
            assert!(found.iter().zip(&expect).all(|(x, y)| (x - y).abs() <= bound), "{dtype:?} {name}");
            // Elements in parts give what whole rows give.
            let mut part = vec![0.0; expect.len() - 3];
            if shape.len() != 2 {
                again.read_elements(&name, 2, &mut [0; 64], &mut part[..expect.len() - 4]).unwrap();
                assert_eq!(part[..expect.len() - 4], found[2..expect.len() - 2], "{name}");
            }
        }
    }
    write_made(&spec, DType::F32, &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let again = OpenModel::open(path.to_str().unwrap(), None, false).unwrap();
    let order = gguf_order(&spec);
    let stored = |part: &str, i: usize| {
        let name = format!("model.layers.0.{part}");
        let number = order.iter().position(|(other, _)| *other == name).unwrap();
        let at = again.tensor(&name).unwrap().offset as usize + 4 * i;
        (f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()), number)
    };
    let h = spec.hidden as usize;
    // In the file head 1 is that of the second head of keys, which is head 3 of the model.
    for (part, row, own) in [
        ("linear_attn.in_proj_qkv.weight", 64 + 16 + 5, 64 + 3 * 16 + 5),
        ("linear_attn.in_proj_qkv.weight", 40, 40),
        ("linear_attn.in_proj_z.weight", 16 + 5, 3 * 16 + 5),
        ("linear_attn.in_proj_a.weight", 1, 3),
        ("linear_attn.in_proj_b.weight", 2, 1),
    ] {
        let (found, number) = stored(part, row * h + 7);
        assert_eq!(found, made(number, own * h + 7), "{part}");
    }
    let (found, number) = stored("linear_attn.conv1d.weight", (64 + 16 + 5) * 4 + 2);
    assert_eq!(found, made(number, (64 + 3 * 16 + 5) * 4 + 2));
    let (found, number) = stored("linear_attn.out_proj.weight", 96 * 9 + 16 + 5);
    assert_eq!(found, made(number, 96 * 9 + 3 * 16 + 5));
    let (found, number) = stored("linear_attn.A_log", 1);
    assert_eq!(found, -f64::from(made(number, 3)).exp() as f32);
    let (found, number) = stored("linear_attn.dt_bias", 1);
    assert_eq!(found, made(number, 3));
    for (part, added) in [("linear_attn.norm.weight", 0.0), ("input_layernorm.weight", 1.0)] {
        let (found, number) = stored(part, 4);
        assert_eq!(found, made(number, 4) + added, "{part}");
    }
}

#[test]
fn linear_attention_of_another_form_is_refused_by_name() {
    let (shape, dir) = (qwen35(), tempfile::tempdir().unwrap());
    let (delta, path) = (shape.delta.unwrap(), dir.path().join("m.gguf"));
    let layers = LayerSet::of(shape.layers, |layer| layer < 2);
    for (change, words) in [
        (LayersWith { layers, ..delta }, "do not attend to keys at even distances"),
        (LayersWith { each: DeltaSpec { value_dim: 32, ..delta.each }, ..delta }, "heads of 16 and 32"),
    ] {
        let error =
            write_made(&FileShape { delta: Some(change), ..shape }.spec(), DType::F32, &path).unwrap_err();
        assert_eq!(error.slug, "model-unsupported");
        assert!(error.message.contains(words) && error.message.contains("GGUF form"), "{error}");
        assert!(!path.exists());
    }
}

/// The file with another number after a key, which may get another name of the same length.
fn with_number(bytes: &[u8], key: &str, named: &str, number: u32) -> Vec<u8> {
    let at = bytes.windows(key.len()).position(|part| part == key.as_bytes()).unwrap();
    let mut copy = bytes.to_vec();
    copy[at..at + key.len()].copy_from_slice(named.as_bytes());
    copy[at + key.len() + 4..][..4].copy_from_slice(&number.to_le_bytes());
    copy
}

#[test]
fn lies_about_linear_attention_are_named_and_layers_that_predict_further_tokens_are_left() {
    let (shape, dir) = (qwen35(), tempfile::tempdir().unwrap());
    let shape = FileShape { head_dim: shape.hidden / shape.heads, ..shape };
    let path = dir.path().join("m.gguf");
    write_made(&shape.spec(), DType::F32, &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let open = |bytes: Vec<u8>| {
        std::fs::write(&path, bytes).unwrap();
        let model = OpenModel::open(path.to_str().unwrap(), None, false)?;
        check_against(&model).map(|()| model)
    };
    for (key, number, slug) in [
        ("ssm.state_size", 0, "model-config-invalid"),
        ("ssm.state_size", 32, "model-unsupported"),
        ("ssm.inner_size", 95, "model-unsupported"),
        ("ssm.group_count", 0, "model-config-invalid"),
        ("ssm.group_count", 4, "model-config-invalid"),
        ("ssm.group_count", 3, "model-tensor-shape"),
        ("ssm.conv_kernel", 3, "model-unsupported"),
        ("full_attention_interval", 1, "model-unsupported"),
        ("full_attention_interval", 4, "model-tensor-missing"),
        ("rope.dimension_count", 1 + shape.head_dim, "model-unsupported"),
    ] {
        let key = format!("qwen35.{key}");
        let error = open(with_number(&bytes, &key, &key, number)).expect_err(&key);
        assert_eq!(error.slug, slug, "{key} = {number}: {error}");
    }
    // Two of four layers, and a length of keys that follows from the width.
    let (length, next) = ("qwen35.attention.key_length", "qwen35.nextn_predict_layers");
    let model = open(with_number(&bytes, length, next, 2)).unwrap();
    assert_eq!((model.spec.layers.len(), model.spec.delta_layers()), (2, 1));
    assert!(model.tensor("mtp.blk.3.attn_q.weight").is_some());
    assert_eq!(open(with_number(&bytes, length, next, 4)).unwrap_err().slug, "model-unsupported");
}
