//! Groups of threads, each with a mapping of its own.

use super::*;
use std::os::fd::AsRawFd;

/// Runs `body` on each rank of a group, in threads, each with a mapping of its own.
fn run<T: Send>(ranks: usize, body: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let fd = rustix::fs::memfd_create("plimsoll-window", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    let (file, body) = (File::from(fd), &body);
    std::thread::scope(|scope| {
        let start = |rank| {
            let group = Group::on_one_host(rank, ranks, &file).expect("a window");
            scope.spawn(move || body(group))
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn every_rank_has_the_bytes_of_every_rank_whatever_their_lengths() {
    for ranks in [1, 2, 3, 5] {
        let bytes = |rank: usize, round: usize| -> Vec<u8> {
            let length = [0, 1, 7, 4096, MAILBOX * 8, MAILBOX * 16 + 13][(rank + round) % 6];
            (0..length).map(|i| (i * 31 + rank * 7 + round) as u8).collect()
        };
        run(ranks, |group| {
            for round in 0..12 {
                if (group.rank() + round) % 3 == 0 {
                    std::thread::sleep(Duration::from_micros(300));
                }
                let all = group.all_gather(&bytes(group.rank(), round)).expect("all live");
                for (rank, got) in all.iter().enumerate() {
                    assert!(*got == bytes(rank, round), "{ranks} {round}: of rank {rank}");
                }
            }
            let all = group.all_gather(&[]).expect("all live");
            assert!(all.iter().all(Vec::is_empty));
        });
    }
}

/// Parts of different sizes meet in their own time, and all meet between.
#[test]
fn parts_of_the_ranks_exchange_apart_and_with_all() {
    for (ranks, cut) in [(2, 1), (3, 1), (5, 3)] {
        run(ranks, |group| {
            let rank = group.rank();
            let of = if rank < cut { 0..cut } else { cut..ranks };
            let part = group.part(of.clone()).expect("all live");
            assert_eq!((part.rank(), part.ranks()), (rank - of.start, of.len()));
            for round in 0..20 {
                for turn in 0..(1 + (round + of.start) % 4) {
                    let own = vec![rank as u8; 1 + turn * MAILBOX * 5];
                    let all = part.all_gather(&own).expect("all live");
                    let ids: Vec<usize> = all.iter().map(|bytes| bytes[0].into()).collect();
                    assert!(ids.into_iter().eq(of.clone()) && all.iter().all(|it| it.len() == own.len()));
                    part.barrier().expect("all live");
                }
                let all = group.all_gather(&[rank as u8, round as u8]).expect("all live");
                assert!(all.iter().map(|it| usize::from(it[0])).eq(0..ranks), "{ranks} {round}");
            }
        });
    }
}

#[test]
fn a_rank_alone_answers_at_once() {
    let group = Group::alone();
    assert_eq!((group.rank(), group.ranks(), group.near()), (0, 1, &[0][..]));
    assert!(group.is_alone() && group.hosts_of(0..1) == (1, 1, true));
    group.barrier().expect("none to wait for");
    assert_eq!(group.all_gather(b"own").expect("none to wait for"), [b"own".to_vec()]);
    assert_eq!(group.waited(), [Duration::ZERO]);
}

#[test]
fn a_supervisor_reads_who_waits_and_for_how_long() {
    let fd = rustix::fs::memfd_create("plimsoll-window", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    let file = File::from(fd);
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let place = |rank| Place::on_one_host(rank, 2, path.clone().into());
    assert_eq!(Waits::read(&place(0)), None, "no trainer has come yet");
    let [zero, one] = [0, 1].map(|rank| Group::on_one_host(rank as usize, 2, &file).expect("a window"));
    assert_eq!(Waits::read(&place(1)), Some(Waits::default()));
    let waits = |rank| Waits::read(&place(rank)).expect("it is there");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| zero.barrier());
        while !waits(0).waits_now {
            std::thread::yield_now();
        }
        assert_eq!((waits(0).arrivals, waits(1).arrivals, waits(1).waits_now), (1, 0, false));
        std::thread::sleep(Duration::from_millis(30));
        one.barrier().expect("all live");
        waiting.join().expect("no panic").expect("all live");
    });
    let Waits { arrivals, waited, waits_now } = waits(0);
    assert!(arrivals == 1 && !waits_now && waited >= Duration::from_millis(30), "{waited:?}");
    assert_eq!(zero.waited(), one.waited());
    assert!(zero.waited()[0] == waited && zero.waited()[1] < waited);
}

#[test]
fn a_wait_ends_when_another_rank_fails() {
    let ended = run(3, |group| match group.rank() {
        2 => {
            group.fail();
            None
        }
        _ => Some(group.barrier().expect_err("rank 2 never comes")),
    });
    for error in ended.into_iter().flatten() {
        assert_eq!((error.slug, error.exit), ("rank-lost", Exit::OtherRank));
    }
}
