//! Decoding against Pillow: equal pixels of formats that lose none, near ones of JPEG and lossy WebP.

use crate::{cases, file, number, sha256};
use plimsoll_images::{decode, header};

/// The most by which a byte of a lossy file may differ from libjpeg-turbo's and libwebp's: decoders are free to round,
/// and zune-jpeg rounds its transform and its finer chroma in other places.
const LOSSY_MAX: u8 = 4;

#[test]
fn each_format_and_colour_is_decoded_as_pillow_does() {
    let mut wrong = Vec::new();
    for case in cases("files.json") {
        let name = case["file"].as_str().unwrap();
        let bytes = file(name);
        let image = decode(&bytes).unwrap_or_else(|fault| panic!("{name}: {fault:?}"));
        let size = [0, 1].map(|i| number(&case["size"][i]) as u32);
        assert_eq!([image.width, image.height], size, "{name}");
        assert_eq!(
            [header(&bytes).unwrap().size().width, header(&bytes).unwrap().size().height],
            size,
            "{name}"
        );
        if name.ends_with(".jpg") || name == "lossy.webp" {
            let differences = image.rgb.iter().zip(file(&format!("{name}.rgb"))).map(|(a, b)| a.abs_diff(b));
            let (most, sum) =
                differences.clone().fold((0, 0u64), |(most, sum), n| (most.max(n), sum + u64::from(n)));
            println!("{name}: at most {most} of 255, {:.3} on average", sum as f64 / image.rgb.len() as f64);
            if most > LOSSY_MAX {
                wrong.push(format!("{name}: {most}"));
            }
        } else if sha256(&image.rgb) != case["sha256"].as_str().unwrap() {
            wrong.push(name.to_string());
        }
    }
    assert_eq!(wrong, [""; 0]);
}
