//! How the ranks of a run find each other: rank 0 listens, the others dial, both prove that they know the token, and
//! rank 0 checks what each says about itself. Then all have the same list of ranks, or all end with the same error.
//!
//! An unproved connection costs one bounded buffer and a few seconds, and only a fixed number is held, of which a flood
//! gives way to ranks (`strangers.rs`): a stranger can neither enter nor keep others out. One loop, no thread; nothing
//! in it waits for one peer alone.

use crate::environment::Launch;
use crate::errors::{WireError, interrupted, lost};
use crate::hello::{Hello, Member, admit, members_of, oddities};
use crate::hosts::{AddressBook, Posted};
use crate::interface::Interface;
use crate::knock::{Answer, Dialled, HANDSHAKE_MAX};
use crate::message::Message;
use crate::notice::Notice;
use crate::place::Place;
use crate::strangers::Strangers;
use crate::token::Token;
use crate::welcome;
use crate::window::Window;
use crate::wire::{Wire, wait};
use plimsoll_base::{Error, Result};
use std::fmt::Write;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Ports that rank 0 tries: torchrun's agent may hold the first one.
const PORTS_TRIED: u16 = 9;
/// Addresses tried per name.
const IPS_TRIED: usize = 8;
/// All interfaces: of both families, or of IPv4 alone if there is no IPv6.
const EVERYWHERE: [IpAddr; 2] = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
const TURN: Duration = Duration::from_millis(100);
/// How often ranks that joined hear who is missing.
const WAIT_EVERY: Duration = Duration::from_millis(500);
/// Rank 0 is lost after this silence.
const LISTENER_SILENCE_MAX: Duration = Duration::from_secs(10);
/// When the user learns which ranks are missing.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a listener with another token may belong to another job, which ends soon.
const OTHER_JOB_MAX: Duration = Duration::from_secs(30);
const DIAL_AGAIN: Duration = Duration::from_millis(300);
/// Time for the last message before a connection closes.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long to wait for the other ranks, and what to do meanwhile.
pub struct Waiting<'a> {
    pub seconds: u32,
    /// The launcher's notice of ranks that end meanwhile.
    pub notice: Notice,
    /// Returns the number of a signal that asked the run to end.
    pub stopped: &'a mut dyn FnMut() -> Option<i32>,
    /// Prints a line for the user.
    pub say: &'a mut dyn FnMut(&str),
}

#[derive(Debug)]
pub struct Meeting {
    pub place: Place,
    /// In order of rank.
    pub members: Vec<Member>,
    pub(crate) wires: Wires,
    /// The window of this host; at its first rank only.
    pub(crate) window: Option<Window>,
    /// Kept open for the trainer while it lives.
    pub(crate) mail: Option<Mail>,
}

#[derive(Debug)]
pub(crate) enum Wires {
    /// Rank 0, with the others' connections in order of rank from 1.
    Hub(Vec<Wire>),
    Joined(Wire),
}

/// How this rank's trainer and those of other hosts find each other.
#[derive(Debug)]
pub(crate) struct Mail {
    _letter: Posted,
    listener: TcpListener,
}

impl Meeting {
    /// Duplicates the socket at which this rank's trainer listens, if there are several hosts.
    pub(crate) fn listener(&self) -> std::io::Result<Option<TcpListener>> {
        self.mail.as_ref().map(|mail| mail.listener.try_clone()).transpose()
    }
}

/// Waits until all ranks of `launch` have joined.
///
/// Errors: `rank-missing`, `ranks-token`, `ranks-differ`, `ranks-environment`, `ranks-hosts`, `card-shared`,
/// `ranks-port`, `ranks-window`, `rank-lost`, `interrupted`.
pub fn meet(launch: &Launch, token: &Token, hello: &Hello, mut waiting: Waiting<'_>) -> Result<Meeting> {
    match launch.rank {
        0 => gather(&listen(launch)?, token, hello.clone(), &mut waiting),
        _ => join(&|| addresses(launch), token, hello.clone(), &mut waiting),
    }
}

/// Returns where rank 0 may listen, the first port on all its addresses first; only on loopback if all ranks are on
/// this host, so that no other host can dial.
///
/// Errors: `ranks-port`.
fn addresses(launch: &Launch) -> Result<Vec<SocketAddr>> {
    let name = if launch.local_ranks == launch.ranks { "127.0.0.1" } else { &launch.address };
    let found = (name, launch.port).to_socket_addrs().map_err(|err| err.to_string());
    let mut ips: Vec<IpAddr> = Vec::new();
    for address in found.as_ref().map_or(Vec::new(), |all| all.clone().take(IPS_TRIED).collect()) {
        if !ips.contains(&address.ip()) {
            ips.push(address.ip());
        }
    }
    if ips.is_empty() {
        let why = found.err().unwrap_or_else(|| "no address".into());
        return Err(Error::new(
            "ranks-port",
            format!("{name}, where rank 0 listens, is no address here: {why}"),
        )
        .hint("set MASTER_ADDR, or --join, to an address of rank 0's host, for all ranks"));
    }
    let at = |port| ips.iter().map(move |ip| SocketAddr::new(*ip, port));
    Ok(ports(launch.port).flat_map(at).collect())
}

fn ports(first: u16) -> impl Iterator<Item = u16> {
    first..=first.saturating_add(PORTS_TRIED - 1)
}

/// Listens where the others look: at the address they have if this host owns it, else on all interfaces, because the
/// name may resolve differently here, or not yet.
///
/// Errors: `ranks-port`.
fn listen(launch: &Launch) -> Result<TcpListener> {
    let found = addresses(launch);
    let mut ips: Vec<IpAddr> = Vec::new();
    if launch.local_ranks == launch.ranks {
        ips.push(Ipv4Addr::LOCALHOST.into());
    } else {
        let own = found.iter().flatten().map(SocketAddr::ip);
        let own: Vec<IpAddr> = own.take_while(|ip| !ip.is_loopback()).take(1).collect();
        ips.extend(own);
        ips.extend(EVERYWHERE);
    }
    let mut why = String::new();
    for port in ports(launch.port) {
        for ip in &ips {
            match TcpListener::bind((*ip, port)) {
                Ok(listener) => return Ok(listener),
                Err(err) => {
                    why = err.to_string();
                    if err.kind() == ErrorKind::AddrInUse {
                        break;
                    }
                }
            }
        }
    }
    let tried: Vec<SocketAddr> = ports(launch.port).map(|port| SocketAddr::new(ips[0], port)).collect();
    let message = format!("rank 0 can listen on none of {}: {why}", shown(&tried));
    Err(Error::new("ranks-port", message)
        .hint("set MASTER_PORT, or the port of --join, to a free one, for all ranks"))
}

/// Opens the listener of this rank's trainer, on the interface by which its supervisor reaches the others.
///
/// Errors: `ranks-port`.
fn listen_for_trainer(ip: Option<IpAddr>) -> Result<TcpListener> {
    let known = ip.filter(|ip| !ip.is_loopback() && !ip.is_unspecified());
    let mut why = String::new();
    for ip in known.into_iter().chain(EVERYWHERE) {
        match TcpListener::bind((ip, 0)) {
            Ok(listener) => {
                // The trainer inherits it.
                let kept = rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty());
                return kept.map(|()| listener).map_err(|err| no_port(&err.to_string()));
            }
            Err(err) => why = err.to_string(),
        }
    }
    Err(no_port(&why))
}

fn no_port(why: &str) -> Error {
    Error::new("ranks-port", format!("no port for the trainers of other hosts: {why}"))
        .hint("check the limits on open files: ulimit -n")
}

fn shown(addresses: &[SocketAddr]) -> String {
    match addresses {
        [] => "no address".into(),
        [one] => one.to_string(),
        [first, .., last] => format!("{first} to {}", last.port()),
    }
}

/// Returns a member's address as reached from here: an unspecified or loopback one is on the host of `hub`, rank 0.
fn as_seen(address: Option<SocketAddr>, hub: Option<SocketAddr>) -> Option<SocketAddr> {
    let is_bare = |ip: IpAddr| ip.is_unspecified() || ip.is_loopback();
    let address = address?;
    Some(
        hub.filter(|_| is_bare(address.ip()))
            .map_or(address, |hub| SocketAddr::new(hub.ip(), address.port())),
    )
}

/// Returns the trainer's place, and what to keep open for it. `listener`: where it listens, if there are several hosts.
///
/// Errors: `ranks-window`.
fn settle(
    rank: u32,
    members: &[Member],
    window: PathBuf,
    listener: Option<TcpListener>,
    token: &Token,
) -> Result<(Place, Option<Mail>)> {
    let hosts: Vec<u32> = members.iter().map(|member| member.site).collect();
    let mut place = Place { rank, ranks: members.len() as u32, hosts, window, away: None };
    // A launcher may count several hosts although processes see each other.
    let has_others = place.hosts.iter().any(|host| *host > 0);
    let Some(listener) = listener.filter(|_| has_others) else { return Ok((place, None)) };
    let book = AddressBook::of(members, token).post()?;
    place.away = Some(book.away(listener.as_raw_fd()));
    Ok((place, Some(Mail { _letter: book, listener })))
}

/// Rank 0 while it waits for the others.
struct Gathering<'a> {
    token: &'a Token,
    own: Hello,
    strangers: Strangers,
    joined: Vec<(Hello, Wire)>,
    /// Warnings for the user about ranks that joined.
    warnings: Vec<String>,
}

/// Waits for all ranks at `listener`.
fn gather(
    listener: &TcpListener,
    token: &Token,
    mut own: Hello,
    waiting: &mut Waiting<'_>,
) -> Result<Meeting> {
    let window = Window::new()?;
    own.window = window.path();
    Strangers::listen(listener).map_err(|err| lost(format!("rank 0 cannot listen: {err}")))?;
    let ip = listener.local_addr().ok().map(|address| address.ip());
    let trainers = (!own.is_of_one_host()).then(|| listen_for_trainer(ip)).transpose()?;
    own.address = trainers.as_ref().and_then(|trainers| trainers.local_addr().ok());
    let mut all =
        Gathering { token, own, strangers: Strangers::default(), joined: Vec::new(), warnings: Vec::new() };
    match all.wait_for_all(listener, waiting) {
        Ok(()) => all.welcome(window, trainers),
        Err(error) => {
            let refuse = Message::Refuse(WireError::of(&error));
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
            waiting.notice.check()?;
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
            self.warnings.drain(..).for_each(|words| (waiting.say)(&words));
        }
        Ok(())
    }

    fn turn(&mut self, listener: &TcpListener) -> Result<()> {
        let joined = self.joined.iter().map(|(_, wire)| wire);
        wait(&self.strangers.wires().chain(joined).collect::<Vec<_>>(), &[listener.as_fd()], TURN);
        for (message, wire) in self.strangers.turn(listener, self.token) {
            if let Message::Hello(hello) = message {
                self.enter(*hello, wire)?;
            }
        }
        self.joined.iter_mut().try_for_each(|(hello, wire)| still_there(hello, wire))
    }

    fn enter(&mut self, mut hello: Hello, wire: Wire) -> Result<()> {
        if hello.address.is_some_and(|address| address.ip().is_unspecified()) {
            hello.address = as_seen(hello.address, wire.peer_addr());
        }
        let others: Vec<&Hello> =
            [&self.own].into_iter().chain(self.joined.iter().map(|(it, _)| it)).collect();
        let admitted = admit(&others, &hello);
        // Once per host.
        let is_first = others.iter().all(|other| other.site != hello.site);
        if let Some(peer) = wire.peer_addr().filter(|_| is_first && admitted.is_ok()) {
            self.warnings.extend(oddities(&hello, &Interface::towards(peer.ip()), clock_micros()));
        }
        // It joins in any case, so that it learns why the run does not begin.
        self.joined.push((hello, wire));
        admitted
    }

    fn missing(&self) -> Vec<u32> {
        let has_joined = |rank: &u32| self.joined.iter().any(|(hello, _)| hello.rank == *rank);
        (1..self.own.ranks).filter(|rank| !has_joined(rank)).collect()
    }

    fn rank_missing(&self, seconds: u32) -> Error {
        let missing = self.missing();
        let message = format!("{} of {} did not come within {seconds} s", ranks(&missing), self.own.ranks);
        let there = [&self.own].into_iter().chain(self.joined.iter().map(|(hello, _)| hello));
        let there: Vec<String> = there.map(Hello::words).collect();
        let error = Error::new("rank-missing", message).fact(format!("there: {}", there.join(", ")));
        let error = self.strangers.facts().into_iter().fold(error, Error::fact);
        error
            .hint("look at the output of the missing ranks: one that ended before it came says why")
            .hint("--join-seconds N waits longer")
    }

    fn welcome(mut self, window: Window, trainers: Option<TcpListener>) -> Result<Meeting> {
        self.joined.sort_by_key(|(hello, _)| hello.rank);
        let all: Vec<&Hello> = [&self.own].into_iter().chain(self.joined.iter().map(|(it, _)| it)).collect();
        let (members, windows): (Vec<Member>, Vec<PathBuf>) = members_of(&all).into_iter().unzip();
        let mut others: Vec<Wire> = self.joined.into_iter().map(|(_, wire)| wire).collect();
        others.iter_mut().zip(&windows[1..]).for_each(|(wire, window)| {
            wire.put(&Message::Welcome { members: members.clone(), window: window.clone() });
            wire.pump();
        });
        let (place, mail) = settle(0, &members, window.path(), trainers, self.token)?;
        Ok(Meeting { place, members, wires: Wires::Hub(others), window: Some(window), mail })
    }
}

/// Checks that a rank which joined neither left nor sent anything else.
fn still_there(hello: &Hello, wire: &mut Wire) -> Result<()> {
    wire.pump();
    let why = match (wire.take(), wire.over()) {
        (Some(_), _) => "it sent a message out of turn".to_string(),
        (None, Some(why)) => why.to_string(),
        (None, None) => return Ok(()),
    };
    let message = format!("{} ended before all ranks were there: {why}", hello.words());
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

/// Holds what dialling the addresses found.
#[derive(Default)]
struct Found {
    ours: Option<Wire>,
    /// Address of a rank 0 with another token.
    other_token: Option<SocketAddr>,
}

/// Finds rank 0 at an address that `look` returns, then waits with it for the others.
fn join(
    look: &dyn Fn() -> Result<Vec<SocketAddr>>,
    token: &Token,
    mut own: Hello,
    waiting: &mut Waiting<'_>,
) -> Result<Meeting> {
    let (started, limit) = (Instant::now(), Duration::from_secs(waiting.seconds.into()));
    let mut other_token: Option<(Instant, SocketAddr)> = None;
    let window = Window::new()?;
    own.window = window.path();
    loop {
        // A name may get its address after this rank starts.
        let addresses = look();
        let found = dial(addresses.as_deref().unwrap_or_default(), token, started + limit, waiting)?;
        if let Some(address) = found.other_token {
            other_token.get_or_insert((Instant::now(), address));
        }
        if let Some(wire) = found.ours
            && let Some(meeting) = attend(wire, &mut own, token, waiting)?
        {
            let is_first = meeting.place.window == own.window;
            let meeting = Meeting { window: is_first.then_some(window), ..meeting };
            return Ok(meeting);
        }
        if let Some((since, address)) = other_token
            && since.elapsed() >= OTHER_JOB_MAX.min(limit / 2)
        {
            let message = format!("rank {}: the rank 0 at {address} has another token", own.rank);
            return Err(Error::usage("ranks-token", message)
                .hint("give all ranks of a job the same PLIMSOLL_TOKEN")
                .hint("if it is another job's, give this job another MASTER_PORT"));
        }
        if started.elapsed() >= limit {
            let (addresses, seconds) = (addresses?, waiting.seconds);
            let at = shown(&addresses);
            let message = format!("rank 0 of {} was not found at {at} within {seconds} s", own.ranks);
            return Err(Error::new("rank-missing", message)
                .fact(format!("there: {}", own.words()))
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
    (waiting.stopped)().map_or(Ok(()), |signal| Err(interrupted(signal, doing)))?;
    waiting.notice.check()
}

/// Dials all addresses at once, none delaying another, and takes the first that proves the token, for a handshake's
/// time or until `end`.
fn dial(addresses: &[SocketAddr], token: &Token, end: Instant, waiting: &mut Waiting<'_>) -> Result<Found> {
    let left = || end.saturating_duration_since(Instant::now());
    let mut dialled: Vec<Dialled> =
        addresses.iter().filter_map(|address| Dialled::dial(*address).ok()).collect();
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

fn clock_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

/// Says hello and waits for the welcome, within rank 0's deadline. `None` if rank 0 closes before it answers.
fn attend(
    mut wire: Wire,
    own: &mut Hello,
    token: &Token,
    waiting: &mut Waiting<'_>,
) -> Result<Option<Meeting>> {
    let ip = wire.local_addr().map(|address| address.ip());
    let trainers = (!own.is_of_one_host()).then(|| listen_for_trainer(ip)).transpose()?;
    own.address = trainers.as_ref().and_then(|trainers| trainers.local_addr().ok());
    own.interface = wire.peer_addr().map_or(Interface::default(), |peer| Interface::towards(peer.ip()));
    own.clock_micros = clock_micros();
    wire.put(&Message::Hello(Box::new(own.clone())));
    let (mut heard, mut is_in) = (Instant::now(), false);
    loop {
        wire.pump();
        match wire.take() {
            Some(Message::Wait { .. }) => (heard, is_in) = (Instant::now(), true),
            Some(Message::Welcome { mut members, window }) => {
                welcome::check(own, &members, &window)?;
                members.iter_mut().for_each(|it| it.address = as_seen(it.address, wire.peer_addr()));
                let (place, mail) = settle(own.rank, &members, window, trainers, token)?;
                let wires = Wires::Joined(wire);
                return Ok(Some(Meeting { place, members, wires, window: None, mail }));
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
