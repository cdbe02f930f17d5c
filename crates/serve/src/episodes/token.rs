//! Makes the tokens of episodes: one for each, so that an agent speaks in its own episodes, reports for them, and for
//! no other's. A token follows from the episode's id and a secret of the run; it is not stored.

use crate::guard::same;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Bytes of a token, which has two characters for each.
const TOKEN_BYTES: usize = 16;

/// Makes and checks the tokens of a run's episodes.
pub(super) struct Tokens {
    secret: [u8; 32],
}

impl Tokens {
    pub(super) fn new(secret: &str) -> Tokens {
        Tokens { secret: Sha256::digest(secret.as_bytes()).into() }
    }

    /// Returns the token of an episode: SHA-256 over the secret and, again with the secret, the id, so that no token
    /// can be extended to that of a longer id.
    pub(super) fn of(&self, id: &str) -> String {
        let inner = Sha256::new().chain_update(self.secret).chain_update(id).finalize();
        let whole: [u8; 32] = Sha256::new().chain_update(self.secret).chain_update(inner).finalize().into();
        whole[..TOKEN_BYTES].iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a string takes what is written");
            text
        })
    }

    /// Returns true if `given` is the token of an episode, in a time that does not depend on where it differs.
    pub(super) fn is_of(&self, id: &str, given: &str) -> bool {
        same(self.of(id).as_bytes(), given.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_episode_of_each_run_has_its_own() {
        let (one, other) = (Tokens::new("a"), Tokens::new("b"));
        let token = one.of("1-7");
        assert_eq!(token.len(), 2 * TOKEN_BYTES);
        assert!(one.is_of("1-7", &token));
        for (tokens, id) in [(&one, "1-8"), (&one, "2-7"), (&one, "01-7"), (&one, ""), (&other, "1-7")] {
            assert!(!tokens.is_of(id, &token), "{id}");
        }
        assert!(!one.is_of("1-7", "") && !one.is_of("1-7", &token[1..]));
    }
}
