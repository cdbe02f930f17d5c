//! The rollout engine: paged KV cache, continuous batching, sampling. It owns which sequence runs when and which
//! blocks it holds; the arithmetic is the model's.
//!
//! It refuses requests beyond its limits, and stops with a named error if a logit is not a number. It allocates nothing
//! while it runs, except an environment's answers between turns, which are bounded by the longest response.

mod ahead;
mod ask;
mod draft_limits;
mod drafts;
mod ends;
mod engine;
mod group_times;
mod lengths;
mod limits;
mod live;
mod pass_masks;
mod samples;
mod schedule;
mod stats;
mod verify;

pub use ahead::Recorded;
pub use ask::{Ask, AskImage, BIASES_MAX, ENDS_MAX, NamedTokens, PrefixScope};
pub use draft_limits::{DraftLimits, DraftSource, PassCosts};
pub use ends::DrawnEnds;
pub use engine::{Engine, Model, NeverStop, Request, SoFar, StopCondition};
pub use group_times::GroupTimes;
pub use lengths::{Lengths, deal};
pub use limits::{EngineLimits, LISTED, OnFull, layout};
pub use live::{Likeliest, Listener, Live};
pub use plimsoll_model::OwnLogits;
pub use samples::{Finish, Samples, Turn};
pub use stats::{Drafted, RolloutStats};
