//! Who asks: the token of a request names its tenant, and tenants do not see one another.

use axum::http::header::{self, HeaderMap};
use axum::http::uri::Uri;
use plimsoll_base::{Error, Result, shown};
use plimsoll_serve::guard::{Guard, has_one_host, same};

/// What the clients' library requires a token to begin with.
const TOKEN_START: &str = "tml-";
const TOKEN_BYTES_MIN: usize = 20;
/// The tenant of a server without tokens.
const ALONE: &str = "local";

/// Tokens with their tenants.
#[derive(Clone, Debug, Default)]
pub struct TokenTenants {
    /// Token and tenant. None: every token is of one tenant, which is for a server on loopback.
    tokens: Vec<(String, String)>,
    /// Names that `Host` may have as well as addresses and `localhost`.
    hosts: Vec<String>,
}

impl TokenTenants {
    /// Takes tokens, each with the name of its tenant.
    ///
    /// Errors: `bad-value` for a token that clients would refuse, or that is short.
    pub fn new(tokens: Vec<(String, String)>, hosts: Vec<String>) -> Result<TokenTenants> {
        for (token, tenant) in &tokens {
            let is_plain = token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
            if !token.starts_with(TOKEN_START)
                || token.len() < TOKEN_BYTES_MIN
                || !is_plain
                || tenant.is_empty()
            {
                let message = format!(
                    "the token of {:?} needs {TOKEN_BYTES_MIN} or more letters, digits, `-` and `_`, and begins with {TOKEN_START}",
                    shown(tenant)
                );
                return Err(Error::usage("bad-value", message).hint("echo tml-$(openssl rand -hex 16)"));
            }
        }
        Ok(TokenTenants { tokens, hosts })
    }

    /// Returns how many tenants there are.
    pub fn count(&self) -> usize {
        self.tokens.len().max(1)
    }

    /// Refuses a request to a name that is not this server's.
    ///
    /// Errors: `serve-host-refused`.
    pub(crate) fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> Result<()> {
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let guard = Guard { token: None, hosts: self.hosts.clone() };
        if has_one_host(headers, uri) && guard.knows(host) {
            return Ok(());
        }
        let message = format!("this server does not go by the name {:?}", shown(host));
        Err(Error::new("serve-host-refused", message).hint("start it with --host NAME if it should"))
    }

    /// Returns the tenant of a request.
    ///
    /// Errors: `serve-host-refused`, `tinker-token-wrong`.
    pub(crate) fn tenant(&self, headers: &HeaderMap, uri: &Uri) -> Result<&str> {
        self.check_host(headers, uri)?;
        // A page of another site cannot send this header without consent, so it is required of everyone.
        let key = headers.get("x-api-key").and_then(|value| value.to_str().ok()).unwrap_or_default();
        if self.tokens.is_empty() && key.starts_with(TOKEN_START) {
            return Ok(ALONE);
        }
        // All are compared, so that the time tells nothing.
        let mut found = None;
        for (token, tenant) in &self.tokens {
            if same(token.as_bytes(), key.as_bytes()) {
                found = Some(tenant.as_str());
            }
        }
        found.ok_or_else(|| {
            Error::new("tinker-token-wrong", "the request does not bring a token of this server")
                .hint("set TINKER_API_KEY to the token, which begins with tml-; it is sent as X-API-Key")
        })
    }
}
