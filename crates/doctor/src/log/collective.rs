//! Combines what the watchdogs of a group of ranks report: the operation that waited, for how long, the ranks that
//! report it, the silent ranks, and whether the ranks were out of step.

use super::diagnosis::Diagnosis;
use super::ranks::Wrote;
use super::text::regex;
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// Most reports kept; larger groups repeat themselves.
const REPORTS_MAX: usize = 1024;
/// Larger than any group; a larger number is not a rank.
const RANKS_MAX: u64 = 1 << 17;
/// Most operations listed that waited.
const WAITS_SHOWN: usize = 4;
/// Most ranks listed by number.
const RANKS_SHOWN: usize = 8;

static RANK: LazyLock<Regex> = LazyLock::new(|| regex(r"(?:PG (?:ID )?(\d+)[^\]]{0,60})?\b[Rr]ank (\d+)\]"));
static TAG: LazyLock<Regex> = LazyLock::new(|| regex(r"\[(?:rank|default) ?(\d+)\]"));
static WORK: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)(?:, NumelIn=(\d+))?(?:, NumelOut=(\d+))?(?:, Timeout\(ms\)=(\d+))?",
    )
});
static ENQUEUED: LazyLock<Regex> =
    LazyLock::new(|| regex(r"last enqueued (?:NCCL )?work: (\d+), last completed (?:NCCL )?work: (\d+)"));
/// Another form of the watchdog's report; its numbers may be cut off.
static DETECTED: LazyLock<Regex> = LazyLock::new(|| regex(r"detected by watchdog\b"));
static SIGNAL: LazyLock<Regex> =
    LazyLock::new(|| regex(r"dump signal due to a collective timeout from +rank (\d+)"));

#[derive(Clone, Debug, Default)]
struct Report {
    group: Option<u64>,
    rank: Option<u64>,
    work: Option<Work>,
    enqueued: Option<u64>,
    completed: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
struct Work {
    number: u64,
    operation: String,
    elements: Option<(u64, u64)>,
    timeout_ms: Option<u64>,
}

#[derive(Debug, Default)]
pub struct Collectives {
    reports: Vec<Report>,
    /// The rank whose timeout was signalled to the others.
    first: Option<u64>,
}

impl Collectives {
    pub fn read(&mut self, line: &str) {
        if let Some(found) = SIGNAL.captures(line) {
            self.first = self.first.or(found[1].parse().ok());
        }
        let number =
            |found: Option<regex::Match>| found.and_then(|digits| digits.as_str().parse::<u64>().ok());
        let work = WORK.captures(line).and_then(|found| {
            Some(Work {
                number: number(found.get(1))?,
                operation: found[2].trim_start_matches('_').to_lowercase(),
                elements: number(found.get(3)).zip(number(found.get(4))),
                timeout_ms: number(found.get(5)),
            })
        });
        let last = ENQUEUED.captures(line);
        let [enqueued, completed] = [1, 2].map(|at| last.as_ref().and_then(|found| number(found.get(at))));
        let is_report = work.is_some() || enqueued.is_some() || DETECTED.is_match(line);
        if self.reports.len() >= REPORTS_MAX || !is_report {
            return;
        }
        let found = RANK.captures(line);
        let tag = || TAG.captures(line).and_then(|found| number(found.get(1)));
        let rank = found.as_ref().and_then(|found| number(found.get(2))).or_else(tag);
        self.reports.push(Report {
            group: found.as_ref().and_then(|found| number(found.get(1))),
            rank: rank.filter(|&rank| rank < RANKS_MAX),
            work,
            enqueued,
            completed,
        });
    }

    /// Continues a report that a terminal broke over lines.
    pub fn read_on(&mut self, message: &str) {
        let Some(timeout) = WORK.captures(message).and_then(|found| found.get(5)?.as_str().parse().ok())
        else {
            return;
        };
        if let Some(work) = self.reports.last_mut().and_then(|report| report.work.as_mut()) {
            work.timeout_ms = work.timeout_ms.or(Some(timeout));
        }
    }

    pub fn add(&mut self, other: Collectives) {
        self.reports.extend(other.reports);
        self.reports.truncate(REPORTS_MAX);
        self.first = self.first.or(other.first);
    }

    /// Adds the reports' facts to a diagnosis of a timeout. `wrote` are the ranks that have a line in any log.
    pub fn explain(&self, wrote: &Wrote, diagnosis: &mut Diagnosis) {
        if let Some(first) = self.first {
            diagnosis.reasons.push(format!("rank {first} gave up first, and signalled the others"));
        }
        self.waits(diagnosis);
        // A rank that reports in any of the watchdog's forms is not silent.
        let ranks: BTreeSet<u64> = self.reports.iter().filter_map(|report| report.rank).collect();
        let timed_out = self.reports.iter().filter(|report| report.work.is_some());
        let missing: BTreeSet<u64> = timed_out
            .filter_map(|report| report.rank)
            .max()
            .map_or(BTreeSet::new(), |last| (0..last).filter(|rank| !ranks.contains(rank)).collect());
        let (quiet, silent): (BTreeSet<u64>, BTreeSet<u64>) =
            missing.into_iter().partition(|rank| wrote.has(*rank));
        if !silent.is_empty() {
            diagnosis.reasons.push(format!("silent: {}; begin with their logs", listed(&silent)));
        }
        if !quiet.is_empty() {
            let verb = if quiet.len() == 1 { "writes" } else { "write" };
            diagnosis.reasons.push(format!(
                "{} {verb} lines, but no report of the watchdog: begin with them",
                listed(&quiet)
            ));
        }
        self.out_of_step(diagnosis);
        if !self.late(diagnosis) {
            self.slowest(diagnosis);
        }
    }

    /// Names the operations that waited: one for each group and number, with the ranks that report it.
    fn waits(&self, diagnosis: &mut Diagnosis) {
        let mut kinds: Vec<(&Work, Option<u64>, BTreeSet<u64>)> = Vec::new();
        for report in &self.reports {
            let Some(work) = &report.work else { continue };
            let is_same = |(known, group, _): &&mut (&Work, Option<u64>, BTreeSet<u64>)| {
                (known.number, &known.operation) == (work.number, &work.operation)
                    && (*group == report.group || group.is_none() || report.group.is_none())
            };
            let has_room = kinds.len() < WAITS_SHOWN;
            match kinds.iter_mut().find(is_same) {
                Some((known, group, ranks)) => {
                    if known.timeout_ms.is_none() {
                        *known = work;
                    }
                    *group = group.or(report.group);
                    ranks.extend(report.rank);
                }
                None if has_room => {
                    kinds.push((work, report.group, report.rank.into_iter().collect()));
                }
                None => {}
            }
        }
        for (work, _, ranks) in kinds {
            let waited = work.timeout_ms.map_or(String::new(), |ms| format!(" waited {}", minutes(ms)));
            let who = if ranks.is_empty() {
                String::new()
            } else {
                format!(", by the report of {}", listed(&ranks))
            };
            diagnosis.reasons.push(format!("{} number {}{waited}{who}", work.operation, work.number));
        }
    }

    /// Names the ranks that completed or wait in an earlier operation than the others of their group.
    fn slowest(&self, diagnosis: &mut Diagnosis) {
        let mut groups: BTreeMap<Option<u64>, BTreeMap<u64, u64>> = BTreeMap::new();
        // What is completed is known best; a wait in N means that N - 1 is.
        for report in &self.reports {
            let waits = report.work.as_ref().map(|work| work.number.saturating_sub(1));
            if let Some((rank, at)) = report.rank.zip(report.completed.or(waits)) {
                let known = groups.entry(report.group).or_default().entry(rank).or_insert(at);
                *known = if report.completed.is_some() { at } else { (*known).max(at) };
            }
        }
        for (group, ranks) in groups {
            let (Some(least), Some(most)) = (ranks.values().min().copied(), ranks.values().max().copied())
            else {
                continue;
            };
            if least == most {
                continue;
            }
            let late = ranks.iter().filter(|(_, at)| **at == least).map(|(rank, _)| *rank).collect();
            let count = match most - least {
                1 => "one operation".to_string(),
                more => format!("{more} operations"),
            };
            let verb = if ranks.values().filter(|at| **at == least).count() == 1 { "is" } else { "are" };
            diagnosis
                .reasons
                .push(format!("{} {verb} {count} late: {least} completed, others {most}", listed(&late)));
            if group.is_none() {
                diagnosis.unproven.push("that those ranks are of one group: the lines name none".into());
            }
            return;
        }
    }

    /// Detects ranks with different work at the same number of a group: the program is at fault, not the network.
    fn out_of_step(&self, diagnosis: &mut Diagnosis) {
        let mut seen: BTreeMap<(Option<u64>, u64), &Report> = BTreeMap::new();
        for report in &self.reports {
            let (Some(work), Some(rank)) = (&report.work, report.rank) else { continue };
            let before = *seen.entry((report.group, work.number)).or_insert(report);
            let Some((other, other_rank)) = before.work.as_ref().zip(before.rank) else { continue };
            if rank == other_rank || (&work.operation, work.elements) == (&other.operation, other.elements) {
                continue;
            }
            let number = work.number;
            let (one, two) = (described(other), described(work));
            diagnosis.reasons.push(format!(
                "the ranks are out of step: at number {number} rank {other_rank} is in {one} and rank {rank} in {two}"
            ));
            diagnosis.first_steps.push(
                "look for a branch, a loop or a batch whose length differs between ranks before that operation".into(),
            );
            if report.group.is_none() {
                diagnosis.unproven.push("that both are of one group: the lines name none".into());
            }
            return;
        }
    }

    /// Names the rank that has enqueued the least: the others wait for it. Returns false if all have enqueued the same.
    fn late(&self, diagnosis: &mut Diagnosis) -> bool {
        let mut groups: BTreeMap<Option<u64>, BTreeMap<u64, u64>> = BTreeMap::new();
        for report in &self.reports {
            if let Some((rank, enqueued)) = report.rank.zip(report.enqueued) {
                groups.entry(report.group).or_default().insert(rank, enqueued);
            }
        }
        for ranks in groups.values() {
            let (least, most) = (ranks.values().min().copied(), ranks.values().max().copied());
            if let (Some(least), Some(most)) = (least, most)
                && least < most
            {
                let late: BTreeSet<u64> =
                    ranks.iter().filter(|(_, at)| **at == least).map(|(rank, _)| *rank).collect();
                diagnosis.reasons.push(format!(
                    "{} had come to operation {least} where others were at {most}: the others wait there",
                    listed(&late)
                ));
                return true;
            }
        }
        false
    }
}

fn described(work: &Work) -> String {
    match work.elements {
        Some((sent, got)) if sent != got => format!("{} of {sent} to {got} elements", work.operation),
        Some((sent, _)) => format!("{} of {sent} elements", work.operation),
        None => work.operation.clone(),
    }
}

fn minutes(ms: u64) -> String {
    match ms {
        ..120_000 => format!("{} seconds", ms / 1000),
        _ => format!("{} minutes", ms / 60_000),
    }
}

fn listed(ranks: &BTreeSet<u64>) -> String {
    let shown: Vec<String> = ranks.iter().take(RANKS_SHOWN).map(u64::to_string).collect();
    let more = ranks.len().saturating_sub(RANKS_SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(lines: &[&str]) -> String {
        let mut collectives = Collectives::default();
        lines.iter().for_each(|line| collectives.read(line));
        let mut diagnosis = Diagnosis::default();
        collectives.explain(&Wrote::default(), &mut diagnosis);
        diagnosis.reasons.join("; ")
    }

    /// All ranks below it were listed as silent, which took all memory of the machine.
    #[test]
    fn r_a_number_that_is_no_ranks() {
        let found = reasons(&[
            "[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 9223372036854775807] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800032 milliseconds before timing out.",
        ]);
        assert_eq!(found, "allreduce number 12 waited 30 minutes");
    }

    #[test]
    fn what_the_watchdogs_say_together() {
        let of = |rank: u64, operation: &str, elements: u64| {
            format!(
                "[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [PG ID 1 PG GUID 1 Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=34, OpType={operation}, NumelIn={elements}, NumelOut={elements}, Timeout(ms)=1800000) ran for 1800032 milliseconds before timing out."
            )
        };
        let lines = [of(0, "ALLREDUCE", 8), of(3, "ALLREDUCE", 8)];
        assert_eq!(
            reasons(&lines.each_ref().map(String::as_str)),
            "allreduce number 34 waited 30 minutes, by the report of ranks 0, 3; silent: ranks 1, 2; begin with their logs"
        );
        let lines = [of(0, "_ALLGATHER_BASE", 1_572_864), of(1, "_ALLGATHER_BASE", 512)];
        let found = reasons(&lines.each_ref().map(String::as_str));
        assert!(
            found.contains("out of step: at number 34 rank 0 is in allgather_base of 1572864 elements and rank 1 in allgather_base of 512 elements"),
            "{found}"
        );
        let found = reasons(&[
            "[PG 0 Rank 2] Timeout at NCCL work: 7487, last enqueued NCCL work: 7487, last completed NCCL work: 7486.",
            "[PG 0 Rank 5] Timeout at NCCL work: 7487, last enqueued NCCL work: 7481, last completed NCCL work: 7480.",
        ]);
        assert_eq!(
            found,
            "rank 5 had come to operation 7481 where others were at 7487: the others wait there"
        );
        let found =
            reasons(&["Received a dump signal due to a collective timeout from  rank 13 and we will try"]);
        assert_eq!(found, "rank 13 gave up first, and signalled the others");
    }

    /// Ranks wait in different operations: each is named, and the one that has completed less.
    #[test]
    fn r_ranks_that_wait_in_different_operations() {
        let of = |rank: u64, number: u64| {
            format!(
                "[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600032 milliseconds before timing out."
            )
        };
        let lines = [of(0, 808), of(1, 807), of(2, 808)];
        assert_eq!(
            reasons(&lines.each_ref().map(String::as_str)),
            "allreduce number 808 waited 10 minutes, by the report of ranks 0, 2; allreduce number 807 waited 10 minutes, by the report of rank 1; rank 1 is one operation late: 806 completed, others 807"
        );
        let detected = |rank: u64, completed: u64| {
            format!(
                "[rank{rank}]:[E ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: 808, last enqueued NCCL work: 811, last completed NCCL work: {completed}."
            )
        };
        let lines = [detected(0, 807), detected(1, 805)];
        assert_eq!(
            reasons(&lines.each_ref().map(String::as_str)),
            "rank 1 is 2 operations late: 805 completed, others 807"
        );
    }

    /// A rank that complains in another form of the report, or wrote any line, is not silent.
    #[test]
    fn r_only_a_rank_without_a_line_is_silent() {
        let caught = |rank: u64| {
            format!(
                "[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600032 milliseconds before timing out."
            )
        };
        let detected = "[rank1]:[E ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 1] Exception (either an error or timeout) detected by watchdog at work: 5";
        let mut collectives = Collectives::default();
        [&caught(0), detected, &caught(4)].iter().for_each(|line| collectives.read(line));
        let mut wrote = Wrote::default();
        wrote.add(2);
        let mut diagnosis = Diagnosis::default();
        collectives.explain(&wrote, &mut diagnosis);
        assert_eq!(
            diagnosis.reasons[1..],
            [
                "silent: rank 3; begin with their logs",
                "rank 2 writes lines, but no report of the watchdog: begin with them"
            ]
        );
    }
}
