//! The binary as a process: started on a run file, watched, killed, and its last output.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A process without progress for this long is hanging.
pub const LIFE_SECONDS_MAX: u64 = 300;

pub struct Options {
    pub binary: PathBuf,
    /// An empty folder to work in.
    pub folder: PathBuf,
    pub kills: u32,
    pub steps: u32,
    /// Seed of the random instants.
    pub seed: u64,
    /// True if the other faults follow.
    pub faults: bool,
    /// Only faults that any user may cause, each once: the form of a test.
    pub short: bool,
    /// Most runs of a fault of hosts; 0 for as many as its row has.
    pub runs: usize,
    /// Number of ranks whose processes are hit instead; 0 for a run of one.
    pub ranks: usize,
    /// Number of hosts of the ranks; 1 by default.
    pub hosts: usize,
    /// With ranks: number of kills at random instants instead of the faults; 0 for the faults.
    pub rounds: u32,
    /// Minutes after which no further round on several hosts begins; 0 for no limit.
    pub minutes: u32,
    /// Only faults of ranks whose names contain this, or one of several parted by `|`.
    pub only: String,
    /// With ranks: `cpu` or `cuda`; the fastest that there is if empty.
    pub device: String,
    /// Only this rank is hit.
    pub hit: Option<usize>,
}

/// How often conditions are checked: a small checkpoint takes a few milliseconds.
const LOOK: Duration = Duration::from_micros(200);

/// Adds a reference model to a run.
pub const KL: &str = "[loss]\nkl_coef = 0.02\nkl_target = 0.1\n";

/// Returns a small run that saves every other step, on a model directory or a built-in model.
pub fn run_file(model: &str, steps: u32) -> String {
    format!(
        "method = \"grpo\"\nmodel = \"{model}\"\n[data]\nprompts = \"builtin:addition\"\neval = \"builtin:addition\"\n\
         [rollout]\nprompts_per_step = 4\ngroup_size = 4\nmax_new_tokens = 5\n[[reward]]\nkind = \"exact\"\n{KL}\
         [train]\nsteps = {steps}\nlearning_rate = 1e-4\nmicro_batch_tokens = 256\n\
         [eval]\nevery = 5\nprompts_max = 8\n[checkpoint]\nevery = 2\nkeep = 2\n"
    )
}

/// A run file, and the directory that it trains in.
pub struct Training {
    binary: PathBuf,
    run_file: PathBuf,
    pub dir: PathBuf,
    /// Prefix of the command line: nothing, or a program that starts another.
    pub before: Vec<String>,
}

pub struct End {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    pub stderr: String,
}

impl End {
    /// Returns its error line, the last line, or the signal.
    pub fn words(&self) -> String {
        let line = self.stderr.lines().find(|line| line.starts_with("error["));
        match (line, self.code) {
            (Some(line), Some(code)) => format!("exit {code}: {line}"),
            (Some(line), None) => line.to_string(),
            (None, Some(code)) => format!("exit {code}"),
            (None, None) => "SIGKILL, without words".into(),
        }
    }

    pub fn slug(&self) -> Option<&str> {
        let line = self.stderr.lines().find(|line| line.starts_with("error["))?;
        Some(line.strip_prefix("error[")?.split_once(']')?.0)
    }
}

impl Training {
    /// Makes a training in the soak's folder, in a directory of that name.
    pub fn new(options: &Options, run_file: &Path, name: &str) -> Training {
        Training {
            binary: options.binary.clone(),
            run_file: run_file.to_path_buf(),
            dir: options.folder.join(name),
            before: Vec::new(),
        }
    }

    /// Copies it for another directory.
    pub fn at(&self, dir: PathBuf) -> Training {
        Training { binary: self.binary.clone(), run_file: self.run_file.clone(), dir, before: Vec::new() }
    }

    /// Runs the binary with other arguments, to its end.
    pub fn plimsoll(&self, args: &[&str]) -> Result<End, String> {
        let output = Command::new(&self.binary).args(args).output().map_err(|err| err.to_string())?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok(End { code: output.status.code(), stderr })
    }

    /// Starts `train`, with further arguments.
    pub fn start(&self, further: &[&str]) -> Result<Life, String> {
        let [binary, run_file, dir] = [&self.binary, &self.run_file, &self.dir].map(|path| path.display());
        let train = [binary.to_string(), "train".into(), run_file.to_string()];
        let mut words = [&self.before[..], &train, &["--set".into(), format!("run.dir={dir}")]].concat();
        words.extend(further.iter().map(|word| word.to_string()));
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|err| format!("{}: {err}", words[0]))?;
        let mut pipe = child.stderr.take().expect("it is piped");
        // Drained continuously, or the run would block on its own output.
        let reader = thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let lock = self.dir.join("lock");
        let (below, started) = (Vec::new(), Instant::now());
        Ok(Life { child, reader: Some(reader), lock, status: None, below, started })
    }
}

pub struct Life {
    child: Child,
    reader: Option<JoinHandle<String>>,
    lock: PathBuf,
    status: Option<ExitStatus>,
    /// Processes of the run that were killed with it.
    below: Vec<u32>,
    started: Instant,
}

impl Life {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the process that trains, which writes itself into the lock.
    pub fn trainer(&self) -> u32 {
        let text = fs::read_to_string(&self.lock).unwrap_or_default();
        text.trim().parse().ok().filter(|pid| is_below(*pid, self.pid())).unwrap_or(self.pid())
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until `is_so`, its end, or `seconds` seconds.
    pub fn wait_until(&mut self, seconds: u64, mut is_so: impl FnMut(&Life) -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end && !self.is_over() {
            if is_so(self) {
                return true;
            }
            thread::sleep(LOOK);
        }
        false
    }

    /// Waits until it has this age, or its end.
    pub fn wait_until_elapsed(&mut self, age: Duration) {
        while self.elapsed() < age && !self.is_over() {
            thread::sleep(LOOK.min(age.saturating_sub(self.elapsed())));
        }
    }

    /// Sends SIGKILL, to the trainer alone or to the whole run. Returns false if it was over.
    pub fn kill(&mut self, trainer_alone: bool) -> bool {
        if self.is_over() {
            return false;
        }
        let trainer = self.trainer();
        if trainer_alone && trainer != self.pid() {
            send("KILL", trainer);
            return true;
        }
        // A trainer that has not taken the lock yet is one of the children.
        self.below = children(self.pid());
        self.below.push(trainer);
        let _ = self.child.kill();
        for &pid in self.below.iter().filter(|&&pid| pid != self.pid()) {
            send("KILL", pid);
        }
        true
    }

    /// Sends a signal to the process that the user started.
    pub fn signal(&self, name: &str) {
        send(name, self.pid());
    }

    /// Waits for its end. Errors: it does not come.
    pub fn wait(mut self, seconds: u64) -> Result<End, String> {
        let end = Instant::now() + Duration::from_secs(seconds);
        while !self.is_over() {
            if Instant::now() > end {
                self.kill(false);
                return Err(format!("{}: no end after {seconds} s", self.lock.display()));
            }
            thread::sleep(LOOK);
        }
        // The run's next process finds its directory free only once the last one's are gone.
        while self.below.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()) && Instant::now() < end
        {
            thread::sleep(LOOK);
        }
        let stderr = self.reader.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        Ok(End { code: self.status.and_then(|status| status.code()), stderr })
    }

    fn is_over(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status.is_some()
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if !self.is_over() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sends a signal by name; ignores a process that is gone.
pub fn send(name: &str, pid: u32) {
    let _ = Command::new("kill").args([format!("-{name}"), pid.to_string()]).stderr(Stdio::null()).status();
}

/// Returns true if `pid` is `above` or its child: an old lock may name a reused pid.
fn is_below(pid: u32, above: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
    pid == above || parent == Some(above)
}

/// Returns the children of a process, as far as the kernel lists them.
pub fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

pub fn newest_step(dir: &Path) -> Option<String> {
    let entries = fs::read_dir(dir.join("checkpoints")).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("step-") && !name.ends_with(".damaged")).max()
}
