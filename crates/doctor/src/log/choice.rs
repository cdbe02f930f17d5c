//! Picks the first cause on the timeline, and the line of no class that most looks like a failure.
//!
//! The first event of level "cause" is the answer. Without one it is the first that the run did not survive, then the
//! first that follows a death, and a warning only if there is no other sign of a failure.

use super::event::Event;
use super::general::class_of;
use super::signatures::{Level, Signatures};
use super::state::Suspicion;
use super::text::{message, regex};
use regex::Regex;
use std::sync::LazyLock;

/// One death prints its messages within this many lines.
const BURST_LINES: u64 = 120;

/// An exception's wrapper prints its own message within this many lines.
const WRAPPER_LINES: u64 = 60;

/// An exception that a complaint announces is within this many lines.
const ANNOUNCED_LINES: u64 = 40;

/// Kinds of lines that report a death elsewhere, or nothing.
const REPORTS: [&str; 4] = ["process-failed", "signal-received", "traceback-cut", "engine-died"];

/// Lines of launchers that report a death elsewhere.
static LAUNCHER: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"ChildFailedError|Hccl[A-Z]\w+, error code|npuSynchronize|ActorDiedError|RayActorError|RayTaskError|WorkerCrashedError|ActorUnavailableError|ProcessExitedException|ProcessRaisedException|CalledProcessError|SignalException|death signal, shutting down|EngineDeadError|EngineCore failed to start|EXIT STRING|W&B process to finish|Engine core initialization failed|WorkerProc initialization failed|DistBackendError|DistStoreError|NCCL|nccl\w+Error|Watchdog|[Tt]imed? ?out|BrokenPipe|ConnectionReset|ConnectionRefused|EOFError|KeyboardInterrupt|SystemExit|[Ee]xit(ed|s)? (with )?(status|code)|srun: (error|Job)|slurmstepd|Killing subprocess|core dumped|Signal \d+|Received sigquit|failed \(exitcode: |CancelledError|Job 'raysubmit|Traceback \(most recent",
    )
});
/// Exceptions that runs usually survive.
static HARMLESS: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"Exception ignored|BrokenPipeError|Warning\b|HTTPError|ConnectTimeout|ImportError\(|ModuleNotFoundError\(",
    )
});

/// The input of a choice.
pub struct Choice<'a> {
    pub signatures: &'a Signatures,
    /// Events in timeline order.
    pub events: &'a [&'a Event],
    pub suspicions: &'a [Suspicion],
    /// Line of each file's successful end.
    pub finished: &'a [Option<u64>],
}

impl Choice<'_> {
    /// Returns the index of the first cause.
    pub fn first(&self) -> Option<usize> {
        if let Some(first) = self.first_of(Level::Cause) {
            let first = self.refined(first);
            let cause = self.events[first].class;
            let leads = |event: &&Event| self.signatures.classes[event.class].leads_to.contains(&cause);
            let warned = self.events[..first].iter().position(leads);
            return Some(warned.unwrap_or(first));
        }
        if let Some(first) = self.first_of(Level::Survivable).map(|first| self.refined(first))
            && !self.goes_on_without(first)
        {
            return Some(first);
        }
        match self.first_of(Level::Secondary).map(|first| self.refined(first)) {
            Some(first) => {
                // The watchdog aborts after a timeout, and Ray only lists possible causes: the abort ended the run.
                let abort = (first..self.events.len()).find(|&index| self.slug(index) == "worker-abort");
                let is_open = self.slug(first) == "nccl-timeout-secondary" || self.is_hedged(first);
                let first = abort.filter(|_| is_open).unwrap_or(first);
                let proves_a_kill = self.slug(first) == "worker-sigkill-unknown";
                (proves_a_kill || self.fault_before(self.events[first]).is_none()).then_some(first)
            }
            None => {
                let is_over = |index: &usize| self.finished[self.events[*index].file].is_some();
                let warning = self.first_of(Level::Warning).filter(|index| !is_over(index));
                warning.filter(|_| !self.faults().any(|_| true))
            }
        }
    }

    fn first_of(&self, wanted: Level) -> Option<usize> {
        let first = self.events.iter().position(|event| event.level == wanted)?;
        Some(self.more_specific(first))
    }

    /// Returns the event of the same line whose class says more, for one whose words occur in messages of many classes.
    fn more_specific(&self, first: usize) -> usize {
        let is_broad = |event: &Event| self.signatures.classes[event.class].is_broad;
        let chosen = self.events[first];
        let says_more = |event: &&Event| {
            (event.file, event.line, event.level) == (chosen.file, chosen.line, chosen.level)
                && !is_broad(event)
        };
        let other = is_broad(chosen).then(|| self.events.iter().position(says_more)).flatten();
        other.unwrap_or(first)
    }

    /// Returns true for Ray's report of a lost worker, which names no signal.
    fn is_hedged(&self, index: usize) -> bool {
        is_open(&self.events[index].text)
    }

    fn slug(&self, index: usize) -> &str {
        &self.signatures.classes[self.events[index].class].slug
    }

    /// Returns the special message of a death, in the same burst as its general one.
    fn refined(&self, first: usize) -> usize {
        let mut best = first;
        for index in first + 1..self.events.len() {
            let (event, old, begin) = (self.events[index], self.events[best], self.events[first]);
            let is_near = event.file == begin.file && event.line - begin.line <= BURST_LINES;
            if is_near && self.signatures.classes[event.class].refines.contains(&old.class) {
                best = index;
            }
        }
        best
    }

    /// Returns faults of no class, without lines that are events.
    fn faults(&self) -> impl Iterator<Item = &Suspicion> {
        self.suspicions
            .iter()
            .filter(|fault| fault.rank == 0 && !is_report(fault) && !fault.is_in_thread)
            .filter(|fault| {
                !self.events.iter().any(|event| event.file == fault.file && event.line == fault.at.line)
            })
    }

    /// Returns a fault of no class before `event`. One in another log without a clock counts as earlier: a waiting
    /// process reports a death later than the log of the dead one.
    fn fault_before(&self, event: &Event) -> Option<&Suspicion> {
        self.faults().find(|fault| match (fault.stamp, event.stamp) {
            (Some(fault), Some(event)) if fault.seconds != event.seconds => fault.seconds < event.seconds,
            _ => fault.file != event.file || fault.at.line < event.line,
        })
    }

    /// Returns true if the run died of another fault than this one, which it may have survived: one long before it, or
    /// after its last line and neither near nor of its exception chain.
    fn goes_on_without(&self, first: usize) -> bool {
        let chosen = self.events[first];
        let is_alone = self.signatures.classes[chosen.class].is_alone;
        let own = |event: &&&Event| event.class == chosen.class && event.file == chosen.file;
        let last = self.events.iter().filter(own).map(|event| event.line).max().unwrap_or(chosen.line);
        // Other ranks raise the same exception.
        let kind = |text: &str| exception(text).map(str::to_string);
        let is_other = |fault: &&Suspicion| {
            fault.file == chosen.file
                && (kind(&fault.at.text).is_none() || kind(&fault.at.text) != kind(&chosen.text))
        };
        self.faults().filter(is_other).any(|fault| {
            let after = fault.at.line.saturating_sub(last);
            fault.at.line + BURST_LINES < chosen.line
                || after > 0 && (is_alone || after > WRAPPER_LINES && !fault.is_chained)
        })
    }

    /// Returns the line that most looks like the failure, if no class describes it.
    pub fn suspect(&self) -> Option<&Suspicion> {
        let rank = |suspicion: &Suspicion| {
            suspicion.rank
                + usize::from(is_report(suspicion) || suspicion.is_in_thread)
                + 2 * usize::from(suspicion.is_head())
        };
        let seconds = |suspicion: &Suspicion| suspicion.stamp.map_or(f64::MAX, |stamp| stamp.seconds);
        // Lines of a file are in order even if only some have a clock.
        let order = |a: &Suspicion, b: &Suspicion| {
            if a.file == b.file { a.at.line.cmp(&b.at.line) } else { seconds(a).total_cmp(&seconds(b)) }
        };
        let first = self.suspicions.iter().min_by(|a, b| rank(a).cmp(&rank(b)).then(order(a, b)))?;
        Some(self.named_after(first).unwrap_or(first))
    }

    /// Returns the exception right after a complaint of no kind: the complaint announces it.
    fn named_after(&self, first: &Suspicion) -> Option<&Suspicion> {
        let slug = |fault: &Suspicion| {
            Some(self.signatures.classes[class_of(self.signatures, fault)?].slug.as_str())
        };
        let is_announced = |fault: &&Suspicion| {
            let after = fault.at.line.saturating_sub(first.at.line);
            fault.file == first.file && fault.rank == 0 && (1..=ANNOUNCED_LINES).contains(&after)
        };
        let says = |fault: &&Suspicion| slug(fault).is_some_and(|slug| !REPORTS.contains(&slug));
        (first.rank > 0 && slug(first).is_none())
            .then(|| self.suspicions.iter().filter(is_announced).find(says))
            .flatten()
    }
}

/// Returns true for Ray's report of a lost worker, which does not give the cause.
pub fn is_open(text: &str) -> bool {
    [
        "exit type: SYSTEM_ERROR",
        "died unexpectedly before finishing",
        "connection error code 2",
        "died or was killed while executing",
        "Worker exit detail",
    ]
    .iter()
    .any(|words| text.contains(words))
}

/// Returns the name of the exception in a line, without its module.
fn exception(line: &str) -> Option<&str> {
    let (path, _) = message(line).split_once(':')?;
    let name = path.rsplit('.').next()?;
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_').then_some(name)
}

/// Returns true if the line reports a death elsewhere, or a failure that runs survive.
fn is_report(suspicion: &Suspicion) -> bool {
    LAUNCHER.is_match(&suspicion.at.text) || HARMLESS.is_match(&suspicion.at.text)
}
