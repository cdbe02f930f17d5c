//! GGUF files written and read again: the same model, bit for bit, in the layout of llama.cpp's converter.

use plimsoll_base::{DType, Family, LayerSet, ModelSpec, RopeScaling, Window};
use plimsoll_files::{
    GgufDecl, GgufTokenizer, GgufWriter, OpenModel, TokenIds, check_against, expected_tensors,
};
use std::path::{Path, PathBuf};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden");

fn golden(name: &str) -> OpenModel {
    OpenModel::open(&format!("{GOLDEN}/{name}"), None, false).unwrap()
}

/// A golden model that attends as llama.cpp has it in its code, which is what a published one does.
fn published(name: &str) -> OpenModel {
    let mut model = golden(name);
    let (spec, every) = (&mut model.spec, if name == "gemma3" { 6 } else { 2 });
    if name.starts_with("gemma") {
        spec.attention.scale = Some(1.0 / (spec.head_dim as f32).sqrt());
        let window = spec.attention.window.unwrap();
        let layers = LayerSet::all_but_every(every, spec.layers);
        spec.attention.window = Some(Window { layers, ..window });
    }
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
    for (name, shape) in expected_tensors(&model.spec) {
        let values = read(model, &name);
        let width = shape[1..].iter().product::<u64>() as usize;
        for rows in values.chunks(2 * model.spec.head_dim as usize * width) {
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
    for name in
        ["llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2", "granite", "phi3", "gemma2", "gemma3"]
    {
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

/// Names as gguf-py's `get_tensor_name_map` gives them for the tensors of transformers, and keys as its `Keys` has them.
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
    type Change = fn(&mut ModelSpec);
    let changes: [(&str, Change); 4] = [
        ("gemma2", |spec| spec.attention.score_cap = None),
        ("gemma2", |spec| spec.multipliers.logit_cap = None),
        ("gemma2", |spec| spec.attention.window = None),
        ("gemma3", |spec| spec.attention.window = None),
    ];
    for (name, change) in changes {
        let (path, mut model) = (dir.path().join(name), published(name));
        change(&mut model.spec);
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
        let (d, width) = (model.spec.head_dim as usize, model.spec.hidden as usize);
        for (tensor, heads) in [("q_proj", model.spec.heads), ("k_proj", model.spec.kv_heads)] {
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
fn a_model_with_experts_is_refused_by_name() {
    let spec = ModelSpec::preset("qwen3-30b-a3b").unwrap();
    let (tokenizer, ids) = (tables(spec.vocab), TokenIds::default());
    let decl = GgufDecl { name: "x", spec: &spec, dtype: DType::Bf16, tokenizer: &tokenizer, ids: &ids };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    for error in [decl.file_bytes().unwrap_err(), GgufWriter::create(&path, &decl).unwrap_err()] {
        assert_eq!(error.slug, "model-unsupported");
        assert_eq!(error.message, "Qwen3MoeForCausalLM has no GGUF form here");
    }
    assert!(!path.exists());
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
