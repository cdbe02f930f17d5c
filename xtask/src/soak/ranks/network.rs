//! Two hosts with a network between them that loses packets, is slow, reorders, or passes one port alone. Each host has
//! a network and a process namespace; a process of this machine carries the frames (`bench/delay.py`), because not
//! every kernel has netem.
//!
//! What outlives a soak that was killed ends anyway: processes by the death of their parent, namespaces when the next
//! soak begins.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::process::send;
use super::hosts::SECRET;

const RELAY: &str = include_str!("../../../../bench/delay.py");
const PLAIN: &str = include_str!("plain.py");
const FLOOD: &str = include_str!("flood.py");
/// Addresses of the two hosts, and of a stranger on each.
const HOSTS: [&str; 2] = ["10.79.0.1", "10.79.0.2"];
const STRANGER: &str = "10.79.0.3";
/// Before the id of the process that made a namespace.
const PREFIX: &str = "plimsoll-";
/// Where rank 0 listens: in a network of its own every port is free.
pub const PORT: u16 = 29_500;

/// The treatment of frames by the network.
#[derive(Clone, Copy)]
pub struct Weather {
    /// How long each travels.
    pub milliseconds: u32,
    /// Parts of the frames that are lost, and that come later than those after them.
    pub lost: f64,
    pub late: f64,
    /// Connections of strangers a second at each host, which say nothing.
    pub silent: u32,
}

/// The namespaces and the processes of a network. All end when it is dropped.
pub struct Network {
    /// The network namespaces of the two hosts, and of the relay.
    spaces: [String; 3],
    relay: Option<Child>,
    floods: Vec<Child>,
}

impl Network {
    /// Builds it; `None` if this user may not.
    pub fn new(weather: Weather) -> Option<Network> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        if number == 0 {
            remove_orphans();
        }
        let spaces = ["l", "r", "m"].map(|place| format!("{PREFIX}{}-{number}-{place}", std::process::id()));
        let mut network = Network { spaces, relay: None, floods: Vec::new() };
        network.build(weather)?;
        Some(network)
    }

    fn build(&mut self, weather: Weather) -> Option<()> {
        let [left, right, middle] = &self.spaces;
        for space in &self.spaces {
            ip(&["netns", "add", space])?;
            ip(&["-n", space, "link", "set", "lo", "up"])?;
        }
        for (space, end, address) in [(left, "one", HOSTS[0]), (right, "other", HOSTS[1])] {
            let pair = ["type", "veth", "peer", "name", end, "netns", middle];
            ip(&[&["link", "add", "plimsoll0", "netns", space][..], &pair].concat())?;
            ip(&["-n", space, "addr", "add", &format!("{address}/24"), "dev", "plimsoll0"])?;
            ip(&["-n", space, "addr", "add", &format!("{STRANGER}/32"), "dev", "lo"])?;
            for (space, interface) in [(space, "plimsoll0"), (middle, end)] {
                ip(&["netns", "exec", space, "python3", "-c", PLAIN, interface])?;
                ip(&["-n", space, "link", "set", interface, "up"])?;
            }
        }
        let Weather { milliseconds, lost, late, silent } = weather;
        let how = [milliseconds.to_string(), lost.to_string(), late.to_string(), PORT.to_string()];
        let how = how.each_ref().map(String::as_str);
        self.relay = Some(python(middle, &[&[RELAY, "one", "other"][..], &how].concat())?);
        if silent > 0 {
            let rate = silent.to_string();
            for (space, address) in [(left, HOSTS[0]), (right, HOSTS[1])] {
                self.floods.push(python(space, &[FLOOD, address, STRANGER, &rate])?);
            }
        }
        Some(())
    }

    /// Returns words before a command that run it on a host, 0 or 1.
    pub fn host(&self, host: usize) -> Vec<String> {
        let inside = ["ip", "netns", "exec", &self.spaces[host], "unshare", "--pid", "--fork"];
        let words = ["env", SECRET].into_iter().chain(inside).chain(["--mount-proc", "--kill-child"]);
        words.map(String::from).collect()
    }

    /// Returns where rank 0 listens.
    pub fn join() -> String {
        format!("{}:{PORT}", HOSTS[0])
    }

    /// From now on the port of rank 0's supervisor alone passes.
    pub fn pass_port_alone(&self) {
        self.relay.iter().for_each(|relay| send("USR1", relay.id()));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for process in self.floods.iter_mut().chain(&mut self.relay) {
            let _ = process.kill();
            let _ = process.wait();
        }
        for space in &self.spaces {
            let _ = ip(&["netns", "del", space]);
        }
    }
}

/// Removes namespaces whose maker is gone.
fn remove_orphans() {
    let listed = Command::new("ip").args(["netns", "list"]).stderr(Stdio::null()).output();
    let listed =
        listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for space in listed.lines().filter_map(|line| line.split(' ').next()) {
        let maker = space.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        let is_number = |maker: &&str| maker.parse::<u32>().is_ok();
        if maker.filter(is_number).is_some_and(|maker| !Path::new("/proc").join(maker).exists()) {
            let _ = ip(&["netns", "del", space]);
        }
    }
}

/// Runs `ip`; `None` if it fails.
fn ip(words: &[&str]) -> Option<()> {
    let ran = Command::new("ip").args(words).stdout(Stdio::null()).stderr(Stdio::null()).status();
    ran.is_ok_and(|status| status.success()).then_some(())
}

/// Starts a Python program in a network namespace: its text, then its arguments.
fn python(space: &str, words: &[&str]) -> Option<Child> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "ip", "netns", "exec", space, "python3", "-c"]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().ok()
}
