//! Prints how long one core takes to decode and resize files, for a model of the family Qwen3-VL.

use plimsoll_images::{PatchRows, Processor, decode, prepare};
use std::time::Instant;

fn main() {
    let processor = Processor::of_family("qwen3_vl").expect("a family of the table");
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path).expect("a file");
        let (mut decoding, mut all, mut writing) = (f64::MAX, f64::MAX, f64::MAX);
        let mut tokens = 0;
        for _ in 0..5 {
            let start = Instant::now();
            decode(&bytes).expect("an image");
            decoding = decoding.min(start.elapsed().as_secs_f64());
            let start = Instant::now();
            let prepared = prepare(&bytes, &processor).expect("an image");
            all = all.min(start.elapsed().as_secs_f64());
            let rows = PatchRows::new(processor);
            let mut values = vec![0.0; prepared.grid.patches() * rows.row_len()];
            let start = Instant::now();
            rows.write(&prepared.pixels, &mut values);
            writing = writing.min(start.elapsed().as_secs_f64());
            tokens = prepared.tokens;
        }
        let [decoding, all, writing] = [decoding, all, writing].map(|seconds| 1e3 * seconds);
        println!(
            "{path}: decoded {decoding:.1} ms, with resizing {all:.1} ms, patches {writing:.1} ms, {tokens} tokens"
        );
    }
}
