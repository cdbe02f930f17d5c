//! Holds what a supervisor passes to its trainer in memory, so that it finds the trainers of other hosts.

use crate::hello::Member;
use crate::place::Away;
use crate::token::Token;
use crate::window::memory_file;
use plimsoll_base::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Largest address book that a rank reads.
const BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AddressBook {
    /// Where each rank's trainer listens, and its name in words, by rank.
    pub(crate) ranks: Vec<(Option<SocketAddr>, String)>,
    token: String,
}

/// An address book that a supervisor keeps open for its trainer.
#[derive(Debug)]
pub(crate) struct Posted {
    file: File,
}

impl AddressBook {
    pub(crate) fn of(members: &[Member], token: &Token) -> AddressBook {
        let ranks = members.iter().map(|member| (member.address, member.words())).collect();
        AddressBook { ranks, token: token.to_hex() }
    }

    /// Returns the address book to a part of the ranks.
    pub(crate) fn to_part(&self, part: &Range<usize>) -> AddressBook {
        AddressBook { ranks: self.ranks[part.clone()].to_vec(), token: self.token.clone() }
    }

    /// Writes the address book where only processes of this user can read it.
    ///
    /// Errors: `ranks-window`.
    pub(crate) fn post(&self) -> Result<Posted> {
        let text = serde_json::to_vec(self).expect("plain data has a JSON form");
        let mut file = memory_file("plimsoll-letter", 0)?;
        file.write_all(&text).map_err(|err| unread(&err.to_string()))?;
        Ok(Posted { file })
    }

    /// Reads the address book of a supervisor.
    ///
    /// Errors: `ranks-window`.
    pub(crate) fn read(path: &Path) -> Result<AddressBook> {
        let mut text = Vec::new();
        let read = File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut text));
        read.map_err(|err| unread(&err.to_string()))?;
        serde_json::from_slice(&text).map_err(|err| unread(&err.to_string()))
    }

    /// Returns the job's token. Errors: `ranks-window`.
    pub(crate) fn token(&self) -> Result<Token> {
        Token::of_hex(&self.token).ok_or_else(|| unread("no token"))
    }
}

impl Posted {
    /// Returns what the trainer gets. `listener`: the descriptor at which it listens.
    pub(crate) fn away(&self, listener: i32) -> Away {
        Away { listener, book: self.path() }
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }
}

fn unread(why: &str) -> Error {
    Error::new("ranks-window", format!("what this rank reads of other hosts: {why}"))
        .hint("ranks read it from their supervisor through /proc, which must be mounted")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Side;

    #[test]
    fn a_trainer_reads_what_its_supervisor_wrote() {
        let members: Vec<Member> = (0..2)
            .map(|rank| Member {
                rank,
                host: "a".into(),
                site: rank,
                address: Some(([10, 0, 0, 1], 7000 + rank as u16).into()),
                pid: 100 + rank,
                cpus: "0".into(),
            })
            .collect();
        let token = Token::of_hex(&"07".repeat(32)).expect("32 bytes");
        let posted = AddressBook::of(&members, &token).post().expect("memory");
        let Away { listener, book } = posted.away(9);
        let read = AddressBook::read(&book).expect("it is there");
        assert_eq!((listener, read.ranks[1].0), (9, members[1].address));
        assert_eq!(read.ranks[0].1, "rank 0 (host a, pid 100)");
        let proof = token.proof(Side::Joiner, &[1; 32], &[2; 32]);
        assert!(read.token().expect("a token").is_proof(&proof, Side::Joiner, &[1; 32], &[2; 32]));
        drop(posted);
        assert_eq!(AddressBook::read(&book).expect_err("it is gone").slug, "ranks-window");
    }
}
