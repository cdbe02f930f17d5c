//! What a run file says about advantages: the baseline, or the function of the user's with its limits.

use crate::estimator::Estimator;
use crate::{Loss, RunFile};
use plimsoll_algo::advantage::Advantage;
use plimsoll_reward::EstimatorSpec;
use std::time::Duration;

impl Loss {
    /// Returns the baseline; of a function, which subtracts its own, none.
    pub(crate) fn baseline(&self) -> Advantage {
        match self.advantage {
            Some(Estimator::Named(advantage)) => advantage,
            Some(Estimator::Python { .. }) | None => Advantage::None,
        }
    }
}

/// Returns the function that estimates the run's advantages, with its limits; `None` for an advantage by name.
pub(crate) fn estimator_spec(run: &RunFile) -> Option<EstimatorSpec> {
    let Some(Estimator::Python { file, function }) = &run.loss.advantage else { return None };
    let loss = &run.loss;
    Some(EstimatorSpec {
        file: file.clone(),
        function: function.clone(),
        python: loss.advantage_python.clone(),
        memory: loss.advantage_memory.0,
        timeout: Duration::from_millis(loss.advantage_timeout_ms),
    })
}
