//! The loop of `plimsoll collect`: collects batches until there are enough frames or a signal comes.

use super::{EnvPlan, frames::write_frames, policies, steppers};
use plimsoll_base::{Error, Result};
use plimsoll_collect::{
    Batch, Collector, Fault, Replay, Stats, Trajectories, children_cpu_seconds, process_cpu_seconds,
    write_batches,
};
use plimsoll_config::{EnvFile, FramesFormat, LoadedEnv};
use plimsoll_env::flags;
use plimsoll_memory::host::Host;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CollectProgress {
    /// Frames in batches so far.
    pub frames: u64,
    /// Frames to collect in all; none collects until a signal.
    pub total_frames: Option<u64>,
    pub seconds: f64,
    pub stats: Stats,
    pub threads: usize,
    /// Mean return of the latest finished episodes; none before the first.
    pub episode_return: Option<f64>,
}

#[derive(Clone, Debug)]
pub struct CollectEnd {
    /// The object of `collect --json`.
    pub summary: Value,
    /// The signal that ended it early; none if it ran to its end.
    pub signal: Option<i32>,
}

#[derive(Clone, Debug, Default)]
pub struct News {
    pub faults: Vec<Fault>,
    /// Settings that are allowed but rarely intended.
    pub warnings: Vec<Error>,
}

/// Collects, and calls `observe` after each batch with the news since the last one. Ends early, keeping what it has,
/// once `signal` is not 0.
///
/// Errors: those of environments and of writing files; `run-dir-not-empty`.
pub fn collect(
    loaded: &LoadedEnv,
    plan: &EnvPlan,
    observe: &mut dyn FnMut(&CollectProgress, &News),
    signal: &Arc<AtomicI32>,
) -> Result<CollectEnd> {
    let file = &loaded.env;
    let mut kept = Output::new(file, plan)?;
    let (since, cpu) = (Instant::now(), process_cpu_seconds());
    let settings = &plan.opened.settings;
    let mut policies = policies(file, &plan.opened)?.into_iter();
    let mut make = || policies.next().expect("one for each thread");
    let steppers = steppers(file, &plan.opened)?;
    let mut collector = Collector::start(settings, plan.opened.row.clone(), steppers, &mut make)?;
    collector.stop_when(signal.clone());
    let mut progress = CollectProgress {
        total_frames: file.total_frames,
        threads: plan.opened.threads,
        ..Default::default()
    };
    let mut batches = 0u64;
    loop {
        if progress.total_frames.is_some_and(|total| progress.frames >= total) {
            break;
        }
        let batch = match collector.next() {
            Ok(Some(batch)) => batch,
            Ok(None) => break,
            Err(error) => {
                // An error does not lose what was collected before it.
                kept.finish()?;
                let frames = format!("{} frames were collected before", progress.frames);
                return Err(kept.files.last().map_or(error.clone(), |last| {
                    error.fact(format!("{frames}; the last file is {}", last.display()))
                }));
            }
        };
        batches += 1;
        progress.frames += batch.num_frames;
        (progress.seconds, progress.stats) = (since.elapsed().as_secs_f64(), collector.stats());
        kept.take(batch)?;
        progress.episode_return = kept.mean_return.or(progress.episode_return);
        let news = News { faults: collector.take_faults(), warnings: collector.take_warnings() };
        kept.warnings.extend_from_slice(&news.warnings);
        observe(&progress, &news);
    }
    kept.finish()?;
    // Workers end with the collector; only ended workers are counted.
    drop(collector);
    let cpu = process_cpu_seconds() - cpu;
    let signal = Some(signal.load(Ordering::SeqCst)).filter(|&signal| signal != 0);
    Ok(CollectEnd { summary: summary(&progress, batches, cpu, plan, &kept), signal })
}

fn summary(progress: &CollectProgress, batches: u64, cpu: f64, plan: &EnvPlan, kept: &Output) -> Value {
    let CollectProgress { frames, seconds, stats, threads, .. } = *progress;
    let per_frame = |seconds: f64| seconds / (frames.max(1) as f64) * 1e6;
    let counters = stats.counters;
    json!({
        "frames": frames,
        "frames_per_second": frames as f64 / seconds.max(1e-9),
        "cpu_us_per_frame": per_frame(cpu),
        "env_us_per_frame": per_frame(stats.env_seconds),
        "policy_us_per_frame": per_frame(stats.policy_seconds),
        "stalled_share": stalled_share(progress),
        "seconds": seconds,
        "batches": batches,
        "threads": threads,
        "workers": plan.opened.python.as_ref().map(|setup| setup.measured.workers),
        "worker_memory_held_by": plan.memory_held_by(),
        "worker_cpu_seconds": plan.opened.python.as_ref().map(|_| children_cpu_seconds()),
        "frames_lagged": stats.lagged,
        "short_rows": stats.short_rows,
        "episode_return": progress.episode_return,
        "trajectories": kept.num_episodes,
        "files": kept.files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>(),
        "rss_planned_bytes": plan.process_peak(),
        "rss_peak_bytes": Host::this().rss().peak,
        "counters": {
            "restarts": counters.restarts,
            "exceptions": counters.exceptions,
            "timeouts": counters.timeouts,
            "over_budget": counters.over_budget,
            "frames_aborted": counters.frames_aborted,
            "episodes": counters.episodes,
            "warnings": kept.warnings.len(),
        },
        "warnings": kept.warnings.iter().map(warning_json).collect::<Vec<_>>(),
    })
}

fn warning_json(warning: &Error) -> Value {
    json!({ "slug": warning.slug, "message": warning.message })
}

/// Returns the share of the threads' time in which they waited for a batch to fill.
pub fn stalled_share(progress: &CollectProgress) -> f64 {
    (progress.stats.stalled_seconds / (progress.seconds * progress.threads as f64).max(1e-9)).min(1.0)
}

struct Output {
    replay: Option<Replay>,
    trajectories: Option<Trajectories>,
    num_episodes: u64,
    mean_return: Option<f64>,
    dir: Option<PathBuf>,
    batches_per_file: usize,
    waiting: Vec<Batch>,
    files: Vec<PathBuf>,
    metadata: Vec<(String, String)>,
    format: FramesFormat,
    /// At most one per worker.
    warnings: Vec<Error>,
}

impl Output {
    fn new(file: &EnvFile, plan: &EnvPlan) -> Result<Output> {
        let (row, envs) = (&plan.opened.row, file.num_envs as usize);
        let replay = file.replay.map(|replay| Replay::new(envs, replay.capacity as usize / envs, row));
        let longest = file.episodes_per_batch.zip(file.episode_frames_max);
        let layout = Arc::new(row.clone());
        let trajectories = longest.map(|(n, t)| Trajectories::new(&layout, envs, n as usize, t as usize));
        let dir = file.run.dir.as_deref().map(Path::new).map(empty_dir).transpose()?;
        let spec = &plan.opened.spec;
        let space = |space| serde_json::to_string(space).expect("a space has a JSON form");
        Ok(Output {
            replay: replay.transpose()?,
            trajectories: trajectories.transpose()?,
            num_episodes: 0,
            mean_return: None,
            dir,
            batches_per_file: file.run.batches_per_file as usize,
            waiting: Vec::with_capacity(file.run.batches_per_file as usize),
            files: Vec::new(),
            format: file.run.format,
            warnings: Vec::new(),
            metadata: vec![
                ("env".into(), spec.id.clone()),
                ("seed".into(), file.seed.to_string()),
                ("observation_space".into(), space(&spec.observation)),
                ("action_space".into(), space(&spec.action)),
            ],
        })
    }

    fn take(&mut self, batch: Batch) -> Result<()> {
        let (mut sum, mut count) = (0.0, 0u64);
        for row in batch.rows() {
            let marks = row.flags(&batch.layout);
            // An abandoned episode has no return.
            for last in row.finals(&batch.layout).filter(|last| marks[last.frame] & flags::DONE != 0) {
                (sum, count) = (sum + last.episode_return, count + 1);
            }
        }
        self.mean_return = (count > 0).then(|| sum / count as f64);
        if let Some(replay) = &mut self.replay {
            replay.push(&batch);
        }
        if let Some(trajectories) = &mut self.trajectories {
            trajectories.push(&batch);
            while let Some(episodes) = trajectories.take() {
                self.num_episodes += episodes.len() as u64;
            }
        }
        if self.dir.is_some() {
            self.waiting.push(batch);
            if self.waiting.len() == self.batches_per_file {
                self.write()?;
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if self.waiting.is_empty() { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let path = |end: &str| dir.join(format!("frames-{:06}.{end}", self.files.len()));
        let path = match self.format {
            FramesFormat::Safetensors => {
                let path = path("safetensors");
                write_batches(&path, &self.waiting, &self.metadata)?;
                path
            }
            FramesFormat::Parquet => {
                let path = path("parquet");
                write_frames(&path, &self.waiting, &self.metadata)?;
                path
            }
        };
        self.waiting.clear();
        self.files.push(path);
        Ok(())
    }
}

/// Makes the directory, or requires that it is empty.
fn empty_dir(dir: &Path) -> Result<PathBuf> {
    let unwritable = |err: &std::io::Error| {
        Error::io("run-dir-unwritable", dir, err).hint("set run.dir to a folder that can be written")
    };
    std::fs::create_dir_all(dir).map_err(|err| unwritable(&err))?;
    if std::fs::read_dir(dir).map_err(|err| unwritable(&err))?.next().is_some() {
        return Err(Error::usage("run-dir-not-empty", format!("{} is not empty", dir.display()))
            .hint("set run.dir to another folder; frames that were written are never overwritten"));
    }
    Ok(dir.to_path_buf())
}
