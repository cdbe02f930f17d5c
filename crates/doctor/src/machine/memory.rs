//! Host memory: the container's limit and the rest of it, swap, /dev/shm, overcommit, huge pages, NUMA.

use super::facts::{Check, Finding, Machine, State};
use plimsoll_base::Bytes;
use plimsoll_memory::host::parse::{Value, kib_field};

/// A Python process with PyTorch and CUDA libraries takes 3 to 6 GiB before it holds a weight.
const HEADROOM_MIN: u64 = 6 << 30;
/// Weights, optimizer states and a copy at a save of a small model.
const HEADROOM_SMALL: u64 = 32 << 30;
/// A pair of ranks takes up to 33 MiB a channel in /dev/shm, data loaders and Ray gigabytes.
const SHM_MIN: u64 = 1 << 30;

pub fn checks(machine: &Machine) -> Vec<Check> {
    vec![
        Check::of("machine-container-memory", container(machine)),
        Check::of("machine-swap", swap(machine)),
        Check::of("machine-shared-memory", shared_memory(machine)),
        Check::of("machine-overcommit", overcommit(machine)),
        Check::of("machine-huge-pages", huge_pages(machine)),
        Check::of("machine-numa", numa(machine)),
    ]
}

fn container(machine: &Machine) -> Finding {
    let host = machine.host();
    let groups = host.memory_groups();
    let limits = groups.iter().flat_map(|group| {
        let of = |(file, value): (&'static str, Value)| Some((value.bytes()?, group.version, file));
        group.limits().into_iter().filter_map(of)
    });
    let tightest = limits.min();
    let kills = groups.iter().filter_map(|group| group.oom_kills()).max().filter(|&kills| kills > 0);
    let killed = kills.map_or(String::new(), |kills| {
        format!("; the kernel has killed {kills} processes in it since it was created")
    });
    let left = host.memory_limit();
    match (tightest, left) {
        (_, None) => (State::Unknown, "neither a memory cgroup nor /proc/meminfo can be read".into()),
        (limit, Some(left)) => {
            let limited = match limit {
                Some((bytes, version, file)) => format!("limit {} (cgroup v{version} {file})", Bytes(bytes)),
                None if groups.is_empty() => "no memory cgroup is visible".into(),
                None => "no limit".into(),
            };
            let state = match left.bytes.0 {
                ..HEADROOM_MIN => State::Problem,
                HEADROOM_MIN..HEADROOM_SMALL => State::Note,
                _ if kills.is_some() => State::Note,
                _ => State::Fine,
            };
            (state, format!("{limited}; {} are left, by {}{killed}", left.bytes, left.source))
        }
    }
}

fn swap(machine: &Machine) -> Finding {
    let Some(meminfo) = machine.read("proc/meminfo") else {
        return (State::Unknown, "/proc/meminfo cannot be read".into());
    };
    let field = |name| kib_field(&meminfo, name).map(Bytes);
    match (field("SwapTotal:"), field("SwapFree:")) {
        (Some(Bytes(0)), _) => (State::Note, "no swap: at the limit a process is killed at once".into()),
        (Some(total), Some(free)) if free.0 < total.0 / 2 => (
            State::Problem,
            format!("{} of {total} swap are in use: memory is short now", Bytes(total.0 - free.0)),
        ),
        (Some(total), _) => (State::Fine, format!("{total} swap, mostly free")),
        (None, _) => (State::Unknown, "/proc/meminfo does not say".into()),
    }
}

fn shared_memory(machine: &Machine) -> Finding {
    let path = machine.root.join("dev/shm");
    let Ok(stat) = rustix::fs::statvfs(&path) else {
        return (State::Problem, "/dev/shm is not there: NCCL, data loaders and Ray need it".into());
    };
    let size = Bytes(stat.f_blocks.saturating_mul(stat.f_frsize));
    let free = Bytes(stat.f_bavail.saturating_mul(stat.f_frsize));
    let stale = machine
        .names("dev/shm")
        .iter()
        .filter(|name| name.starts_with("nccl-") || name.starts_with("torch_"))
        .count();
    let left_over =
        if stale > 0 { format!("; it holds {stale} segments of NCCL or PyTorch") } else { String::new() };
    let state = if free.0 < SHM_MIN { State::Problem } else { State::Fine };
    (state, format!("/dev/shm has {size}, {free} free{left_over}"))
}

fn overcommit(machine: &Machine) -> Finding {
    match machine.word("proc/sys/vm/overcommit_memory").as_deref() {
        Some("2") => (
            State::Problem,
            "vm.overcommit_memory 2: the kernel refuses memory that would never be touched".into(),
        ),
        Some(mode @ ("0" | "1")) => (State::Fine, format!("vm.overcommit_memory {mode}")),
        _ => (State::Unknown, "vm.overcommit_memory cannot be read".into()),
    }
}

fn huge_pages(machine: &Machine) -> Finding {
    let Some(text) = machine.word("sys/kernel/mm/transparent_hugepage/enabled") else {
        return (State::Unknown, "transparent huge pages: not there or hidden".into());
    };
    let chosen = text.split('[').nth(1).and_then(|rest| rest.split(']').next()).unwrap_or(&text).to_string();
    let reserved = machine
        .read("proc/meminfo")
        .and_then(|meminfo| kib_field(&meminfo, "Hugetlb:"))
        .filter(|&bytes| bytes > 0)
        .map_or(String::new(), |bytes| {
            format!("; {} are reserved as huge pages and unusable for anything else", Bytes(bytes))
        });
    let state = match chosen.as_str() {
        _ if !reserved.is_empty() => State::Note,
        "madvise" => State::Fine,
        _ => State::Note,
    };
    (state, format!("transparent huge pages: {chosen}{reserved}"))
}

fn numa(machine: &Machine) -> Finding {
    let is_node = |name: &String| name.strip_prefix("node").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let nodes: Vec<String> = machine.names("sys/devices/system/node").into_iter().filter(is_node).collect();
    let free = |node: &String| {
        let text = machine.read(&format!("sys/devices/system/node/{node}/meminfo"))?;
        let line = text.lines().find(|line| line.contains("MemFree:"))?;
        let kib: u64 = line.split_ascii_whitespace().rev().nth(1)?.parse().ok()?;
        Some(format!("{node} {} free", Bytes(kib * 1024)))
    };
    match nodes.len() {
        0 => (State::Unknown, "NUMA nodes are hidden".into()),
        1 => (State::Fine, "one NUMA node".into()),
        count => {
            let free: Vec<String> = nodes.iter().filter_map(free).collect();
            (State::Note, format!("{count} NUMA nodes: {}", free.join(", ")))
        }
    }
}
