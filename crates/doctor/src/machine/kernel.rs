//! The kernel: system calls to pass CUDA memory to another process, and which processes may inspect which.

use super::facts::{Check, Finding, Machine, State};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::os::fd::AsRawFd;

/// CAP_SYS_PTRACE, as a bit of CapEff.
const CAP_SYS_PTRACE: u64 = 1 << 19;

pub fn checks(machine: &Machine) -> Vec<Check> {
    vec![Check::of("machine-kernel-calls", calls(machine)), Check::of("machine-ptrace", ptrace(machine))]
}

/// The result of probing a system call on this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Works,
    Missing,
    Refused,
}

fn answer<T>(result: Result<T, Errno>) -> Answer {
    match result {
        Ok(_) => Answer::Works,
        Err(Errno::NOSYS) => Answer::Missing,
        Err(_) => Answer::Refused,
    }
}

fn calls(machine: &Machine) -> Finding {
    let release = machine.word("proc/sys/kernel/osrelease");
    let shown = release.clone().unwrap_or_else(|| "an unknown version".into());
    let answers = if machine.is_this() { probed() } else { by_version(release.as_deref()) };
    let Some(answers) = answers else {
        return (State::Unknown, format!("Linux {shown}: not probed"));
    };
    let lacking = |wanted: Answer| {
        let names: Vec<&str> =
            answers.iter().filter(|(_, is)| *is == wanted).map(|(name, _)| *name).collect();
        names.join(", ")
    };
    let (missing, refused) = (lacking(Answer::Missing), lacking(Answer::Refused));
    let state = if machine.has_expandable_segments() { State::Problem } else { State::Note };
    match (missing.is_empty(), refused.is_empty()) {
        (true, true) => (State::Fine, format!("Linux {shown} has pidfd_open, pidfd_getfd and memfd_create")),
        (false, _) => (state, format!("Linux {shown} lacks {missing}")),
        (_, false) => (state, format!("{refused} refused, as by a seccomp filter")),
    }
}

fn probed() -> Option<[(&'static str, Answer); 3]> {
    let memory = memfd_create("plimsoll-probe", MemfdFlags::CLOEXEC);
    let own = pidfd_open(getpid(), PidfdFlags::empty());
    let got = match (&own, &memory) {
        (Ok(own), Ok(memory)) => pidfd_getfd(own, memory.as_raw_fd(), PidfdGetfdFlags::empty()).map(drop),
        (Err(err), _) | (_, Err(err)) => Err(*err),
    };
    Some([("pidfd_open", answer(own)), ("pidfd_getfd", answer(got)), ("memfd_create", answer(memory))])
}

/// Answers by version: pidfd_open since Linux 5.3, pidfd_getfd since 5.6, memfd_create since 3.17.
fn by_version(release: Option<&str>) -> Option<[(&'static str, Answer); 3]> {
    let mut parts = release?.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else { return None };
    let since = |version| if (major, minor) >= version { Answer::Works } else { Answer::Missing };
    Some([("pidfd_open", since((5, 3))), ("pidfd_getfd", since((5, 6))), ("memfd_create", since((3, 17)))])
}

fn ptrace(machine: &Machine) -> Finding {
    let status = machine.read("proc/self/status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let capable = field("CapEff:")
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .map(|bits| bits & CAP_SYS_PTRACE != 0);
    let filtered = field("Seccomp:").map(|mode| mode != "0");
    let scope = machine.word("proc/sys/kernel/yama/ptrace_scope");
    let seccomp = match filtered {
        Some(true) => "a seccomp filter is on",
        Some(false) => "no seccomp filter",
        None => "seccomp unknown",
    };
    let finding = |words: &str| format!("{words}; {seccomp}");
    match (scope.as_deref(), capable) {
        (_, Some(true)) => {
            (State::Fine, finding("CAP_SYS_PTRACE is held: processes may take descriptors of each other"))
        }
        (Some("0"), _) => (
            State::Fine,
            finding("yama ptrace_scope 0: processes of one user may take descriptors of each other"),
        ),
        (None, _) => (State::Unknown, finding("yama is not there or hidden")),
        (Some(scope), _) => (
            if machine.has_expandable_segments() { State::Problem } else { State::Note },
            finding(&format!(
                "yama ptrace_scope {scope} without CAP_SYS_PTRACE: a sibling's descriptors cannot be taken"
            )),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_by_version() {
        let lacks = |release| {
            by_version(Some(release))
                .map(|answers| answers.iter().filter(|(_, is)| *is == Answer::Missing).count())
        };
        for (release, expect) in [
            ("3.10.0-1160.el7", Some(3)),
            ("4.19.1", Some(2)),
            ("5.4.0-204-generic", Some(1)),
            ("6.8.0", Some(0)),
            ("x", None),
        ] {
            assert_eq!(lacks(release), expect, "{release}");
        }
    }
}
