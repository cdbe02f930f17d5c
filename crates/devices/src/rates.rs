//! The rates of a machine: a built-in table by machine type, or those that `bench calibrate` measured and stored.
//!
//! The module reads one file, `machine-NAME.json` in the user's cache folder, and writes it only on request. An
//! unreadable file counts as no calibration: predictions then come from the table, and the plan says so.

use plimsoll_base::{DType, Error, Result};
use plimsoll_cpu::Isa;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Rates of one machine at some number of threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Source of the rates, for display.
    pub source: String,
    /// Operations per second on bf16 operands in registers.
    pub flops_bf16: f64,
    /// Operations per second on f32 operands in registers.
    pub flops_f32: f64,
    pub bandwidth: f64,
    /// Share of `flops` that rollout passes reach.
    pub rollout_share: f64,
    /// Share of `flops` that forward and backward passes of training reach.
    pub update_share: f64,
    /// Rows of a rollout pass at which products reach half of their share.
    pub half_rows: f64,
    /// Seconds of a rollout pass outside its arithmetic.
    pub pass_s: f64,
    /// Seconds of a micro-batch outside its arithmetic.
    pub micro_batch_s: f64,
    /// Rates that only cards have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<CardRates>,
}

/// Rates that only a card has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardRates {
    /// p of the norm that joins seconds of arithmetic and of reading weights: 1 is their sum, large p the longer.
    pub overlap: f64,
    /// Share of the bandwidth at which weights are read by rollout passes.
    pub read_share: f64,
    /// Seconds per layer of a rollout pass outside its arithmetic.
    pub layer_s: f64,
    /// Bytes moved for each logit that is drawn from.
    pub logit_bytes: f64,
    /// Times that a whole update moves a row's width in a layer, outside the products.
    pub activation_widths: f64,
    /// Bytes per second to another card, in one direction.
    pub link: f64,
    /// Bytes per second to the host's memory, in one direction.
    pub bus: f64,
}

/// Machine type, GFLOP/s per thread on bf16 and on f32, GB/s per thread. A Xeon with AMX and Zen 4 with AVX512-BF16,
/// measured; AVX2 from the latter with its bf16 path off; the portable path as compiled. Tiles do ten times what the
/// table says: the shares are those of other paths, on which products take most of a pass, and here a fraction.
const TABLE: [(&str, f64, f64, f64); 4] = [
    ("amx", 370.0, 230.0, 13.0),
    ("avx512bf16", 234.0, 117.0, 17.0),
    ("avx2", 90.0, 90.0, 17.0),
    ("scalar", 4.0, 4.0, 10.0),
];
/// Measured on a CPU: 87 % at 32 rows and 97 % at 256.
const HALF_ROWS: f64 = 4.0;
/// Maximum GB/s of a socket, whatever the threads.
const SOCKET_BANDWIDTH: f64 = 200.0;
/// Maximum bytes per second that a CPU copies from one part of its memory to another.
const BUS_BANDWIDTH: f64 = 50e9;

impl Rates {
    /// Returns the bytes per second between host memory and arena, in each direction; on a CPU both are its memory.
    pub fn bus(&self) -> f64 {
        self.card.map_or(BUS_BANDWIDTH.min(self.bandwidth / 2.0), |card| card.bus)
    }

    /// Returns the bytes per second between two ranks of a host, in each direction.
    pub fn link(&self) -> f64 {
        self.card.map_or(self.bandwidth / 2.0, |card| card.link)
    }

    /// Returns this machine's rates: calibrated for this number of threads, or built in.
    pub fn of_this_machine(threads: usize) -> Rates {
        let isa = Isa::in_use().name();
        calibration_file(isa, threads)
            .and_then(|path| Rates::read(&path))
            .unwrap_or_else(|| Rates::built_in(isa, threads))
    }

    /// Returns the table's rates of a machine type.
    pub fn built_in(isa: &str, threads: usize) -> Rates {
        let row = TABLE.iter().find(|(name, ..)| *name == isa).unwrap_or(&TABLE[TABLE.len() - 1]);
        let (threads, &(name, bf16, f32, bandwidth)) = (threads as f64, row);
        Rates {
            source: format!("built-in table for {name}"),
            flops_bf16: bf16 * 1e9 * threads,
            flops_f32: f32 * 1e9 * threads,
            bandwidth: (bandwidth * threads).min(SOCKET_BANDWIDTH) * 1e9,
            rollout_share: 0.7,
            update_share: 0.65,
            half_rows: HALF_ROWS,
            pass_s: 3e-4,
            micro_batch_s: 1e-3,
            card: None,
        }
    }

    /// Returns the operations per second on operands of this dtype.
    pub fn flops(&self, dtype: DType) -> f64 {
        if dtype == DType::Bf16 { self.flops_bf16 } else { self.flops_f32 }
    }

    fn read(path: &Path) -> Option<Rates> {
        let stored: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        let is_usable = stored.as_object()?.values().filter_map(Value::as_f64).all(|rate| rate > 0.0);
        let rates: Rates = serde_json::from_value(stored).ok()?;
        is_usable.then(|| Rates { source: format!("calibrated, {}", path.display()), ..rates })
    }

    /// Stores the rates for this machine; returns the path.
    ///
    /// Errors: `calibration-not-stored`, `disk-full`, `write-failed`.
    pub fn store(&self, threads: usize) -> Result<PathBuf> {
        let (folder, path) = Rates::place(threads)?;
        std::fs::create_dir_all(&folder).map_err(|err| not_stored(&folder, &err))?;
        let text = serde_json::to_vec_pretty(self).expect("numbers have a JSON form");
        plimsoll_files::write_atomic(&path, &text)?;
        Ok(path)
    }

    /// Requires that rates can be stored, before they are measured.
    ///
    /// Errors: `calibration-not-stored`.
    pub fn check_store(threads: usize) -> Result<()> {
        let (folder, _) = Rates::place(threads)?;
        plimsoll_files::check_folder(&folder).map_err(|err| not_stored(&folder, &err))
    }

    /// Returns the folder of this machine's rates, and the file in it.
    fn place(threads: usize) -> Result<(PathBuf, PathBuf)> {
        let path = calibration_file(Isa::in_use().name(), threads).ok_or_else(|| {
            Error::new("calibration-not-stored", "neither XDG_CACHE_HOME nor HOME names a folder")
                .hint("set XDG_CACHE_HOME to a folder that can be written")
        })?;
        Ok((path.parent().expect("a file in a folder").to_path_buf(), path))
    }
}

fn not_stored(folder: &Path, err: &std::io::Error) -> Error {
    Error::io("calibration-not-stored", folder, err)
        .hint("set XDG_CACHE_HOME to a folder that can be written")
}

/// Returns `$XDG_CACHE_HOME/plimsoll/machine-ISA-CPU-Nt.json`; none where no cache folder is known.
fn calibration_file(isa: &str, threads: usize) -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    let cpu = cpu_name(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
    Some(cache.join("plimsoll").join(format!("machine-{isa}-{cpu}-{threads}t.json")))
}

/// Returns the CPU's model as part of a file name.
fn cpu_name(cpuinfo: &str) -> String {
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_lowercase())
    };
    let words = field("model name").unwrap_or_else(|| "cpu".into());
    let (family, model) = (field("cpu family").unwrap_or_default(), field("model\t").unwrap_or_default());
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("{words} {family} {model}").trim().chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_calibration_is_read_and_a_broken_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("machine.json");
        let rates = Rates { pass_s: 0.25, ..Rates::built_in("avx2", 3) };
        std::fs::write(&path, serde_json::to_vec(&rates).unwrap()).unwrap();
        let read = Rates::read(&path).unwrap();
        assert_eq!((read.pass_s, read.bandwidth), (0.25, rates.bandwidth));
        assert!(read.source.starts_with("calibrated, "), "{}", read.source);
        for text in ["", "{}", "{\"source\": 1}"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(Rates::read(&path), None, "{text}");
        }
        let zero = Rates { bandwidth: 0.0, ..rates };
        std::fs::write(&path, serde_json::to_vec(&zero).unwrap()).unwrap();
        assert_eq!(Rates::read(&path), None);
    }

    #[test]
    fn a_processor_has_a_name_that_files_can_have() {
        let text = "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9R14 (c)\n";
        assert_eq!(cpu_name(text), "amd-epyc-9r14--c--25-17");
        assert_eq!(cpu_name(""), "cpu");
    }
}
