//! The plan of a run of an environment policy: every region, from the same numbers that the run binds. There is no
//! search: `"auto"` leaves only the number of threads open.

use super::evaluate;
use super::experience::Experience;
use super::learner::{self, Learner};
use super::policy;
use super::settings::AgentSettings;
use plimsoll_base::{Bytes, Result};
use plimsoll_config::{ByteSize, RunSpec};
use plimsoll_devices::host;
use plimsoll_memory::{Layout, Limits, Place, Plan, Pool};
use plimsoll_model::saved_bytes;
use plimsoll_plan::environments_image_bytes;
use plimsoll_plan::{kernel_row, process_rows_of, training_rows};
use plimsoll_plan::{limits_of, pool_lines, pools_json, region_lines, threads_without_cores};
use serde_json::{Value, json};

/// Number of batches: one, which is filled and read in turns.
pub const BATCHES: usize = 1;
/// Bytes through which a policy is written and read.
pub const STAGING: Bytes = Bytes::mib(1);
/// Configuration, run file, counters and manifest of a checkpoint; episodes in progress are counted separately.
const SMALL_FILES_BYTES: u64 = 64 << 10;
/// A step's events: metrics and memory readings, measured.
const EVENT_BYTES: u64 = 4096;

#[derive(Clone, Debug)]
pub struct AgentPlan {
    pub plan: Plan,
    /// Threads of the learner, and of the collector.
    pub threads: [usize; 2],
    pub parameters: u64,
    /// Settings that `train` would refuse or that are rarely intended, for people.
    pub warnings: Vec<String>,
}

impl AgentPlan {
    /// Plans a run. Limits that are absent in `given` come from the run file, then from this machine.
    ///
    /// Errors: `size-overflow`.
    pub fn new(run: &RunSpec, settings: &AgentSettings, given: &Limits) -> Result<AgentPlan> {
        // The environment may name an instruction path wrongly.
        (host().probe)()?;
        let plan = Plan { layout: layout(run, settings)?, limits: limits_of(run, given) };
        plan.check_sum()?;
        let threads = [settings.threads, settings.lanes];
        let warnings = threads_without_cores(settings.threads, &plan.limits).into_iter().collect();
        Ok(AgentPlan { plan, threads, parameters: settings.network.spec.parameters(), warnings })
    }

    /// Refuses a run that does not fit, with exit code 3.
    pub fn refuse(&self) -> Result<()> {
        self.plan.refusal().map_err(|error| {
            error.hint("lower environment.frames_per_batch or environment.num_envs").hint("raise memory.host")
        })
    }

    /// Returns the object that `plan --json` prints, with the members that every plan has.
    pub fn to_json(&self) -> Value {
        json!({
            "fits": self.plan.fits(),
            "pools": pools_json(&self.plan),
            "arena_bytes": self.plan.arena_bytes(),
            "regions": self.plan.layout.regions,
            "resolved": { "threads": self.threads[0], "lanes": self.threads[1] },
            "hints": [],
            "warnings": self.warnings,
        })
    }

    /// Returns the table that `plan` prints.
    pub fn table(&self) -> String {
        let mut text = region_lines(&self.plan) + &pool_lines(&self.plan);
        text += &format!("arena: {} ({} bytes)\n", self.plan.arena_bytes(), self.plan.arena_bytes().0);
        let [threads, lanes] = self.threads;
        text += &format!("chosen: threads {threads}, collector threads {lanes}\n");
        text.extend(self.warnings.iter().map(|words| format!("warning: {words}\n")));
        text += if self.plan.fits() { "verdict: fits\n" } else { "verdict: does not fit\n" };
        text
    }
}

/// Returns all regions. Policies have arenas apart from the learner's, so theirs count as resident.
fn layout(run: &RunSpec, settings: &AgentSettings) -> Result<Layout> {
    let spec = &settings.network.spec;
    let (frames, rows) = (settings.frames(), settings.learner.mini_batch);
    let mut layout = learner::layout(spec, rows, settings.threads)?;
    let (lanes, pool, envs) = (settings.lanes, Pool::Host, settings.num_envs);
    layout.extend(policy::plan_rows("policy", spec, settings.group_envs(), lanes)?);
    let (environment_bytes, workers) = settings.environment_bytes("env", envs)?;
    let collector = plimsoll_collect::Limits {
        num_envs: envs as u64,
        batches: BATCHES as u64,
        threads: lanes as u64,
        environment_bytes,
        ..plimsoll_collect::Limits::default()
    };
    layout.extend(plimsoll_collect::layout(&collector, &settings.rows));
    layout.extend(workers);
    layout.extend(evaluate::layout(run, settings)?);
    let mut row =
        |name: &str, owner, place, bytes: u64| layout.outside(name, owner, pool, place, Bytes(bytes));
    let (n, dims) = (spec.inputs as usize, spec.head.action_dims());
    row(
        "rl.experience",
        "rl",
        Place::Heap,
        Experience::bytes(frames, n, dims, settings.normalises_observations()),
    );
    row("rl.mini_batch", "rl", Place::Heap, Learner::host_bytes(spec, rows, frames));
    row("rl.episodes", "rl", Place::Heap, episode_bytes(settings));
    row("files.staging", "files", Place::Heap, STAGING.0);
    process_rows_of(&mut layout, environments_image_bytes(), settings.threads);
    training_rows(&mut layout, 1, run.training().track.memory());
    kernel_row(&mut layout, settings.threads + settings.lanes + 1);
    disk_rows(&mut layout, run, settings);
    Ok(layout)
}

/// Returns the bytes of the actions of every episode in progress.
fn episode_bytes(settings: &AgentSettings) -> u64 {
    let actions = u64::from(settings.episode_frames_max) * settings.rows.action.bytes as u64;
    settings.num_envs as u64 * (actions + 8)
}

/// Returns an upper bound of the bytes of one checkpoint on disk.
pub fn checkpoint_bytes(settings: &AgentSettings) -> Bytes {
    let table = settings.network.spec.table(host().kind);
    let tensors = saved_bytes(&table, &[plimsoll_base::DType::F32]) * 3;
    // Actions are written as hexadecimal digits.
    Bytes(tensors + SMALL_FILES_BYTES + 2 * episode_bytes(settings) + 200 * settings.num_envs as u64)
}

fn disk_rows(layout: &mut Layout, run: &RunSpec, settings: &AgentSettings) {
    let one = checkpoint_bytes(settings).0;
    let keep =
        if run.training().checkpoint.every.is_some() { u64::from(run.training().checkpoint.keep) } else { 0 };
    let most = run.training().checkpoint.keep_bytes.map_or(u64::MAX, |ByteSize(limit)| limit.0.max(one));
    let files = one.saturating_mul(keep).min(most).saturating_add(one);
    layout.outside("checkpoint.files", "rl", Pool::Disk, Place::File, Bytes(files));
    let records = u64::from(run.train().steps).saturating_mul(EVENT_BYTES);
    layout.outside("rl.records", "rl", Pool::Disk, Place::File, Bytes(records));
}
