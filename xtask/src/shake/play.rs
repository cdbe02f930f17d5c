//! One step of the schedule: a program runs in a condition, and each test that fails runs once more, alone.

use super::conditions::{Condition, Setting};
use super::libtest::{self, Said};
use super::process::{self, End};
use super::programs::Program;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A program that takes longer is killed. The slowest takes two minutes on two cores without load.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Limit of a test that runs alone.
const ALONE_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Failures of one program run that run once more alone: where all fail, a few say why.
const ALONE_MAX: usize = 20;
/// Tests that are named as running when a program was killed.
const RUNNING_MAX: usize = 8;

/// A run of a program.
#[derive(Debug, Serialize)]
pub struct Run {
    pub condition: &'static str,
    pub round: usize,
    pub program: String,
    /// Tests that passed or failed.
    pub tests: usize,
    pub seconds: f64,
    pub failures: Vec<Failure>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// Program and test, or program and end.
    pub test: String,
    /// Tests that may have been running, where the program had no time to say which failed.
    pub running: Vec<String>,
    /// True if it failed alone too; none if it was not tried.
    pub failed_alone: Option<bool>,
    pub output: PathBuf,
    pub output_alone: Option<PathBuf>,
}

/// The folders, and the signal to end, that all steps have in common.
pub struct Stage<'a> {
    pub root: &'a Path,
    /// Folder of the outputs of failures.
    pub outputs: &'a Path,
    pub interrupt: &'a AtomicBool,
}

/// A step, with its parts instead of their indices.
pub struct Scene<'a> {
    pub condition: &'a Condition,
    pub round: usize,
    /// Seed of the order of tests.
    pub seed: u64,
    pub program: &'a Program,
}

impl Stage<'_> {
    /// Runs the program, and what failed once more; none if this command is to end.
    pub fn play(&self, scene: &Scene) -> io::Result<Option<Run>> {
        let name = |of: &str| format!("{}.{}.{of}", scene.condition.name, scene.round);
        let output = self.outputs.join(name(&format!("{}.txt", scene.program.name.replace('/', "."))));
        let started = Instant::now();
        let (end, said) = self.run(scene, &output, &[], PROGRAM_TIMEOUT)?;
        if end == End::Interrupted {
            return Ok(None);
        }
        let seconds = started.elapsed().as_secs_f64();
        let mut failures = match judge(scene.program.harness, end, &said) {
            Verdict::Passed => Vec::new(),
            Verdict::Tests(names) => {
                names.iter().map(|test| failure(format!("{} {test}", scene.program.name), &output)).collect()
            }
            Verdict::Program(words) => {
                let mut failure = failure(format!("{} ({words})", scene.program.name), &output);
                failure.running = self.running(scene, &said);
                vec![failure]
            }
        };
        for failure in failures.iter_mut().take(ALONE_MAX) {
            self.play_alone(scene, failure)?;
        }
        if failures.is_empty() {
            fs::remove_file(&output)?;
        }
        let (condition, round, program) = (scene.condition.name, scene.round, scene.program.name.clone());
        let tests = num_tests(scene.program.harness, &said);
        Ok(Some(Run { condition, round, program, tests, seconds, failures }))
    }

    /// Runs the test of a failure alone; of a program that died, those that were running.
    fn play_alone(&self, scene: &Scene, failure: &mut Failure) -> io::Result<()> {
        let test = failure.test.strip_prefix(&scene.program.name).unwrap_or(&failure.test).trim_start();
        let tests: Vec<&str> = match (scene.program.harness, test.starts_with('(')) {
            (true, true) => failure.running.iter().map(String::as_str).collect(),
            (true, false) => vec![test],
            (false, _) => vec![""],
        };
        let output = failure.output.with_extension("alone.txt");
        let mut failed = None;
        for test in tests {
            let only: &[&str] = if test.is_empty() { &[] } else { &["--exact", test] };
            let (end, said) = self.run(scene, &output, only, ALONE_TIMEOUT)?;
            if self.interrupt.load(Ordering::Relaxed) {
                break;
            }
            let has_failed = judge(scene.program.harness, end, &said) != Verdict::Passed;
            // An ignored test, which the list of a program has too, does not run.
            if has_failed || num_tests(scene.program.harness, &said) > 0 {
                failed = Some(failed.unwrap_or(false) || has_failed);
            }
        }
        failure.failed_alone = failed;
        failure.output_alone = failed.map(|_| output);
        Ok(())
    }

    /// Starts the program, appends its output to the file, and reads that part.
    fn run(&self, scene: &Scene, output: &Path, only: &[&str], timeout: Duration) -> io::Result<(End, Said)> {
        scene.condition.before_program()?;
        let mut command = scene.program.command(self.root, &scene.condition.setting(scene.seed));
        command.args(only);
        let mut file = File::options().create(true).append(true).open(output)?;
        let settings = scene.condition.setting(scene.seed).variables;
        let settings: String = settings.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        writeln!(
            file,
            "# {}, round {}: {settings}{} {}",
            scene.condition.name,
            scene.round,
            scene.program.path.display(),
            words.join(" ")
        )?;
        let from = file.metadata()?.len();
        let end = process::run(&mut command, output, timeout, self.interrupt)?;
        let mut written = BufReader::new(File::open(output)?);
        io::Seek::seek(&mut written, io::SeekFrom::Start(from))?;
        let said = libtest::read(written)?;
        if !matches!(end, End::Code(0 | 101)) {
            writeln!(file, "\n# {}", end.words())?;
        }
        Ok((end, said))
    }

    /// Returns the tests that may have been running when a program died: those that the harness names, or the first of
    /// its list that have not ended.
    fn running(&self, scene: &Scene, said: &Said) -> Vec<String> {
        if !scene.program.harness || !said.begun.is_empty() {
            return said.begun.iter().take(RUNNING_MAX).cloned().collect();
        }
        let mut command = scene.program.command(self.root, &Setting::default());
        let Ok(output) = command.args(["--list", "--format", "terse"]).output() else { return Vec::new() };
        let mut listed = libtest::listed(&String::from_utf8_lossy(&output.stdout));
        listed.retain(|name| !said.ended.contains(name));
        listed.truncate(RUNNING_MAX);
        listed
    }
}

fn failure(test: String, output: &Path) -> Failure {
    let output = output.to_path_buf();
    Failure { test, running: Vec::new(), failed_alone: None, output, output_alone: None }
}

/// The verdict of a program's run on its tests.
#[derive(Debug, PartialEq)]
enum Verdict {
    Passed,
    /// These failed.
    Tests(Vec<String>),
    /// The program failed as a whole, in these words.
    Program(String),
}

fn judge(harness: bool, end: End, said: &Said) -> Verdict {
    match (end, said.summary) {
        (End::Code(0), None) if harness => Verdict::Program("ended without a summary".into()),
        (End::Code(0), _) => Verdict::Passed,
        (End::Code(_), Some(_)) if harness && !said.failed.is_empty() => Verdict::Tests(said.failed.clone()),
        (end, _) => Verdict::Program(end.words()),
    }
}

fn num_tests(harness: bool, said: &Said) -> usize {
    match said.summary {
        _ if !harness => 1,
        Some((passed, failed)) => passed + failed,
        None => said.num_ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shake::conditions::CONDITIONS;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    /// Plays a script as a program with a harness; returns its run, with paths reduced to file names.
    fn play(name: &str, harness: bool, script: &str) -> (Run, Vec<String>) {
        let folder = std::env::temp_dir().join(format!("plimsoll-play-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder is writable");
        let path = folder.join("program.sh");
        fs::write(folder.join("script"), format!("#!/bin/sh\n{script}")).expect("it is writable");
        fs::set_permissions(folder.join("script"), fs::Permissions::from_mode(0o755)).expect("it is there");
        // Copied by another process: a child of another test would hold a file that this process wrote open, and a file
        // that is open for writing does not start.
        let copied = Command::new("cp").arg(folder.join("script")).arg(&path).status();
        assert!(copied.is_ok_and(|status| status.success()));
        let program = Program { name: "p/lib".into(), path, cwd: "".into(), harness };
        let outputs = folder.join("outputs");
        fs::create_dir_all(&outputs).expect("it is writable");
        let stage = Stage { root: &folder, outputs: &outputs, interrupt: &AtomicBool::new(false) };
        let condition = CONDITIONS.iter().find(|condition| condition.name == "one-thread").expect("a row");
        let scene = Scene { condition, round: 2, seed: 1, program: &program };
        let run = stage.play(&scene).expect("it starts").expect("no interrupt");
        let entries = fs::read_dir(&outputs).expect("it is there").flatten();
        let mut files: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        files.sort();
        fs::remove_dir_all(&folder).expect("it is there");
        (run, files)
    }

    #[test]
    fn outputs_of_what_passes_go() {
        let script = "echo 'test a ... ok'; echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";
        let (run, files) = play("passes", true, script);
        assert_eq!((run.tests, run.failures.len(), files.len()), (1, 0, 0));
        let (run, _) = play("own-main", false, "[ $# = 0 ] && [ $RUST_TEST_THREADS = 1 ]");
        assert_eq!((run.tests, run.failures), (1, vec![]));
    }

    #[test]
    fn a_test_that_fails_runs_again_alone() {
        let script = "if [ \"$1\" = --exact ]; then echo 'test result: ok. 1 passed; 0 failed; 0 ignored'; exit 0; fi\n\
                      printf 'failures:\\n    a\\n    b\\n\\ntest result: FAILED. 4 passed; 2 failed; 0 ignored\\n'; exit 101";
        let (run, files) = play("fails", true, script);
        let found: Vec<_> =
            run.failures.iter().map(|failure| (failure.test.as_str(), failure.failed_alone)).collect();
        assert_eq!((run.tests, found), (6, vec![("p/lib a", Some(false)), ("p/lib b", Some(false))]));
        assert_eq!(files, ["one-thread.2.p.lib.alone.txt", "one-thread.2.p.lib.txt"]);
    }

    #[test]
    fn a_program_that_dies_is_a_failure_with_what_was_running() {
        let script = "if [ \"$1\" = --list ]; then printf 'a: test\\nb: test\\n'; exit 0; fi\n\
                      [ \"$1\" = --exact ] || echo 'test a ... ok'\nkill -11 $$";
        let (run, _) = play("dies", true, script);
        let failure = &run.failures[0];
        assert_eq!((failure.test.as_str(), run.tests), ("p/lib (died: signal 11)", 1));
        assert_eq!((failure.running.join(" ").as_str(), failure.failed_alone), ("b", Some(true)));
        let (run, _) = play("own-main-dies", false, "exit 7");
        assert_eq!(run.failures[0].test, "p/lib (exit code 7)");
        assert_eq!(run.failures[0].failed_alone, Some(true));
    }

    #[test]
    fn a_program_that_leaves_early_has_not_passed() {
        let said = Said::default();
        let words = |words: &str| Verdict::Program(words.into());
        assert_eq!(judge(true, End::Code(0), &said), words("ended without a summary"));
        assert_eq!(judge(false, End::Code(0), &said), Verdict::Passed);
        assert_eq!(judge(true, End::Code(101), &said), words("exit code 101"));
        assert_eq!(judge(true, End::Timeout(PROGRAM_TIMEOUT), &said), words("killed after 1800 s"));
        let said = Said { failed: vec!["a".into()], summary: Some((1, 1)), ..Said::default() };
        assert_eq!(judge(true, End::Code(101), &said), Verdict::Tests(vec!["a".into()]));
        assert_eq!(judge(true, End::Signal(6), &said), words("died: signal 6"));
    }
}
