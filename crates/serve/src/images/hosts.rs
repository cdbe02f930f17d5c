//! Images that a request names by an address: fetched from the hosts that the server's user named, and from no others.
//! An address of a private network is fetched only where the user named that very address, whatever a name resolves to.

use plimsoll_base::{Error, Result, shown, shown_address};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use ureq::Agent;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

/// Most bytes of the images of a request that are fetched: as many as it may bring itself, 12 MiB as text.
pub const FETCHED_BYTES: usize = 9 << 20;
/// Time within which all images of a request must have come.
const FETCH_TIME: Duration = Duration::from_secs(10);
/// Requests whose images are fetched at one time: fewer than there are readers of bodies, which others need.
const FETCHES_MAX: usize = 2;

/// The hosts from which images are fetched.
#[derive(Debug)]
pub struct ImageHosts {
    hosts: Vec<NamedHost>,
    agent: Agent,
    fetches: AtomicUsize,
}

/// A host as the server's user named it.
#[derive(Debug, PartialEq, Eq)]
struct NamedHost {
    /// True for `http://`, which must be written; hosts are asked by `https://` otherwise.
    is_plain: bool,
    /// In small letters; an address of IPv6 has brackets.
    name: String,
    port: u16,
}

/// What a request may still fetch.
#[derive(Debug)]
pub struct FetchBudget {
    until: Option<Instant>,
    bytes: usize,
}

impl Default for FetchBudget {
    fn default() -> FetchBudget {
        FetchBudget { until: None, bytes: FETCHED_BYTES }
    }
}

impl ImageHosts {
    /// Reads the names of hosts, each `HOST`, `HOST:PORT` or `http://HOST`.
    ///
    /// Errors: `bad-value`.
    pub fn of(names: &[String]) -> Result<ImageHosts> {
        let hosts = names.iter().map(|name| NamedHost::read(name)).collect::<Result<_>>()?;
        let config = Agent::config_builder()
            .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // A proxy would resolve names itself.
            .proxy(None)
            .build();
        let agent = Agent::with_parts(config, DefaultConnector::default(), PublicAddresses);
        Ok(ImageHosts { hosts, agent, fetches: AtomicUsize::new(0) })
    }

    /// True if images come in requests alone.
    pub(super) fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// True if `url` is an address, and some host may be asked for one.
    pub(super) fn reads(&self, url: &str) -> bool {
        let begins =
            |scheme: &str| url.get(..scheme.len()).is_some_and(|own| own.eq_ignore_ascii_case(scheme));
        !self.hosts.is_empty() && (begins("https://") || begins("http://"))
    }

    /// Fetches an image on this thread.
    ///
    /// Errors: `image-url` for a host that is not named; `image-not-fetched`, `image-too-large`, `serve-queue-full`.
    pub(super) fn fetch(&self, url: &str, budget: &mut FetchBudget) -> Result<Vec<u8>> {
        let address = shown_address(url);
        let address = shown(&address);
        let uri = url.parse::<Uri>().ok().filter(|uri| self.hosts.iter().any(|host| host.is_of(uri)));
        let Some(uri) = uri else {
            return Err(Error::new(
                "image-url",
                format!("`{address}`: its host is none that images are fetched from"),
            )
            .hint("send the image itself, or name its host as the server is started: --image-hosts HOST"));
        };
        let _turn = self.turn()?;
        let until = *budget.until.get_or_insert_with(|| Instant::now() + FETCH_TIME);
        let left = until.saturating_duration_since(Instant::now());
        let failed = |what: String| {
            Error::new("image-not-fetched", format!("`{address}`: {what}"))
                .fact(format!(
                    "the images of a request have {} s and {FETCHED_BYTES} bytes",
                    FETCH_TIME.as_secs()
                ))
                .hint("check the address, or send the image itself")
        };
        if left.is_zero() {
            return Err(failed("no time is left for it".into()));
        }
        let request = self.agent.get(uri).config().timeout_global(Some(left)).build();
        let mut response = request.call().map_err(|error| failed(words(&error)))?;
        let status = response.status();
        if !status.is_success() {
            let redirects = if status.is_redirection() { ", and redirects are not followed" } else { "" };
            return Err(failed(format!("its host answers with status {}{redirects}", status.as_u16())));
        }
        let read = response.body_mut().with_config().limit(budget.bytes as u64).read_to_vec();
        let bytes = read.map_err(|error| match error {
            ureq::Error::BodyExceedsLimit(_) => {
                let message = format!("`{address}`: more than the {} bytes that are left", budget.bytes);
                Error::new("image-too-large", message).hint("make it smaller")
            }
            error => failed(words(&error)),
        })?;
        budget.bytes -= bytes.len().min(budget.bytes);
        Ok(bytes)
    }

    /// Takes one of the turns to fetch.
    fn turn(&self) -> Result<Turn<'_>> {
        let taken = self.fetches.fetch_add(1, Ordering::Relaxed);
        let turn = Turn(&self.fetches);
        if taken < FETCHES_MAX {
            return Ok(turn);
        }
        Err(Error::new(
            "serve-queue-full",
            format!("images of {FETCHES_MAX} other requests are being fetched"),
        )
        .hint("try again later, or send the images themselves"))
    }
}

/// A turn to fetch, which ends with it.
struct Turn<'h>(&'h AtomicUsize);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl NamedHost {
    fn read(given: &str) -> Result<NamedHost> {
        let (is_plain, rest) = match given.split_once("://") {
            None => (false, given),
            Some(("https", rest)) => (false, rest),
            Some(("http", rest)) => (true, rest),
            Some(_) => return Err(no_host(given)),
        };
        let scheme = if is_plain { "http" } else { "https" };
        let uri = format!("{scheme}://{rest}/").parse::<Uri>().map_err(|_| no_host(given))?;
        let is_plainly_a_host = rest.chars().all(|c| c.is_ascii_alphanumeric() || "-.[]:".contains(c));
        match place_of(&uri) {
            Some(host) if is_plainly_a_host && uri.path() == "/" => Ok(host),
            _ => Err(no_host(given)),
        }
    }

    fn is_of(&self, uri: &Uri) -> bool {
        place_of(uri).as_ref() == Some(self)
    }
}

/// Returns the host of an address of the web without a user; none of any other.
fn place_of(uri: &Uri) -> Option<NamedHost> {
    let authority = uri.authority()?;
    let (is_plain, usual) = match uri.scheme_str()? {
        "https" => (false, 443),
        "http" => (true, 80),
        _ => return None,
    };
    // A port that is no number of 16 bits is none.
    let has_port = authority.as_str().len() > authority.host().len();
    let port = if has_port { authority.port_u16()? } else { usual };
    let is_whole = !authority.as_str().contains('@') && !authority.host().is_empty();
    is_whole.then(|| NamedHost { is_plain, name: authority.host().to_ascii_lowercase(), port })
}

fn no_host(given: &str) -> Error {
    Error::usage("bad-value", format!("--image-hosts has {:?}, which names no host", shown(given)))
        .hint("write names as in --image-hosts images.example.org,http://10.0.0.7:8080")
}

/// Returns what went wrong, in the library's words; they have no secret of an address.
fn words(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(_) => "its host did not answer in time".into(),
        ureq::Error::BadUri(_) => "it is no address".into(),
        error => error.to_string(),
    }
}

/// Resolves names to public addresses alone. A host that is itself an address is what its user named.
#[derive(Debug)]
struct PublicAddresses;

impl Resolver for PublicAddresses {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> std::result::Result<ResolvedSocketAddrs, ureq::Error> {
        let found = DefaultResolver::default().resolve(uri, config, timeout)?;
        let host = uri.host().unwrap_or_default();
        if host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
            return Ok(found);
        }
        let mut public = self.empty();
        found.iter().filter(|address| is_public(address.ip())).for_each(|address| public.push(*address));
        if public.is_empty() {
            let what = "its host has an address of a private network, which can be named only as an address";
            return Err(ureq::Error::Io(io::Error::other(what)));
        }
        Ok(public)
    }
}

/// True for an address that anyone may reach.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => is_public_v4(mapped),
            None => is_public_v6(address),
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        // This network, shared by providers, of protocols, of benchmarks; multicast, reserved and broadcast.
        || a == 0
        || (a == 100 && b & 0xc0 == 64)
        || [a, b, c] == [192, 0, 0]
        || (a == 198 && b & 0xfe == 18)
        || a >= 224;
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    // Global unicast, less tunnels, which hold addresses of IPv4, and what is for documentation.
    let [first, second, ..] = address.segments();
    let is_special = first == 0x2002 || (first == 0x2001 && (second < 0x200 || second == 0xdb8));
    first & 0xe000 == 0x2000 && !is_special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_asked_only_as_it_was_named() {
        let names = ["Images.Example.org", "http://10.0.0.7:8080", "https://[2001:db8::1]:444"];
        let hosts = ImageHosts::of(&names.map(String::from)).expect("hosts");
        for (url, is_named) in [
            ("https://images.example.org/a.png?x=y", true),
            ("https://IMAGES.example.ORG:443/a", true),
            ("http://10.0.0.7:8080/", true),
            ("https://[2001:db8::1]:444/a", true),
            ("http://images.example.org/a", false),
            ("https://images.example.org:444/a", false),
            ("https://images.example.org./a", false),
            ("https://a.images.example.org/a", false),
            ("https://images.example.org@evil.org/a", false),
            ("https://me@images.example.org/a", false),
            ("https://images.example.org:65979/a", false),
            ("https://10.0.0.7:8080/", false),
            ("http://0x0a000007:8080/", false),
            ("https://evil.org/images.example.org", false),
            ("https:///images.example.org", false),
        ] {
            assert!(hosts.reads(url), "{url}");
            let uri = url.parse::<Uri>().ok();
            let found = uri.is_some_and(|uri| hosts.hosts.iter().any(|host| host.is_of(&uri)));
            assert_eq!(found, is_named, "{url}");
        }
        assert!(!hosts.reads("data:image/png;base64,") && !hosts.reads("file:///a") && !hosts.reads("é"));
        for bad in ["", "*.example.org", "a/b", "ftp://a", "me@a", "a b", "a:x", "http://", "https://a?b"] {
            assert!(
                ImageHosts::of(&[bad.to_string()]).is_err_and(|error| error.slug == "bad-value"),
                "{bad}"
            );
        }
    }

    #[test]
    fn addresses_of_private_networks_are_told_apart() {
        for (address, expect) in [
            ("93.184.216.34", true),
            ("2606:2800:220:1::1", true),
            ("127.0.0.1", false),
            ("10.1.2.3", false),
            ("172.16.0.1", false),
            ("192.168.0.1", false),
            ("169.254.169.254", false),
            ("100.64.0.1", false),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::1", false),
            ("::", false),
            ("::ffff:127.0.0.1", false),
            ("fe80::1", false),
            ("fd00::1", false),
            ("ff02::1", false),
            ("64:ff9b::7f00:1", false),
            ("2002:7f00:1::", false),
            ("2001:0:7f00:1::", false),
        ] {
            assert_eq!(is_public(address.parse().expect("an address")), expect, "{address}");
        }
    }
}
