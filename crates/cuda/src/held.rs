//! Memory that the driver and its libraries hold besides the arena. Every run measures it before its first step and
//! notes it in the folder of compiled kernels; a plan takes what was noted, or a table where there is no card.

use super::{compile, driver};
use plimsoll_base::Bytes;
use plimsoll_device::DriverMemory;
use std::path::{Path, PathBuf};

/// Measured on an H100 and an H200, both with driver 580 and 16 cores, and rounded up. The host's numbers are those of
/// a first start, in which the kernels are compiled: what the compiler took stays with the process.
const HOST: DriverMemory =
    DriverMemory { card: Bytes(0), host: Bytes::mib(448), files: Bytes::mib(232), shared: Bytes::mib(12) };
const TABLE_SOURCE: &str = "from a table, measured on an H100 and an H200 with driver 580";
/// A context without a module: 526.8 MiB on both cards.
const CONTEXT: Bytes = Bytes::mib(527);
/// Runs differ in shapes: a plan takes this much more host memory than the most that was noted.
const MARGIN: u64 = 16 << 20;
/// Margin for the card, whose memory is given in pieces of 2 MiB; see `MARGIN`.
const CARD_MARGIN: u64 = 4 << 20;
/// Memory of a recorded pass per layer: 0.77 to 1.07 MiB a pass of 24 to 36 layers were measured.
const GRAPH_BYTES_PER_LAYER: u64 = 40 << 10;
/// Upper bound on a note: no driver holds as much, so Plimsoll did not write a larger number.
const BYTES_MAX: u64 = 1 << 36;

/// Modules that a run loads, by the products that it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modules {
    /// Plimsoll's kernels alone: f32, and adapters on weights that stay as they are.
    Own,
    /// Modules that cuBLASLt needs for narrow layers.
    Narrow,
    /// Modules that cuBLASLt needs for other layers.
    Wide,
}

/// The width below which cuBLASLt's modules are few: measured with 576 (4 to 14 MiB) and 896 (18 to 27 MiB).
const NARROW: u32 = 640;

impl Modules {
    /// Returns the modules of a model of this width. `is_own`: nothing is computed by cuBLASLt.
    pub fn of(is_own: bool, hidden: u32) -> Modules {
        if is_own {
            Modules::Own
        } else if hidden < NARROW {
            Modules::Narrow
        } else {
            Modules::Wide
        }
    }

    /// Returns their card memory. Measured, beyond what recorded passes are planned with: 0 to 5.7, 4 to 14.6 (the most
    /// in a whole step of 256 samples) and 18 to 27 MiB.
    const fn bytes(self) -> Bytes {
        match self {
            Modules::Own => Bytes::mib(8),
            Modules::Narrow => Bytes::mib(16),
            Modules::Wide => Bytes::mib(30),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Modules::Own => "own",
            Modules::Narrow => "narrow",
            Modules::Wide => "wide",
        }
    }
}

/// Returns the most that `passes` recorded passes of a model with `layers` layers take of a card.
pub fn graph_bytes(passes: usize, layers: u32) -> Bytes {
    Bytes((passes as u64).saturating_mul(u64::from(layers)).saturating_mul(GRAPH_BYTES_PER_LAYER))
}

/// Returns the table's numbers.
fn table(modules: Modules) -> DriverMemory {
    DriverMemory { card: Bytes(CONTEXT.0 + modules.bytes().0), ..HOST }
}

/// Returns what to plan with, and its source. A card's is never below the table's: a run of another shape was noted.
pub fn known(modules: Modules) -> (DriverMemory, String) {
    let (table, noted) = (table(modules), file(modules).and_then(|file| Some((read(&file)?, file))));
    match noted {
        None => (table, TABLE_SOURCE.to_string()),
        Some((held, file)) => {
            let source = format!("measured by runs on this machine, in {}", file.display());
            let card = Bytes(held.card.0 + CARD_MARGIN).max(table.card);
            (DriverMemory { card, ..map(held, |bytes| Bytes(bytes.0 + MARGIN)) }, source)
        }
    }
}

/// Notes a measurement; the larger of each number stays. Best effort: without a note the table is taken. Under a tool
/// that the driver loads (a sanitizer, a profiler) nothing is noted: it takes gigabytes itself.
pub fn note(held: DriverMemory, modules: Modules) {
    let tool = std::env::vars_os().any(|(key, _)| key.to_string_lossy().contains("INJECTION"));
    if let (Some(file), false) = (file(modules), tool) {
        let most = zip(read(&file).unwrap_or_default(), held, Bytes::max);
        let _ = compile::write_cached(&file, text(most).as_bytes());
    }
}

fn read(file: &Path) -> Option<DriverMemory> {
    parse(std::str::from_utf8(&compile::read_cached(file)?).ok()?)
}

fn text(held: DriverMemory) -> String {
    format!("{} {} {} {}\n", held.card.0, held.host.0, held.files.0, held.shared.0)
}

fn parse(text: &str) -> Option<DriverMemory> {
    let mut numbers =
        text.split_whitespace().map(|word| word.parse().ok().filter(|&n| n < BYTES_MAX).map(Bytes));
    let mut next = || numbers.next().flatten();
    Some(DriverMemory { card: next()?, host: next()?, files: next()?, shared: next()? })
}

fn map(held: DriverMemory, f: impl Fn(Bytes) -> Bytes) -> DriverMemory {
    DriverMemory { card: f(held.card), host: f(held.host), files: f(held.files), shared: f(held.shared) }
}

fn zip(held: DriverMemory, other: DriverMemory, f: impl Fn(Bytes, Bytes) -> Bytes) -> DriverMemory {
    DriverMemory {
        card: f(held.card, other.card),
        host: f(held.host, other.host),
        files: f(held.files, other.files),
        shared: f(held.shared, other.shared),
    }
}

/// Returns the path of the note about the first card with its driver; `None` without a card.
fn file(modules: Modules) -> Option<PathBuf> {
    let (_, info) = driver::first_device().ok()?;
    let name: String = info.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    Some(compile::cache_folder()?.join(format!("held-{name}-{}-{}.bytes", info.driver, modules.name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_back_and_nonsense_is_not() {
        let held = map(table(Modules::Wide), |bytes| Bytes(bytes.0 + 1));
        assert_eq!(parse(&text(held)), Some(held));
        for text in ["", "1 2 3", "1 2 3 -4", "1 2 3 99999999999999", "a b c d"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_larger_of_two_measurements_stays() {
        let table = table(Modules::Own);
        let other = DriverMemory { card: Bytes(1), host: Bytes::mib(900), ..table };
        let most = zip(table, other, Bytes::max);
        assert_eq!(most, DriverMemory { host: Bytes::mib(900), ..table });
    }

    /// MiB beyond the arena on an H100 and an H200, the same on both: each plan is above by 1 % of 1.8 GiB at most.
    /// Those of 0 passes are of all passes, without what these are planned with.
    #[test]
    fn what_was_measured_lies_below_the_table() {
        for (modules, passes, layers, measured) in [
            (Modules::Narrow, 1, 30, 531.3),
            (Modules::Narrow, 4, 30, 534.3),
            (Modules::Narrow, 10, 30, 539.6),
            (Modules::Narrow, 22, 30, 550.9),
            (Modules::Narrow, 0, 30, 533.1),
            (Modules::Narrow, 0, 30, 538.5),
            (Modules::Narrow, 0, 30, 541.6),
            (Modules::Wide, 1, 24, 545.8),
            (Modules::Wide, 4, 24, 548.6),
            (Modules::Wide, 6, 24, 549.9),
            (Modules::Wide, 14, 24, 557.9),
            (Modules::Wide, 30, 24, 571.2),
            (Modules::Wide, 0, 24, 553.4),
            (Modules::Wide, 4, 28, 550.0),
            (Modules::Wide, 10, 28, 554.0),
            (Modules::Wide, 10, 36, 557.7),
            (Modules::Wide, 0, 28, 550.8),
            (Modules::Wide, 0, 32, 550.0),
            (Modules::Own, 4, 24, 533.2),
            (Modules::Own, 4, 28, 529.8),
            (Modules::Own, 0, 24, 531.2),
            (Modules::Own, 0, 24, 532.7),
            (Modules::Own, 1, 24, 527.9),
        ] {
            let planned = table(modules).card.0 + graph_bytes(passes, layers).0;
            let above = planned as f64 / f64::from(1 << 20) - measured;
            assert!((0.0..=18.0).contains(&above), "{modules:?}, {passes} passes: {above:.1} MiB above");
        }
    }
}
