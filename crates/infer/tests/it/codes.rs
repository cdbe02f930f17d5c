//! Which models may be kept in codes, by the shapes of their rows and the encodings of their file.

use plimsoll_arch::{FileShape, LayerEncodings, LoraTarget, ModelSpec, Quantization};
use plimsoll_base::Encoding;
use plimsoll_files::OpenModel;
use plimsoll_infer::codes::check_codes;

const KEY: &str = "lora.quantize";

/// The embedded model with the shape of a preset; with encodings, as if it were a GGUF file.
fn model(preset: &str, encoding: Option<fn(u32, LoraTarget) -> Encoding>) -> OpenModel {
    let mut model = OpenModel::open("builtin:nano", None, false).expect("it is built in");
    model.spec = ModelSpec::preset(preset).expect("a preset");
    model.encodings = encoding.map(|of| LayerEncodings::of(model.spec.layers.len(), of));
    model
}

#[test]
fn weights_that_come_from_no_gguf_file_cannot_stay_in_its_blocks() {
    let model = model("qwen3-0.6b", None);
    let error = check_codes("bad-value", KEY, Some(Quantization::Gguf), &model).expect_err("no such file");
    assert_eq!(error.slug, "model-not-gguf");
    assert!(error.message.contains("lora.quantize = \"gguf\" needs a GGUF file"), "{error}");
    assert!(error.hints.iter().any(|hint| hint.contains("\"nf4\"")), "{:?}", error.hints);
    // The key of frozen models has no such value.
    let frozen = check_codes("bad-value", "model_options.quantize", Some(Quantization::Gguf), &model);
    let hints = frozen.expect_err("no such file").hints;
    assert!(hints.iter().all(|hint| !hint.contains("nf4")), "{hints:?}");
    assert!(check_codes("bad-value", KEY, None, &model).is_ok());
    assert!(check_codes("bad-value", KEY, Some(Quantization::Nf4), &model).is_ok());
}

#[test]
fn blocks_of_linear_attention_are_refused() {
    let model = model("qwen3.5-0.8b", Some(|_, _| Encoding::Q8_0));
    let error = check_codes("bad-value", KEY, Some(Quantization::Gguf), &model).expect_err("another order");
    assert_eq!(error.slug, "bad-value");
    assert!(error.message.contains("linear attention have columns in another order"), "{error}");
}

#[test]
fn gates_and_ups_of_experts_are_of_one_encoding() {
    let alike = model("qwen3-30b-a3b", Some(|_, _| Encoding::Q8_0));
    assert!(check_codes("bad-value", KEY, Some(Quantization::Gguf), &alike).is_ok());
    let differ = model(
        "qwen3-30b-a3b",
        Some(|layer, target| match (layer, target) {
            (2.., LoraTarget::Up) => Encoding::Q4_0,
            _ => Encoding::Q8_0,
        }),
    );
    let error = check_codes("bad-value", KEY, Some(Quantization::Gguf), &differ).expect_err("two encodings");
    assert_eq!(error.slug, "bad-value");
    assert!(error.message.contains("in layer 2 gates of experts are q8_0 and ups q4_0"), "{error}");
    // A dense part has them in two matrices.
    let dense = model(
        "qwen3-0.6b",
        Some(|_, target| match target {
            LoraTarget::Up => Encoding::Q4_0,
            _ => Encoding::Q8_0,
        }),
    );
    assert!(check_codes("bad-value", KEY, Some(Quantization::Gguf), &dense).is_ok());
}

#[test]
fn rows_that_are_no_whole_blocks_are_refused_by_their_widths() {
    let mut model = model("qwen3-0.6b", None);
    model.spec = FileShape { hidden: 1000, ..model.spec.file_shape() }.spec();
    let error = check_codes("lora-quantize", KEY, Some(Quantization::Nf4), &model).expect_err("half a block");
    assert_eq!(error.slug, "lora-quantize");
    assert!(error.message.contains("rows of this model have 1000, 2048"), "{error}");
    let keeps_blocks = |hints: &[String]| hints.iter().any(|hint| hint.contains("\"gguf\""));
    assert!(!keeps_blocks(&error.hints), "{:?}", error.hints);
    model.encodings = Some(LayerEncodings::of(model.spec.layers.len(), |_, _| Encoding::Q8_0));
    let error = check_codes("lora-quantize", KEY, Some(Quantization::Nf4), &model).expect_err("half a block");
    assert!(keeps_blocks(&error.hints), "a file in blocks can keep them: {:?}", error.hints);
}
