//! The interface by which this host reaches another, as the kernel's routes have it.

use serde::{Deserialize, Serialize};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The interface by which a host reaches rank 0's, or rank 0's host the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    pub name: Option<String>,
    /// The largest packet that it sends, in bytes.
    pub mtu_bytes: Option<u32>,
}

impl Interface {
    /// Returns the interface that leads to `ip`.
    pub(crate) fn towards(ip: IpAddr) -> Interface {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let name = match ip.to_canonical() {
            ip if ip.is_loopback() => Some("lo".to_string()),
            IpAddr::V4(ip) => route(&read("/proc/net/route"), ip),
            IpAddr::V6(ip) => route_v6(&read("/proc/net/ipv6_route"), ip),
        };
        let mtu = name.as_ref().map(|name| read(&format!("/sys/class/net/{name}/mtu")));
        Interface { mtu_bytes: mtu.and_then(|text| text.trim().parse().ok()), name }
    }
}

/// Returns the interface of the longest match in `/proc/net/route`: name, destination, 5 columns, mask.
fn route(text: &str, to: Ipv4Addr) -> Option<String> {
    let entries = text.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        // The kernel prints an address as one number in its own byte order.
        let address = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok().map(u32::to_ne_bytes);
        let (destination, mask) = (address(1)?, address(7)?);
        let matches = (0..4).all(|at| to.octets()[at] & mask[at] == destination[at]);
        matches.then(|| (u32::from_be_bytes(mask).count_ones(), words[0].to_string()))
    });
    longest(entries)
}

/// Returns the interface of the longest match in `/proc/net/ipv6_route`: destination, its length, ..., name.
fn route_v6(text: &str, to: Ipv6Addr) -> Option<String> {
    let entries = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let destination = u128::from_str_radix(words.first()?, 16).ok()?;
        let length = u32::from_str_radix(words.get(1)?, 16).ok().filter(|length| *length <= 128)?;
        let name = words.last().filter(|name| **name != "lo")?;
        let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
        (u128::from(to) & mask == destination & mask).then(|| (length, name.to_string()))
    });
    longest(entries)
}

/// Returns the name with the longest prefix; of equal ones the first, as the kernel does.
fn longest(entries: impl Iterator<Item = (u32, String)>) -> Option<String> {
    let longest = entries.fold(None, |best: Option<(u32, String)>, one| match best {
        Some(best) if best.0 >= one.0 => Some(best),
        _ => Some(one),
    });
    longest.map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_decides_and_of_equal_ones_the_first() {
        let text = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                    eth0\t00000000\t0101000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                    eth0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n\
                    ib0\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
                    ib1\t0002000A\t00000000\t0001\t0\t0\t9\t00FFFFFF\t0\t0\t0\n";
        for (to, expect) in [([10, 0, 2, 7], "ib0"), ([10, 0, 3, 7], "eth0"), ([8, 8, 8, 8], "eth0")] {
            assert_eq!(route(text, to.into()).as_deref(), Some(expect), "{to:?}");
        }
        assert_eq!(route("Iface\n", [10, 0, 2, 7].into()), None);
        let line = |destination: &str, length: &str, name: &str| {
            format!("{destination} {length} {} 00 {} 1 2 3 4 {name}\n", "0".repeat(32), "0".repeat(32))
        };
        let text = [
            line(&"0".repeat(32), "00", "lo"),
            line(&"0".repeat(32), "00", "eth0"),
            line("fd000000000000000000000000000000", "08", "ib0"),
        ]
        .concat();
        assert_eq!(route_v6(&text, "fd00::7".parse().unwrap()).as_deref(), Some("ib0"));
        assert_eq!(route_v6(&text, "2001:db8::1".parse().unwrap()).as_deref(), Some("eth0"));
        assert_eq!(route_v6("", "fd00::7".parse().unwrap()), None);
    }

    #[test]
    fn this_host_reaches_itself_by_loopback() {
        for ip in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            let found = Interface::towards(ip.parse().unwrap());
            assert_eq!(found.name.as_deref(), Some("lo"), "{ip}");
            assert!(found.mtu_bytes.is_none_or(|mtu| mtu >= 1280), "{found:?}");
        }
    }
}
