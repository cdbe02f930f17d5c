//! Everything against golden files of Pillow and transformers, and hostile files. `golden/make.py` writes the former.

mod decoding;
mod hostile;
mod resizing;

use plimsoll_images::Pixels;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::PathBuf;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn cases(name: &str) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(golden(name)).unwrap()).unwrap()
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(golden("files").join(name)).unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes the pixels of `pattern` in `make.py`.
fn pattern(width: u32, height: u32) -> Pixels {
    let (w, h) = (width as usize, height as usize);
    let byte = |i: usize| {
        let (y, x, c) = (i / 3 / w, i / 3 % w, i % 3);
        if (x / 16 + y / 16) % 2 == 0 {
            let state = (i as u64).wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state ^ (state >> 29)).wrapping_mul(0x9E3779B97F4A7C15) >> 56) as u8
        } else {
            ((x * 255 / (w - 1).max(1) + y * 3 + c * 80) % 256) as u8
        }
    };
    Pixels { width, height, rgb: (0..w * h * 3).map(byte).collect() }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}
