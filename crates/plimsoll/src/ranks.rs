//! `train` as one of several ranks, or as the process that starts them: the environment, signals and words of the crate
//! `ranks`, for this binary.

use crate::{output, signals, terminal};
use plimsoll_base::Result;
use plimsoll_config::Loaded;
use plimsoll_memory::host::Host;
use plimsoll_ranks::{
    Flags, Found, Hello, LAUNCH_VARIABLE, Launch, Link, Start, TOKEN_VARIABLE, Token, Waiting,
};
use plimsoll_run::several;
use std::os::fd::AsFd;
use std::os::unix::process::parent_id;
use std::time::Duration;

/// The variable by which a rank's number of threads reaches its trainer's run file.
const THREADS_VARIABLE: &str = "PLIMSOLL__RUN__THREADS";

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Returns how this process was started.
pub fn found(ranks: Option<u32>) -> Result<Found> {
    plimsoll_ranks::read(&variable, &Flags { ranks, parent: parent_id() })
}

/// Starts `ranks` processes with this process's arguments. Returns the exit code of the run.
pub fn start(ranks: u32) -> Result<u8> {
    let (forward, child_ended) = signals::pipes()?;
    let forward: Vec<_> = forward.iter().map(|pipe| (pipe.signal, pipe.read.as_fd())).collect();
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let env = terminal::for_child();
    plimsoll_ranks::launch(&Start {
        ranks,
        args: &args,
        env: &env,
        forward: &forward,
        child_ended: child_ended.read.as_fd(),
    })
}

/// How many seconds ranks wait for others: to come, and for one that does not go on.
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
    // Warnings, which `--quiet` leaves in.
    let mut say = |words: &str| output::note(false, words);
    let token = Token::new(launch, variable(TOKEN_VARIABLE).as_deref());
    let hello = Hello::of_this_process(launch, None, several::alike(loaded));
    let mut stopped = || forward.iter().find(|one| one.came()).map(|one| one.signal);
    let waiting = Waiting { seconds: times.join, stopped: &mut stopped, say: &mut say };
    let met = plimsoll_ranks::meet(launch, &token, &hello, waiting)?;
    let link = Link::start(met, Duration::from_secs(times.wait.into()))?;
    let mut env = terminal::for_child();
    // A trainer starts no ranks, and code in its workers needs no token.
    env.extend([LAUNCH_VARIABLE, TOKEN_VARIABLE].map(|name| (name.to_string(), String::new())));
    if loaded.run.run.threads.value().is_none() {
        let host = Host::this();
        let threads = several::share_of_threads(launch.rank, &link.members, host.threads(), host.cpu_quota());
        env.push((THREADS_VARIABLE.into(), threads.to_string()));
    }
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    several::supervise_rank(&words, &env, &forward, child_ended.as_signal(), &link, &mut say)
}
