//! What environments and agents did in a step that others go on with.

use super::fault::Fault;
use plimsoll_base::Error;
use plimsoll_textenv::EnvironmentTally;
use serde::{Deserialize, Serialize};

/// What happened on a rank in the turns that a step keeps.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Events {
    pub(in crate::players) tally: EnvironmentTally,
    pub(in crate::players) fault: Option<Fault>,
}

impl Events {
    /// Counts an episode that ended without a return, with its cause if it has one of its own.
    pub(in crate::players) fn abort(&mut self, fault: Option<&Error>) {
        self.tally.aborted += 1;
        if let Some(fault) = fault {
            self.tally.count(fault);
            self.fault.get_or_insert_with(|| Fault::of(fault));
        }
    }
}
