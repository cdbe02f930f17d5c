//! One timeline over all files, and the first cause on it.
//!
//! Within a file, lines are in order. Across files, clocks decide if both files have one, else the order in which the files
//! were given. The first event of a class of level "cause" is the first cause; a secondary event is named only if there is
//! no cause, and a warning only if there is nothing else.

use super::diagnosis::{Diagnosis, Evidence, Follow, UNKNOWN};
use super::event::Event;
use super::scan::{Found, Suspicion};
use super::signatures::{Level, Signatures};
use super::text::regex;
use super::time::Stamp;
use regex::Regex;
use std::sync::LazyLock;

/// One death prints its messages within this many lines.
const BURST_LINES: u64 = 120;
/// Lines shown of the named class.
const EVIDENCE_MAX: usize = 6;
/// Classes shown as following.
const FOLLOWS_MAX: usize = 12;

/// Lines of launchers, which report a death elsewhere.
static LAUNCHER: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"ChildFailedError|ActorDiedError|RayActorError|RayTaskError|WorkerCrashedError|ActorUnavailableError|ProcessExitedException|ProcessRaisedException|CalledProcessError|SignalException|EngineDeadError|Engine core initialization failed|DistBackendError|DistStoreError|NCCL|ncclRemoteError|Watchdog|[Tt]imed? ?out|BrokenPipe|ConnectionReset|ConnectionRefused|EOFError|KeyboardInterrupt|SystemExit|exit(ed|s)? (with )?(status|code)|srun: error|slurmstepd",
    )
});
/// Exceptions that runs usually survive.
static HARMLESS: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"ImportError|ModuleNotFoundError|Exception ignored|BrokenPipeError|Warning\b|HTTPError|ConnectTimeout",
    )
});

/// Names the first cause.
pub fn judge(signatures: &Signatures, mut found: Found) -> Diagnosis {
    let clocks_differ = give_years(&mut found);
    let events = merge(&found);
    let (files_read, bytes_read) = (found.files.len() as u64, found.bytes);
    let mut diagnosis = match choose(signatures, &events, &found.suspicions) {
        Some(first) => describe(signatures, &found, &events, first),
        None => unknown(signatures, &found, &events),
    };
    if clocks_differ && diagnosis.slug != UNKNOWN {
        diagnosis.unproven.push(
            "the order across files: some of them have no clock, and come in the order in which they were given".into(),
        );
    }
    if found.is_cut {
        diagnosis.unproven.push("what came late: there were more events than are kept".into());
    }
    Diagnosis { files_read, bytes_read, not_read: found.not_read, ..diagnosis }
}

/// Gives stamps without a year the year of the others. Returns true if only some of the files with events have a clock.
fn give_years(found: &mut Found) -> bool {
    const YEAR: f64 = 365.2425 * 86_400.0;
    let stamps = || {
        found
            .events
            .iter()
            .filter_map(|event| event.stamp)
            .chain(found.suspicions.iter().filter_map(|s| s.stamp))
    };
    let year = stamps().find(|stamp| stamp.has_year).map(|stamp| (stamp.seconds / YEAR).floor());
    let begin = year.map_or(0.0, |years| ((years * 365.2425).round()) * 86_400.0);
    let give = |stamp: &mut Option<Stamp>| {
        if let Some(stamp) = stamp
            && !stamp.has_year
        {
            *stamp = Stamp { seconds: stamp.seconds + begin, has_year: year.is_some() };
        }
    };
    found.events.iter_mut().for_each(|event| give(&mut event.stamp));
    found.suspicions.iter_mut().for_each(|suspicion| give(&mut suspicion.stamp));
    let has_clock =
        |file: usize| found.events.iter().any(|event| event.file == file && event.stamp.is_some());
    let mut files: Vec<usize> = found.events.iter().map(|event| event.file).collect();
    files.dedup();
    files.len() > 1 && files.iter().any(|&file| has_clock(file) != has_clock(files[0]))
}

/// Orders the events of all files.
fn merge(found: &Found) -> Vec<&Event> {
    let mut lists: Vec<Vec<&Event>> = vec![Vec::new(); found.files.len()];
    for event in &found.events {
        lists[event.file].push(event);
    }
    for list in &mut lists {
        list.sort_by_key(|event| event.line);
    }
    // Times of a file never go back: lines of several processes are a little out of order.
    let mut clocks: Vec<Option<f64>> = vec![None; lists.len()];
    let mut next = vec![0; lists.len()];
    let mut merged = Vec::with_capacity(found.events.len());
    while merged.len() < found.events.len() {
        let time = |file: usize| {
            let own = lists[file].get(next[file])?.stamp.map(|stamp| stamp.seconds);
            match (own, clocks[file]) {
                (Some(own), Some(last)) => Some(own.max(last)),
                (own, last) => own.or(last),
            }
        };
        let heads = (0..lists.len()).filter(|&file| next[file] < lists[file].len());
        let first = heads.reduce(|best, file| match (time(best), time(file)) {
            (Some(of_best), Some(of_file)) if of_file < of_best => file,
            _ => best,
        });
        let file = first.expect("as many events are left as are missing");
        clocks[file] = time(file);
        merged.push(lists[file][next[file]]);
        next[file] += 1;
    }
    merged
}

/// Returns the index of the first cause among `events`.
fn choose(signatures: &Signatures, events: &[&Event], suspicions: &[Suspicion]) -> Option<usize> {
    let level = |event: &Event| signatures.classes[event.class].level;
    let first_of = |wanted: Level| events.iter().position(|event| level(event) == wanted);
    if let Some(first) = first_of(Level::Cause) {
        let first = refine(signatures, events, first);
        let cause = events[first].class;
        let warned = events[..first]
            .iter()
            .position(|event| signatures.classes[event.class].leads_to.contains(&cause));
        return Some(warned.unwrap_or(first));
    }
    match first_of(Level::Secondary) {
        Some(first) => {
            let slug = |index: usize| signatures.classes[events[index].class].slug.as_str();
            // The watchdog ends what waits too long by an abort: the abort is what ended the run.
            let abort = (first..events.len()).find(|&index| slug(index) == "worker-abort");
            let first = abort.filter(|_| slug(first) == "nccl-timeout-secondary").unwrap_or(first);
            let proves_a_kill = slug(first) == "worker-sigkill-unknown";
            (proves_a_kill || first_fault(suspicions, events[first]).is_none()).then_some(first)
        }
        None => first_of(Level::Warning),
    }
}

/// One death prints a general message and a special one: the special one, within the same burst, is the name.
fn refine(signatures: &Signatures, events: &[&Event], first: usize) -> usize {
    let mut best = first;
    for index in first + 1..events.len() {
        let (event, old) = (events[index], events[best]);
        let is_near = event.file == events[first].file && event.line - events[first].line <= BURST_LINES;
        if is_near && signatures.classes[event.class].refines.contains(&old.class) {
            best = index;
        }
    }
    best
}

/// A fault of no class that came before `event`.
fn first_fault<'a>(suspicions: &'a [Suspicion], event: &Event) -> Option<&'a Suspicion> {
    suspicions.iter().filter(|fault| fault.rank == 0).find(|fault| {
        let is_real = !LAUNCHER.is_match(&fault.at.text) && !HARMLESS.is_match(&fault.at.text);
        let is_before = match (fault.stamp, event.stamp) {
            (Some(fault), Some(event)) if fault.seconds != event.seconds => fault.seconds < event.seconds,
            _ => fault.at.line < event.line,
        };
        is_real && is_before
    })
}

fn evidence(found: &Found, event: &Event) -> Evidence {
    Evidence { file: found.files[event.file].clone(), line: event.line, text: event.text.clone() }
}

fn describe(signatures: &Signatures, found: &Found, events: &[&Event], first: usize) -> Diagnosis {
    let chosen = events[first];
    let class = &signatures.classes[chosen.class];
    let mut diagnosis = Diagnosis { slug: class.slug.clone(), ..Diagnosis::default() };
    diagnosis.evidence.push(evidence(found, chosen));
    // Further lines of the class, and what it refined: they are the same death.
    let same = |event: &&&Event| {
        event.class == chosen.class || class.refines.contains(&event.class) && event.file == chosen.file
    };
    for event in events.iter().filter(same).filter(|event| !std::ptr::eq(**event, chosen)) {
        let line = evidence(found, event);
        if diagnosis.evidence.len() < EVIDENCE_MAX && !diagnosis.evidence.contains(&line) {
            diagnosis.evidence.push(line);
        }
    }
    let verdicts = events.iter().filter(|event| event.class == chosen.class).map(|event| &event.verdict);
    for verdict in std::iter::once(&chosen.verdict).chain(verdicts) {
        let mut add = |from: &[String], to: fn(&mut Diagnosis) -> &mut Vec<String>| {
            let to = to(&mut diagnosis);
            if to.is_empty() {
                to.extend_from_slice(from);
            }
        };
        add(&verdict.reasons, |d| &mut d.reasons);
        add(&verdict.unproven, |d| &mut d.unproven);
        add(&verdict.first_steps, |d| &mut d.first_steps);
    }
    if class.slug == "worker-sigkill-unknown" {
        weigh_kill(events, &mut diagnosis);
    }
    diagnosis.follows = follows(signatures, found, events, first);
    diagnosis
}

fn follows(signatures: &Signatures, found: &Found, events: &[&Event], first: usize) -> Vec<Follow> {
    let chosen = &signatures.classes[events[first].class];
    let mut seen = vec![events[first].class];
    seen.extend(&chosen.refines);
    let mut follows = Vec::new();
    for event in &events[first + 1..] {
        if !seen.contains(&event.class) && follows.len() < FOLLOWS_MAX {
            seen.push(event.class);
            follows.push(Follow {
                slug: signatures.classes[event.class].slug.clone(),
                at: evidence(found, event),
                count: found.counts[event.class].max(1),
            });
        }
    }
    follows
}

/// A SIGKILL is a kill for lack of memory only by evidence, in this order: counters, the kernel's line, exit code 137,
/// Ray's own count.
fn weigh_kill(events: &[&Event], diagnosis: &mut Diagnosis) {
    let texts: Vec<&str> = events.iter().map(|event| event.text.as_str()).collect();
    let has = |words: &[&str]| texts.iter().any(|text| words.iter().any(|word| text.contains(word)));
    let counted =
        diagnosis.reasons.iter().any(|reason| reason.contains("counts") || reason.contains("kernel"));
    if counted || has(&["invoked oom-killer", "oom_reaper: reaped process", "result 'oom-kill'"]) {
        if !counted {
            diagnosis.reasons.push("the kernel's out-of-memory killer was at work".into());
        }
        diagnosis.unproven.push("whether a container's limit or the whole machine was out of memory".into());
    } else if has(&["137"]) {
        diagnosis
            .reasons
            .push("exit code 137 is SIGKILL, which the kernel's out-of-memory killer sends".into());
        diagnosis
            .unproven
            .push("who sent it: `oom_kill` in the container's memory.events, or `dmesg`, says".into());
    } else {
        diagnosis.unproven.push(
            "that memory was the reason: no counter, no line of the kernel and no exit code says so; read memory.events and `dmesg`"
                .into(),
        );
    }
    if has(&["0 Workers (tasks / actors) killed due to memory pressure"]) {
        diagnosis.reasons.push("Ray's memory monitor killed no worker: it was the kernel, or a crash".into());
    }
}

/// No class: the first line that looks like a fault.
fn unknown(signatures: &Signatures, found: &Found, events: &[&Event]) -> Diagnosis {
    let mut diagnosis = Diagnosis { slug: UNKNOWN.into(), ..Diagnosis::default() };
    let rank = |suspicion: &Suspicion| {
        let told = LAUNCHER.is_match(&suspicion.at.text) || HARMLESS.is_match(&suspicion.at.text);
        (suspicion.rank + usize::from(told), suspicion.stamp.map_or(f64::MAX, |stamp| stamp.seconds))
    };
    let first = found
        .suspicions
        .iter()
        .min_by(|a, b| rank(a).partial_cmp(&rank(b)).unwrap_or(std::cmp::Ordering::Equal));
    if let Some(first) = first {
        diagnosis.evidence.push(first.at.clone());
        diagnosis.unproven.push(
            "the cause: this is the first line that looks like a fault, and no class describes it".into(),
        );
    }
    if let Some(event) = events.first() {
        diagnosis.follows.push(Follow {
            slug: signatures.classes[event.class].slug.clone(),
            at: evidence(found, event),
            count: found.counts[event.class],
        });
    }
    diagnosis
}
