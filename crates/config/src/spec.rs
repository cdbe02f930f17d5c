//! A run after validation: every value is settled but those of the type `Auto`, which are the planner's to choose. The
//! rest of the program works on it; run files are only read, merged and written.

use crate::columns::NamedColumn;
use crate::own_advantage::estimator_spec;
use crate::rewards::{reward_specs, with_steps};
use crate::{
    Async, Auto, Checkpoint, Critic, CriticLearns, Data, Distill, Environment, Eval, EvalMetric, Frozen,
    Lora, Loss, LossType, Memory, ModelOptions, Objective, OwnTeacher, Reward, Rollout, Run, RunFile, Track,
    Train, VerbFile,
};
use plimsoll_algo::labelled::Kto;
use plimsoll_algo::method::{LearnsFrom, Method, Needs, Reference};
use plimsoll_algo::preference::PreferenceLoss;
use plimsoll_algo::shaping::GroupShaping;
use plimsoll_arch::{LoraShape, LoraTargets, Quantization};
use plimsoll_reward::{EstimatorSpec, RewardSpec, TeacherSpec};
use std::path::PathBuf;

/// The value of `critic.model` for a critic that begins as the actor does.
const CRITIC_OF_ACTOR: &str = "actor";

#[derive(Clone, Debug)]
pub struct RunSpec {
    /// None of a command that samples and trains nothing.
    pub method: Option<Method>,
    pub needs: Needs,
    /// Seed of every random number of the run.
    pub seed: u64,
    /// `builtin:nano`, a directory, `file.gguf`, `hf:org/name`, `pypi:package`, `random:PRESET` or `mlp:SHAPE`.
    pub model: String,
    /// How the model is read.
    pub model_options: ModelOptions,
    pub data: Data,
    /// The columns of answers that keys name, which the data must have.
    pub named_columns: Vec<NamedColumn>,
    /// Evaluation sets: names and paths.
    pub eval_sets: Vec<(String, String)>,
    /// What decides which checkpoint is the best; none without an evaluation that measures it.
    pub metric: Option<EvalMetric>,
    pub rollout: Rollout,
    /// How old samples may be when they are trained.
    pub asynchrony: Async,
    /// Limit of further rounds in dynamic sampling.
    pub retries: u32,
    /// True if responses that the length limit cut are left out of training.
    pub mask_truncated: bool,
    pub rewards: Vec<RewardSpec>,
    /// The reward models among the rewards.
    pub model_rewards: Vec<ModelReward>,
    /// The function that estimates advantages; none for those by name.
    pub estimator: Option<EstimatorSpec>,
    /// What is optimised; none where nothing is sampled.
    pub objective: Option<Objective>,
    pub preference: PreferenceLoss,
    /// The loss of labelled answers.
    pub kto: Kto,
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
    pub train: Train,
    pub memory: Memory,
    pub eval: Eval,
    pub checkpoint: Checkpoint,
    /// The environment, if there is one. Its number of workers may be `"auto"`: `Environment::host_settings` settles it
    /// for text environments, a measurement for others.
    pub environment: Option<Environment>,
    pub run: Run,
    /// Trackers of experiments.
    pub track: Track,
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
    /// Whether rollout and update read weights that have adapters in them.
    pub merge: Auto<bool>,
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

impl RunSpec {
    /// Settles a checked run file.
    pub fn new(run: &RunFile) -> RunSpec {
        let needs = run.method.needs();
        let own_teacher = run.distill.as_ref().and_then(Distill::own_teacher);
        let zero_stage = if run.run.zero_stage == Auto::Value(0) { Auto::Auto } else { run.run.zero_stage };
        RunSpec {
            method: Some(run.method),
            needs,
            seed: run.seed,
            model: run.model.clone(),
            model_options: run.model_options.clone(),
            data: run.data.clone(),
            named_columns: NamedColumn::of_answers(&run.data, &run.reward),
            eval_sets: run.eval_sets(),
            metric: EvalMetric::of(run),
            rollout: run.rollout.clone(),
            asynchrony: run.asynchrony.clone(),
            retries: run.loss.dynamic_sampling_retries.unwrap_or(0),
            mask_truncated: run.loss.mask_truncated,
            rewards: with_steps(
                reward_specs(&run.reward, &run.data.answer_column),
                run.loss.step_credit.is_some(),
            ),
            model_rewards: ModelReward::of(&run.reward),
            estimator: estimator_spec(run),
            objective: Objective::new(run),
            preference: preference(run.method, &run.loss),
            kto: kto(&run.loss),
            balance_coef: run.loss.balance_coef,
            critic: needs.critic.then(|| run.critic.clone().unwrap_or_default()),
            distill: run.distill.clone().filter(|_| needs.teacher),
            lora: run.lora.as_ref().map(LoraSpec::new),
            reference: match needs.reference {
                _ if own_teacher == Some(OwnTeacher::Initial) => true,
                Reference::No => false,
                Reference::WithKl => run.loss.kl_coef != 0.0,
                Reference::Yes => true,
            },
            train: run.train.clone(),
            memory: run.memory.clone(),
            eval: run.eval.clone(),
            checkpoint: run.checkpoint.clone(),
            environment: run.environment.clone(),
            run: Run { zero_stage, ..run.run.clone() },
            track: run.track.clone(),
        }
    }

    /// Settles what a command samples that trains nothing: it has no method, and no step.
    pub fn sampling(verb: &VerbFile) -> RunSpec {
        let (learns_from, reference) = (LearnsFrom::Samples, Reference::No);
        RunSpec {
            method: None,
            needs: Needs { learns_from, critic: false, teacher: false, reference, scores: false },
            seed: verb.seed,
            model: verb.model.clone(),
            model_options: verb.model_options.clone(),
            data: verb.data.clone(),
            named_columns: NamedColumn::of_answers(&verb.data, &verb.reward),
            eval_sets: verb.data.eval_sets(),
            metric: None,
            rollout: verb.rollout.clone(),
            asynchrony: Async::default(),
            retries: 0,
            mask_truncated: false,
            rewards: reward_specs(&verb.reward, &verb.data.answer_column),
            model_rewards: ModelReward::of(&verb.reward),
            estimator: None,
            objective: None,
            preference: preference(Method::Dpo, &Loss::default()),
            kto: kto(&Loss::default()),
            balance_coef: 0.0,
            critic: None,
            distill: None,
            lora: None,
            reference: false,
            train: Train::new(0, 0.0),
            memory: verb.memory.clone(),
            eval: verb.eval.clone(),
            checkpoint: Checkpoint::default(),
            environment: None,
            run: verb.run.clone(),
            track: Track::default(),
        }
    }

    /// True if models that are GGUF files and that nothing trains stay in the blocks of their files.
    pub fn keeps_blocks(&self) -> bool {
        self.model_options.quantize == Auto::Value(Frozen::Gguf)
    }

    /// True if there are weights of a reference that can lie elsewhere and pass through the device in parts: those in
    /// blocks stay.
    pub fn moves_reference(&self) -> bool {
        self.reference && self.lora.is_none() && !self.keeps_blocks()
    }

    /// Returns the method of a run that trains.
    pub fn method(&self) -> Method {
        self.method.expect("what trains has a method")
    }

    /// True if responses are sampled: by a method that learns from them, or by a command.
    pub fn samples(&self) -> bool {
        self.needs.learns_from == LearnsFrom::Samples
    }

    /// True if samples are compared with greedy answers, which are then drawn too.
    pub fn samples_greedily(&self) -> bool {
        self.objective.is_some_and(|objective| objective.shaping.group == GroupShaping::Greedy)
    }

    /// True if samples are scored at half the temperature too: for the weights of a baseline of each token.
    pub fn scores_sharply(&self) -> bool {
        self.objective.is_some_and(|objective| objective.shaping.group == GroupShaping::OptimalToken)
    }

    /// Returns which weights of the run are the teacher's; none without a teacher, or with another model.
    pub fn own_teacher(&self) -> Option<OwnTeacher> {
        self.distill.as_ref().and_then(Distill::own_teacher)
    }

    /// Returns the name of a teacher that is another model, with weights in this run.
    pub fn teacher(&self) -> Option<&str> {
        self.distill.as_ref().and_then(|distill| distill.teacher_models().next())
    }

    /// True if the teacher may have other tokens than the student.
    pub fn aligns_text(&self) -> bool {
        self.distill.as_ref().is_some_and(Distill::aligns_text)
    }

    /// Returns how a teacher on a server is asked; none if the teacher is none.
    pub fn teacher_server(&self) -> Option<TeacherSpec> {
        self.distill.as_ref().and_then(Distill::teacher_server)
    }

    pub fn has_rewards(&self) -> bool {
        !self.rewards.is_empty() || !self.model_rewards.is_empty()
    }

    /// Returns the weight of each reward, in the order of a sample's scores; none where an environment rewards.
    pub fn reward_weights(&self) -> Vec<f64> {
        let mut weights: Vec<f64> = self.rewards.iter().map(|reward| reward.weight).collect();
        self.model_rewards.iter().for_each(|model| weights.insert(model.index, model.weight));
        weights
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

    /// True if the critic learns an adapter, and none of the weights below it.
    pub fn adapts_critic(&self) -> bool {
        self.critic.is_some() && self.lora.as_ref().is_some_and(|lora| lora.of_critic)
    }

    /// Returns whether adapters are merged into the weights that products read, where there are any.
    pub fn merge(&self) -> Auto<bool> {
        self.lora.as_ref().map_or(Auto::Value(false), |lora| lora.merge)
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
            merge: lora.merge,
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

/// Returns the sequences of a step over `prompts` prompts, examples or pairs.
pub(crate) fn sequences_per_step(needs: Needs, prompts: u32, group: u32) -> u64 {
    let each = match needs.learns_from {
        LearnsFrom::Samples => group,
        LearnsFrom::Pairs | LearnsFrom::Labels => 2,
        LearnsFrom::Completions => 1,
    };
    u64::from(prompts) * u64::from(each)
}

fn kto(loss: &Loss) -> Kto {
    Kto { beta: loss.dpo_beta, desirable: loss.desirable_weight, undesirable: loss.undesirable_weight }
}

fn preference(method: Method, loss: &Loss) -> PreferenceLoss {
    let (beta, label_smoothing) = (loss.dpo_beta, loss.label_smoothing);
    match (method, loss.loss_type) {
        (Method::Simpo, _) => PreferenceLoss::SimPo { beta, gamma: loss.simpo_gamma },
        (Method::Cpo, _) => PreferenceLoss::Cpo { beta, label_smoothing, nll_coef: loss.nll_coef },
        (Method::Orpo, _) => PreferenceLoss::OrPo { beta },
        (_, LossType::Sigmoid) => PreferenceLoss::Dpo { beta, label_smoothing },
        (_, LossType::Ipo) => PreferenceLoss::Ipo { beta },
    }
}
