use plimsoll_doctor::log::{Input, Limits, diagnose};
use std::time::Instant;
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let verbose = std::env::var("V").is_ok();
    for file in &args {
        let start = Instant::now();
        let found = diagnose(vec![Input::Path(file.into())], Limits::default()).unwrap();
        let secs = start.elapsed().as_secs_f64();
        println!(
            "{file}\t{}\t{}\t{:.4}s\t{:.4}GB/s\t{}",
            found.slug.as_deref().unwrap_or("null"),
            found.finished,
            secs,
            found.bytes_read as f64 / secs / 1e9,
            found.evidence.first().map_or("", |e| e.text.as_str())
        );
        if verbose {
            println!("{}", serde_json::to_string_pretty(&found.to_json(&[])).unwrap());
            println!("frameworks {:?}", found.frameworks);
        }
    }
}
