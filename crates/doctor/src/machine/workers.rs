//! Checks what confines other people's code in workers: rewards, environments, programs written by a model.

use super::facts::{Check, Finding, Machine, State, WorkerFacts};

/// The first version of Landlock that confines signals.
const SIGNALS_SINCE: i64 = 6;

pub fn check(machine: &Machine) -> Check {
    Check::of("machine-workers", finding(machine.workers.as_ref()))
}

fn finding(facts: Option<&WorkerFacts>) -> Finding {
    let Some(facts) = facts else {
        return (State::Unknown, "not probed".into());
    };
    let mut lacks = Vec::new();
    match (facts.filters, facts.answers) {
        (false, _) => lacks.push("no seccomp filters: workers without network access do not start"),
        (true, false) => {
            lacks.push("no filters that ask (Linux 5.5): a worker may signal processes of yours")
        }
        (true, true) => {}
    }
    if facts.landlock == 0 {
        lacks.push("no Landlock (Linux 5.13): a program that a model wrote may write where you may");
    }
    if !lacks.is_empty() {
        return (State::Note, lacks.join("; "));
    }
    let memory = if facts.landlock >= SIGNALS_SINCE {
        ""
    } else {
        ", which keeps no signals inside (Linux 6.12): the keeper answers for them"
    };
    let groups = if facts.groups { "memory groups" } else { "memory is counted, for lack of memory groups" };
    let mounts =
        if facts.mounts { "their own /dev/shm" } else { "a shared /dev/shm, for lack of CAP_SYS_ADMIN" };
    (State::Fine, format!("seccomp that asks; Landlock {}{memory}; {groups}; {mounts}", facts.landlock))
}
