//! `bench step`: a whole GRPO step. The reward is a hash of the response, so every group has variance.

use super::{Bench, BenchOptions, STEP_MICRO_BATCH, add, bench_run, finish, random_prompts, spread};
use plimsoll_base::{Error, Result};
use plimsoll_config::{Auto, OnFull};
use plimsoll_infer::bound::Sources;
use plimsoll_infer::runner::open;
use plimsoll_infer::sampler::sampling;
use plimsoll_infer::text::{Item, text_model};
use plimsoll_memory::Limits;
use plimsoll_plan::devices;
use plimsoll_reward::{RewardSpec, Rewards};
use plimsoll_rl::context::{Cursor, StepContext};
use plimsoll_rl::methods::parts::StepParts;
use plimsoll_rl::methods::policy::step;
use plimsoll_rl::methods::report::{StepReport, StepSeconds};
use plimsoll_rl::players::Answers;
use plimsoll_rl::roles::Trainer;
use plimsoll_rl::supply;
use plimsoll_rollout::DrawnEnds;
use plimsoll_run::progress::Progress;
use serde_json::{Value, json};
use std::time::Instant;

#[derive(Clone, Copy, Debug)]
pub struct StepSize {
    pub prompts: usize,
    /// Samples of a prompt.
    pub group: usize,
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Most tokens of a response.
    pub new: usize,
    /// Where responses end; at `new` tokens if absent.
    pub lengths: Option<DrawnEnds>,
    /// Prompts under way beyond those of a step.
    pub carry: usize,
    /// Blocks of the cache of keys, as `rollout.kv_blocks`; what all responses would need at `new` tokens if absent.
    pub kv_blocks: Option<u32>,
}

/// Measures `repeats` steps after the first one; with prompts that are carried over after as many more as it takes
/// until the oldest of them are trained.
///
/// Errors: those of planning and of the steps.
pub fn whole_step(options: &BenchOptions, size: StepSize) -> Result<Value> {
    let StepSize { prompts, group, prompt, new, lengths, carry, kv_blocks } = size;
    if carry > 0 && lengths.is_none() {
        return Err(Error::usage("bad-usage", "--carry without --lengths: all responses would end together")
            .hint("add --lengths lognormal:1000,0.9"));
    }
    let mut run = bench_run(options, prompts, group, new);
    run.trains.samples_mut().expect("it samples").asynchrony.partial_rollouts = carry as u32;
    if lengths.is_some() {
        // Few responses are long, so no room is kept for each to be.
        run.rollout.on_full = OnFull::Preempt;
        run.rollout.sequences_max = Auto::Value(((prompts + carry) * group) as u32);
    }
    run.rollout.kv_blocks = kv_blocks.map_or(Auto::Auto, Auto::Value);
    let unmeasured = 1 + 2 * carry.div_ceil(prompts);
    // No step is the last one, which would bring all responses to their end.
    run.train_mut().steps = u32::MAX;
    if !devices::row_of(&run, &Limits::default()).has_own_memory() {
        run.train_mut().micro_batch_tokens = Auto::Value(STEP_MICRO_BATCH.max(prompt + new) as u32);
    }
    let bench = Bench::open(options, &mut run, prompt)?;
    let (dev, mut arena) = open(&bench.report.shape, options.opening())?;
    let mut trainer = Trainer::new(&*dev, &mut arena, &bench.report.shape, Sources::one(&bench.model), 0)?;
    trainer.rehearse(&[sampling(&run.rollout, run.seed)])?;
    lengths.into_iter().for_each(|ends| trainer.sampler.draw_ends(ends));
    let text = text_model(&bench.model, &run.data)?;
    let random = random_prompts(&bench.spec(), prompts, prompt).into_iter();
    let items: Vec<Item> = random.map(|ids| Item { ids, ..Item::default() }).collect();
    let mut rewards = Rewards::new(&[RewardSpec::of_kind("hash")])?;
    let mut supply = supply::of(&run, &bench.report.shape, None);
    let mut parts = StepParts::bind(&run, &bench.report.shape.step_arrays(), None);
    let objective = run.objective().expect("a bench run samples");
    let mut cx = StepContext {
        run: &run,
        text: &text,
        eos: &[],
        objective,
        rewards: &mut rewards,
        player: &mut Answers,
        parts: &mut parts,
        estimator: None,
        prompts: &mut |first, n| {
            Ok(items.iter().cycle().skip(first as usize % prompts).take(n).cloned().collect())
        },
        cursor: Cursor::default(),
        edge: &mut |_| {},
        waits: &mut |_| {},
    };
    let mut measured = Steps::default();
    for n in 0..unmeasured + options.repeats {
        let started = Instant::now();
        let report = step(&mut trainer, &mut *supply, &mut cx, n as u32 + 1)?;
        measured.take(&report, (n >= unmeasured).then(|| started.elapsed().as_secs_f64()), prompts * group);
    }
    let Steps { times, last, mismatch, .. } = &measured;
    let mut result = spread(times);
    bench.add_limits(&mut result, &*dev, &measured.mean_work());
    result["logprob_mismatch_max"] = json!(mismatch);
    bench.add_device_memory(&mut result, &*dev);
    let parts = json!({ "rollout": last.rollout, "reward": last.reward, "update": last.update });
    add(&mut result, json!({ "seconds_of_last": parts, "bench": "step", "unit": "s", "prompts": prompts }));
    add(&mut result, json!({ "samples": group, "prompt_tokens": prompt, "new_tokens": new }));
    if let Some(ends) = lengths {
        add(&mut result, measured.of_carry(ends, carry));
    }
    Ok(finish(result, &dev.machine_type(), dev.threads()))
}

/// Holds what the steps took, and the metrics of those that are measured.
#[derive(Default)]
struct Steps {
    times: Vec<f64>,
    last: StepSeconds,
    /// Summed over all measured steps.
    work: Progress,
    mismatch: f64,
    trained_tokens: f64,
    carried: [f64; CARRIED.len()],
}

/// Metrics of carried groups whose means are reported.
const CARRIED: [&str; 6] =
    ["stale_share", "idle_share", "tail_share", "recomputed_share", "dropped_tokens", "saved_seconds"];

impl Steps {
    /// Takes a step's report, and its seconds if it is measured.
    fn take(&mut self, report: &StepReport, seconds: Option<f64>, sequences: usize) {
        self.mismatch = self.mismatch.max(report.logprob_mismatch_max);
        self.last = report.seconds;
        let Some(seconds) = seconds else { return };
        self.work.step_s += seconds;
        self.work.rollout_s += report.seconds.rollout;
        self.work.update_s += report.seconds.update;
        self.work.flops += report.flops;
        self.work.rollout_flops += report.rollout_flops;
        self.work.rollout_passes += report.rollout_passes;
        self.work.updates += 1;
        self.times.push(seconds);
        let of = |name: &str| report.metrics.get(name).copied().unwrap_or(0.0);
        self.trained_tokens += of("completions/mean_length") * sequences as f64;
        for (sum, name) in self.carried.iter_mut().zip(CARRIED) {
            *sum += of(&format!("rollout/{name}"));
        }
    }

    /// Returns the work and the seconds of a step.
    fn mean_work(&self) -> Progress {
        let (steps, sum) = (self.times.len() as f64, &self.work);
        Progress {
            step_s: sum.step_s / steps,
            rollout_s: sum.rollout_s / steps,
            update_s: sum.update_s / steps,
            flops: sum.flops / steps,
            rollout_flops: sum.rollout_flops / steps,
            rollout_passes: sum.rollout_passes / self.times.len() as u64,
            rollout_tokens: (self.trained_tokens / steps) as u64,
            updates: sum.updates / self.times.len() as u64,
            ..Progress::default()
        }
    }

    fn of_carry(&self, DrawnEnds { median, sigma }: DrawnEnds, carry: usize) -> Value {
        let (steps, seconds) = (self.times.len() as f64, self.times.iter().sum::<f64>());
        let mut found = json!({
            "lengths": { "median": median, "sigma": sigma },
            "carry": carry,
            "trained_tokens_per_second": self.trained_tokens / seconds,
        });
        for (sum, name) in self.carried.iter().zip(CARRIED) {
            found[name] = json!(sum / steps);
        }
        found
    }
}
