//! How a trainer connects to those of other hosts: it dials, or they do. Both prove the job's token first.

use super::stream::{Stream, sleep};
use crate::errors::unreachable;
use crate::knock::{Answer, Dialled};
use crate::message::{Message, Way};
use crate::strangers::Strangers;
use crate::token::Token;
use crate::wire::Wire;
use plimsoll_base::Result;
use rustix::event::{PollFd, PollFlags};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// Trainers start together, and open their models before they dial.
pub(crate) const OPEN_MAX: Duration = Duration::from_secs(120);
const DIAL_AGAIN: Duration = Duration::from_millis(300);

/// A rank to dial.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: Option<SocketAddr>,
    /// The rank in words, for messages.
    pub(crate) who: String,
}

/// A connection from dialling to acceptance.
enum Dialling {
    /// To be dialled (again) at this time.
    At(Instant),
    Greeting(Dialled),
    /// Knocked; the listener has not answered yet.
    Knocking(Wire),
    There(Wire),
}

/// Dials all targets at once until each has let this rank in.
///
/// Errors: `ranks-unreachable`; those of `check`, which is called while it waits.
pub(crate) fn dial_all(
    targets: &[Target],
    token: &Token,
    knock: (u32, Way),
    check: &dyn Fn() -> Result<()>,
) -> Result<Vec<Stream>> {
    dial_within(targets, token, knock, OPEN_MAX, check)
}

/// Dials all targets as `dial_all` does, for at most `longest`.
///
/// Errors: as `dial_all`.
pub(crate) fn dial_within(
    targets: &[Target],
    token: &Token,
    knock: (u32, Way),
    longest: Duration,
    check: &dyn Fn() -> Result<()>,
) -> Result<Vec<Stream>> {
    let begun = Instant::now();
    let mut all: Vec<Dialling> = targets.iter().map(|_| Dialling::At(begun)).collect();
    loop {
        let mut missing = None;
        for (one, target) in all.iter_mut().zip(targets) {
            *one = step(std::mem::replace(one, Dialling::At(begun)), target, token, knock);
            if !matches!(one, Dialling::There(_)) {
                missing.get_or_insert(target);
            }
        }
        let Some(missing) = missing else { break };
        check()?;
        if begun.elapsed() >= longest {
            let at = missing.address.map_or("no address".into(), |address| address.to_string());
            let seconds = longest.as_secs();
            return Err(unreachable(&format!("{} was not reached at {at} within {seconds} s", missing.who)));
        }
        let wires = all.iter().filter_map(|one| match one {
            Dialling::Greeting(Dialled { wire, .. }) | Dialling::Knocking(wire) => Some(wire),
            _ => None,
        });
        crate::wire::wait(&wires.collect::<Vec<_>>(), &[], Duration::from_millis(20));
    }
    let streams = all.into_iter().zip(targets).filter_map(|(one, target)| match one {
        Dialling::There(wire) => Some(Stream::new(wire.into_parts(), &target.who).to(target.address)),
        _ => None,
    });
    Ok(streams.collect())
}

fn step(one: Dialling, target: &Target, token: &Token, (rank, way): (u32, Way)) -> Dialling {
    let again = || Dialling::At(Instant::now() + DIAL_AGAIN);
    match one {
        Dialling::At(when) if Instant::now() < when => Dialling::At(when),
        Dialling::At(_) => {
            let dialled = target.address.and_then(|address| Dialled::dial(address).ok());
            dialled.map_or_else(again, Dialling::Greeting)
        }
        Dialling::Greeting(mut dialled) => match dialled.step(token) {
            Answer::Wait => Dialling::Greeting(dialled),
            Answer::Nothing | Answer::OtherToken => again(),
            Answer::Ours => {
                let mut wire = dialled.wire;
                wire.put(&Message::Knock { rank, way });
                wire.pump();
                Dialling::Knocking(wire)
            }
        },
        Dialling::Knocking(mut wire) => {
            wire.pump();
            match (wire.take(), wire.over().is_some()) {
                (Some(Message::Open), _) => Dialling::There(wire),
                (Some(_), _) | (None, true) => again(),
                (None, false) => Dialling::Knocking(wire),
            }
        }
        Dialling::There(wire) => Dialling::There(wire),
    }
}

/// A rank that knocked and was let in.
pub(crate) struct Caller {
    pub(crate) rank: u32,
    pub(crate) stream: Stream,
}

/// A listener, with the connections that have proved nothing yet.
#[derive(Debug)]
pub(crate) struct Callers {
    listener: TcpListener,
    strangers: Strangers,
    token: Token,
}

impl Callers {
    pub(crate) fn new(listener: TcpListener, token: Token) -> std::io::Result<Callers> {
        Strangers::listen(&listener)?;
        Ok(Callers { listener, strangers: Strangers::default(), token })
    }

    /// Returns what to poll.
    pub(crate) fn interest(&self) -> impl Iterator<Item = PollFd<'_>> {
        let strangers = self.strangers.wires().map(Wire::interest);
        strangers.chain([PollFd::new(&self.listener, PollFlags::IN)])
    }

    /// Accepts what has arrived. Returns the ranks for which `expects` returns a name: others may knock again later.
    pub(crate) fn turn(&mut self, expects: &dyn Fn(u32, Way) -> Option<String>) -> Vec<Caller> {
        let mut callers = Vec::new();
        for (message, mut wire) in self.strangers.turn(&self.listener, &self.token) {
            let Message::Knock { rank, way } = message else { continue };
            let Some(who) = expects(rank, way) else { continue };
            wire.put(&Message::Open);
            wire.flush(Duration::from_secs(1));
            callers.push(Caller { rank, stream: Stream::new(wire.into_parts(), &who) });
        }
        callers
    }

    /// Sleeps until something arrives or it is time to check whether the run is over.
    pub(crate) fn sleep(&self) {
        sleep(&mut self.interest().collect::<Vec<_>>());
    }
}
