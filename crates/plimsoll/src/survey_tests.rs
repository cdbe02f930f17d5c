//! Tests what a survey of made-up hosts finds.

use super::*;
use plimsoll_ranks::{CardPaths, Directory, Interface, Limits, Network, SharedMemory};

/// Two hosts with two ranks each, on which nothing is wrong.
fn hosts() -> Vec<Facts> {
    let one = |rank: u32| Facts {
        rank,
        host: rank / 2,
        host_name: ["a", "b"][rank as usize / 2].into(),
        pid: 100 + rank,
        address: Some([10, 0, 0, 1 + rank as u8 / 2].into()),
        interface: Interface { name: Some("eth0".into()), mtu_bytes: Some(1500) },
        limits: Limits { open_files: Some(4096), processes: None, locked_bytes: Some(8 << 20) },
        shared_memory: SharedMemory { bytes: Some(1 << 30), free_bytes: Some(1 << 29) },
        network: Network {
            clock_seconds: if rank < 2 { 0.0 } else { 0.004 },
            clock_within_seconds: 0.001,
            barrier_seconds: 0.0003,
            reads: match rank {
                0 => vec![Read { from_host: 1, round_trip_seconds: 0.0002, bytes_per_second: 1e8 }],
                2 => vec![Read { from_host: 0, round_trip_seconds: 0.0002, bytes_per_second: 1.1e8 }],
                _ => Vec::new(),
            },
            at_once_bytes_per_second: None,
        },
        directory: Directory {
            path: "/runs".into(),
            is_shared: true,
            bytes_per_second: (rank == 0).then_some(5e8),
            refused: None,
        },
        cards: None,
        alike: [("build".to_string(), "0.1.0 (ab)".to_string())].into(),
    };
    (0..4).map(one).collect()
}

const NEEDS: Needs =
    Needs { open_files: 1024, shm: Some(Bytes(1 << 20)), checkpoint: Some(Bytes(1 << 30)), nccl: false };

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let found = checks(&hosts(), &NEEDS);
    assert!(found.iter().all(|check| check.state == State::Fine), "{found:?}");
    let text = table(&hosts());
    for part in
        ["\n1     b     2-3    10.0.0.2    eth0, packets 1500", "+4.0 ms", "writes 476.8 MiB/s", "host 0  -"]
    {
        assert!(text.contains(part), "{part:?}: {text}");
    }
}

/// Says what is done to the hosts, and what must be found then.
type Case = (fn(&mut [Facts]), &'static str, State, &'static str);

const OF_HOSTS: [Case; 10] = [
    (
        |all| drop(all[3].alike.insert("build".into(), "0.1.0 (cd)".into())),
        "ranks-differ",
        State::Problem,
        "build is 0.1.0 (ab) on rank 0 and 0.1.0 (cd) on rank 3",
    ),
    (
        |all| all[2].network.clock_seconds = -86_400.0,
        "ranks-clocks",
        State::Note,
        "the clock of host 1 (b) is 86400.0 s late against that of rank 0's host",
    ),
    (
        |all| all[2].interface.mtu_bytes = Some(9000),
        "ranks-mtu",
        State::Note,
        "1500 on eth0 of host 0 (a), 9000 on eth0 of host 1 (b)",
    ),
    (
        |all| all[3].limits.open_files = Some(256),
        "machine-open-files",
        State::Problem,
        "host 1 (b): ulimit -n 256, and the run may need 1024",
    ),
    (
        |all| all[1].limits.processes = Some(64),
        "machine-processes",
        State::Problem,
        "host 0 (a): ulimit -u 64",
    ),
    (
        |all| all[2].shared_memory.free_bytes = Some(1000),
        "machine-shared-memory",
        State::Problem,
        "host 1 (b): 1000 B free in /dev/shm, and the run plans 1.0 MiB",
    ),
    (
        |all| all[2].directory.is_shared = false,
        "ranks-directory",
        State::Note,
        "/runs of rank 0's host, which writes it, is not seen by host 1",
    ),
    (
        |all| all[0].directory.refused = Some("read-only".into()),
        "run-dir-unwritable",
        State::Problem,
        "/runs on rank 0's host: read-only",
    ),
    (
        |all| all[0].directory.bytes_per_second = Some(1e7),
        "ranks-directory-slow",
        State::Note,
        "107.4 s for a checkpoint of 1.0 GiB",
    ),
    (
        |all| all[2].network.reads[0].bytes_per_second = 2e7,
        "ranks-paths-uneven",
        State::Note,
        "from host 0 to host 1 pass 19.1 MiB/s, over the fastest path 95.4 MiB/s",
    ),
];

#[test]
fn what_is_wrong_is_found_and_named() {
    for (break_it, slug, state, words) in OF_HOSTS {
        let mut all = hosts();
        break_it(&mut all);
        let found: Vec<Check> =
            checks(&all, &NEEDS).into_iter().filter(|check| check.state != State::Fine).collect();
        assert_eq!(found.len(), 1, "{slug}: {found:?}");
        assert_eq!((found[0].slug, found[0].state), (slug, state));
        assert!(found[0].finding.contains(words), "{words:?}: {}", found[0].finding);
    }
}

/// Returns what NCCL did between the two hosts: (bytes of a second, why nothing was measured).
fn with_cards(library: &str, rates: [f64; 2], failed: Option<&str>) -> Vec<Facts> {
    let mut all = hosts();
    for facts in &mut all {
        let from_host = 1 - facts.host;
        let read = Read { from_host, round_trip_seconds: 2e-5, bytes_per_second: rates[facts.host as usize] };
        let reads = if facts.rank % 2 == 0 && failed.is_none() { vec![read] } else { Vec::new() };
        facts.cards = Some(CardPaths { library: library.into(), reads, failed: failed.map(str::to_string) });
    }
    all
}

#[test]
fn what_cards_give_one_another_is_judged_next_to_what_sockets_do() {
    let needs = |nccl| Needs { nccl, ..NEEDS };
    let [version, none] = ["NCCL 2.28.3", ""];
    for (facts, nccl, state, words) in [
        (
            with_cards(version, [9e9, 8e9], None),
            false,
            State::Fine,
            "NCCL 2.28.3: from host 0 to host 1 pass 7.5",
        ),
        (with_cards(version, [9e9, 1e9], None), false, State::Note, "over the fastest path 8.4 GiB/s"),
        (
            with_cards(version, [9e9, 1e7], None),
            false,
            State::Note,
            "passes 9.5 MiB/s, and sockets 104.9 MiB/s",
        ),
        (
            with_cards(none, [0.0; 2], Some("rank 0: no libnccl")),
            false,
            State::Note,
            "over sockets: rank 0: no",
        ),
        (with_cards(none, [0.0; 2], Some("rank 0: no libnccl")), true, State::Problem, "rank 0: no libnccl"),
        (
            with_cards(version, [0.0; 2], Some("rank 2: no answer")),
            false,
            State::Problem,
            "rank 2: no answer",
        ),
    ] {
        let check = checks(&facts, &needs(nccl)).pop().expect("cards are judged last");
        assert_eq!((check.slug, check.state), ("ranks-nccl", state), "{}", check.finding);
        assert!(check.finding.contains(words), "{words:?}: {}", check.finding);
    }
    let text = table(&with_cards(version, [9e9, 8e9], None));
    for part in ["\nNCCL 2.28.3 reads  of host 0", "  of host 1\nhost 0", "8.4 GiB/s, 0.02 ms"] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
}

#[test]
fn a_clock_is_as_exact_as_the_path_to_it() {
    let mut all = hosts();
    (all[2].network.clock_seconds, all[2].network.clock_within_seconds) = (1.2, 0.3);
    assert!(checks(&all, &NEEDS).iter().all(|check| check.state == State::Fine));
}

#[test]
fn many_hosts_show_their_slowest_paths() {
    let mut all = Vec::new();
    for host in 0..9 {
        let mut facts = hosts().swap_remove(0);
        (facts.host, facts.rank) = (host, host);
        facts.network.reads = vec![Read {
            from_host: (host + 1) % 9,
            round_trip_seconds: 0.001,
            bytes_per_second: 1e8 + f64::from(host),
        }];
        all.push(facts);
    }
    let text = table(&all);
    assert!(
        text.contains("the slowest of 9 paths\n  host 0 reads of host 1: 95.4 MiB/s, 1.00 ms\n"),
        "{text}"
    );
}
