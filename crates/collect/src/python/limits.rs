//! Limits on descriptors and processes, checked before workers would hit them in the middle of their start.

use plimsoll_base::{Error, Result};
use plimsoll_memory::host::Host;
use rustix::process::Resource;

/// Descriptors of this process for a worker: two of its socket, its stderr, and its memory while it starts.
const FDS_OF_A_WORKER: u64 = 4;
/// Descriptors that the rest of a run may take.
const FDS_OF_A_RUN: u64 = 64;
/// A worker is an interpreter and its keeper; processes that the environment starts are unknown and come on top.
const TASKS_OF_A_WORKER: u64 = 2;
/// Threads that the rest of a run may start.
const TASKS_OF_A_RUN: u64 = 16;

/// Errors: `env-ulimit-too-low`, for the first limit that is too low for this many workers.
pub(super) fn check(workers: u64) -> Result<()> {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
    check_open_files(workers, open, rustix::process::getrlimit(Resource::Nofile).current)?;
    let host = Host::this();
    for group in host.task_groups() {
        let file = group.file.display().to_string();
        check_tasks(workers, group.now, Some(group.max), &file, "raise it for the container")?;
    }
    if let Some(limit) = rustix::process::getrlimit(Resource::Nproc).current {
        let (tasks, is_spared) = host.tasks_of_user();
        if !is_spared {
            let raise = format!("`ulimit -u {}`", needed(workers, tasks));
            check_tasks(workers, tasks, Some(limit), "`ulimit -u` of this user", &raise)?;
        }
    }
    Ok(())
}

fn check_open_files(workers: u64, open: u64, limit: Option<u64>) -> Result<()> {
    let needed = open + workers * FDS_OF_A_WORKER + FDS_OF_A_RUN;
    match limit {
        Some(limit) if limit < needed => {
            let message = format!(
                "{workers} workers need {needed} open files ({FDS_OF_A_WORKER} each, {open} are open, {FDS_OF_A_RUN} for the run), the limit is {limit}"
            );
            Err(Error::new("env-ulimit-too-low", message).hint(format!(
                "`ulimit -n {needed}`, or fewer `num_workers`: each steps several environments"
            )))
        }
        _ => Ok(()),
    }
}

fn needed(workers: u64, now: u64) -> u64 {
    now + workers * TASKS_OF_A_WORKER + TASKS_OF_A_RUN
}

/// `now`: processes and threads that count against `limit`, which `source` sets and `raise` raises.
fn check_tasks(workers: u64, now: u64, limit: Option<u64>, source: &str, raise: &str) -> Result<()> {
    let needed = needed(workers, now);
    match limit {
        Some(limit) if limit < needed => {
            let message = format!(
                "{workers} workers need {needed} processes and threads ({TASKS_OF_A_WORKER} each, {now} are there, {TASKS_OF_A_RUN} for the run), the limit is {limit} ({source})"
            );
            Err(Error::new("env-ulimit-too-low", message)
                .hint(format!("{raise}, or fewer `num_workers`: each steps several environments")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_open_files_are_named_with_their_numbers() {
        assert!(check_open_files(64, 10, Some(1024)).is_ok() && check_open_files(64, 10, None).is_ok());
        let error = check_open_files(64, 10, Some(256)).unwrap_err();
        assert_eq!(error.slug, "env-ulimit-too-low");
        assert!(
            error.message.contains("need 330 open files") && error.message.contains("the limit is 256"),
            "{error}"
        );
    }

    #[test]
    fn too_few_processes_are_named_with_their_numbers() {
        let check = |limit: u64| check_tasks(64, 100, Some(limit), "pids.max", "raise it");
        assert!(check(244).is_ok() && check_tasks(64, 100, None, "", "").is_ok());
        let error = check(243).unwrap_err().to_string();
        assert!(error.starts_with("error[env-ulimit-too-low]"), "{error}");
        assert!(
            error.contains("need 244 processes") && error.contains("the limit is 243 (pids.max)"),
            "{error}"
        );
    }

    #[test]
    fn tasks_of_this_user_are_counted() {
        let (tasks, _) = Host::this().tasks_of_user();
        assert!(tasks >= 1, "this one is there");
    }
}
