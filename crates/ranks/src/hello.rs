//! Holds what a rank says about itself when it joins, and what rank 0 checks so that no run begins on processes that
//! differ.

use crate::environment::Launch;
use crate::interface::Interface;
use plimsoll_base::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Bytes of a compared value; longer ones are compared by their beginning and length.
const VALUE_BYTES_MAX: usize = 256;
/// Values that are compared at most.
const VALUES_MAX: usize = 256;
/// Bytes of all names and values: with the rest of a hello they fit in a frame.
const ALIKE_BYTES_MAX: usize = 48 << 10;

/// Clocks further apart get a warning. Reading a hello may take a second.
const CLOCK_SECONDS_MAX: f64 = 2.0;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub rank: u32,
    pub ranks: u32,
    /// Ranks on its host, as its launcher counts them.
    pub local_ranks: u32,
    pub host: String,
    pub pid: u32,
    /// Identifies a host by boot, and PID and network namespaces. Its ranks share /proc and memory.
    pub site: String,
    /// Processors that this process may use, as `0-3,8`.
    pub cpus: String,
    /// UUID of the card; `None` on CPUs.
    pub card: Option<String>,
    /// The window that its supervisor made.
    pub window: PathBuf,
    /// Where its trainer listens for other hosts, if its launcher counts several.
    pub address: Option<SocketAddr>,
    /// The interface by which it reaches rank 0, and its wall clock at the hello, in microseconds.
    #[serde(default)]
    pub interface: Interface,
    #[serde(default)]
    pub clock_micros: u64,
    /// Facts that must be equal on all ranks, by name: build, machine type, driver, keys of the run file.
    pub alike: BTreeMap<String, String>,
}

/// A rank as all others know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    pub rank: u32,
    pub host: String,
    /// The number of its host: hosts count from 0 in the order of their first ranks.
    pub site: u32,
    /// Where its trainer listens for other hosts.
    pub address: Option<SocketAddr>,
    /// Process id of its supervisor.
    pub pid: u32,
    pub cpus: String,
}

/// Name in `alike` of a card's share: ranks that set it may share a card.
pub const OF_A_CARD: &str = "run file: memory.device";

impl Hello {
    /// Describes this process. `alike`: what must be equal on all ranks.
    pub fn of_this_process(
        launch: &Launch,
        card: Option<String>,
        alike: impl IntoIterator<Item = (String, String)>,
    ) -> Hello {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_string();
        let status = read("/proc/self/status");
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let link = |path: &str| fs::read_link(path).unwrap_or_default().display().to_string();
        let boot = read("/proc/sys/kernel/random/boot_id");
        let site = format!("{boot} {} {}", link("/proc/self/ns/pid"), link("/proc/self/ns/net"));
        Hello {
            rank: launch.rank,
            ranks: launch.ranks,
            local_ranks: launch.local_ranks,
            host: short(&read("/proc/sys/kernel/hostname")),
            pid: std::process::id(),
            site: short(&site),
            cpus: short(cpus.unwrap_or_default().trim()),
            card,
            window: PathBuf::new(),
            address: None,
            interface: Interface::default(),
            clock_micros: 0,
            alike: bounded(alike.into_iter()),
        }
    }

    /// Returns the part that other ranks learn. `site`: the number of its host.
    pub(crate) fn member(&self, site: u32) -> Member {
        let Hello { rank, host, pid, cpus, address, .. } = self;
        let (host, cpus) = (host.clone(), cpus.clone());
        Member { rank: *rank, host, site, address: *address, pid: *pid, cpus }
    }

    /// Returns `rank 2 (host a, pid 1234)`.
    pub(crate) fn words(&self) -> String {
        self.member(0).words()
    }

    /// Returns true if its launcher counts all ranks on one host.
    pub(crate) fn is_of_one_host(&self) -> bool {
        self.local_ranks == self.ranks
    }
}

/// Returns all ranks, each with the window of its host, which its first rank made. `all`: in order of rank.
pub(crate) fn members_of(all: &[&Hello]) -> Vec<(Member, PathBuf)> {
    let mut sites: Vec<&Hello> = Vec::new();
    let mut members = Vec::with_capacity(all.len());
    for &hello in all {
        let known = sites.iter().position(|first| first.site == hello.site);
        let site = known.unwrap_or_else(|| {
            sites.push(hello);
            sites.len() - 1
        });
        members.push((hello.member(site as u32), sites[site].window.clone()));
    }
    members
}

impl Member {
    /// Returns `rank 2 (host a, pid 1234)`.
    pub fn words(&self) -> String {
        format!("rank {} (host {}, pid {})", self.rank, self.host, self.pid)
    }
}

fn short(text: &str) -> String {
    match text.char_indices().map(|(at, _)| at).find(|&at| at >= VALUE_BYTES_MAX) {
        Some(at) => format!("{}… of {} bytes", &text[..at], text.len()),
        None => text.into(),
    }
}

fn bounded(alike: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let mut bytes = 0;
    let short = alike.map(|(name, value)| (short(&name), short(&value)));
    let fits = short.take(VALUES_MAX).take_while(|(name, value)| {
        let json = |text: &String| serde_json::to_string(text).map_or(0, |json| json.len());
        bytes += json(name) + json(value) + 2;
        bytes <= ALIKE_BYTES_MAX
    });
    fits.collect()
}

/// Checks that a rank belongs to those that joined, of which rank 0 is the first.
///
/// Errors: `ranks-environment`, `ranks-hosts`, `card-shared`, `ranks-differ`.
pub(crate) fn admit(joined: &[&Hello], new: &Hello) -> Result<()> {
    let (first, who) = (joined[0], new.words());
    if new.ranks != first.ranks || new.rank >= first.ranks {
        let message = format!("{who} is one of {} ranks, and rank 0 of {}", new.ranks, first.ranks);
        return Err(Error::usage("ranks-environment", message).hint(
            "give all ranks the same number of ranks; a process of an earlier start may still be there",
        ));
    }
    if let Some(twin) = joined.iter().find(|other| other.rank == new.rank) {
        let message = format!("two processes are rank {}: pid {} and pid {}", new.rank, twin.pid, new.pid);
        return Err(Error::usage("ranks-environment", message)
            .fact(format!("hosts {} and {}", twin.host, new.host))
            .hint("give each process its own rank; a process of an earlier start may still be there"));
    }
    if new.site != first.site && (new.address.is_none() || first.address.is_none()) {
        let message =
            format!("{who} is on another host or in another container than rank 0 (host {})", first.host);
        return Err(Error::usage("ranks-hosts", format!("{message}, and its launcher counts all ranks on one"))
            .hint("start all ranks of a host in one container")
            .hint("start several hosts with --hosts H --host-rank h --join ADDRESS on each, or with a launcher that counts them"));
    }
    let of_card = new.alike.get(OF_A_CARD);
    let is_divided = of_card.is_some_and(|value| !value.contains("auto"));
    let shares = |other: &&&Hello| !is_divided && other.card.is_some() && other.card == new.card;
    if let Some(other) = joined.iter().find(shares) {
        let card = new.card.as_deref().unwrap_or_default();
        let message = format!("rank {} and rank {} were given one card, {card}", other.rank, new.rank);
        return Err(Error::usage("card-shared", message)
            .hint("give each rank its own card: unset CUDA_VISIBLE_DEVICES, or let the launcher set it for each rank")
            .hint("or, to try several ranks on one card, say how much of it each has: --set memory.device=20GiB"));
    }
    match first_difference(&first.alike, &new.alike) {
        Some((name, [here, there])) => Err(differs(first, new, name, here, there)),
        None => Ok(()),
    }
}

/// Returns warnings about a rank of another host: its clock, and its packet size against that of `interface`.
pub(crate) fn oddities(new: &Hello, interface: &Interface, now_micros: u64) -> Vec<String> {
    let (who, mut found) = (new.words(), Vec::new());
    let seconds = (new.clock_micros as f64 - now_micros as f64) * 1e-6;
    if new.clock_micros > 0 && seconds.abs() > CLOCK_SECONDS_MAX {
        let way = if seconds > 0.0 { "ahead of" } else { "late against" };
        let seconds = seconds.abs();
        found.push(format!(
            "warning[ranks-clocks]: the clock of {who} is {seconds:.0} s {way} rank 0's: times in their logs do not compare"
        ));
    }
    if let (Some(there), Some(here)) = (new.interface.mtu_bytes, interface.mtu_bytes)
        && there != here
    {
        let name = |of: &Interface| of.name.clone().unwrap_or_default();
        found.push(format!(
            "warning[ranks-mtu]: {who} sends packets of {there} bytes on {}, and rank 0 of {here} on {}: large ones may be lost",
            name(&new.interface),
            name(interface)
        ));
    }
    found
}

/// Returns the first name whose values differ.
fn first_difference<'a>(
    one: &'a BTreeMap<String, String>,
    other: &'a BTreeMap<String, String>,
) -> Option<(&'a str, [Option<&'a str>; 2])> {
    let values =
        |name: &'a String| (name.as_str(), [one, other].map(|all| all.get(name).map(String::as_str)));
    one.keys().chain(other.keys()).map(values).find(|(_, [here, there])| here != there)
}

fn differs(first: &Hello, new: &Hello, name: &str, here: Option<&str>, there: Option<&str>) -> Error {
    let shown = |value: Option<&str>| value.unwrap_or("nothing").to_string();
    let message =
        format!("{name} is {} on rank {} and {} on rank {}", shown(here), first.rank, shown(there), new.rank);
    let hint = "start all ranks with the same program, run file, --set and PLIMSOLL__ variables";
    Error::usage("ranks-differ", message).fact(format!("{}, {}", first.words(), new.words())).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(rank: u32) -> Hello {
        Hello {
            rank,
            ranks: 4,
            local_ranks: 4,
            host: "a".into(),
            pid: 100 + rank,
            site: "b".into(),
            cpus: "0-3".into(),
            card: Some(format!("GPU-{rank}")),
            window: format!("/proc/{rank}/fd/3").into(),
            address: None,
            interface: Interface::default(),
            clock_micros: 0,
            alike: BTreeMap::from([("build".into(), "1".into()), ("run file: seed".into(), "7".into())]),
        }
    }

    fn with(name: &str, value: &str) -> Hello {
        let mut hello = hello(2);
        hello.alike.insert(name.into(), value.into());
        hello
    }

    #[test]
    fn a_clock_and_packets_that_differ_are_named() {
        let on = |name: &str, mtu: u32| Interface { name: Some(name.into()), mtu_bytes: Some(mtu) };
        let new = |clock_micros, interface| Hello { clock_micros, interface, ..hello(2) };
        let found = |new: &Hello| oddities(new, &on("eth0", 1500), 100_000_000).join("; ");
        for usual in [new(0, on("eth1", 1500)), new(101_500_000, on("eth0", 1500)), hello(2)] {
            assert_eq!(found(&usual), "");
        }
        let late = found(&new(40_000_000, on("eth0", 1500)));
        assert!(
            late.starts_with("warning[ranks-clocks]: the clock of rank 2 (") && late.contains("60 s late"),
            "{late}"
        );
        let large = found(&new(100_000_000, on("ib0", 9000)));
        assert!(large.contains("packets of 9000 bytes on ib0, and rank 0 of 1500 on eth0"), "{large}");
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let joined = [hello(0), hello(1)];
        let joined: Vec<&Hello> = joined.iter().collect();
        assert_eq!(admit(&joined, &hello(2)), Ok(()));
        let without = Hello { alike: BTreeMap::from([("build".into(), "1".into())]), ..hello(2) };
        for (new, slug, contains) in [
            (Hello { ranks: 5, ..hello(2) }, "ranks-environment", "is one of 5 ranks, and rank 0 of 4"),
            (hello(4), "ranks-environment", "rank 4"),
            (
                Hello { rank: 1, ..hello(2) },
                "ranks-environment",
                "two processes are rank 1: pid 101 and pid 102",
            ),
            (
                Hello { site: "c".into(), ..hello(2) },
                "ranks-hosts",
                "rank 2 (host a, pid 102) is on another host or in another container than rank 0 (host a), and",
            ),
            (
                Hello { card: Some("GPU-1".into()), ..hello(2) },
                "card-shared",
                "rank 1 and rank 2 were given one card, GPU-1",
            ),
            (with("build", "2"), "ranks-differ", "build is 1 on rank 0 and 2 on rank 2"),
            (with("run file: seed", "8"), "ranks-differ", "run file: seed is 7 on rank 0 and 8 on rank 2"),
            (
                with("run file: data.shuffle", "true"),
                "ranks-differ",
                "is nothing on rank 0 and true on rank 2",
            ),
            (without, "ranks-differ", "run file: seed is 7 on rank 0 and nothing on rank 2"),
        ] {
            let error = admit(&joined, &new).expect_err(contains);
            assert_eq!(error.slug, slug, "{error}");
            assert!(error.message.contains(contains) && !error.hints.is_empty(), "{error}");
        }
        // CPU ranks have no card, and may be bound to different processors.
        let free = Hello { card: None, cpus: "4".into(), ..hello(2) };
        let first = Hello { card: None, ..hello(0) };
        assert_eq!(admit(&[&first], &free), Ok(()));
        // Of several hosts all listen.
        let far = |rank: u32| Hello { address: Some(([10, 0, 0, 1], 7).into()), ..hello(rank) };
        assert_eq!(admit(&[&far(0)], &Hello { site: "c".into(), ..far(2) }), Ok(()));
    }

    #[test]
    fn hosts_count_in_the_order_of_their_first_ranks_whose_windows_they_use() {
        let on = |rank: u32, site: &str| Hello { site: site.into(), ..hello(rank) };
        let all = [on(0, "x"), on(1, "y"), on(2, "x"), on(3, "z")];
        let found = members_of(&all.iter().collect::<Vec<_>>());
        let found: Vec<(u32, &str)> =
            found.iter().map(|(member, window)| (member.site, window.to_str().expect("plain"))).collect();
        assert_eq!(
            found,
            [(0, "/proc/0/fd/3"), (1, "/proc/1/fd/3"), (0, "/proc/0/fd/3"), (2, "/proc/3/fd/3")]
        );
    }

    #[test]
    fn a_hello_fits_into_a_frame_whatever_the_run_file_holds() {
        let long = (0..1000).map(|n| (format!("run file: k{n}"), "\"\\".repeat(4000)));
        let launch = Launch {
            rank: 0,
            ranks: 2,
            local_rank: 0,
            local_ranks: 2,
            address: "127.0.0.1".into(),
            port: 1,
            id: String::new(),
            launcher: crate::Launcher::Plimsoll(1),
        };
        let hello = Hello::of_this_process(&launch, None, long);
        let bytes = serde_json::to_vec(&hello).expect("plain data").len();
        assert!(bytes <= crate::wire::FRAME_BYTES_MAX, "{bytes}");
        assert!(!hello.site.is_empty() && !hello.cpus.is_empty() && !hello.host.is_empty(), "{hello:?}");
        let namespace = std::fs::read_link("/proc/self/ns/pid").expect("/proc").display().to_string();
        assert!(hello.site.contains(&namespace), "{}", hello.site);
    }
}
