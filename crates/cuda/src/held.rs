//! What the driver and its libraries hold besides the arena. Every run measures it before its first step and notes it in
//! the folder of compiled kernels; a plan takes what was noted, or a table where there is no card.

use super::{compile, driver};
use plimsoll_base::Bytes;
use std::path::{Path, PathBuf};

/// What driver and libraries hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Of the card, besides the arena: context, modules, cuBLASLt, recorded passes.
    pub card: Bytes,
    /// Of the host, anonymous memory.
    pub host: Bytes,
    /// Of the host, pages of their files.
    pub files: Bytes,
    /// Of the host, memory shared with the card.
    pub shared: Bytes,
}

/// Measured on an H200 with driver 580 and 16 cores, and rounded up. The host's numbers are those of a first start, in
/// which the kernels are compiled: what the compiler took stays with the process.
const TABLE: Held =
    Held { card: Bytes::mib(640), host: Bytes::mib(448), files: Bytes::mib(232), shared: Bytes::mib(12) };
/// As `TABLE`, of a run that trains adapters: products of more shapes load more of cuBLASLt's modules.
const CARD_WITH_ADAPTERS: Bytes = Bytes::mib(1280);
const TABLE_SOURCE: &str = "from a table, measured on an H200 with driver 580";
/// Runs differ in shapes: a plan takes this much more than the most that was noted.
const MARGIN: u64 = 16 << 20;
/// No driver holds as much: a larger number was not written by Plimsoll.
const BYTES_MAX: u64 = 1 << 36;

impl Held {
    /// What to plan with, and where it is from.
    pub fn known() -> (Held, String) {
        let noted = file().and_then(|file| Some((Held::read(&file)?, file)));
        match noted {
            None => (TABLE, TABLE_SOURCE.to_string()),
            Some((held, file)) => {
                let source = format!("measured by runs on this machine, in {}", file.display());
                (held.map(|bytes| Bytes(bytes.0 + MARGIN)), source)
            }
        }
    }

    /// Returns what a run with adapters takes, where nothing was measured: `self` is of the table.
    pub fn with_adapters(self) -> Held {
        if self == TABLE { Held { card: CARD_WITH_ADAPTERS, ..self } } else { self }
    }

    /// Notes a measurement; of two the larger of each number stays. Best effort: without a note the table is taken. Under a
    /// tool that the driver loads (a sanitizer, a profiler) nothing is noted: it takes gigabytes itself.
    pub fn note(self) {
        let tool = std::env::vars_os().any(|(key, _)| key.to_string_lossy().contains("INJECTION"));
        if let (Some(file), false) = (file(), tool) {
            let most = Held::read(&file).unwrap_or_default().zip(self, Bytes::max);
            let _ = compile::write_cached(&file, most.text().as_bytes());
        }
    }

    fn read(file: &Path) -> Option<Held> {
        Held::parse(std::str::from_utf8(&compile::read_cached(file)?).ok()?)
    }

    fn text(self) -> String {
        format!("{} {} {} {}\n", self.card.0, self.host.0, self.files.0, self.shared.0)
    }

    fn parse(text: &str) -> Option<Held> {
        let mut numbers =
            text.split_whitespace().map(|word| word.parse().ok().filter(|&n| n < BYTES_MAX).map(Bytes));
        let mut next = || numbers.next().flatten();
        Some(Held { card: next()?, host: next()?, files: next()?, shared: next()? })
    }

    fn map(self, f: impl Fn(Bytes) -> Bytes) -> Held {
        Held { card: f(self.card), host: f(self.host), files: f(self.files), shared: f(self.shared) }
    }

    fn zip(self, other: Held, f: impl Fn(Bytes, Bytes) -> Bytes) -> Held {
        Held {
            card: f(self.card, other.card),
            host: f(self.host, other.host),
            files: f(self.files, other.files),
            shared: f(self.shared, other.shared),
        }
    }
}

/// The note about the first card with its driver; `None` without a card.
fn file() -> Option<PathBuf> {
    let (_, info) = driver::first_device().ok()?;
    let name: String = info.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    Some(compile::cache_folder()?.join(format!("held-{name}-{}.bytes", info.driver)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_back_and_nonsense_is_not() {
        let held = TABLE.map(|bytes| Bytes(bytes.0 + 1));
        assert_eq!(Held::parse(&held.text()), Some(held));
        for text in ["", "1 2 3", "1 2 3 -4", "1 2 3 99999999999999", "a b c d"] {
            assert_eq!(Held::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_larger_of_two_measurements_stays() {
        let other = Held { card: Bytes(1), host: Bytes::mib(900), ..TABLE };
        let most = TABLE.zip(other, Bytes::max);
        assert_eq!(most, Held { host: Bytes::mib(900), ..TABLE });
    }
}
