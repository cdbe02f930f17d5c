//! Models without files of the user's: the embedded one and random presets.

use plimsoll_arch::ModelSpec;
use plimsoll_arch::expected_tensors;
use plimsoll_files::{OpenModel, check_against};

#[test]
fn the_builtin_model_is_whole() {
    let model = OpenModel::open("builtin:nano", None, false).unwrap();
    check_against(&model).unwrap();
    assert_eq!(model.spec, ModelSpec::preset("nano").unwrap());
    assert_eq!((model.eos_token_ids.as_slice(), model.pad_token_id), (&[1][..], Some(0)));
    assert!(model.tokenizer.tokenizer_json.is_some() && model.tokenizer.tokenizer_config_json.is_some());
    let mut staging = [0; 256];
    for (name, shape) in expected_tensors(&model.spec) {
        let mut out = vec![f32::NAN; shape.iter().product::<u64>() as usize];
        model.read_rows(&name, 0..shape[0], &mut staging, &mut out).unwrap();
        assert!(out.iter().all(|v| v.is_finite()), "{name}");
    }
}

#[test]
fn a_random_preset_has_a_shape_and_no_tensors() {
    let model = OpenModel::open("random:qwen2.5-0.5b", None, false).unwrap();
    check_against(&model).unwrap();
    assert!(model.random && model.tensors.is_empty() && model.tokenizer.bytes);
    assert_eq!((model.file_bytes, model.eos_token_ids.as_slice()), (0, &[257][..]));
    let nano = OpenModel::open("random:nano", None, false).unwrap();
    assert!(nano.random && !nano.tokenizer.bytes && nano.tokenizer.tokenizer_json.is_some());
}

#[test]
fn expected_tensors_hold_all_parameters() {
    for (name, spec) in plimsoll_arch::PRESETS {
        let expected = expected_tensors(spec);
        // Corrections of routers and numbers of layers are no parameters.
        let is_fixed = |name: &str| plimsoll_arch::is_kept_in_f32(name) || name.ends_with(".layer_scalar");
        let trained = expected.iter().filter(|(name, _)| !is_fixed(name));
        let sum: u64 = trained.map(|(_, shape)| shape.iter().product::<u64>()).sum();
        assert_eq!(sum, spec.parameters(), "{name}");
    }
}
