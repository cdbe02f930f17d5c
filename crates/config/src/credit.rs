//! `environment.credit` and `loss.step_credit`: what is compared where the rewards of single turns, or of steps of a
//! response, are credited.

use super::values::Credit;
use crate::RunSpec;
use plimsoll_algo::advantage::Advantage;
use plimsoll_algo::turns::TurnCredit;

impl RunSpec {
    /// Returns how the turns of a group's episodes, or the steps of its responses, are compared; `None` where whole
    /// samples are, or where a turn's reward is placed on its last token as it is.
    pub fn turn_credit(&self) -> Option<TurnCredit> {
        let objective = self.objective()?;
        let Some(environment) = self.environment() else { return objective.steps };
        match environment.credit {
            Credit::Turn => {
                let group = Advantage::of_shaping(objective.shaping.group);
                group.compares_group().then_some(TurnCredit::Returns)
            }
            Credit::Process => Some(TurnCredit::Process),
            Credit::Episode => None,
        }
    }
}
