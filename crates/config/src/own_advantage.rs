//! What a run file says about advantages: the baseline, or the function of the user's with its limits.

use crate::estimator::Estimator;
use crate::limits::contradiction;
use crate::provenance::Provenance;
use crate::{Loss, RunFile};
use plimsoll_algo::advantage::Advantage;
use plimsoll_base::Result;
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

/// Refuses limits of a function where there is none, and a discount, which a function takes for itself.
pub(crate) fn check(loss: &Loss, at: &Provenance) -> Result<()> {
    let default = Loss::default();
    if matches!(loss.advantage, Some(Estimator::Python { .. })) {
        if loss.gamma != default.gamma {
            let message = format!("loss.gamma = {} with a function of yours as loss.advantage", loss.gamma);
            return Err(contradiction(at, "loss.gamma", &message)
                .hint("remove loss.gamma: discount `token_rewards` in the function"));
        }
        return Ok(());
    }
    let set = [
        ("loss.advantage_python", loss.advantage_python.is_some()),
        ("loss.advantage_memory", loss.advantage_memory != default.advantage_memory),
        ("loss.advantage_timeout_ms", loss.advantage_timeout_ms != default.advantage_timeout_ms),
    ];
    let Some((key, _)) = set.into_iter().find(|(_, is_set)| *is_set) else { return Ok(()) };
    let message = format!("{key} is of a function of yours, and loss.advantage is none");
    Err(contradiction(at, key, &message)
        .hint(format!("set loss.advantage = \"python:FILE.py:FUNCTION\", or remove {key}")))
}
