//! Checks who may ask: the names that a request may use for this machine, and the token.
//!
//! A page of another site in the user's browser can send requests to this machine. It cannot read the answers without
//! consent, unless its name resolves to this machine; but then `Host` has its name, which is refused.

use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::uri::Uri;
use plimsoll_base::{Error, Result, read_small_text};
use sha2::{Digest, Sha256};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

const COOKIE: &str = "plimsoll_token";
const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_FILE_BYTES_MAX: u64 = 64 << 10;

#[derive(Clone, Debug)]
pub struct Guard {
    /// `None` on loopback.
    pub token: Option<String>,
    /// Names that `Host` may have as well as addresses and `localhost`.
    pub hosts: Vec<String>,
}

/// Says how a request showed its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    Yes,
    /// The token is in the address: it moves to a cookie and out of the address.
    ByAddress,
    No,
}

impl Guard {
    /// Returns true if `Host` names this machine: an address, `localhost`, or one of the names.
    pub fn knows(&self, host: &str) -> bool {
        let (name, port, is_address) = match host.strip_prefix('[') {
            Some(rest) => {
                let Some((name, port)) = rest.split_once(']') else { return false };
                if name.parse::<Ipv6Addr>().is_err() {
                    return false;
                }
                (name, port, true)
            }
            None => {
                let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
                (name, port, name.parse::<Ipv4Addr>().is_ok())
            }
        };
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        // What follows a name is a port and nothing else.
        if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
            return false;
        }
        is_address
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Looks for the token in the header, the cookie and the query.
    pub fn pass(&self, authorization: &str, cookies: &str, query: &str) -> Pass {
        let Some(token) = &self.token else { return Pass::Yes };
        let is_it = |given: &str| same(given.as_bytes(), token.as_bytes());
        let cookie = cookies.split(';').filter_map(|cookie| cookie.trim().split_once('='));
        let by_cookie = cookie.filter(|(name, _)| *name == COOKIE).any(|(_, value)| is_it(value));
        if by_cookie || authorization.strip_prefix("Bearer ").is_some_and(is_it) {
            return Pass::Yes;
        }
        let by_address = query.split('&').filter_map(|pair| pair.strip_prefix("token=")).any(is_it);
        if by_address { Pass::ByAddress } else { Pass::No }
    }

    /// Returns a hash of the token, by which requests of one token share keys and others do not.
    pub fn salt(&self) -> [u8; 32] {
        Sha256::digest(self.token.as_deref().unwrap_or_default()).into()
    }

    pub fn cookie(&self) -> String {
        let token = self.token.as_deref().unwrap_or_default();
        format!("{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/")
    }
}

/// Returns false where a proxy and this server could read different hosts: several headers, a list in one, or an
/// absolute address.
pub fn has_one_host(headers: &HeaderMap, uri: &Uri) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let is_name = |value: &HeaderValue| !value.as_bytes().iter().any(|byte| b", \t/@".contains(byte));
    hosts.next().is_some_and(is_name) && hosts.next().is_none() && uri.authority().is_none()
}

/// Compares two texts in a time that does not depend on where they differ.
pub fn same(a: &[u8], b: &[u8]) -> bool {
    let differs = a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b));
    std::hint::black_box(differs) == 0 && a.len() == b.len()
}

/// Draws a token of 128 random bits.
///
/// Errors: `io-error`.
pub fn new_token() -> Result<String> {
    let mut bytes = [0u8; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes))
        .map_err(|err| {
            Error::io("io-error", Path::new("/dev/urandom"), &err).hint("give a token: --token-file FILE")
        })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reads a token from a file: its first line, of letters, digits, `-` and `_`.
///
/// Errors: `bad-value`.
pub fn token_of(path: &Path) -> Result<String> {
    let refused = |err: &std::io::Error| {
        Error::io("bad-value", path, err).hint("give a readable file whose first line is the token")
    };
    let text = read_small_text(path, TOKEN_FILE_BYTES_MAX).map_err(|err| refused(&err))?;
    checked_token(&path.display().to_string(), text.lines().next().unwrap_or_default())
        .map_err(|error| error.hint(format!("openssl rand -hex 16 > {}", path.display())))
}

/// Returns a token that was given by `source`.
///
/// Errors: `bad-value`.
pub fn checked_token(source: &str, token: &str) -> Result<String> {
    let token = token.trim();
    let is_plain = token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if token.len() < TOKEN_BYTES_MIN || !is_plain {
        let message = format!(
            "{source}: the token has {} characters; it needs {TOKEN_BYTES_MIN} or more letters, digits, `-` and `_`",
            token.chars().count()
        );
        return Err(Error::usage("bad-value", message));
    }
    Ok(token.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(token: Option<&str>) -> Guard {
        Guard { token: token.map(str::to_string), hosts: vec!["gpu7.lab".into()] }
    }

    #[test]
    fn names_of_other_sites_are_refused() {
        let guard = guard(None);
        for host in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1:1876",
            "[::1]:1876",
            "[::1]",
            "10.0.0.7:1",
            "gpu7.lab:9",
            "[fe80::1]:",
        ] {
            assert!(guard.knows(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:1876",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "[evil]",
            "[::1]evil.com",
            "[::1].evil.com:80",
            "[::1]:80evil.com",
            "[::1",
            "[localhost]",
            "[127.0.0.1]",
            "::1",
            "127.0.0.1:80:80",
            "localhost:evil.com",
            "localhost:80.evil.com",
        ] {
            assert!(!guard.knows(host), "{host}");
        }
    }

    #[test]
    fn the_token_is_taken_from_header_cookie_and_address() {
        let token = "0123456789abcdef";
        let check = |authorization: &str, cookies: &str, query: &str, expect: Pass| {
            assert_eq!(guard(Some(token)).pass(authorization, cookies, query), expect);
        };
        check("", "", "", Pass::No);
        check("Bearer 0123456789abcdef", "", "", Pass::Yes);
        check("Bearer 0123456789abcdee", "", "", Pass::No);
        check("Bearer 0123456789abcde", "", "", Pass::No);
        check("Bearer ", "", "token=", Pass::No);
        check("", "a=b; plimsoll_token=0123456789abcdef", "", Pass::Yes);
        check("", "plimsoll_token=0123456789abcdef0", "", Pass::No);
        check("", "", "x=1&token=0123456789abcdef", Pass::ByAddress);
        assert_eq!(guard(None).pass("", "", ""), Pass::Yes);
    }

    #[test]
    fn tokens_of_files_are_long_and_plain() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        for (text, fits) in
            [("0123456789abcdef\nmore", true), ("short", false), ("0123456789 abcdef", false), ("", false)]
        {
            std::fs::write(&file, text).unwrap();
            assert_eq!(token_of(&file).is_ok(), fits, "{text}");
        }
        assert_eq!(token_of(&folder.path().join("none")).unwrap_err().slug, "bad-value");
        std::fs::write(&file, "a".repeat(70_000)).unwrap();
        for endless in [file.as_path(), Path::new("/dev/zero")] {
            let error = token_of(endless).unwrap_err();
            assert!(error.slug == "bad-value" && error.message.contains("more than 65536 bytes"), "{error}");
        }
        assert_ne!(new_token().unwrap(), new_token().unwrap());
    }
}
