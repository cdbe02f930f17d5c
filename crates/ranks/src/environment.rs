//! How a process was started, read from its environment: alone, as one of several ranks, or to start ranks itself.
//!
//! A pure function of a lookup, so that each launcher is a row of a table in the tests. It rejects half a set, sets
//! that disagree and values that are not numbers: a wrong rank would wait for others that never come.
//!
//! Sources: torchrun, pytorch `torch/distributed/run.py` and `elastic/agent/server`; srun(1), "OUTPUT ENVIRONMENT
//! VARIABLES"; Open MPI 5 manual, 11.1; MPICH's Hydra. Launchers that count hosts are in `environment_hosts.rs`.

#[path = "environment_hosts.rs"]
mod hosts;

pub use hosts::{HostLauncher, Starts};
use plimsoll_base::{Error, Result};
use sha2::{Digest, Sha256};

/// Most ranks of a run; one large host has as many.
pub const RANKS_MAX: u32 = 64;
/// The variable that `train --ranks N` sets for its ranks: `RANK/RANKS:FIRST/COUNT:PORT:PID:ADDRESS`: the ranks of this
/// host, the launcher's process id, and where rank 0 listens.
pub const LAUNCH_VARIABLE: &str = "PLIMSOLL_LAUNCH";
/// Ports for launchers that name none: 20000 to 29999, derived from the job's id.
const PORT_FIRST: u16 = 20_000;
const PORTS: u16 = 10_000;
const LOOPBACK: &str = "127.0.0.1";

/// Looks up an environment variable.
type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Holds what is known apart from the environment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flags<'a> {
    /// `--ranks N`: ranks of all hosts together.
    pub ranks: Option<u32>,
    /// `--hosts H`: number of hosts.
    pub hosts: Option<u32>,
    /// `--host-rank h`: number of this host.
    pub host_rank: Option<u32>,
    /// `--join ADDRESS[:PORT]`: where rank 0 listens.
    pub join: Option<&'a str>,
    /// Process id of this process's parent.
    pub parent: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `train --ranks`, with the launcher's process id.
    Plimsoll(u32),
    Torchrun,
    Slurm,
    OpenMpi,
    Mpich,
}

impl Launcher {
    pub fn name(self) -> &'static str {
        match self {
            Launcher::Plimsoll(_) => "plimsoll",
            Launcher::Torchrun => "torchrun",
            Launcher::Slurm => "srun",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Mpich => "MPICH",
        }
    }
}

/// A process that is one of several ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub rank: u32,
    pub ranks: u32,
    pub local_rank: u32,
    pub local_ranks: u32,
    /// Where rank 0 listens.
    pub address: String,
    /// The first port that rank 0 tries.
    pub port: u16,
    /// Identifies this start of this job: it keeps jobs apart, and strangers not, because it can be guessed.
    pub id: String,
    pub launcher: Launcher,
}

impl Launch {
    /// Returns true if all ranks are on this host: rank 0 then listens on loopback alone, so no other host can join.
    pub fn is_on_one_host(&self) -> bool {
        self.local_ranks == self.ranks
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The run is one process with its supervisor.
    One,
    /// This process starts the ranks of its host.
    Start(Starts),
    Rank(Launch),
}

/// Returns how this process was started.
///
/// Precedence: the variable of `train --ranks`, then torchrun, srun (only within a step), Open MPI, MPICH, then
/// launchers that count hosts, where flags override variables. If a launcher started one process, the flags decide.
/// Errors: `ranks-environment`, `ranks-hosts`.
pub fn read(get: Get<'_>, flags: &Flags<'_>) -> Result<Found> {
    if let Some(launch) = own(get, flags.parent)? {
        return Ok(Found::Rank(launch));
    }
    let mut sets = Vec::new();
    for reader in [torchrun, slurm, open_mpi, mpich] {
        sets.extend(reader(get, flags)?);
    }
    for set in &sets {
        set.check()?;
    }
    sets.retain(|set| set.launch.ranks > 1);
    let Some(first) = sets.first() else {
        return Ok(hosts::read(get, flags)?.map_or(Found::One, Found::Start));
    };
    if let Some(other) = sets.iter().find(|set| set.numbers() != first.numbers()) {
        return Err(disagree(&first.words(), &other.words()));
    }
    if let Some(ranks) = flags.ranks.filter(|&ranks| ranks != first.launch.ranks) {
        return Err(disagree(&first.words(), &format!("--ranks {ranks}")));
    }
    if let Some(hosts) = flags.hosts.filter(|&hosts| hosts > 1) {
        return Err(disagree(&first.words(), &format!("--hosts {hosts}")));
    }
    Ok(Found::Rank(first.launch.clone()))
}

/// Holds what the variables of one launcher say.
struct Set {
    launch: Launch,
    /// The variables as read, for error messages.
    read: String,
}

impl Set {
    fn numbers(&self) -> [u32; 2] {
        [self.launch.rank, self.launch.ranks]
    }

    fn words(&self) -> String {
        format!("{}: {}", self.launch.launcher.name(), self.read)
    }

    fn check(&self) -> Result<()> {
        let Launch { rank, ranks, local_rank, local_ranks, .. } = self.launch;
        let wrong = |why: String| Err(environment_error(format!("{}: {why}", self.words())));
        if ranks == 0 || local_ranks == 0 {
            return wrong("a number of ranks is 0".into());
        }
        if rank >= ranks {
            return wrong(format!("rank {rank} of {ranks}: ranks count from 0"));
        }
        if local_rank >= local_ranks || local_ranks > ranks {
            return wrong(format!(
                "local rank {local_rank} of {local_ranks} cannot be a part of {ranks} ranks"
            ));
        }
        if ranks > RANKS_MAX {
            return wrong(format!("{ranks} ranks, and at most {RANKS_MAX} are built"));
        }
        Ok(())
    }
}

/// Reads the set of `train --ranks`. One that names another parent was inherited from an outer run and is ignored.
fn own(get: Get<'_>, parent: u32) -> Result<Option<Launch>> {
    let Some(text) = get(LAUNCH_VARIABLE).filter(|text| !text.is_empty()) else { return Ok(None) };
    let parsed = || -> Option<([u32; 4], u16, u32, &str)> {
        let mut parts = text.splitn(5, ':');
        let mut pair = || {
            let (one, other) = parts.next()?.split_once('/')?;
            Some([one.parse::<u32>().ok()?, other.parse::<u32>().ok()?])
        };
        let ([rank, ranks], [first, count]) = (pair()?, pair()?);
        let (port, pid) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(([rank, ranks, rank.checked_sub(first)?, count], port, pid, parts.next()?))
    };
    let Some(([rank, ranks, local_rank, local_ranks], port, pid, address)) = parsed() else {
        let form = "RANK/RANKS:FIRST/COUNT:PORT:PID:ADDRESS";
        return Err(environment_error(format!("{LAUNCH_VARIABLE} = {text:?} is not {form}")));
    };
    if pid != parent {
        return Ok(None);
    }
    // With several hosts, each has its own process that starts ranks.
    let id = if local_ranks == ranks { format!("plimsoll:{pid}") } else { "plimsoll".into() };
    let launcher = Launcher::Plimsoll(pid);
    let launch = Launch { rank, ranks, local_rank, local_ranks, address: address.into(), port, id, launcher };
    let set = Set { launch, read: format!("{LAUNCH_VARIABLE} = {text}") };
    set.check().map(|()| Some(set.launch))
}

fn torchrun(get: Get<'_>, _: &Flags<'_>) -> Result<Option<Set>> {
    const NAMES: [&str; 4] = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];
    let there = NAMES.map(|name| get(name).is_some());
    if let [true, true, false, false] = there {
        // A PyTorchJob counts its pods in these variables.
        return Ok(None);
    }
    let Some([rank, ranks, local_rank, local_ranks]) = whole(get, Launcher::Torchrun, NAMES)? else {
        return Ok(None);
    };
    let (mut address, mut port) = (LOOPBACK.to_string(), PORT_FIRST);
    if ranks > 1 {
        let missing = |name: &str| {
            environment_error(format!("torchrun: {}, and {name} is not set", shown(get, &NAMES)))
        };
        address = get("MASTER_ADDR").filter(|text| !text.is_empty()).ok_or_else(|| missing("MASTER_ADDR"))?;
        port = port_of(get, "MASTER_PORT")?.ok_or_else(|| missing("MASTER_PORT"))?;
    }
    let text = |name: &str| get(name).unwrap_or_default();
    let id = format!("torchrun:{}:{}", text("TORCHELASTIC_RUN_ID"), text("TORCHELASTIC_RESTART_COUNT"));
    let launch =
        Launch { rank, ranks, local_rank, local_ranks, address, port, id, launcher: Launcher::Torchrun };
    Ok(Some(Set { launch, read: shown(get, &NAMES) }))
}

/// Reads srun's set. A batch script has SLURM_PROCID = 0 and SLURM_NTASKS = N too, but only a step is a task.
fn slurm(get: Get<'_>, _: &Flags<'_>) -> Result<Option<Set>> {
    const NAMES: [&str; 3] = ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"];
    let Some(step) = get("SLURM_STEP_ID") else { return Ok(None) };
    let Some([rank, ranks, local_rank]) = whole(get, Launcher::Slurm, NAMES)? else { return Ok(None) };
    let per_node = match get("SLURM_STEP_TASKS_PER_NODE") {
        None => vec![ranks],
        Some(text) => tasks_per_node(&text).ok_or_else(|| {
            environment_error(format!("srun: SLURM_STEP_TASKS_PER_NODE = {text:?} is no list as `4(x2),3`"))
        })?,
    };
    let node = number(get, "SLURM_NODEID")?.unwrap_or(0) as usize;
    let Some(&local_ranks) = per_node.get(node) else {
        return Err(environment_error(format!(
            "srun: SLURM_NODEID = {node}, and SLURM_STEP_TASKS_PER_NODE lists {} nodes",
            per_node.len()
        )));
    };
    let text = |name: &str| get(name).unwrap_or_default();
    let id = format!("slurm:{}.{step}:{}", text("SLURM_JOB_ID"), text("SLURM_RESTART_COUNT"));
    let first = get("SLURM_STEP_NODELIST").and_then(|list| first_node(&list));
    let launch = anywhere(get, Launcher::Slurm, [rank, ranks, local_rank, local_ranks], id, first)?;
    Ok(Some(Set { launch, read: shown(get, &[&NAMES[..], &["SLURM_STEP_TASKS_PER_NODE"]].concat()) }))
}

/// Returns the first node of a list, where rank 0 is: `n1` of `n[1-3,7],m2`.
fn first_node(list: &str) -> Option<String> {
    let end = list.find(['[', ',']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let Some(inside) = rest.strip_prefix('[') else {
        return (!name.is_empty()).then(|| name.to_string());
    };
    let (ranges, after) = inside.split_once(']')?;
    let number = ranges.split([',', '-']).next().filter(|number| !number.is_empty())?;
    // A name may continue after the brackets, with more brackets: `a[1-2]b[3-4]`.
    match after.split(',').next() {
        None | Some("") => Some(format!("{name}{number}")),
        Some(_) => first_node(after).map(|after| format!("{name}{number}{after}")),
    }
}

/// Reads `4(x2),3` as 4, 4, 3. The largest cluster bounds the list, not the text.
fn tasks_per_node(text: &str) -> Option<Vec<u32>> {
    const NODES_MAX: usize = 65_536;
    let mut tasks = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse::<usize>().ok()?),
            None => (part, 1),
        };
        let count = count.trim().parse::<u32>().ok()?;
        if times == 0 || tasks.len() + times > NODES_MAX {
            return None;
        }
        tasks.extend(std::iter::repeat_n(count, times));
    }
    Some(tasks)
}

fn open_mpi(get: Get<'_>, flags: &Flags<'_>) -> Result<Option<Set>> {
    const NAMES: [&str; 4] = [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ];
    let Some(numbers) = whole(get, Launcher::OpenMpi, NAMES)? else { return Ok(None) };
    // Without a job name, the parent of all ranks on this host identifies the job.
    let job = get("PMIX_NAMESPACE").or_else(|| get("OMPI_MCA_ess_base_jobid"));
    let id = format!("openmpi:{}", job.unwrap_or_else(|| flags.parent.to_string()));
    let launch = anywhere(get, Launcher::OpenMpi, numbers, id, None)?;
    Ok(Some(Set { launch, read: shown(get, &NAMES) }))
}

/// Reads MPICH's set. srun with `--mpi=pmi2` sets PMI_RANK too; then srun's own set counts.
fn mpich(get: Get<'_>, flags: &Flags<'_>) -> Result<Option<Set>> {
    const NAMES: [&str; 4] = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"];
    let is_local = get("MPI_LOCALRANKID").is_some() || get("MPI_LOCALNRANKS").is_some();
    if !is_local && get("SLURM_STEP_ID").is_some() {
        return Ok(None);
    }
    let Some(numbers) = whole(get, Launcher::Mpich, NAMES)? else { return Ok(None) };
    let job = get("PMI_JOBID").unwrap_or_else(|| flags.parent.to_string());
    let launch = anywhere(get, Launcher::Mpich, numbers, format!("mpich:{job}"), None)?;
    Ok(Some(Set { launch, read: shown(get, &NAMES) }))
}

/// Returns a launch without an address: this host if all ranks are here, else MASTER_ADDR or `first`; port by job id.
fn anywhere(
    get: Get<'_>,
    launcher: Launcher,
    numbers: [u32; 4],
    id: String,
    first: Option<String>,
) -> Result<Launch> {
    let [rank, ranks, local_rank, local_ranks] = numbers;
    let port = port_of(get, "MASTER_PORT")?.unwrap_or_else(|| port_by(&id));
    let address = if local_ranks < ranks {
        get("MASTER_ADDR").filter(|text| !text.is_empty()).or(first).ok_or_else(|| {
            let message = format!("{}: {ranks} ranks, {local_ranks} of them on this host", launcher.name());
            Error::usage("ranks-environment", format!("{message}, and no address of rank 0's host"))
                .hint("set MASTER_ADDR to an address of rank 0's host, for all ranks")
        })?
    } else {
        LOOPBACK.into()
    };
    Ok(Launch { rank, ranks, local_rank, local_ranks, address, port, id, launcher })
}

/// Returns the port of a job that names none.
fn port_by(id: &str) -> u16 {
    let sum = Sha256::digest(id.as_bytes());
    PORT_FIRST + u16::from_le_bytes([sum[0], sum[1]]) % PORTS
}

/// Reads all of `names`, or none of them.
fn whole<const N: usize>(
    get: Get<'_>,
    launcher: Launcher,
    names: [&'static str; N],
) -> Result<Option<[u32; N]>> {
    let (mut values, mut missing) = ([0; N], Vec::new());
    for (value, name) in values.iter_mut().zip(names) {
        match number(get, name)? {
            Some(number) => *value = number,
            None => missing.push(name),
        }
    }
    match missing.len() {
        0 => Ok(Some(values)),
        n if n == N => Ok(None),
        _ => Err(environment_error(format!(
            "half of an environment of {}: {}, and not {}",
            launcher.name(),
            shown(get, &names),
            missing.join(", ")
        ))),
    }
}

fn number(get: Get<'_>, name: &str) -> Result<Option<u32>> {
    let Some(text) = get(name) else { return Ok(None) };
    text.trim()
        .parse()
        .map(Some)
        .map_err(|_| environment_error(format!("{name} = {text:?} is no number of ranks")))
}

fn port_of(get: Get<'_>, name: &str) -> Result<Option<u16>> {
    let Some(text) = get(name) else { return Ok(None) };
    match text.trim().parse() {
        Ok(port @ 1..) => Ok(Some(port)),
        _ => Err(environment_error(format!("{name} = {text:?} is no port from 1 to 65535"))),
    }
}

/// Returns `A = 1, B = 2` for the variables that are set.
fn shown(get: Get<'_>, names: &[&str]) -> String {
    let set = names.iter().filter_map(|name| Some(format!("{name} = {}", get(name)?)));
    set.collect::<Vec<_>>().join(", ")
}

fn environment_error(message: String) -> Error {
    Error::usage("ranks-environment", message).hint(
        "unset the variables that are not meant, or start the ranks with `plimsoll train RUN --ranks N`",
    )
}

fn disagree(one: &str, other: &str) -> Error {
    environment_error(format!("two launchers disagree: {one}; {other}"))
}

#[cfg(test)]
#[path = "environment_tests.rs"]
mod tests;
