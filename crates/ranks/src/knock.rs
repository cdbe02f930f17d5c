//! How two processes of a job prove to each other that they know its token, before either accepts a message: the
//! listener, to which a connection is a stranger until then, and the one that dials.
//!
//! The one that dials proves first: a stranger learns one nonce, and nothing against which a guess could be checked.

use crate::message::Message;
use crate::token::{NONCE_BYTES, Nonce, PROOF_BYTES, Side, Token, random_bytes};
use crate::wire::Wire;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// First bytes of both sides: protocol and version.
pub(crate) const MAGIC: [u8; 16] = *b"plimsoll-ranks/3";
/// Lists what the listener sends in place of its proof to one that does not know the token.
pub(crate) const REFUSAL: [u8; PROOF_BYTES] = *b"plimsoll-ranks: another token   ";
/// From the start of a connection until it has proved that it belongs to the job and said hello.
pub(crate) const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Unproved connections that are held; of one more, one gives way: `strangers.rs`.
pub(crate) const STRANGERS_MAX: usize = 32;

/// A connection that has proved nothing yet.
#[derive(Debug)]
pub(crate) struct Stranger {
    pub(crate) wire: Wire,
    pub(crate) from: IpAddr,
    since: Instant,
    ours: Nonce,
    /// The peer's nonce, once received.
    theirs: Option<Nonce>,
    is_proved: bool,
}

pub(crate) enum Step {
    Wait,
    Drop,
    Enter(Message),
}

impl Stranger {
    pub(crate) fn new(stream: TcpStream, from: IpAddr) -> std::io::Result<Stranger> {
        let wire = Wire::new(stream)?;
        let (since, ours) = (Instant::now(), random_bytes()?);
        Ok(Stranger { wire, from, since, ours, theirs: None, is_proved: false })
    }

    /// Reads what has arrived: magic and nonce, then the proof, then the first message.
    pub(crate) fn step(&mut self, token: &Token) -> Step {
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
            self.wire.pump();
            return self.rest();
        };
        if !self.is_proved {
            let Some(proof) = self.wire.take_bytes::<PROOF_BYTES>() else { return self.rest() };
            if !token.is_proof(&proof, Side::Joiner, &theirs, &self.ours) {
                self.wire.put_bytes(&REFUSAL);
                self.wire.pump();
                return Step::Drop;
            }
            self.is_proved = true;
            self.wire.put_bytes(&token.proof(Side::Listener, &theirs, &self.ours));
            self.wire.pump();
        }
        match self.wire.take() {
            Some(message) => Step::Enter(message),
            None => self.rest(),
        }
    }

    /// Returns true if it spoke the protocol.
    pub(crate) fn has_greeted(&self) -> bool {
        self.theirs.is_some()
    }

    fn rest(&self) -> Step {
        if self.wire.over().is_some() || self.since.elapsed() >= HANDSHAKE_MAX {
            Step::Drop
        } else {
            Step::Wait
        }
    }
}

/// A connection whose listener has proved nothing yet, from its first packet on.
pub(crate) struct Dialled {
    pub(crate) wire: Wire,
    pub(crate) address: SocketAddr,
    since: Instant,
    ours: Nonce,
    /// The listener's nonce, once received and answered with this side's proof.
    theirs: Option<Nonce>,
}

pub(crate) enum Answer {
    /// Nothing so far.
    Wait,
    /// The peer does not speak the protocol.
    Nothing,
    OtherToken,
    Ours,
}

impl Dialled {
    /// Begins to connect, and waits for nothing: magic and nonce leave once the other side is there.
    pub(crate) fn dial(address: SocketAddr) -> std::io::Result<Dialled> {
        let mut wire = Wire::new(begin(address)?)?;
        let ours: Nonce = random_bytes()?;
        wire.put_bytes(&MAGIC);
        wire.put_bytes(&ours);
        Ok(Dialled { wire, address, since: Instant::now(), ours, theirs: None })
    }

    /// Reads what has arrived: magic and nonce, which it answers with its proof, then the listener's proof.
    pub(crate) fn step(&mut self, token: &Token) -> Answer {
        self.wire.pump();
        let Some(theirs) = self.theirs else {
            let begin = &self.wire.peek()[..self.wire.peek().len().min(MAGIC.len())];
            if !MAGIC.starts_with(begin) {
                return Answer::Nothing;
            }
            let Some(greeting) = self.wire.take_bytes::<{ MAGIC.len() + NONCE_BYTES }>() else {
                return self.rest();
            };
            let mut theirs = [0; NONCE_BYTES];
            theirs.copy_from_slice(&greeting[MAGIC.len()..]);
            self.theirs = Some(theirs);
            self.wire.put_bytes(&token.proof(Side::Joiner, &self.ours, &theirs));
            self.wire.pump();
            return Answer::Wait;
        };
        match self.wire.take_bytes::<PROOF_BYTES>() {
            None => self.rest(),
            Some(proof) if token.is_proof(&proof, Side::Listener, &self.ours, &theirs) => Answer::Ours,
            Some(_) => Answer::OtherToken,
        }
    }

    fn rest(&self) -> Answer {
        if self.wire.over().is_some() || self.since.elapsed() >= HANDSHAKE_MAX {
            Answer::Nothing
        } else {
            Answer::Wait
        }
    }
}

/// Returns a socket that the kernel connects meanwhile; it takes no bytes until then.
pub(crate) fn begin(address: SocketAddr) -> std::io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(err) => Err(err.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Returns what a connection got, to its end.
    fn rest(stream: &mut TcpStream) -> Vec<u8> {
        let mut all = Vec::new();
        // The other side may close before it has read all.
        let _ = stream.read_to_end(&mut all);
        all
    }

    #[test]
    fn one_that_dials_learns_nothing_to_check_a_guess_with() {
        let token = Token::of_hex(&"a5".repeat(32)).expect("32 bytes");
        let guess = Token::of_hex(&"a6".repeat(32)).expect("32 bytes");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (accepted, from) = listener.accept().expect("a connection");
        let mut stranger = Stranger::new(accepted, from.ip()).expect("a socket");
        let ours = [7; NONCE_BYTES];
        stream.write_all(&[&MAGIC[..], &ours].concat()).expect("it reads");
        while stranger.theirs.is_none() {
            assert!(matches!(stranger.step(&token), Step::Wait));
        }
        // All that it says before the other side has proved: its version and its nonce.
        let mut greeting = [0; MAGIC.len() + NONCE_BYTES];
        stream.read_exact(&mut greeting).expect("a greeting");
        assert_eq!(greeting, *[&MAGIC[..], &stranger.ours].concat());
        stream.write_all(&guess.proof(Side::Joiner, &ours, &stranger.ours)).expect("it reads");
        while !matches!(stranger.step(&token), Step::Drop) {}
        drop(stranger);
        assert_eq!(rest(&mut stream), REFUSAL);
    }
}
