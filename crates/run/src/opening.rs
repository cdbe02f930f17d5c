//! Opening a run: its origin, its directory, and the checkpoint that it resumes from.

use crate::ending::{Summary, run_dir_path};
use crate::events::{Event, Observer};
use crate::resume::{self, Earlier, Fingerprint, Good, Origin, Start};
use crate::run_dir::RunDir;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_config::{Loaded, RunFile};
use plimsoll_memory::host::free_disk;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A run before its plan; nothing is written yet.
pub struct Opening {
    pub path: PathBuf,
    earlier: Option<Box<Earlier>>,
    overwrite: bool,
    notes: Vec<String>,
}

/// A run whose directory is locked by this process.
pub struct Opened {
    pub dir: RunDir,
    /// Checkpoint to resume from; `None` starts at step 0.
    pub checkpoint: Option<Good>,
    /// Messages for the user and the log.
    pub notes: Vec<String>,
}

/// The state of a run file and its directory.
pub enum Origins {
    /// A run to start or resume, with its run file: the given one, or an earlier process's with allowed changes.
    Open(Box<RunFile>, Box<Opening>),
    /// All steps are done; the content of `summary.json`.
    Finished(Summary),
}

/// Finds what a run resumes from, and checks the directory of a new one before any work is done.
///
/// Errors: those of `resume::origin` and of `RunDir::check`.
pub fn open(loaded: &Loaded, start: Start, observer: &mut dyn Observer) -> Result<Origins> {
    let path = run_dir_path(loaded);
    let overwrite = matches!(start, Start::New { overwrite: true });
    let mut notes = Vec::new();
    let origin = resume::origin(loaded, start, &path, &mut note(observer, &mut notes))?;
    let (run, earlier) = match origin {
        Origin::Finished(summary) => return Ok(Origins::Finished(summary)),
        Origin::New => {
            RunDir::check(&path, overwrite)?;
            (loaded.run.clone(), None)
        }
        Origin::Earlier(earlier) => (earlier.run.clone(), Some(earlier)),
    };
    Ok(Origins::Open(Box::new(run), Box::new(Opening { path, earlier, overwrite, notes })))
}

fn note<'x>(observer: &'x mut dyn Observer, notes: &'x mut Vec<String>) -> impl FnMut(String) + 'x {
    |text: String| {
        observer.on_event(&Event::Note { text: text.clone() });
        notes.push(text);
    }
}

impl Opening {
    /// Returns the checkpoint that the run resumes from, if there is one.
    pub fn checkpoint(&self) -> Option<&Good> {
        self.earlier.as_ref()?.checkpoint.as_ref()
    }

    /// Returns true if an earlier process's episodes and cuts are discarded.
    pub fn replans(&self) -> bool {
        self.earlier.as_ref().is_some_and(|earlier| earlier.replan)
    }

    /// Shows a line now, and adds it to the log once there is one.
    pub fn say(&mut self, observer: &mut dyn Observer, text: String) {
        note(observer, &mut self.notes)(text);
    }

    /// Makes the directory of a new run, or keeps an earlier process's. Its disk must have room for a checkpoint.
    ///
    /// Errors: those of `RunDir::create`; `disk-full`.
    pub fn directory(&mut self, run_file: &str, plan: &Value, checkpoint: Bytes) -> Result<Directory> {
        let (dir, again) = match self.earlier.take().map(|earlier| *earlier) {
            None => (RunDir::create(&self.path, run_file, plan, self.overwrite)?, None),
            Some(Earlier { dir, checkpoint, replan, .. }) => (dir, Some((checkpoint, replan))),
        };
        check_space(checkpoint, dir.path()).inspect_err(|_| dir.discard())?;
        Ok(Directory { dir, again })
    }
}

/// The directory of a run whose start is not settled yet.
pub struct Directory {
    pub dir: RunDir,
    /// The earlier process's checkpoint, and whether to plan again.
    again: Option<(Option<Good>, bool)>,
}

impl Directory {
    /// Turns an earlier process's directory into this run's. A refusal leaves it unchanged.
    ///
    /// Errors: `resume-differs`; those of the directory.
    pub fn take_up(
        self,
        opening: Opening,
        run_file: &str,
        plan: &Value,
        fingerprint: &Fingerprint,
        observer: &mut dyn Observer,
    ) -> Result<Opened> {
        let (mut dir, mut notes) = (self.dir, opening.notes);
        let Some((checkpoint, replan)) = self.again else {
            return Ok(Opened { dir, checkpoint: None, notes });
        };
        if let Some(good) = &checkpoint {
            fingerprint.check(&good.state, replan, &mut note(observer, &mut notes))?;
        }
        let events_bytes = checkpoint.as_ref().map_or(0, |good| good.state.events_bytes);
        dir.go_on(run_file, plan, events_bytes)?;
        Ok(Opened { dir, checkpoint, notes })
    }
}

/// Checks that the disk of `dir` has `needed` bytes free for a checkpoint.
///
/// Errors: `disk-full`.
pub fn check_space(needed: Bytes, dir: &Path) -> Result<()> {
    match free_disk(dir) {
        Some(free) if free < needed => {
            let message = format!("{}: a checkpoint needs {needed}, {free} are free", dir.display());
            Err(Error::new("disk-full", message).hint("free some space, or set run.dir to another disk"))
        }
        _ => Ok(()),
    }
}
