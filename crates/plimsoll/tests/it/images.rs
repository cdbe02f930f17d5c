//! Data with images as a user has them: counted by `plan --images`, and refused by every run that would not see them.

use crate::common::{plimsoll, text};
use crate::run::Run;
use plimsoll_images::{PLACEHOLDER, Processor, Thumbnail, prepare};
use plimsoll_text::{DrawnTask, ImageFolder};
use serde_json::Value;
use std::path::{Path, PathBuf};

const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "PATH"
images = "images"
eval = "none"
prompt_tokens_max = 64
[rollout]
prompts_per_step = 2
group_size = 4
max_new_tokens = 4
[[reward]]
kind = "hash"
[train]
steps = 1
learning_rate = 1e-6
"#;

fn of_crates(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// A run over rows of a file in its folder, which has some images.
fn run_over(rows: &str) -> Run {
    let run = Run::new("");
    run.write("x.toml", &RUN.replace("PATH", &run.text_path("rows.jsonl")));
    run.write("rows.jsonl", rows);
    for name in ["rgb.png", "turned.jpg", "noise.jpg"] {
        let file = of_crates("images/tests/golden/files").join(name);
        std::fs::copy(file, run.path(name)).expect("a file of the repository");
    }
    run
}

fn counted(run: &Run, words: &[&str], code: i32) -> Value {
    let words: Vec<&str> = words.iter().copied().chain(["--images", "--json"]).collect();
    let output = plimsoll(&run.args("plan", &words).iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one object")
}

#[test]
fn images_are_counted_and_what_is_wrong_is_named() {
    let cut =
        std::fs::read(of_crates("images/tests/golden/files/noise.jpg")).expect("a file of the repository");
    let run = run_over(
        r#"{"prompt": "<image>a<image>", "images": ["rgb.png", "turned.jpg"]}
{"prompt": "b", "images": ["cut.jpg"]}
{"prompt": "c", "images": ["none.jpg", "https://a.b/c.png", "../rgb.png", "page.png"]}
{"prompt": "<image><image>", "images": ["rgb.png"]}
{"prompt": "d"}
"#,
    );
    std::fs::write(run.path("cut.jpg"), &cut[..cut.len() / 2]).expect("it can be written");
    run.write("page.png", "<html>not found</html>");
    let said = counted(&run, &[], 1);
    assert_eq!(
        (&said["rows"], &said["rows_with_images"], &said["images"]),
        (&5.into(), &4.into(), &3.into())
    );
    // 29 x 22 pixels become 320 x 224, and turned by a quarter 224 x 320.
    assert_eq!((&said["image_tokens_min"], &said["image_tokens_max"]), (&70.into(), &70.into()));
    assert_eq!(said["largest_row"]["tokens"], 140);
    assert!(said["largest_row"]["row"].as_str().expect("a place").ends_with("rows.jsonl:1"), "{said}");
    let failures: Vec<&String> = said["failures"].as_object().expect("failures").keys().collect();
    assert_eq!(
        failures,
        [
            "image-count",
            "image-damaged",
            "image-format-unknown",
            "image-missing",
            "image-outside-folder",
            "image-url"
        ]
    );
    assert_eq!(said["failures"]["image-damaged"]["count"], 1);
    let first = said["failures"]["image-damaged"]["first"].as_str().expect("words");
    assert!(first.contains("rows.jsonl:2: image 1: it is cut off"), "{first}");

    let small = ["data.image_pixels_min=4096", "data.image_pixels_max=4096"];
    assert_eq!(counted(&run, &small, 1)["image_tokens_max"], 6);
    let elsewhere = format!("data.image_folder={}", of_crates("images/tests/golden/files").display());
    assert_eq!(counted(&run, &[&elsewhere], 1)["failures"]["image-missing"]["count"], 3);
    // A model's own files say how it wants its images.
    std::fs::create_dir(run.path("vl")).expect("a folder");
    run.write("vl/config.json", r#"{"model_type": "qwen2_5_vl"}"#);
    run.write(
        "vl/preprocessor_config.json",
        r#"{"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14}"#,
    );
    let model = format!("model={}", run.text_path("vl"));
    assert_eq!(counted(&run, &[&model], 1)["image_tokens_max"], 6);
}

#[test]
fn parquet_with_bytes_is_counted_and_no_run_trains_without_its_images() {
    let run = run_over("");
    let parquet = format!("data.prompts={}", of_crates("text/tests/parquet/images.parquet").display());
    let said = counted(&run, &[&parquet], 0);
    assert_eq!(
        (&said["rows"], &said["rows_with_images"], &said["images"]),
        (&4.into(), &3.into(), &4.into())
    );
    let rows = |words: &[&str]| {
        let of = |args: Vec<String>| {
            let output = plimsoll(&args.iter().map(String::as_str).collect::<Vec<_>>());
            let said = text(&output.stderr);
            assert!(said.contains("error[model-takes-no-images]"), "{args:?}: {said}");
            said
        };
        assert_eq!(of(run.args("plan", words)), of(run.train_args("out", words)));
        of(run.args("plan", words))
    };
    assert!(rows(&[&parquet]).contains("3 of 4 rows have images (column `images`)"));
    // Without the key a column with images shows itself.
    run.write("rows.jsonl", "{\"prompt\": \"1+2=\"}\n{\"prompt\": \"1+2=\", \"image\": \"a.png\"}\n");
    run.write(
        "x.toml",
        &RUN.replace("PATH", &run.text_path("rows.jsonl")).replace("images = \"images\"\n", ""),
    );
    assert!(rows(&[]).contains("1 of 2 rows have images (column `image`)"));
    let ignored = ["data.ignore=[\"image\"]", "data.prompt_tokens_max=32"];
    let output = plimsoll(&run.args("plan", &ignored).iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

/// What a task draws takes the path of a file, and is refused where a run reads text alone.
#[test]
fn drawn_images_are_prepared_as_files_are() {
    let folder = ImageFolder::of(Path::new("rows.jsonl"), None).expect("the current folder");
    for (name, family, tokens) in [
        ("builtin:shapes", "qwen3_vl", 4),
        ("builtin:digits", "qwen3_vl", 2),
        ("builtin:shapes", "qwen2_5_vl", 4),
        ("builtin:digits", "qwen2_5_vl", 2),
    ] {
        let row = DrawnTask::find(name).expect("a task").train_row(1, 2, PLACEHOLDER);
        let bytes = row.images[0].as_ref().expect("an image").read(&folder).expect("its content");
        let processor = Processor::of_family(family).expect("a family").with_pixels(Some(784), None);
        let image = prepare(&bytes, &processor.expect("an area")).expect("pixels");
        assert_eq!((image.tokens, row.images.len()), (tokens, 1), "{name} for {family}");
        assert!(Thumbnail::of(&image.pixels).png.len() < 8192);
    }
    let run = run_over("");
    let words = ["data.prompts=builtin:shapes"];
    let said = counted(&run, &[words[0], "data.image_pixels_min=1024"], 0);
    assert_eq!(
        (&said["rows"], &said["images"], &said["image_tokens_max"]),
        (&300.into(), &300.into(), &4.into())
    );
    let output = plimsoll(&run.train_args("out", &words).iter().map(String::as_str).collect::<Vec<_>>());
    assert!(
        text(&output.stderr).contains("error[model-takes-no-images]: builtin:nano"),
        "{}",
        text(&output.stderr)
    );
}
