//! Scenes as pixels, and as the PNG that a file would hold.

use super::scene::{Figure, Mark, Scene};

/// Digits of 5 x 7 dots: a row has its left dot in the bit of 16.
const DOTS: [[u8; 7]; 10] = [
    [14, 17, 19, 21, 25, 17, 14],
    [4, 12, 4, 4, 4, 4, 14],
    [14, 17, 1, 2, 4, 8, 31],
    [31, 2, 4, 2, 1, 17, 14],
    [2, 6, 10, 18, 31, 2, 2],
    [31, 16, 30, 1, 1, 17, 14],
    [6, 8, 16, 30, 17, 17, 14],
    [31, 1, 2, 4, 8, 8, 8],
    [14, 17, 17, 14, 17, 17, 14],
    [14, 17, 17, 15, 1, 2, 12],
];

/// Returns the file of a scene.
pub(super) fn png(scene: &Scene) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, scene.width, scene.height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    // The others take a third of a megabyte for each image, however small.
    encoder.set_compression(png::Compression::Fastest);
    let written = encoder.write_header().and_then(|mut writer| {
        writer.write_image_data(&rgb(scene))?;
        writer.finish()
    });
    written.expect("memory takes every byte, and the pixels are as many as the header says");
    file
}

/// Returns the pixels, row after row: [height, width, 3].
fn rgb(scene: &Scene) -> Vec<u8> {
    let mut rgb = vec![scene.ground; (3 * scene.width * scene.height) as usize];
    for mark in &scene.marks {
        let [columns, rows] = extent(mark);
        for (y, x) in (0..rows).flat_map(|y| (0..columns).map(move |x| (y, x))) {
            if covers(mark, x, y) {
                let pixel = 3 * ((mark.at[1] + y) * scene.width + mark.at[0] + x) as usize;
                rgb[pixel..pixel + 3].copy_from_slice(&mark.colour);
            }
        }
    }
    rgb
}

/// Returns the columns and rows of a mark.
fn extent(mark: &Mark) -> [u32; 2] {
    match mark.figure {
        Figure::Digit(_) => [5 * mark.size, 7 * mark.size],
        _ => [mark.size; 2],
    }
}

/// Returns true if a mark covers a pixel, counted from its own corner.
fn covers(mark: &Mark, x: u32, y: u32) -> bool {
    let side = i64::from(mark.size);
    // Twice the distance of the pixel's middle from the middle of the mark.
    let [across, down] = [x, y].map(|n| 2 * i64::from(n) + 1 - side);
    match mark.figure {
        Figure::Square => true,
        Figure::Circle => across * across + down * down <= side * side,
        // The point is up; a row's half width grows by half a pixel a row.
        Figure::Triangle => across.abs() <= i64::from(y) + 1,
        Figure::Digit(digit) => {
            let row = DOTS[usize::from(digit)][(y / mark.size) as usize];
            row & (16 >> (x / mark.size)) != 0
        }
    }
}
