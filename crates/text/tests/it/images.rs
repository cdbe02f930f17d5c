//! Rows with images in the forms of other stacks, and every way in which one can be wrong.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll_base::Result;
use plimsoll_text::{
    ImageColumns, ImageFolder, ImageRow, ImageSource, Part, each_prompt_with_images, file_size,
    first_prompts_with_images, load_pairs,
};
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

/// The prompt's words, the images and what is wrong with one, of a pair.
fn pair(value: &Value) -> (String, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.jsonl");
    std::fs::write(&path, value.to_string()).unwrap();
    let row = load_pairs(&path, "prompt", &[], Some(COLUMNS)).unwrap().remove(0);
    let words = match &row.row.prompt {
        plimsoll_text::Prompt::Text(text) => text.clone(),
        plimsoll_text::Prompt::Messages(messages) => messages[0].content.clone(),
    };
    let of = |image: Result<ImageSource>| match image {
        Ok(image) => format!("{image:?}"),
        Err(error) => error.slug.to_string(),
    };
    (words, row.images.into_iter().map(of).collect())
}

#[test]
fn a_pair_has_the_images_of_its_prompt_once() {
    let image = |name: &str| format!("Path({name:?})");
    let user = |content: Value| json!({"role": "user", "content": content});
    let own = |text: &str| json!({"role": "assistant", "content": [{"type": "text", "text": text}]});
    let part = || json!([{"type": "image"}, {"type": "text", "text": "a"}]);
    for (row, words, images) in [
        // TRL: rlaif-v, with the prompt apart and within both answers.
        (
            json!({"prompt": [user(part())], "chosen": [own("b")], "rejected": [own("c")], "images": ["x.png"]}),
            "[I]a",
            vec![image("x.png")],
        ),
        (
            json!({"chosen": [user(part()), own("b")], "rejected": [user(part()), own("c")], "images": ["x.png"]}),
            "[I]a",
            vec![image("x.png")],
        ),
        (
            json!({"prompt": "a", "chosen": "b", "rejected": "c", "images": ["x.png", "y.png"]}),
            "[I][I]a",
            vec![image("x.png"), image("y.png")],
        ),
        // ms-swift.
        (
            json!({"messages": [user(json!("<image>a")), own("b")], "rejected_response": "c", "images": ["x.png"]}),
            "[I]a",
            vec![image("x.png")],
        ),
        (
            json!({"messages": [user(json!("<image>a")), own("b")], "rejected_response": "c", "images": ["x.png"],
                "rejected_images": ["y.png"]}),
            "[I]a",
            vec!["image-count".to_string()],
        ),
        (json!({"prompt": "a", "chosen": "b", "rejected": "c"}), "a", vec![]),
    ] {
        assert_eq!(pair(&row), (words.to_string(), images), "{row}");
    }
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

/// Snapshots of the hub's cache are links: each was refused as a link elsewhere.
#[test]
fn r_images_of_a_snapshot_are_those_of_its_data_set_alone() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let data_set = dir.path().join(name);
        let snapshot = data_set.join("snapshots/c0ffee");
        std::fs::create_dir_all(snapshot.join("images")).unwrap();
        std::fs::create_dir_all(data_set.join("blobs")).unwrap();
        std::fs::write(data_set.join("blobs/ab"), name).unwrap();
        symlink("../../../blobs/ab", snapshot.join("images/a.png")).unwrap();
        snapshot
    };
    let (own, other) = (make("datasets--o--own"), make("datasets--o--other"));
    symlink(other.join("images/a.png"), own.join("images/other.png")).unwrap();
    symlink("../../../refs", own.join("images/refs.png")).unwrap();
    std::fs::write(dir.path().join("datasets--o--own/refs"), "r").unwrap();
    let read = |data: &Path, name: &str| {
        let folder = ImageFolder::of(data, None).unwrap();
        let read = ImageSource::Path(name.into()).read(&folder).map(|bytes| bytes.into_owned());
        read.map_err(|error| error.slug)
    };
    let outside = Err("image-outside-folder");
    let rows = own.join("train.jsonl");
    assert_eq!(read(&rows, "images/a.png"), Ok(b"datasets--o--own".to_vec()));
    assert_eq!(read(&own.join("images/x.jsonl"), "a.png"), Ok(b"datasets--o--own".to_vec()));
    for name in ["images/other.png", "images/refs.png", "../../blobs/ab"] {
        assert_eq!(read(&rows, name), outside, "{name}");
    }
    // Outside the cache of data sets, and where `blobs` is itself a link.
    assert_eq!(read(&make("models--o--own").join("train.jsonl"), "images/a.png"), outside);
    let linked = make("datasets--o--linked");
    let blobs = dir.path().join("datasets--o--linked/blobs");
    std::fs::remove_dir_all(&blobs).unwrap();
    symlink(dir.path().join("datasets--o--own/blobs"), &blobs).unwrap();
    assert_eq!(read(&linked.join("train.jsonl"), "images/a.png"), outside);
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
    // A part of the file, and its size without the images: as JSON lines it holds the same.
    let part = Part { rows: 2, bytes: usize::MAX };
    let mut places = Vec::new();
    let more = first_prompts_with_images(&path, COLUMNS, part, |_, row| {
        places.push(row.images.len());
        Ok(())
    });
    assert_eq!((more.unwrap(), places), (Some(2), vec![1, 1]));
    let size = file_size(&path, Some("images")).unwrap();
    let bytes =
        |row: &ImageRow| row.images.iter().map(|image| image.as_ref().unwrap().held_bytes()).sum::<u64>();
    let each: Vec<u64> = read.iter().map(bytes).collect();
    assert_eq!((size.rows, size.num_images), (4, 4));
    assert_eq!((size.images.0, size.images_longest.0), (each.iter().sum(), *each.iter().max().unwrap()));
    assert!(size.json.0 < 1000 && size.reading.0 > 5 * size.images_longest.0, "{size:?}");
    let dir = tempfile::tempdir().unwrap();
    let lines = dir.path().join("d.jsonl");
    let mut text = String::new();
    plimsoll_text::each_row_of(&path, |_, _| Ok(())).expect_err("bytes need the column's name");
    for row in &read {
        let uri = |image: &Result<ImageSource>| match image.as_ref().unwrap() {
            ImageSource::Bytes(bytes) => format!("data:;base64,{}", STANDARD.encode(bytes)),
            other => panic!("{other:?}"),
        };
        let images: Vec<String> = row.images.iter().map(uri).collect();
        let prompt: Vec<Value> = row.row.prompt.messages().iter().map(|message| message.to_json()).collect();
        text += &format!("{}\n", json!({ "prompt": prompt, "images": images }));
    }
    std::fs::write(&lines, text).unwrap();
    let same = file_size(&lines, Some("images")).unwrap();
    assert_eq!((same.images, same.images_longest, same.num_images), (size.images, size.images_longest, 4));
    assert!(file_size(&lines, None).unwrap().json > size.images);
    let error = plimsoll_text::each_prompt(&path, "prompt", |_, _| Ok(())).unwrap_err();
    assert!(error.slug == "data-bad-parquet" && error.message.contains("data.images"), "{error}");
}
