//! The connections of a listener that have proved nothing yet: how many are held, and which one gives way to a new one.
//!
//! A rank says its first words with the connection, so one that is silent gives way first, and of all addresses the one
//! with the most connections gives way: a flood takes its own places, at any rate, and not those of ranks. Their age
//! decides only between equals, because a far rank is unproved for as long as its packets travel.

use crate::knock::{STRANGERS_MAX, Step, Stranger};
use crate::message::Message;
use crate::token::Token;
use crate::wire::Wire;
use std::net::{IpAddr, Ipv6Addr, TcpListener};

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 4096;
/// Connections accepted in a turn: as many as the kernel holds.
const ACCEPTS_MAX: usize = BACKLOG as usize;
/// Addresses of strangers that are counted, each by itself.
const ADDRESSES_MAX: usize = 8;

/// The strangers of a listener.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    held: Vec<Stranger>,
    /// Those that ended without a proof, by address, the first addresses that came.
    gone: Vec<(IpAddr, u64)>,
    gone_elsewhere: u64,
    /// Those of them that spoke the protocol: ranks with another token, perhaps.
    unproved: u64,
}

impl Strangers {
    /// Makes a listener ready for `turn`.
    pub(crate) fn listen(listener: &TcpListener) -> std::io::Result<()> {
        listener.set_nonblocking(true)?;
        // Of many that come at once, those beyond the kernel's list would try again a second later.
        rustix::net::listen(listener, BACKLOG).map_err(Into::into)
    }

    pub(crate) fn wires(&self) -> impl Iterator<Item = &Wire> {
        self.held.iter().map(|stranger| &stranger.wire)
    }

    /// Accepts what has come, and reads what has arrived. Returns the first messages of those that proved the token.
    pub(crate) fn turn(&mut self, listener: &TcpListener, token: &Token) -> Vec<(Message, Wire)> {
        let mut entered = Vec::new();
        for _ in 0..ACCEPTS_MAX {
            let Ok((stream, from)) = listener.accept() else { break };
            let Ok(mut stranger) = Stranger::new(stream, from.ip()) else { continue };
            // What a rank says with its connection is there already, and shows that it is not silent.
            match stranger.step(token) {
                Step::Drop => self.count(&stranger),
                // Its proof needs this side's nonce, which it has not had yet: it cannot enter here.
                Step::Wait | Step::Enter(_) => self.held.push(stranger),
            }
            if self.held.len() > STRANGERS_MAX {
                let last = self.held.remove(gives_way(&self.held));
                self.count(&last);
            }
        }
        let mut index = 0;
        while index < self.held.len() {
            match self.held[index].step(token) {
                Step::Wait => index += 1,
                Step::Drop => {
                    let last = self.held.remove(index);
                    self.count(&last);
                }
                Step::Enter(message) => entered.push((message, self.held.remove(index).wire)),
            }
        }
        entered
    }

    fn count(&mut self, last: &Stranger) {
        self.unproved += u64::from(last.has_greeted());
        let from = last.from.to_canonical();
        match self.gone.iter().position(|(address, _)| *address == from) {
            Some(at) => self.gone[at].1 += 1,
            None if self.gone.len() < ADDRESSES_MAX => self.gone.push((from, 1)),
            None => self.gone_elsewhere += 1,
        }
    }

    /// Returns what a user should know of those that came and did not prove the token: nothing if none did.
    pub(crate) fn facts(&self) -> Vec<String> {
        let mut gone = self.gone.clone();
        gone.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
        let all = self.gone_elsewhere + gone.iter().map(|(_, number)| number).sum::<u64>();
        if all == 0 {
            return Vec::new();
        }
        let mut from: Vec<String> =
            gone.iter().map(|(address, number)| format!("{number} from {address}")).collect();
        if self.gone_elsewhere > 0 {
            from.push(format!("{} from other addresses", self.gone_elsewhere));
        }
        let mut facts = vec![format!("{} came and proved nothing: {}", connections(all), from.join(", "))];
        if self.unproved > 0 {
            facts.push(format!("{} came that did not know this job's token", connections(self.unproved)));
        }
        facts
    }
}

fn connections(number: u64) -> String {
    if number == 1 { "1 connection".into() } else { format!("{number} connections") }
}

/// Returns the network that an address counts for: of IPv6 its first half, of which one host has all addresses.
fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip => ip,
    }
}

/// Returns which of these, oldest first, is dropped: from the address with the most, a silent one, the oldest.
fn gives_way(held: &[Stranger]) -> usize {
    let of = |one: &Stranger| held.iter().filter(|other| network(other.from) == network(one.from)).count();
    let worst =
        held.iter().enumerate().max_by_key(|(at, one)| (of(one), !one.has_greeted(), std::cmp::Reverse(*at)));
    worst.map_or(0, |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knock::MAGIC;
    use crate::token::NONCE_BYTES;
    use std::io::Write;
    use std::net::TcpStream;

    fn token() -> Token {
        Token::of_hex(&"a5".repeat(32)).expect("32 bytes")
    }

    /// Strangers as words: an address's last number, and `!` for one that has spoken.
    fn check(all: &[&str], expect: usize) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut kept = Vec::new();
        let one = |word: &&str| {
            let mut stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
            let (last, speaks) = word.strip_suffix('!').map_or((*word, false), |last| (last, true));
            let from = [10, 0, 0, last.parse().expect("a number")].into();
            let mut stranger = Stranger::new(listener.accept().expect("it came").0, from).expect("a socket");
            if speaks {
                stream.write_all(&[&MAGIC[..], &[1; NONCE_BYTES]].concat()).expect("it reads");
                while !stranger.has_greeted() {
                    assert!(matches!(stranger.step(&token()), Step::Wait));
                }
            }
            kept.push(stream);
            stranger
        };
        let held: Vec<Stranger> = all.iter().map(one).collect();
        assert_eq!(gives_way(&held), expect, "{all:?}");
    }

    #[test]
    fn the_silent_of_the_address_with_the_most_give_way() {
        // Of equals the oldest; a silent one before one that has spoken, whatever its age.
        check(&["1", "1", "1"], 0);
        check(&["1!", "1", "1"], 1);
        check(&["1!", "1!", "1"], 2);
        check(&["1!", "1!"], 0);
        // The address with the most, though a silent one of another is older.
        check(&["2", "1", "1"], 1);
        check(&["2", "1!", "1!"], 1);
        check(&["2!", "1", "3"], 1);
    }

    #[test]
    fn an_address_of_ipv6_counts_as_its_network() {
        let [one, other, far, mapped] = ["fd00::1", "fd00::2", "fd00:0:0:1::1", "::ffff:10.0.0.1"]
            .map(|text| network(text.parse().expect("an address")));
        assert!(one == other && one != far);
        assert_eq!(mapped, IpAddr::from([10, 0, 0, 1]));
    }

    #[test]
    fn those_that_ended_are_counted_by_address() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        Strangers::listen(&listener).expect("a listener");
        let mut strangers = Strangers::default();
        assert!(strangers.facts().is_empty());
        let came = STRANGERS_MAX + 3;
        let all: Vec<TcpStream> = (0..came)
            .map(|_| TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens"))
            .collect();
        while strangers.held.len() + strangers.gone.iter().map(|(_, number)| *number as usize).sum::<usize>()
            < came
        {
            assert!(strangers.turn(&listener, &token()).is_empty());
        }
        assert_eq!(strangers.facts(), ["3 connections came and proved nothing: 3 from 127.0.0.1"]);
        drop(all);
        for number in 0..ADDRESSES_MAX as u8 {
            let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
            strangers.count(&Stranger::new(stream, [10, 0, 0, number].into()).expect("a socket"));
        }
        let facts = strangers.facts().concat();
        assert!(facts.ends_with("1 from 10.0.0.6, 1 from other addresses"), "{facts}");
    }
}
