//! A live run of several ranks: its processes, and the current activity of a rank's trainer.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::super::process::{LIFE_SECONDS_MAX, Life, Training, children, newest_step, send};

/// A status page is one page.
const PAGE_BYTES: usize = 4096;
/// Time limit for reaching a phase: a run of some hundred steps is over by then.
const PHASE_TIME: Duration = Duration::from_secs(60);
const STATE_TIME: Duration = Duration::from_secs(2);

/// A run, and the rank to hit.
pub struct Scene<'a> {
    pub training: &'a Training,
    pub life: Life,
    pub rank: usize,
    /// Process ids by rank.
    pub supervisors: Vec<u32>,
}

impl<'a> Scene<'a> {
    /// Starts a run of `ranks` ranks with `flags`; if `has_saved`, waits for its first checkpoint.
    pub fn start(
        training: &'a Training,
        [rank, ranks]: [usize; 2],
        flags: &[&str],
        has_saved: bool,
    ) -> Result<Scene<'a>, String> {
        let number = ranks.to_string();
        let mut life = training.start(&[&["--ranks", &number], flags].concat())?;
        let is_there = |life: &Life| {
            let supervisors = children(life.pid());
            let mut trainers = supervisors.iter().map(|pid| children(*pid).len());
            supervisors.len() == ranks && trainers.all(|count| count == 1)
        };
        let begins = |life: &Life| {
            if has_saved { newest_step(&training.dir).is_some() } else { is_there(life) }
        };
        if !life.wait_until(LIFE_SECONDS_MAX, begins) {
            return Err(format!("it ended before it could be hit: {}", life.wait(LIFE_SECONDS_MAX)?.words()));
        }
        // Started in the order of ranks; each has one child that trains.
        let supervisors = children(life.pid());
        if supervisors.len() == ranks {
            Ok(Scene { training, life, rank, supervisors })
        } else {
            Err("the run is over".into())
        }
    }

    pub fn supervisor(&self) -> u32 {
        self.supervisors[self.rank]
    }

    pub fn trainer(&self) -> Result<u32, String> {
        children(self.supervisor()).first().copied().ok_or_else(|| "the run is over".into())
    }

    /// Returns all processes of the run except the one that the user started.
    pub fn everyone(&self) -> Vec<u32> {
        self.supervisors.iter().flat_map(|pid| [vec![*pid], children(*pid)].concat()).collect()
    }

    /// Stops the rank's trainer once its status page shows the phase; continues it if it had already left.
    pub fn stop_in(&mut self, phase: &str) -> Result<u32, String> {
        let page = Page::of(self.supervisor()).ok_or("the rank has no status page")?;
        let end = Instant::now() + PHASE_TIME;
        while Instant::now() < end {
            let trainer = self.trainer()?;
            if !page.is_in(phase) {
                continue;
            }
            send("STOP", trainer);
            let stopped = Instant::now() + STATE_TIME;
            while state(trainer) != Some('T') && Instant::now() < stopped {
                thread::yield_now();
            }
            if page.is_in(phase) && state(trainer) == Some('T') {
                return Ok(trainer);
            }
            send("CONT", trainer);
        }
        Err(format!("rank {} was not met in phase {phase}", self.rank))
    }
}

/// A trainer's status page, read as its supervisor reads it.
struct Page {
    file: File,
}

impl Page {
    fn of(supervisor: u32) -> Option<Page> {
        let folder = format!("/proc/{supervisor}/fd");
        let mut entries = fs::read_dir(folder).ok()?.flatten();
        let is_page = |path: &Path| {
            fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:plimsoll-status"))
        };
        let path = entries.find(|entry| is_page(&entry.path()))?.path();
        Some(Page { file: File::open(path).ok()? })
    }

    /// Returns true if the page shows `phase`; `start` includes a trainer that has written nothing.
    fn is_in(&self, phase: &str) -> bool {
        let mut page = [0; PAGE_BYTES];
        let length = self.file.read_at(&mut page, 0).unwrap_or(0);
        let text =
            String::from_utf8_lossy(page[..length].split(|byte| *byte == 0).next().unwrap_or_default());
        text.contains(&format!("\"phase\":\"{phase}\"")) || phase == "start" && text.is_empty()
    }
}

/// Returns the state of a process in /proc.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}
