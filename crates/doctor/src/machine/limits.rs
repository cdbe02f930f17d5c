//! Limits that look like a lack of memory: descriptors, processes, locked memory, address space; CPU and disk shares.

use super::facts::{Check, Finding, Machine, State};
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
        Check::of("machine-open-files", open_files(&value("Max open files"), limits.as_deref())),
        Check::of("machine-processes", processes(machine, &value("Max processes"))),
        Check::of("machine-locked-memory", locked_memory(machine, &value("Max locked memory"))),
        Check::of(
            "machine-address-space",
            address_space(&value("Max address space"), &value("Max data size")),
        ),
        Check::of("machine-processors", processors(machine)),
        Check::of("machine-io-limits", io(machine)),
    ]
}

fn open_files(soft: &Value, limits: Option<&str>) -> Finding {
    // The third column is the hard limit, to which a process may raise its own.
    let hard = limits
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("Max open files")))
        .and_then(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
    let up_to = hard.map_or(String::new(), |hard| format!(", may be raised to {hard}"));
    match soft {
        Value::Count(count) if *count < OPEN_FILES_MIN => {
            (State::Problem, format!("ulimit -n {count}{up_to}"))
        }
        Value::Count(count) => (State::Fine, format!("ulimit -n {count}")),
        Value::NoLimit => (State::Fine, "ulimit -n unlimited".into()),
        _ => (State::Unknown, "/proc/self/limits cannot be read".into()),
    }
}

fn processes(machine: &Machine, user: &Value) -> Finding {
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
        (true, _) => (State::Unknown, "process limits cannot be read".into()),
        (_, Some(least)) if least < PROCESSES_MIN => (State::Problem, found.join(", ")),
        _ => (State::Fine, found.join(", ")),
    }
}

fn locked_memory(machine: &Machine, value: &Value) -> Finding {
    let has_verbs = !machine.names("sys/class/infiniband").is_empty();
    match value {
        Value::NoLimit => (State::Fine, "ulimit -l unlimited".into()),
        Value::Bytes(bytes) => {
            let (state, verbs) = match (has_verbs, *bytes < LOCKED_MIN) {
                (true, true) => (State::Problem, "there is InfiniBand here, which locks what it registers"),
                (false, true) => (State::Note, "no InfiniBand is visible, which would need more"),
                _ => (State::Fine, "enough for InfiniBand"),
            };
            (state, format!("ulimit -l {}: {verbs}", Bytes(*bytes)))
        }
        _ => (State::Unknown, "/proc/self/limits cannot be read".into()),
    }
}

fn address_space(space: &Value, data: &Value) -> Finding {
    match (space.bytes(), data.bytes()) {
        (None, None) if *space == Value::Unknown => {
            (State::Unknown, "/proc/self/limits cannot be read".into())
        }
        (None, None) => (State::Fine, "ulimit -v and -d unlimited".into()),
        (space, data) => {
            let shown =
                |name: &str, bytes: Option<u64>| bytes.map(|bytes| format!("{name} {}", Bytes(bytes)));
            let words: Vec<String> =
                [shown("ulimit -v", space), shown("ulimit -d", data)].into_iter().flatten().collect();
            (
                State::Problem,
                format!("{}: CUDA reserves more address space than any card has", words.join(", ")),
            )
        }
    }
}

fn processors(machine: &Machine) -> Finding {
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
            (state, format!("the container may use {quota} of {online} processors; {threads}"))
        }
        (_, Some(online)) => (State::Fine, format!("{online} processors, no quota; {threads}")),
        (quota, None) => {
            let quota = quota.map_or(String::new(), |quota| format!(", a quota of {quota}"));
            (State::Unknown, format!("/proc/cpuinfo cannot be read{quota}"))
        }
    }
}

/// Returns the write limits of this process's group, in bytes a second: io.max of v2, blkio.throttle of v1.
fn io(machine: &Machine) -> Finding {
    let Some(groups) = machine.read("proc/self/cgroup") else {
        return (State::Unknown, "/proc/self/cgroup cannot be read".into());
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
        None => (State::Fine, "no limit on writing is visible".into()),
        Some(bytes) => {
            let state = if bytes < IO_BYTES_MIN { State::Problem } else { State::Note };
            (state, format!("the container may write {} a second", Bytes(bytes)))
        }
    }
}
