//! Cards: the caller's facts, what the system shows, and their holders. Reads device files and /proc, opens no library.

use super::facts::{Card, Check, Finding, HandOver, Machine, State};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Most processes to inspect, and descriptors of each.
const PROCESSES_MAX: usize = 8192;
const DESCRIPTORS_MAX: usize = 4096;
/// Most holders named per card.
const NAMED_MAX: usize = 5;
/// A card with a larger share in use before a run is used by someone else.
const BUSY_SHARE: f64 = 0.05;

pub fn checks(machine: &Machine) -> Vec<Check> {
    vec![
        Check::of("machine-gpu-driver", driver(machine)),
        Check::of("machine-gpu-cards", cards(machine)),
        Check::of("machine-gpu-holders", holders(machine)),
        Check::of("machine-gpu-hand-over", hand_over(machine)),
    ]
}

/// Returns the numbers of the device files /dev/nvidia0, /dev/nvidia1, ...
fn device_files(machine: &Machine) -> Vec<u32> {
    let number = |name: String| name.strip_prefix("nvidia")?.parse().ok();
    let mut numbers: Vec<u32> = machine.names("dev").into_iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

fn driver(machine: &Machine) -> Finding {
    let module = machine.read("proc/driver/nvidia/version");
    let module = module.as_deref().and_then(|text| text.lines().next()).map(|line| {
        let version = line
            .split_ascii_whitespace()
            .find(|word| word.split('.').count() >= 2 && word.starts_with(|c: char| c.is_ascii_digit()));
        version.unwrap_or("unknown").to_string()
    });
    let facts = &machine.gpu;
    match (&facts.driver, &module) {
        (Some(driver), _) if facts.libraries_missing.is_empty() => {
            let module = module.map_or(String::new(), |version| format!(", kernel module {version}"));
            (State::Fine, format!("{driver}{module}"))
        }
        (Some(driver), _) => {
            (State::Problem, format!("{driver}; missing: {}", facts.libraries_missing.join("; ")))
        }
        (None, Some(version)) => {
            let why = facts.missing.as_deref().unwrap_or("CUDA was not asked");
            (State::Problem, format!("the kernel module {version} is loaded, but CUDA does not work: {why}"))
        }
        (None, None) => (State::Unknown, "no NVIDIA driver: cards were not checked".into()),
    }
}

fn cards(machine: &Machine) -> Finding {
    let files = device_files(machine).len();
    let shown = machine.variable("CUDA_VISIBLE_DEVICES");
    let visible = shown.map_or(String::new(), |value| format!("; CUDA_VISIBLE_DEVICES={value}"));
    let cards = &machine.gpu.cards;
    if cards.is_empty() {
        let state = if files > 0 && shown.is_none() { State::Problem } else { State::Unknown };
        return (state, format!("no card is usable; {files} device files{visible}"));
    }
    let busy = |card: &Card| {
        card.free.is_some_and(|free| {
            (card.total.0 - free.0.min(card.total.0)) as f64 > BUSY_SHARE * card.total.0 as f64
        })
    };
    let words: Vec<String> = cards
        .iter()
        .map(|card| match card.free {
            Some(free) => format!("{}: {free} of {} free", card.name, card.total),
            None => format!("{}: {}", card.name, card.total),
        })
        .collect();
    let state = if cards.iter().any(busy) {
        State::Problem
    } else if cards.len() < files {
        State::Note
    } else {
        State::Fine
    };
    (state, format!("{}; {files} device files{visible}", words.join(", ")))
}

/// A process that has the device file of a card open.
struct Holder {
    pid: u32,
    name: String,
    user: u32,
}

fn holders(machine: &Machine) -> Finding {
    if device_files(machine).is_empty() {
        return (State::Unknown, "there are no device files of cards".into());
    }
    let (mut by_card, mut hidden): (BTreeMap<u32, Vec<Holder>>, usize) = (BTreeMap::new(), 0);
    let pids = machine.names("proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    for pid in pids.filter(|pid| *pid != std::process::id()).take(PROCESSES_MAX) {
        match cards_of(machine, pid) {
            None => hidden += 1,
            Some(cards) => {
                for card in cards {
                    by_card.entry(card).or_default().push(holder(machine, pid));
                }
            }
        }
    }
    let unseen = if hidden > 0 {
        format!("; {hidden} processes of other users could not be inspected")
    } else {
        String::new()
    };
    if by_card.is_empty() {
        let state = if hidden > 0 { State::Unknown } else { State::Fine };
        return (state, format!("no process holds a card{unseen}"));
    }
    let words: Vec<String> = by_card
        .iter()
        .map(|(card, holders)| {
            let named: Vec<String> = holders
                .iter()
                .take(NAMED_MAX)
                .map(|holder| format!("pid {} ({}) of user {}", holder.pid, holder.name, holder.user))
                .collect();
            let more = holders.len().saturating_sub(NAMED_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("card {card}: {}{more}", named.join(", "))
        })
        .collect();
    (State::Problem, format!("{}{unseen}", words.join("; ")))
}

/// Returns the cards whose device file the process has open; `None` without permission.
fn cards_of(machine: &Machine, pid: u32) -> Option<Vec<u32>> {
    let entries = match fs::read_dir(machine.root.join(format!("proc/{pid}/fd"))) {
        Ok(entries) => entries,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Some(Vec::new()),
        Err(_) => return None,
    };
    let links = entries.flatten().take(DESCRIPTORS_MAX).filter_map(|entry| fs::read_link(entry.path()).ok());
    let card = |link: std::path::PathBuf| link.to_str()?.strip_prefix("/dev/nvidia")?.parse().ok();
    let mut cards: Vec<u32> = links.filter_map(card).collect();
    cards.sort_unstable();
    cards.dedup();
    Some(cards)
}

fn holder(machine: &Machine, pid: u32) -> Holder {
    let user = fs::metadata(machine.root.join(format!("proc/{pid}"))).map_or(0, |meta| meta.uid());
    Holder { pid, name: machine.word(&format!("proc/{pid}/comm")).unwrap_or_default(), user }
}

fn hand_over(machine: &Machine) -> Finding {
    let check = |state, finding: String| (state, finding);
    match &machine.gpu.hand_over {
        HandOver::NoCard => check(State::Unknown, "not probed: no card".into()),
        HandOver::NotTried(why) => check(State::Unknown, format!("not probed: {why}")),
        HandOver::Tried { plain: Ok(()), mapped: Ok(()) } => check(
            State::Fine,
            "another process opened and read memory of the card: plain by a handle, mapped (expandable segments) by a descriptor".into(),
        ),
        HandOver::Tried { plain: Ok(()), mapped: Err(why) } => check(
            State::Problem,
            format!("mapped memory (expandable segments) cannot be handed to another process: {why}; plain memory can"),
        ),
        HandOver::Tried { plain: Err(why), mapped } => {
            let other = mapped.as_ref().map_or_else(|why| format!("cannot either: {why}"), |()| "can".into());
            check(
                State::Problem,
                format!("plain memory of the card cannot be handed to another process: {why}; mapped memory {other}"),
            )
        }
    }
}
