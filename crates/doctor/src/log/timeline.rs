//! One timeline over all files, and the first cause on it.
//!
//! Within a file, lines are in order. Across files, clocks decide if both files have one, else the order in which the
//! files were given. `choice` picks the first cause.

use super::choice::Choice;
use super::command;
use super::diagnosis::{Diagnosis, Evidence, Follow, UNKNOWN};
use super::event::{Event, Survived};
use super::general::{class_of, reading};
use super::scan::Found;
use super::signatures::{Level, Signatures};
use super::text::regex;
use super::time::Stamp;
use regex::Regex;
use std::sync::LazyLock;

/// Most lines shown of the named class.
const EVIDENCE_MAX: usize = 6;
/// Most classes shown as following.
const FOLLOWS_MAX: usize = 12;

pub fn judge(signatures: &Signatures, mut found: Found) -> Diagnosis {
    let clocks_differ = give_years(&mut found);
    let events = merge(&found);
    let (files_read, bytes_read) = (found.files.len() as u64, found.bytes);
    let choice =
        Choice { signatures, events: &events, suspicions: &found.suspicions, finished: &found.finished };
    let mut diagnosis = match choice.first() {
        Some(first) => describe(signatures, &found, &events, first),
        None => unnamed(signatures, &found, &choice),
    };
    if clocks_differ && diagnosis.slug.as_deref().is_some_and(|slug| slug != UNKNOWN) {
        diagnosis.unproven.push(
            "the order across files: some of them have no clock, and come in the order in which they were given".into(),
        );
    }
    if found.is_cut {
        diagnosis.unproven.push("what came late: there were more events than are kept".into());
    }
    if !found.parts.is_empty() {
        diagnosis.unproven.push("what the part that was not read holds".into());
    }
    let names = signatures.frameworks.iter().zip(&found.frameworks);
    let frameworks = names.filter(|(_, named)| **named).map(|(name, _)| name.clone()).collect();
    let not_read = [found.not_read, found.parts].concat();
    Diagnosis { files_read, bytes_read, not_read, frameworks, ..diagnosis }
}

/// Gives stamps without a year the year of the others. Returns true if only some of the files with events have a clock.
fn give_years(found: &mut Found) -> bool {
    const YEAR: f64 = 365.2425 * 86_400.0;
    let stamps = found.events.iter().map(|event| event.stamp);
    let mut stamps = stamps.chain(found.suspicions.iter().map(|suspicion| suspicion.stamp)).flatten();
    let year = stamps.find(|stamp| stamp.has_year).map(|stamp| (stamp.seconds / YEAR).floor());
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

fn merge(found: &Found) -> Vec<&Event> {
    let mut lists: Vec<Vec<&Event>> = vec![Vec::new(); found.files.len()];
    for event in &found.events {
        lists[event.file].push(event);
    }
    for list in &mut lists {
        list.sort_by_key(|event| event.line);
    }
    // Times in a file never go back: lines of several processes are slightly out of order.
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

fn evidence(found: &Found, event: &Event) -> Evidence {
    Evidence { file: found.files[event.file].clone(), line: event.line, text: event.text.clone() }
}

fn describe(signatures: &Signatures, found: &Found, events: &[&Event], first: usize) -> Diagnosis {
    let chosen = events[first];
    let class = &signatures.classes[chosen.class];
    let mut diagnosis = Diagnosis { slug: Some(class.slug.clone()), ..Diagnosis::default() };
    // More lines of the class, and what it refined: the same death.
    let same = |event: &&&Event| {
        event.class == chosen.class || class.refines.contains(&event.class) && event.file == chosen.file
    };
    let others = events.iter().filter(same).filter(|event| !std::ptr::eq(**event, chosen));
    let mut shown: Vec<&Event> = std::iter::once(&chosen).chain(others).copied().collect();
    if class.level == Level::Secondary && shown.iter().all(|event| event.stamp.is_some()) {
        // Ranks report a death when their timers expire, and a file has their lines in any order.
        shown.sort_by(|a, b| a.stamp.partial_cmp(&b.stamp).unwrap_or(std::cmp::Ordering::Equal));
    }
    for event in shown {
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
    match class.slug.as_str() {
        "worker-sigkill-unknown" => weigh_kill(events, &mut diagnosis),
        "nccl-timeout-secondary" => found.collectives.explain(&found.wrote, &mut diagnosis),
        "shm-full-torch" => doubt_signal(&mut diagnosis),
        "disk-full" => diagnosis.reasons.extend(free_space(found, events)),
        _ => {}
    }
    diagnosis.follows = follows(signatures, found, events, first);
    diagnosis
}

fn follows(signatures: &Signatures, found: &Found, events: &[&Event], first: usize) -> Vec<Follow> {
    let chosen = &signatures.classes[events[first].class];
    let mut seen = vec![events[first].class];
    seen.extend(&chosen.refines);
    let mut follows = Vec::new();
    let is_same = |event: &Event| (event.file, event.line) == (events[first].file, events[first].line);
    for event in events[first + 1..].iter().filter(|event| !is_same(event)) {
        if !seen.contains(&event.class) && event.level != Level::Note && follows.len() < FOLLOWS_MAX {
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

static FREE: LazyLock<Regex> = LazyLock::new(|| regex(r"available space: ([\d.]+ ?\w+)"));

/// Returns how a disk filled, from Ray's notes.
fn free_space(found: &Found, events: &[&Event]) -> Option<String> {
    let notes = events.iter().filter(|event| event.level == Level::Note);
    let mut free = notes.filter_map(|event| Some((event, FREE.captures(&event.text)?[1].to_string())));
    let (first, last) = (free.next()?, free.next_back()?);
    let place = |event: &Event| format!("{}:{}", found.files[event.file], event.line);
    (first.1 != last.1).then(|| {
        format!("free space went from {} ({}) to {} ({})", first.1, place(first.0), last.1, place(last.0))
    })
}

/// Judges if a SIGKILL was for lack of memory, from counters, the kernel's line, exit code 137, then Ray's own count.
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
        let reason = "exit code 137 is SIGKILL, which the kernel's out-of-memory killer sends";
        let unproven = "who sent it: `oom_kill` in the container's memory.events, or `dmesg`, says";
        diagnosis.reasons.push(reason.into());
        diagnosis.unproven.push(unproven.into());
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

/// Notes that a bus error alone does not prove a full /dev/shm.
fn doubt_signal(diagnosis: &mut Diagnosis) {
    let tells = ["shm", "shared memory", "DataLoader", "No space left"];
    if !diagnosis.evidence.iter().any(|line| tells.iter().any(|words| line.text.contains(words))) {
        diagnosis.unproven.push(
            "that /dev/shm was full: signal 7 is a bus error, which a mapped file that was cut short or a failing disk gives too; `df -h /dev/shm` while the run is up shows it"
                .into(),
        );
    }
}

/// Makes the diagnosis without a class: the first line that looks like a fault, or nothing.
fn unnamed(signatures: &Signatures, found: &Found, choice: &Choice) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    let ends = found.files.iter().zip(&found.finished);
    if let Some(suspect) = choice.suspect() {
        diagnosis.evidence.push(suspect.at.clone());
        match class_of(signatures, suspect) {
            Some(class) => {
                let class = &signatures.classes[class];
                diagnosis.slug = Some(class.slug.clone());
                for (reason, first) in class.reads.iter().filter_map(|read| reading(read, &suspect.near)) {
                    diagnosis.reasons.push(reason);
                    diagnosis.first_steps.extend(first);
                }
                if class.slug == "process-failed"
                    && let Some(program) =
                        command::program(&suspect.near).filter(|program| program != "python")
                {
                    diagnosis.reasons.insert(
                        0,
                        format!("the program that failed is `{program}`, not a process of a launcher"),
                    );
                    diagnosis.first_steps.push(format!("read what `{program}` itself printed before that line, and run the same command by hand"));
                }
                diagnosis.unproven.push("what led to it: the lines before it are of no class".into());
            }
            None => {
                diagnosis.slug = Some(UNKNOWN.into());
                diagnosis.unproven.push(
                    "the cause: this is the first line that looks like a fault, and no class describes it"
                        .into(),
                );
            }
        }
        diagnosis.reasons.extend(suspect.place.clone());
    } else if let Some((file, line)) = ends.rev().find_map(|(file, line)| Some((file, (*line)?))) {
        let open = found.files.iter().zip(&found.open).find(|(_, open)| **open);
        diagnosis.finished = found.parts.is_empty() && open.is_none();
        if open.is_none() {
            diagnosis.reasons.push(format!("{file}:{line} is how a run ends that went well"));
        }
        diagnosis.unproven.extend(open.map(|(open, _)| {
            format!("that the whole run ended: {open} stops before the last step that it counts")
        }));
    }
    if diagnosis.slug.is_none() {
        let told = |survived: &Survived| {
            let Survived { class, file, line } = *survived;
            let slug = &signatures.classes[class].slug;
            format!("{}:{line} is {slug}, and the run went on: steps follow it", found.files[file])
        };
        diagnosis.reasons.extend(found.survived.iter().map(told));
    }
    if let Some(event) = choice.events.first() {
        diagnosis.follows.push(Follow {
            slug: signatures.classes[event.class].slug.clone(),
            at: evidence(found, event),
            count: found.counts[event.class],
        });
    }
    diagnosis
}
