//! Plays the runs of the table, each in its own folder; keeps what a base leaves for its other rows.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::effect::{Left, effect};
use super::table::{Base, Row, Seen, Table, set_name};
use crate::same_bits::artefacts::Artefacts;

/// Time limit of one command.
const COMMAND_SECONDS_MAX: u64 = 120;

/// The outcome of a base with some settings; filled by the first row that needs it.
type Kept = Arc<OnceLock<Result<Left, String>>>;

pub struct Player<'t> {
    table: &'t Table,
    binary: &'t Path,
    root: &'t Path,
    folder: &'t Path,
    /// The interpreter with gymnasium, if there is one.
    python: Option<String>,
    runs: AtomicUsize,
    bases: Mutex<HashMap<String, Kept>>,
}

/// The result of a row.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The first difference.
    Effect(String),
    /// The key changed nothing where it should; what it did instead.
    Nothing(String),
    /// A requirement is missing.
    Skipped(&'static str),
}

impl<'t> Player<'t> {
    /// Writes the table's files and makes the runs that others read.
    pub fn new(
        table: &'t Table,
        binary: &'t Path,
        root: &'t Path,
        folder: &'t Path,
    ) -> Result<Player<'t>, String> {
        let python = std::env::var("PLIMSOLL_TEST_PYTHON").ok();
        let (runs, bases) = (AtomicUsize::new(0), Mutex::new(HashMap::new()));
        let player = Player { table, binary, root, folder, python, runs, bases };
        for (name, text) in &table.files {
            let path = folder.join("files").join(name);
            let written = fs::create_dir_all(path.parent().expect("it is in a folder"))
                .and_then(|()| fs::write(&path, text));
            written.map_err(|err| format!("{}: {err}", path.display()))?;
        }
        for (name, base) in &table.before {
            let dir = folder.join("before").join(name);
            let place = player.place()?;
            let sets =
                base.set.iter().cloned().chain([format!("run.dir={}", dir.display())]).collect::<Vec<_>>();
            let (code, words) = player.execute("train", base, &sets, &place, &[])?;
            let _ = fs::remove_dir_all(&place);
            if code != 0 {
                return Err(format!("{name}: exit {code}: {words}"));
            }
        }
        Ok(player)
    }

    /// Runs a row's base, unless another row has, then the base with the row's value, and compares.
    ///
    /// Errors, as text: a base that fails, or a program that cannot be started.
    pub fn try_row(&self, row: &Row) -> Result<Outcome, String> {
        let base = &self.table.bases[&row.base];
        if base.gymnasium && self.python.is_none() {
            return Ok(Outcome::Skipped("it needs PLIMSOLL_TEST_PYTHON"));
        }
        let is_plan = row.seen == Seen::Plan;
        let before = self.base(row, base, is_plan)?;
        let set = format!("{}={}", set_name(&row.key), row.value);
        let after = self.make(base, &[row.with.clone(), vec![set.clone()]].concat(), is_plan)?;
        let found = effect(&row.seen, &row.key, &row.value, &before, &after);
        Ok(found.map_or_else(|| Outcome::Nothing(self.instead(row, &before, &after)), Outcome::Effect))
    }

    /// Returns what a base leaves with a row's settings, without what differs from run to run.
    fn base(&self, row: &Row, base: &Base, is_plan: bool) -> Result<Left, String> {
        let name = format!("{} {is_plan} {}", row.base, row.with.join(" "));
        let kept = self.bases.lock().expect("no thread panics with it").entry(name).or_default().clone();
        let make = || {
            let first = self.make(base, &row.with, is_plan)?;
            if let Some(slug) = &first.slug {
                return Err(format!("the base ends with error[{slug}]: {}", first.words));
            }
            Ok(first.without_noise(&self.make(base, &row.with, is_plan)?))
        };
        kept.get_or_init(make).clone()
    }

    /// Describes what a value without the expected effect did instead.
    fn instead(&self, row: &Row, before: &Left, after: &Left) -> String {
        if let Some(slug) = &after.slug {
            return format!("error[{slug}]: {}", after.words);
        }
        let others = [Seen::Plan, Seen::Bits, Seen::Output];
        let found = others.iter().find_map(|seen| effect(seen, &row.key, &row.value, before, after));
        found.map_or("nothing differs".into(), |what| format!("only {what}"))
    }

    fn make(&self, base: &Base, sets: &[String], is_plan: bool) -> Result<Left, String> {
        let place = self.place()?;
        let out = place.join("out");
        let dir = format!("run.dir={}", out.join("run").display());
        let sets: Vec<String> = base.set.iter().cloned().chain([dir]).chain(sets.iter().cloned()).collect();
        let (verb, flags): (_, &[&str]) =
            if is_plan { ("plan", &["--json"]) } else { ("train", &["--json", "-q"]) };
        let (code, words) = self.execute(verb, base, &sets, &place, flags)?;
        let text = fs::read_to_string(place.join("stdout")).unwrap_or_default();
        let mut artefacts = Artefacts::default();
        // A plan that does not fit is still a plan.
        if is_plan && text.starts_with('{') {
            artefacts.add_plan("plan", &text)?;
        } else if !is_plan && out.is_dir() {
            artefacts.add_folder(&out)?;
        }
        let mut left = Left::of(&artefacts, &place.display().to_string());
        let slug = words
            .split_once("error[")
            .and_then(|(_, rest)| rest.split_once(']'))
            .map(|(slug, _)| slug.to_string());
        left.slug = match code {
            0 => None,
            code => slug.or(Some(format!("exit {code}"))),
        };
        left.words = words;
        let _ = fs::remove_dir_all(&place);
        Ok(left)
    }

    /// Makes a folder for one run.
    fn place(&self) -> Result<PathBuf, String> {
        let place = self.folder.join(format!("run-{:04}", self.runs.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir_all(place.join("home")).map_err(|err| format!("{}: {err}", place.display()))?;
        Ok(place)
    }

    /// Runs a command to its end. Returns its exit code and stderr.
    fn execute(
        &self,
        verb: &str,
        base: &Base,
        sets: &[String],
        place: &Path,
        flags: &[&str],
    ) -> Result<(i32, String), String> {
        let file = |name: &str| fs::File::create(place.join(name)).map_err(|err| format!("{name}: {err}"));
        let expand = |text: &String| {
            text.replace("FILES", &self.folder.join("files").display().to_string())
                .replace("BEFORE", &self.folder.join("before").display().to_string())
                .replace("DIR", &place.display().to_string())
                .replace("PYTHON", self.python.as_deref().unwrap_or("python3"))
        };
        let mut command = Command::new(self.binary);
        // `plan 2` ranks: the table writes flags that are not settings as flags.
        let (more, sets): (Vec<&String>, Vec<&String>) = sets.iter().partition(|set| set.starts_with("--"));
        command
            .arg(verb)
            .arg(expand(&base.run))
            .args(flags)
            .args(more.iter().flat_map(|text| text.split(' ')));
        sets.iter().for_each(|set| {
            command.arg("--set").arg(expand(set));
        });
        let mut child = command
            .current_dir(self.root)
            // Keeps this user's settings away from a run: no calibration, no cache, no token.
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", place.join("home"))
            .env("PYTHONPATH", self.folder.join("files"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("HF_HOME", self.folder.join("files/hub"))
            .env("HF_HUB_OFFLINE", "1")
            .env("SEEN", place.join("out/run/seen.jsonl"))
            .stdin(Stdio::null())
            .stdout(file("stdout")?)
            .stderr(file("stderr")?)
            .spawn()
            .map_err(|err| format!("{}: {err}", self.binary.display()))?;
        let code = wait(&mut child)?;
        Ok((code, String::from_utf8_lossy(&fs::read(place.join("stderr")).unwrap_or_default()).into_owned()))
    }
}

fn wait(child: &mut Child) -> Result<i32, String> {
    let end = Instant::now() + Duration::from_secs(COMMAND_SECONDS_MAX);
    loop {
        if let Some(status) = child.try_wait().map_err(|err| err.to_string())? {
            return status.code().ok_or_else(|| format!("it was killed: {status}"));
        }
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("no end after {COMMAND_SECONDS_MAX} s"));
        }
        thread::sleep(Duration::from_millis(5));
    }
}
