//! Run files: the table of keys, how its layers are read, and what is refused before anything is opened.
//!
//! file < environment `PLIMSOLL__SECTION__KEY` < `--set section.key=value`. Every leaf remembers its origin. This crate
//! opens the run file only: models, data and directories are opened by others.

/// Declares a section of a run file: each key once, with what it means, its type and its default.
macro_rules! section {
    ($(#[$of_section:meta])* $name:ident { $($(#[$of_key:meta])* $key:ident: $type:ty = $default:expr,)+ }) => {
        $(#[$of_section])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($(#[$of_key])* pub $key: $type,)+ }

        impl Default for $name {
            fn default() -> $name {
                $name { $($key: $default,)+ }
            }
        }
    };
}

/// Makes a function of each default that a key's attribute names.
macro_rules! defaults {
    ($($name:ident: $of:ty = $value:expr;)+) => {
        $(fn $name() -> $of {
            $value
        })+
    };
}

mod agent;
mod aliases;
mod data_checks;
mod data_sets;
mod de;
mod defaults;
mod distill;
mod env_file;
mod environment;
mod eval_metric;
mod layers;
mod limits;
mod load;
mod lora;
mod model_reward;
mod not_built;
mod objective;
mod pairs;
mod provenance;
mod read;
mod rewards;
mod schedule;
mod schema;
mod sections;
mod sources;
mod spec;
mod track;
mod tree;
mod validate;
mod values;

pub use data_sets::{DataSet, DataSets};
pub use env_file::{
    AbortedEpisode, CollectMode, CollectRun, EnvFile, Explore, FramesFormat, LoadedEnv, PolicyActivation,
    PolicyKind, PolicySection, ReplaySection, Reseed, is_env_file, load_env,
};
pub use eval_metric::{EvalMetric, EvalNumber};
pub use load::{
    Loaded, LoadedVerb, Setting, json_schema, key_named, keys, load, load_text, load_verb, weights_of_text,
};
pub use model_reward::REWARD_MODELS_MAX;
pub use not_built::error as not_built;
pub use objective::{KlTerm, Objective};
pub use plimsoll_algo::method::{LearnsFrom, Method};
pub use provenance::{Origin, Provenance};
pub use sections::{
    Checkpoint, Critic, Data, Distill, Environment, Eval, Lora, Loss, MLP, Memory, ModelOptions, Reward,
    Rollout, Run, RunFile, Track, Train, Trains, VerbFile, is_python_env,
};
pub use sources::no_rows_to_filter;
pub use spec::{LoraSpec, ModelReward, RunSpec};
pub use values::{
    Auto, ByteSize, Credit, CriticLearns, Curriculum, DynamicSampling, Exchange, Expecting, GradientWire,
    KlIn, LossType, ModelDtype, Network, Offload, OnFull, OptimizerDtype, Overlong, Positions, Recompute,
    RewardFailure, RunDevice, Schedule, Signature, TrackMode, Tracker, TrainOn, WorkerGpu,
};

#[cfg(test)]
mod tests;
