//! The supervisor of `train`: the trainer runs as a child process, and if it is killed, the supervisor names the cause
//! with its evidence; without any it says "unproven". The supervisor never loads a model.

use plimsoll_base::{Bytes, Error, Exit, Result};
use plimsoll_files::write_atomic;
use plimsoll_memory::host::{Host, KernelLine, OomEvidence, OomWatch};
use plimsoll_ranks::Ending;
pub use plimsoll_worker::SignalPipe;
use plimsoll_worker::{Ended, Raise, Seen};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Headroom of a limit over the measured peak, 1/16: kernel and file pages cannot be reclaimed at once.
const HEADROOM_DIVISOR: u64 = 16;
/// Length to which the kernel truncates process names.
const COMM_BYTES_MAX: usize = 15;

const SIGINT: i32 = 2;
const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;
const SIGXCPU: i32 = 24;
const SIGXFSZ: i32 = 25;
/// Signals by which a program's own fault ends it.
const CRASHES: [(i32, &str); 7] = [
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (SIGABRT, "SIGABRT"),
    (SIGBUS, "SIGBUS"),
    (8, "SIGFPE"),
    (SIGSEGV, "SIGSEGV"),
    (31, "SIGSYS"),
];

pub fn is_supervised() -> bool {
    plimsoll_worker::supervisor_pid().is_some()
}

pub fn terminal_columns(terminal: &std::fs::File) -> Option<u16> {
    plimsoll_worker::terminal_columns(terminal)
}

/// Runs this program with `args` as a trainer, to its end. Returns its exit code.
///
/// Errors, with exit code 4: `container-oom-kill`, `kernel-oom-kill`, `trainer-killed`, `trainer-crashed`; then the run
/// directory has a `crash.json`. A trainer that died of a forwarded signal returns 128 plus the signal's number. `say`
/// shows the user when something stops the trainer, and when it continues.
pub fn supervise(
    args: &[OsString],
    env: &[(String, String)],
    forward: &[SignalPipe<'_>],
    child_ended: SignalPipe<'_>,
    say: &mut dyn FnMut(&str),
) -> Result<u8> {
    let host = Host::this();
    let mut watch = OomWatch::begin(&host);
    let env = [env, &plimsoll_ranks::Place::variables(None)].concat();
    let mut report = |seen: &Seen| say(&Pause(seen).words());
    let ended = plimsoll_worker::supervise(args, &env, forward, child_ended, &mut report, None)?;
    if let Some(code) = ended.status.code() {
        return Ok(code as u8);
    }
    let signal = ended.signal().unwrap_or(SIGKILL);
    if ended.forwarded == Some(signal) {
        // The forwarded signal ended it before it could handle it.
        return Ok(128 + signal as u8);
    }
    let evidence = watch.evidence();
    let death = Death { last: read_note(ended.note.as_deref()), ended: &ended, signal, evidence: &evidence };
    let error = death.error(&host);
    if let Some(dir) = death.last.get("dir").and_then(Value::as_str) {
        // The terminal's sentence matters most; a second failure while recording it adds nothing.
        let _ = death.write_crash(Path::new(dir), &error);
    }
    Err(error)
}

pub(crate) fn read_note(note: Option<&str>) -> Value {
    note.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null)
}

#[derive(Debug)]
pub struct Death<'a> {
    /// The last content of the status page, or null.
    pub last: Value,
    pub ended: &'a Ended,
    pub signal: i32,
    pub evidence: &'a OomEvidence,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The kernel, because a container's limit was reached.
    ContainerOom,
    /// The kernel, because the machine ran out of memory.
    KernelOom,
    Killed,
    /// A fault of the program.
    Crashed(&'static str),
}

/// A cause, and whether evidence other than the signal supports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub cause: Cause,
    /// False if it is only the most likely cause.
    pub proven: bool,
}

/// Judges a death by `signal` of the process `pid` named `name`.
///
/// The kernel's own line about the process decides. Without a log, the container's kill count does: it blames the
/// container if its limit was hit, else the machine. A readable log or count without the kill proves an outside signal.
pub fn judge(signal: i32, pid: u32, name: &str, seen: &OomEvidence) -> Verdict {
    if let Some((_, name)) = CRASHES.iter().find(|(number, _)| *number == signal) {
        return Verdict { cause: Cause::Crashed(name), proven: true };
    }
    let of = |cause, proven| Verdict { cause, proven };
    if signal != SIGKILL {
        return of(Cause::Killed, true);
    }
    if let Some(KernelLine { container, .. }) = seen.line_about(pid, name) {
        return of(if *container { Cause::ContainerOom } else { Cause::KernelOom }, true);
    }
    let told = seen.kernel_lines.as_ref().filter(|_| seen.same_pids).map(|lines| lines.len() as u64);
    if let (Some(told), Some(counted)) = (told, seen.group_kills())
        && counted <= told
    {
        // The kernel logged every kill that it counted, and not this one.
        return of(Cause::Killed, true);
    }
    match (seen.group_kills(), seen.kernel_kills) {
        (Some(1..), _) if seen.hit_group().is_some() => of(Cause::ContainerOom, true),
        (Some(1..), Some(1..)) => of(Cause::KernelOom, true),
        (Some(1..), _) => of(Cause::ContainerOom, false),
        (Some(0), _) | (None, Some(0)) => of(Cause::Killed, true),
        (None, Some(1..)) => of(Cause::KernelOom, false),
        (None, None) => of(Cause::Killed, false),
    }
}

impl<'a> Death<'a> {
    /// Returns the death of one of several trainers, with its error; `None` unless an unforwarded signal killed it.
    pub(crate) fn of(ended: &'a Ended, evidence: &'a OomEvidence, host: &Host) -> Option<(Death<'a>, Error)> {
        let signal = ended.signal().filter(|signal| ended.forwarded != Some(*signal))?;
        let death = Death { last: read_note(ended.note.as_deref()), ended, signal, evidence };
        let error = death.error(host);
        Some((death, error))
    }
}

impl Death<'_> {
    /// Returns the trainer's end in the form that other ranks receive. `error`: that of this death.
    pub(crate) fn ending(&self, error: &Error) -> Ending {
        let cause = match self.verdict() {
            Verdict { cause: Cause::Crashed(_), .. } => plimsoll_ranks::Cause::Crashed,
            Verdict { proven: true, .. } => plimsoll_ranks::Cause::KilledProven,
            Verdict { proven: false, .. } => plimsoll_ranks::Cause::Killed,
        };
        Ending { cause, sentence: error.message.clone(), exit: error.exit as u8 }
    }

    /// Returns true if its error reports what others hold, known only once this trainer's memory is free.
    pub(crate) fn is_for_lack_of_memory(&self) -> bool {
        matches!(self.verdict().cause, Cause::ContainerOom | Cause::KernelOom)
    }

    pub(crate) fn write_crash(&self, dir: &Path, error: &Error) -> Result<PathBuf> {
        let verdict = self.verdict();
        let crash = json!({
            "slug": error.slug,
            "message": error.message,
            "facts": error.facts,
            "hints": error.hints,
            "exit": error.exit as i32,
            "step": self.last.get("step"),
            "phase": self.last.get("phase"),
            "readings": self.last,
            "signal": self.signal,
            "pid": self.ended.pid,
            "unproven": !verdict.proven,
            "evidence": self.evidence,
            "last_words": self.ended.last_words,
        });
        let path = dir.join("crash.json");
        let mut text = serde_json::to_string_pretty(&crash).expect("a JSON value has a JSON text");
        text.push('\n');
        write_atomic(&path, text.as_bytes())?;
        Ok(path)
    }

    fn verdict(&self) -> Verdict {
        judge(self.signal, self.ended.pid, &own_name(), self.evidence)
    }

    /// Returns the one-sentence error with its facts and remedies.
    pub(crate) fn error(&self, host: &Host) -> Error {
        let Verdict { cause, proven } = self.verdict();
        let doubt = if proven { "" } else { " (unproven)" };
        let (pid, place) = (self.ended.pid, self.place());
        let error = match cause {
            Cause::ContainerOom => {
                let group = self.evidence.hit_group().or(self.evidence.groups.first());
                let limit = group.and_then(|g| g.limit).map_or(String::new(), |l| format!(" of {l}"));
                let message = format!(
                    "the container's limit{limit} was reached and the kernel killed the trainer, pid {pid}, {place}{doubt}"
                );
                Error::new("container-oom-kill", message).hint(self.enough())
            }
            Cause::KernelOom => {
                let message = format!(
                    "the machine ran out of memory and the kernel killed the trainer, pid {pid}, {place}{doubt}"
                );
                Error::new("kernel-oom-kill", message)
                    .hint("stop other programs, or set a limit for them; the trainer was within its plan unless a fact says otherwise")
            }
            Cause::Killed => {
                let message = format!(
                    "{} from outside killed the trainer, pid {pid}, {place}{doubt}",
                    signal_name(self.signal)
                );
                Error::new("trainer-killed", message).hint(kill_hint(self.signal))
            }
            Cause::Crashed(name) => {
                let message = format!("the trainer, pid {pid}, died of {name} {place}");
                Error::new("trainer-crashed", message).hint(crash_hint(self.signal, &self.ended.last_words))
            }
        };
        let error = self.facts(host).into_iter().fold(error, Error::fact);
        Error {
            exit: Exit::Killed,
            ..error.hint("start the same command with --resume to continue from the last checkpoint")
        }
    }

    fn place(&self) -> String {
        place(&self.last)
    }

    fn facts(&self, host: &Host) -> Vec<String> {
        let mut facts = self.kill_facts();
        if let (Some(rss), Some(planned)) = (self.last.get("rss"), self.planned()) {
            let bytes = |name: &str| Bytes(rss.get(name).and_then(Value::as_u64).unwrap_or(0));
            facts.push(format!(
                "the trainer held {} (anon {}, file {}, shmem {}) of {planned} planned for the run",
                bytes("now"),
                bytes("anon"),
                bytes("file"),
                bytes("shmem")
            ));
        }
        if self.signal == SIGKILL {
            facts.extend(self.others(host));
        }
        facts.extend(self.ended.last_words.last().map(|line| format!("its last words: {line}")));
        facts
    }

    /// Returns the evidence for and against a kill by the kernel.
    fn kill_facts(&self) -> Vec<String> {
        let seen = self.evidence;
        let mut facts = Vec::new();
        if self.signal != SIGKILL {
            return facts;
        }
        for group in &seen.groups {
            if !group.exists {
                facts.push(format!("the container's group is gone: {}", group.dir.display()));
            }
            let risen = [group.oom_kills.filter(|&n| n > 0), group.limit_hits.filter(|&n| n > 0)];
            if let [None, None] = risen {
                continue;
            }
            let shown =
                |rise: Option<u64>| rise.map_or_else(|| "unknown".to_string(), |rise| format!("+{rise}"));
            facts.push(format!(
                "{}: oom_kill {}, limit hits {}, peak {}",
                group.dir.display(),
                shown(group.oom_kills),
                shown(group.limit_hits),
                group.peak.map_or_else(|| "unknown".to_string(), |peak| peak.to_string()),
            ));
        }
        match &seen.kernel_lines {
            None => facts.push("the kernel's log may not be read".into()),
            Some(lines) if lines.is_empty() => {
                facts.push("the kernel's log shows no kill for lack of memory".into())
            }
            Some(lines) => {
                facts.extend(lines.iter().rev().take(3).map(|line| format!("kernel: {}", line.text)))
            }
        }
        if seen.group_kills().is_none() && seen.kernel_kills.is_none() {
            facts.push("no count of such kills can be read".into());
        }
        facts
    }

    /// Returns other processes that hold memory in the container, now that the trainer is gone.
    fn others(&self, host: &Host) -> Option<String> {
        let held = self.others_bytes(host)?;
        (held > Bytes(Bytes::MIB))
            .then(|| format!("others in the container hold {held}{}", host.largest_others()))
    }

    fn others_bytes(&self, host: &Host) -> Option<Bytes> {
        let group = self.evidence.hit_group().or(self.evidence.groups.first())?;
        let own = host.rss();
        Some(Bytes(group.held?.0.saturating_sub(own.anon.0 + own.shmem.0)))
    }

    fn planned(&self) -> Option<Bytes> {
        self.last.get("planned_bytes").and_then(Value::as_u64).filter(|&bytes| bytes > 0).map(Bytes)
    }

    /// Returns a limit that would have been enough: the plan, or measured memory if larger, plus what others hold.
    fn enough(&self) -> String {
        let Some(planned) = self.planned() else {
            return "raise the container's limit; `plimsoll plan RUN` says what the run needs".into();
        };
        let held = |name: &str| {
            self.last.get("rss").and_then(|rss| rss.get(name)).and_then(Value::as_u64).unwrap_or(0)
        };
        let others = self.others_bytes(&Host::this()).unwrap_or_default();
        let need = planned.0.max(held("peak")).saturating_add(others.0);
        let mib = need.saturating_add(need / HEADROOM_DIVISOR).div_ceil(Bytes::MIB);
        format!(
            "give the container at least {mib} MiB: {planned} planned, {others} held by others, and a {HEADROOM_DIVISOR}th more"
        )
    }
}

/// Returns the place from a status page, for example `in step 7 of 200, phase update`.
pub(crate) fn place(last: &Value) -> String {
    let number = |name: &str| last.get(name).and_then(Value::as_u64).unwrap_or(0);
    match last.get("phase").and_then(Value::as_str) {
        None | Some("start") => "before the first step".into(),
        Some(phase) => format!("in step {} of {}, phase {phase}", number("step"), number("steps")),
    }
}

/// A trainer that stopped, continued, or got another out-of-memory score.
pub(crate) struct Pause<'a>(pub(crate) &'a Seen);

impl Pause<'_> {
    pub(crate) fn words(&self) -> String {
        match self.0 {
            Seen::Stopped { pid, note } => {
                let place = place(&read_note(note.as_deref()));
                let message = format!(
                    "a signal stopped the trainer, pid {pid}, {place}: it waits until it is continued"
                );
                let warning = Error::new("trainer-stopped", message).hint(format!(
                    "kill -CONT {pid} continues it; Ctrl-C continues it and ends the run with a checkpoint"
                ));
                let hints = warning.hints.iter().map(|hint| format!("\nhint: {hint}")).collect::<String>();
                format!("warning[{}]: {}{hints}", warning.slug, warning.message)
            }
            Seen::Continued { pid, stopped } => {
                format!("the trainer, pid {pid}, goes on after {} s", stopped.as_secs())
            }
            Seen::Raised(Raise { pid, from, to, is_undone }) => {
                let now = if *is_undone { "it is as before again" } else { "it cannot be put back" };
                format!(
                    "warning: something raised the out-of-memory score of this run's process {pid} from {from} to {to}, as code of \
                     a reward can: {now}"
                )
            }
        }
    }
}

/// Returns the process name of the trainer and of the supervisor, which are one program.
fn own_name() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim().chars().take(COMM_BYTES_MAX).collect()
}

pub(crate) fn signal_name(signal: i32) -> String {
    match signal {
        1 => "SIGHUP".into(),
        SIGINT => "SIGINT".into(),
        SIGKILL => "SIGKILL".into(),
        15 => "SIGTERM".into(),
        SIGXCPU => "SIGXCPU, the limit on processor time,".into(),
        SIGXFSZ => "SIGXFSZ, the limit on a file's size,".into(),
        other => format!("signal {other}"),
    }
}

fn kill_hint(signal: i32) -> &'static str {
    match signal {
        SIGXCPU => "raise the limit on processor time: ulimit -t",
        SIGXFSZ => "raise the limit on a file's size: ulimit -f; `plimsoll plan RUN` shows it as `file size`",
        _ => "find who sent it: a job scheduler's time or memory limit, a monitor, or a person",
    }
}

/// Returns a hint. `words`: the trainer's last lines. Rust's runtime names a stack overflow, or it shows as a fault.
fn crash_hint(signal: i32, words: &[String]) -> &'static str {
    let says = |what: &str| words.iter().any(|line| line.contains(what));
    match signal {
        SIGABRT | SIGSEGV if says("overflowed its stack") || says("stack overflow") => {
            "its stack was too small: raise the limit, `ulimit -s 8192`; with that one, report it"
        }
        SIGABRT if says("memory allocation") => {
            "it got no memory: raise `ulimit -v` or the container's limit; else report it"
        }
        SIGABRT => {
            "if its last words name an allocation, raise `ulimit -v` or the container's limit; if they name a stack, `ulimit -s`; \
             else report it"
        }
        SIGBUS => "a mapped file may have been cut short, or its disk failed: check the disk; else report it",
        SIGSEGV => {
            "this is a fault in plimsoll or in a driver: please report it with crash.json; `dmesg` may tell of bad memory"
        }
        _ => "this is a fault in plimsoll: please report it with crash.json",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_memory::host::GroupChange;

    fn group(oom_kills: Option<u64>, limit_hits: Option<u64>) -> GroupChange {
        GroupChange {
            exists: true,
            oom_kills,
            limit_hits,
            limit: Some(Bytes::mib(64)),
            ..GroupChange::default()
        }
    }

    fn line(container: bool, pid: u32, name: &str) -> KernelLine {
        KernelLine { container, pid, name: name.into(), anon: None, text: String::new() }
    }

    /// (groups, kernel kills, kernel lines) of a trainer with pid 7.
    fn judged(
        groups: Vec<GroupChange>,
        kernel_kills: Option<u64>,
        lines: Option<Vec<KernelLine>>,
        same_pids: bool,
    ) -> Verdict {
        judge(9, 7, "plimsoll", &OomEvidence { groups, kernel_kills, kernel_lines: lines, same_pids })
    }

    #[test]
    fn a_kill_is_told_by_evidence() {
        let of = |cause, proven| Verdict { cause, proven };
        for (groups, kernel_kills, lines, same_pids, expect) in [
            // The kernel's line decides, whatever the counters say.
            (vec![], None, Some(vec![line(true, 7, "plimsoll")]), true, of(Cause::ContainerOom, true)),
            (vec![], None, Some(vec![line(false, 7, "plimsoll")]), true, of(Cause::KernelOom, true)),
            // In a namespace of processes numbers differ, and the name decides.
            (vec![], None, Some(vec![line(true, 90_007, "plimsoll")]), false, of(Cause::ContainerOom, true)),
            // The kernel killed a neighbour; something else killed the trainer.
            (
                vec![group(Some(1), Some(9))],
                Some(1),
                Some(vec![line(true, 8, "python3")]),
                true,
                of(Cause::Killed, true),
            ),
            // The log names fewer kills than were counted.
            (vec![group(Some(1), Some(9))], Some(1), Some(vec![]), true, of(Cause::ContainerOom, true)),
            // No log: the container's counters.
            (vec![group(Some(1), Some(9))], Some(1), None, true, of(Cause::ContainerOom, true)),
            (
                vec![group(Some(0), Some(9)), group(Some(1), Some(0))],
                Some(1),
                None,
                true,
                of(Cause::ContainerOom, true),
            ),
            (vec![group(Some(1), Some(0))], Some(1), None, true, of(Cause::KernelOom, true)),
            (vec![group(Some(1), None)], None, None, true, of(Cause::ContainerOom, false)),
            (vec![group(Some(0), Some(9))], Some(4), None, true, of(Cause::Killed, true)),
            // No container.
            (vec![], Some(0), None, true, of(Cause::Killed, true)),
            (vec![], Some(1), None, true, of(Cause::KernelOom, false)),
            // Nothing can be read.
            (vec![], None, None, true, of(Cause::Killed, false)),
            (vec![group(None, None)], None, None, false, of(Cause::Killed, false)),
        ] {
            let words = format!("{groups:?} {kernel_kills:?} {lines:?}");
            assert_eq!(judged(groups, kernel_kills, lines, same_pids), expect, "{words}");
        }
        assert_eq!(judge(11, 7, "plimsoll", &OomEvidence::default()).cause, Cause::Crashed("SIGSEGV"));
        assert_eq!(judge(15, 7, "plimsoll", &OomEvidence::default()).cause, Cause::Killed);
    }

    #[test]
    fn the_hint_of_a_crash_follows_its_last_words() {
        for (signal, words, hint) in [
            (SIGABRT, "thread 'main' (7) has overflowed its stack", "ulimit -s 8192"),
            (SIGABRT, "fatal runtime error: stack overflow, aborting", "ulimit -s 8192"),
            (SIGABRT, "memory allocation of 4096 bytes failed", "raise `ulimit -v`"),
            (SIGABRT, "", "if they name a stack, `ulimit -s`"),
            (SIGSEGV, "", "report it with crash.json"),
        ] {
            let found = crash_hint(signal, &[words.to_string()]);
            assert!(found.contains(hint), "{words}: {found}");
        }
    }
}
