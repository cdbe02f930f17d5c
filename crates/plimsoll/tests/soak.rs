//! The short form of `cargo xtask soak`: a handful of kills, and the faults that any user may cause. The long form
//! kills hundreds of times and breaks disks, directories and memory too.

#[path = "../../../xtask/src/soak/mod.rs"]
mod soak;

use std::path::PathBuf;

#[test]
fn a_killed_run_that_is_taken_up_equals_one_that_was_left_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = soak::Options {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_plimsoll")),
        folder: folder.path().join("soak"),
        kills: 4,
        steps: 10,
        seed: 7,
        faults: true,
        short: true,
    };
    let report =
        soak::soak(&options, &mut |line| eprintln!("{line}")).unwrap_or_else(|what| panic!("{what}"));
    assert!(report.kills >= 4 && report.runs > 0, "{}", soak::table(&options, &report));
    assert!(report.rows.iter().all(|row| row.lost == "nothing" || row.seen.starts_with("skipped")));
    eprintln!("{}", soak::table(&options, &report));
}
