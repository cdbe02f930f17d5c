//! Lists what `bench mismatch` runs: the run, and the differences between its sampler and its trainer.

use std::path::PathBuf;

/// Holds what `bench mismatch` runs.
#[derive(Clone, Debug)]
pub struct MismatchOptions {
    /// The run file.
    pub run: PathBuf,
    /// Settings of the run.
    pub sets: Vec<String>,
    /// Steps of each run.
    pub steps: u32,
    /// Number of seeds, from 0.
    pub seeds: u64,
    /// Names of the cases; all if empty.
    pub only: Vec<String>,
    /// Results to put together, instead of running anything.
    pub join: Vec<PathBuf>,
}

/// A difference between sampler and trainer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// None: the run as it is.
    Exact,
    /// Normal noise in a share of the tokens, so that the mean |difference| of log-probs is the first number.
    Normal { mean: f64, share: f32 },
    /// Hidden numbers in 8 bits.
    EightBits,
}

#[derive(Clone, Copy)]
pub(super) struct Case {
    pub name: &'static str,
    pub kind: Kind,
}

/// Shares of tokens that a router sends to other experts are a few per cent; their difference is large.
const ROUTED: f32 = 0.02;

pub(super) const CASES: [Case; 7] = [
    Case { name: "exact", kind: Kind::Exact },
    Case { name: "0.0002", kind: Kind::Normal { mean: 0.0002, share: 1.0 } },
    Case { name: "0.002", kind: Kind::Normal { mean: 0.002, share: 1.0 } },
    Case { name: "0.015", kind: Kind::Normal { mean: 0.015, share: 1.0 } },
    Case { name: "0.15", kind: Kind::Normal { mean: 0.15, share: 1.0 } },
    Case { name: "8-bit", kind: Kind::EightBits },
    Case { name: "routing", kind: Kind::Normal { mean: 0.015, share: ROUTED } },
];

/// Returns the names of the cases.
pub fn cases() -> [&'static str; 7] {
    CASES.map(|case| case.name)
}

/// A run has collapsed when its score falls below this share of its best.
pub(super) const COLLAPSED: f64 = 0.5;
