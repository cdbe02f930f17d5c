//! The search for `"auto"`: the settings that a run file leaves open, the fastest that fits, the runner-up, and the
//! smallest.
//!
//! A setting is a point on axes; the choices of an axis are ordered from the most memory to the least. All points are
//! predicted first, which costs nothing, then laid out in order of predicted time until one fits. A point that takes
//! at least as much on every axis as one that did not fit is never laid out. A new knob is one more row of `axes`.

use super::cost::{StepCost, predict};
use super::report::Resolved;
use crate::axes::{Axes, Axis, Knobs, Point};
use crate::facts::HostFacts;
use crate::lora::{CriticAdapter, trained};
use crate::planner::{Planner, Purpose, fold_of, partial_of};
use crate::role_name::{PerRole, RoleName};
use crate::shape::{RunShape, Scoring, Training};
use crate::teacher::TeacherShape;
use crate::work::{check_sizes, response_tokens, work};
use plimsoll_base::{Bytes, DType, Error, Result};
use plimsoll_config::{
    Auto, GradientWire, LearnsFrom, Offload as RunOffload, OnFull as RunOnFull, RunSpec, TrainingSpec,
};
use plimsoll_files::Head;
use plimsoll_memory::{Plan, Pool};
use plimsoll_model::{STAGING_BYTES_MIN, Target};
use plimsoll_rollout::OnFull;
use plimsoll_train::{Cut, Heads, PackLimits, Packing, StateDTypes, Summing};

/// Predictions within this factor are equal: the model is no more exact.
const EQUAL: f64 = 1.01;

/// A setting and everything that follows from it.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) shape: RunShape,
    pub(crate) resolved: Resolved,
    pub(crate) cost: StepCost,
    rank: Rank,
}

/// The order of a setting. Only this is kept of all settings; those that are tried are built again.
#[derive(Clone, Copy, Debug)]
struct Rank {
    seconds: f64,
    point: Point,
}

impl Rank {
    /// True if it computes the same result as the fastest one and is predicted to be as fast.
    fn is_as_fast(self, fastest: Rank) -> bool {
        Axis::Precision.of(self.point) == Axis::Precision.of(fastest.point)
            && self.seconds <= EQUAL * fastest.seconds
    }
}

/// The fastest setting that fits and the runner-up; if none fits, the smallest.
pub(crate) struct Solution {
    pub(crate) chosen: Candidate,
    pub(crate) runner_up: Option<(Candidate, Plan)>,
    pub(crate) plan: Plan,
    pub(crate) fits: bool,
}

impl Planner<'_> {
    /// Returns the fastest setting that fits and the runner-up; the smallest if none fits.
    ///
    /// Predictions within `EQUAL` of the fastest count as equally fast; of these, the one with the least memory wins.
    pub(crate) fn solve(&self, run: &RunSpec) -> Result<Solution> {
        check_sizes(run, self.facts)?;
        let axes = Axes::of(self, run);
        let ranks = self.facts.share.ranks;
        if self.is_chained(run) && run.memory.offloads(RunOffload::Optimizer) {
            let (why, instead) = match ranks {
                1 => {
                    let (key, instead) = match run.train().gradient_wire {
                        GradientWire::Bf16 => (
                            "train.gradient_wire = \"bf16\"".to_string(),
                            "set train.gradient_wire = \"f32\"",
                        ),
                        GradientWire::F32 => {
                            (format!("train.fold = {}", run.train().fold), "set train.fold = 1")
                        }
                    };
                    (format!("{key}: states lie where their sums are"), instead)
                }
                ranks => (format!("{ranks} ranks: each has its part of the states alone"), "plan one rank"),
            };
            return Err(Error::usage("ranks-method", format!("memory.offload = [\"optimizer\"] with {why}"))
                .hint(format!("set memory.offload = [] or [\"reference\"], or {instead}")));
        }
        // If the smallest does not fit, no other is tried.
        let (chosen, plan) = self.least(run, &axes)?;
        if !fits_memory(&plan) {
            return Ok(Solution { chosen, plan, runner_up: None, fits: false });
        }
        let mut too_large: Vec<Point> = Vec::new();
        let mut found: Vec<(Candidate, Plan)> = Vec::new();
        for rank in self.ranked(run, &axes)? {
            if let Some(fastest) = found.first().map(|(candidate, _)| candidate.rank) {
                if !rank.is_as_fast(fastest) && found.len() >= 2 {
                    break;
                }
                if Axis::Staging.of(rank.point) != Axis::Staging.of(fastest.point) {
                    continue;
                }
                // What fits in place stays there, even if the prediction shows no difference.
                let moves_more = Axis::Offload.of(rank.point) > Axis::Offload.of(fastest.point)
                    || axes.moves_inputs(rank.point) && !axes.moves_inputs(fastest.point);
                if rank.is_as_fast(fastest) && moves_more {
                    continue;
                }
            }
            if too_large.iter().any(|&failed| axes.takes_at_least(rank.point, failed)) {
                continue;
            }
            let candidate = self.candidate(run, &axes, rank.point)?;
            let plan = self.plan(&candidate.shape)?;
            if fits_memory(&plan) { found.push((candidate, plan)) } else { too_large.push(rank.point) }
        }
        let fits = plan.fits();
        Ok(choose(found).unwrap_or(Solution { chosen, plan, runner_up: None, fits }))
    }

    /// Returns the predicted time of the fastest setting, whatever the limits.
    pub(crate) fn fastest_s(&self, run: &RunSpec) -> Result<f64> {
        Ok(self.ranked(run, &Axes::of(self, run))?.first().map_or(0.0, |first| first.seconds))
    }

    /// Returns the least host and device memory under which the run fits unchanged.
    pub(crate) fn smallest(&self, run: &RunSpec) -> Result<(Bytes, Bytes)> {
        check_sizes(run, self.facts)?;
        let (_, plan) = self.least(run, &Axes::of(self, run))?;
        let host = plan.peak(Pool::Host).peak + plan.peak(Pool::Pinned).peak;
        Ok((host, plan.peak(Pool::Device).peak))
    }

    /// Returns the setting that exceeds the limits least, then takes the least memory: offloading uses bytes elsewhere.
    fn least(&self, run: &RunSpec, axes: &Axes) -> Result<(Candidate, Plan)> {
        let mut least: Option<((u64, u64), Candidate, Plan)> = None;
        let smallest = axes.smallest();
        let first = if self.is_chained(run) { 0 } else { Axis::Offload.of(smallest) };
        let last = Axis::Recompute.of(smallest);
        let levels = last - usize::from(axes.moves_inputs(smallest) && last > 0)..=last;
        let points = (first..axes.offload.len()).flat_map(|index| levels.clone().map(move |l| (index, l)));
        for (index, level) in points {
            let mut point = smallest;
            (point[Axis::Offload as usize], point[Axis::Recompute as usize]) = (index, level);
            let candidate = self.candidate(run, axes, point)?;
            let plan = self.plan(&candidate.shape)?;
            let excess = Pool::ALL.map(|pool| plan.excess(pool).0).iter().sum();
            let bytes = (excess, memory(&plan));
            if least.as_ref().is_none_or(|(least, ..)| bytes < *least) {
                least = Some((bytes, candidate, plan));
            }
        }
        let (_, candidate, plan) = least.expect("an axis has a choice");
        Ok((candidate, plan))
    }

    /// Returns every setting with its prediction, by precision, then ZeRO stage, then time, then the most memory first.
    fn ranked(&self, run: &RunSpec, axes: &Axes) -> Result<Vec<Rank>> {
        let of = |point| Ok(self.candidate(run, axes, point)?.rank);
        let mut all: Vec<Rank> = axes.points().map(of).collect::<Result<_>>()?;
        all.sort_by(|a, b| {
            let precision = Axis::Precision.of(a.point).cmp(&Axis::Precision.of(b.point));
            let stage = |rank: &Rank| axes.offload[Axis::Offload.of(rank.point)].weights;
            precision
                .then(stage(a).cmp(&stage(b)))
                .then(a.seconds.total_cmp(&b.seconds))
                .then(a.point.cmp(&b.point))
        });
        Ok(all)
    }

    fn plan(&self, shape: &RunShape) -> Result<Plan> {
        let plan = Plan { layout: shape.layout()?, limits: self.limits.clone() };
        plan.check_sum()?;
        Ok(plan)
    }

    fn candidate(&self, run: &RunSpec, axes: &Axes, point: Point) -> Result<Candidate> {
        let (shape, resolved) = self.shape(run, &axes.at(point));
        let work = work(run, self.facts);
        let cost = predict(&work, &shape, self.of_rank);
        // Ranks choose as one rank would: each then computes the same bits.
        let alone = if work.ranks > 1.0 { predict(&work.of_one_rank(), &shape, self.rates) } else { cost };
        let rank = Rank { seconds: alone.total_s(), point };
        Ok(Candidate { shape, resolved, cost, rank })
    }

    fn summing(&self, run: &RunSpec) -> Summing {
        let fold = fold_of(run);
        Summing { partial: partial_of(run), fold, near: self.facts.trainers.folds(fold) }
    }

    fn target(&self) -> Target {
        Target { kind: self.row.kind, pool: self.row.pool, threads: self.threads }
    }

    /// Returns the limits of a packed pass.
    fn pack(&self, run: &RunSpec, knobs: &Knobs) -> PackLimits {
        let sequences = run.sequences_per_step() as usize * run.branches_max();
        // Each agent request has its own prompt.
        let prompts = if run.plays_agents() { sequences } else { run.rollout.prompts_per_step as usize };
        // A command has no steps: it scores as many at once as it samples at once.
        let packed = match self.purpose {
            Purpose::Train => (prompts, sequences),
            Purpose::Sample => (self.samples(run), self.samples(run)),
        };
        let segments = PackLimits::segments_of(knobs.micro_batch_tokens, packed.0, packed.1);
        PackLimits {
            micro_batch_tokens: knobs.micro_batch_tokens,
            prompt_tokens: self.facts.prompt_tokens,
            // A pair of any shape fits: its three segments, and the slots lost at the ends of its blocks.
            segments: if run.learns_from() == Some(LearnsFrom::Pairs) { segments.max(5) } else { segments },
            caches: self.pass_caches(),
        }
    }

    fn training(&self, run: &RunSpec, weights: DType, pack: PackLimits, knobs: &Knobs) -> Training {
        let (optimizer, grads) = knobs.precision;
        let sequences = run.sequences_per_step() as usize * run.branches_max();
        let TrainingSpec { train, reference, track, .. } = run.training();
        Training {
            dtypes: StateDTypes { weights, grads, summing: self.summing(run), optimizer },
            pack,
            packing: Packing {
                heads: if run.trains_scores() { Heads::End } else { Heads::Tokens },
                whole_groups: run.learns_from() == Some(LearnsFrom::Pairs),
            },
            share: self.facts.share,
            hosts: self.facts.hosts,
            trainers: self.facts.trainers,
            exchange: run.run.exchange,
            cut: match train.cut_multiple {
                Auto::Auto => Cut::auto(self.row.cut_rows),
                Auto::Value(multiple) => Cut::multiple(multiple as usize),
            },
            recompute: knobs.recompute,
            reference: *reference,
            critic: self.facts.models.get(RoleName::Critic).copied(),
            critic_adapter: CriticAdapter::of(
                run,
                self.facts.models.get(RoleName::Critic).unwrap_or(&self.facts.spec),
            ),
            teacher: TeacherShape::of(run, self.facts),
            offload: knobs.offload,
            prompts: run.rollout.prompts_per_step as usize,
            sequences,
            response_tokens: response_tokens(run, self.facts),
            policy_lag: run.reuse() as usize,
            ahead: run.staleness() as usize,
            carried: run.sequences_under_way() as usize,
            holds_samples: run.holds_samples(),
            scores_sharply: run.scores_sharply(),
            chooses_tokens: run.objective().is_some_and(|objective| objective.covariance.is_some()),
            corrects: run.objective().is_some_and(|objective| objective.correction.is_some()),
            scripted: self.facts.host.script > Bytes(0),
            balance_coef: run.balance_coef(),
            muon: train.muon_options(1).map(|muon| muon.iterations),
            trackers: track.memory(),
            estimator: run.estimator().map_or(Bytes(0), |estimator| estimator.memory),
        }
    }

    /// Returns how often passes of a size are recorded: for the rollout's sampling and the evaluation's; for clients,
    /// of rows that have one adapter or none, and of rows that have several.
    fn ways_of_sampling(&self, run: &RunSpec) -> usize {
        let has_clients = self.facts.host.clients > Bytes(0);
        let greedy = run.samples_greedily() && run.eval.temperature != 0.0;
        1 + usize::from(has_clients || run.eval.temperature != run.rollout.temperature) + usize::from(greedy)
    }

    fn shape(&self, run: &RunSpec, knobs: &Knobs) -> (RunShape, Resolved) {
        let weights = run.model_options.dtype.dtype();
        let engine = self.engine(run, knobs.sequences);
        let pack = self.facts.tenants.map_or_else(|| self.pack(run, knobs), |of| of.pack(self.pass_caches()));
        let training = match (self.purpose, self.facts.tenants) {
            (Purpose::Train, _) => Some(self.training(run, weights, pack, knobs)),
            (Purpose::Sample, tenants) => tenants.map(|_| self.tenants_training(weights, pack, knobs)),
        };
        let (optimizer_dtype, grad_dtype) = knobs.precision;
        let staging = self.facts.host.staging.min(knobs.staging).max(Bytes(STAGING_BYTES_MIN));
        let resolved = Resolved {
            micro_batch_tokens: knobs.micro_batch_tokens,
            recompute: knobs.recompute,
            optimizer_dtype,
            grad_dtype,
            sequences_max: knobs.sequences,
            kv_blocks: engine.layer_blocks(&self.facts.spec),
            rollout_rows: engine.rows,
            prompt_tokens_max: engine.prompt_tokens,
            threads: self.threads,
            staging: knobs.staging,
            offload: knobs.offload,
            merge: run.merge().is_auto().then_some(knobs.merges()),
        };
        let tower = self.facts.sight.map(|sight| sight.spec.tower);
        let shape = RunShape {
            spec: self.facts.spec,
            head: if run.trains_scores() { Head::Score } else { Head::Vocabulary },
            weights,
            lora: trained(run, (&self.facts.spec, tower), knobs.merges()),
            encodings: self.facts.encodings,
            // The run's own model may be no file, where another one is.
            keeps_blocks: run.keeps_blocks() && self.facts.encodings.get(RoleName::Actor).is_some(),
            fp8: run.computes_fp8(),
            target: self.target(),
            engine,
            on_full: on_full(run.rollout.on_full),
            truncates: run.rollout.top_k > 0 || run.rollout.top_p < 1.0 || run.rollout.min_p > 0.0,
            positions: engine.prompt_tokens + engine.new_tokens.max(response_tokens(run, self.facts)),
            training,
            scoring: self.facts.models.rewards().next().map(|_| Scoring {
                pack,
                models: PerRole::none().with_rewards(self.facts.models.rewards().map(|(_, spec)| *spec)),
                adapters: self.facts.adapters,
            }),
            rewards: self.rewards,
            episodes: crate::facts::episode_memory(run),
            host: HostFacts { staging, ..self.facts.host },
            held: self.held.0[usize::from(knobs.merges())],
            are_own: self.facts.are_own(run, knobs.merges()),
            recorded: engine.recorded_sizes().len() * self.ways_of_sampling(run),
            sight: self.facts.sight,
        };
        (shape, resolved)
    }
}

/// Returns the sum of the peaks of all pools.
fn memory(plan: &Plan) -> u64 {
    Pool::ALL.map(|pool| plan.peak(pool).peak.0).iter().sum()
}

/// True if no memory is exceeded. A setting is never chosen for the disk: fewer checkpoints take less of it, and the
/// run would compute other bits where a disk happens to be full.
fn fits_memory(plan: &Plan) -> bool {
    Pool::ALL.into_iter().all(|pool| pool == Pool::Disk || plan.excess(pool) == Bytes(0))
}

/// Chooses among settings that fit, the fastest first: the one with the least memory of those that are equally fast,
/// and the first of the others as runner-up.
fn choose(found: Vec<(Candidate, Plan)>) -> Option<Solution> {
    let (first, _) = found.first()?;
    let fastest = first.rank;
    let equal = found.iter().take_while(|(candidate, _)| candidate.rank.is_as_fast(fastest));
    let best = equal.enumerate().min_by_key(|(_, (_, plan))| memory(plan)).map_or(0, |(index, _)| index);
    let mut found = found;
    let (chosen, plan) = found.remove(best);
    let fits = plan.fits();
    Some(Solution { chosen, plan, runner_up: found.into_iter().next(), fits })
}

fn on_full(how: RunOnFull) -> OnFull {
    match how {
        RunOnFull::WorstCase => OnFull::WorstCase,
        RunOnFull::Preempt => OnFull::Preempt,
    }
}
