//! Judges a survey of a run's hosts: the findings of `doctor --ranks`, and its table.

use plimsoll_base::Bytes;
use plimsoll_doctor::machine::{Check, State};
use plimsoll_ranks::{Facts, Read};
use std::collections::{BTreeMap, BTreeSet};

/// Needs of a run on each host.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Open files of one process.
    pub open_files: u64,
    /// Bytes in /dev/shm, if the run is known.
    pub shm: Option<Bytes>,
    /// Bytes of a checkpoint, if the run is known.
    pub checkpoint: Option<Bytes>,
    /// True if the run file asks for NCCL.
    pub nccl: bool,
}

impl Default for Needs {
    fn default() -> Needs {
        Needs { open_files: 1024, shm: None, checkpoint: None, nccl: false }
    }
}

/// Clocks further apart make the logs of two hosts misleading; nothing else depends on them.
const CLOCK_SECONDS_MAX: f64 = 1.0;
/// Threads and workers of a rank.
const PROCESSES_MIN: u64 = 512;
/// A checkpoint that takes longer is reported before the run.
const CHECKPOINT_SECONDS_MAX: f64 = 60.0;
/// A path slower than this fraction of the fastest keeps all ranks waiting.
const UNEVEN: f64 = 1.0 / 3.0;
const DIFFERENCES_MAX: usize = 4;
/// With more hosts only the slowest paths are shown.
const MATRIX_HOSTS_MAX: usize = 8;
const PATHS_SHOWN: usize = 8;

/// Judges the facts of all ranks.
pub fn checks(facts: &[Facts], needs: &Needs) -> Vec<Check> {
    let firsts = firsts(facts);
    let all = [
        differences(facts),
        clocks(&firsts),
        packets(&firsts),
        open_files(facts, needs),
        processes(facts),
        shared_memory(&firsts, needs),
        shared_directory(&firsts),
        directory_speed(&facts[0], needs),
        paths(&firsts),
    ];
    all.into_iter().chain(cards(&firsts, needs)).collect()
}

/// Returns the first rank of each host, by host.
fn firsts(facts: &[Facts]) -> Vec<&Facts> {
    let mut seen = BTreeSet::new();
    facts.iter().filter(|one| seen.insert(one.host)).collect()
}

/// Returns `host 1 (b)`.
fn host(facts: &Facts) -> String {
    format!("host {} ({})", facts.host, facts.host_name)
}

/// Returns a value of a rank for messages.
fn shown<'f>(facts: &'f Facts, name: &str) -> &'f str {
    facts.alike.get(name).map(String::as_str).filter(|text| !text.is_empty()).unwrap_or("nothing")
}

fn differences(facts: &[Facts]) -> Check {
    let first = &facts[0].alike;
    let mut apart: BTreeMap<[&str; 2], Vec<String>> = BTreeMap::new();
    for other in &facts[1..] {
        let names: BTreeSet<&String> = first.keys().chain(other.alike.keys()).collect();
        for name in names.into_iter().filter(|name| first.get(*name) != other.alike.get(*name)) {
            apart.entry([name, shown(other, name)]).or_default().push(other.rank.to_string());
        }
    }
    let words = |([name, value], ranks): (&[&str; 2], &Vec<String>)| {
        let own = shown(&facts[0], name);
        format!("{name} is {own} on rank 0 and {value} on rank {}", ranks.join(", "))
    };
    let found: Vec<String> = apart.iter().map(words).collect();
    let build = first.get("build").map_or("unknown", |build| build.as_str());
    let (state, finding) = match found.len() {
        0 => (State::Fine, format!("{} ranks have build {build}", facts.len())),
        n if n > DIFFERENCES_MAX => (
            State::Problem,
            format!("{}; and {} more", found[..DIFFERENCES_MAX].join("; "), n - DIFFERENCES_MAX),
        ),
        _ => (State::Problem, found.join("; ")),
    };
    Check { slug: "ranks-differ", state, finding }
}

fn clocks(firsts: &[&Facts]) -> Check {
    let apart = |facts: &&&Facts| {
        facts.network.clock_seconds.abs() - facts.network.clock_within_seconds > CLOCK_SECONDS_MAX
    };
    let words = |facts: &&Facts| {
        let seconds = facts.network.clock_seconds;
        let way = if seconds > 0.0 { "ahead of" } else { "late against" };
        format!("the clock of {} is {:.1} s {way} that of rank 0's host", host(facts), seconds.abs())
    };
    let found: Vec<String> = firsts.iter().filter(apart).map(words).collect();
    let most = firsts.iter().map(|facts| facts.network.clock_seconds.abs()).fold(0.0, f64::max);
    let (state, finding) = if found.is_empty() {
        (State::Fine, format!("clocks are {:.1} ms apart at most", most * 1e3))
    } else {
        (State::Note, format!("{}: times in their logs do not compare", found.join("; ")))
    };
    Check { slug: "ranks-clocks", state, finding }
}

fn packets(firsts: &[&Facts]) -> Check {
    let known: Vec<(&Facts, u32)> =
        firsts.iter().filter_map(|facts| Some((*facts, facts.interface.mtu_bytes?))).collect();
    let sizes: BTreeSet<u32> = known.iter().map(|(_, mtu)| *mtu).collect();
    let (state, finding) = match (sizes.len(), sizes.first()) {
        (_, None) => (State::Unknown, "the size of packets cannot be read".into()),
        (1, Some(size)) => (State::Fine, format!("packets of {size} bytes on all interfaces")),
        _ => {
            let of = |(facts, mtu): &(&Facts, u32)| {
                let name = facts.interface.name.as_deref().unwrap_or("unknown");
                format!("{mtu} on {name} of {}", host(facts))
            };
            let all: Vec<String> = known.iter().map(of).collect();
            (State::Note, format!("packets have different sizes, in bytes: {}", all.join(", ")))
        }
    };
    Check { slug: "ranks-mtu", state, finding }
}

fn open_files(facts: &[Facts], needs: &Needs) -> Check {
    let least =
        facts.iter().filter_map(|facts| Some((facts.limits.open_files?, facts))).min_by_key(|(n, _)| *n);
    let (state, finding) = match least {
        Some((count, facts)) if count < needs.open_files => (
            State::Problem,
            format!("{}: ulimit -n {count}, and the run may need {}", host(facts), needs.open_files),
        ),
        Some((count, _)) => (State::Fine, format!("ulimit -n {count} or more on all hosts")),
        None => (State::Fine, "ulimit -n unlimited".into()),
    };
    Check { slug: "machine-open-files", state, finding }
}

fn processes(facts: &[Facts]) -> Check {
    let least =
        facts.iter().filter_map(|facts| Some((facts.limits.processes?, facts))).min_by_key(|(n, _)| *n);
    let (state, finding) = match least {
        Some((count, facts)) if count < PROCESSES_MIN => {
            (State::Problem, format!("{}: ulimit -u {count}", host(facts)))
        }
        Some((count, _)) => (State::Fine, format!("ulimit -u {count} or more on all hosts")),
        None => (State::Fine, "ulimit -u unlimited".into()),
    };
    Check { slug: "machine-processes", state, finding }
}

fn shared_memory(firsts: &[&Facts], needs: &Needs) -> Check {
    let least = firsts.iter().min_by_key(|facts| facts.shared_memory.free_bytes);
    let (state, finding) = match (least, needs.shm) {
        (Some(facts), Some(needed)) => {
            let free = Bytes(facts.shared_memory.free_bytes.unwrap_or(0));
            let state = if free < needed { State::Problem } else { State::Fine };
            (state, format!("{}: {free} free in /dev/shm, and the run plans {needed}", host(facts)))
        }
        (Some(facts), None) => {
            (State::Fine, format!("{}: {} in /dev/shm", host(facts), facts.shared_memory.words()))
        }
        (None, _) => (State::Unknown, "no host".into()),
    };
    Check { slug: "machine-shared-memory", state, finding }
}

fn shared_directory(firsts: &[&Facts]) -> Check {
    let own = &firsts[0].directory;
    let path = own.path.display();
    let apart: Vec<String> = firsts
        .iter()
        .filter(|facts| !facts.directory.is_shared)
        .map(|facts| facts.host.to_string())
        .collect();
    let (state, finding) = match &own.refused {
        Some(why) => {
            let finding = format!("{path} on rank 0's host: {why}");
            return Check { slug: "run-dir-unwritable", state: State::Problem, finding };
        }
        None if apart.is_empty() => (State::Fine, format!("all hosts see {path}")),
        None => {
            let words =
                format!("{path} of rank 0's host, which writes it, is not seen by host {}", apart.join(", "));
            (State::Note, words)
        }
    };
    Check { slug: "ranks-directory", state, finding }
}

fn directory_speed(first: &Facts, needs: &Needs) -> Check {
    let path = first.directory.path.display();
    let (state, finding) = match (first.directory.bytes_per_second, needs.checkpoint) {
        (None, _) => (State::Unknown, format!("nothing was written to {path}")),
        (Some(rate), None) => (State::Fine, format!("{path} takes {}/s with fsync", Bytes(rate as u64))),
        (Some(rate), Some(bytes)) => {
            let seconds = bytes.0 as f64 / rate.max(1.0);
            let state = if seconds > CHECKPOINT_SECONDS_MAX { State::Note } else { State::Fine };
            let words = format!(
                "{path} takes {}/s with fsync: {seconds:.1} s for a checkpoint of {bytes}",
                Bytes(rate as u64)
            );
            (state, words)
        }
    };
    Check { slug: "ranks-directory-slow", state, finding }
}

/// Returns all measured paths, slowest first. `reads`: what a host measured.
fn measured<'f>(firsts: &[&'f Facts], reads: fn(&Facts) -> &[Read]) -> Vec<(&'f Facts, Read)> {
    let of = |facts: &&'f Facts| {
        let facts = *facts;
        reads(facts).iter().filter(|read| read.bytes_per_second > 0.0).map(move |read| (facts, *read))
    };
    let mut all: Vec<(&Facts, Read)> = firsts.iter().flat_map(of).collect();
    all.sort_by(|a, b| a.1.bytes_per_second.total_cmp(&b.1.bytes_per_second));
    all
}

fn by_hosts(facts: &Facts) -> &[Read] {
    &facts.network.reads
}

fn by_cards(facts: &Facts) -> &[Read] {
    facts.cards.as_ref().map_or(&[], |cards| &cards.reads)
}

fn paths(firsts: &[&Facts]) -> Check {
    let (state, finding) =
        extremes(&measured(firsts, by_hosts)).unwrap_or((State::Fine, "all ranks are on one host".into()));
    Check { slug: "ranks-paths-uneven", state, finding }
}

/// Returns the slowest and the fastest path in words, and whether they are far apart.
fn extremes(all: &[(&Facts, Read)]) -> Option<(State, String)> {
    let ((facts, slow), (_, fast)) = (all.first()?, all.last()?);
    let uneven = slow.bytes_per_second < fast.bytes_per_second * UNEVEN;
    let words = format!(
        "from host {} to host {} pass {}/s, over the fastest path {}/s",
        slow.from_host,
        facts.host,
        Bytes(slow.bytes_per_second as u64),
        Bytes(fast.bytes_per_second as u64)
    );
    Some((if uneven { State::Note } else { State::Fine }, words))
}

/// Judges exchange between cards of different hosts over NCCL, if it was tried.
fn cards(firsts: &[&Facts], needs: &Needs) -> Option<Check> {
    let found = firsts[0].cards.as_ref()?;
    let own = measured(firsts, by_cards);
    let slower = own.iter().find_map(|(facts, read)| {
        let sockets = by_hosts(facts).iter().find(|other| other.from_host == read.from_host)?;
        (read.bytes_per_second < sockets.bytes_per_second * UNEVEN).then_some((facts, read, sockets))
    });
    let (state, finding) = match (&found.failed, slower) {
        // A run works without a library that no host has, but ends if it does not connect.
        (Some(why), _) if found.library.is_empty() && !needs.nccl => {
            (State::Note, format!("cards of different hosts will exchange over sockets: {why}"))
        }
        (Some(why), _) => (State::Problem, why.clone()),
        (None, Some((facts, read, sockets))) => {
            let [cards, sockets] = [read, sockets].map(|read| Bytes(read.bytes_per_second as u64));
            let pair = format!("from host {} to host {}", read.from_host, facts.host);
            let words = format!("{pair} {} passes {cards}/s, and sockets {sockets}/s", found.library);
            (State::Note, words)
        }
        (None, None) => {
            let (state, words) = extremes(&own).unwrap_or((State::Unknown, "nothing was measured".into()));
            (state, format!("{}: {words}", found.library))
        }
    };
    Some(Check { slug: "ranks-nccl", state, finding })
}

/// Formats the hosts, and the network between them.
pub fn table(facts: &[Facts]) -> String {
    let firsts = firsts(facts);
    let head = [
        "host",
        "name",
        "ranks",
        "reached at",
        "interface",
        "clock",
        "files",
        "processes",
        "locked",
        "/dev/shm",
        "run directory",
    ];
    let rows = firsts.iter().map(|first| row(first, facts).to_vec());
    let lines: Vec<Vec<String>> = [head.map(String::from).to_vec()].into_iter().chain(rows).collect();
    aligned(&lines) + &network(&firsts)
}

fn row(first: &Facts, facts: &[Facts]) -> [String; 11] {
    let ranks: Vec<u32> =
        facts.iter().filter(|facts| facts.host == first.host).map(|facts| facts.rank).collect();
    let is_whole = ranks.windows(2).all(|two| two[1] == two[0] + 1);
    let ranks = match (ranks.as_slice(), is_whole) {
        ([one, .., last], true) => format!("{one}-{last}"),
        (all, _) => all.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
    };
    let Facts { interface, limits, network, directory, .. } = first;
    let unlimited = |count: Option<u64>| count.map_or("unlimited".into(), |count| count.to_string());
    let packets = interface.mtu_bytes.map_or(String::new(), |mtu| format!(", packets {mtu}"));
    [
        first.host.to_string(),
        first.host_name.clone(),
        ranks,
        first.address.map_or("-".into(), |address| address.to_string()),
        interface.name.clone().unwrap_or("-".into()) + &packets,
        if first.host == 0 { "-".into() } else { format!("{:+.1} ms", network.clock_seconds * 1e3) },
        unlimited(limits.open_files),
        unlimited(limits.processes),
        limits.locked_bytes.map_or("unlimited".into(), |bytes| Bytes(bytes).to_string()),
        first.shared_memory.words(),
        match (directory.bytes_per_second, directory.is_shared) {
            (Some(rate), _) => format!("writes {}/s", Bytes(rate as u64)),
            (None, true) => "seen".into(),
            (None, false) => "not seen".into(),
        },
    ]
}

/// Formats what each host reads from the others.
fn network(firsts: &[&Facts]) -> String {
    if measured(firsts, by_hosts).is_empty() {
        return String::new();
    }
    let barrier = firsts[0].network.barrier_seconds * 1e3;
    let mut text =
        format!("\nmeeting takes {barrier:.2} ms\n\n") + &paths_table(firsts, "reads", by_hosts, true);
    if let Some(found) = firsts[0].cards.as_ref().filter(|found| found.failed.is_none()) {
        let what = format!("{} reads", found.library);
        text = text + "\n" + &paths_table(firsts, &what, by_cards, false);
    }
    text
}

/// Formats paths between hosts as a matrix, or the slowest of many. `together`: adds a column for reads from all.
fn paths_table(firsts: &[&Facts], what: &str, reads: fn(&Facts) -> &[Read], together: bool) -> String {
    let cell = |read: &Read| {
        let round_trip = format!("{:.2} ms", read.round_trip_seconds * 1e3);
        if read.bytes_per_second > 0.0 {
            format!("{}/s, {round_trip}", Bytes(read.bytes_per_second as u64))
        } else {
            // With many hosts, each reads from one other.
            round_trip
        }
    };
    if firsts.len() > MATRIX_HOSTS_MAX {
        let all = measured(firsts, reads);
        let line = |(facts, read): &(&Facts, Read)| {
            format!("  host {} {what} of host {}: {}\n", facts.host, read.from_host, cell(read))
        };
        let lines: String = all.iter().take(PATHS_SHOWN).map(line).collect();
        return format!("the slowest of {} paths\n{lines}", all.len());
    }
    let last = |cell: String| together.then_some(cell);
    let head = [what.to_string()].into_iter().chain(firsts.iter().map(|one| format!("of host {}", one.host)));
    let mut lines = vec![head.chain(last("of all at once".into())).collect::<Vec<String>>()];
    for facts in firsts {
        let of = |from: &&Facts| {
            reads(facts).iter().find(|read| read.from_host == from.host).map_or("-".into(), &cell)
        };
        let at_once = facts.network.at_once_bytes_per_second;
        let at_once = last(at_once.map_or("-".into(), |rate| format!("{}/s", Bytes(rate as u64))));
        lines.push(
            [format!("host {}", facts.host)]
                .into_iter()
                .chain(firsts.iter().map(of))
                .chain(at_once)
                .collect(),
        );
    }
    aligned(&lines)
}

fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |cells: &Vec<String>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    lines.iter().map(line).collect()
}

#[cfg(test)]
#[path = "survey_tests.rs"]
mod tests;
