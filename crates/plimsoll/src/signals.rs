//! SIGINT and SIGTERM ask a run to stop after its step; the second one ends it at once.

use plimsoll_base::{Error, Exit, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What the signals have asked for.
pub struct Stop {
    asked: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Takes both signals from now on.
    pub fn install() -> Result<Stop> {
        let stop = Stop { asked: Arc::new(AtomicBool::new(false)), signal: Arc::new(AtomicUsize::new(0)) };
        for (signal, exit) in [(SIGINT, Exit::Interrupted), (SIGTERM, Exit::Terminated)] {
            // In this order: the first signal finds `asked` false and sets it, the second finds it true and exits.
            flag::register_conditional_shutdown(signal, exit as i32, stop.asked.clone())
                .and_then(|_| flag::register(signal, stop.asked.clone()))
                .and_then(|_| flag::register_usize(signal, stop.signal.clone(), signal as usize))
                .map_err(|err| Error::new("internal", format!("signal {signal} cannot be taken: {err}")))?;
        }
        Ok(stop)
    }

    /// True once the run should stop after its step.
    pub fn asked(&self) -> &AtomicBool {
        &self.asked
    }

    /// 130 or 143 if a signal came, else 0.
    pub fn exit_code(&self) -> ExitCode {
        let exit = match self.signal.load(Ordering::SeqCst) as i32 {
            SIGINT => Exit::Interrupted as u8,
            SIGTERM => Exit::Terminated as u8,
            _ => 0,
        };
        ExitCode::from(exit)
    }
}
