//! What the engine is asked and what it answers: plain data, so that an owner of models can be bound to the protocol.
//!
//! The engine's promise: a job is a function of the model's state, the job and nothing else, to the bit; a job that
//! fails leaves the model as it was; a `Save` that was answered is on the disk; dropping what is not there is no error.

use plimsoll_algo::sum_loss::SumLoss;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The number of something that was saved. The engine chooses where it lies.
pub type StoreId = u64;

/// What an adapter is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdapterChoice {
    pub base_model: String,
    pub rank: u32,
    /// Of the adapter's first values.
    pub seed: u64,
    pub train_attn: bool,
    pub train_mlp: bool,
    pub train_unembed: bool,
}

/// AdamW for one step. `grad_clip_norm` 0 clips nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamStep {
    pub learning_rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub grad_clip_norm: f64,
}

/// One sequence of a pass. Position i of `tokens` predicts row i of `targets`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainDatum {
    /// [N]
    pub tokens: Vec<u32>,
    /// [N, width], row by row.
    pub targets: Vec<u32>,
    /// Targets of a position; more than 1 only for `CrossEntropy`.
    pub width: usize,
    /// [N, width] of `CrossEntropy`; empty for the others.
    pub weights: Vec<f32>,
    /// [N]: the sampler's log-probs; empty for `CrossEntropy`.
    pub old_logp: Vec<f32>,
    /// [N]; empty for `CrossEntropy`.
    pub advantages: Vec<f32>,
    /// [N] of `Gspo`; empty for the others.
    pub ratio_mask: Vec<f32>,
}

/// How tokens are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrawParams {
    /// `None`: up to the end of the context.
    pub max_tokens: Option<u32>,
    pub seed: u64,
    pub stop: StopRule,
    pub temperature: f32,
    /// 0: all tokens.
    pub top_k: u32,
    pub top_p: f32,
}

/// What ends a response before its last token. The end-of-text token ends it under `EndOfText` alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StopRule {
    EndOfText,
    Texts(Vec<String>),
    Tokens(Vec<u32>),
}

/// A prompt and how often, how and with what else it is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleJob {
    pub base_model: String,
    /// The adapter; `None` is the base model.
    pub store: Option<StoreId>,
    pub prompt: Vec<u32>,
    pub num_samples: u32,
    pub params: DrawParams,
    /// Log-probs of the prompt's tokens.
    pub prompt_logprobs: bool,
    /// Of the prompt's last tokens only.
    pub prompt_logprobs_last: Option<u32>,
    /// Most likely tokens at each position of the prompt; 0 for none.
    pub topk_prompt: u32,
    /// Most likely tokens at each position of a response; 0 for none.
    pub topk_sample: u32,
    /// [len - 1, columns]: tokens whose log-probs the client asks for at the positions of the prompt after the first;
    /// `None` is a place without a token.
    pub target_prompt: Option<(u32, Vec<Option<u32>>)>,
}

/// Why something is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SaveKind {
    /// Weights with the state of the optimizer, to go on from.
    Training,
    /// Weights to sample with.
    Sampler,
    /// Weights in the form that other programs read.
    External,
}

/// One piece of work.
#[derive(Clone, Debug, PartialEq)]
pub enum Job {
    /// Makes a model, with an optimizer that has seen nothing and gradients of 0.
    Create {
        model: String,
        adapter: AdapterChoice,
    },
    /// Computes a loss; with `gradients` adds its gradients to those since the last step.
    Pass {
        model: String,
        datums: Arc<Vec<TrainDatum>>,
        loss: SumLoss,
        gradients: bool,
    },
    /// Updates the model with its gradients and clears them.
    Step {
        model: String,
        adam: AdamStep,
    },
    Save {
        model: String,
        store: StoreId,
        kind: SaveKind,
    },
    /// Sets a model to what was saved and clears its gradients; makes the model if it is not there. Without `optimizer`
    /// the optimizer's state is a new one.
    Load {
        model: String,
        adapter: AdapterChoice,
        store: StoreId,
        optimizer: bool,
    },
    Sample(Box<SampleJob>),
    DropModel {
        model: String,
    },
    DropStore {
        store: StoreId,
    },
}

/// Why a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleEnd {
    Stop,
    Length,
}

/// The most likely tokens of some positions; a place without one has the id 0 and the log-prob -99999.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranked {
    /// Most likely tokens of a position.
    pub k: u32,
    /// [positions, k]
    pub tokens: Vec<u32>,
    /// [positions, k]
    pub logprobs: Vec<f32>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SampledTokens {
    pub end: SampleEnd,
    pub tokens: Vec<u32>,
    pub logprobs: Vec<f32>,
    pub ranked: Option<Ranked>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleAnswer {
    pub sequences: Vec<SampledTokens>,
    /// [len]; the first, and those that were not asked for, are no numbers.
    pub prompt_logprobs: Option<Vec<f32>>,
    pub ranked_prompt: Option<Ranked>,
    /// Columns, and [len - 1, columns]; no number where there was no token.
    pub target_prompt: Option<(u32, Vec<f32>)>,
    /// Tokens of the prompt that were not computed again.
    pub cached_tokens: u32,
}

/// The answer to a job of the same name.
#[derive(Clone, Debug, PartialEq)]
pub enum JobAnswer {
    /// Of `Create`, `Load`, `DropModel` and `DropStore`.
    Done,
    Pass {
        /// [datum][N * width]
        logprobs: Vec<Vec<f32>>,
        metrics: Metrics,
    },
    Step {
        metrics: Metrics,
    },
    Saved {
        bytes: u64,
    },
    Sampled(SampleAnswer),
}

/// Names with how clients join the parts of a batch (`loss:sum`), and values.
pub type Metrics = Vec<(String, f64)>;

impl Job {
    /// Returns the tokens that a job computes, which is what tenants share. Jobs without any count as one.
    pub fn cost_tokens(&self) -> u64 {
        let cost = match self {
            Job::Pass { datums, gradients, .. } => {
                let tokens: u64 = datums.iter().map(|datum| datum.tokens.len() as u64).sum();
                // A backward pass takes about twice the time of the forward pass before it.
                if *gradients { tokens * 3 } else { tokens }
            }
            Job::Sample(sample) => {
                let each = u64::from(sample.params.max_tokens.unwrap_or(sample.prompt.len() as u32));
                sample.prompt.len() as u64 + each * u64::from(sample.num_samples)
            }
            _ => 1,
        };
        cost.max(1)
    }

    /// Returns the model whose state the job reads or changes; jobs of one model are done one after another.
    pub fn model(&self) -> Option<&str> {
        match self {
            Job::Create { model, .. }
            | Job::Pass { model, .. }
            | Job::Step { model, .. }
            | Job::Save { model, .. }
            | Job::Load { model, .. }
            | Job::DropModel { model } => Some(model),
            Job::Sample(_) | Job::DropStore { .. } => None,
        }
    }
}
