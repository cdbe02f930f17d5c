//! Where the samples that a step trains on come from, and how old they are. A step asks its supply for them, trains,
//! and tells it that the step is made; a step that fails leaves the supply as it found it.
//!
//! `fresh` draws what the step trains on, for it and further steps (`async.reuse`); `ahead` draws for a later step and
//! trains on what an earlier one drew (`async.staleness`); `in_flight` does so with weights that arrive while responses
//! are drawn (`async.weight_sync`); `carried` takes the groups that end first, and leaves the others under way
//! (`async.partial_rollouts`); and in `apart` some ranks only draw while the others train (`async.rollout_ranks`).

pub(crate) mod ahead;
pub(crate) mod apart;
pub(crate) mod carried;
pub mod fresh;
pub mod gathered;
pub mod group;
pub(crate) mod in_flight;
mod queue;
pub mod restored;
pub mod rollout;
pub mod source;
pub mod whole;

pub use apart::{Apart, share_of_trainers};
pub use fresh::FreshSupply;
pub use source::Supply;

use ahead::AheadSupply;
use apart::ApartSupply;
use carried::CarriedSupply;
use in_flight::{InFlightSupply, WeightArrivals};
use plimsoll_config::{RunSpec, SupplyKind};
use plimsoll_plan::RunShape;
use rollout::held_room;

/// Returns the supply of a run, which is empty. `schedule`: the arrivals that the run follows, if it follows any.
pub fn of(run: &RunSpec, shape: &RunShape, schedule: Option<WeightArrivals>) -> Box<dyn Supply> {
    let held = held_room(shape);
    let is_in_flight = run.supply() == SupplyKind::InFlight;
    match run.supply() {
        SupplyKind::Fresh => Box::new(FreshSupply::new(held)),
        SupplyKind::Carried => Box::new(CarriedSupply::default()),
        _ if run.rollout_ranks() > 0 => Box::new(ApartSupply::new(is_in_flight, schedule, held)),
        SupplyKind::Ahead => Box::new(AheadSupply::new(held)),
        SupplyKind::InFlight => {
            Box::new(InFlightSupply::new(schedule.expect("ranks that take turns follow a schedule")))
        }
    }
}
