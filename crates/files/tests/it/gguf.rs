//! GGUF files: read rightly, and refused by name when they are cut, bent or lie.

use crate::common;

use common::*;
use plimsoll_arch::{Family, LoraTarget, LoraTargets, RopeScaling};
use plimsoll_base::Encoding::{Q4K, Q5K, Q6K, Q8_0};
use plimsoll_base::blocks;
use plimsoll_files::{OpenModel, check_against};
use proptest::prelude::*;

fn open(bytes: &[u8]) -> Result<OpenModel, plimsoll_base::Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, bytes).unwrap();
    // The file stays open after its folder is gone.
    let model = OpenModel::open(path.to_str().unwrap(), None, false)?;
    check_against(&model)?;
    Ok(model)
}

fn with_meta(change: impl Fn(&mut Vec<(&'static str, Meta)>)) -> Vec<u8> {
    let mut meta = gguf_meta("llama");
    change(&mut meta);
    let (tensors, data) = gguf_tensors();
    gguf(&meta, &tensors, &data)
}

fn with_tensors(change: impl Fn(&mut Vec<Listed>)) -> Vec<u8> {
    let (mut tensors, data) = gguf_tensors();
    change(&mut tensors);
    gguf(&gguf_meta("llama"), &tensors, &data)
}

fn read(model: &OpenModel, name: &str) -> Vec<f32> {
    let tensor = model.tensor(name).unwrap();
    let mut out = vec![0.0; tensor.shape.iter().product::<u64>() as usize];
    model.read_rows(name, 0..tensor.shape[0], &mut [0; 210], &mut out).unwrap();
    out
}

#[test]
fn a_llama_file_gives_spec_tokenizer_and_unpermuted_rows() {
    let model = open(&valid_gguf()).unwrap();
    assert_eq!(model.spec.family, Family::Llama);
    assert_eq!(
        (model.spec.vocab, model.spec.hidden, model.spec.file_shape().head_dim, model.spec.max_positions),
        (6, 4, 2, 16)
    );
    assert!(model.spec.tied);
    assert_eq!(model.spec.rms_eps, 1e-5);
    assert_eq!(model.eos_token_ids, [4]);
    let tokenizer = model.tokenizer.gguf.as_ref().unwrap();
    assert_eq!((tokenizer.pre.as_str(), tokenizer.tokens.len(), tokenizer.merges.len()), ("gpt-2", 6, 1));
    for (number, (name, shape)) in shapes().iter().enumerate() {
        let values = read(&model, name);
        let expect: Vec<f32> = (0..values.len()).map(|i| value(number, i)).collect();
        // Heads of two rows: pairs and halves are the same order.
        assert_eq!(values, expect, "{name} {shape:?}");
    }
}

#[test]
fn q_and_k_of_llama_are_stored_as_pairs_and_of_qwen_as_halves() {
    for (arch, expect) in [("llama", [0.0, 2.0, 1.0, 3.0]), ("qwen2", [0.0, 1.0, 2.0, 3.0])] {
        let mut meta = gguf_meta(arch);
        for (key, value) in &mut meta {
            if key.ends_with("head_count") {
                *value = Meta::U32(1); // one head of four rows
            }
        }
        let (mut tensors, mut data) = gguf_tensors();
        for (row, bytes) in data[tensors[2].offset as usize..][..64].chunks_exact_mut(16).enumerate() {
            bytes.chunks_exact_mut(4).for_each(|b| b.copy_from_slice(&(row as f32).to_le_bytes()));
        }
        for tensor in &mut tensors[3..=4] {
            tensor.shape = vec![4, 4];
        }
        // k and v grow to four rows: give each its own place.
        data.resize(data.len().next_multiple_of(32), 0);
        for tensor in &mut tensors[3..] {
            tensor.offset = data.len() as u64;
            data.resize(data.len() + 128, 0);
        }
        let model = {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("m.gguf");
            std::fs::write(&path, gguf(&meta, &tensors, &data)).unwrap();
            OpenModel::open(path.to_str().unwrap(), None, false).unwrap() // qwen2 lacks its biases: not checked
        };
        let rows: Vec<f32> =
            read(&model, "model.layers.0.self_attn.q_proj.weight").chunks(4).map(|r| r[0]).collect();
        assert_eq!(rows, expect, "{arch}");
    }
}

/// Blocks are the file's bytes in the order of the model's rows, and mean what `read_rows` says.
#[test]
fn rows_are_read_as_they_are_stored() {
    let model = open(&coded_gguf(&MIXED)).unwrap();
    let encodings = model.encodings.expect("a GGUF file");
    for (layer, expect) in (0..).zip(MIXED) {
        let all = || LoraTargets::ALL.iter();
        let targets: Vec<_> = all().map(|target| encodings.get(layer, target)).collect();
        assert_eq!(targets, expect, "layer {layer}");
        for (target, encoding) in all().zip(expect) {
            let name = format!("model.layers.{layer}.{}.weight", target.module());
            let tensor = model.tensor(&name).unwrap();
            let (rows, k) = (tensor.shape[0], tensor.shape[1]);
            let mut bytes = vec![0; (tensor.bytes / rows * (rows - 3)) as usize];
            model.read_blocks(&name, encoding, 3..rows, &mut bytes).unwrap();
            let mut values = vec![0.0; ((rows - 3) * k) as usize];
            blocks::decode(encoding, &bytes, &[], &mut values);
            let mut expect = values.clone();
            model.read_rows(&name, 3..rows, &mut [0; 4096], &mut expect).unwrap();
            assert!(values == expect && values.iter().all(|x| x.abs() < 1.0), "{name}");
            assert!(values.iter().any(|x| *x > 0.01) && values.iter().any(|x| *x < -0.01), "{name}");
        }
    }
    let linear: u64 = model.tensors.iter().filter(|t| t.name.contains("_proj.")).map(|t| t.bytes).sum();
    assert_eq!(encodings.bytes(&model.spec), linear);
}

/// A value of the metadata or an axis of a tensor that is a u32 or u64, after its name, of `experts_gguf`.
fn patched_after(bytes: &[u8], name: &str, at: usize, value: &[u8]) -> Vec<u8> {
    let start = bytes.windows(name.len()).position(|part| part == name.as_bytes()).unwrap() + name.len() + at;
    let mut copy = bytes.to_vec();
    copy[start..start + value.len()].copy_from_slice(value);
    copy
}

#[test]
fn experts_share_a_tensor_and_each_is_read_by_its_name() {
    let model = open(&experts_gguf(&[[Q4K, Q4K, Q6K], [Q8_0, Q8_0, Q5K]])).unwrap();
    let experts = model.spec.file_shape().experts.unwrap();
    assert_eq!(
        (model.spec.family, experts.each.count, experts.each.chosen, experts.each.ffn),
        (Family::Qwen3Moe, 3, 2, 256)
    );
    assert!(experts.each.normalizes && experts.layers.len() == 2);
    let [first, second, third] = [0, 1, 2].map(|e| {
        let tensor = model.tensor(&format!("model.layers.1.mlp.experts.{e}.down_proj.weight")).unwrap();
        assert_eq!((tensor.encoding, &tensor.shape[..], tensor.bytes), (Q5K, &[256, 256][..], 256 * 176));
        (tensor.offset, read(&model, &tensor.name))
    });
    assert_eq!((second.0, third.0), (first.0 + 256 * 176, first.0 + 2 * 256 * 176));
    assert!(first.1 != second.1 && second.1 != third.1);
    let encodings = model.encodings.unwrap();
    assert_eq!(encodings.get(1, LoraTarget::Gate), Q8_0);
    assert_eq!(encodings.get(0, LoraTarget::Down), Q6K);
    let linear: u64 = model.tensors.iter().filter(|t| t.name.contains("_proj.")).map(|t| t.bytes).sum();
    assert_eq!(encodings.bytes(&model.spec), linear);
}

#[test]
fn lies_about_experts_are_named() {
    let whole = experts_gguf(&[[Q4K, Q4K, Q6K]]);
    let key = |name: &str, n: u32| patched_after(&whole, &format!("qwen3moe.{name}"), 4, &n.to_le_bytes());
    // After a name: 4 bytes of the number of axes, and the axes, the fastest first.
    let axis = |name: &str, axis: usize, n: u64| {
        patched_after(&whole, &format!("blk.0.{name}.weight"), 4 + 8 * axis, &n.to_le_bytes())
    };
    for (what, bytes, slug, words) in [
        ("no experts", key("expert_count", 0), "model-config-invalid", "qwen3moe.expert_count = 0"),
        ("more experts", key("expert_count", 4), "model-tensor-shape", "expected the matrices of 4 experts"),
        ("fewer experts", key("expert_count", 2), "model-tensor-shape", "expected the matrices of 2 experts"),
        ("a million experts", key("expert_count", 1 << 20), "model-config-invalid", "num_experts = 1048576"),
        ("none used", key("expert_used_count", 0), "model-config-invalid", "qwen3moe.expert_used_count = 0"),
        ("more used", key("expert_used_count", 4), "model-config-invalid", "num_experts_per_tok = 4"),
        ("no width", key("expert_feed_forward_length", 0), "model-config-invalid", "length = 0"),
        ("wide", key("expert_feed_forward_length", i32::MAX as u32), "model-config-invalid", "2147483647"),
        ("another width", key("expert_feed_forward_length", 128), "model-tensor-shape", "[256, 256]"),
        ("fewer matrices", axis("ffn_up_exps", 2, 2), "model-tensor-shape", "`blk.0.ffn_up_exps.weight`"),
        ("shorter rows", axis("ffn_gate_exps", 1, 128), "model-tensor-shape", "[128, 256]"),
        ("no rows", axis("ffn_gate_exps", 1, 0), "model-file-corrupt", "ffn_gate_exps"),
        ("endless", axis("ffn_down_exps", 2, u64::MAX / 2), "model-file-corrupt", "ffn_down_exps"),
    ] {
        let error = open(&bytes).expect_err(what);
        assert_eq!(error.slug, slug, "{what}: {error}");
        assert!(error.message.contains(words), "{what}: {error}");
    }
}

#[test]
fn lies_and_cuts_are_named() {
    let whole = valid_gguf();
    let patched = |at: usize, bytes: &[u8]| {
        let mut copy = whole.clone();
        copy[at..at + bytes.len()].copy_from_slice(bytes);
        copy
    };
    let raw = |kind: u32, bytes: Vec<u8>| with_meta(move |m| m.push(("x", Meta::Raw(kind, bytes.clone()))));
    let list = |kind: u32, count: u64| [kind.to_le_bytes().to_vec(), count.to_le_bytes().to_vec()].concat();
    let huge = u64::MAX.to_le_bytes();
    for (what, bytes, slug) in [
        ("no magic", patched(0, b"GGML"), "model-file-corrupt"),
        ("version 1", patched(4, &1u32.to_le_bytes()), "model-file-corrupt"),
        ("big-endian", patched(4, &3u32.to_be_bytes()), "model-file-corrupt"),
        ("huge tensor count", patched(8, &huge), "model-file-corrupt"),
        ("huge key count", patched(16, &huge), "model-file-corrupt"),
        ("huge key length", patched(24, &huge), "model-file-corrupt"),
        ("string beyond the end", raw(8, huge.to_vec()), "model-file-corrupt"),
        ("list beyond the end", raw(9, list(0, 1 << 40)), "model-file-corrupt"),
        ("list of lists", raw(9, list(9, 1)), "model-file-corrupt"),
        ("unknown value type", raw(77, vec![]), "model-file-corrupt"),
        ("not UTF-8", raw(8, [&1u64.to_le_bytes()[..], &[0xff]].concat()), "model-file-corrupt"),
        (
            "key twice",
            with_meta(|m| m.push(("general.architecture", Meta::Str("llama")))),
            "model-file-corrupt",
        ),
        ("alignment 3", with_meta(|m| m.push(("general.alignment", Meta::U32(3)))), "model-file-corrupt"),
        ("alignment 0", with_meta(|m| m.push(("general.alignment", Meta::U32(0)))), "model-file-corrupt"),
        ("offset not aligned", with_tensors(|t| t[3].offset += 4), "model-file-corrupt"),
        ("negative offset", with_tensors(|t| t[3].offset = (-32i64) as u64), "model-file-corrupt"),
        ("overlap", with_tensors(|t| t[3].offset = t[2].offset), "model-file-corrupt"),
        ("tensor twice", with_tensors(|t| t[6].name = t[1].name.clone()), "model-file-corrupt"),
        ("huge shape", with_tensors(|t| t[2].shape = vec![1 << 40, 1 << 40]), "model-file-corrupt"),
        ("zero axis", with_tensors(|t| t[2].shape = vec![0, 4]), "model-file-corrupt"),
        ("no axes", with_tensors(|t| t[2].shape = vec![]), "model-file-corrupt"),
        ("many axes", with_tensors(|t| t[2].shape = vec![1; 9]), "model-file-corrupt"),
        ("no whole blocks", with_tensors(|t| t[2].kind = 8), "model-file-corrupt"),
        ("unknown type", with_tensors(|t| t[2].kind = 99), "model-unsupported"),
        ("beyond the end", with_tensors(|t| t[10].offset += 32), "model-file-truncated"),
        ("cut", whole[..whole.len() - 1].to_vec(), "model-file-truncated"),
        ("cut in the header", whole[..200].to_vec(), "model-file-corrupt"),
        ("empty", vec![], "model-file-corrupt"),
        ("tensor missing", with_tensors(|t| drop(t.remove(4))), "model-tensor-missing"),
        ("no embedding", with_tensors(|t| t[0].name = "x".into()), "model-tensor-missing"),
        (
            "tensor too many",
            with_tensors(|t| t[4].name = "blk.0.ffn_gate_exps.weight".into()),
            "model-tensor-missing",
        ),
        ("other shape", with_tensors(|t| t[9].shape = vec![8, 4]), "model-tensor-shape"),
    ] {
        let error = open(&bytes).expect_err(what);
        assert_eq!(error.slug, slug, "{what}: {error}");
    }
}

#[test]
fn what_is_not_built_is_refused() {
    let replace = |key: &'static str, value: fn() -> Meta| {
        with_meta(move |m| {
            m.retain(|(k, _)| *k != key);
            m.push((key, value()));
        })
    };
    for (what, bytes, slug) in [
        ("architecture", replace("general.architecture", || Meta::Str("gemma4")), "model-unsupported"),
        ("caps", replace("llama.attn_logit_softcapping", || Meta::F32(50.0)), "model-unsupported"),
        ("pattern", replace("llama.attention.sliding_window_pattern", || Meta::U32(2)), "model-unsupported"),
        ("experts", replace("llama.expert_count", || Meta::U32(8)), "model-unsupported"),
        ("window", replace("llama.attention.sliding_window", || Meta::U32(8)), "model-unsupported"),
        ("yarn", replace("llama.rope.scaling.type", || Meta::Str("yarn")), "model-unsupported"),
        ("part of a head", replace("llama.rope.dimension_count", || Meta::U32(1)), "model-unsupported"),
        ("layers differ", replace("llama.feed_forward_length", || Meta::Ints(vec![8])), "model-unsupported"),
        ("no layers", replace("llama.block_count", || Meta::U32(0)), "model-config-invalid"),
        ("no heads", replace("llama.attention.head_count", || Meta::U32(0)), "model-config-invalid"),
        (
            "no eps",
            replace("llama.attention.layer_norm_rms_epsilon", || Meta::F32(0.0)),
            "model-config-invalid",
        ),
        ("kv heads", replace("llama.attention.head_count_kv", || Meta::U32(3)), "model-config-invalid"),
        (
            "tokens",
            replace("tokenizer.ggml.tokens", || Meta::Strs(vec!["t".into(); 7])),
            "model-file-corrupt",
        ),
    ] {
        let error = open(&bytes).expect_err(what);
        assert_eq!(error.slug, slug, "{what}: {error}");
    }
    // Families that mark layers by their number count them first.
    let of_family = |family: &str| {
        with_meta(|m| {
            m.retain(|(key, _)| *key != "llama.block_count" && *key != "general.architecture");
            m.iter_mut().for_each(|(key, _)| *key = key.replace("llama.", &format!("{family}.")).leak());
            m.push(("general.architecture", Meta::Str(family.to_string().leak())));
            m.push((format!("{family}.block_count").leak(), Meta::U32(100_000)));
            m.push((format!("{family}.attention.sliding_window").leak(), Meta::U32(8)));
        })
    };
    for family in ["gemma2", "gemma3", "smollm3"] {
        let error = open(&of_family(family)).expect_err(family);
        assert!(["model-config-invalid", "model-unsupported"].contains(&error.slug), "{family}: {error}");
    }
    let linear = with_meta(|m| {
        m.push(("llama.rope.scaling.type", Meta::Str("linear")));
        m.push(("llama.rope.scaling.factor", Meta::F32(4.0)));
    });
    assert_eq!(open(&linear).unwrap().spec.rope_scaling, RopeScaling::Linear { factor: 4.0 });
}

#[test]
fn the_table_of_llama_3_becomes_its_rule_and_another_table_is_refused() {
    let file = |divisor: f32| {
        let (mut tensors, mut data) = gguf_tensors();
        data.resize(data.len().next_multiple_of(32), 0);
        let offset = data.len() as u64;
        tensors.push(Listed { name: "rope_freqs.weight".into(), shape: vec![1], kind: 0, offset });
        data.extend(divisor.to_le_bytes());
        gguf(&gguf_meta("llama"), &tensors, &data)
    };
    // With two elements a head there is one frequency, 1: its wavelength 6.28 is short and is kept.
    assert_eq!(open(&file(1.0)).unwrap().spec.rope_scaling, RopeScaling::None);
    assert_eq!(open(&file(3.0)).unwrap_err().slug, "model-unsupported");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Random bytes after the magic are refused; they never panic.
    #[test]
    fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(bytes);
        prop_assert!(open(&file).is_err());
    }

    /// A valid file with some bytes changed is refused by name or is still a whole model; every row can be read.
    #[test]
    fn bent_files_never_panic(changes in proptest::collection::vec((0usize..3000, any::<u8>()), 1..6)) {
        let mut bytes = valid_gguf();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Ok(model) = open(&bytes) {
            for tensor in &model.tensors {
                read_all(&model, &tensor.name);
            }
        }
    }
}

fn read_all(model: &OpenModel, name: &str) {
    let tensor = model.tensor(name).unwrap();
    let mut out = vec![0.0; tensor.shape.iter().product::<u64>() as usize];
    model.read_rows(name, 0..tensor.shape[0], &mut [0; 256], &mut out).unwrap();
}
