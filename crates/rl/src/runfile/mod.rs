//! Run files: the table of keys, how its layers are read, and what is refused before anything is opened.
//!
//! file < environment `PLIMSOLL__SECTION__KEY` < `--set section.key=value`. Every leaf remembers where it came from.
//! This module opens the run file and nothing else: models, data and directories are other people's business.

mod sections;
mod values;

pub use sections::{
    Checkpoint, Critic, Data, Environment, Eval, Loss, Memory, ModelOptions, Reward, Rollout, Run, RunFile,
    Train, VerbFile,
};
pub use values::{
    Advantage, Aggregation, Auto, ByteSize, EvalMetric, KlEstimator, KlIn, MaskHole, Method, ModelDtype,
    Offload, OnFull, OptimizerDtype, Overlong, Recompute, RewardFailure, RunDevice, Schedule, Signature,
    Whiten,
};
