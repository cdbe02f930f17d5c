//! What a script may ask, as the header of its frame says it.

use plimsoll_algo::aggregation::AggregationKind;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A request, without its arrays.
#[derive(Debug, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Verb {
    /// Allocates what was planned, and begins or resumes the run.
    Begin {},
    /// The next prompts of the run's data.
    Prompts {
        count: u32,
    },
    Sample(SampleHow),
    Score(ScoreHow),
    /// Gradients of a loss, added to those since the last update.
    Learn(LearnHow),
    /// The answer to a question for gradients.
    Gradients {
        #[serde(default)]
        loss: Option<f64>,
    },
    /// The answer to a question for gradients that none will come.
    Abandon {},
    /// Forgets the gradients since the last update.
    Drop {},
    Step(StepHow),
    /// A checkpoint, between two steps.
    Save {},
    /// The end before the last step.
    Close {
        save: bool,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SampleHow {
    /// Responses to each prompt.
    pub n: u32,
    #[serde(default)]
    pub temperature: Option<f64>,
    #[serde(default)]
    pub max_new_tokens: Option<u32>,
    #[serde(default)]
    pub stop: Option<Vec<String>>,
    /// With a seed the responses follow from it and the prompts alone.
    #[serde(default)]
    pub seed: Option<u64>,
    /// What the responses are held to, instead of the run file's.
    #[serde(default)]
    pub schema: Option<String>,
    /// True if the rewards of the run file grade the responses.
    pub grade: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScoreHow {
    pub role: String,
    pub temperature: f64,
    /// What the responses were held to.
    #[serde(default)]
    pub schema: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LearnHow {
    pub temperature: f64,
    #[serde(default)]
    pub schema: Option<String>,
    pub by: LearnBy,
    /// The updates of the weights whose log-probs the arrays have, if they are of this run.
    #[serde(default)]
    pub version: Option<u64>,
    /// A method whose loss is taken; the run file's own if none.
    #[serde(default)]
    pub loss: Option<String>,
    #[serde(default)]
    pub clip_low: Option<f64>,
    #[serde(default)]
    pub clip_high: Option<f64>,
    #[serde(default)]
    pub dual_clip: Option<f64>,
    #[serde(default)]
    pub aggregation: Option<AggregationKind>,
    #[serde(default)]
    pub entropy_coef: Option<f64>,
    #[serde(default)]
    pub kl_coef: Option<f64>,
    /// Trained tokens and sequences of the whole update, where this is a part of it.
    #[serde(default)]
    pub total_tokens: Option<f64>,
    #[serde(default)]
    pub total_sequences: Option<f64>,
    /// The loss that gradients of the script's own belong to.
    #[serde(default)]
    pub loss_value: Option<f64>,
}

/// Where the gradients of log-probabilities come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LearnBy {
    /// A loss by its name.
    Loss,
    /// Arrays of the request.
    Arrays,
    /// The script is asked for them, for each micro-batch after its forward pass.
    Questions,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StepHow {
    #[serde(default)]
    pub lr: Option<f64>,
    /// True if further updates of the same step follow.
    #[serde(default)]
    pub more: bool,
    /// False ends a step that has nothing to learn.
    pub update: bool,
    /// The script's mean reward.
    #[serde(default)]
    pub reward: Option<f64>,
    /// Further numbers of the step, by name.
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
}
