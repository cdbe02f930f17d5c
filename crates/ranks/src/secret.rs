//! The secret of a job: who must have one, how long it is at least, and how each launcher carries one to its ranks.
//!
//! Where all ranks are on one host, rank 0 listens on loopback alone, whatever its launcher says of hosts: no other
//! host can dial it. Everywhere else any program that reaches its port could join, and what launchers call a job can be
//! guessed: so a run on several hosts does not start without a secret.

use crate::environment::{HostLauncher, Launch, Launcher, Starts};
use plimsoll_base::{Error, Result};

/// A secret that the user gives all ranks; `train --ranks` generates one where all are on one host.
pub const TOKEN_VARIABLE: &str = "PLIMSOLL_TOKEN";
/// The bytes of 32 hexadecimal digits: too many to try.
pub const SECRET_BYTES_MIN: usize = 16;
/// How to make one.
const MAKE: &str = "PLIMSOLL_TOKEN=\"$(openssl rand -hex 16)\"";

/// Returns the secret for the ranks that a launcher started; `None` if all are on one host and the user gave none.
///
/// Errors: `ranks-token` if ranks are on several hosts and it is missing or short.
pub(crate) fn of_ranks<'a>(launch: &Launch, given: Option<&'a str>) -> Result<Option<&'a str>> {
    let given = given.filter(|secret| !secret.is_empty());
    if launch.is_on_one_host() {
        return Ok(given);
    }
    let Launch { launcher, ranks, local_ranks, .. } = launch;
    let who = format!("{}: {ranks} ranks, {local_ranks} of them on this host,", launcher.name());
    enough(given, &who, carried_by(*launcher)).map(Some)
}

/// Returns the secret for the ranks that this process starts as one host of several.
///
/// Errors: `ranks-token` if it is missing or short.
pub(crate) fn of_hosts<'a>(starts: &Starts, given: Option<&'a str>) -> Result<&'a str> {
    let who = match starts.launcher {
        HostLauncher::Flags => "--join".to_string(),
        launcher => format!("{}: {} hosts", launcher.name(), starts.hosts),
    };
    enough(given.filter(|secret| !secret.is_empty()), &who, carried_by_hosts(starts.launcher))
}

fn enough<'a>(given: Option<&'a str>, who: &str, carry: &str) -> Result<&'a str> {
    let message = match given {
        None => format!("{who} without {TOKEN_VARIABLE}: all who reach the port could join the run"),
        Some(secret) if secret.len() < SECRET_BYTES_MIN => {
            let bytes = secret.len();
            format!(
                "{who} with a {TOKEN_VARIABLE} of {bytes} bytes, and a secret has {SECRET_BYTES_MIN} at least"
            )
        }
        Some(secret) => return Ok(secret),
    };
    Err(Error::usage("ranks-token", message)
        .hint(format!("make a secret for each start of the job, the same on all hosts: {MAKE}"))
        .hint(carry))
}

/// Returns how a launcher that starts ranks carries a variable to all of them.
fn carried_by(launcher: Launcher) -> &'static str {
    match launcher {
        Launcher::Plimsoll(_) | Launcher::Torchrun => {
            "export it on each host before the command: a rank inherits it"
        }
        Launcher::Slurm => {
            "export it before srun, which carries it to all tasks; a script of `plimsoll launch slurm` does so"
        }
        Launcher::OpenMpi => "export it, and start with mpirun -x PLIMSOLL_TOKEN",
        Launcher::Mpich => "export it, and start with mpiexec -genvlist PLIMSOLL_TOKEN",
    }
}

/// Returns how a launcher that starts one process per host carries a variable to all of them.
fn carried_by_hosts(launcher: HostLauncher) -> &'static str {
    match launcher {
        HostLauncher::Flags => {
            "export it on each host before the command; `plimsoll launch` writes files that carry a new one"
        }
        HostLauncher::Trainer | HostLauncher::PyTorchJob | HostLauncher::LeaderWorkerSet => {
            "put it into a Secret, and name that in each container's `env` with `secretKeyRef`: `plimsoll launch k8s` writes both"
        }
        HostLauncher::SkyPilot => {
            "declare it under `secrets`, and start with sky launch --secret PLIMSOLL_TOKEN"
        }
        HostLauncher::Dstack => {
            "store it with dstack secret set, and name it in the task's `env`: PLIMSOLL_TOKEN=${{ secrets.NAME }}"
        }
    }
}

#[cfg(test)]
#[path = "secret_tests.rs"]
mod tests;
