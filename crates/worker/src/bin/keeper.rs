//! Only the verb `keeper`, for the tests of crates that have no binary of their own.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(2).collect();
    plimsoll_worker::become_keeper(&arguments)
}
