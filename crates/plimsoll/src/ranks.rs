//! `train` as a rank, or as the process that starts ranks: environment, signals and output for the crate `ranks`.

use crate::{errors, output, signals, terminal};
use plimsoll_base::{Error, Result};
use plimsoll_config::{Loaded, RunSpec};
use plimsoll_device::CardInfo;
use plimsoll_memory::{Limits, host::Host};
use plimsoll_plan::devices;
use plimsoll_ranks::{
    Flags, Found, Hello, LAUNCH_VARIABLE, Launch, Link, NOTICE_VARIABLE, Notice, RANKS_MAX, Start, Starts,
    TOKEN_VARIABLE, Token, Waiting,
};
use plimsoll_run::several;
use std::os::fd::AsFd;
use std::os::unix::process::parent_id;
use std::time::Duration;

/// Passes a rank's number of threads to its trainer's run file.
const THREADS_VARIABLE: &str = "PLIMSOLL__RUN__THREADS";
/// Tells the driver which cards to show.
const CARDS_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// The part of a run that this process must start, by its flags.
#[derive(Clone, Debug, clap::Args)]
pub struct Part {
    /// Train with N ranks, of all hosts together. Without it a launcher (torchrun, srun, mpirun, Kubernetes) says which
    /// rank or host this is; without one it is the only rank.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(RANKS_MAX)), conflicts_with = "no_supervisor")]
    pub ranks: Option<u32>,
    /// Train on H hosts: start the same command on each, with its --host-rank, one --join and one secret in
    /// PLIMSOLL_TOKEN.
    #[arg(long, value_name = "H", conflicts_with = "no_supervisor")]
    pub hosts: Option<u32>,
    /// Which of the hosts this is, from 0.
    #[arg(long, value_name = "h")]
    pub host_rank: Option<u32>,
    /// Where the others find the first host. Port 29500 unless it names another.
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub join: Option<String>,
}

/// Returns how this process was started.
pub fn found(part: &Part) -> Result<Found> {
    let Part { ranks, hosts, host_rank, join } = part;
    let (join, parent) = (join.as_deref(), parent_id());
    plimsoll_ranks::read(
        &variable,
        &Flags { ranks: *ranks, hosts: *hosts, host_rank: *host_rank, join, parent },
    )
}

/// Returns the job's secret, set by the user or by the process that started this one.
pub fn secret() -> Option<String> {
    variable(TOKEN_VARIABLE)
}

/// Starts the ranks of this host as processes with the same arguments. Returns the exit code of the run.
pub fn start(starts: &Starts, quiet: bool) -> Result<u8> {
    let (forward, child_ended) = signals::pipes()?;
    let forward: Vec<_> = forward.iter().map(|pipe| (pipe.signal, pipe.read.as_fd())).collect();
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let env = terminal::for_child();
    let Starts { first, count, ranks, address, port, .. } = starts;
    if *first > 0 {
        let last = first + count - 1;
        output::note(
            quiet,
            &format!("starts ranks {first} to {last} of {ranks}; rank 0, at {address}:{port}, shows the run"),
        );
    }
    let secret = variable(TOKEN_VARIABLE).filter(|secret| !secret.is_empty());
    plimsoll_ranks::launch(&Start {
        starts,
        secret: secret.as_deref(),
        args: &args,
        env: &env,
        forward: &forward,
        child_ended: child_ended.read.as_fd(),
    })
}

/// Returns the card of a rank: the only one it sees, or the one with its number on this host; `None` on CPUs.
///
/// Errors: `card-missing`.
pub fn card_of(launch: &Launch, loaded: &Loaded) -> Result<Option<CardInfo>> {
    let row = devices::row_of(&RunSpec::new(&loaded.run), &Limits::default());
    let (mut cards, index) = ((row.cards)(), launch.local_rank as usize);
    match cards.len() {
        0 => Ok(None), // The trainer says why.
        1 => Ok(cards.pop()),
        seen if index < seen => Ok(Some(cards.swap_remove(index))),
        seen => {
            let message =
                format!("rank {} is number {index} on this host, which shows {seen} cards", launch.rank);
            Err(Error::usage("card-missing", message)
                .hint("start as many ranks as there are cards, or check CUDA_VISIBLE_DEVICES"))
        }
    }
}

/// Seconds that ranks wait for others: to join, and for one that makes no progress.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub join: u32,
    pub wait: u32,
}

/// Finds the other ranks and trains as one of them. Returns the exit code.
pub fn join(launch: &Launch, loaded: &Loaded, times: Times) -> Result<u8> {
    plimsoll_ranks::die_with_launcher(launch.launcher)?;
    let (forward, child_ended) = signals::pipes()?;
    let forward: Vec<_> = forward.iter().map(signals::Pipe::as_signal).collect();
    // Warnings, which `--quiet` does not suppress.
    let mut say = |words: &str| output::note(false, words);
    let token = Token::of(launch, secret().as_deref())?;
    let card = card_of(launch, loaded)?;
    let mut alike = several::alike(loaded);
    alike.extend(card.as_ref().map(|card| ("card".to_string(), format!("{}, {}", card.name, card.total))));
    let hello = Hello::of_this_process(launch, card.as_ref().map(|card| card.uuid.clone()), alike);
    let mut stopped = || forward.iter().find(|one| one.came()).map(|one| one.signal);
    let notice = Notice::of(launch.launcher);
    let waiting = Waiting { seconds: times.join, notice, stopped: &mut stopped, say: &mut say };
    let met = plimsoll_ranks::meet(launch, &token, &hello, waiting)?;
    let link = Link::start(met, Duration::from_secs(times.wait.into()))?;
    let mut env = terminal::for_child();
    // A trainer starts no ranks, and code in its workers needs no token.
    env.extend(
        [LAUNCH_VARIABLE, NOTICE_VARIABLE, TOKEN_VARIABLE].map(|name| (name.to_string(), String::new())),
    );
    if loaded.run.run.threads.value().is_none() {
        let host = Host::this();
        let threads = several::share_of_threads(launch.rank, &link.members, host.threads(), host.cpu_quota());
        env.push((THREADS_VARIABLE.into(), threads.to_string()));
    }
    // The trainer sees only its own card; it opens the memory of others by handles.
    env.extend(card.map(|card| (CARDS_VARIABLE.to_string(), card.uuid)));
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let mut tell = |error: &Error| {
        errors::print(error);
    };
    let user = several::User { say: &mut say, tell: &mut tell };
    several::supervise_rank(&words, &env, &forward, child_ended.as_signal(), &link, user)
}
