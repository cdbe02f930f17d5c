//! Walks the segments of a JPEG: its size, its EXIF data, how many scans there are, and whether it ends.

use crate::ImageFault;
use crate::bytes::{array, u16_be};
use crate::fault::SCANS_MAX;
use crate::fault::cut;

/// What the segments say.
#[derive(Debug, Default)]
pub(super) struct Walked<'a> {
    pub(super) width: u16,
    pub(super) height: u16,
    /// Components of a pixel: 1, 3 or 4.
    pub(super) components: u8,
    pub(super) exif: &'a [u8],
}

/// Walks a file from its first marker to the one that ends the image.
///
/// Errors: `Damaged` for a file without an end, as Pillow refuses it, without a frame, or with two; `TooManyScans`.
pub(super) fn walk(bytes: &[u8]) -> Result<Walked<'_>, ImageFault> {
    let (mut walked, mut at, mut scans, mut frames) = (Walked::default(), 2, 0, 0);
    loop {
        let marker = next_marker(bytes, &mut at).ok_or_else(|| truncated(bytes, at, scans))?;
        match marker {
            0xd9 if frames == 1 && scans > 0 => return Ok(walked),
            0xd9 => return Err(ImageFault::Damaged("it ends without pixels".into())),
            0x01 | 0xd0..=0xd8 => continue,
            _ => {}
        }
        let length = usize::from(u16_be(bytes, at).ok_or_else(cut)?);
        let segment = bytes.get(at + 2..at + length.max(2)).ok_or_else(|| truncated(bytes, at, scans))?;
        match marker {
            // Frames of every coding; of those in between, C4 has tables, C8 is reserved and CC is for arithmetic.
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                frames += 1;
                if frames > 1 {
                    return Err(ImageFault::Damaged("it has two frames".into()));
                }
                let [_, size @ .., components] = array::<6>(segment, 0).ok_or_else(cut)?;
                walked.height = u16::from_be_bytes([size[0], size[1]]);
                walked.width = u16::from_be_bytes([size[2], size[3]]);
                walked.components = components;
                if !matches!(components, 1 | 3 | 4) {
                    return Err(ImageFault::Damaged(format!("its pixels have {components} components")));
                }
            }
            0xe1 if segment.starts_with(b"Exif\0\0") && walked.exif.is_empty() => walked.exif = segment,
            0xda => {
                scans += 1;
                if scans > SCANS_MAX {
                    return Err(ImageFault::TooManyScans);
                }
            }
            _ => {}
        }
        at += length.max(2);
    }
}

/// Moves past the next marker and returns its code. Between a scan's header and it are the scan's bytes, in which a
/// marker is written with a zero after it.
fn next_marker(bytes: &[u8], at: &mut usize) -> Option<u8> {
    loop {
        *at += bytes.get(*at..)?.iter().position(|&byte| byte == 0xff)?;
        while *bytes.get(*at)? == 0xff {
            *at += 1;
        }
        let code = bytes[*at];
        *at += 1;
        if code != 0 && !(0xd0..=0xd7).contains(&code) {
            return Some(code);
        }
    }
}

fn truncated(bytes: &[u8], at: usize, scans: usize) -> ImageFault {
    let part = if scans > 0 { "in its pixels" } else { "in its header" };
    ImageFault::Damaged(format!("it is cut off {part}: no end after byte {at} of {}", bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_many_scans_or_without_an_end_is_refused() {
        let frame = b"\xff\xd8\xff\xc2\0\x0b\x08\0\x10\0\x20\x01\x01\x11\0".to_vec();
        let file = |scans: usize, end: &[u8]| {
            [frame.clone(), b"\xff\xda\0\x06\x01\x01\0\0\x7f\xff\0\x7f".repeat(scans), end.to_vec()].concat()
        };
        let walked =
            |bytes: &[u8]| walk(bytes).map(|walked| (walked.width, walked.height, walked.components));
        assert_eq!(walked(&file(SCANS_MAX, b"\xff\xd9")), Ok((32, 16, 1)));
        assert_eq!(walked(&file(SCANS_MAX + 1, b"\xff\xd9")), Err(ImageFault::TooManyScans));
        assert!(
            matches!(walked(&file(1, b"")), Err(ImageFault::Damaged(words)) if words.contains("in its pixels"))
        );
        assert!(
            matches!(walked(&file(0, b"")), Err(ImageFault::Damaged(words)) if words.contains("in its header"))
        );
        let whole = file(2, b"\xff\xd9");
        for end in 0..whole.len() {
            assert!(walk(&whole[..end]).is_err(), "{end}");
        }
    }
}
