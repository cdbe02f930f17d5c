//! Whether a crash leaves a core dump: no, because this process holds keys of its environment and of run files.
//!
//! The limit is inherited by the trainer, by workers and by everything that they start. The process stays "dumpable":
//! otherwise `/proc/self` would be root's, through which ranks find each other's windows and workers their scores.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Set to 1, it leaves the system's limit as it is, for somebody who debugs a crash.
const VARIABLE: &str = "PLIMSOLL_CORE_DUMPS";

/// Lowers the size limit of core dumps to 0. Best effort: lowering a limit is allowed to everybody.
pub fn refuse() {
    if std::env::var_os(VARIABLE).is_none_or(|value| value != "1") {
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    }
}
