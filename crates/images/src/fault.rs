//! What can be wrong with an image, and the limits of what is decoded.

use plimsoll_base::Error;

/// Longest file: 64 MiB. A photograph of 50 megapixels takes 10 to 30.
pub const BYTES_MAX: usize = 64 << 20;
/// Most pixels of a header, 67 million. Decoding takes up to 15 bytes for each (a progressive JPEG in CMYK: four
/// coefficients of 2 bytes, four bytes of pixels and three of the result), so 1 GiB at most.
pub const PIXELS_MAX: u64 = 1 << 26;
/// Most scans of a JPEG. Encoders write up to 14; each costs a pass over all blocks, and may take a few bytes.
pub const SCANS_MAX: usize = 64;

/// Most by which one side may exceed the other.
pub const RATIO_MAX: u32 = 200;

/// Why an image is refused.
#[derive(Clone, Debug, PartialEq)]
pub enum ImageFault {
    /// It is of no format that is read; what it seems to be, in words.
    Format(String),
    /// It is of a format that is read, but cut off or wrong; what is wrong, in words.
    Damaged(String),
    /// The file is longer than `BYTES_MAX`.
    TooManyBytes {
        /// Its length.
        bytes: u64,
    },
    /// The header says more pixels than `PIXELS_MAX`.
    TooManyPixels {
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// A JPEG has more scans than `SCANS_MAX`.
    TooManyScans,
    /// One side is more than `RATIO_MAX` times the other.
    TooNarrow {
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
    },
}

impl ImageFault {
    /// Returns the named error of an image at `place`, such as `train.jsonl:3: image 2`.
    pub fn at(&self, place: &str) -> Error {
        match self {
            ImageFault::Format(what) => Error::new("image-format-unknown", format!("{place}: {what}"))
                .hint("convert it to JPEG, PNG, WebP, GIF or BMP"),
            ImageFault::Damaged(what) => Error::new("image-damaged", format!("{place}: {what}"))
                .hint("get the file again, or remove the row"),
            ImageFault::TooManyBytes { bytes } => {
                Error::new("image-too-large", format!("{place}: it has {bytes} bytes"))
                    .fact(format!("at most {BYTES_MAX} are read"))
                    .hint("make it smaller: a model sees no more than data.image_pixels_max pixels")
            }
            ImageFault::TooManyPixels { width, height } => {
                Error::new("image-too-large", format!("{place}: its header says {width} x {height} pixels"))
                    .fact(format!("at most {PIXELS_MAX} pixels are decoded"))
                    .hint("make it smaller: a model sees no more than data.image_pixels_max pixels")
            }
            ImageFault::TooManyScans => {
                Error::new("image-too-large", format!("{place}: it has more than {SCANS_MAX} scans"))
                    .hint("write it again: each scan of a JPEG is a pass over the whole image")
            }
            ImageFault::TooNarrow { width, height } => {
                Error::new("image-too-narrow", format!("{place}: {width} x {height} pixels"))
                    .fact(format!("one side is more than {RATIO_MAX} times the other"))
                    .hint("cut it, or remove the row")
            }
        }
    }
}

/// Makes the fault of a file that a decoder refuses.
pub(crate) fn damaged(what: impl std::fmt::Display) -> ImageFault {
    ImageFault::Damaged(plimsoll_base::shown(&what.to_string()).into_owned())
}

/// The fault of a file that ends in its header.
pub(crate) fn cut() -> ImageFault {
    ImageFault::Damaged("it is cut off in its header".into())
}
