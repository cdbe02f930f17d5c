//! `cargo xtask soak`: runs the soak on a built binary, prints its table, and writes `bench/results/soak.md`.

use crate::soak::{self, Options};
use std::path::Path;
use std::process::ExitCode;

/// Runs the command; `None` if the arguments are not its own.
pub fn run(arguments: &[String], root: &Path) -> Option<ExitCode> {
    options(arguments, root).map(|options| make(&options, root))
}

fn options(arguments: &[String], root: &Path) -> Option<Options> {
    let mut options = Options {
        binary: root.join("target/release/plimsoll"),
        folder: std::env::temp_dir().join(format!("plimsoll-soak-{}", std::process::id())),
        kills: 20,
        steps: 40,
        seed: 1,
        faults: true,
        short: false,
        runs: 0,
        ranks: 0,
        hosts: 1,
        rounds: 0,
        minutes: 0,
        only: String::new(),
        device: String::new(),
        hit: None,
    };
    let mut flags = arguments.iter();
    while let Some(flag) = flags.next() {
        match flag.as_str() {
            "--no-faults" => options.faults = false,
            "--kills" => options.kills = flags.next()?.parse().ok()?,
            "--steps" => options.steps = flags.next()?.parse().ok()?,
            "--ranks" => {
                options.ranks = flags.next()?.parse().ok().filter(|ranks| (2..=64).contains(ranks))?
            }
            "--hosts" => {
                options.hosts = flags.next()?.parse().ok().filter(|hosts| (1..=64).contains(hosts))?
            }
            "--runs" => options.runs = flags.next()?.parse().ok()?,
            "--minutes" => options.minutes = flags.next()?.parse().ok()?,
            "--rounds" => options.rounds = flags.next()?.parse().ok()?,
            "--only" => options.only = flags.next()?.clone(),
            "--device" => {
                options.device = flags.next().filter(|of| ["cpu", "cuda"].contains(&of.as_str()))?.clone()
            }
            "--hit" => options.hit = Some(flags.next()?.parse().ok()?),
            "--seed" => options.seed = flags.next()?.parse().ok()?,
            "--binary" => options.binary = std::path::absolute(flags.next()?).ok()?,
            "--folder" => options.folder = std::path::absolute(flags.next()?).ok()?,
            _ => return None,
        }
    }
    let are_even = options.ranks > 0 && options.ranks.is_multiple_of(options.hosts);
    let of_ranks = options.device.is_empty() && options.hit.is_none() || options.ranks > 0;
    let fits = (options.rounds == 0 || options.ranks > 0) && (options.hosts == 1 || are_even);
    let fits = fits && of_ranks && (options.runs == 0 || options.hosts > 1 && options.rounds == 0);
    let fits = fits && options.hit.is_none_or(|rank| rank < options.ranks);
    fits.then_some(options)
}

fn make(options: &Options, root: &Path) -> ExitCode {
    if options.ranks > 0 {
        return make_ranks(options, root);
    }
    match soak::soak(options, &mut |line| eprintln!("{line}")) {
        Ok(report) => {
            let _ = std::fs::remove_dir_all(&options.folder);
            let table = soak::table(options, &report);
            print!("{table}");
            // Without the faults it is not the full table.
            let path = root.join("bench/results/soak.md");
            match if options.faults { std::fs::write(&path, table) } else { Ok(()) } {
                Ok(()) => ExitCode::SUCCESS,
                Err(err) => {
                    eprintln!("soak: {}: {err}", path.display());
                    ExitCode::FAILURE
                }
            }
        }
        Err(what) => {
            eprintln!("soak: {what}");
            eprintln!("everything is in {}", options.folder.display());
            ExitCode::FAILURE
        }
    }
}

fn make_ranks(options: &Options, root: &Path) -> ExitCode {
    let say = &mut |line: &str| eprintln!("{line}");
    let name = if options.device == "cuda" { "soak_ranks_cards.md" } else { "soak_ranks.md" };
    let made = match options.rounds {
        0 if options.hosts > 1 => soak::ranks::host_faults::soak(options, say)
            .map(|rows| ("soak_hosts.md", soak::ranks::host_faults::table(options, &rows))),
        0 => soak::ranks::soak(options, options.ranks, say)
            .map(|rows| (name, soak::ranks::table(options, options.ranks, &rows))),
        _ if options.hosts > 1 => soak::ranks::hosts::rounds(options, say)
            .map(|report| ("soak_ranks_hosts.md", soak::ranks::hosts::table(options, &report))),
        _ => soak::ranks::rounds::rounds(options, say)
            .map(|report| ("soak_ranks_rounds.md", soak::ranks::rounds::table(options, &report))),
    };
    let made = made.and_then(|(name, table)| {
        print!("{table}");
        // A part is not the full table.
        let write = || std::fs::write(root.join("bench/results").join(name), &table);
        if options.only.is_empty() && options.runs == 0 {
            write().map_err(|err| err.to_string())
        } else {
            Ok(())
        }
    });
    match made {
        Ok(()) => {
            let _ = std::fs::remove_dir_all(&options.folder);
            ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("soak: {what}");
            eprintln!("everything is in {}", options.folder.display());
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_and_others_refused() {
        let read = |flags: &[&str]| {
            let flags: Vec<String> = flags.iter().map(|flag| flag.to_string()).collect();
            options(&flags, Path::new("/r"))
        };
        let found = read(&["--kills", "200", "--no-faults", "--seed", "3"]).expect("flags of its own");
        assert_eq!((found.kills, found.seed, found.faults), (200, 3, false));
        assert_eq!(found.binary, Path::new("/r/target/release/plimsoll"));
        let found = read(&["--ranks", "4", "--hosts", "2", "--rounds", "9"]).expect("flags of its own");
        assert_eq!((found.ranks, found.hosts, found.rounds), (4, 2, 9));
        let found = read(&["--ranks", "4", "--hosts", "2"]).expect("flags of its own");
        assert_eq!((found.ranks, found.hosts, found.rounds), (4, 2, 0));
        let found = read(&["--ranks", "4", "--hosts", "2", "--only", "silent", "--runs", "4"]);
        assert_eq!(found.expect("flags of its own").runs, 4);
        let found = read(&["--ranks", "4", "--device", "cuda", "--hit", "3"]).expect("flags of its own");
        assert_eq!((found.device.as_str(), found.hit), ("cuda", Some(3)));
        for bad in [
            &["--ranks", "4", "--device", "tpu"][..],
            &["--ranks", "4", "--hit", "4"],
            &["--device", "cuda"],
            &["--hosts", "2"],
            &["--ranks", "4", "--runs", "2"],
            &["--ranks", "4", "--hosts", "3"],
            &["--ranks", "4", "--hosts", "3", "--rounds", "9"],
            &["--ranks", "4", "--hosts", "0", "--rounds", "9"],
        ] {
            assert!(read(bad).is_none(), "{bad:?}");
        }
        for bad in [&["--kills"][..], &["--rounds", "3"], &["--kills", "many"], &["--kill", "3"], &["3"]] {
            assert!(read(bad).is_none(), "{bad:?}");
        }
    }
}
