//! Groups whose ranks are on several hosts as far as they know: threads, each with its place, and a window a host.

use super::address_book::{AddressBook, Posted};
use super::{Memory, Shown};
use crate::environment::{Launch, Launcher};
use crate::group::Group;
use crate::hello::Member;
use crate::knock::{MAGIC, REFUSAL};
use crate::message::{Message, Way};
use crate::place::Place;
use crate::token::{NONCE_BYTES, Side, Token};
use crate::window::{Window, memory_file};
use plimsoll_base::{Bytes, Result};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

/// Holds what the supervisors of a run keep.
struct Run {
    windows: Vec<Window>,
    listeners: Vec<TcpListener>,
    posted: Posted,
    hosts: Vec<u32>,
}

impl Run {
    fn new(hosts: &[u32]) -> Run {
        let count = *hosts.iter().max().expect("a rank") as usize + 1;
        let windows = (0..count).map(|_| Window::new().expect("memory")).collect();
        let listeners: Vec<TcpListener> =
            hosts.iter().map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let member = |(rank, site): (usize, &u32)| Member {
            rank: rank as u32,
            host: format!("h{site}"),
            site: *site,
            address: listeners[rank].local_addr().ok(),
            pid: 1,
            cpus: "0".into(),
        };
        let members: Vec<Member> = hosts.iter().enumerate().map(member).collect();
        let token = Token::of_hex(&"a5".repeat(32)).expect("32 bytes");
        let posted = AddressBook::of(&members, &token).post().expect("memory");
        Run { windows, listeners, posted, hosts: hosts.to_vec() }
    }

    fn place(&self, rank: usize) -> Place {
        let window = self.windows[self.hosts[rank] as usize].path();
        let (ranks, away) = (self.hosts.len() as u32, Some(self.posted.away(99)));
        Place { rank: rank as u32, ranks, hosts: self.hosts.clone(), window, away }
    }

    /// Runs `body` on every rank. Returns what it returned, by rank.
    fn run<T: Send>(&self, body: impl Fn(Group) -> T + Sync) -> Vec<T> {
        let one = |rank: usize| {
            let listener = self.listeners[rank].try_clone().expect("a descriptor");
            body(Group::open(&self.place(rank), Some(listener)).expect("all come"))
        };
        thread::scope(|scope| {
            let all: Vec<_> = (0..self.hosts.len()).map(|rank| scope.spawn(move || one(rank))).collect();
            all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }
}

const LAYOUTS: [&[u32]; 5] = [&[0, 1], &[0, 0, 1, 1], &[0, 1, 2], &[0, 1, 1, 0, 2], &[0, 0, 0, 1]];

#[test]
fn every_rank_has_the_bytes_of_every_rank_wherever_it_is() {
    for hosts in LAYOUTS {
        let bytes = |rank: usize, round: usize| -> Vec<u8> {
            let length = [0, 1, 7, 4096, 300_000, 1_000_003][(rank + round) % 6];
            let mut bytes: Vec<u8> = (0..256).map(|i| (i * 31 + rank * 7 + round) as u8).collect();
            bytes = bytes.repeat(1 + length / 256);
            bytes.truncate(length);
            bytes
        };
        Run::new(hosts).run(|group| {
            for round in 0..8 {
                if (group.rank() + round) % 3 == 0 {
                    thread::sleep(Duration::from_millis(2));
                }
                group.barrier().expect("all live");
                let all = group.all_gather(&bytes(group.rank(), round)).expect("all live");
                assert_eq!(all.len(), hosts.len());
                for (rank, got) in all.iter().enumerate() {
                    assert!(*got == bytes(rank, round), "{hosts:?} {round}: of rank {rank}");
                }
            }
            assert!(group.all_gather(&[]).expect("all live").iter().all(Vec::is_empty));
            let near = group.near_gather(&[group.rank() as u8]).expect("all live");
            assert!(near.iter().map(|one| usize::from(one[0])).eq(group.near().iter().copied()));
        });
    }
}

/// Parts of the ranks, on one host or on several, exchange in their own time and with all.
#[test]
fn parts_of_the_ranks_exchange_wherever_they_are() {
    for (hosts, cut) in [(&[0, 1][..], 1), (&[0, 0, 1, 1], 3), (&[0, 0, 1, 1], 1), (&[0, 1, 1, 0, 2], 2)] {
        Run::new(hosts).run(|group| {
            let rank = group.rank();
            let of = if rank < cut { 0..cut } else { cut..hosts.len() };
            let part = group.part(of.clone()).expect("all live");
            assert_eq!((part.rank(), part.ranks()), (rank - of.start, of.len()));
            for round in 0..6 {
                for turn in 0..(1 + (round + of.start) % 4) {
                    let own = vec![rank as u8; 1 + turn * 300_000];
                    let all = part.all_gather(&own).expect("all live");
                    let ids: Vec<usize> = all.iter().map(|bytes| bytes[0].into()).collect();
                    assert!(ids.into_iter().eq(of.clone()) && all.iter().all(|it| it.len() == own.len()));
                    part.barrier().expect("all live");
                    let near = part.near_gather(&own).expect("all live");
                    assert_eq!(near.len(), part.near().len());
                }
                let all = group.all_gather(&[rank as u8, round as u8]).expect("all live");
                assert!(all.iter().map(|it| usize::from(it[0])).eq(0..hosts.len()), "{hosts:?} {round}");
            }
        });
    }
}

#[test]
fn a_part_knows_its_hosts() {
    let spreads =
        Run::new(&[0, 0, 1, 1]).run(|group| [0..4, 0..3, 0..2, 1..4, 2..4].map(|part| group.hosts_of(part)));
    let expect = [(2, 2, true), (2, 2, false), (1, 2, true), (2, 2, false), (1, 2, true)];
    assert!(spreads.iter().all(|spread| *spread == expect), "{spreads:?}");
}

const MEMORY: usize = 3 << 20;

/// Bytes of a rank's memory in a round: the same ones again and again, after a prime number of them.
fn memory_in(rank: usize, round: usize) -> Vec<u8> {
    const PERIOD: usize = 65_521;
    let at = |offset: usize| (offset.wrapping_mul(131) ^ (offset >> 9) ^ (rank * 57) ^ (round * 11)) as u8;
    let mut bytes = (0..PERIOD).map(at).collect::<Vec<u8>>().repeat(MEMORY.div_ceil(PERIOD));
    bytes.truncate(MEMORY);
    bytes
}

/// Memory that is copied out a part at a time, as a card's is.
#[derive(Debug)]
struct InParts(File, [u8; 1000]);

impl Shown for InParts {
    fn read(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        let part = &mut self.1[..len.min(1000)];
        self.0.read_exact_at(part, at).expect("what is inside");
        Ok(part)
    }
}

/// Odd ranks keep little of what they read.
fn kept_max(rank: usize) -> Option<Bytes> {
    (rank % 2 == 1).then_some(Bytes(1 << 20))
}

/// A file, which odd ranks show in parts.
fn memory_of(rank: usize, file: &File) -> Memory {
    let file = file.try_clone().expect("a file");
    match rank % 2 {
        0 => Memory::File(file),
        _ => Memory::Shown(Box::new(InParts(file, [0; 1000]))),
    }
}

#[test]
fn a_rank_reads_what_those_of_other_hosts_have_written_since_they_met() {
    for hosts in LAYOUTS {
        Run::new(hosts).run(|group| {
            let file: File = plimsoll_memory::shared_file("plimsoll-test").expect("memory");
            file.set_len(MEMORY as u64).expect("memory");
            let (rank, ranks) = (group.rank(), group.ranks());
            let write = |round| file.write_all_at(&memory_in(rank, round), 0).expect("memory");
            let memory = memory_of(rank, &file);
            let reach = group
                .reach(memory, Bytes(MEMORY as u64), kept_max(rank))
                .expect("all come")
                .expect("other hosts");
            for round in 0..3 {
                write(round);
                group.barrier().expect("all live");
                for other in (0..ranks).filter(|other| !group.near().contains(other)) {
                    assert!(
                        reach.view(other).expect("memory").is_some()
                            && reach.view(rank).expect("none").is_none()
                    );
                    let whole = memory_in(other, round);
                    // Apart, overlapping, longer than a request, and at the end.
                    for range in
                        [5..9, 7..100, 4096..1_500_000, 10..2_000_000, MEMORY as u64 - 3..MEMORY as u64]
                    {
                        reach.bring(&[(other, range.clone()), (rank, range.clone())], &|| group.check());
                        reach.check().expect("all live");
                        let seen = reach.seen(other, range.clone());
                        let expect = &whole[range.start as usize..range.end as usize];
                        assert!(seen[..] == *expect, "{hosts:?}: rank {rank} of {other}, {round}: {range:?}");
                    }
                }
                group.barrier().expect("all live");
            }
        });
    }
}

#[test]
fn what_a_rank_posts_is_heard_on_all_hosts_between_reads() {
    const LAST: u64 = 40;
    for hosts in LAYOUTS {
        Run::new(hosts).run(|group| {
            let file: File = plimsoll_memory::shared_file("plimsoll-test").expect("memory");
            let rank = group.rank();
            file.write_all_at(&memory_in(rank, 0), 0).expect("memory");
            let reach = group
                .reach(memory_of(rank, &file), Bytes(MEMORY as u64), kept_max(rank))
                .expect("all come")
                .expect("other hosts");
            if rank == 0 {
                for number in 1..=LAST {
                    group.post(number);
                    thread::sleep(Duration::from_millis(1));
                }
            } else {
                let (mut heard, begun, first) = (0, Instant::now(), memory_in(0, 0));
                while heard < LAST {
                    assert!(
                        begun.elapsed() < Duration::from_secs(60),
                        "{hosts:?}: rank {rank} heard {heard}"
                    );
                    let number = group.posted(0);
                    assert!((heard..=LAST).contains(&number), "{hosts:?}: {number} after {heard}");
                    heard = number;
                    // An answer may be under way.
                    let start = heard * 1000;
                    reach.bring(&[(0, start..start + 9)], &|| group.check());
                    reach.check().expect("all live");
                    if !group.near().contains(&0) {
                        let expect = &first[start as usize..start as usize + 9];
                        assert_eq!(reach.seen(0, start..start + 9), expect, "{hosts:?}: rank {rank}");
                    }
                }
            }
            group.barrier().expect("all live");
        });
    }
}

#[test]
fn a_rank_that_is_gone_ends_the_wait_of_all() {
    let run = Run::new(&[0, 0, 1, 1]);
    let ended = run.run(|group| {
        group.barrier().expect("all live");
        match group.rank() {
            3 => {
                group.fail();
                None
            }
            _ => Some(group.barrier().expect_err("rank 3 never comes")),
        }
    });
    let slugs: Vec<&str> = ended.iter().flatten().map(|error| error.slug).collect();
    assert_eq!(slugs, ["rank-lost"; 3]);
}

#[test]
fn one_that_asks_for_what_is_not_there_is_told_at_the_next_meeting() {
    let run = Run::new(&[0, 1]);
    let ended = run.run(|group| {
        let file: File = plimsoll_memory::shared_file("plimsoll-test").expect("memory");
        file.set_len(4096).expect("memory");
        // Rank 1 lays out more than rank 0 has.
        let bytes = Bytes(if group.rank() == 0 { 4096 } else { 8192 });
        let reach = group.reach(memory_of(0, &file), bytes, None).expect("all come").expect("other hosts");
        if group.rank() == 1 {
            reach.bring(&[(0, 4000..5000)], &|| group.check());
        }
        group.barrier().err().map(|error| error.slug)
    });
    assert_eq!(ended[1], Some("rank-lost"));
}

/// A port scanner and a slow stranger find the listeners of trainers.
#[test]
fn strangers_do_not_keep_trainers_apart() {
    let run = Run::new(&[0, 1]);
    let addresses: Vec<_> = run.listeners.iter().map(|one| one.local_addr().expect("bound")).collect();
    let strangers: Vec<TcpStream> = addresses
        .iter()
        .flat_map(|address| (0..8).map(move |_| TcpStream::connect(address).expect("it listens")))
        .collect();
    for (index, mut stranger) in strangers.iter().enumerate() {
        let _ = stranger.write_all(if index % 2 == 0 { b"GET / HTTP/1.1\r\n\r\n" } else { b"plimsoll-ran" });
    }
    run.run(|group| group.all_gather(b"x").expect("all live"));
}

/// Has the port of a trainer, the program and the run file, and computes keys from what a launcher calls the job.
#[test]
fn a_stranger_without_the_secret_gets_in_nowhere_and_is_shown_no_byte() {
    let run = Run::new(&[0, 1]);
    let addresses: Vec<_> = run.listeners.iter().map(|one| one.local_addr().expect("bound")).collect();
    let job = |launcher, id: &str| Launch {
        rank: 1,
        ranks: 2,
        local_rank: 0,
        local_ranks: 1,
        address: "127.0.0.1".into(),
        port: 29_500,
        id: id.into(),
        launcher,
    };
    let guesses = [
        Token::new(&job(Launcher::Torchrun, "torchrun:none:0"), None),
        Token::new(&job(Launcher::Slurm, "slurm:7.0:"), None),
        Token::new(&job(Launcher::Plimsoll(1), "plimsoll"), Some(":pet:")),
        Token::new(&job(Launcher::Plimsoll(1), "plimsoll"), Some(":pytorchjob:127.0.0.1")),
    ];
    run.run(|group| {
        let file: File = plimsoll_memory::shared_file("plimsoll-test").expect("memory");
        file.write_all_at(&[0x5e; 4096], 0).expect("memory");
        let reach = group.reach(Memory::File(file), Bytes(4096), None).expect("all come");
        for (guess, address) in guesses.iter().flat_map(|guess| addresses.iter().map(move |at| (guess, at))) {
            let mut stream = TcpStream::connect(address).expect("it listens");
            let ours = [group.rank() as u8; NONCE_BYTES];
            stream.write_all(&[&MAGIC[..], &ours].concat()).expect("it reads");
            let mut greeting = [0; MAGIC.len() + NONCE_BYTES];
            stream.read_exact(&mut greeting).expect("a greeting");
            let theirs = *greeting.last_chunk().expect("a nonce");
            let mut words = guess.proof(Side::Joiner, &ours, &theirs).to_vec();
            let knock = serde_json::to_vec(&Message::Knock { rank: 1, way: Way::Read }).expect("plain data");
            words.extend((knock.len() as u32).to_le_bytes());
            words.extend(knock);
            words.extend([0u64.to_le_bytes(), 4096u64.to_le_bytes()].concat());
            let _ = stream.write_all(&words);
            let mut shown = Vec::new();
            // It may close before it has read all; then what it said last may be lost.
            let _ = stream.read_to_end(&mut shown);
            assert!(shown.is_empty() || shown == REFUSAL, "{} bytes: {shown:?}", shown.len());
        }
        group.barrier().expect("all live");
        drop(reach);
    });
}

/// Bounds what a rank reads of another host in a round, and how often.
const READ_BYTES: u64 = 256 << 20;
const READ_ROUNDS: usize = 9;
/// The streams that a rank has to another.
const PLAIN_STREAMS: u64 = 4;

/// Measures reads over loopback next to plain streams; `bench/sockets.sh` reads the line it prints.
#[test]
#[ignore = "a measurement: bench/sockets.sh"]
fn reads_next_to_plain_streams() {
    let read = Run::new(&[0, 1]).run(|group| {
        let memory = memory_file("plimsoll-test", 0).expect("memory");
        let block = vec![0xa5; 1 << 20];
        (0..READ_BYTES >> 20).for_each(|_| (&memory).write_all(&block).expect("memory"));
        let memory = Memory::File(memory);
        let reach = group.reach(memory, Bytes(READ_BYTES), None).expect("all come").expect("another host");
        let mut times = Vec::new();
        for _ in 0..READ_ROUNDS {
            group.barrier().expect("all live");
            let begun = Instant::now();
            if group.rank() == 0 {
                reach.bring(&[(1, 0..READ_BYTES)], &|| Ok(()));
            }
            times.push(begun.elapsed().as_secs_f64());
            group.barrier().expect("all live");
        }
        median_rate(times)
    });
    let plain = median_rate((0..READ_ROUNDS).map(|_| plain_streams()).collect());
    println!("sockets: {:.0} bytes/s read by a rank, {plain:.0} by plain streams", read[0]);
}

fn median_rate(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    READ_BYTES as f64 / times[times.len() / 2]
}

/// Returns the seconds of as many bytes over plain streams, a thread at each end.
fn plain_streams() -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("a port");
    let pairs: Vec<(TcpStream, TcpStream)> = (0..PLAIN_STREAMS)
        .map(|_| {
            let one = TcpStream::connect(address).expect("it listens");
            (one, listener.accept().expect("a connection").0)
        })
        .collect();
    let begun = Instant::now();
    thread::scope(|scope| {
        for (mut from, mut to) in pairs {
            scope.spawn(move || {
                let block = vec![0xa5; 1 << 20];
                (0..(READ_BYTES / PLAIN_STREAMS) >> 20)
                    .for_each(|_| from.write_all(&block).expect("it reads"));
            });
            scope.spawn(move || {
                let mut block = vec![0; 1 << 20];
                while to.read(&mut block).expect("it writes") > 0 {}
            });
        }
    });
    begun.elapsed().as_secs_f64()
}
