//! How a run ends: finished, interrupted by a signal, or diverged.

use plimsoll_base::{Error, Exit, Result, slugs};
use plimsoll_config::Loaded;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};

/// The content of `summary.json`.
pub type Summary = Value;

/// Gives the error of an interrupted wait the exit code of its signal; returns other errors unchanged.
pub fn ended_by(error: Error, signal: &AtomicI32) -> Error {
    let exit = match (error.slug, signal.load(Ordering::Relaxed)) {
        (slugs::INTERRUPTED, 1 | 15) => Exit::Terminated,
        (slugs::INTERRUPTED, 2) => Exit::Interrupted,
        _ => return error,
    };
    Error { exit, ..error }
}

/// Returns the run directory: `run.dir`, or `runs/out/NAME` if the run file sets none.
pub fn run_dir_path(loaded: &Loaded) -> PathBuf {
    match &loaded.run.run.dir {
        Some(dir) => PathBuf::from(dir),
        None => Path::new("runs/out").join(loaded.path.file_stem().unwrap_or("run".as_ref())),
    }
}

/// A number above those of all signals: the observer of a run asks for a checkpoint.
pub const SAVE: i32 = 1000;
/// The observer asks for a checkpoint and the end.
pub const STOP: i32 = 1001;

pub fn interrupted(signal: i32, step: u32, dir: &Path) -> Error {
    let (name, exit) = match signal {
        1 => ("SIGHUP", Exit::Terminated),
        15 => ("SIGTERM", Exit::Terminated),
        STOP => ("stopped by the callback", Exit::Interrupted),
        _ => ("SIGINT", Exit::Interrupted),
    };
    let message = format!("{name} after step {step}; everything is saved in {}", dir.display());
    Error { exit, ..Error::new(slugs::INTERRUPTED, message) }
        .hint("--resume continues from there, bit for bit")
}

/// Returns true for errors which mean that the weights no longer give finite numbers.
pub(crate) fn is_divergence(error: &Error) -> bool {
    slugs::DIVERGENCE.contains(&error.slug)
}

/// Checks that the loss is finite.
///
/// Errors: `loss-not-finite`.
pub fn finite_loss(step: u32, loss: f64) -> Result<()> {
    if loss.is_finite() {
        Ok(())
    } else {
        Err(Error::new(slugs::LOSS_NOT_FINITE, format!("step {step}: the loss is {loss}"))
            .hint("lower train.learning_rate"))
    }
}
