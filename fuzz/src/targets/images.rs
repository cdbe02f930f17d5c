//! Images: files decoded and resized, and rows that name or hold them.

use crate::mutate::Shape;
use crate::target::{Bounds, JSON_PIECES, Subject, Target, files};
use plimsoll_base::{Error, Result};
use plimsoll_images::{Processor, prepare};
use plimsoll_text::{ImageColumns, ImageFolder, each_prompt_with_images, load_pairs};
use std::time::Duration;
use tempfile::TempDir;

pub(super) const FILES: Target = Target {
    name: "image",
    reads: "JPEG, PNG, GIF, WebP and BMP: decoded and resized",
    shape: Shape::Binary,
    // Headers may claim up to the most pixels, and a file that keeps to them is decoded.
    bounds: Bounds { input_time: Duration::from_secs(60), peak_bytes: 1536 << 20 },
    pieces: &["\u{89}PNG", "IHDR", "IDAT", "GIF89a", "RIFF", "WEBP", "VP8L", "ANMF", "Exif\0\0", "\0\0\0\0"],
    open: || {
        let ends = [".png", ".jpg", ".gif", ".webp", ".bmp"];
        let processor = Processor::of_family("qwen3_vl").expect("a family of the table");
        let processor = processor.with_pixels(Some(1024), Some(1 << 16)).expect("an area of a token or more");
        Box::new(Images { corpus: files("crates/images/tests/golden/files", &ends), processor })
    },
};

struct Images {
    corpus: Vec<Vec<u8>>,
    processor: Processor,
}

impl Subject for Images {
    fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    fn read(&mut self, input: &[u8]) -> Result<()> {
        prepare(input, &self.processor).map(drop).map_err(|fault| fault.at("an input"))
    }
}

pub(super) const ROWS: Target = Target {
    name: "image-rows",
    reads: "JSON lines: prompts with images",
    shape: Shape::Text,
    bounds: Bounds::FILE,
    pieces: &JSON_PIECES,
    open: || {
        let corpus = [
            "{\"prompt\": \"<image>a\", \"images\": [{\"bytes\": \"iVBO\", \"path\": \"a.png\"}]}\n",
            "{\"prompt\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}, {\"type\": \"text\", \"text\": \"a\"}]}], \"images\": \"a.png\"}\n",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"<image>a\"}, {\"role\": \"assistant\", \"content\": \"b\"}], \"rejected_response\": \"c\", \"images\": [\"a.png\"], \"rejected_images\": [\"b.png\"]}\n",
            "{\"prompt\": \"a\", \"images\": [\"https://a.b/c\", \"data:image/png;base64,iVBO\", \"../a\"]}\n",
        ];
        let folder = tempfile::tempdir().expect("a folder for one file");
        Box::new(Rows { folder, corpus: corpus.map(|lines| lines.as_bytes().to_vec()).into() })
    },
};

struct Rows {
    folder: TempDir,
    corpus: Vec<Vec<u8>>,
}

impl Subject for Rows {
    fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    fn read(&mut self, input: &[u8]) -> Result<()> {
        let path = self.folder.path().join("d.jsonl");
        std::fs::write(&path, input).expect("the file can be written");
        let folder = ImageFolder::of(&path, None)?;
        let columns = ImageColumns { prompt: "prompt", images: "images", placeholder: "[I]" };
        // Rows with answers are other rows: what one reader refuses the other may take.
        let _: Result<_> = load_pairs(&path, "prompt", &[], Some(columns));
        each_prompt_with_images(&path, columns, |_, row| {
            for image in row.images.iter().flatten() {
                // A name that the input made up is missing, or refused.
                let _: std::result::Result<_, Error> = image.read(&folder);
            }
            Ok(())
        })
    }
}
