//! `async.weight_sync`: new weights go on with responses that older ones began. A rollout's responses begin together
//! and draw one token a tick, so a tick is the length of those under way. Weights arrive at a tick: all responses stop
//! there, their keys and values are computed again, and they go on.
//!
//! In step k, what is drawn has the weights that the step begins with, up to the tick at which those that it makes
//! arrive. These ticks are all that a clock decides, and `schedule.jsonl` has them: a run that follows one has the bits
//! of the run that wrote it, on any ranks.
//!
//! Legend: L steps ahead, P prompts a step, G samples of each.

mod rollout;
mod schedule;
mod stop;
mod supply;

pub(crate) use rollout::InFlightRollout;
pub use schedule::{Arrival, WeightArrivals};
pub(crate) use schedule::{cut, write};
pub(super) use supply::InFlightSupply;
