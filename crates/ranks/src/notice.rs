//! How the process that started the ranks of a host tells those that still look for the others that one has ended. A
//! rank that dies before it has joined is known to no other process, and the others would wait for it.
//!
//! A file in memory: the launcher writes one sentence, and ranks read it until all have met, and never after.

use crate::environment::Launcher;
use crate::errors::lost;
use crate::window::memory_file;
use plimsoll_base::{Error, Result};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// The path of the file, for ranks that `train --ranks` starts.
pub const NOTICE_VARIABLE: &str = "PLIMSOLL_NOTICE";
/// Longest sentence that is read.
const BYTES_MAX: u64 = 1024;

#[derive(Debug)]
pub(crate) struct Board {
    file: File,
    is_written: bool,
}

impl Board {
    /// Errors: `ranks-window`.
    pub(crate) fn new() -> Result<Board> {
        memory_file("plimsoll-notice", 0).map(|file| Board { file, is_written: false })
    }

    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Writes why a rank ended, the first only: others end because of it.
    pub(crate) fn write(&mut self, sentence: &str) {
        if !std::mem::replace(&mut self.is_written, true) {
            // Best effort: ranks that do not learn it are ended by signals, later.
            let _ = self.file.write_all(sentence.as_bytes());
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Notice {
    path: Option<PathBuf>,
}

impl Notice {
    /// Returns the notice of this process's launcher, from its environment; one of another launcher has none.
    pub fn of(launcher: Launcher) -> Notice {
        let Launcher::Plimsoll(pid) = launcher else { return Notice::default() };
        let path = std::env::var(NOTICE_VARIABLE).ok();
        Notice { path: path.filter(|path| path.starts_with(&format!("/proc/{pid}/fd/"))).map(PathBuf::from) }
    }

    #[cfg(test)]
    pub(crate) fn at(board: &Board) -> Notice {
        Notice { path: Some(board.path().into()) }
    }

    /// Errors: `rank-lost` if a rank of this host has ended.
    pub(crate) fn check(&self) -> Result<()> {
        let mut sentence = String::new();
        let opened = self.path.as_ref().and_then(|path| File::open(path).ok());
        let read = opened.map(|file| file.take(BYTES_MAX).read_to_string(&mut sentence));
        match read {
            Some(Ok(1..)) => Err(before_all_met(&sentence)),
            _ => Ok(()),
        }
    }
}

fn before_all_met(sentence: &str) -> Error {
    lost(format!("{sentence} before all ranks were there")).hint("look at its output: it says why it ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_wait_learn_of_the_first_that_ended() {
        let mut board = Board::new().expect("memory");
        let notice = Notice::at(&board);
        assert_eq!(notice.check(), Ok(()));
        for sentence in ["rank 1 was killed", "rank 0 ended"] {
            board.write(sentence);
            let error = notice.check().expect_err("one ended");
            assert_eq!((error.slug, error.exit), ("rank-lost", plimsoll_base::Exit::OtherRank));
            assert_eq!(error.message, "rank 1 was killed before all ranks were there");
        }
        // The launcher is gone: a signal ends its ranks.
        drop(board);
        assert_eq!(notice.check(), Ok(()));
        assert_eq!(Notice::of(Launcher::Torchrun).check(), Ok(()));
    }
}
