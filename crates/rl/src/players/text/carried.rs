//! Episodes that take several steps. The state of an environment is never kept: an episode is begun again from its
//! start, and told how many turns it has had.

use super::environment::TextPlayer;
use super::talk::Talk;
use crate::players::episodes::messages_of;
use crate::players::groups::{Group, Response};
use crate::players::turn::PlayedTurn;
use plimsoll_base::Result;
use plimsoll_config::Rollout;
use plimsoll_infer::text::TextModel;
use plimsoll_textenv::{HadTurn, Job};

impl TextPlayer {
    /// Takes up the episodes of groups where they stopped.
    ///
    /// Errors: `stop-string-invalid`; those of resetting an environment.
    pub(super) fn take_up<'s>(
        &'s mut self,
        (text, rollout): (&'s TextModel, &'s Rollout),
        version: u64,
        groups: &[&Group],
    ) -> Result<Talk<'s>> {
        self.hosts.drain();
        let mut so_far: Vec<(&Group, &Response, bool)> = Vec::new();
        for &group in groups {
            so_far.extend(group.responses.iter().map(|response| (group, response, true)));
        }
        self.episodes.set_played(so_far.iter().copied());
        let open: Vec<usize> = (0..so_far.len()).filter(|slot| so_far[*slot].1.finish.is_none()).collect();
        open.iter().for_each(|slot| self.ask_again(text, *slot, so_far[*slot].1));
        let (mut left, mut tried) = (open.len(), vec![false; so_far.len()]);
        while left > 0 {
            let reply = self.hosts.take(true).expect("every episode has a reply");
            let (slot, (group, response, _)) = (reply.slot, so_far[reply.slot]);
            match reply.outcome {
                Ok(Some(said)) if said.messages == messages_of(&group.item) => left -= 1,
                Ok(Some(_)) => return Err(self.begins_differently(slot)),
                Err(error) if tried[slot] => return Err(error.fact("it was tried twice")),
                // A worker that has ended is started again.
                Ok(None) | Err(_) => {
                    tried[slot] = true;
                    self.ask_again(text, slot, response);
                }
            }
        }
        Talk::new(self, (text, rollout), version, so_far.iter().map(|(_, response, _)| response.ids.len()))
    }

    /// Begins an episode again, which has had the turns of `response`.
    fn ask_again(&mut self, text: &TextModel, slot: usize, response: &Response) {
        let glue = self.glue(text);
        let had = |of: &PlayedTurn| {
            let (_, calls) = glue.words_and_calls(&of.response);
            HadTurn { response: of.response.clone(), calls, said: of.said.clone(), reward: of.reward }
        };
        let turns = response.turns.iter().map(had).collect();
        self.hosts.ask(slot, Job::TakeUp(self.episodes.played[slot].start, turns));
    }
}
