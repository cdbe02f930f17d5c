//! Imports mutated launch files until its time is over: `cargo run -p plimsoll-stacks --example fuzz_import -- --seconds 60`.
//!
//! Each input is one of `tests/launch-files/` with a few pieces put in, taken out or doubled, and is read as a file of every stack,
//! by the importer and by the doctor. A panic, an input that takes more than `INPUT_MAX`, a process that grows beyond
//! `GROWTH_BYTES_MAX`, or a run file that is no TOML ends it with exit code 1. Input number N of a seed is always the same, so
//! `--seed S --from N` repeats the one that failed.

use plimsoll_stacks::{STACKS, Wishes, import, settings};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Most time for one input in all stacks; most take less than a millisecond.
const INPUT_MAX: Duration = Duration::from_secs(2);
/// What the process may come to hold.
const GROWTH_BYTES_MAX: u64 = 512 << 20;

const PIECES: [&str; 52] = [
    "${",
    "}",
    "$((",
    "))",
    "$(",
    ")",
    "(",
    "[",
    "]",
    "{",
    "'",
    "\"",
    "\"\"\"",
    "\\",
    "\n",
    "<<EOF",
    "EOF\n",
    "if ",
    "fi\n",
    "else\n",
    "=",
    "+=",
    "@",
    "*",
    "f\"{",
    "lambda",
    "def f(x):\n",
    "GRPOConfig(",
    "GRPOTrainer(",
    "LoraConfig(",
    "A=A\n",
    "-",
    "1e999",
    "é",
    "…",
    "0",
    ",",
    ".",
    "#",
    "`",
    "~/",
    "&",
    "|",
    ">",
    "--",
    "\r\n",
    "load_dataset(",
    "\0",
    "dict(",
    "trl grpo ",
    "from a import b\n",
    "class Config:\n    ",
];

/// Numbers that a seed decides: xorshift64.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % count.max(1) as u64) as usize
    }
}

fn argument(name: &str, default: u64) -> u64 {
    let mut rest = std::env::args().skip_while(|word| word != name).skip(1);
    rest.next().map_or(default, |word| word.parse().unwrap_or_else(|_| panic!("{name} {word}: not a number")))
}

fn launch_files() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/launch-files");
    let entries = std::fs::read_dir(&folder).expect("the launch files").map(|entry| entry.expect("a file"));
    let mut files: Vec<(String, Vec<u8>)> = entries
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read(entry.path()).expect("a readable file"))
        })
        .collect();
    // In an order that does not depend on the folder.
    files.sort();
    files
}

/// Input number `number` of a seed, with the name of its file.
fn input(files: &[(String, Vec<u8>)], seed: u64, number: u64) -> (String, Vec<u8>) {
    let mixed = seed.wrapping_add(number).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut numbers = Numbers(mixed.max(1));
    let (name, mut data) = files[numbers.below(files.len())].clone();
    for _ in 0..=numbers.below(12) {
        let at = numbers.below(data.len() + 1);
        let piece = PIECES[numbers.below(PIECES.len())].as_bytes();
        match numbers.below(5) {
            0 => drop(data.splice(at..at, piece.iter().copied())),
            1 => drop(data.drain(at..(at + numbers.below(40)).min(data.len()))),
            2 => drop(data.splice(at..at, piece.repeat(1 + numbers.below(30)))),
            3 => {
                let other = &files[numbers.below(files.len())].1;
                let start = numbers.below(other.len());
                let end = (start + numbers.below(200)).min(other.len());
                data.splice(at..at, other[start..end].iter().copied());
            }
            _ => data.iter_mut().skip(at).take(1).for_each(|byte| *byte = numbers.below(128) as u8),
        }
    }
    (name, data)
}

/// Reads one input as every stack would; what is wrong with the result, if anything.
fn fault(path: &Path) -> Option<String> {
    let begin = Instant::now();
    for stack in STACKS {
        // An error with a name is an answer.
        let _ = settings(stack, path);
        for force in [false, true] {
            let Ok(run) = import(stack, path, &Wishes { force, trainer: None }) else { continue };
            if let Err(err) = run.run_file.parse::<toml::Table>() {
                return Some(format!("{stack:?}: the run file is no TOML: {err}"));
            }
        }
    }
    (begin.elapsed() > INPUT_MAX).then(|| format!("took {:?}", begin.elapsed()))
}

/// Bytes of memory that this process holds.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn main() -> ExitCode {
    let (seconds, seed, from) = (argument("--seconds", 60), argument("--seed", 1), argument("--from", 0));
    let files = launch_files();
    let folder = tempfile::tempdir().expect("a folder");
    let begin = Instant::now();
    let mut number = from;
    while begin.elapsed() < Duration::from_secs(seconds) {
        let (name, data) = input(&files, seed, number);
        let path = folder.path().join(name);
        std::fs::write(&path, data).expect("a file");
        let found = std::panic::catch_unwind(|| fault(&path)).unwrap_or_else(|_| Some("panicked".into()));
        let grown = (resident_bytes() > GROWTH_BYTES_MAX).then(|| "holds too much memory".to_string());
        if let Some(what) = found.or(grown) {
            eprintln!("input {number} of seed {seed} ({}): {what}", path.display());
            return ExitCode::FAILURE;
        }
        number += 1;
    }
    println!("{} inputs of seed {seed}, no fault; {} MiB held", number - from, resident_bytes() >> 20);
    ExitCode::SUCCESS
}
