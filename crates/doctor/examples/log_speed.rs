//! Measures how fast logs are read: makes a log, reads it several times, and prints bytes a second, least and median,
//! and the memory used. `run` is a run with progress bars, tracebacks, colours and a death at its end; `steps` are
//! metric lines of many trainers; `dense` repeats the self-test's examples: a failure on almost each line.
//!
//!     cargo run --release -p plimsoll-doctor --example log_speed -- [run|steps|dense] [MIB] [READS] [FOLDER]
//!     cargo run --release -p plimsoll-doctor --example log_speed -- FILE [READS]

use plimsoll_doctor::log::self_test::examples;
use plimsoll_doctor::log::{Input, Limits, diagnose};
use plimsoll_memory::host::RssReader;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let kinds = [("run", step as Make), ("steps", trainers), ("dense", failures)];
    let named = arguments.first().and_then(|first| kinds.into_iter().find(|(name, _)| first == name));
    let (kind, make) = named.unwrap_or(kinds[0]);
    arguments.drain(..usize::from(named.is_some()));
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let reads = number(1, 5)?.max(1);
    if let Some(file) = arguments.first().filter(|first| Path::new(first).is_file()) {
        return measure(Path::new(file), reads, None);
    }
    let folder = arguments.get(2).map_or_else(std::env::temp_dir, PathBuf::from);
    let path = folder.join(format!("plimsoll-log-speed-{}.log", std::process::id()));
    write(&path, number(0, 1024)? << 20, make)?;
    let measured = measure(&path, reads, (kind == "run").then_some("cuda-oom-logits"));
    std::fs::remove_file(&path)?;
    measured
}

/// Appends the part of a log with a number.
type Make = fn(u64, &mut String) -> std::fmt::Result;

/// Reads a log several times. Fails if the answer is not the `expected` one.
fn measure(path: &Path, reads: u64, expected: Option<&str>) -> Result<(), Box<dyn std::error::Error>> {
    let bytes = std::fs::metadata(path)?.len();
    let mut reader = RssReader::new();
    let before = reader.read();
    let (mut rates, mut own) = (Vec::new(), Vec::new());
    for _ in 0..reads {
        let (start, busy) = (Instant::now(), processor_seconds());
        let diagnosis = diagnose(vec![Input::Path(path.to_path_buf())], Limits::default())?;
        rates.push(bytes as f64 / start.elapsed().as_secs_f64() / 1e6);
        own.push(bytes as f64 / (processor_seconds() - busy) / 1e6);
        if expected.is_some() {
            assert_eq!((diagnosis.slug.as_deref(), diagnosis.evidence.len()), (expected, 1));
        }
    }
    rates.sort_by(f64::total_cmp);
    own.sort_by(f64::total_cmp);
    let after = reader.read();
    println!(
        "{bytes} bytes, {reads} reads: least {:.0} MB/s, median {:.0} MB/s",
        rates[0],
        rates[rates.len() / 2]
    );
    println!("of its own processor time: least {:.0} MB/s, median {:.0} MB/s", own[0], own[own.len() / 2]);
    println!("peak of the process {}, before {}", after.peak, before.now);
    Ok(())
}

/// Seconds that this thread was on a processor: on a busy machine the better clock.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e9
}

/// A step's lines: metrics, a bar with carriage returns, coloured prefixes, a harmless traceback now and then.
fn step(number: u64, text: &mut String) -> std::fmt::Result {
    let (loss, reward) = (1.0 / (1.0 + number as f64), 0.5 + (number % 97) as f64 / 200.0);
    let (hour, minute, second) = (number / 3600 % 24, number / 60 % 60, number % 60);
    for rank in 0..4 {
        writeln!(
            text,
            "\x1b[36m(WorkerDict pid={})\x1b[0m INFO 03-02 {hour:02}:{minute:02}:{second:02} [trainer.py:{}] step:{number} - actor/loss:{loss:.6} - reward/mean:{reward:.4} - perf/max_memory_allocated_gb:41.27 - timing/step:12.137",
            4000 + rank,
            100 + rank
        )?;
    }
    write!(text, "Processed prompts:   0%|          | 0/512 [00:00<?, ?it/s]")?;
    for part in 1..20 {
        write!(
            text,
            "\rProcessed prompts: {:3}%|{:<10}| {}/512 [00:0{}<00:0{}, {}.{}it/s]",
            part * 5,
            "#".repeat(part / 2),
            part * 25,
            part / 3,
            6 - part / 3,
            80 + part,
            part
        )?;
    }
    writeln!(text)?;
    if number.is_multiple_of(50) {
        writeln!(
            text,
            "2026-03-02 {hour:02}:{minute:02}:{second:02},137 - reward - WARNING - no boxed answer in sample {number}, error ignored, retried"
        )?;
        writeln!(text, "Saving model checkpoint to out/global_step_{number}")?;
    }
    Ok(())
}

/// A line of metrics of each of several trainers.
fn trainers(number: u64, text: &mut String) -> std::fmt::Result {
    // Fractions that differ from line to line.
    let part = |factor: u64| (number * factor % 9973) as f64 / 9973.0;
    let (a, b, c, all) = (part(31), part(57), part(91), number * 2048);
    writeln!(
        text,
        "{{'loss': {a:.4}, 'grad_norm': {b:.4}, 'reward': {c:.4}, 'reward_std': {a:.4}, 'kl': {b:.5}, 'epoch': {c:.2}}}"
    )?;
    writeln!(
        text,
        "(TaskRunner pid=4711) step:{number} - actor/entropy:{a:.4} - actor/pg_loss:{b:.5} - critic/score/mean:{c:.3}"
    )?;
    writeln!(
        text,
        " iteration {number:8}/  500000 | consumed samples: {all} | global batch size: 256 | lm loss: {a:.5} | grad norm: {b:.3} |"
    )?;
    writeln!(text, "INFO trainer.py:412 step={number} reward={a:.4} kl={b:.5} grad_norm={c:.3} lr=1.00e-06")?;
    writeln!(text, "global_step={number}, episodic_return={:.1}", c * 100.0)?;
    writeln!(text, "|    total_timesteps      | {all}     |\n|    loss                 | {a:.4}     |")?;
    writeln!(text, "Epoch {number}: loss = {a:.4}, acc = {b:.3}")?;
    writeln!(
        text,
        "mmengine - INFO - Epoch(train) [1][{number}/9000]  lr: 1.0e-03  eta: 1:02:03  loss: {c:.4}"
    )?;
    writeln!(text, " 12%|#2        | {number}/900000 [05:10<38:02, {b:.2}s/it]")
}

/// All examples of the self-test.
fn failures(_number: u64, text: &mut String) -> std::fmt::Result {
    examples().try_for_each(|example| writeln!(text, "{}", example.text.trim_end()))
}

fn write(path: &Path, bytes: u64, make: Make) -> Result<(), Box<dyn std::error::Error>> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let (mut written, mut text) = (0, String::new());
    for number in 0.. {
        if written >= bytes {
            break;
        }
        text.clear();
        make(number, &mut text)?;
        file.write_all(text.as_bytes())?;
        written += text.len() as u64;
    }
    let death = "Traceback (most recent call last):\n  File \"a.py\", line 1, in entropy_from_logits\n    pd = softmax(logits)\n\
                 torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 13.91 GiB.\n";
    file.write_all(death.as_bytes())?;
    file.flush()?;
    Ok(())
}
