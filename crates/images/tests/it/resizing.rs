//! Resizing and patches, equal to Pillow's and transformers' to the bit.

use crate::{cases, number, pattern, sha256};
use plimsoll_images::{PatchRows, Processor, Size, resize, smart_size};
use serde_json::Value;

#[test]
fn every_resized_byte_is_pillows() {
    for case in cases("resize.json") {
        let [from, to] = [&case["from"], &case["to"]].map(|size| [0, 1].map(|i| number(&size[i]) as u32));
        let image = resize(&pattern(from[0], from[1]), to[0], to[1]);
        assert_eq!((image.width, image.height), (to[0], to[1]));
        assert_eq!(sha256(&image.rgb), case["sha256"].as_str().unwrap(), "{from:?} to {to:?}");
    }
}

#[test]
fn sizes_are_those_of_transformers() {
    for case in cases("sizes.json") {
        let [height, width, factor, min, max, h, w] = [0, 1, 2, 3, 4, 5, 6].map(|i| number(&case[i]));
        let from = Size { height: height as u32, width: width as u32 };
        let size = smart_size(from, factor as u32, min, max).unwrap();
        assert_eq!((u64::from(size.height), u64::from(size.width)), (h, w), "{case}");
    }
    let narrow = smart_size(Size { height: 1, width: 201 }, 32, 1, 1 << 20).unwrap_err();
    assert_eq!(narrow.at("a.jsonl:1").slug, "image-too-narrow");
}

#[test]
fn pixel_values_are_those_of_transformers() {
    for case in cases("patches.json") {
        let [width, height] = [0, 1].map(|i| number(&case["size"][i]) as u32);
        let processor = Processor::of_family("qwen3_vl").unwrap();
        let three = |value: &Value| [0, 1, 2].map(|i| value[i].as_f64().unwrap() as f32);
        let processor = Processor {
            patch: number(&case["patch"]) as u32,
            pixels_min: number(&case["pixels"][0]),
            pixels_max: number(&case["pixels"][1]),
            mean: three(&case["mean"]),
            std: three(&case["std"]),
            ..processor
        };
        let (size, grid, tokens) = processor.size_of(Size { height, width }).unwrap();
        let expected = [0, 1, 2].map(|i| number(&case["grid"][i]) as u32);
        assert_eq!([grid.frames, grid.height, grid.width], expected, "{case}");
        assert_eq!(tokens, grid.patches() / 4);
        let rows = PatchRows::new(processor);
        let mut values = vec![0.0; grid.patches() * rows.row_len()];
        rows.write(&resize(&pattern(width, height), size.width, size.height), &mut values);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(sha256(&bytes), case["sha256"].as_str().unwrap(), "{case}");
    }
}

#[test]
fn a_processors_file_overrules_its_family_and_a_run_overrules_both() {
    let family = Processor::of_family("qwen3_vl").unwrap();
    for (text, min, max) in [
        (r#"{"size": {"shortest_edge": 4096, "longest_edge": 8192}}"#, 4096, 8192),
        (r#"{"min_pixels": 4096, "size": {"shortest_edge": 5000}}"#, 4096, 16_777_216),
        (r#"{"image_processor": {"max_pixels": 1003520, "resample": 3}}"#, 65_536, 1_003_520),
    ] {
        let read = family.with_file(text).unwrap();
        assert_eq!((read.pixels_min, read.pixels_max), (min, max), "{text}");
    }
    // The file of Qwen2.5-VL says what its family does.
    let older = Processor::of_family("qwen2_5_vl").unwrap();
    let text = r#"{"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}"#;
    assert_eq!((older.with_file(text).unwrap(), older.factor()), (older, 28));
    let run = family.with_pixels(None, Some(4096)).unwrap();
    assert_eq!((run.pixels_min, run.pixels_max), (4096, 4096));
    for text in [
        "[",
        r#"{"patch_size": 0}"#,
        r#"{"patch_size": 1e9}"#,
        r#"{"resample": 2}"#,
        r#"{"image_std": [1, 0, 1]}"#,
        r#"{"image_mean": [1]}"#,
        r#"{"max_pixels": 1000}"#,
        r#"{"max_pixels": 99999999999}"#,
        r#"{"do_resize": false}"#,
    ] {
        assert_eq!(family.with_file(text).unwrap_err().slug, "image-processor-invalid", "{text}");
    }
    assert!(family.with_pixels(Some(9000), Some(8000)).is_err());
}
