//! Out-of-memory scores of a run's own processes: which the kernel kills first. A user's reward has the user's rights,
//! so it may write them where no file rule confines it; a raise is undone within a second, and reported once.

use std::fs;

/// A process whose score is guarded.
#[derive(Debug)]
pub(crate) struct OomScore {
    pid: u32,
    path: String,
    /// The score as it was set; `None` if it cannot be read.
    points: Option<i32>,
    is_told: bool,
}

/// A score that another process raised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raise {
    pub pid: u32,
    pub from: i32,
    pub to: i32,
    /// True if the score was put back.
    pub is_undone: bool,
}

impl OomScore {
    pub(crate) fn of(pid: u32) -> OomScore {
        let path = format!("/proc/{pid}/oom_score_adj");
        OomScore { pid, points: read(&path), path, is_told: false }
    }

    /// Puts back a score that is higher than it was. Returns the first raise.
    pub(crate) fn look(&mut self) -> Option<Raise> {
        let (from, to) = (self.points?, read(&self.path)?);
        if to <= from {
            return None;
        }
        let is_undone = fs::write(&self.path, from.to_string()).is_ok();
        let is_new = !std::mem::replace(&mut self.is_told, true);
        is_new.then_some(Raise { pid: self.pid, from, to, is_undone })
    }
}

fn read(path: &str) -> Option<i32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_raises_a_score_is_undone_and_told_once() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let path = format!("/proc/{}/oom_score_adj", child.id());
        let from = read(&path).unwrap();
        let mut score = OomScore::of(child.id());
        assert_eq!(score.look(), None);
        for told in [true, false] {
            fs::write(&path, "1000").unwrap();
            let raise = Raise { pid: child.id(), from, to: 1000, is_undone: true };
            assert_eq!(score.look(), told.then_some(raise));
            assert_eq!(read(&path), Some(from));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(score.look(), None);
    }
}
