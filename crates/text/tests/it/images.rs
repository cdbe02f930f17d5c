//! Rows with images in the forms of other stacks, and every way in which one can be wrong.

use plimsoll_base::Result;
use plimsoll_text::{ImageColumns, ImageFolder, ImageRow, ImageSource, each_prompt_with_images};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const COLUMNS: ImageColumns = ImageColumns { prompt: "prompt", images: "images", placeholder: "[I]" };

fn rows(path: &Path) -> Vec<ImageRow> {
    let mut rows = Vec::new();
    each_prompt_with_images(path, COLUMNS, |index, row| {
        assert_eq!(index, rows.len());
        rows.push(row);
        Ok(())
    })
    .unwrap();
    rows
}

fn row_of(value: &Value) -> ImageRow {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.jsonl");
    std::fs::write(&path, value.to_string()).unwrap();
    rows(&path).remove(0)
}

/// The prompt's words and the images, each a name or its first bytes.
fn read(value: &Value) -> (String, Vec<String>) {
    let row = row_of(value);
    assert!(!row.row.columns.contains_key("images"), "{value}");
    let words = match &row.row.prompt {
        plimsoll_text::Prompt::Text(text) => text.clone(),
        plimsoll_text::Prompt::Messages(messages) => {
            messages.iter().map(|message| message.content.as_str()).collect::<Vec<_>>().join("|")
        }
    };
    let of = |image: Result<ImageSource>| match image.unwrap() {
        ImageSource::Path(name) => name,
        ImageSource::Bytes(bytes) => format!("{:?}", &bytes[..2.min(bytes.len())]),
    };
    (words, row.images.into_iter().map(of).collect())
}

#[test]
fn every_stack_s_rows_have_a_placeholder_for_each_image_in_its_order() {
    let user =
        |content: Value| json!([{"role": "system", "content": "s"}, {"role": "user", "content": content}]);
    let long = "iVBO".repeat(60);
    for (row, words, images) in [
        // TRL: parts without a source, and prompts without a place.
        (
            json!({"prompt": user(json!([{"type": "image"}, {"type": "text", "text": "a"}])), "images": ["x.png"]}),
            "s|[I]a",
            vec!["x.png"],
        ),
        (
            json!({"prompt": user(json!("a")), "images": ["x.png", "y.png"]}),
            "s|[I][I]a",
            vec!["x.png", "y.png"],
        ),
        (json!({"prompt": "a", "images": "x.png"}), "[I]a", vec!["x.png"]),
        // verl and slime.
        (
            json!({"prompt": user(json!("<image>\nb <image>")), "images": [{"bytes": null, "path": "x.png"}, {"image": "file:///y.png"}]}),
            "s|[I]\nb [I]",
            vec!["x.png", "/y.png"],
        ),
        // ms-swift: base64 with and without a header.
        (json!({"prompt": "<image>c", "images": [long]}), "[I]c", vec!["[137, 80]"]),
        (json!({"prompt": "<image>c", "images": ["data:image/png;base64,iVBO"]}), "[I]c", vec!["[137, 80]"]),
        // OpenAI's parts have their own images, which may come among those of the column.
        (
            json!({"prompt": user(json!([{"type": "image"}, {"type": "image_url", "image_url": {"url": "data:;base64,/9g="}}, {"type": "text", "text": "<image>"}])), "images": ["x.png", "y.png"]}),
            "s|[I][I][I]",
            vec!["x.png", "[255, 216]", "y.png"],
        ),
        // A row without images is text, whatever it says.
        (json!({"prompt": "no <image>", "images": null}), "no <image>", vec![]),
        (json!({"prompt": "no <image>"}), "no <image>", vec![]),
    ] {
        assert_eq!(
            read(&row),
            (words.to_string(), images.iter().map(|name| name.to_string()).collect()),
            "{row}"
        );
    }
}

#[test]
fn what_is_wrong_with_an_image_is_named_with_its_place() {
    let many: Vec<String> = (0..257).map(|i| format!("{i}.png")).collect();
    for (row, slug, words) in [
        (
            json!({"prompt": "a", "images": ["https://u:p@a.b/c.png?key=1"]}),
            "image-url",
            "image 1: `https://a.b/c.png`",
        ),
        (json!({"prompt": "a", "images": ["s3://b/c.png"]}), "image-url", "image 1"),
        (json!({"prompt": "<image>", "images": ["x.png", "y.png"]}), "image-count", "1 places for 2 images"),
        (json!({"prompt": "<image><image>", "images": ["x.png"]}), "image-count", "2 places for 1 images"),
        (
            json!({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}),
            "image-count",
            "1 places for 0",
        ),
        (json!({"prompt": "a", "images": many}), "image-count", "at most 256"),
        (json!({"prompt": "a", "images": ["x.png", 7]}), "image-source-invalid", "image 2: 7"),
        (json!({"prompt": "a", "images": {"width": 3}}), "image-source-invalid", "without `bytes`"),
        (json!({"prompt": "a", "images": "data:image/png,abc"}), "image-source-invalid", "not in base64"),
        (json!({"prompt": "a", "images": {"bytes": "!"}}), "image-source-invalid", "base64"),
        (json!({"prompt": "a", "images": ""}), "image-source-invalid", "empty"),
    ] {
        let row = row_of(&row);
        let error = row.images.into_iter().find_map(Result::err).expect("an error");
        assert!(error.slug == slug && error.message.contains(words), "{error}");
        assert!(error.message.contains("d.jsonl:1: image "), "{error}");
    }
}

#[test]
fn files_are_read_from_the_folder_alone() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("data");
    std::fs::create_dir_all(folder.join("images")).unwrap();
    std::fs::write(dir.path().join("secret"), "s").unwrap();
    std::fs::write(folder.join("images/a.png"), "a").unwrap();
    std::os::unix::fs::symlink(dir.path().join("secret"), folder.join("link.png")).unwrap();
    std::os::unix::fs::symlink("images/a.png", folder.join("near.png")).unwrap();
    let of_data = ImageFolder::of(&folder.join("d.jsonl"), None).unwrap();
    let named = ImageFolder::of(&folder.join("d.jsonl"), Some(dir.path())).unwrap();
    let read = |folder: &ImageFolder, name: &str| {
        let read = ImageSource::Path(name.into()).read(folder).map(|bytes| bytes.into_owned());
        read.map_err(|error| error.slug)
    };
    let whole = |name: &str| folder.join(name).display().to_string();
    let secret = dir.path().join("secret").display().to_string();
    for name in ["images/a.png", "near.png", &whole("images/a.png")] {
        assert_eq!(read(&of_data, name), Ok(b"a".to_vec()), "{name}");
    }
    for (name, slug) in [
        ("../secret", "image-outside-folder"),
        ("images/../images/a.png", "image-outside-folder"),
        ("link.png", "image-outside-folder"),
        (&secret, "image-outside-folder"),
        ("/etc/passwd", "image-outside-folder"),
        ("none.png", "image-missing"),
        ("images", "image-missing"),
        ("a\0b", "image-missing"),
    ] {
        assert_eq!(read(&of_data, name), Err(slug), "{name:?}");
    }
    assert_eq!(read(&named, &secret), Ok(b"s".to_vec()));
    assert_eq!(ImageFolder::of(Path::new("none/d.jsonl"), None).unwrap_err().slug, "image-missing");
}

#[test]
fn bytes_of_a_parquet_file_are_images_where_the_run_says_so() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/parquet/images.parquet");
    let read = rows(&path);
    let starts = |row: &ImageRow| {
        let of = |image: &Result<ImageSource>| match image.as_ref().unwrap() {
            ImageSource::Bytes(bytes) => bytes[0],
            other => panic!("{other:?}"),
        };
        row.images.iter().map(of).collect::<Vec<u8>>()
    };
    assert_eq!(
        read.iter().map(starts).collect::<Vec<_>>(),
        [vec![0x89], vec![0xff], vec![0xff, b'R'], vec![]]
    );
    assert_eq!(read[3].row.prompt.messages()[0].content, "No <image> here.");
    let error = plimsoll_text::each_prompt(&path, "prompt", |_, _| Ok(())).unwrap_err();
    assert!(error.slug == "data-bad-parquet" && error.message.contains("data.images"), "{error}");
}
