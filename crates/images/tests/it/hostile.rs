//! Files that are wrong: each is refused by name, and none takes memory for what it only claims.

use crate::{file, golden};
use plimsoll_images::{BYTES_MAX, Processor, decode, header, prepare};

fn slug(bytes: &[u8]) -> &'static str {
    decode(bytes).map(|_| "fine").unwrap_or_else(|fault| fault.at("a.jsonl:1").slug)
}

#[test]
fn what_is_no_image_is_named_for_what_it_is() {
    for (bytes, words) in [
        (&b""[..], "it is empty"),
        (b"hello there", "it begins with 68 65"),
        (b"<!DOCTYPE html>", "a page of HTML"),
        (b"\0\0\0\x1cftypavif", "an AVIF image"),
        (b"II*\0aaaa", "a TIFF image"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
    ] {
        let error = decode(bytes).unwrap_err().at("a.jsonl:1");
        assert!(error.slug == "image-format-unknown" && error.message.contains(words), "{error}");
    }
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_refused_or_whole() {
    for entry in std::fs::read_dir(golden("files")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".rgb") {
            continue;
        }
        let bytes = file(&name);
        let whole = decode(&bytes).unwrap();
        for end in 0..bytes.len() {
            match decode(&bytes[..end]) {
                Ok(image) => assert!(image == whole && !name.ends_with(".jpg"), "{name} cut at {end}"),
                Err(fault) => {
                    let slug = fault.at("").slug;
                    assert!(slug == "image-damaged" || end < 16, "{name} cut at {end}: {fault:?}");
                }
            }
        }
    }
}

#[test]
fn sizes_that_are_only_claimed_take_no_memory() {
    let mut bomb = file("rgb.png");
    bomb[16..24].copy_from_slice(&[0, 1, 0x86, 0xa0, 0, 1, 0x86, 0xa0]); // 100,000 x 100,000
    let crc = crc32(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&crc.to_be_bytes());
    assert_eq!(slug(&bomb), "image-too-large");
    let mut jpeg = file("q90_444.jpg");
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0xff; 4]);
    assert_eq!(slug(&jpeg), "image-too-large");
    let mut gif = file("plain.gif");
    gif[6..10].copy_from_slice(&[0xff; 4]);
    assert_eq!(slug(&gif), "image-too-large");
    let mut bmp = file("rgb.bmp");
    bmp[18..26].copy_from_slice(&[0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0]);
    assert_eq!(slug(&bmp), "image-too-large");
    // A frame that is larger than the header says.
    let mut webp = file("lossy.webp");
    let at = webp.windows(4).position(|four| four == b"VP8 ").unwrap();
    webp[at + 14..at + 18].copy_from_slice(&[0xff, 0x3f, 0xff, 0x3f]);
    assert!(matches!(slug(&webp), "image-damaged" | "image-too-large"), "{}", slug(&webp));
    assert_eq!(header(&vec![0xff; BYTES_MAX + 1]).unwrap_err().at("").slug, "image-too-large");
}

#[test]
fn a_narrow_image_is_refused_before_it_is_decoded() {
    let mut png = file("rgb.png");
    png[16..24].copy_from_slice(&[0, 0, 0x20, 0, 0, 0, 0, 1]);
    let crc = crc32(&png[12..29]);
    png[29..33].copy_from_slice(&crc.to_be_bytes());
    let processor = Processor::of_family("qwen3_vl").unwrap();
    assert_eq!(prepare(&png, &processor).unwrap_err().at("").slug, "image-too-narrow");
    let prepared = prepare(&file("turned.jpg"), &processor).unwrap();
    let pixels = (prepared.pixels.width, prepared.pixels.height);
    assert_eq!((pixels, prepared.tokens), ((224, 320), 70));
}

fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| bit(crc)))
}
