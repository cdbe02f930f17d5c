//! Breaks what a run depends on, one thing at a time: disk, files, directories, memory, model. Each fault is undone,
//! the run is resumed, and its result is compared with that of an undisturbed run.
//!
//! Faults that need more rights than the user has are skipped with a message.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::compare;
use super::process::{self, End, Life, Options, Training, newest_step, run_file, send};
use super::random::Rng;

const SECONDS_MAX: u64 = process::LIFE_SECONDS_MAX;
pub const NOTHING: &str = "nothing";

/// One line of the table.
pub struct Row {
    pub fault: String,
    pub seen: String,
    /// The loss; `nothing` is the promise.
    pub lost: String,
}

/// A fault by name; `None` if it lacks rights, which is reported.
type Fault<'b> = (&'static str, fn(&mut Bench<'b>) -> Result<Option<String>, String>);

struct Bench<'b> {
    options: &'b Options,
    whole: &'b Training,
    rng: &'b mut Rng,
    count: u32,
}

/// Runs every fault. An error is a difference, a wrong exit code, or a missing name.
pub fn all(
    options: &Options,
    whole: &Training,
    rng: &mut Rng,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Row>, String> {
    let mut bench = Bench { options, whole, rng, count: 0 };
    let mut rows = Vec::new();
    // Those of the short form come first.
    let faults: [Fault<'_>; 10] = [
        ("SIGTERM", |bench| bench.asked_to_stop("TERM", 143)),
        ("bytes flipped in the newest checkpoint", Bench::flipped_bytes),
        ("a file of it replaced by a link", Bench::link),
        ("the model's files pulled away", |bench| bench.model_gone(false)),
        ("those of a reference model pulled away", |bench| bench.model_gone(true)),
        ("SIGINT", |bench| bench.asked_to_stop("INT", 130)),
        ("the disk filled up", Bench::full_disk),
        ("checkpoints/ made read-only", Bench::read_only),
        ("/dev/shm shrunk to 64 KiB", Bench::small_shm),
        ("the container's limit lowered", Bench::lowered_limit),
    ];
    let faults = if options.short { &faults[..5] } else { &faults[..] };
    for &(name, fault) in faults {
        let found = fault(&mut bench).map_err(|err| format!("{name}: {err}"))?;
        let row = match found {
            Some(seen) => Row { fault: name.into(), seen, lost: NOTHING.into() },
            None => {
                Row { fault: name.into(), seen: "skipped: needs root".into(), lost: "not shown here".into() }
            }
        };
        say(&format!("{}: {}; lost: {}", row.fault, row.seen, row.lost));
        rows.push(row);
    }
    Ok(rows)
}

impl Bench<'_> {
    fn fresh(&mut self) -> Training {
        self.count += 1;
        self.whole.at(self.options.folder.join(format!("fault-{}", self.count)))
    }

    /// Starts a run and waits until it has saved, so that there is something to lose.
    fn under_way(&mut self) -> Result<(Training, Life), String> {
        let training = self.fresh();
        let life = self.started(&training)?;
        Ok((training, life))
    }

    fn started(&self, training: &Training) -> Result<Life, String> {
        let mut life = training.start(&[])?;
        if life.wait_until(SECONDS_MAX, |_| newest_step(&training.dir).is_some()) {
            Ok(life)
        } else {
            Err(format!("it ended before it saved: {}", life.wait(SECONDS_MAX)?.words()))
        }
    }

    /// Resumes the run and compares it with the undisturbed one.
    fn resumes_to_the_same(&self, training: &Training, how: &str) -> Result<(), String> {
        let end = training.start(&[how])?.wait(SECONDS_MAX)?;
        if end.code != Some(0) {
            return Err(format!("{how} gives {}", end.words()));
        }
        compare::directories(&self.whole.dir, &training.dir)
    }

    fn asked_to_stop(&mut self, signal: &str, code: i32) -> Result<Option<String>, String> {
        let (training, life) = self.under_way()?;
        life.signal(signal);
        let end = life.wait(SECONDS_MAX)?;
        require(&end, Some(code), &["interrupted"])?;
        self.resumes_to_the_same(&training, "--resume")?;
        Ok(Some(shortened(&end.words())))
    }

    fn flipped_bytes(&mut self) -> Result<Option<String>, String> {
        let mut seen = String::new();
        for _ in 0..if self.options.short { 1 } else { 8 } {
            let (training, checkpoint) = self.killed_with_two()?;
            let files = files_below(&checkpoint);
            let file = &files[self.rng.below(files.len() as u64) as usize];
            let mut bytes = fs::read(file).map_err(|err| err.to_string())?;
            let at = self.rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.rng.below(8);
            fs::write(file, bytes).map_err(|err| err.to_string())?;
            let end = training.start(&["--resume"])?.wait(SECONDS_MAX)?;
            require(&end, Some(1), &["checkpoint-damaged", "checkpoint-newer"])?;
            self.resumes_to_the_same(&training, "--resume=previous-good")?;
            seen = shortened(&end.words());
        }
        Ok(Some(seen))
    }

    fn link(&mut self) -> Result<Option<String>, String> {
        let (training, checkpoint) = self.killed_with_two()?;
        let (file, aside) = (checkpoint.join("model.safetensors"), self.options.folder.join("aside"));
        fs::rename(&file, &aside).map_err(|err| err.to_string())?;
        std::os::unix::fs::symlink(&aside, &file).map_err(|err| err.to_string())?;
        let end = training.start(&["--resume"])?.wait(SECONDS_MAX)?;
        require(&end, Some(1), &["checkpoint-damaged"])?;
        fs::rename(&aside, &file).map_err(|err| err.to_string())?;
        self.resumes_to_the_same(&training, "--resume")?;
        Ok(Some(shortened(&end.words())))
    }

    /// Returns a killed run with two checkpoints, and the newer one.
    fn killed_with_two(&mut self) -> Result<(Training, PathBuf), String> {
        let (training, mut life) = self.under_way()?;
        let first = newest_step(&training.dir);
        life.wait_until(SECONDS_MAX, |_| newest_step(&training.dir) > first);
        life.kill(false);
        life.wait(SECONDS_MAX)?;
        let newest = newest_step(&training.dir).ok_or("no checkpoint")?;
        let checkpoint = training.dir.join("checkpoints").join(newest);
        Ok((training, checkpoint))
    }

    fn full_disk(&mut self) -> Result<Option<String>, String> {
        let place = self.options.folder.join("small-disk");
        fs::create_dir_all(&place).map_err(|err| err.to_string())?;
        let Some(_mount) = Mount::new(&["-t", "tmpfs", "-o", "size=192m", "tmpfs"], &place) else {
            return Ok(None);
        };
        let training = self.whole.at(place.join("run"));
        let life = self.started(&training)?;
        let ballast = place.join("ballast");
        let mut file =
            OpenOptions::new().create(true).append(true).open(&ballast).map_err(|err| err.to_string())?;
        while file.write_all(&[0; 1 << 16]).is_ok() {}
        drop(file); // An open file keeps its room after it is removed.
        let end = life.wait(SECONDS_MAX)?;
        require(&end, Some(1), &["disk-full"])?;
        fs::remove_file(&ballast).map_err(|err| err.to_string())?;
        self.resumes_to_the_same(&training, "--resume")?;
        Ok(Some(shortened(&end.words())))
    }

    fn read_only(&mut self) -> Result<Option<String>, String> {
        let (training, life) = self.under_way()?;
        let folder = training.dir.join("checkpoints");
        let Some(mount) = Mount::new(&["--bind", &folder.display().to_string()], &folder) else {
            life.signal("TERM");
            life.wait(SECONDS_MAX)?;
            return Ok(None);
        };
        run("mount", &["-o", "remount,bind,ro", &folder.display().to_string()])?;
        let end = life.wait(SECONDS_MAX)?;
        require(&end, Some(1), &["run-dir-unwritable", "write-failed"])?;
        drop(mount);
        self.resumes_to_the_same(&training, "--resume")?;
        Ok(Some(shortened(&end.words())))
    }

    /// Removes the model during the run, which does not notice; on resume only that of a reference is missed.
    fn model_gone(&mut self, reference: bool) -> Result<Option<String>, String> {
        self.count += 1;
        let at = |what: &str| self.options.folder.join(format!("{what}-{}", self.count));
        let (model, away, file) = (at("model"), at("model-away"), at("model.toml"));
        let (from, to) = (self.whole.dir.display().to_string(), model.display().to_string());
        let end = self.whole.plimsoll(&["checkpoint", "export", &from, "--to", &to])?;
        require(&end, Some(0), &[])?;
        let text = run_file(&to, self.options.steps);
        let text = if reference { text } else { text.replace(process::KL, "") };
        fs::write(&file, text).map_err(|err| err.to_string())?;
        let whole = Training::new(self.options, &file, &format!("whole-of-model-{}", self.count));
        require(&whole.start(&[])?.wait(SECONDS_MAX)?, Some(0), &[])?;
        let training = whole.at(at("model-gone"));
        let mut life = self.started(&training)?;
        fs::rename(&model, &away).map_err(|err| err.to_string())?;
        let before = newest_step(&training.dir);
        life.wait_until(SECONDS_MAX, |_| newest_step(&training.dir) > before);
        life.kill(false);
        life.wait(SECONDS_MAX)?;
        let mut end = training.start(&["--resume"])?.wait(SECONDS_MAX)?;
        let mut seen = "it trains on; --resume goes on with the checkpoint's model, and says so".to_string();
        if reference {
            require(&end, Some(1), &["model-file-missing", "model-source-invalid"])?;
            seen = format!("it trains on; --resume: {}", shortened(&end.words()));
            fs::rename(&away, &model).map_err(|err| err.to_string())?;
            end = training.start(&["--resume"])?.wait(SECONDS_MAX)?;
        }
        require(&end, Some(0), &[])?;
        if !reference && !end.stderr.contains("configuration and tokenizer are the checkpoint's") {
            return Err(format!("it does not say whose model it took: {}", end.stderr));
        }
        compare::directories(&whole.dir, &training.dir)?;
        Ok(Some(seen))
    }

    fn small_shm(&mut self) -> Result<Option<String>, String> {
        let mut training = self.fresh();
        if run("unshare", &["-m", "true"]).is_err() {
            return Ok(None);
        }
        let shrink = "mount -t tmpfs -o size=64k tmpfs /dev/shm && exec \"$@\"";
        training.before = ["unshare", "-m", "sh", "-c", shrink, "sh"].map(str::to_string).to_vec();
        let end = training.start(&[])?.wait(SECONDS_MAX)?;
        require(&end, Some(0), &[])?;
        compare::directories(&self.whole.dir, &training.dir)?;
        Ok(Some("nothing: shared memory is not used by this run".into()))
    }

    /// Lowers the limit to what the run holds once its plan is made and its arena is not yet bound. If the arena was
    /// faster nothing grows any more, and the run ends normally.
    fn lowered_limit(&mut self) -> Result<Option<String>, String> {
        let Some(group) = Cgroup::new() else { return Ok(None) };
        let (training, _) = self.killed_with_two()?;
        let plan = training.dir.join("plan.json");
        let inode = || fs::metadata(&plan).map_or(0, |meta| meta.ino());
        let before = inode();
        let mut resumed = self.whole.at(training.dir.clone());
        let join = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.dir.display());
        resumed.before = ["sh", "-c", &join, "sh"].map(str::to_string).to_vec();
        let mut life = resumed.start(&["--resume"])?;
        // The plan is rewritten when it is made.
        life.wait_until(SECONDS_MAX, |_| inode() != before);
        let trainer = life.trainer();
        send("STOP", trainer);
        group.lower_to_usage()?;
        send("CONT", trainer);
        let end = life.wait(SECONDS_MAX)?;
        group.lift();
        if end.code == Some(0) {
            compare::directories(&self.whole.dir, &training.dir)?;
            return Ok(Some("nothing: it holds all that it will need".into()));
        }
        self.resumes_to_the_same(&training, "--resume")?;
        Ok(Some(shortened(&end.words())))
    }
}

/// Checks the exit code and, if there are any, that the slug is one of these.
fn require(end: &End, code: Option<i32>, slugs: &[&str]) -> Result<(), String> {
    let named = slugs.is_empty() || end.slug().is_some_and(|slug| slugs.contains(&slug));
    if end.code == code && named {
        return Ok(());
    }
    Err(format!("expected exit code {code:?} and {slugs:?}, got {}:\n{}", end.words(), end.stderr))
}

/// Shortens paths in the soak's folder, which mean nothing to readers of a table, to their last part.
fn shortened(words: &str) -> String {
    let parts = words
        .split(' ')
        .map(|word| if word.starts_with('/') { word.rsplit('/').next().unwrap_or(word) } else { word });
    let text = parts.collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(110) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            files.extend(files_below(&entry.path()))
        } else {
            files.push(entry.path())
        }
    }
    files.sort();
    files
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(args).output().map_err(|err| format!("{program}: {err}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// A mount, unmounted on drop.
pub struct Mount {
    at: PathBuf,
}

impl Mount {
    pub fn new(how: &[&str], at: &Path) -> Option<Mount> {
        let place = at.display().to_string();
        run("mount", &[how, &[place.as_str()]].concat()).ok()?;
        Some(Mount { at: at.to_path_buf() })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = run("umount", &["-l", &self.at.display().to_string()]);
    }
}

/// A version 1 memory cgroup, removed on drop.
struct Cgroup {
    dir: PathBuf,
}

impl Cgroup {
    fn new() -> Option<Cgroup> {
        let dir = Path::new("/sys/fs/cgroup/memory").join(format!("plimsoll-soak-{}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        dir.join("memory.limit_in_bytes").exists().then_some(Cgroup { dir })
    }

    /// Lowers the limit to the memory that is held and cannot be reclaimed.
    fn lower_to_usage(&self) -> Result<(), String> {
        let stat = fs::read_to_string(self.dir.join("memory.stat")).map_err(|err| err.to_string())?;
        let rss = stat.lines().find_map(|line| line.strip_prefix("total_rss ")?.parse::<u64>().ok());
        // Plus 2 MiB: pages of the binary come and go.
        let limit = rss.ok_or("memory.stat has no total_rss")? + (2 << 20);
        fs::write(self.dir.join("memory.limit_in_bytes"), limit.to_string()).map_err(|err| err.to_string())
    }

    fn lift(&self) {
        let _ = fs::write(self.dir.join("memory.limit_in_bytes"), "-1");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir);
    }
}
