//! Grades mutated and random texts until its time is over: `cargo xtask fuzz-grade --seconds N`.
//!
//! Every verifier that reads a model's words is under test, each in its grader's thread with its stack. A panic, a crash, a
//! verdict that takes more processor time than `VERDICT_MAX`, or memory beyond `GROWTH_BYTES_MAX` ends it with exit code 1. Input
//! number N of a seed is always the same, so `--seed S --from N --show` repeats the input of a crash.

use plimsoll_reward::{Case, OnError, Prompt, RewardSpec, Rewards};
use serde_json::{Map, Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Most processor time for one input in all verifiers; most take less than a millisecond, the slowest 0.1 s.
const VERDICT_MAX: Duration = Duration::from_secs(1);
/// Time on the wall after which one input is a hang, however busy the machine is.
const HANG: Duration = Duration::from_secs(60);
/// What the process may come to hold beyond its first inputs.
const GROWTH_BYTES_MAX: u64 = 64 << 20;
/// Inputs after which memory is looked at for the first time.
const WARM_UP: u64 = 2000;
/// Longest text that is made.
const TEXT_BYTES_MAX: usize = 300 << 10;

const CASES: &str = include_str!("../tests/math_cases.jsonl");
const PIECES: [&str; 48] = [
    "\\boxed{",
    "\\frac",
    "\\sqrt",
    "\\left(",
    "\\right)",
    "\\text{",
    "\\begin{pmatrix}",
    "\\end{pmatrix}",
    "\\cup",
    "\\pm",
    "\\sum_{k=1}^{9}",
    "\\binom",
    "^{",
    "_{",
    "}",
    "{",
    "(",
    ")",
    "[",
    "]",
    "|",
    "$",
    "$$",
    "\\(",
    "\\)",
    "\\",
    "&",
    "\\\\",
    "!",
    "%",
    ",",
    ";",
    "=",
    "<",
    "9999999999",
    "1e999",
    "-",
    "/",
    "*",
    "x",
    "½",
    "é",
    "\u{202e}",
    "####",
    "<answer>",
    "</answer>",
    "```",
    "\u{0}",
];
const JSON_PIECES: [&str; 16] = [
    "{\"type\": ",
    "\"object\"",
    "\"integer\"",
    "{\"$ref\": \"#\"}",
    "{\"anyOf\": [",
    "{\"items\": ",
    "{\"not\": ",
    "[",
    "]",
    "}",
    ",",
    "1e308",
    "\"a\": ",
    "{\"pattern\": \"(a+)+$\"}",
    "null",
    "{\"target\": 7, \"nums\": [3, 4]}",
];

struct Options {
    seconds: u64,
    seed: u64,
    from: u64,
    show: bool,
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("usage: fuzz_grade [--seconds N] [--seed S] [--from N] [--show]");
        return ExitCode::from(2);
    };
    let corpus: Vec<String> = CASES
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("the cases are JSON"))
        .flat_map(|case| {
            ["response", "ground_truth"].map(|name| case[name].as_str().unwrap_or("").to_string())
        })
        .collect();
    let specs = ["math", "gsm8k", "exact", "countdown", "json-schema", "format", "regex:^a.*b$"];
    let specs = specs.map(|kind| RewardSpec { on_error: OnError::None, ..RewardSpec::of_kind(kind) });
    let mut rewards = Rewards::new(&specs).expect("the verifiers start");
    let at = Arc::new(AtomicU64::new(options.from));
    watch(at.clone(), options.seed);
    let (started, mut slowest) = (Instant::now(), (Duration::ZERO, 0));
    let (mut number, mut first_bytes) = (options.from, None);
    while started.elapsed().as_secs() < options.seconds {
        at.store(number, Ordering::Relaxed);
        let mut random = Random(options.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (response, truth) = (random.text(&corpus), random.text(&corpus));
        if options.show {
            eprintln!("{number}: {response:?} against {truth:?}");
        }
        let begun = processor_time();
        rewards.score(vec![case(response, truth)]).expect("failures are counted, not returned");
        slowest = slowest.max((processor_time() - begun, number));
        number += 1;
        if number == options.from + WARM_UP {
            first_bytes = Some(peak_bytes());
        }
    }
    let grown = first_bytes.map_or(0, |first| peak_bytes().saturating_sub(first));
    println!(
        "{} inputs of seed {} in {} s: no crash; the slowest took {:.2} s of processor time (number {}); memory grew by {} MiB",
        number - options.from,
        options.seed,
        started.elapsed().as_secs(),
        slowest.0.as_secs_f64(),
        slowest.1,
        grown >> 20,
    );
    // What the allocator keeps of the largest inputs counts too.
    if grown > GROWTH_BYTES_MAX || slowest.0 > VERDICT_MAX { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn options() -> Option<Options> {
    let mut options = Options { seconds: 60, seed: 1, from: 0, show: false };
    let mut flags = std::env::args().skip(1);
    while let Some(flag) = flags.next() {
        match flag.as_str() {
            "--seconds" => options.seconds = flags.next()?.parse().ok()?,
            "--seed" => options.seed = flags.next()?.parse().ok()?,
            "--from" => options.from = flags.next()?.parse().ok()?,
            "--show" => options.show = true,
            _ => return None,
        }
    }
    Some(options)
}

/// Ends the process when one input takes too long, for then nothing else can.
fn watch(at: Arc<AtomicU64>, seed: u64) {
    std::thread::spawn(move || {
        let (mut last, mut since) = (u64::MAX, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let now = at.load(Ordering::Relaxed);
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > HANG {
                println!("input {now} of seed {seed} takes longer than {} s", HANG.as_secs());
                std::process::exit(1);
            }
        }
    });
}

fn case(response: String, truth: String) -> Case {
    let mut columns = Map::new();
    // A schema or a puzzle is JSON in the column where the text is some.
    columns.insert("ground_truth".into(), json!(truth));
    let prompt = Prompt { columns, ..Prompt::default() };
    Case { prompt: Arc::new(prompt), response, response_ids: Vec::new(), max_new_tokens: 8, ended: true }
}

/// Processor time of all threads, in steps of 10 ms.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may hold spaces: fields 14 and 15 of all, user and system time in ticks.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Highest resident memory of the process.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    /// A case of the corpus, pieces, or noise, then some changes.
    fn text(&mut self, corpus: &[String]) -> String {
        let mut text = match self.below(8) {
            0 => (0..self.below(40)).map(|_| self.pick(&PIECES)).collect(),
            1 => (0..self.below(24)).map(|_| self.pick(&JSON_PIECES)).collect(),
            2 => (0..self.below(200)).filter_map(|_| char::from_u32(self.below(0x3000) as u32)).collect(),
            3 => self.nested(),
            _ => corpus[self.below(corpus.len())].clone(),
        };
        for _ in 0..self.below(5) {
            self.change(&mut text, corpus);
        }
        let end = text.floor_char_boundary(TEXT_BYTES_MAX);
        text.truncate(end);
        match self.below(4) {
            0 => format!("\\boxed{{{text}}}"),
            1 => format!("<answer>{text}</answer>"),
            _ => text,
        }
    }

    /// One piece within itself, or repeated.
    fn nested(&mut self) -> String {
        let (open, count) = (self.pick(&PIECES), 1 << self.below(13));
        let close = match self.below(3) {
            0 => "}",
            1 => ")",
            _ => "",
        };
        format!("{}1{}", open.repeat(count), close.repeat(count))
    }

    fn change(&mut self, text: &mut String, corpus: &[String]) {
        let place = |random: &mut Random, text: &str| text.floor_char_boundary(random.below(text.len() + 1));
        let (a, b) = (place(self, text), place(self, text));
        let (first, last) = (a.min(b), a.max(b));
        match self.below(6) {
            0 => text.insert_str(a, self.pick(&PIECES)),
            1 => text.replace_range(first..last, ""),
            2 => text.replace_range(first..last, self.pick(&PIECES)),
            3 => text.insert_str(b, &corpus[self.below(corpus.len())]),
            4 => {
                let part = text[first..last].repeat(1 + self.below(64));
                text.insert_str(first, &part);
            }
            _ => text.truncate(a),
        }
        let end = text.floor_char_boundary(TEXT_BYTES_MAX);
        text.truncate(end);
    }
}
