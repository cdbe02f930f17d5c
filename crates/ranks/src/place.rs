//! A trainer's place: its rank, their number and hosts, the memory its host shares, and how it reaches other hosts.

use crate::window::{Access, open_window};
use plimsoll_base::{Error, Result};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// `RANK/RANKS`; empty or absent in a run of one rank.
const RANK: &str = "PLIMSOLL_RANK";
/// Path of the window in memory that the ranks of a host share.
const WINDOW: &str = "PLIMSOLL_WINDOW";
/// The host of each rank, by rank, as `0 0 1 1`; empty if all are on one.
const HOSTS: &str = "PLIMSOLL_RANK_HOSTS";
/// `NUMBER PATH`: the descriptor at which this trainer listens for other hosts, and the path of the address book.
const LETTER: &str = "PLIMSOLL_RANK_LETTER";

/// The place of a trainer among the ranks of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub rank: u32,
    pub ranks: u32,
    /// The host of each rank, by rank; hosts count from 0 in the order of their first ranks.
    pub hosts: Vec<u32>,
    /// A file in memory, one page until a trainer enlarges it: `/proc/PID/fd/N` of the supervisor of this host's first
    /// rank. Its first four bytes are a `u32`, not 0 once a supervisor wants all trainers to end.
    pub window: PathBuf,
    /// How it reaches trainers of other hosts, if there are any.
    pub away: Option<Away>,
}

/// Holds what a supervisor passes to its trainer, so that it finds those of other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// Descriptor of the socket at which this trainer listens; its supervisor opened it.
    pub listener: i32,
    /// A file in memory with the addresses of all trainers and the job's token; see `hosts::AddressBook`.
    pub book: PathBuf,
}

impl Place {
    /// Reads the variables that this trainer's supervisor set; `None` in a run of one rank.
    ///
    /// Errors: `ranks-environment` for values that no supervisor sets.
    pub fn of_environment() -> Result<Option<Place>> {
        Place::of(&|name| std::env::var(name).ok())
    }

    pub fn on_one_host(rank: u32, ranks: u32, window: PathBuf) -> Place {
        Place { rank, ranks, hosts: vec![0; ranks as usize], window, away: None }
    }

    /// Returns the ranks of this host, ascending.
    pub fn near(&self) -> Vec<usize> {
        let own = self.hosts[self.rank as usize];
        (0..self.hosts.len()).filter(|&rank| self.hosts[rank] == own).collect()
    }

    /// Returns the place within a part of the ranks, which count from 0 there, as their hosts do.
    pub(crate) fn within(&self, part: &Range<usize>) -> Place {
        let mut seen: Vec<u32> = Vec::new();
        let mut host = |of: &u32| {
            let at = seen.iter().position(|host| host == of).unwrap_or_else(|| {
                seen.push(*of);
                seen.len() - 1
            });
            at as u32
        };
        let hosts = self.hosts[part.clone()].iter().map(&mut host).collect();
        Place { rank: self.rank - part.start as u32, ranks: part.len() as u32, hosts, ..self.clone() }
    }

    /// Returns true if hosts count from 0 in the order of their first ranks.
    fn counts_hosts(&self) -> bool {
        let mut next = 0;
        self.hosts.iter().all(|&host| {
            let is_next = host <= next;
            next = next.max(host + 1);
            is_next
        })
    }

    /// Returns the first rank of each host, by host.
    pub(crate) fn firsts(&self) -> Vec<usize> {
        let hosts = self.hosts.iter().max().map_or(0, |last| *last as usize + 1);
        (0..hosts).filter_map(|host| self.hosts.iter().position(|of| *of as usize == host)).collect()
    }

    /// Returns true once the supervisors have decided that the run is over: the trainer's work is useless then.
    pub fn is_over(&self) -> bool {
        let mut flag = [0; 4];
        // Without the supervisor of the host's first rank there is no window, and no run.
        let file = open_window(&self.window, Access::Read);
        let read = file.and_then(|file| file.read_exact_at(&mut flag, 0));
        read.is_err() || flag != [0; 4]
    }

    pub fn of(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Place>> {
        let Some(text) = get(RANK).filter(|text| !text.is_empty()) else { return Ok(None) };
        let value = |name: &str| get(name).unwrap_or_default();
        let parsed = || -> Option<Place> {
            let (rank, ranks) = text.split_once('/')?;
            let (rank, ranks) = (rank.parse::<u32>().ok()?, ranks.parse::<u32>().ok()?);
            let window = Some(value(WINDOW)).filter(|path| !path.is_empty())?.into();
            let hosts = value(HOSTS);
            let place = if hosts.is_empty() {
                Place::on_one_host(rank, ranks, window)
            } else {
                let hosts = hosts.split(' ').map(|host| host.parse().ok()).collect::<Option<_>>()?;
                let (book, number) = (value(LETTER), |text: &str| text.parse().ok());
                let (listener, path) = book.split_once(' ')?;
                let away = Away { listener: number(listener)?, book: path.into() };
                Place { rank, ranks, hosts, window, away: Some(away) }
            };
            let is_whole = rank < ranks && place.hosts.len() == ranks as usize && place.counts_hosts();
            is_whole.then_some(place)
        };
        parsed().map(Some).ok_or_else(|| {
            let read = [WINDOW, HOSTS, LETTER].map(|name| format!(", {name} = {:?}", value(name)));
            Error::usage("ranks-environment", format!("{RANK} = {text:?}{}", read.concat()))
                .hint(format!("unset {RANK}: supervisors set it for their trainers"))
        })
    }

    /// Returns the variables that tell a trainer its place; empty ones for one rank, so that nested runs inherit none.
    pub fn variables(place: Option<&Place>) -> Vec<(String, String)> {
        let mut values = [const { String::new() }; 4];
        if let Some(Place { rank, ranks, hosts, window, away }) = place {
            values[0] = format!("{rank}/{ranks}");
            values[1] = window.display().to_string();
            if let Some(Away { listener, book }) = away {
                values[2] = hosts.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
                values[3] = format!("{listener} {}", book.display());
            }
        }
        [RANK, WINDOW, HOSTS, LETTER].map(String::from).into_iter().zip(values).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let one = Place::on_one_host(2, 4, "/proc/7/fd/5".into());
        let away = Some(Away { listener: 9, book: "/proc/7/fd/8".into() });
        let two = Place { hosts: vec![0, 1, 1, 0], away, ..one.clone() };
        let read = |written: Vec<(String, String)>| {
            Place::of(&|name| Some(written.iter().find(|(key, _)| key == name)?.1.clone()))
        };
        for place in [&one, &two] {
            assert_eq!(read(Place::variables(Some(place))).as_ref(), Ok(&Some(place.clone())));
        }
        assert_eq!((one.near(), two.near()), (vec![0, 1, 2, 3], vec![1, 2]));
        assert_eq!((one.firsts(), two.firsts()), (vec![0], vec![0, 1]));
        let part = Place { rank: 3, ..two.clone() }.within(&(1..4));
        assert_eq!((part.rank, part.ranks, part.hosts), (2, 3, vec![0, 0, 1]));
        for hosts in [vec![0, 1], vec![0, 2, 1, 0], vec![1, 0, 0, 0]] {
            let wrong = Place { hosts, ..two.clone() };
            assert_eq!(read(Place::variables(Some(&wrong))).expect_err("no hosts").slug, "ranks-environment");
        }
        assert_eq!(read(Place::variables(None)), Ok(None));
        assert_eq!(read(Vec::new()), Ok(None));
        for (rank, window) in [("4/4", "/x"), ("1", "/x"), ("1/4", ""), ("a/4", "/x")] {
            let written =
                vec![(RANK.to_string(), rank.to_string()), (WINDOW.to_string(), window.to_string())];
            assert_eq!(read(written).expect_err(rank).slug, "ranks-environment");
        }
    }
}
