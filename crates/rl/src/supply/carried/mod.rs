//! `async.partial_rollouts`: more prompts are under way than a step needs, and time is counted in tokens. In a tick
//! every sequence under way draws one token. The step ends at the tick at which it has the groups that it trains; all
//! others stop there, and go on in the next step, under the weights of that time.
//!
//! So what a step trains follows from the tokens alone, and they from their samples and places: no clock, thread,
//! batch, cache or number of ranks has a say. Nothing is thrown away, and every prompt is trained once.
//!
//! Legend: P prompts a step, G samples of each, T ticks of a step.

mod expected;
mod report;
mod saved;
mod step;
mod supply;

pub(super) use step::into_samples;
pub(super) use supply::CarriedSupply;
