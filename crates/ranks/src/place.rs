//! What a trainer knows of the other ranks: its number, how many they are, and the memory that all of them share.

use plimsoll_base::{Error, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// `RANK/RANKS`; empty or absent in a run of one rank.
const RANK: &str = "PLIMSOLL_RANK";
/// Path of the window.
const WINDOW: &str = "PLIMSOLL_WINDOW";

/// The place of a trainer among the ranks of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub rank: u32,
    pub ranks: u32,
    /// A file in memory, of one page until a trainer makes it larger: `/proc/PID/fd/N` of rank 0's supervisor. Its first four
    /// bytes are a `u32` that is not 0 once a supervisor wants all trainers to end.
    pub window: PathBuf,
}

impl Place {
    /// Reads what this trainer's supervisor wrote; `None` in a run of one rank.
    ///
    /// Errors: `ranks-environment` for values that no supervisor writes.
    pub fn of_environment() -> Result<Option<Place>> {
        Place::of(&|name| std::env::var(name).ok())
    }

    /// True once the supervisors have decided that the run is over: what this trainer does is of no use any more.
    pub fn is_over(&self) -> bool {
        let mut flag = [0; 4];
        // Without rank 0's supervisor there is no window, and no run.
        let read = File::open(&self.window).and_then(|file| file.read_exact_at(&mut flag, 0));
        read.is_err() || flag != [0; 4]
    }

    pub fn of(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Place>> {
        let Some(text) = get(RANK).filter(|text| !text.is_empty()) else { return Ok(None) };
        let parsed = text
            .split_once('/')
            .and_then(|(rank, ranks)| Some((rank.parse::<u32>().ok()?, ranks.parse::<u32>().ok()?)));
        match (parsed, get(WINDOW).filter(|path| !path.is_empty())) {
            (Some((rank, ranks)), Some(window)) if rank < ranks => {
                Ok(Some(Place { rank, ranks, window: window.into() }))
            }
            (_, window) => {
                let message = format!("{RANK} = {text:?}, {WINDOW} = {:?}", window.unwrap_or_default());
                Err(Error::usage("ranks-environment", message)
                    .hint(format!("unset {RANK}: supervisors set it for their trainers")))
            }
        }
    }

    /// Returns the variables by which a supervisor tells its trainer its place; empty values for a run of one rank, so that
    /// a run within a run does not take its parent's.
    pub fn variables(place: Option<&Place>) -> Vec<(String, String)> {
        let (rank, window) = match place {
            Some(Place { rank, ranks, window }) => (format!("{rank}/{ranks}"), window.display().to_string()),
            None => (String::new(), String::new()),
        };
        vec![(RANK.into(), rank), (WINDOW.into(), window)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let place = Place { rank: 2, ranks: 4, window: "/proc/7/fd/5".into() };
        let read = |written: Vec<(String, String)>| {
            Place::of(&|name| Some(written.iter().find(|(key, _)| key == name)?.1.clone()))
        };
        assert_eq!(read(Place::variables(Some(&place))), Ok(Some(place)));
        assert_eq!(read(Place::variables(None)), Ok(None));
        assert_eq!(read(Vec::new()), Ok(None));
        for (rank, window) in [("4/4", "/x"), ("1", "/x"), ("1/4", ""), ("a/4", "/x")] {
            let written =
                vec![(RANK.to_string(), rank.to_string()), (WINDOW.to_string(), window.to_string())];
            assert_eq!(read(written).expect_err(rank).slug, "ranks-environment");
        }
    }
}
