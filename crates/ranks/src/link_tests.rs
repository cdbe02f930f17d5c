//! Links in threads: heartbeats, requests, verdicts, and a peer that falls silent.

use super::*;
use crate::board::State;
use crate::environment::{Launch, Launcher};
use crate::hello::Hello;
use crate::notice::Notice;
use crate::rendezvous::{Waiting, meet};
use crate::token::Token;
use crate::verdict::SILENCE_MAX;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

/// Generous: nothing here depends on how fast it is.
const LONG: Duration = Duration::from_secs(60);

fn launch(rank: u32, ranks: u32, port: u16) -> Launch {
    Launch {
        rank,
        ranks,
        local_rank: rank,
        local_ranks: ranks,
        address: "127.0.0.1".into(),
        port,
        id: "test".into(),
        launcher: Launcher::Torchrun,
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a free port").port()
}

/// Lets `rank` meet the others, who find rank 0 at `port`.
fn link(rank: u32, ranks: u32, port: u16) -> Link {
    let launch = launch(rank, ranks, port);
    // Not by the port: a proxy has another one.
    let token = Token::new(&Launch { port: 1, ..launch.clone() }, Some("s"));
    let hello = Hello::of_this_process(&launch, None, []);
    let waiting = Waiting { seconds: 60, notice: Notice::default(), stopped: &mut || None, say: &mut |_| {} };
    Link::start(meet(&launch, &token, &hello, waiting).expect("they meet"), LONG).expect("a thread")
}

fn links(ranks: u32) -> Vec<Link> {
    let port = free_port();
    thread::scope(|scope| {
        let all: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || link(rank, ranks, port))).collect();
        all.into_iter().map(|one| one.join().expect("no panic")).collect()
    })
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "nothing came");
        thread::sleep(Duration::from_millis(10));
    }
}

fn order(link: &Link) -> Order {
    until(|| link.orders().into_iter().next())
}

fn ending(cause: Cause, sentence: &str, exit: u8) -> Ending {
    Ending { cause, sentence: sentence.into(), exit }
}

fn working() -> Beat {
    Beat { trainer: 7, state: 'R', doing: "in step 3 of 9, phase update".into(), ..Beat::default() }
}

fn flag(link: &Link) -> u32 {
    let bytes = std::fs::read(&link.place.window).expect("the window");
    u32::from_le_bytes(bytes[..4].try_into().expect("a page"))
}

#[test]
fn ranks_that_end_well_end_without_a_verdict() {
    let all = links(3);
    // Longer than a silence may last: heartbeats go on by themselves.
    thread::sleep(SILENCE_MAX + Duration::from_secs(1));
    for link in all.iter().rev() {
        assert_eq!((link.outcome(), flag(link)), (None, 0));
        link.ended(ending(Cause::Finished, "", 0));
    }
    for link in &all {
        assert_eq!(until(|| link.outcome()), Outcome { verdict: None });
        assert_eq!(link.orders(), []);
    }
}

#[test]
fn ranks_that_end_at_the_same_moment_end_well() {
    for _ in 0..8 {
        let all = links(3);
        all.iter().for_each(|link| link.ended(ending(Cause::Finished, "", 0)));
        for link in &all {
            assert_eq!(until(|| link.outcome()), Outcome { verdict: None });
        }
    }
}

#[test]
fn a_rank_that_fails_ends_the_others_with_one_sentence() {
    let all = links(4);
    all.iter().for_each(|link| link.beat(working()));
    all[2].ended(ending(Cause::KilledProven, "the container's limit was reached", 4));
    for rank in [0, 1, 3] {
        assert_eq!(order(&all[rank]), Order::End);
        assert_eq!(flag(&all[rank]), 1);
        all[rank].ended(ending(Cause::Secondary, "ended for another", 5));
    }
    let expect = format!(
        "{} was killed: the container's limit was reached; 3 other ranks ended for it",
        all[0].members[2].words()
    );
    for link in &all {
        let verdict = until(|| link.outcome()).verdict.expect("it ended badly");
        assert_eq!(verdict.words(), expect);
    }
}

#[test]
fn a_request_to_end_reaches_every_trainer_once() {
    let all = links(3);
    all[1].asked(15);
    assert_eq!(order(&all[0]), Order::Signal(15));
    assert_eq!(order(&all[2]), Order::Signal(15));
    // The same request on another way, as when a launcher signals all.
    all[0].asked(15);
    all[2].asked(15);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(all.iter().map(|link| link.orders().len()).sum::<usize>(), 0);
    thread::sleep(ONE_REQUEST);
    // A second one, at another rank.
    all[2].asked(2);
    assert_eq!([order(&all[0]), order(&all[1])], [Order::Signal(2), Order::Signal(2)]);
    for link in &all {
        link.ended(ending(Cause::Interrupted, "", 143));
    }
    for link in &all {
        assert_eq!(until(|| link.outcome()), Outcome { verdict: None });
    }
}

#[test]
fn a_trainer_that_was_interrupted_alone_takes_the_others_along() {
    let all = links(2);
    all[1].ended(ending(Cause::Interrupted, "", 143));
    assert_eq!(order(&all[0]), Order::Signal(15));
    all[0].ended(ending(Cause::Interrupted, "", 143));
    assert_eq!(until(|| all[0].outcome()), Outcome { verdict: None });
}

#[test]
fn a_supervisor_that_goes_without_a_word_is_lost() {
    let mut all = links(3);
    all[1].beat(working());
    thread::sleep(2 * BEAT_EVERY);
    drop(all.remove(1));
    for link in &all {
        assert_eq!(order(link), Order::End);
        link.ended(ending(Cause::Secondary, "", 5));
        let verdict = until(|| link.outcome()).verdict.expect("a rank is lost");
        assert_eq!((verdict.member.rank, verdict.cause), (1, Cause::Silent));
        assert!(
            verdict.words().contains("its connection closed, in step 3 of 9, phase update; 2 other"),
            "{}",
            verdict.words()
        );
    }
}

#[test]
fn without_rank_0_the_others_end() {
    let mut all = links(3);
    drop(all.remove(0));
    for link in &all {
        assert_eq!(order(link), Order::End);
        link.ended(ending(Cause::Secondary, "", 5));
        let verdict = until(|| link.outcome()).verdict.expect("rank 0 is lost");
        assert_eq!((verdict.member.rank, verdict.cause), (0, Cause::Silent));
    }
}

/// Passes bytes on between `from` and rank 0 at `port` until `is_silent`; then it holds both sides open and silent.
fn proxy(from: &TcpListener, port: u16, is_silent: &AtomicBool, is_over: &AtomicBool) {
    let (near, _) = from.accept().expect("rank 1 dials");
    let far = TcpStream::connect(("127.0.0.1", port)).expect("rank 0 listens");
    let pass = |mut one: &TcpStream, mut other: &TcpStream| {
        let mut bytes = [0; 4096];
        one.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket");
        while !is_over.load(Ordering::Relaxed) {
            if is_silent.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(50));
                continue;
            }
            match one.read(&mut bytes) {
                Ok(0) => return,
                Ok(length) => other.write_all(&bytes[..length]).expect("the other side reads"),
                Err(_) => {}
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| pass(&near, &far));
        pass(&far, &near);
    });
}

#[test]
fn a_silent_peer_is_lost_on_both_sides() {
    let (port, door) = (free_port(), TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let proxied = door.local_addr().expect("bound").port();
    let (is_silent, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let (is_silent, is_over) = (&is_silent, &is_over);
        let zero = scope.spawn(move || link(0, 2, port));
        // Rank 0 must listen before the proxy dials it.
        until(|| TcpStream::connect(("127.0.0.1", port)).ok());
        scope.spawn(move || proxy(&door, port, is_silent, is_over));
        let one = link(1, 2, proxied);
        let zero = zero.join().expect("no panic");
        thread::sleep(SILENCE_MAX + Duration::from_secs(1));
        assert_eq!((zero.orders(), one.orders()), (vec![], vec![]));
        is_silent.store(true, Ordering::Relaxed);
        for (link, lost) in [(&zero, 1), (&one, 0)] {
            assert_eq!(order(link), Order::End);
            link.ended(ending(Cause::Secondary, "", 5));
            let verdict = until(|| link.outcome()).verdict.expect("a rank is lost");
            assert_eq!(verdict.member.rank, lost);
            assert!(verdict.sentence.contains("its supervisor was silent for 2 s"), "{}", verdict.sentence);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_stopped_trainer_is_reported_by_the_hub() {
    let all = links(2);
    all[1].beat(Beat { state: 'T', ..working() });
    let Order::Say(words) = order(&all[0]) else { panic!("no words") };
    assert!(words.starts_with("warning[rank-stopped]: the other ranks wait for rank 1 (host "), "{words}");
    assert!(words.contains("pid 7, in step 3 of 9, phase update\nhint: "), "{words}");
    all[1].beat(working());
    assert!(matches!(order(&all[0]), Order::Say(words) if words.ends_with("goes on")));
    all.iter().for_each(|link| link.ended(ending(Cause::Finished, "", 0)));
}

#[test]
fn rank_0_knows_what_all_ranks_do() {
    let all = links(3);
    let beat = |waiting_ms| Beat { phase: "update".into(), step: 3, waiting_ms, ..working() };
    all.iter().zip([4, 0, 9]).for_each(|(link, waiting_ms)| link.beat(beat(waiting_ms)));
    let states = || all[0].rows().into_iter().map(|row| (row.rank, row.state, row.step)).collect::<Vec<_>>();
    let expect = [(0, State::Waits, 3), (1, State::Computes, 3), (2, State::Waits, 3)];
    until(|| (states() == expect).then_some(()));
    assert_eq!(all[1].rows(), [], "it is rank 0 that knows");
    all.iter().for_each(|link| link.ended(ending(Cause::Finished, "", 0)));
    all.iter().for_each(|link| assert_eq!(until(|| link.outcome()), Outcome { verdict: None }));
    assert!(all[0].rows().iter().all(|row| row.state == State::Finished), "{:?}", all[0].rows());
}
