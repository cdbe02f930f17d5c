//! The verb `env-worker` alone: becomes a worker of Python environments. It is started by a collector, never by hand.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(2).collect();
    plimsoll_collect::become_env_worker(&arguments)
}
