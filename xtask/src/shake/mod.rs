//! `cargo xtask shake`: runs the test programs in conditions in which tests that depend on time, load, order or the
//! processor fail, and lists what failed how often.
//!
//! The rows of `conditions` get one round each, then a second, and so on. Programs of a round run one after another, as
//! under cargo. Tests of documentation are not among them: rustdoc builds those where it runs them.

mod conditions;
mod libtest;
mod load;
mod pack;
mod play;
mod process;
mod programs;
mod report;
mod schedule;

use conditions::{CONDITIONS, Condition};
use play::{Failure, Run, Scene, Stage};
use programs::Suite;
use report::Report;
use schedule::{Schedule, Step};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Usage, shown when the command line is wrong.
pub const USAGE: &str = "cargo xtask shake [--hours H] [--rounds N] [--only WORDS] [--under WORDS] [--seed S] [--programs FOLDER] [--out DIR] [--list] | shake --pack FOLDER [--only WORDS]";

/// Exit code of a command that was interrupted, as of a shell.
const INTERRUPTED: u8 = 130;

#[derive(Debug, PartialEq)]
struct Options {
    /// Time after which nothing begins.
    limit: Option<Duration>,
    rounds: usize,
    /// Only programs whose names contain this, or one of several parted by `|`.
    only: String,
    /// The same for conditions.
    under: String,
    /// Seed of the first round's order of tests; each further round adds one.
    seed: u64,
    programs: Option<PathBuf>,
    pack: Option<PathBuf>,
    out: Option<PathBuf>,
    list: bool,
}

/// Runs the command; `None` if the arguments are not its own.
pub fn run(arguments: &[String], root: &Path) -> Option<ExitCode> {
    let options = options(arguments)?;
    let done = match &options.pack {
        Some(folder) => pack(&options, folder, root),
        None if options.list => list(&options),
        None => shake(&options, root),
    };
    Some(done.unwrap_or_else(|words| {
        eprintln!("shake: {words}");
        ExitCode::from(2)
    }))
}

fn options(arguments: &[String]) -> Option<Options> {
    let mut options = Options {
        limit: None,
        rounds: 3,
        only: String::new(),
        under: String::new(),
        seed: 1,
        programs: None,
        pack: None,
        out: None,
        list: false,
    };
    let mut flags = arguments.iter();
    while let Some(flag) = flags.next() {
        match flag.as_str() {
            "--hours" => {
                let hours: f64 = flags.next()?.parse().ok()?;
                options.limit = Some(Duration::try_from_secs_f64(hours * 3600.0).ok()?);
            }
            "--rounds" => {
                options.rounds = flags.next()?.parse().ok().filter(|rounds| (1..=1000).contains(rounds))?
            }
            "--only" => options.only = flags.next()?.clone(),
            "--under" => options.under = flags.next()?.clone(),
            "--seed" => options.seed = flags.next()?.parse().ok()?,
            "--programs" => options.programs = Some(flags.next()?.into()),
            "--pack" => options.pack = Some(flags.next()?.into()),
            "--out" => options.out = Some(flags.next()?.into()),
            "--list" => options.list = true,
            _ => return None,
        }
    }
    let fits = options.pack.is_none() || options.programs.is_none() && options.out.is_none() && !options.list;
    fits.then_some(options)
}

/// Returns the conditions that the words choose.
fn chosen(options: &Options) -> impl Iterator<Item = (usize, &'static Condition)> {
    CONDITIONS.iter().enumerate().filter(|(_, condition)| programs::is_chosen(condition.name, &options.under))
}

/// Reads or builds the programs that the words choose.
fn suite(options: &Options, root: &Path) -> Result<Suite, String> {
    let Some(folder) = &options.programs else { return programs::build(root, &options.only) };
    let mut suite = programs::read(folder)?;
    suite.programs.retain(|program| programs::is_chosen(&program.name, &options.only));
    pack::place(&suite)?;
    Ok(suite)
}

/// Prints the conditions and, of a packed folder, its programs.
fn list(options: &Options) -> Result<ExitCode, String> {
    for (_, condition) in chosen(options) {
        let words = condition.unavailable().map(|reason| format!("skipped: {reason}"));
        println!("{:<15} {}", condition.name, words.unwrap_or_else(|| condition.what.into()));
    }
    if let Some(folder) = &options.programs {
        let programs = programs::read(folder)?.programs;
        let names = programs.iter().map(|program| &program.name);
        names.filter(|name| programs::is_chosen(name, &options.only)).for_each(|name| println!("{name}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn pack(options: &Options, folder: &Path, root: &Path) -> Result<ExitCode, String> {
    let suite = programs::build(root, &options.only)?;
    let bytes = pack::write(&suite, folder)?;
    let (programs, binaries) = (suite.programs.len(), suite.binaries.len());
    eprintln!(
        "shake: {programs} programs and {binaries} binaries, {} MiB in {}",
        bytes >> 20,
        folder.display()
    );
    Ok(ExitCode::SUCCESS)
}

fn shake(options: &Options, root: &Path) -> Result<ExitCode, String> {
    let suite = suite(options, root)?;
    if suite.programs.is_empty() {
        return Err(format!("no test program has `{}` in its name", options.only));
    }
    let mut report = Report::new(chosen(options).map(|(_, condition)| condition), suite.programs.len());
    let mut conditions = Vec::new();
    for (index, condition) in chosen(options) {
        // A file that opens may still refuse what is written.
        let tried = || condition.before_program().err().map(|err| err.to_string());
        match condition.unavailable().or_else(tried) {
            Some(reason) => drop(report.skipped.insert(condition.name, reason)),
            None => conditions.push(index),
        }
    }
    if report.conditions.is_empty() {
        return Err(format!("no condition has `{}` in its name", options.under));
    }
    let interrupt = Interrupt::on_signals().map_err(|err| err.to_string())?;
    let out = options.out.clone().unwrap_or_else(|| root.join("target/shake"));
    let out = std::path::absolute(out).map_err(|err| err.to_string())?;
    let schedule = Schedule::new(options.rounds, &conditions, suite.programs.len(), options.limit);
    let course = Course { suite: &suite, out: &out, seed: options.seed, interrupt: &interrupt.flag };
    course.run(schedule, &mut report).map_err(|err| format!("{}: {err}", out.display()))?;
    print!("{}", report.markdown());
    let signal = interrupt.signal.load(Ordering::Relaxed);
    if signal != 0 {
        eprintln!("shake: interrupted by signal {signal}");
    }
    Ok(match (report.has_failures(), signal) {
        (true, _) => ExitCode::FAILURE,
        (false, 0) => ExitCode::SUCCESS,
        (false, _) => ExitCode::from(INTERRUPTED),
    })
}

/// Signals that end this command after it has killed what it started and has printed what it found.
struct Interrupt {
    flag: Arc<AtomicBool>,
    /// Number of the last one; 0 for none.
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    fn on_signals() -> io::Result<Interrupt> {
        let interrupt = Interrupt { flag: Arc::default(), signal: Arc::default() };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_usize(signal, interrupt.signal.clone(), signal as usize)?;
            signal_hook::flag::register(signal, interrupt.flag.clone())?;
        }
        Ok(interrupt)
    }
}

/// The parameters that the steps of a schedule have in common.
struct Course<'a> {
    suite: &'a Suite,
    out: &'a Path,
    seed: u64,
    interrupt: &'a AtomicBool,
}

impl Course<'_> {
    /// Runs the schedule; both files are written after each step, so that what was found survives any end.
    fn run(&self, mut schedule: Schedule, report: &mut Report) -> io::Result<()> {
        let outputs = self.out.join("shake-outputs");
        let _ = fs::remove_dir_all(&outputs);
        fs::create_dir_all(&outputs)?;
        report.outputs = outputs.clone();
        let stage = Stage { root: &self.suite.root, outputs: &outputs, interrupt: self.interrupt };
        let started = Instant::now();
        let mut load = None;
        while let Some(step) = schedule.next(started.elapsed()) {
            let key = (step.round, step.condition);
            if load.as_ref().is_none_or(|(of, _)| *of != key) {
                // One load ends before the next begins.
                drop(load.take());
                load = Some((key, CONDITIONS[step.condition].begin()?));
            }
            match self.step(&stage, step) {
                Some(run) => {
                    tell(&run, schedule.begun(), schedule.num_steps());
                    report.runs.push(run);
                }
                None => schedule.put_back(),
            }
            self.write(report, &schedule, started.elapsed())?;
            if self.interrupt.load(Ordering::Relaxed) {
                break;
            }
        }
        self.write(report, &schedule, started.elapsed())
    }

    /// Runs one program; none if this command is to end.
    fn step(&self, stage: &Stage, step: Step) -> Option<Run> {
        let (condition, program) = (&CONDITIONS[step.condition], &self.suite.programs[step.program]);
        let seed = self.seed.wrapping_add(step.round as u64 - 1);
        let scene = Scene { condition, round: step.round, seed, program };
        stage.play(&scene).unwrap_or_else(|err| {
            let failure = Failure {
                test: format!("{} (did not start: {err})", program.name),
                running: Vec::new(),
                failed_alone: None,
                output: program.path.clone(),
                output_alone: None,
            };
            Some(Run {
                condition: condition.name,
                round: step.round,
                program: program.name.clone(),
                tests: 0,
                seconds: 0.0,
                failures: vec![failure],
            })
        })
    }

    fn write(&self, report: &mut Report, schedule: &Schedule, elapsed: Duration) -> io::Result<()> {
        let rest = schedule.rest().into_iter();
        report.rest = rest.map(|(round, condition, n)| (round, CONDITIONS[condition].name, n)).collect();
        report.seconds = elapsed.as_secs_f64();
        fs::write(self.out.join("shake.md"), report.markdown())?;
        fs::write(self.out.join("shake.json"), serde_json::to_string_pretty(&report.json())? + "\n")
    }
}

/// Prints one line on a run.
fn tell(run: &Run, step: usize, steps: usize) {
    let Run { condition, round, program, tests, seconds, failures } = run;
    let failed = failures.len();
    eprintln!(
        "[{step}/{steps}] {condition}, round {round}: {program}: {tests} tests, {failed} failed, {seconds:.1} s"
    );
    for failure in failures {
        let alone = match failure.failed_alone {
            Some(true) => ", and alone",
            Some(false) => ", not alone",
            None => "",
        };
        eprintln!("    failed{alone}: {}", failure.test);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(flags: &str) -> Option<Options> {
        options(&flags.split_whitespace().map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn flags_are_read_and_others_refused() {
        let found = read("").expect("all have defaults");
        assert_eq!((found.rounds, found.limit, found.seed, found.list), (3, None, 1, false));
        let found = read("--hours 0.5 --rounds 2 --only base|cpu --under busy --seed 9 --programs f --out o")
            .expect("flags of its own");
        assert_eq!((found.rounds, found.limit, found.seed), (2, Some(Duration::from_secs(1800)), 9));
        assert_eq!((found.only.as_str(), found.under.as_str()), ("base|cpu", "busy"));
        assert_eq!((found.programs, found.out), (Some("f".into()), Some("o".into())));
        assert!(read("--pack f --only base").is_some());
        for bad in [
            "--hours",
            "--hours -1",
            "--hours many",
            "--hours inf",
            "--rounds 0",
            "--rounds 1001",
            "--pack f --programs g",
            "--pack f --list",
            "--only",
            "base",
        ] {
            assert!(read(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn words_choose_conditions() {
        let names = |flags: &str| {
            let options = read(flags).expect("flags of its own");
            chosen(&options).map(|(_, condition)| condition.name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names("--under busy|thread"), "one-thread eight-threads busy");
        assert_eq!(names("--under none"), "");
        assert_eq!(names("").split(' ').count(), CONDITIONS.len());
    }

    #[test]
    fn a_step_that_cannot_start_is_a_failure_and_both_files_are_written() {
        let out = std::env::temp_dir().join(format!("plimsoll-shake-out-{}", std::process::id()));
        let (name, path) = ("p/lib".to_string(), out.join("none"));
        let program = programs::Program { name, path, cwd: "".into(), harness: true };
        let suite = Suite { root: std::env::temp_dir(), programs: vec![program], binaries: Vec::new() };
        let interrupt = AtomicBool::new(false);
        let course = Course { suite: &suite, out: &out, seed: 1, interrupt: &interrupt };
        let one_thread = CONDITIONS.iter().position(|condition| condition.name == "one-thread");
        let conditions = [one_thread.expect("a row")];
        let mut report = Report::new(CONDITIONS.iter(), 1);
        course.run(Schedule::new(2, &conditions, 1, None), &mut report).expect("the folder is writable");
        assert!(report.has_failures() && report.rest.is_empty());
        let page = fs::read_to_string(out.join("shake.md")).expect("it was written");
        assert!(page.contains("`p/lib (did not start: "), "{page}");
        assert!(page.contains("failed 2 of 2 (`one-thread` 2 of 2); not tried alone"), "{page}");
        // An interrupt puts back what it has ended.
        interrupt.store(true, Ordering::Relaxed);
        let mut report = Report::new(CONDITIONS.iter(), 1);
        course.run(Schedule::new(3, &conditions, 1, None), &mut report).expect("the folder is writable");
        assert_eq!((report.runs.len(), report.rest.len()), (1, 2));
        fs::remove_dir_all(&out).expect("it is there");
    }
}
