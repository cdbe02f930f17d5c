//! Rendezvous in threads: ranks that fit, ranks that do not, and strangers on the port.

use super::*;
use crate::environment::Launcher;
use crate::knock::{MAGIC, STRANGERS_MAX};
use crate::notice::Board;
use crate::token::{NONCE_BYTES, PROOF_BYTES};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Generous: a test may be slow, and depends on it only where somebody is missing.
const LONG: u32 = 60;

fn launch(rank: u32, ranks: u32) -> Launch {
    Launch {
        rank,
        ranks,
        local_rank: rank,
        local_ranks: ranks,
        address: "127.0.0.1".into(),
        port: 1,
        id: "test".into(),
        launcher: Launcher::Torchrun,
    }
}

fn token(secret: &str) -> Token {
    Token::new(&launch(0, 2), Some(secret))
}

fn hello(rank: u32, ranks: u32) -> Hello {
    let alike = [("build".to_string(), "1".to_string())];
    Hello { pid: 100 + rank, ..Hello::of_this_process(&launch(rank, ranks), None, alike) }
}

fn with_waiting<T>(seconds: u32, work: impl FnOnce(&mut Waiting<'_>) -> T) -> T {
    let (mut stopped, mut say) = (|| None, |_: &str| {});
    work(&mut Waiting { seconds, notice: Notice::default(), stopped: &mut stopped, say: &mut say })
}

/// Rank 0 at a free port.
struct Place0 {
    listener: TcpListener,
    address: SocketAddr,
}

impl Place0 {
    fn new() -> Place0 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        Place0 { listener, address }
    }

    fn gather(&self, ranks: u32, seconds: u32) -> Result<Meeting> {
        with_waiting(seconds, |waiting| gather(&self.listener, &token("s"), hello(0, ranks), waiting))
    }
}

fn joins(address: SocketAddr, secret: &str, hello: &Hello, seconds: u32) -> Result<Meeting> {
    with_waiting(seconds, |waiting| join(&|| Ok(vec![address]), &token(secret), hello.clone(), waiting))
}

fn slug(result: Result<Meeting>) -> &'static str {
    result.map_or_else(|error| error.slug, |_| "met")
}

#[test]
fn all_ranks_get_one_list() {
    let zero = Place0::new();
    let address = zero.address;
    let met: Vec<Meeting> = thread::scope(|scope| {
        let others: Vec<_> =
            (1..5).map(|rank| scope.spawn(move || joins(address, "s", &hello(rank, 5), LONG))).collect();
        let first = zero.gather(5, LONG).expect("all come");
        let others = others.into_iter().map(|other| other.join().expect("no panic").expect("it joins"));
        [first].into_iter().chain(others).collect()
    });
    for (rank, meeting) in met.iter().enumerate() {
        assert_eq!((meeting.place.rank, meeting.place.ranks), (rank as u32, 5));
        assert_eq!(meeting.members, met[0].members);
        assert_eq!(meeting.place.window, met[0].place.window);
        assert!(std::fs::File::open(&meeting.place.window).is_ok(), "the window opens");
    }
    assert_eq!(
        met[0].members.iter().map(|it| (it.rank, it.pid)).collect::<Vec<_>>(),
        (0..5).map(|n| (n, 100 + n)).collect::<Vec<_>>()
    );
}

#[test]
fn a_rank_that_comes_late_joins_whichever_it_is() {
    // Rank 1 is late; then rank 0 is.
    let zero = Place0::new();
    let address = zero.address;
    thread::scope(|scope| {
        let late = scope.spawn(move || {
            thread::sleep(Duration::from_secs(2));
            joins(address, "s", &hello(1, 2), LONG)
        });
        assert_eq!(slug(zero.gather(2, LONG)), "met");
        assert_eq!(slug(late.join().expect("no panic")), "met");
    });
    drop(zero);
    thread::scope(|scope| {
        let early = scope.spawn(move || joins(address, "s", &hello(1, 2), LONG));
        thread::sleep(Duration::from_secs(1));
        let listener = TcpListener::bind(address).expect("the port is free again");
        let zero = Place0 { listener, address };
        assert_eq!(slug(zero.gather(2, LONG)), "met");
        assert_eq!(slug(early.join().expect("no panic")), "met");
    });
}

#[test]
fn a_missing_rank_is_named_and_so_are_those_that_came() {
    let zero = Place0::new();
    let address = zero.address;
    thread::scope(|scope| {
        let one = scope.spawn(move || joins(address, "s", &hello(1, 4), LONG));
        // A program that looks for open ports.
        drop(TcpStream::connect(address).expect("it listens"));
        let error = zero.gather(4, 2).expect_err("two are missing");
        assert_eq!(
            (error.slug, &*error.message),
            ("rank-missing", "ranks 2, 3 of 4 did not come within 2 s")
        );
        assert!(error.facts[0].contains("rank 0 (host ") && error.facts[0].contains("pid 101"), "{error}");
        assert!(
            error.facts[1].starts_with("1 connection came and proved nothing: 1 from 127.0.0.1"),
            "{error}"
        );
        // The one that came ends with the same error.
        assert_eq!(one.join().expect("no panic").expect_err("no run"), error);
    });
    let nowhere = Place0::new().address;
    let error = joins(nowhere, "s", &hello(3, 4), 1).expect_err("no rank 0");
    assert_eq!(error.slug, "rank-missing");
    assert!(error.message.contains("rank 0 of 4 was not found"), "{error}");
}

#[test]
fn a_wrong_token_is_named_and_does_not_enter() {
    let zero = Place0::new();
    let address = zero.address;
    thread::scope(|scope| {
        let wrong = scope.spawn(move || joins(address, "other", &hello(1, 2), 2));
        let error = zero.gather(2, 4).expect_err("it does not come");
        assert_eq!(error.slug, "rank-missing");
        assert!(error.facts.iter().any(|fact| fact.contains("did not know this job's token")), "{error}");
        let error = wrong.join().expect("no panic").expect_err("it is refused");
        assert_eq!(error.slug, "ranks-token");
    });
}

#[test]
fn a_rank_that_differs_ends_all_with_one_error() {
    let changed = |change: fn(&mut Hello)| {
        let mut hello = hello(2, 3);
        change(&mut hello);
        hello
    };
    for (other, expect) in [
        (changed(|it| it.alike = BTreeMap::from([("build".into(), "2".into())])), "ranks-differ"),
        (changed(|it| it.site = "other".into()), "ranks-hosts"),
        (changed(|it| it.rank = 1), "ranks-environment"),
        (changed(|it| it.ranks = 4), "ranks-environment"),
    ] {
        let zero = Place0::new();
        let address = zero.address;
        thread::scope(|scope| {
            let one = scope.spawn(move || joins(address, "s", &hello(1, 3), LONG));
            let two = scope.spawn(move || {
                // After rank 1, so that it is the newcomer.
                thread::sleep(Duration::from_millis(700));
                joins(address, "s", &other, LONG)
            });
            let error = zero.gather(3, LONG).expect_err(expect);
            assert_eq!(error.slug, expect, "{error}");
            for told in [one, two] {
                assert_eq!(told.join().expect("no panic").expect_err("no run"), error);
            }
        });
    }
}

#[test]
fn one_that_leaves_before_all_are_there_ends_the_wait() {
    let zero = Place0::new();
    let address = zero.address;
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut waits = 0;
            let mut stopped = || {
                waits += 1;
                (waits > 10).then_some(15)
            };
            let mut waiting =
                Waiting { seconds: LONG, notice: Notice::default(), stopped: &mut stopped, say: &mut |_| {} };
            let error =
                join(&|| Ok(vec![address]), &token("s"), hello(1, 3), &mut waiting).expect_err("stopped");
            assert_eq!((error.slug, error.exit), ("interrupted", plimsoll_base::Exit::Terminated));
        });
        let error = zero.gather(3, LONG).expect_err("rank 1 left");
        assert_eq!(error.slug, "rank-lost");
        // What the connection says of its end depends on what was under way.
        assert!(
            error.message.contains("rank 1 (host ")
                && error.message.contains("ended before all ranks were there"),
            "{error}"
        );
    });
}

/// A launcher knows of a rank that ended before it came, and no other process does.
#[test]
fn the_end_of_a_rank_that_never_came_ends_the_wait() {
    let zero = Place0::new();
    let nowhere = Place0::new().address;
    let mut board = Board::new().expect("memory");
    board.write("rank 2, its supervisor with pid 9, was killed by signal 9");
    let (mut stopped, mut say) = (|| None, |_: &str| {});
    let notice = Notice::at(&board);
    let waiting = &mut Waiting { seconds: LONG, notice, stopped: &mut stopped, say: &mut say };
    let waits = gather(&zero.listener, &token("s"), hello(0, 3), waiting);
    let looks = join(&|| Ok(vec![nowhere]), &token("s"), hello(1, 3), waiting);
    for error in [waits, looks].map(|result| result.expect_err("no run")) {
        assert!(error.slug == "rank-lost" && error.message.starts_with("rank 2, its"), "{error}");
    }
}

/// Returns what strangers send; each returns when the other side has closed, or when it has sent all.
fn stranger(address: SocketAddr, kind: usize, is_over: &AtomicBool) {
    let Ok(mut stream) = TcpStream::connect(address) else { return };
    let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
    let mut rest = [0; 256];
    match kind {
        // A browser.
        0 => drop(stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")),
        // Bytes without end.
        1 => {
            let chunk = vec![7; 1 << 20];
            for _ in 0..1024 {
                if stream.write_all(&chunk).is_err() || is_over.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
        // The right beginning, then one byte at a time.
        2 => {
            for byte in MAGIC.iter().chain(&[1; 200]) {
                if stream.write_all(&[*byte]).is_err() || is_over.load(Ordering::Relaxed) {
                    return;
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
        // The right beginning and a wrong proof, with a hello after it.
        3 => {
            let _ = stream.write_all(&MAGIC).and_then(|()| stream.write_all(&[1; NONCE_BYTES + PROOF_BYTES]));
            let _ = stream.write_all(&20u32.to_le_bytes()).and_then(|()| stream.write_all(&[b'{'; 20]));
        }
        // Half of the beginning.
        4 => drop(stream.write_all(&MAGIC[..7])),
        // Silence.
        _ => {}
    }
    while !is_over.load(Ordering::Relaxed) {
        if matches!(stream.read(&mut rest), Ok(0)) {
            return;
        }
    }
}

#[test]
fn strangers_neither_enter_nor_block_nor_crash() {
    let zero = Place0::new();
    let address = zero.address;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for kind in 0..6 {
            let is_over = &is_over;
            scope.spawn(move || stranger(address, kind, is_over));
        }
        // More silent ones than are held.
        let silent: Vec<TcpStream> =
            (0..2 * STRANGERS_MAX).filter_map(|_| TcpStream::connect(address).ok()).collect();
        let one = scope.spawn(move || {
            thread::sleep(Duration::from_secs(1));
            joins(address, "s", &hello(1, 2), LONG)
        });
        let met = zero.gather(2, LONG).expect("rank 1 comes in spite of them");
        assert_eq!(met.members.len(), 2);
        assert_eq!(slug(one.join().expect("no panic")), "met");
        is_over.store(true, Ordering::Relaxed);
        drop((silent, met));
    });
}

/// Connects from another address of this host.
fn connect_from(from: [u8; 4], to: SocketAddr) -> Option<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
    bind(&socket, &SocketAddr::from((from, 0))).and_then(|()| connect(&socket, &to)).ok()?;
    Some(socket.into())
}

/// Passes one connection on, each part after `delay`.
fn relay(near: TcpStream, to: SocketAddr, delay: Duration) {
    near.set_nonblocking(false).expect("a socket");
    let far = TcpStream::connect(to).expect("it listens");
    let pass = |mut from: TcpStream, mut to: TcpStream| {
        let mut part = [0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut part) {
            thread::sleep(delay);
            if to.write_all(&part[..length]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
    };
    let [near_too, far_too] = [&near, &far].map(|stream| stream.try_clone().expect("a descriptor"));
    thread::scope(|scope| {
        scope.spawn(|| pass(near, far));
        pass(far_too, near_too);
    });
}

/// A stranger near rank 0, as fast as it can, and a rank whose words travel: they took its place among the unproved.
#[test]
fn r_silent_connections_kept_a_far_rank_out() {
    const FAR: Duration = Duration::from_millis(40);
    let zero = Place0::new();
    let address = zero.address;
    let between = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let near = between.local_addr().expect("bound");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let is_over = &is_over;
        scope.spawn(move || {
            let mut held: Vec<Option<TcpStream>> = (0..2 * STRANGERS_MAX).map(|_| None).collect();
            for number in (0..held.len()).cycle() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                held[number] = connect_from([127, 0, 0, 2], address);
            }
        });
        scope.spawn(move || {
            // Its connection is new to rank 0 each time that the rank dials.
            between.set_nonblocking(true).expect("a socket");
            while !is_over.load(Ordering::Relaxed) {
                match between.accept() {
                    Ok((stream, _)) => relay(stream, address, FAR),
                    Err(_) => thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        let one = scope.spawn(move || joins(near, "s", &hello(1, 2), LONG));
        let met = zero.gather(2, LONG);
        let joined = one.join().expect("no panic");
        is_over.store(true, Ordering::Relaxed);
        assert_eq!((slug(met), slug(joined)), ("met", "met"));
    });
}

#[test]
fn a_member_that_sends_what_no_rank_sends_ends_the_wait() {
    for bytes in
        [&u32::MAX.to_le_bytes()[..], &[9, 0, 0, 0, b'{', b'"', b'x', b'"', b':', b'0', b'}', b' ', b' ']]
    {
        let zero = Place0::new();
        let address = zero.address;
        thread::scope(|scope| {
            scope.spawn(move || {
                with_waiting(LONG, |waiting| {
                    let end = Instant::now() + HANDSHAKE_MAX;
                    let found = dial(&[address], &token("s"), end, waiting).expect("no signal");
                    let mut wire = found.ours.expect("an answer");
                    wire.put(&Message::Hello(Box::new(hello(1, 3))));
                    wire.put_bytes(bytes);
                    wire.flush(FAREWELL);
                    while wire.over().is_none() {
                        wire.pump();
                        thread::sleep(Duration::from_millis(10));
                    }
                });
            });
            let error = zero.gather(3, LONG).expect_err("garbage");
            assert_eq!(error.slug, "rank-lost");
            assert!(error.message.contains("it sent "), "{error}");
        });
    }
}

#[test]
fn a_listener_that_is_no_rank_0_is_passed_over() {
    // As torchrun's agent, which holds the first port itself.
    let agent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let agent_address = agent.local_addr().expect("bound");
    let zero = Place0::new();
    let addresses = [agent_address, zero.address];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let is_over = &is_over;
        scope.spawn(move || {
            agent.set_nonblocking(true).expect("a socket");
            while !is_over.load(Ordering::Relaxed) {
                if let Ok((mut stream, _)) = agent.accept() {
                    let _ = stream.write_all(b"\x05validate me, I am a store");
                }
                thread::sleep(Duration::from_millis(10));
            }
        });
        let one = scope.spawn(move || {
            with_waiting(LONG, |waiting| join(&|| Ok(addresses.to_vec()), &token("s"), hello(1, 2), waiting))
        });
        assert_eq!(slug(zero.gather(2, LONG)), "met");
        assert_eq!(slug(one.join().expect("no panic")), "met");
        is_over.store(true, Ordering::Relaxed);
    });
    let again: Vec<TcpListener> =
        ports(agent_address.port()).filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).collect();
    let taken = Launch { port: agent_address.port(), ..launch(0, 2) };
    assert_eq!(listen(&taken).expect_err("all are taken").slug, "ranks-port");
    drop(again);
}

#[test]
fn rank_0_listens_on_its_host_alone_if_all_ranks_are_there() {
    let of = |local_ranks: u32, port: u16| {
        super::addresses(&Launch {
            address: "no.such.host.invalid".into(),
            local_ranks,
            port,
            ..launch(0, 2)
        })
    };
    let all = of(2, 29_500).expect("loopback");
    assert!(all.iter().all(|address| address.ip().is_loopback()), "{all:?}");
    assert_eq!(shown(&all), "127.0.0.1:29500 to 29508");
    assert_eq!(of(2, u16::MAX).expect("loopback").len(), 1);
    assert_eq!(of(1, 29_500).expect_err("no address").slug, "ranks-port");
}

/// Programs that listen and say nothing, as `squatall` of an attack: they took 5 s each, whatever the limit.
#[test]
fn r_silent_listeners_took_more_time_than_there_was() {
    let silent: Vec<TcpListener> =
        (0..9).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    let addresses: Vec<SocketAddr> =
        silent.iter().map(|one| one.local_addr().expect("it is bound")).collect();
    let begun = Instant::now();
    let join_all = |addresses: &[SocketAddr], ranks, seconds| {
        with_waiting(seconds, |waiting| {
            join(&|| Ok(addresses.to_vec()), &token("s"), hello(1, ranks), waiting)
        })
    };
    assert_eq!(slug(join_all(&addresses, 2, 1)), "rank-missing");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // And rank 0, the last of ten, is found.
    let zero = Place0::new();
    let all = [&addresses[..], &[zero.address]].concat();
    let begun = Instant::now();
    thread::scope(|scope| {
        let other = scope.spawn(|| join_all(&all, 2, LONG));
        zero.gather(2, LONG).expect("rank 1 comes");
        other.join().expect("no panic").expect("it joins");
    });
    assert!(begun.elapsed() < HANDSHAKE_MAX, "{:?}", begun.elapsed());
}
