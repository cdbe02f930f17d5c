//! What any run samples with: the part that commands which train nothing take alone.

use super::{LoraSpec, ModelReward};
use crate::columns::NamedColumn;
use crate::rewards::{reward_specs, with_steps};
use crate::{Auto, Data, Eval, Frozen, Memory, ModelOptions, Rollout, Run, RunFile, VerbFile};
use plimsoll_arch::Compute;
use plimsoll_reward::RewardSpec;

/// What a run samples with.
#[derive(Clone, Debug)]
pub struct SamplerSpec {
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
    pub rollout: Rollout,
    pub rewards: Vec<RewardSpec>,
    /// The reward models among the rewards.
    pub model_rewards: Vec<ModelReward>,
    /// Low-rank adapters; none where every weight is trained, or sampled as it is.
    pub lora: Option<LoraSpec>,
    pub memory: Memory,
    pub eval: Eval,
    pub run: Run,
}

impl SamplerSpec {
    /// Settles the part of a checked run file.
    pub(super) fn of_run(run: &RunFile) -> SamplerSpec {
        let zero_stage = if run.run.zero_stage == Auto::Value(0) { Auto::Auto } else { run.run.zero_stage };
        SamplerSpec {
            seed: run.seed,
            model: run.model.clone(),
            model_options: run.model_options.clone(),
            data: run.data.clone(),
            named_columns: NamedColumn::of_answers(&run.data, &run.reward),
            eval_sets: run.eval_sets(),
            rollout: run.rollout.clone(),
            rewards: with_steps(
                reward_specs(&run.reward, &run.data.answer_column),
                run.loss.step_credit.is_some(),
            ),
            model_rewards: ModelReward::of(&run.reward),
            lora: run.lora.as_ref().map(LoraSpec::new),
            memory: run.memory.clone(),
            eval: run.eval.clone(),
            run: Run { zero_stage, ..run.run.clone() },
        }
    }

    /// Settles what a command samples with.
    pub(super) fn of_verb(verb: &VerbFile) -> SamplerSpec {
        SamplerSpec {
            seed: verb.seed,
            model: verb.model.clone(),
            model_options: verb.model_options.clone(),
            data: verb.data.clone(),
            named_columns: NamedColumn::of_answers(&verb.data, &verb.reward),
            eval_sets: verb.data.eval_sets(),
            rollout: verb.rollout.clone(),
            rewards: reward_specs(&verb.reward, &verb.data.answer_column),
            model_rewards: ModelReward::of(&verb.reward),
            lora: None,
            memory: verb.memory.clone(),
            eval: verb.eval.clone(),
            run: verb.run.clone(),
        }
    }

    /// True if models that are GGUF files and that nothing trains stay in the blocks of their files.
    pub fn keeps_blocks(&self) -> bool {
        self.model_options.quantize == Auto::Value(Frozen::Gguf)
    }

    /// True if the linear layers of the policy are computed with numbers of eight bits.
    pub fn computes_fp8(&self) -> bool {
        self.model_options.compute == Auto::Value(Compute::Fp8)
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

    /// Returns whether adapters are merged into the weights that products read, where there are any.
    pub fn merge(&self) -> Auto<bool> {
        self.lora.as_ref().map_or(Auto::Value(false), |lora| lora.merge)
    }
}
