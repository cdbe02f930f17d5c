//! The conditions, one row each: what a test program's environment, processor, disk and order are in a round.

use super::load::{self, Load};
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Conditions, in the order in which they get their rounds.
pub const CONDITIONS: [Condition; 10] = [
    row("isa-scalar", "the instruction path `scalar`", Does::Isa("scalar", &[])),
    row("isa-avx2", "the instruction path `avx2`", Does::Isa("avx2", &["avx2", "fma"])),
    row("isa-avx512bf16", "the instruction path `avx512bf16`", Does::Isa("avx512bf16", &AVX512_BF16)),
    row("isa-amx", "the instruction path `amx`", Does::Isa("amx", &AMX)),
    row("one-thread", "one test at a time", Does::Threads("1")),
    row("eight-threads", "eight tests at a time", Does::Threads("8")),
    row("busy", "next to four threads that compute without a pause", Does::Busy(4)),
    row("writer", "next to a thread that writes a file of 1 GiB again and again", Does::Write),
    row("cold-cache", "the page cache is dropped before each program", Does::DropCaches),
    row("shuffled", "tests in another order in each round", Does::Shuffle),
];

/// Processor flags that `Isa::is_available` of crates/cpu asks for, in the words of /proc/cpuinfo.
const AVX512_BF16: [&str; 7] = ["avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx2", "fma"];
const AMX: [&str; 9] =
    ["amx_tile", "amx_bf16", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx2", "fma"];

/// The kernel writes dirty pages first, then drops clean pages, directory entries and inodes.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

#[derive(Debug, PartialEq)]
pub struct Condition {
    pub name: &'static str,
    pub what: &'static str,
    does: Does,
}

/// How a condition begins; all end when its round does.
#[derive(Debug, PartialEq)]
enum Does {
    /// Names the instruction path in `PLIMSOLL_ISA`, where the processor has these flags.
    Isa(&'static str, &'static [&'static str]),
    /// Sets `RUST_TEST_THREADS`.
    Threads(&'static str),
    /// Starts a number of threads that compute until the round is over.
    Busy(usize),
    /// Starts a thread that writes until the round is over.
    Write,
    /// Drops the page cache before each program.
    DropCaches,
    /// Gives the harness a seed.
    Shuffle,
}

/// The variables and arguments that a condition adds to the start of a test program.
#[derive(Debug, Default, PartialEq)]
pub struct Setting {
    pub variables: Vec<(&'static str, &'static str)>,
    /// Arguments that only a program with libtest's harness understands.
    pub arguments: Vec<String>,
}

const fn row(name: &'static str, what: &'static str, does: Does) -> Condition {
    Condition { name, what, does }
}

impl Condition {
    /// Returns why this machine cannot have the condition, if so.
    pub fn unavailable(&self) -> Option<String> {
        match self.does {
            Does::Isa(_, flags) => missing(flags, &fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
                .map(|flag| format!("the processor has no `{flag}`")),
            Does::Write => load::no_room(),
            Does::DropCaches => {
                let open = fs::OpenOptions::new().write(true).open(DROP_CACHES);
                open.err().map(|err| format!("{DROP_CACHES}: {err}"))
            }
            Does::Threads(_) | Does::Busy(_) | Does::Shuffle => None,
        }
    }

    pub fn setting(&self, seed: u64) -> Setting {
        let with = |name, value| Setting { variables: vec![(name, value)], arguments: Vec::new() };
        match self.does {
            Does::Isa(name, _) => with("PLIMSOLL_ISA", name),
            Does::Threads(count) => with("RUST_TEST_THREADS", count),
            Does::Shuffle => Setting {
                // Without it, a stable harness refuses options that are not stable.
                variables: vec![("RUSTC_BOOTSTRAP", "1")],
                arguments: ["-Z", "unstable-options", "--shuffle-seed"]
                    .map(str::to_string)
                    .into_iter()
                    .chain([seed.to_string()])
                    .collect(),
            },
            Does::Busy(_) | Does::Write | Does::DropCaches => Setting::default(),
        }
    }

    /// Begins what the machine does during the round; dropping the load ends it.
    pub fn begin(&self) -> io::Result<Load> {
        match self.does {
            Does::Busy(count) => Ok(Load::busy(count)),
            Does::Write => Load::writer(&std::env::temp_dir()),
            _ => Ok(Load::none()),
        }
    }

    /// Does what is due before each start of a program.
    pub fn before_program(&self) -> io::Result<()> {
        if self.does != Does::DropCaches {
            return Ok(());
        }
        rustix::fs::sync();
        let mut file = fs::OpenOptions::new().write(true).open(Path::new(DROP_CACHES))?;
        file.write_all(b"3")
    }
}

/// Returns the first flag that the first processor of /proc/cpuinfo lacks.
fn missing(flags: &[&'static str], cpuinfo: &str) -> Option<&'static str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let (_, found) = line.split_once(':').unwrap_or_default();
    flags.iter().copied().find(|flag| !found.split_whitespace().any(|found| found == *flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_flag_is_named() {
        let cpuinfo = "processor\t: 0\nflags\t\t: fpu avx2 fma avx512f\nbugs\t\t: amx_tile\n";
        assert_eq!(missing(&["avx2", "fma"], cpuinfo), None);
        assert_eq!(missing(&AVX512_BF16, cpuinfo), Some("avx512bw"));
        assert_eq!(missing(&AMX, cpuinfo), Some("amx_tile"));
        assert_eq!(missing(&["avx"], cpuinfo), Some("avx"));
        assert_eq!(missing(&[], ""), None);
    }

    #[test]
    fn the_paths_are_those_of_the_program() {
        let source = fs::read_to_string(crate::repository_root().join("crates/cpu/src/isa.rs"));
        let source = source.expect("the crate has its paths there");
        let names: Vec<&str> = CONDITIONS
            .iter()
            .filter_map(|condition| match condition.does {
                Does::Isa(name, _) => Some(name),
                _ => None,
            })
            .collect();
        assert!(names.iter().all(|name| source.contains(&format!("=> \"{name}\","))), "{names:?}");
        assert!(source.contains(&format!("[Isa; {}]", names.len())));
    }

    #[test]
    fn settings_say_what_a_program_gets() {
        let setting = |name: &str| {
            let mut all = CONDITIONS.iter().filter(|condition| condition.name == name);
            all.next().expect("a condition").setting(7)
        };
        assert_eq!(setting("isa-avx2").variables, [("PLIMSOLL_ISA", "avx2")]);
        assert_eq!(setting("one-thread").variables, [("RUST_TEST_THREADS", "1")]);
        assert_eq!(setting("shuffled").arguments, ["-Z", "unstable-options", "--shuffle-seed", "7"]);
        assert_eq!(setting("busy"), Setting::default());
    }
}
