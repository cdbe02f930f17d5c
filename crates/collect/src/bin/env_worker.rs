//! Only the verb `env-worker`: becomes a worker of Python environments. A collector starts it.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(2).collect();
    plimsoll_collect::become_env_worker(&arguments)
}
