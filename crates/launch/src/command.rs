//! The command line of a host that starts its own ranks, and of one rank.

use crate::Job;

/// Returns `plimsoll train RUN ...` without the number of ranks: the launcher tells each rank its own.
pub(crate) fn of_rank(job: &Job) -> Vec<String> {
    let mut words = vec![job.program.clone(), "train".into(), job.run.clone()];
    words.extend(resuming(job));
    words
}

/// Returns `plimsoll train RUN --ranks N --hosts H --host-rank h --join ADDRESS ...`; the last two may be variables.
pub(crate) fn of_host(job: &Job, host_rank: &str, join: &str) -> Vec<String> {
    let mut words = vec![job.program.clone(), "train".into(), job.run.clone()];
    words.extend(["--ranks".into(), job.ranks().to_string()]);
    if job.hosts > 1 {
        let place =
            [("--hosts", job.hosts.to_string()), ("--host-rank", host_rank.into()), ("--join", join.into())];
        words.extend(place.into_iter().flat_map(|(flag, value)| [flag.to_string(), value]));
    }
    words.extend(resuming(job));
    words
}

/// Adds `--resume`, unless given: a restarted job resumes from its last checkpoint, or begins at step 0 without a run.
fn resuming(job: &Job) -> impl Iterator<Item = String> + '_ {
    let own = job.args.iter().any(|word| word == "--resume" || word.starts_with("--resume="));
    let resume = (!own).then(|| "--resume".to_string());
    resume.into_iter().chain(job.args.iter().cloned())
}
