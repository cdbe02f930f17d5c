//! Models that see, as processes: `generate --image`, and what is wrong with images.

use crate::common::{Folder, plimsoll, text};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const ITS_FOLDER: &str = env!("CARGO_MANIFEST_DIR");
/// Letters and their ids: nano's characters have the first ones.
const LETTERS: std::ops::Range<u32> = 15..41;
const MARKS: [(u32, &str); 5] = [
    (55, "<|vision_end|>"),
    (56, "<|vision_start|>"),
    (57, "<|video_pad|>"),
    (58, "<|image_pad|>"),
    (59, "<end>"),
];

/// Writes a tiny model that sees, with a tokenizer of characters. An image has up to 16 tokens of 8 x 8 pixels.
pub fn write(to: &Path) {
    let of = |name: &str| Path::new(ITS_FOLDER).join("..").join(name);
    fs::create_dir(to).expect("a folder");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(of("model/tests/golden/qwen3_vl").join(name), to.join(name)).expect("a file");
    }
    let read = fs::read(of("files/assets/nano/tokenizer.json")).expect("a file");
    let mut tokenizer: Value = serde_json::from_slice(&read).expect("JSON");
    for id in LETTERS {
        tokenizer["model"]["vocab"][char::from(b'a' + (id - LETTERS.start) as u8).to_string()] = json!(id);
    }
    for (id, content) in MARKS {
        // Without this it would have the next free id.
        tokenizer["model"]["vocab"][content] = json!(id);
        let mark = json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        });
        tokenizer["added_tokens"].as_array_mut().expect("a list").push(mark);
    }
    let processor = json!({
        "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 64, "max_pixels": 1024,
    });
    for (name, value) in [("tokenizer.json", tokenizer), ("preprocessor_config.json", processor)] {
        fs::write(to.join(name), value.to_string()).expect("a file");
    }
}

/// An image of the repository.
pub fn image(name: &str) -> String {
    Path::new(ITS_FOLDER).join("../images/tests/golden/files").join(name).display().to_string()
}

pub struct Seeing {
    pub folder: Folder,
    pub model: String,
}

impl Seeing {
    pub fn new() -> Seeing {
        let folder = Folder::new();
        let path = PathBuf::from(folder.text_path("vl"));
        write(&path);
        Seeing { model: path.display().to_string(), folder }
    }

    /// What `generate` prints, or its refusal.
    pub fn generate(&self, prompt: &str, images: &[&str], sets: &[&str]) -> Result<Value, String> {
        let mut args =
            vec!["generate", "--model", &self.model, "--raw", "--prompt", prompt, "--json", "--quiet"];
        args.extend(images.iter().flat_map(|image| ["--image", image]));
        args.extend(sets.iter().flat_map(|set| ["--set", set]));
        let output = plimsoll(&args);
        if output.status.code() == Some(0) {
            Ok(serde_json::from_slice(&output.stdout).expect("JSON"))
        } else {
            Err(text(&output.stderr))
        }
    }
}

pub fn numbers(list: &Value) -> Vec<f32> {
    list.as_array().expect("a list").iter().map(|n| n.as_f64().expect("a number") as f32).collect()
}

#[test]
fn a_prompt_has_its_images_where_it_says() {
    let (seeing, [rgb, noise]) = (Seeing::new(), ["rgb.png", "noise.jpg"].map(image));
    let sets = ["rollout.max_new_tokens=6", "rollout.temperature=1.0", "seed=5"];
    let drawn = |prompt: &str, images: &[&str], more: &[&str]| {
        let found = seeing.generate(prompt, images, &[&sets, more].concat()).expect("it is generated");
        (found["prompt_tokens"].clone(), found["tokens"].clone(), numbers(&found["logprobs"]))
    };
    let one = drawn("what", &[&rgb], &[]);
    // 29 x 22 pixels become 32 x 24: 4 x 3 tokens between two marks, and four letters.
    assert_eq!(one.0, 18);
    assert_eq!(one, drawn("<image>what", &[&rgb], &[]));
    assert_eq!(one, drawn("<|vision_start|><|image_pad|><|vision_end|>what", &[&rgb], &[]));
    // How rows are cut into passes changes no bit.
    assert_eq!(one, drawn("what", &[&rgb], &["rollout.sequences_max=1"]));
    assert_ne!(one.2, drawn("what", &[&noise], &[]).2);
    let two = drawn("<image>what<image>", &[&rgb, &noise], &[]);
    assert_eq!(two, drawn("<image>what<image>", &[&rgb, &noise], &[]));
    assert_ne!(two.2, drawn("<image>what<image>", &[&noise, &rgb], &[]).2);
}

/// transformers 5.23 (`Qwen3VLForConditionalGeneration` with `Qwen2VLImageProcessorPil`) over the same files: its
/// log-probabilities of what is drawn here, with the logits of `<|image_pad|>` and `<|video_pad|>` at -1e30. It sums in
/// another order; weights of 0.02 keep that below 1e-5.
#[test]
fn what_is_drawn_is_as_likely_as_transformers_says() {
    let seeing = Seeing::new();
    let sets = ["rollout.max_new_tokens=6", "rollout.temperature=1.0", "seed=5", "model_options.dtype=f32"];
    let check = |prompt: &str, images: &[&str], tokens: Value, expect: [f32; 6]| {
        let images: Vec<String> = images.iter().map(|name| image(name)).collect();
        let images: Vec<&str> = images.iter().map(String::as_str).collect();
        let found = seeing.generate(prompt, &images, &sets).expect("it is generated");
        assert_eq!(found["tokens"], tokens, "{prompt}");
        for (own, expect) in numbers(&found["logprobs"]).into_iter().zip(expect) {
            assert!((own - expect).abs() < 1e-5, "{prompt}: {own}, {expect}");
        }
    };
    check(
        "what",
        &["rgb.png"],
        json!([54, 52, 6, 38, 28, 28]),
        [-4.428_987, -3.699_018, -4.468_554, -5.090_015, -4.002_207, -3.492_401],
    );
    check(
        "<image>what<image>",
        &["rgb.png", "turned.png"],
        json!([53, 53, 5, 39, 38, 28]),
        [-2.864_086, -2.713_94, -3.912_729, -5.094_77, -4.816_811, -4.405_891],
    );
}

#[test]
fn what_is_wrong_with_an_image_or_its_place_is_named() {
    let (seeing, rgb) = (Seeing::new(), image("rgb.png"));
    let refused = |prompt: &str, images: &[&str], slug: &str| {
        let words = seeing.generate(prompt, images, &["rollout.max_new_tokens=2"]).expect_err(slug);
        assert!(words.contains(&format!("error[{slug}]")), "{words}");
    };
    refused("<image>a<image>", &[&rgb], "image-count");
    refused("<image>a", &[&rgb, &rgb], "image-count");
    refused("a<|image_pad|>", &[&rgb], "image-count");
    refused("a<|vision_start|><|image_pad|><|vision_end|>", &[], "image-count");
    refused("a", &["no-such.png"], "image-missing");
    let whole = fs::read(&rgb).expect("a file");
    let cut = seeing.folder.text_path("cut.png");
    fs::write(&cut, &whole[..whole.len() / 2]).expect("a file");
    refused("a", &[&cut], "image-damaged");
    let page = seeing.folder.write("page.png", "<html>not found</html>");
    refused("a", &[&page], "image-format-unknown");
    let args = ["generate", "--model", "builtin:nano", "--prompt", "1+1=", "--image", &rgb];
    let words = text(&plimsoll(&args).stderr);
    assert!(words.contains("error[model-takes-no-images]"), "{words}");
}

#[test]
fn an_evaluation_has_the_numbers_of_generate_for_each_row() {
    let seeing = Seeing::new();
    let rows = r#"{"prompt": "<image>what", "images": ["rgb.png"], "ground_truth": "a"}
{"prompt": "<image>what<image>", "images": ["rgb.png", "turned.png"], "ground_truth": "b"}
{"prompt": "what", "ground_truth": "c"}
{"prompt": "what", "images": ["turned.png"], "ground_truth": "d"}
"#;
    for name in ["rgb.png", "turned.png"] {
        fs::copy(image(name), seeing.folder.path(name)).expect("a file");
    }
    // More than are held at one time.
    let rows = seeing.folder.write("rows.jsonl", &rows.repeat(5));
    let output = seeing.folder.text_path("out.jsonl");
    let evaluate = |model: &str| {
        let args = ["eval", "--model", model, "--data", &rows, "--output", &output, "--json", "--quiet"];
        let sets = ["data.images=images", "data.chat_template=none", "rollout.max_new_tokens=4"];
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        plimsoll(&[&args[..], &sets].concat())
    };
    let ended = evaluate(&seeing.model);
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    let lines = fs::read_to_string(&output).expect("the responses");
    let found: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(found.len(), 20);
    let names = [&["rgb.png"][..], &["rgb.png", "turned.png"], &[], &["turned.png"]];
    let prompts = ["<image>what", "<image>what<image>", "what", "what"];
    for (first, (prompt, names)) in prompts.into_iter().zip(names).enumerate() {
        let images: Vec<String> = names.iter().map(|name| image(name)).collect();
        let images: Vec<&str> = images.iter().map(String::as_str).collect();
        let sets = ["rollout.max_new_tokens=4", "rollout.temperature=0.0"];
        let alone = seeing.generate(prompt, &images, &sets).expect("it is generated");
        for row in found.iter().skip(first).step_by(4) {
            assert_eq!(numbers(&row["logprobs"]), numbers(&alone["logprobs"]), "{prompt}: {row}");
        }
    }
    let words = text(&evaluate("builtin:nano").stderr);
    assert!(words.contains("error[model-takes-no-images]") && words.contains("15 of 20 rows"), "{words}");
}
