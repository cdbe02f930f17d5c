//! How a run opens: what it goes on from, its directory, and the checkpoint that it takes up.

use crate::ending::{Summary, run_dir_path};
use crate::events::{Event, Observer};
use crate::resume::{self, Earlier, Fingerprint, Good, Origin, Start};
use crate::run_dir::RunDir;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_config::{Loaded, RunFile};
use plimsoll_memory::host::free_disk;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A run before its plan: nothing is written yet.
pub struct Opening {
    /// The run directory.
    pub path: PathBuf,
    earlier: Option<Earlier>,
    notes: Vec<String>,
}

/// A run whose directory is held.
pub struct Opened {
    /// The directory.
    pub dir: RunDir,
    /// Where to go on from; none starts at step 0.
    pub checkpoint: Option<Good>,
    /// What the user should know, for the log.
    pub notes: Vec<String>,
}

/// What a run file and a directory come to.
pub enum Origins {
    /// A run to be made or continued, and its run file: the one that was given, or what an earlier process resolved with the
    /// changes that are allowed.
    Open(Box<RunFile>, Opening),
    /// All steps are done: `summary.json`.
    Finished(Summary),
}

/// Finds what a run goes on from.
///
/// Errors: those of `resume::origin`.
pub fn open(loaded: &Loaded, start: Start, observer: &mut dyn Observer) -> Result<Origins> {
    let path = run_dir_path(loaded);
    let mut notes = Vec::new();
    let origin = resume::origin(loaded, start, &path, &mut note(observer, &mut notes))?;
    let (run, earlier) = match origin {
        Origin::Finished(summary) => return Ok(Origins::Finished(summary)),
        Origin::New => (loaded.run.clone(), None),
        Origin::Earlier(earlier) => (earlier.run.clone(), Some(*earlier)),
    };
    Ok(Origins::Open(Box::new(run), Opening { path, earlier, notes }))
}

fn note<'x>(observer: &'x mut dyn Observer, notes: &'x mut Vec<String>) -> impl FnMut(String) + 'x {
    |text: String| {
        observer.on_event(&Event::Note { text: text.clone() });
        notes.push(text);
    }
}

impl Opening {
    /// Returns the checkpoint that the run goes on from, if there is one.
    pub fn checkpoint(&self) -> Option<&Good> {
        self.earlier.as_ref()?.checkpoint.as_ref()
    }

    /// True if an earlier process's episodes and cuts are given up.
    pub fn replans(&self) -> bool {
        self.earlier.as_ref().is_some_and(|earlier| earlier.replan)
    }

    /// Tells the user something now, and the log once the run has one.
    pub fn say(&mut self, observer: &mut dyn Observer, text: String) {
        note(observer, &mut self.notes)(text);
    }

    /// Makes the directory of a new run, or keeps that of an earlier process. It must have room for a checkpoint.
    ///
    /// Errors: those of `RunDir::create`; `disk-full`.
    pub fn directory(&mut self, run_file: &str, plan: &Value, checkpoint: Bytes) -> Result<Directory> {
        let (dir, again) = match self.earlier.take() {
            None => (RunDir::create(&self.path, run_file, plan)?, None),
            Some(Earlier { dir, checkpoint, replan, .. }) => (dir, Some((checkpoint, replan))),
        };
        check_space(checkpoint, dir.path()).inspect_err(|_| dir.discard())?;
        Ok(Directory { dir, again })
    }
}

/// The directory of a run that is not yet told what it goes on from.
pub struct Directory {
    /// The directory.
    pub dir: RunDir,
    /// Of an earlier process: its checkpoint, and whether to plan again.
    again: Option<(Option<Good>, bool)>,
}

impl Directory {
    /// Makes an earlier process's directory that of this run. A refusal leaves it as it was.
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

/// Requires that the disk of `dir` holds a checkpoint of `needed` bytes.
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
