//! Runs one target: input after input, each measured, with a watch that ends the process when one does not return.

use crate::mutate::{self, Random};
use crate::target::Target;
use plimsoll_base::Error;
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time on the wall after which an input is a hang, however busy the machine is.
const HANG: Duration = Duration::from_secs(60);
/// Address space of a process that reads one target: what asks for more ends, before it takes the machine's memory.
pub const ADDRESS_BYTES_MAX: u64 = 8 << 30;

#[derive(Clone, Debug)]
pub struct Options {
    pub seconds: u64,
    /// Ends earlier after as many inputs.
    pub inputs_max: u64,
    pub seed: u64,
    /// Number of the first input.
    pub from: u64,
    /// Prints each input.
    pub show: bool,
    /// A file that holds the number of the input that is being read, for when the process dies of it.
    pub at: Option<PathBuf>,
}

/// The inputs of a target that were read and refused.
#[derive(Debug, Default)]
pub struct Outcome {
    pub inputs: u64,
    /// Inputs that were read without an error.
    pub accepted: u64,
    /// Errors by slug.
    pub refused: BTreeMap<&'static str, u64>,
    /// The longest time of an input, and its number.
    pub slowest: (Duration, u64),
    pub peak_bytes: u64,
    /// Number and fault of an input after which nothing more was read.
    pub fault: Option<(u64, String)>,
}

pub fn run(target: &Target, options: &Options) -> Outcome {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let is_parquet = std::thread::current().name() == Some(plimsoll_text::PARQUET_THREAD);
        let is_guarded = plimsoll_text::panic_becomes_an_error() || plimsoll_images::panic_becomes_an_error();
        if !is_parquet && !is_guarded {
            usual(info);
        }
    }));
    let mut subject = (target.open)();
    let mut outcome = Outcome::default();
    let (begun, at) = (Instant::now(), Arc::new(AtomicU64::new(options.from)));
    watch(&at, target.name, options.seed);
    for number in options.from.. {
        if begun.elapsed().as_secs() >= options.seconds || outcome.inputs == options.inputs_max {
            break;
        }
        at.store(number, Ordering::Relaxed);
        if let Some(path) = &options.at {
            fs::write(path, number.to_string()).expect("the file can be written");
        }
        let mut random = Random::new(options.seed, number);
        let input = mutate::input(&mut random, target.shape, subject.corpus(), target.pieces);
        if options.show {
            eprintln!("{number}: {:?}", String::from_utf8_lossy(&input));
        }
        let (input_begun, processor) = (Instant::now(), processor_time());
        let read = catch_unwind(AssertUnwindSafe(|| subject.read(&input)));
        outcome.slowest = outcome.slowest.max((input_begun.elapsed(), number));
        outcome.inputs += 1;
        let processor = processor_time() - processor;
        if processor > target.bounds.input_time {
            outcome.fault =
                Some((number, format!("it takes {:.2} s of processor time", processor.as_secs_f64())));
            break;
        }
        match read {
            Ok(Ok(())) => outcome.accepted += 1,
            Ok(Err(error)) => {
                if let Some(fault) = unfit(&error) {
                    outcome.fault = Some((number, fault));
                    break;
                }
                *outcome.refused.entry(error.slug).or_default() += 1;
            }
            Err(_) => {
                outcome.fault = Some((number, "it panics".into()));
                break;
            }
        }
    }
    // What a watch on an input that ended would find.
    at.store(u64::MAX, Ordering::Relaxed);
    outcome.peak_bytes = peak_bytes();
    if outcome.peak_bytes > target.bounds.peak_bytes && outcome.fault.is_none() {
        let what = format!("{} MiB were resident at one time", outcome.peak_bytes >> 20);
        outcome.fault = Some((options.from + outcome.inputs, what));
    }
    outcome
}

/// Says what is wrong with an error: its length, or its lines.
fn unfit(error: &Error) -> Option<String> {
    let text = error.to_string();
    let longest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    if longest > 2200 {
        return Some(format!("{}: a line of {longest} characters", error.slug));
    }
    (error.slug == "internal").then_some(text)
}

/// Ends the process when one input takes too long, for then nothing else can.
fn watch(at: &Arc<AtomicU64>, target: &'static str, seed: u64) {
    let at = at.clone();
    std::thread::spawn(move || {
        let (mut last, mut since) = (u64::MAX - 1, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(200));
            let now = at.load(Ordering::Relaxed);
            if now == u64::MAX {
                return;
            }
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > HANG {
                eprintln!("{target}: input {now} of seed {seed} takes longer than {} s", HANG.as_secs());
                std::process::exit(1);
            }
        }
    });
}

/// Processor time of all threads, in steps of 10 ms.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may hold spaces: fields 14 and 15 of all, user and system time in ticks.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Highest resident memory of the process.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}
