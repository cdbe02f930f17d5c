//! `cargo xtask soak --ranks N`: hits one process of a run of several ranks, on every rank: killed, crashed, stopped,
//! slow, out of memory, cut off, its disk full, and killed in each phase. All must end within a bound with one sentence
//! that names the rank, no process may survive, and the run resumes with another number of ranks to the bits of an
//! undisturbed run. With `--rounds M` one or all processes are killed at random instants instead, with `--hosts H` on
//! hosts; with `--hosts H` alone, what goes wrong between hosts.

mod bench;
mod cards;
mod faults;
mod groups;
pub mod host_faults;
pub mod hosts;
mod network;
pub mod rounds;
mod scene;

use std::ops::Range;

use super::process::Options;
use bench::{Bench, END_SECONDS_MAX, Row, Unnamed};
use faults::FAULTS;

/// Parts of a step in which each rank is killed, and its start.
const PHASES: [&str; 5] = ["start", "rollout", "update", "eval", "save"];

/// Runs every fault on every rank; `say` gets a line for each. An error is a broken requirement.
pub fn soak(options: &Options, ranks: usize, say: &mut dyn FnMut(&str)) -> Result<Vec<Row>, String> {
    let mut bench = Bench::new(options, ranks)?;
    let mut rows = Vec::new();
    // The short form hits one rank with what any user may do.
    let short = |hit: Range<usize>| match options.hit {
        // A fault of one rank alone stays with that rank.
        Some(rank) if hit.len() > 1 => rank..rank + 1,
        None if options.short => ranks - 1..ranks,
        _ => hit,
    };
    let is_meant = |name: &str| options.only.split('|').any(|part| name.contains(part));
    let of_cards = cards::FAULTS.iter().filter(|_| options.device == "cuda");
    let meant = FAULTS.iter().chain(of_cards).filter(|fault| is_meant(fault.name));
    for fault in meant.filter(|fault| !options.short || fault.is_short) {
        let hit = if fault.every_rank { 0..ranks } else { fault.first_rank..fault.first_rank + 1 };
        let hit = short(hit);
        for rank in hit {
            let row =
                (fault.run)(&mut bench, rank).map_err(|err| format!("{}, rank {rank}: {err}", fault.name))?;
            match row {
                Some(row) => rows.push(named(row, fault.name.into(), rank, say)),
                None => say(&format!(
                    "skipped: {}: it needs rights that this user lacks, or the run was over first",
                    fault.name
                )),
            }
        }
    }
    for phase in PHASES {
        let name = format!("trainer killed in phase {phase}");
        for rank in short(0..ranks).filter(|_| is_meant(&name)) {
            let row = faults::killed_in(&mut bench, phase, rank)
                .map_err(|err| format!("{name}, rank {rank}: {err}"))?;
            rows.push(named(row, name.clone(), rank, say));
        }
    }
    Ok(rows)
}

fn named(row: Unnamed, fault: String, rank: usize, say: &mut dyn FnMut(&str)) -> Row {
    let row = row.named(fault, rank);
    say(&line(&row));
    row
}

fn line(row: &Row) -> String {
    let Row { fault, rank, seconds, seen, resumed_on } = row;
    let ended = seconds.map_or("all went on".into(), |seconds| format!("all ended after {seconds:.1} s"));
    let after = resumed_on.map_or(String::new(), |ranks| format!(" after --resume on {ranks}"));
    format!("{fault}, rank {rank}: {seen}; {ended}; equal{after}")
}

/// Returns the table as a Markdown page.
pub fn table(options: &Options, ranks: usize, rows: &[Row]) -> String {
    let (title, device) = match options.device.as_str() {
        "cuda" => ("Faults of ranks on cards", " --device cuda"),
        _ => ("Faults of ranks", ""),
    };
    let hit = options.hit.map_or(String::new(), |rank| format!(" --hit {rank}"));
    let mut text = format!(
        "# {title}\n\n`cargo xtask soak --ranks {ranks}{device}{hit} --steps {} --seed {}`: one process of a run of {ranks} ranks is hit, at a random \
         instant or, where a phase is named, when the status page of the rank shows it. All end within {END_SECONDS_MAX} s, or as long after \
         `--wait-seconds`, with a sentence that names the rank, nothing lives on, and `--resume` with another number of ranks comes to the \
         weights, states, metrics and samples of a run that was left alone, bit for bit.\n\n\
         | fault | rank | all ended after | resumed on | what the user sees |\n|---|---|---|---|---|\n",
        options.steps, options.seed
    );
    for Row { fault, rank, seconds, seen, resumed_on } in rows {
        let ended = seconds.map_or("it goes on".into(), |seconds| format!("{seconds:.1} s"));
        let after = resumed_on.map_or("-".into(), |ranks| ranks.to_string());
        text += &format!("| {fault} | {rank} | {ended} | {after} | `{seen}` |\n");
    }
    text
}
