//! The format of a file by its first bytes, and what its header says.

use crate::{ImageFault, Size};

/// What the beginning of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// The format.
    pub format: ImageFormat,
    /// Pixels of a row as stored.
    pub width: u32,
    /// Rows as stored.
    pub height: u32,
    /// What EXIF data say, from 1 to 8.
    pub orientation: u8,
}

impl ImageHeader {
    /// Returns the size of the image after it is turned.
    pub fn size(&self) -> Size {
        let ImageHeader { width, height, .. } = *self;
        if self.orientation < 5 { Size { height, width } } else { Size { height: width, width: height } }
    }
}

/// A format that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// JPEG in grey, YCbCr, RGB, CMYK or YCCK, baseline or progressive.
    Jpeg,
    /// PNG of every depth and colour.
    Png,
    /// GIF; of an animation the first frame.
    Gif,
    /// WebP, lossy or lossless; of an animation the first frame.
    Webp,
    /// BMP.
    Bmp,
}

/// First bytes of what people give for an image, and what it is.
const OTHERS: [(&[u8], &str); 9] = [
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
    (b"%PDF", "a PDF document"),
    (b"<svg", "an SVG drawing"),
    (b"<?xml", "XML text, such as an SVG drawing"),
    (b"<!DOCTYPE", "a page of HTML, such as a server's error"),
    (b"<html", "a page of HTML, such as a server's error"),
    (b"\0\0\x01\0", "an icon"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file"),
];
/// Kinds of files whose first box is `ftyp`.
const BOXES: [(&[u8], &str); 5] = [
    (b"avif", "an AVIF image"),
    (b"heic", "an HEIC image"),
    (b"heix", "an HEIC image"),
    (b"mif1", "an HEIF image"),
    (b"isom", "a video"),
];

impl ImageFormat {
    /// Finds the format by the first bytes. Names of files are not looked at.
    ///
    /// Errors: `Format`.
    pub(crate) fn of(bytes: &[u8]) -> Result<ImageFormat, ImageFault> {
        let begins = |start: &[u8]| bytes.starts_with(start);
        if begins(b"\xff\xd8\xff") {
            Ok(ImageFormat::Jpeg)
        } else if begins(b"\x89PNG\r\n\x1a\n") {
            Ok(ImageFormat::Png)
        } else if begins(b"GIF87a") || begins(b"GIF89a") {
            Ok(ImageFormat::Gif)
        } else if begins(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            Ok(ImageFormat::Webp)
        } else if begins(b"BM") {
            Ok(ImageFormat::Bmp)
        } else {
            Err(ImageFault::Format(seems(bytes)))
        }
    }
}

/// Says what bytes are that are no image.
fn seems(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "it is empty".into();
    }
    let text = bytes.trim_ascii_start();
    let of_box =
        BOXES.iter().find(|(kind, _)| bytes.get(4..8) == Some(b"ftyp") && bytes.get(8..12) == Some(kind));
    match of_box.or(OTHERS.iter().find(|(start, _)| text.starts_with(start))) {
        Some((_, what)) => format!("it is {what}"),
        None => {
            let first: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            format!("it is no image that is known: it begins with {}", first.join(" "))
        }
    }
}
