//! A survey before a run: its ranks meet as in a run, measure what is between their hosts, and exchange what each knows
//! of its own. Owns the measuring; `plimsoll doctor --ranks` decides what is a problem.
//!
//! Facts about the process are in `facts.rs`, the network in `network.rs`, transfers between cards in `cards.rs`, the
//! run directory in `directory.rs`. A survey leaves nothing on the hosts.

mod cards;
mod directory;
mod facts;
mod network;

pub use cards::{CardLink, CardPaths};
pub use directory::Directory;
pub use facts::{Limits, SharedMemory};
pub use network::{Network, Read};

use crate::errors::lost;
use crate::group::Group;
use crate::interface::Interface;
use crate::rendezvous::{Meeting, Wires};
use crate::window::abort;
use plimsoll_base::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// All have met and open no model: hosts that do not connect by then never will.
const OPEN_MAX: Duration = Duration::from_secs(20);
/// A survey ends after this time, whatever it waits for.
const SURVEY_MAX: Duration = Duration::from_secs(240);

/// Holds what a rank knows of its process and host, and what it measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    pub rank: u32,
    /// The number of its host: hosts count from 0 in the order of their first ranks.
    pub host: u32,
    pub host_name: String,
    pub pid: u32,
    /// Its address towards another host; `None` if all are on one.
    pub address: Option<IpAddr>,
    pub interface: Interface,
    pub limits: Limits,
    pub shared_memory: SharedMemory,
    pub network: Network,
    pub directory: Directory,
    /// If all ranks have cards, on several hosts.
    pub cards: Option<CardPaths>,
    /// Facts that must be equal on all ranks, by name.
    pub alike: BTreeMap<String, String>,
}

/// Measures with all ranks of `met` and returns the facts of each, by rank. `folder`: where the run would write.
/// `alike`: what must be equal on all ranks. `card`: the rank's card, if the run would exchange between cards.
///
/// Errors: `ranks-unreachable`, `rank-lost`, `ranks-window`, `host-allocation-failed`, `thread-not-started`.
pub fn survey(
    met: &Meeting,
    folder: &Path,
    alike: BTreeMap<String, String>,
    card: Option<Box<dyn CardLink>>,
) -> Result<Vec<Facts>> {
    let window = met.place.window.clone();
    let (done, over) = channel::<()>();
    // Ends waits for a rank that vanished.
    let watch = std::thread::Builder::new().name("survey".into()).spawn(move || {
        if over.recv_timeout(SURVEY_MAX) == Err(RecvTimeoutError::Timeout) {
            abort(&window);
        }
    });
    let watch = watch.map_err(|err| {
        Error::new("thread-not-started", format!("the thread that ends a survey: {err}"))
            .hint("check the limits on threads: ulimit -u")
    })?;
    let listener = met.listener().map_err(|err| lost(format!("its listener: {err}")))?;
    let group = Group::open_within(&met.place, listener, OPEN_MAX)?;
    let found = all_of(met, &group, folder, (alike, card)).inspect_err(|_| group.fail());
    drop(done);
    let _ = watch.join();
    found
}

fn all_of(
    met: &Meeting,
    group: &Group,
    folder: &Path,
    (alike, card): (BTreeMap<String, String>, Option<Box<dyn CardLink>>),
) -> Result<Vec<Facts>> {
    let own = &met.members[met.place.rank as usize];
    let other = met.members.iter().find(|member| member.site != own.site).and_then(|member| member.address);
    let facts = Facts {
        rank: own.rank,
        host: own.site,
        host_name: own.host.clone(),
        pid: own.pid,
        address: met.place.away.as_ref().and_then(|_| own_ip(met)),
        // Rank 0 comes first, so that all hosts but its own look towards it.
        interface: Interface::towards(other.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip())),
        limits: Limits::of_this_process(),
        shared_memory: SharedMemory::of_this_host(),
        network: network::measure(group, &met.place)?,
        cards: cards::measure(group, &met.place, card)?,
        directory: directory::try_it(group, folder)?,
        alike,
    };
    let text = serde_json::to_vec(&facts).map_err(|err| lost(format!("what it knows: {err}")))?;
    let all = group.all_gather(&text)?;
    let read = |text: &Vec<u8>| {
        serde_json::from_slice(text).map_err(|err| lost(format!("another rank sent no facts: {err}")))
    };
    all.iter().map(read).collect()
}

/// Returns this host's address on its connection to another host.
fn own_ip(met: &Meeting) -> Option<IpAddr> {
    let own = &met.members[met.place.rank as usize];
    let wire = match &met.wires {
        Wires::Joined(wire) => wire,
        // In order of rank from 1.
        Wires::Hub(wires) => {
            let other = met.members.iter().position(|member| member.site != own.site)?;
            wires.get(other.checked_sub(1)?)?
        }
    };
    wire.local_addr().map(|address| address.ip().to_canonical())
}
