//! The policy of an environment file: the small actor-critic of a checkpoint, or of another safetensors file.

use crate::network::{Network, StoredPolicy, activation_of};
use crate::policy::{of_file, plan_rows};
use crate::settings::common_activation;
use plimsoll_base::Result;
use plimsoll_collect::{Extras, Policy};
use plimsoll_config::{EnvFile, Explore, PolicyKind, Provenance};
use plimsoll_env::Spec;
use plimsoll_memory::Layout;
use std::path::Path;

/// A policy whose shapes are those of the environment.
#[derive(Debug)]
pub struct OpenedPolicy {
    network: Network,
    stored: StoredPolicy,
}

impl OpenedPolicy {
    /// Opens the policy of `file`; none for a random one.
    ///
    /// Errors: `policy-space-mismatch`, `policy-shape-mismatch`, `contradictory-keys`, `checkpoint-damaged`; those of
    /// opening a file.
    pub(super) fn of(file: &EnvFile, env: &Spec, at: &Provenance) -> Result<Option<OpenedPolicy>> {
        let (PolicyKind::Mlp, Some(path)) = (file.policy.kind, &file.policy.path) else { return Ok(None) };
        let stored = StoredPolicy::open(Path::new(path))?;
        let asked = file.policy.activation.map(activation_of);
        let activation = common_activation(asked, stored.activation).ok_or_else(|| {
            let message = "policy.activation differs from the policy.json next to the weights";
            at.error("contradictory-keys", "policy.activation", message).hint("remove policy.activation")
        })?;
        let network = Network::of(env, stored.file.hidden()?, activation)?;
        stored.check(&network)?;
        Ok(Some(OpenedPolicy { network, stored }))
    }

    /// Returns the columns that batches have from this policy besides actions.
    pub(super) fn extras(&self) -> Extras {
        Extras { logprobs: true, values: self.stored.file.has_critic() }
    }

    /// Makes the policies of `lanes` threads, for groups of at most `rows` environments.
    pub(super) fn policies(&self, file: &EnvFile, rows: usize, lanes: usize) -> Result<Vec<Box<dyn Policy>>> {
        let explore = match file.explore {
            Explore::Sample => plimsoll_algo::action::Explore::Sample,
            Explore::Mode => plimsoll_algo::action::Explore::Mode,
        };
        let policies = of_file(&self.network, &self.stored, file.seed, rows, lanes, explore)?;
        Ok(policies.into_iter().map(|policy| Box::new(policy) as Box<dyn Policy>).collect())
    }

    /// Returns its plan rows.
    ///
    /// Errors: `size-overflow`.
    pub(super) fn layout(&self, rows: usize, lanes: usize) -> Result<Layout> {
        plan_rows("policy", &self.network.spec, rows, lanes)
    }
}
