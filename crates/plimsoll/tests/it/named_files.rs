//! Tests what a user names is opened in one way: a pipe without a writer, a device or a directory is named, not waited
//! for.

use crate::common::{Folder, check_error};
use std::process::Command;

/// Runs a command that would otherwise wait for ever.
fn check_ends(args: &[&str], code: i32, contains: &[&str]) {
    let bounded = Command::new("timeout").arg("300").arg(env!("CARGO_BIN_EXE_plimsoll")).args(args).output();
    check_error(args, &bounded.expect("coreutils"), code, contains);
}

/// `import` and `grade` waited for ever.
#[test]
fn r_a_pipe_without_a_writer_blocked_a_command() {
    let folder = Folder::new();
    let made = Command::new("mkfifo").arg(folder.path("pipe.toml")).status().expect("coreutils");
    assert!(made.success());
    let pipe = folder.text_path("pipe.toml");
    let without = "a pipe without a writer";
    for (args, code, words) in [
        (&["import", "verl", &pipe] as &[&str], 2, ["error[import-unreadable]", without]),
        (&["grade", "--reward", "exact", &pipe], 1, ["error[data-missing]", without]),
        (&["plan", &pipe], 2, ["error[run-file-unreadable]", without]),
        (&["reproduce", &pipe], 2, ["error[run-file-unreadable]", without]),
        (&["eval", "--model", "builtin:nano", "--data", &pipe], 1, ["error[data-missing]", "regular file"]),
        (&["doctor", "--run", "verl", &pipe], 2, ["error[import-unreadable]", without]),
    ] {
        check_ends(args, code, &words);
    }
    for (path, words) in [("/dev/zero", "a device"), (folder.text_path(".").as_str(), "directory")] {
        check_ends(&["grade", "--reward", "exact", path], 1, &["error[data-missing]", words]);
        let words = if path == "/dev/zero" { "larger than 1 MiB" } else { words };
        check_ends(&["import", "verl", path], 2, &["error[import-unreadable]", words]);
    }
}
