//! The secret of a job: each side of a connection proves that it knows it, without sending it.
//!
//! HMAC-SHA256 over both sides' nonces and the side's role, so that no proof can be reflected or replayed. A token
//! keeps other jobs and strangers out; later traffic is not encrypted.

use crate::environment::Launch;
use crate::secret;
use hmac::{Hmac, KeyInit, Mac};
use plimsoll_base::Result;
use sha2::{Digest, Sha256};
use std::fmt;
use std::io::Read;

pub(crate) const NONCE_BYTES: usize = 32;
pub(crate) const PROOF_BYTES: usize = 32;

pub(crate) type Nonce = [u8; NONCE_BYTES];
pub(crate) type Proof = [u8; PROOF_BYTES];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Listener,
    Joiner,
}

#[derive(Clone)]
pub struct Token {
    key: [u8; 32],
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Returns the token of a launch, from the user's secret, the launcher's id of this start, and its port.
    ///
    /// Errors: `ranks-token` if its ranks are on several hosts and the secret is missing or short.
    pub fn of(launch: &Launch, given: Option<&str>) -> Result<Token> {
        Ok(Token::new(launch, secret::of_ranks(launch, given)?))
    }

    pub(crate) fn new(launch: &Launch, secret: Option<&str>) -> Token {
        let mut sum = Sha256::new();
        for part in ["plimsoll ranks", secret.unwrap_or_default(), &launch.id, &launch.port.to_string()] {
            sum.update((part.len() as u64).to_le_bytes());
            sum.update(part.as_bytes());
        }
        Token { key: sum.finalize().into() }
    }

    /// Returns the token as 64 hexadecimal digits, for another process of this job.
    pub(crate) fn to_hex(&self) -> String {
        self.key.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads what `to_hex` wrote.
    pub(crate) fn of_hex(text: &str) -> Option<Token> {
        let mut key = [0; 32];
        if text.len() != 2 * key.len() || !text.is_ascii() {
            return None;
        }
        for (at, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Token { key })
    }

    pub(crate) fn proof(&self, side: Side, joiner: &Nonce, listener: &Nonce) -> Proof {
        self.mac(side, joiner, listener).finalize().into_bytes().into()
    }

    /// Verifies a proof in constant time.
    pub(crate) fn is_proof(&self, proof: &[u8], side: Side, joiner: &Nonce, listener: &Nonce) -> bool {
        self.mac(side, joiner, listener).verify_slice(proof).is_ok()
    }

    fn mac(&self, side: Side, joiner: &Nonce, listener: &Nonce) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes a key of any length");
        mac.update(match side {
            Side::Listener => b"listener",
            Side::Joiner => b"joiner  ",
        });
        mac.update(joiner);
        mac.update(listener);
        mac
    }
}

/// Returns random bytes from the kernel.
pub(crate) fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Returns a new secret of 32 hexadecimal digits.
pub(crate) fn random_secret() -> std::io::Result<String> {
    Ok(random_bytes::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Launcher;

    fn launch(id: &str, port: u16) -> Launch {
        Launch {
            rank: 0,
            ranks: 2,
            local_rank: 0,
            local_ranks: 2,
            address: "127.0.0.1".into(),
            port,
            id: id.into(),
            launcher: Launcher::Torchrun,
        }
    }

    #[test]
    fn a_proof_holds_for_one_token_one_side_and_one_pair_of_nonces() {
        let token = Token::new(&launch("a", 1), Some("s"));
        let (mine, yours) = ([1; NONCE_BYTES], [2; NONCE_BYTES]);
        let proof = token.proof(Side::Joiner, &mine, &yours);
        assert!(token.is_proof(&proof, Side::Joiner, &mine, &yours));
        assert!(!token.is_proof(&proof, Side::Listener, &mine, &yours));
        assert!(!token.is_proof(&proof, Side::Joiner, &yours, &mine));
        assert!(!token.is_proof(&proof[..31], Side::Joiner, &mine, &yours));
        for other in [
            Token::new(&launch("a", 1), None),
            Token::new(&launch("b", 1), Some("s")),
            Token::new(&launch("a", 2), Some("s")),
        ] {
            assert!(!other.is_proof(&proof, Side::Joiner, &mine, &yours));
        }
        assert_ne!(random_secret().expect("a generator"), random_secret().expect("a generator"));
        assert_eq!(format!("{token:?}"), "Token(..)");
    }
}
