//! The errors that say why a worker ended.

use plimsoll_base::{Bytes, Error};
use plimsoll_memory::host::OomEvidence;
use plimsoll_worker::{GroupKill, Session};

pub(super) fn with_words(error: Error, session: &Session, lines: usize) -> Error {
    session.last_words(lines).into_iter().fold(error, |error, line| error.fact(format!("stderr: {line}")))
}

pub(super) fn over_budget(worker: usize, pid: u32, limit: Bytes, how: &str) -> Error {
    let message = format!("worker {worker} (pid {pid}) {how}; `worker_memory` is {limit}");
    Error::new("env-worker-over-budget", message)
        .hint("raise `worker_memory`, or let a worker step fewer environments: raise `num_workers`")
}

pub(super) fn over_group(worker: usize, pid: u32, limit: Bytes, kill: &GroupKill) -> Error {
    let how = "reached the limit of its memory group, and the kernel killed in it";
    over_budget(worker, pid, limit, how).fact(kill.fact.clone())
}

pub(super) fn by_kernel(worker: usize, pid: u32, reason: &str) -> Error {
    let message = format!("{reason} and the kernel killed worker {worker} (pid {pid})");
    Error::new("env-worker-oom-killed", message)
        .hint("lower `num_workers` or `worker_memory`, or raise the container's limit")
}

/// Returns the reason if the kernel killed process `pid` for lack of memory: by its group, or by kernel lines and
/// counters.
pub(super) fn oom_killed(seen: &OomEvidence, by_group: bool, pid: u32, name: &str) -> Option<String> {
    let line = seen.line_about(pid, name);
    if !by_group && line.is_none() && seen.group_kills().is_none_or(|kills| kills == 0) {
        return None;
    }
    match line {
        Some(line) if !line.container => Some(out_of_memory()),
        Some(_) => Some(container_limit(seen).unwrap_or_else(|| "the container's limit was reached".into())),
        None => Some(container_limit(seen).unwrap_or_else(out_of_memory)),
    }
}

/// Says which limit of this process's groups was reached, if one was.
pub(super) fn container_limit(seen: &OomEvidence) -> Option<String> {
    let limit = seen.hit_group()?.limit?;
    Some(format!("the container's limit of {limit} was reached"))
}

pub(super) fn out_of_memory() -> String {
    "the machine ran out of memory".into()
}
