//! Launchers that start one process per host to start its ranks, by flags or variables: Kubernetes, SkyPilot, dstack.
//!
//! Sources: kubeflow/trainer `pkg/runtime/framework/plugins/torch/torch.go`; kubeflow/training-operator
//! `pkg/controller.v1/pytorch/envvar.go`; kubernetes-sigs/jobset; kubernetes-sigs/lws `pkg/utils/pod/pod_utils.go`;
//! SkyPilot's and dstack's documentation of distributed tasks.

use super::{Flags, Get, LOOPBACK, RANKS_MAX, environment_error, number, port_by, port_of, shown};
use plimsoll_base::{Error, Result};

const PORT: u16 = 29_500;

/// Says what started one process per host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostLauncher {
    /// The user, or a file of `plimsoll launch`, with `--hosts`.
    #[default]
    Flags,
    Trainer,
    PyTorchJob,
    LeaderWorkerSet,
    SkyPilot,
    Dstack,
}

impl HostLauncher {
    pub fn name(self) -> &'static str {
        match self {
            HostLauncher::Flags => "--hosts",
            HostLauncher::Trainer => "Kubeflow Trainer",
            HostLauncher::PyTorchJob => "PyTorchJob",
            HostLauncher::LeaderWorkerSet => "LeaderWorkerSet",
            HostLauncher::SkyPilot => "SkyPilot",
            HostLauncher::Dstack => "dstack",
        }
    }
}

/// The ranks that a process must start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Starts {
    /// The first of these ranks, and how many there are.
    pub first: u32,
    pub count: u32,
    /// Ranks and hosts of the whole run.
    pub ranks: u32,
    pub hosts: u32,
    /// Where rank 0 listens; on one host the port is chosen when it starts.
    pub address: String,
    pub port: u16,
    /// Identifies this start of the job; empty if only the user's secret does.
    pub id: String,
    pub launcher: HostLauncher,
}

/// Holds what the variables of a launcher say.
#[derive(Clone, Debug, Default)]
struct Set {
    hosts: u32,
    rank: u32,
    each: Option<u32>,
    address: Option<String>,
    port: Option<u16>,
    id: String,
    launcher: HostLauncher,
    /// The variables as read, for error messages.
    read: String,
}

/// Returns the ranks that this process must start; `None` if the run has one rank.
///
/// Errors: `ranks-environment`, `ranks-hosts`.
pub(super) fn read(get: Get<'_>, flags: &Flags<'_>) -> Result<Option<Starts>> {
    let mut sets = Vec::new();
    for reader in [trainer, pytorch_job, leader_worker_set, skypilot, dstack] {
        sets.extend(reader(get)?.filter(|set| set.hosts > 1));
    }
    let set = by_flags(get, flags, sets.first().cloned().unwrap_or_default())?;
    if let Some(other) = sets.iter().find(|other| (other.hosts, other.rank) != (set.hosts, set.rank)) {
        let one = if set.read == other.read { flag_words(flags) } else { set.read };
        return Err(super::disagree(&one, &other.read));
    }
    if set.hosts <= 1 {
        let one_host = |ranks| Starts {
            first: 0,
            count: ranks,
            ranks,
            hosts: 1,
            address: LOOPBACK.into(),
            port: 0,
            id: String::new(),
            launcher: HostLauncher::Flags,
        };
        return Ok(flags.ranks.filter(|&ranks| ranks > 1).map(one_host));
    }
    let Set { hosts, rank, each, id, read, .. } = &set;
    if rank >= hosts {
        return Err(environment_error(format!("{read}: host {rank} of {hosts}: hosts count from 0")));
    }
    let each = match (flags.ranks, each) {
        (Some(ranks), _) if !ranks.is_multiple_of(*hosts) || ranks == 0 => {
            let message = format!("--ranks {ranks} are all ranks of {hosts} hosts, each with as many");
            return Err(
                environment_error(message).hint(format!("--ranks {}", ranks.max(1).next_multiple_of(*hosts)))
            );
        }
        (Some(ranks), _) => ranks / hosts,
        (None, each) => each.unwrap_or(1),
    };
    let ranks = hosts.saturating_mul(each);
    if each == 0 || ranks > RANKS_MAX {
        return Err(environment_error(format!(
            "{hosts} hosts with {each} ranks each, and at most {RANKS_MAX} ranks are built"
        )));
    }
    let Some(address) = set.address.clone() else {
        let message = format!("{read}: {hosts} hosts, and no address of the first");
        return Err(Error::usage("ranks-environment", message)
            .hint("--join ADDRESS names the first host, on which rank 0 is, on all hosts"));
    };
    let port = set.port.unwrap_or_else(|| if id.is_empty() { PORT } else { port_by(id) });
    let (id, launcher) = (id.clone(), set.launcher);
    Ok(Some(Starts { first: rank * each, count: each, ranks, hosts: *hosts, address, port, id, launcher }))
}

/// Overrides with flags what a launcher says.
fn by_flags(get: Get<'_>, flags: &Flags<'_>, mut set: Set) -> Result<Set> {
    let Flags { hosts, host_rank, join, .. } = *flags;
    if (hosts, host_rank, join) == (None, None, None) {
        return Ok(set);
    }
    let is_known = set.hosts > 1;
    set.hosts = match hosts {
        Some(hosts) => hosts,
        None if is_known => set.hosts,
        None => return Err(environment_error(format!("{}, without --hosts H", flag_words(flags)))),
    };
    if set.hosts == 0 {
        return Err(environment_error("--hosts 0: a run has one host at least".into()));
    }
    if !is_known && set.hosts > 1 {
        // A Kubernetes job numbers its pods but does not say how many there are.
        let index = number(get, "JOB_COMPLETION_INDEX")?;
        let Some(rank) = host_rank.or(index) else {
            return Err(environment_error(format!("{}, without --host-rank h", flag_words(flags))));
        };
        set.rank = rank;
    }
    set.rank = host_rank.unwrap_or(set.rank);
    if let Some(join) = join {
        let (address, port) = split_join(join)?;
        (set.address, set.port) = (Some(address), port.or(set.port));
        if !is_known {
            set.id = String::new();
        }
    }
    set.read = [flag_words(flags), set.read]
        .into_iter()
        .filter(|words| !words.is_empty())
        .collect::<Vec<_>>()
        .join(", ");
    Ok(set)
}

fn flag_words(flags: &Flags<'_>) -> String {
    let Flags { hosts, host_rank, join, .. } = flags;
    let words = [
        hosts.map(|hosts| format!("--hosts {hosts}")),
        host_rank.map(|rank| format!("--host-rank {rank}")),
        join.map(|join| format!("--join {join}")),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Reads `ADDRESS`, `ADDRESS:PORT`, `[IPV6]:PORT` or an IPv6 address alone.
fn split_join(text: &str) -> Result<(String, Option<u16>)> {
    let wrong = || environment_error(format!("--join {text:?} is no ADDRESS or ADDRESS:PORT"));
    let port = |port: &str| port.parse::<u16>().ok().filter(|port| *port > 0).map(Some).ok_or_else(wrong);
    let (address, port) = match (text.strip_prefix('['), text.matches(':').count()) {
        (Some(inside), _) => {
            let (address, rest) = inside.split_once(']').ok_or_else(wrong)?;
            (address, if rest.is_empty() { None } else { port(rest.strip_prefix(':').ok_or_else(wrong)?)? })
        }
        (None, 1) => {
            let (address, rest) = text.split_once(':').expect("it has one");
            (address, port(rest)?)
        }
        (None, _) => (text, None),
    };
    if address.is_empty() || address.contains(char::is_whitespace) {
        Err(wrong())
    } else {
        Ok((address.into(), port))
    }
}

fn text(get: Get<'_>, name: &str) -> Option<String> {
    get(name).filter(|text| !text.is_empty())
}

/// Reads the number of hosts and the number of this one: both, or neither.
fn pair(get: Get<'_>, hosts: &'static str, rank: &'static str) -> Result<Option<[u32; 2]>> {
    let Some(count) = text(get, hosts) else { return Ok(None) };
    // An elastic job writes a range, `1:4`; a run has one number of ranks.
    if let Some((least, most)) = count.split_once(':').filter(|(least, most)| least != most) {
        return Err(Error::usage("ranks-hosts", format!("{hosts} = {count}: from {least} to {most} hosts"))
            .hint(
                "give the job a fixed number of hosts: a run goes on with another number after a restart",
            ));
    }
    let fixed = count.split(':').next().unwrap_or_default().to_string();
    let count = number(&|_| Some(fixed.clone()), hosts)?.unwrap_or(1);
    if count <= 1 {
        return Ok(None);
    }
    match number(get, rank)? {
        Some(rank) => Ok(Some([count, rank])),
        None => Err(environment_error(format!("{hosts} = {count}, and {rank} is not set"))),
    }
}

/// Reads the ranks per host, as torchrun takes them: a number, or a word for one that is unknown here.
fn each_of(get: Get<'_>, name: &'static str) -> Result<Option<u32>> {
    match text(get, name) {
        Some(word) if ["auto", "gpu", "cpu"].contains(&&*word) => Ok(None),
        _ => Ok(number(get, name)?.filter(|&each| each > 0)),
    }
}

/// Reads Kubeflow Trainer's set, which is torchrun's own variables.
fn trainer(get: Get<'_>) -> Result<Option<Set>> {
    let Some([hosts, rank]) = pair(get, "PET_NNODES", "PET_NODE_RANK")? else { return Ok(None) };
    Ok(Some(Set {
        hosts,
        rank,
        each: each_of(get, "PET_NPROC_PER_NODE")?,
        address: text(get, "PET_MASTER_ADDR").or_else(|| text(get, "MASTER_ADDR")),
        port: port_of(get, "PET_MASTER_PORT")?,
        launcher: HostLauncher::Trainer,
        id: format!("pet:{}", text(get, "PET_RDZV_ID").unwrap_or_default()),
        read: shown(get, &["PET_NNODES", "PET_NODE_RANK"]),
    }))
}

/// Reads a PyTorchJob's set: it counts its pods in torchrun's variables, without LOCAL_RANK.
fn pytorch_job(get: Get<'_>) -> Result<Option<Set>> {
    if text(get, "LOCAL_RANK").is_some() || text(get, "PET_NNODES").is_some() {
        return Ok(None);
    }
    let Some([hosts, rank]) = pair(get, "WORLD_SIZE", "RANK")? else { return Ok(None) };
    Ok(Some(Set {
        hosts,
        rank,
        each: each_of(get, "PET_NPROC_PER_NODE")?,
        address: text(get, "MASTER_ADDR"),
        port: port_of(get, "MASTER_PORT")?,
        launcher: HostLauncher::PyTorchJob,
        id: format!("pytorchjob:{}", text(get, "MASTER_ADDR").unwrap_or_default()),
        read: shown(get, &["WORLD_SIZE", "RANK"]),
    }))
}

fn leader_worker_set(get: Get<'_>) -> Result<Option<Set>> {
    let Some([hosts, rank]) = pair(get, "LWS_GROUP_SIZE", "LWS_WORKER_INDEX")? else { return Ok(None) };
    let address = text(get, "LWS_LEADER_ADDRESS");
    let id = format!("lws:{}", address.clone().unwrap_or_default());
    let read = shown(get, &["LWS_GROUP_SIZE", "LWS_WORKER_INDEX"]);
    let launcher = HostLauncher::LeaderWorkerSet;
    Ok(Some(Set { hosts, rank, each: None, address, port: None, id, launcher, read }))
}

fn skypilot(get: Get<'_>) -> Result<Option<Set>> {
    let Some([hosts, rank]) = pair(get, "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK")? else { return Ok(None) };
    let ips = text(get, "SKYPILOT_NODE_IPS").unwrap_or_default();
    Ok(Some(Set {
        hosts,
        rank,
        each: each_of(get, "SKYPILOT_NUM_GPUS_PER_NODE")?,
        address: ips.split_whitespace().next().map(String::from),
        port: None,
        launcher: HostLauncher::SkyPilot,
        id: format!("skypilot:{}", text(get, "SKYPILOT_TASK_ID").unwrap_or_default()),
        read: shown(get, &["SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK"]),
    }))
}

fn dstack(get: Get<'_>) -> Result<Option<Set>> {
    let Some([hosts, rank]) = pair(get, "DSTACK_NODES_NUM", "DSTACK_NODE_RANK")? else { return Ok(None) };
    Ok(Some(Set {
        hosts,
        rank,
        each: each_of(get, "DSTACK_GPUS_PER_NODE")?,
        address: text(get, "DSTACK_MASTER_NODE_IP"),
        port: None,
        launcher: HostLauncher::Dstack,
        id: format!("dstack:{}", text(get, "DSTACK_RUN_NAME").unwrap_or_default()),
        read: shown(get, &["DSTACK_NODES_NUM", "DSTACK_NODE_RANK"]),
    }))
}
