//! How a rollout is cut into the updates of its critic.

use super::*;
use plimsoll_config::{Critic, Method, RunFile, Train};

fn run(updates: Option<u32>, mini_batch: Option<u32>, epochs: u32) -> RunSpec {
    let mut run = RunFile::of(Method::Ppo, "builtin:nano", Train::new(1, 1e-6));
    run.critic = Some(Critic { updates_per_rollout: updates, ..Critic::default() });
    (run.train.mini_batch, run.train.epochs_per_rollout) = (mini_batch, epochs);
    RunSpec::new(&run)
}

#[test]
fn a_critic_makes_as_many_updates_as_it_is_asked_for_or_those_of_the_actor() {
    for (updates, mini_batch, epochs, sequences, expect) in [
        (None, None, 1, 64, (1, 64)),
        (None, Some(16), 3, 64, (3, 16)),
        // A number of its own counts once over the rollout, whatever the actor does.
        (Some(4), Some(16), 3, 64, (1, 16)),
        (Some(12), None, 2, 64, (1, 6)),
        // Dynamic sampling found too few groups.
        (Some(4), None, 1, 3, (1, 1)),
    ] {
        let found = cut(&run(updates, mini_batch, epochs), sequences);
        assert_eq!(found, expect, "{updates:?} {mini_batch:?} {epochs} of {sequences}");
        let made = (0..sequences).step_by(found.1).count();
        assert!(updates.is_none_or(|updates| made <= updates as usize), "{made} updates");
    }
}
