//! Limits that look like a lack of memory when they are hit: descriptors, processes, locked memory, address space; and
//! shares of processors and disks.

use super::facts::{Check, Machine, State};
use plimsoll_base::Bytes;
use plimsoll_memory::host::parse::{self, Value};

/// A shared tensor takes a descriptor in each process; a Ray worker some hundreds.
const OPEN_FILES_MIN: u64 = 4096;
/// Workers times threads of BLAS, NCCL and Ray on a node of eight cards.
const PROCESSES_MIN: u64 = 4096;
/// Bytes that InfiniBand registers for a rank.
const LOCKED_MIN: u64 = 4 << 30;
/// A bandwidth below which saving a 7B model takes minutes.
const IO_BYTES_MIN: u64 = 200_000_000;

pub fn checks(machine: &Machine) -> Vec<Check> {
    let limits = machine.read("proc/self/limits");
    let value = |key: &str| parse::rlimit(limits.as_deref(), key);
    vec![
        open_files(&value("Max open files"), limits.as_deref()),
        processes(machine, &value("Max processes")),
        locked_memory(machine, &value("Max locked memory")),
        address_space(&value("Max address space"), &value("Max data size")),
        processors(machine),
        io(machine),
    ]
}

fn open_files(soft: &Value, limits: Option<&str>) -> Check {
    const SLUG: &str = "machine-open-files";
    // The third column is the hard limit, up to which a process may raise its own.
    let hard = limits
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("Max open files")))
        .and_then(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
    let up_to = hard.map_or(String::new(), |hard| format!(", may be raised to {hard}"));
    match soft {
        Value::Count(count) if *count < OPEN_FILES_MIN => {
            Check::new(SLUG, State::Problem, format!("ulimit -n {count}{up_to}"))
        }
        Value::Count(count) => Check::new(SLUG, State::Fine, format!("ulimit -n {count}")),
        Value::NoLimit => Check::new(SLUG, State::Fine, "ulimit -n unlimited"),
        _ => Check::new(SLUG, State::Unknown, "/proc/self/limits cannot be read"),
    }
}

fn processes(machine: &Machine, user: &Value) -> Check {
    const SLUG: &str = "machine-processes";
    let readings = machine.host().readings(&machine.run_dir);
    let container = readings.into_iter().find(|reading| reading.name == "processes of the container");
    let mut found = Vec::new();
    let mut least: Option<u64> = None;
    for (name, value) in
        [("ulimit -u", Some(user.clone())), ("pids.max", container.map(|reading| reading.value))]
    {
        match value {
            Some(Value::Count(count)) => {
                least = Some(least.map_or(count, |least| least.min(count)));
                found.push(format!("{name} {count}"));
            }
            Some(Value::NoLimit) => found.push(format!("{name} no limit")),
            _ => {}
        }
    }
    match (found.is_empty(), least) {
        (true, _) => Check::new(SLUG, State::Unknown, "process limits cannot be read"),
        (_, Some(least)) if least < PROCESSES_MIN => Check::new(SLUG, State::Problem, found.join(", ")),
        _ => Check::new(SLUG, State::Fine, found.join(", ")),
    }
}

fn locked_memory(machine: &Machine, value: &Value) -> Check {
    const SLUG: &str = "machine-locked-memory";
    let has_verbs = !machine.names("sys/class/infiniband").is_empty();
    match value {
        Value::NoLimit => Check::new(SLUG, State::Fine, "ulimit -l unlimited"),
        Value::Bytes(bytes) => {
            let (state, verbs) = match (has_verbs, *bytes < LOCKED_MIN) {
                (true, true) => (State::Problem, "there is InfiniBand here, which locks what it registers"),
                (false, true) => (State::Note, "no InfiniBand is visible, which would need more"),
                _ => (State::Fine, "enough for InfiniBand"),
            };
            Check::new(SLUG, state, format!("ulimit -l {}: {verbs}", Bytes(*bytes)))
        }
        _ => Check::new(SLUG, State::Unknown, "/proc/self/limits cannot be read"),
    }
}

fn address_space(space: &Value, data: &Value) -> Check {
    const SLUG: &str = "machine-address-space";
    match (space.bytes(), data.bytes()) {
        (None, None) if *space == Value::Unknown => {
            Check::new(SLUG, State::Unknown, "/proc/self/limits cannot be read")
        }
        (None, None) => Check::new(SLUG, State::Fine, "ulimit -v and -d unlimited"),
        (space, data) => {
            let shown =
                |name: &str, bytes: Option<u64>| bytes.map(|bytes| format!("{name} {}", Bytes(bytes)));
            let words: Vec<String> =
                [shown("ulimit -v", space), shown("ulimit -d", data)].into_iter().flatten().collect();
            Check::new(
                SLUG,
                State::Problem,
                format!("{}: CUDA reserves more address space than any card has", words.join(", ")),
            )
        }
    }
}

fn processors(machine: &Machine) -> Check {
    const SLUG: &str = "machine-processors";
    let online = machine
        .read("proc/cpuinfo")
        .map(|text| text.lines().filter(|line| line.starts_with("processor")).count());
    let threads = machine
        .variable("OMP_NUM_THREADS")
        .map_or("OMP_NUM_THREADS is not set".into(), |n| format!("OMP_NUM_THREADS {n}"));
    let online = online.filter(|&count| count > 0);
    match (machine.host().cpu_quota(), online) {
        (Some(quota), Some(online)) if quota < online as f64 => {
            let unset = machine.variable("OMP_NUM_THREADS").is_none();
            let state = if unset && quota * 2.0 <= online as f64 { State::Problem } else { State::Note };
            Check::new(
                SLUG,
                state,
                format!("the container may use {quota} of {online} processors; {threads}"),
            )
        }
        (_, Some(online)) => {
            Check::new(SLUG, State::Fine, format!("{online} processors, no quota; {threads}"))
        }
        (quota, None) => {
            let quota = quota.map_or(String::new(), |quota| format!(", a quota of {quota}"));
            Check::new(SLUG, State::Unknown, format!("/proc/cpuinfo cannot be read{quota}"))
        }
    }
}

/// Returns the write limits of this process's group, in bytes a second: io.max of v2, blkio.throttle of v1.
fn io(machine: &Machine) -> Check {
    const SLUG: &str = "machine-io-limits";
    let Some(groups) = machine.read("proc/self/cgroup") else {
        return Check::new(SLUG, State::Unknown, "/proc/self/cgroup cannot be read");
    };
    let path = |controller: &str| {
        let line = groups.lines().find(|line| {
            line.split(':').nth(1).is_some_and(|names| names.split(',').any(|name| name == controller))
        });
        line.and_then(|line| line.splitn(3, ':').nth(2)).map(|path| path.trim_start_matches('/').to_string())
    };
    let v2 = path("").unwrap_or_default();
    let texts = [
        machine.read(&format!("sys/fs/cgroup/{v2}/io.max")),
        path("blkio").and_then(|path| {
            machine.read(&format!("sys/fs/cgroup/blkio/{path}/blkio.throttle.write_bps_device"))
        }),
    ];
    let lines: Vec<String> = texts
        .into_iter()
        .flatten()
        .flat_map(|text| text.lines().map(String::from).collect::<Vec<_>>())
        .collect();
    let limit = |line: &String| {
        let word = line
            .split_ascii_whitespace()
            .find_map(|word| word.strip_prefix("wbps="))
            .or_else(|| line.split_ascii_whitespace().nth(1))?;
        word.parse::<u64>().ok()
    };
    match lines.iter().filter_map(limit).min() {
        None => Check::new(SLUG, State::Fine, "no limit on writing is visible"),
        Some(bytes) => {
            let state = if bytes < IO_BYTES_MIN { State::Problem } else { State::Note };
            Check::new(SLUG, state, format!("the container may write {} a second", Bytes(bytes)))
        }
    }
}
