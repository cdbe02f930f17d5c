//! `cargo xtask soak`: kills a training run at random instants, even inside saves, resumes it, and compares its result
//! with an undisturbed run: weights, metrics and samples, bit for bit. Then it breaks what a run depends on (disk,
//! files, directories, memory, the model) and reports what the user sees and what is lost.
//!
//! It knows the binary only from outside.

mod compare;
mod faults;
pub mod leaves;
mod process;
mod random;
pub mod ranks;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use faults::Row;
pub use process::Options;
use process::{LIFE_SECONDS_MAX, Life, Training, newest_step};
use random::Rng;

/// Kills in a row without a new checkpoint before a run is left alone until it has one: a loaded machine may take
/// longer to start than a kill waits.
const BARREN_LIVES_MAX: u32 = 5;

/// The result of a soak.
#[derive(Default)]
pub struct Report {
    /// SIGKILLs that hit a living run.
    pub kills: u32,
    /// Kills that left a checkpoint half-written.
    pub inside_saves: u32,
    /// Runs that were killed and resumed until they ended.
    pub runs: u32,
    /// The last output of a run whose trainer alone was killed.
    pub last_words: String,
    pub rows: Vec<Row>,
}

/// Runs the soak; `say` gets a line now and then. An error is the first difference, with its place.
pub fn soak(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Report, String> {
    fs::create_dir_all(&options.folder).map_err(|err| format!("{}: {err}", options.folder.display()))?;
    let run_file = options.folder.join("soak.toml");
    fs::write(&run_file, process::run_file("builtin:nano", options.steps)).map_err(|err| err.to_string())?;
    let whole = Training::new(options, &run_file, "whole");
    let started = Instant::now();
    let end = whole.start(&[])?.wait(LIFE_SECONDS_MAX)?;
    if end.code != Some(0) {
        return Err(format!("the run that is left alone failed: {}", end.stderr));
    }
    let alone = started.elapsed();
    say(&format!("left alone: {} steps in {:.1} s", options.steps, alone.as_secs_f64()));
    let mut rng = Rng(options.seed);
    let mut report = Report::default();
    while report.kills < options.kills {
        let killed = Training::new(options, &run_file, &format!("killed-{}", report.runs));
        kill_until_it_ends(&killed, options, alone, &mut rng, &mut report)?;
        compare::directories(&whole.dir, &killed.dir)?;
        report.runs += 1;
        let Report { kills, inside_saves, runs, .. } = &report;
        say(&format!(
            "{kills} kills, {inside_saves} of them inside a save; {runs} runs ended, all equal to the last bit"
        ));
        fs::remove_dir_all(&killed.dir).map_err(|err| err.to_string())?;
    }
    if options.kills >= 20 && report.inside_saves == 0 {
        return Err("no kill hit a save: the soak has shown too little".into());
    }
    if options.faults {
        report.rows = faults::all(options, &whole, &mut rng, say)?;
    }
    Ok(report)
}

/// Kills one run again and again until it ends, or until all kills are used.
fn kill_until_it_ends(
    training: &Training,
    options: &Options,
    alone: Duration,
    rng: &mut Rng,
    report: &mut Report,
) -> Result<(), String> {
    let (mut barren, mut newest) = (0, None);
    loop {
        let mut life = training.start(if training.dir.exists() { &["--resume"] } else { &[] })?;
        let spared = report.kills >= options.kills || barren >= BARREN_LIVES_MAX;
        if !spared {
            wait_for_the_instant(&mut life, training, alone, rng);
            if life.kill(rng.below(2) == 0) {
                report.kills += 1;
                report.inside_saves += u32::from(has_part(&training.dir));
            }
        } else if barren >= BARREN_LIVES_MAX && report.kills < options.kills {
            life.wait_until(LIFE_SECONDS_MAX, |_| newest_step(&training.dir) > newest);
            if life.kill(false) {
                report.kills += 1;
            }
        }
        let end = life.wait(LIFE_SECONDS_MAX)?;
        match end.code {
            Some(0) => return Ok(()),
            None => {}
            Some(4) => report.last_words = end.words(),
            Some(code) => {
                return Err(format!("{}: exit code {code}: {}", training.dir.display(), end.stderr));
            }
        }
        let now = newest_step(&training.dir);
        barren = if now > newest { 0 } else { barren + 1 };
        newest = now;
    }
}

/// Waits: half of the kills come at any time, half while a checkpoint is being written.
fn wait_for_the_instant(life: &mut Life, training: &Training, alone: Duration, rng: &mut Rng) {
    if rng.below(2) == 0 {
        let micros = rng.below(alone.as_micros() as u64);
        life.wait_until_elapsed(Duration::from_micros(micros));
        return;
    }
    let (saves, then) = (rng.below(3), Duration::from_micros(rng.below(4000)));
    let (mut seen, mut inside) = (0, false);
    life.wait_until(LIFE_SECONDS_MAX, |_| {
        let now = has_part(&training.dir);
        seen += u64::from(now && !inside);
        inside = now;
        now && seen > saves
    });
    life.wait_until_elapsed(life.elapsed() + then);
}

fn has_part(dir: &Path) -> bool {
    let mut entries = fs::read_dir(dir.join("checkpoints")).into_iter().flatten().flatten();
    entries.any(|entry| entry.file_name().to_string_lossy().starts_with(".step-"))
}

/// Returns the table as a Markdown page.
pub fn table(options: &Options, report: &Report) -> String {
    let Report { kills, inside_saves, runs, last_words, rows } = report;
    let Options { steps, seed, .. } = options;
    let mut text = format!(
        "# Faults\n\n`cargo xtask soak --kills {kills} --steps {steps} --seed {seed}`: each fault is done to a run of {steps} \
         steps that saves every other step, taken back, and the run is taken up with `--resume`. Weights, metrics and \
         samples are then those of a run that was left alone, bit for bit, or the command ends with the difference.\n\n\
         {kills} times SIGKILL, {inside_saves} of them inside a save, over {runs} runs: 0 lost, 0 differing bits.\n\n\
         | fault | what is lost | what the user sees |\n|---|---|---|\n"
    );
    let mut line = |fault: &str, lost: &str, seen: &str| text += &format!("| {fault} | {lost} | {seen} |\n");
    let seen = match last_words.as_str() {
        "" => "nothing: the supervisor was killed with it".to_string(),
        words => format!("{words}; nothing where the supervisor was killed with it"),
    };
    line(&format!("SIGKILL at {kills} random instants"), faults::NOTHING, &seen);
    for row in rows {
        line(&row.fault, &row.lost, &row.seen);
    }
    text
}
