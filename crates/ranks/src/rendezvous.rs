//! How the ranks of a run find one another: rank 0 listens, the others dial, both prove that they know the token, and rank 0
//! checks what each says of itself. Then all have the same list of ranks, or all end with the same error.
//!
//! A connection that has proved nothing costs one bounded buffer and a few seconds, and only a fixed number of them is held: a
//! stranger can neither enter nor keep others out. One loop and no thread; nothing in it waits for one peer alone.

use crate::environment::Launch;
use crate::errors::{Told, interrupted, lost};
use crate::hello::{Hello, Member, admit};
use crate::message::Message;
use crate::place::Place;
use crate::token::{NONCE_BYTES, Nonce, PROOF_BYTES, Side, Token, random_bytes};
use crate::window::Window;
use crate::wire::{Wire, wait};
use plimsoll_base::{Error, Result};
use std::fmt::Write;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// First bytes of both sides: the protocol and its version.
const MAGIC: [u8; 16] = *b"plimsoll-ranks/1";
/// Ports that rank 0 tries: torchrun's agent may hold the first one itself.
const PORTS_TRIED: u16 = 9;
/// From a connection's start until it has proved that it belongs to the job and said hello.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Connections without proof that are held; one more drops the oldest.
const STRANGERS_MAX: usize = 32;
/// Connections taken per turn of the loop.
const ACCEPTS_MAX: usize = 16;
const TURN: Duration = Duration::from_millis(100);
/// How often those that joined hear who is missing.
const WAIT_EVERY: Duration = Duration::from_millis(500);
/// Without a word for longer, rank 0 is lost.
const LISTENER_SILENCE_MAX: Duration = Duration::from_secs(10);
/// When the user learns for whom the run waits.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a listener with another token may be another job's, which ends soon.
const OTHER_JOB_MAX: Duration = Duration::from_secs(30);
const DIAL_MAX: Duration = Duration::from_secs(1);
const DIAL_AGAIN: Duration = Duration::from_millis(300);
/// For the last message before a connection is closed.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long to wait for the others, and what to do meanwhile.
pub struct Waiting<'a> {
    pub seconds: u32,
    /// Returns the number of a signal that asked for the end.
    pub stopped: &'a mut dyn FnMut() -> Option<i32>,
    /// Gets a line for the user.
    pub say: &'a mut dyn FnMut(&str),
}

/// All ranks, connected.
#[derive(Debug)]
pub struct Meeting {
    pub place: Place,
    /// In order of rank.
    pub members: Vec<Member>,
    pub(crate) wires: Wires,
}

#[derive(Debug)]
pub(crate) enum Wires {
    /// Rank 0, with the others' connections in order of rank from 1.
    Hub {
        window: Window,
        others: Vec<Wire>,
    },
    Joined(Wire),
}

/// Waits until all ranks of `launch` are there.
///
/// Errors: `rank-missing`, `ranks-token`, `ranks-differ`, `ranks-environment`, `ranks-hosts`, `card-shared`, `ranks-port`,
/// `rank-lost`, `interrupted`.
pub fn meet(launch: &Launch, token: &Token, hello: &Hello, mut waiting: Waiting<'_>) -> Result<Meeting> {
    let addresses = addresses(launch)?;
    match launch.rank {
        0 => gather(&listen(&addresses)?, token, hello, &mut waiting),
        _ => join(&addresses, token, hello, &mut waiting),
    }
}

/// Returns where rank 0 may listen, in the order of its tries: on this host alone if all ranks are on it, so that no other
/// host can dial.
fn addresses(launch: &Launch) -> Result<Vec<SocketAddr>> {
    let name = if launch.local_ranks == launch.ranks { "127.0.0.1" } else { &launch.address };
    let found = (name, launch.port).to_socket_addrs();
    let host = found.map_err(|err| err.to_string()).and_then(|mut all| all.next().ok_or("no address".into()));
    let host = host.map_err(|why| {
        Error::new("ranks-port", format!("{name}, where rank 0 listens, is no address here: {why}"))
            .hint("set MASTER_ADDR to an address of rank 0's host, for all ranks")
    })?;
    let last = launch.port.saturating_add(PORTS_TRIED - 1);
    Ok((launch.port..=last).map(|port| SocketAddr::new(host.ip(), port)).collect())
}

fn listen(addresses: &[SocketAddr]) -> Result<TcpListener> {
    let mut why = String::new();
    for address in addresses {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(err) => why = err.to_string(),
        }
    }
    let message = format!("rank 0 can listen on none of {}: {why}", shown(addresses));
    Err(Error::new("ranks-port", message).hint("set MASTER_PORT to a free port, for all ranks"))
}

fn shown(addresses: &[SocketAddr]) -> String {
    match addresses {
        [] => "no address".into(),
        [one] => one.to_string(),
        [first, .., last] => format!("{first} to {}", last.port()),
    }
}

/// A connection that has proved nothing yet.
struct Stranger {
    wire: Wire,
    since: Instant,
    ours: Nonce,
    /// Its nonce, once it sent it.
    theirs: Option<Nonce>,
    is_proved: bool,
}

enum Step {
    Wait,
    Drop,
    Enter(Hello),
}

impl Stranger {
    fn new(stream: TcpStream) -> std::io::Result<Stranger> {
        let wire = Wire::new(stream)?;
        Ok(Stranger { wire, since: Instant::now(), ours: random_bytes()?, theirs: None, is_proved: false })
    }

    /// Takes what has come: magic and nonce, then the proof, then the hello.
    fn step(&mut self, token: &Token) -> Step {
        self.wire.pump();
        let Some(theirs) = self.theirs else {
            let begin = &self.wire.peek()[..self.wire.peek().len().min(MAGIC.len())];
            if !MAGIC.starts_with(begin) {
                return Step::Drop;
            }
            let Some(greeting) = self.wire.take_bytes::<{ MAGIC.len() + NONCE_BYTES }>() else {
                return self.rest();
            };
            let mut theirs = [0; NONCE_BYTES];
            theirs.copy_from_slice(&greeting[MAGIC.len()..]);
            self.theirs = Some(theirs);
            self.wire.put_bytes(&MAGIC);
            self.wire.put_bytes(&self.ours);
            self.wire.put_bytes(&token.proof(Side::Listener, &theirs, &self.ours));
            self.wire.pump();
            return self.rest();
        };
        if !self.is_proved {
            let Some(proof) = self.wire.take_bytes::<PROOF_BYTES>() else { return self.rest() };
            if !token.is_proof(&proof, Side::Joiner, &theirs, &self.ours) {
                return Step::Drop;
            }
            self.is_proved = true;
        }
        match self.wire.take() {
            Some(Message::Hello(hello)) => Step::Enter(hello),
            Some(_) => Step::Drop,
            None => self.rest(),
        }
    }

    fn rest(&self) -> Step {
        match self.wire.over().is_some() || self.since.elapsed() >= HANDSHAKE_MAX {
            true => Step::Drop,
            false => Step::Wait,
        }
    }
}

/// Rank 0 while it waits.
struct Gathering<'a> {
    token: &'a Token,
    own: &'a Hello,
    strangers: Vec<Stranger>,
    joined: Vec<(Hello, Wire)>,
    /// Connections that spoke the protocol and did not prove the token.
    unproved: u32,
}

/// Waits for all ranks at `listener`.
fn gather(listener: &TcpListener, token: &Token, own: &Hello, waiting: &mut Waiting<'_>) -> Result<Meeting> {
    let window = Window::new()?;
    listener.set_nonblocking(true).map_err(|err| lost(format!("rank 0 cannot listen: {err}")))?;
    let mut all = Gathering { token, own, strangers: Vec::new(), joined: Vec::new(), unproved: 0 };
    match all.wait_for_all(listener, waiting) {
        Ok(()) => Ok(all.welcome(window)),
        Err(error) => {
            let refuse = Message::Refuse(Told::of(&error));
            for (_, wire) in &mut all.joined {
                wire.put(&refuse);
                wire.flush(FAREWELL);
            }
            Err(error)
        }
    }
}

impl Gathering<'_> {
    fn wait_for_all(&mut self, listener: &TcpListener, waiting: &mut Waiting<'_>) -> Result<()> {
        let started = Instant::now();
        let limit = Duration::from_secs(waiting.seconds.into());
        let (mut told, mut is_said) = (started, false);
        while !self.missing().is_empty() {
            if let Some(signal) = (waiting.stopped)() {
                return Err(interrupted(signal, &format!("while waiting for {}", ranks(&self.missing()))));
            }
            if started.elapsed() >= limit {
                return Err(self.rank_missing(waiting.seconds));
            }
            if !is_said && started.elapsed() >= PATIENCE {
                is_said = true;
                let place = listener.local_addr().map_or(String::new(), |address| format!(" at {address}"));
                (waiting.say)(&format!("rank 0 waits for {}{place}", ranks(&self.missing())));
            }
            if told.elapsed() >= WAIT_EVERY {
                told = Instant::now();
                let missing = Message::Wait { missing: self.missing() };
                self.joined.iter_mut().for_each(|(_, wire)| wire.put(&missing));
            }
            self.turn(listener)?;
        }
        Ok(())
    }

    fn turn(&mut self, listener: &TcpListener) -> Result<()> {
        let strangers = self.strangers.iter().map(|stranger| &stranger.wire);
        let wires: Vec<&Wire> = strangers.chain(self.joined.iter().map(|(_, wire)| wire)).collect();
        wait(&wires, &[listener.as_fd()], TURN);
        for _ in 0..ACCEPTS_MAX {
            let Ok((stream, _)) = listener.accept() else { break };
            if self.strangers.len() >= STRANGERS_MAX {
                self.strangers.remove(0);
            }
            self.strangers.extend(Stranger::new(stream).ok());
        }
        let mut index = 0;
        while index < self.strangers.len() {
            match self.strangers[index].step(self.token) {
                Step::Wait => index += 1,
                Step::Drop => {
                    let gone = self.strangers.remove(index);
                    self.unproved += u32::from(gone.theirs.is_some() && !gone.is_proved);
                }
                Step::Enter(hello) => {
                    let wire = self.strangers.remove(index).wire;
                    self.enter(hello, wire)?;
                }
            }
        }
        self.joined.iter_mut().try_for_each(|(hello, wire)| still_there(hello, wire))
    }

    fn enter(&mut self, hello: Hello, wire: Wire) -> Result<()> {
        let others: Vec<&Hello> =
            [self.own].into_iter().chain(self.joined.iter().map(|(it, _)| it)).collect();
        let admitted = admit(&others, &hello);
        // It joins in any case, so that it learns why the run does not begin.
        self.joined.push((hello, wire));
        admitted
    }

    fn missing(&self) -> Vec<u32> {
        let is_there = |rank: &u32| self.joined.iter().any(|(hello, _)| hello.rank == *rank);
        (1..self.own.ranks).filter(|rank| !is_there(rank)).collect()
    }

    fn rank_missing(&self, seconds: u32) -> Error {
        let missing = self.missing();
        let message = format!("{} of {} did not come within {seconds} s", ranks(&missing), self.own.ranks);
        let there = [self.own].into_iter().chain(self.joined.iter().map(|(hello, _)| hello));
        let there: Vec<String> = there.map(|hello| hello.member().words()).collect();
        let error = Error::new("rank-missing", message).fact(format!("there: {}", there.join(", ")));
        let error = match self.unproved {
            0 => error,
            n => error.fact(format!("{n} connections came that did not know this job's token")),
        };
        error
            .hint("look at the output of the missing ranks: one that ended before it came says why")
            .hint("--join-seconds N waits longer")
    }

    fn welcome(mut self, window: Window) -> Meeting {
        self.joined.sort_by_key(|(hello, _)| hello.rank);
        let members: Vec<Member> =
            [self.own].into_iter().chain(self.joined.iter().map(|(it, _)| it)).map(Hello::member).collect();
        let welcome = Message::Welcome { members: members.clone(), window: window.path() };
        let mut others: Vec<Wire> = self.joined.into_iter().map(|(_, wire)| wire).collect();
        others.iter_mut().for_each(|wire| {
            wire.put(&welcome);
            wire.pump();
        });
        let place = Place { rank: 0, ranks: self.own.ranks, window: window.path() };
        Meeting { place, members, wires: Wires::Hub { window, others } }
    }
}

/// Requires that a rank which joined neither left nor said something else.
fn still_there(hello: &Hello, wire: &mut Wire) -> Result<()> {
    wire.pump();
    let why = match (wire.take(), wire.over()) {
        (Some(_), _) => "it sent a message out of turn".to_string(),
        (None, Some(why)) => why.to_string(),
        (None, None) => return Ok(()),
    };
    let message = format!("{} ended before all ranks were there: {why}", hello.member().words());
    Err(lost(message).hint("look at its output: it says why it ended"))
}

/// Returns `rank 2` or `ranks 1, 2, 3`.
fn ranks(numbers: &[u32]) -> String {
    let mut text = if numbers.len() == 1 { "rank".to_string() } else { "ranks".into() };
    for (index, number) in numbers.iter().enumerate() {
        let _ = write!(text, "{} {number}", if index == 0 { "" } else { "," });
    }
    text
}

/// What the addresses had to offer.
#[derive(Default)]
struct Found {
    ours: Option<Wire>,
    /// Where a rank 0 with another token is.
    other_token: Option<SocketAddr>,
}

/// A connection whose listener has proved nothing yet.
struct Dialled {
    wire: Wire,
    address: SocketAddr,
    ours: Nonce,
}

enum Answer {
    /// Nothing so far.
    Wait,
    /// Nothing that speaks the protocol.
    Nothing,
    OtherToken,
    Ours,
}

/// Finds rank 0 at one of `addresses` and waits with it for the others.
fn join(addresses: &[SocketAddr], token: &Token, own: &Hello, waiting: &mut Waiting<'_>) -> Result<Meeting> {
    let (started, limit) = (Instant::now(), Duration::from_secs(waiting.seconds.into()));
    let mut other_token: Option<(Instant, SocketAddr)> = None;
    loop {
        let found = dial(addresses, token, started + limit, waiting)?;
        if let Some(address) = found.other_token {
            other_token.get_or_insert((Instant::now(), address));
        }
        if let Some(wire) = found.ours
            && let Some(meeting) = attend(wire, own, waiting)?
        {
            return Ok(meeting);
        }
        if let Some((since, address)) = other_token
            && since.elapsed() >= OTHER_JOB_MAX.min(limit / 2)
        {
            let message = format!("rank {}: the rank 0 at {address} has another token", own.rank);
            return Err(Error::usage("ranks-token", message)
                .hint("give all ranks of a job the same PLIMSOLL_TOKEN, or none of them")
                .hint("if it is another job's, give this job another MASTER_PORT"));
        }
        if started.elapsed() >= limit {
            let message = format!(
                "rank 0 of {} was not found at {} within {} s",
                own.ranks,
                shown(addresses),
                waiting.seconds
            );
            return Err(Error::new("rank-missing", message)
                .fact(format!("there: {}", own.member().words()))
                .hint("look at the output of rank 0: one that ended before it listened says why")
                .hint("--join-seconds N waits longer"));
        }
        let again = Instant::now() + DIAL_AGAIN;
        while Instant::now() < again {
            check(waiting, "while looking for rank 0")?;
            std::thread::sleep(TURN.min(DIAL_AGAIN));
        }
    }
}

fn check(waiting: &mut Waiting<'_>, doing: &str) -> Result<()> {
    (waiting.stopped)().map_or(Ok(()), |signal| Err(interrupted(signal, doing)))
}

/// Dials all addresses at once and exchanges proofs, so that one that is silent keeps no time from the others. It takes as long
/// as a handshake may, or until `end` if that is sooner.
fn dial(addresses: &[SocketAddr], token: &Token, end: Instant, waiting: &mut Waiting<'_>) -> Result<Found> {
    let mut dialled = Vec::with_capacity(addresses.len());
    let left = || end.saturating_duration_since(Instant::now());
    for address in addresses {
        check(waiting, "while looking for rank 0")?;
        let longest = DIAL_MAX.min(left());
        if longest.is_zero() {
            break;
        }
        let Ok(mut wire) = TcpStream::connect_timeout(address, longest).and_then(Wire::new) else { continue };
        let ours: Nonce =
            random_bytes().map_err(|err| lost(format!("the kernel's random numbers: {err}")))?;
        wire.put_bytes(&MAGIC);
        wire.put_bytes(&ours);
        dialled.push(Dialled { wire, address: *address, ours });
    }
    let until = end.min(Instant::now() + HANDSHAKE_MAX);
    let mut found = Found::default();
    while !dialled.is_empty() {
        let mut index = 0;
        while index < dialled.len() {
            match dialled[index].step(token) {
                Answer::Wait => index += 1,
                Answer::Nothing => drop(dialled.remove(index)),
                Answer::OtherToken => {
                    found.other_token.get_or_insert(dialled.remove(index).address);
                }
                Answer::Ours => {
                    found.ours = Some(dialled.remove(index).wire);
                    return Ok(found);
                }
            }
        }
        if Instant::now() >= until {
            break;
        }
        check(waiting, "while looking for rank 0")?;
        wait(&dialled.iter().map(|one| &one.wire).collect::<Vec<_>>(), &[], TURN.min(left()));
    }
    Ok(found)
}

impl Dialled {
    /// Takes what has come: magic, nonce and the listener's proof, which is answered.
    fn step(&mut self, token: &Token) -> Answer {
        self.wire.pump();
        let begin = &self.wire.peek()[..self.wire.peek().len().min(MAGIC.len())];
        if !MAGIC.starts_with(begin) {
            return Answer::Nothing;
        }
        let Some(greeting) = self.wire.take_bytes::<{ MAGIC.len() + NONCE_BYTES + PROOF_BYTES }>() else {
            return if self.wire.over().is_some() { Answer::Nothing } else { Answer::Wait };
        };
        let (nonce, proof) = greeting[MAGIC.len()..].split_at(NONCE_BYTES);
        let theirs: Nonce = nonce.try_into().expect("the greeting has a nonce");
        if !token.is_proof(proof, Side::Listener, &self.ours, &theirs) {
            return Answer::OtherToken;
        }
        self.wire.put_bytes(&token.proof(Side::Joiner, &self.ours, &theirs));
        Answer::Ours
    }
}

/// Says hello and waits for the welcome; from here rank 0's deadline counts. `None` if rank 0 let this connection go before it
/// had answered.
fn attend(mut wire: Wire, own: &Hello, waiting: &mut Waiting<'_>) -> Result<Option<Meeting>> {
    wire.put(&Message::Hello(own.clone()));
    let (mut heard, mut is_in) = (Instant::now(), false);
    loop {
        wire.pump();
        match wire.take() {
            Some(Message::Wait { .. }) => (heard, is_in) = (Instant::now(), true),
            Some(Message::Welcome { members, window }) => {
                let place = Place { rank: own.rank, ranks: own.ranks, window };
                return Ok(Some(Meeting { place, members, wires: Wires::Joined(wire) }));
            }
            Some(Message::Refuse(told)) => return Err(told.error()),
            Some(_) => return Err(lost("rank 0 sent a message out of turn")),
            None => {
                let silent = heard.elapsed() >= LISTENER_SILENCE_MAX;
                let why = wire.over().map(str::to_string).or(silent.then(|| "it is silent".into()));
                match why {
                    None => wait(&[&wire], &[], TURN),
                    Some(why) if is_in => {
                        return Err(lost(format!("rank 0 ended before all ranks were there: {why}"))
                            .hint("look at the output of rank 0: it says why it ended"));
                    }
                    Some(_) => return Ok(None),
                }
            }
        }
        check(waiting, "while waiting for other ranks")?;
    }
}

#[cfg(test)]
#[path = "rendezvous_tests.rs"]
mod tests;
