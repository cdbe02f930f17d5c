//! Run files: the table of keys, how its layers are read, and what is refused before anything is opened.
//!
//! file < environment `PLIMSOLL__SECTION__KEY` < `--set section.key=value`. Every leaf remembers its origin. This crate
//! opens the run file only: models, data and directories are opened by others.

/// Declares a section of a run file: each key once, with what it means, its type, its default, and after `=>` the facts
/// of `key::Fact` about it.
macro_rules! section {
    ($(#[$of_section:meta])* $name:ident $section:literal {
        $($(#[$of_key:meta])* $key:ident: $type:ty = $default:expr $(=> [$($fact:expr),+ $(,)?])?,)+
    }) => {
        $(#[$of_section])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($(#[$of_key])* pub $key: $type,)+ }

        impl $name {
            pub(crate) const KEYS: &[$crate::key::Key] = &[
                $($crate::key::Key {
                    path: concat!($section, ".", stringify!($key)),
                    facts: &[$($($fact),+)?],
                },)+
            ];
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($key: $default,)+ }
            }
        }
    };
}

mod agent;
mod aliases;
mod columns;
mod compute;
mod conflicts;
mod covariance;
mod credit;
mod data_checks;
mod data_sets;
mod de;
mod defaults;
mod describe;
mod distill;
mod env_file;
mod environment;
mod estimator;
mod eval_metric;
mod frozen;
mod judge;
mod key;
mod layers;
mod limits;
mod load;
mod lora;
mod model_reward;
mod muon;
mod not_built;
mod objective;
mod own_advantage;
mod provenance;
mod read;
mod reproduction;
mod rewards;
mod schedule;
mod schema;
mod sections;
mod sources;
mod spec;
mod speculate;
mod staleness;
mod supply;
mod tower_use;
mod track;
mod tree;
mod validate;
mod values;
mod withheld;

pub use columns::{ColumnSearch, NamedColumn};
pub use conflicts::{ConflictPage, conflicts, conflicts_in_markdown, hindrance_to_carry};
pub use data_sets::{DataSet, DataSets};
pub use describe::{KeyPage, describe, describe_section};
pub use distill::{OwnTeacher, TeacherKind};
pub use env_file::{
    AbortedEpisode, CollectMode, CollectRun, EnvFile, Explore, FramesFormat, LoadedEnv, PolicyActivation,
    PolicyKind, PolicySection, ReplaySection, Reseed, is_env_file, load_env,
};
pub use eval_metric::{EvalMetric, EvalNumber};
pub use frozen::Frozen;
pub use key::Resumes;
pub use limits::SEQUENCES_PER_STEP_MAX;
pub use load::{
    Loaded, LoadedVerb, Setting, json_schema, key_named, keys, load, load_text, load_verb, weights_of_text,
};
pub use model_reward::REWARD_MODELS_MAX;
pub use not_built::error as not_built;
pub use objective::{KlTerm, Objective};
pub use plimsoll_algo::method::{LearnsFrom, Method};
pub use provenance::{Origin, Provenance};
pub use reproduction::{
    PublishedClaim, Reproduction, ReproductionStage, load_reproduction, reproduction_of_text,
};
pub use sections::{
    Async, Checkpoint, Critic, Data, Distill, Endpoint, Environment, Eval, Lora, Loss, MLP, Memory,
    ModelOptions, Reward, Rollout, Run, RunFile, Track, Train, TrainedKind, VerbFile, is_python_env, resumes,
    resumes_freely,
};
pub use sources::no_rows_to_filter;
pub use spec::{
    FromLabels, FromPairs, FromSamples, LoraSpec, ModelReward, RunSpec, SamplerSpec, TrainingSpec, Trains,
};
pub use speculate::Speculate;
pub use supply::SupplyKind;
pub use tower_use::TowerUse;
pub use values::{
    AnsweredPrompts, Auto, ByteSize, Credit, CriticLearns, Curriculum, DynamicSampling, Exchange, Expecting,
    GradientWire, KlIn, LossType, ModelDtype, Network, Offload, OnFull, OptimizerDtype, Overlong, Positions,
    Recompute, RewardFailure, RunDevice, Schedule, Signature, TrackMode, Tracker, TrainOn, WorkerGpu,
};
pub use withheld::secret_withheld;

#[cfg(test)]
mod tests;
