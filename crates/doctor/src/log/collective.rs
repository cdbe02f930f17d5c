//! Combines what the watchdogs of a group of ranks report: the operation that waited, for how long, the ranks that
//! report it, the silent ranks, and whether the ranks were out of step.

use super::diagnosis::Diagnosis;
use super::text::regex;
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// Most reports kept; larger groups repeat themselves.
const REPORTS_MAX: usize = 1024;
/// Larger than any group; a larger number is not a rank.
const RANKS_MAX: u64 = 1 << 17;
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
static SIGNAL: LazyLock<Regex> =
    LazyLock::new(|| regex(r"dump signal due to a collective timeout from +rank (\d+)"));

#[derive(Clone, Debug, Default)]
struct Report {
    group: Option<u64>,
    rank: Option<u64>,
    work: Option<Work>,
    enqueued: Option<u64>,
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
        let enqueued = ENQUEUED.captures(line).and_then(|found| number(found.get(1)));
        if self.reports.len() >= REPORTS_MAX || work.is_none() && enqueued.is_none() {
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

    /// Adds the reports' facts to a diagnosis of a timeout.
    pub fn explain(&self, diagnosis: &mut Diagnosis) {
        if let Some(first) = self.first {
            diagnosis.reasons.push(format!("rank {first} gave up first, and signalled the others"));
        }
        let ranks: BTreeSet<u64> = self
            .reports
            .iter()
            .filter(|report| report.work.is_some())
            .filter_map(|report| report.rank)
            .collect();
        let work = self.reports.iter().find_map(|report| report.work.as_ref());
        if let Some(work) = work {
            let waited = work.timeout_ms.map_or(String::new(), |ms| format!(" waited {}", minutes(ms)));
            let who = if ranks.is_empty() {
                String::new()
            } else {
                format!(", by the report of {}", listed(&ranks))
            };
            diagnosis.reasons.push(format!("{} number {}{waited}{who}", work.operation, work.number));
        }
        let silent: BTreeSet<u64> = ranks
            .last()
            .map_or(BTreeSet::new(), |last| (0..*last).filter(|rank| !ranks.contains(rank)).collect());
        if !silent.is_empty() {
            diagnosis.reasons.push(format!("silent: {}; begin with their logs", listed(&silent)));
        }
        self.out_of_step(diagnosis);
        self.late(diagnosis);
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

    /// Names the rank that has enqueued the least: the others wait for it.
    fn late(&self, diagnosis: &mut Diagnosis) {
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
                return;
            }
        }
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
        collectives.explain(&mut diagnosis);
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
}
