//! Episodes that take several steps. A turn is never split: an episode whose turn is under way at the step's tick ends
//! this turn, hears the answer and then stops. Turns that began at that tick or later are dropped, whatever the
//! environment said to them.
//!
//! So the state of an environment is never kept: an episode is begun again from its start, and told how many turns it
//! has had.

use super::episode::{Episode, PlayedTurn};
use super::fault::Fault;
use super::glue::Glue;
use super::round::{Episodes, Heard, Talk};
use super::turn::{CarriedTurn, FirstRequest};
use plimsoll_base::{Error, Result};
use plimsoll_config::Rollout;
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_rollout::{Finish, StopCondition, Turn};
use plimsoll_text::Message;
use plimsoll_textenv::{EnvironmentTally, HadTurn, Hosts, Job, Start};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::Range;

/// An episode as far as it has come.
pub(crate) struct EpisodeSoFar<'s> {
    /// The number of its start.
    pub position: u64,
    pub item: &'s Item,
    /// Of an agent's episode in which a turn was drawn.
    pub asked: Option<&'s FirstRequest>,
    pub turns: &'s [CarriedTurn],
    pub has_ended: bool,
    pub has_fault: bool,
}

/// The turns of an episode that a step keeps.
pub(crate) struct KeptTurns {
    pub turns: Vec<CarriedTurn>,
    /// How the episode ended, if it did.
    pub finish: Option<Finish>,
    pub has_fault: bool,
}

/// What environments did in the turns that a step keeps.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Events {
    pub(super) tally: EnvironmentTally,
    pub(super) fault: Option<Fault>,
}

/// A turn of this step.
struct NewTurn {
    /// Ticks before it.
    start: u64,
    is_cut: bool,
    end: Option<End>,
}

/// Why an episode goes no further.
enum End {
    Done,
    /// A limit on turns or tokens.
    Limit,
    Fault(Option<Error>),
}

/// A step's side of its episodes.
pub(crate) struct CarriedTalk<'s> {
    talk: Talk<'s>,
    new: Vec<Vec<NewTurn>>,
}

impl Episodes {
    /// Returns the prompts of `count` training episodes from episode `first` on.
    ///
    /// Errors: those of resetting an environment, of the template and of the tokenizer.
    pub(crate) fn prompts(&mut self, text: &TextModel, first: u64, count: usize) -> Result<Vec<Item>> {
        if self.agents.is_some() {
            // An agent makes its own.
            return Ok(vec![Item::default(); count]);
        }
        let starts = self.starts(first, count);
        self.begin(text, &starts, 1)
    }

    /// Takes up episodes where they stopped.
    ///
    /// Errors: `stop-string-invalid`; those of resetting an environment.
    pub(crate) fn take_up<'s>(
        &'s mut self,
        (text, rollout): (&'s TextModel, &'s Rollout),
        policy_version: u64,
        so_far: &[EpisodeSoFar<'_>],
    ) -> Result<CarriedTalk<'s>> {
        self.hosts.drain();
        self.set_played(so_far);
        let open: Vec<usize> = (0..so_far.len()).filter(|slot| !so_far[*slot].has_ended).collect();
        let job = |slot: usize, hosts: &Hosts| {
            let glue = Glue { text, tools: &hosts.about().tools };
            let turns = so_far[slot].turns.iter().map(|of| had(glue, of)).collect();
            Job::TakeUp(self.played[slot].start, turns)
        };
        open.iter().for_each(|slot| self.hosts.ask(*slot, job(*slot, &self.hosts)));
        let (mut left, mut tried) = (open.len(), vec![false; so_far.len()]);
        while left > 0 {
            let reply = self.hosts.take(true).expect("every episode has a reply");
            let (slot, first) = (reply.slot, messages_of(so_far[reply.slot].item));
            match reply.outcome {
                Ok(Some(said)) if said.messages == first => left -= 1,
                Ok(Some(_)) => return Err(self.begins_differently(slot)),
                Err(error) if tried[slot] => return Err(error.fact("it was tried twice")),
                // A worker that has ended is started again.
                Ok(None) | Err(_) => {
                    tried[slot] = true;
                    let job = job(slot, &self.hosts);
                    self.hosts.ask(slot, job);
                }
            }
        }
        let talk = self.talk(text, rollout, policy_version)?;
        Ok(CarriedTalk { talk, new: so_far.iter().map(|_| Vec::new()).collect() })
    }

    /// Takes over the episodes that a step trains, and what happened on all ranks.
    ///
    /// Errors: `text-environment-failing`.
    pub(crate) fn set_trained(
        &mut self,
        policy_version: u64,
        trained: &[EpisodeSoFar<'_>],
        all: Vec<Events>,
    ) -> Result<()> {
        self.set_played(trained);
        self.policy_version = policy_version;
        self.versions = trained.iter().map(|of| of.turns.iter().map(|it| it.version).collect()).collect();
        let ranks = all.len();
        for (rank, events) in all.into_iter().enumerate() {
            self.tally.add(&events.tally);
            let fault = events.fault.map(|fault| if ranks > 1 { fault.on_rank(rank) } else { fault });
            self.first_fault = self.first_fault.take().or(fault);
        }
        self.check_faults()
    }

    fn set_played(&mut self, so_far: &[EpisodeSoFar<'_>]) {
        self.begin_round(so_far.len());
        let (seed, plays_agents, mut sequences) = (self.seed, self.agents.is_some(), 0);
        for of in so_far {
            let first = sequences;
            sequences += usize::from(!plays_agents || !of.has_fault);
            self.played.push(of.episode(seed, first..sequences));
        }
    }
}

impl EpisodeSoFar<'_> {
    fn episode(&self, seed: u64, sequences: Range<usize>) -> Episode {
        let first = self.asked.map_or_else(|| messages_of(self.item), |asked| asked.messages.clone());
        let turn = |of: &CarriedTurn| PlayedTurn {
            response: of.response.clone(),
            end: Default::default(),
            reward: f64::from_bits(of.reward),
            said: of.said.clone(),
        };
        let num_first = first.len();
        let said = self.turns.iter().flat_map(|of| {
            std::iter::once(Message::new("assistant", of.response.clone())).chain(of.said.iter().cloned())
        });
        Episode {
            start: Start::train(seed, self.position),
            messages: first.into_iter().chain(said).collect(),
            num_first,
            turns: self.turns.iter().map(turn).collect(),
            columns: Default::default(),
            scored: None,
            sequences,
            has_fault: self.has_fault,
            goes_on: false,
        }
    }
}

fn had(glue: Glue<'_>, of: &CarriedTurn) -> HadTurn {
    let (_, calls) = glue.words_and_calls(&of.response);
    let (response, said) = (of.response.clone(), of.said.clone());
    HadTurn { response, calls, said, reward: f64::from_bits(of.reward) }
}

/// Returns the messages of a prompt.
fn messages_of(item: &Item) -> Vec<Message> {
    let messages = item.messages.as_deref().and_then(Value::as_array);
    let message = |m: &Value| serde_json::from_value(m.clone()).unwrap_or_default();
    messages.into_iter().flatten().map(message).collect()
}

impl CarriedTalk<'_> {
    pub(crate) fn stops(&mut self, sample: usize, turn: &[u32]) -> bool {
        self.talk.stops(sample, turn)
    }

    /// Passes on a turn that began after `start` ticks of the step.
    pub(crate) fn turn_ended(&mut self, sample: usize, turn: &[u32], finish: Finish, start: u64) {
        self.talk.turn_ended(sample, turn, finish);
        self.new[sample].push(NewTurn { start, is_cut: false, end: None });
    }

    /// Takes an environment's answer. Returns its episode, and the tokens that follow; none where it is over.
    ///
    /// Errors: those of the template and the tokenizer.
    pub(crate) fn answer(&mut self, wait: bool, tokens: &mut Vec<u32>) -> Result<Option<usize>> {
        let Some(reply) = self.talk.take_reply(wait) else { return Ok(None) };
        let end = match reply.outcome {
            Ok(Some(said)) => match self.talk.follow(reply.slot, said, tokens)? {
                Heard::Done => Some(End::Done),
                Heard::Full => Some(End::Limit),
                Heard::Words { is_cut } => {
                    self.last(reply.slot).is_cut = is_cut;
                    None
                }
            },
            Ok(None) => Some(End::Fault(None)),
            Err(fault) => Some(End::Fault(Some(fault))),
        };
        self.last(reply.slot).end = end;
        Ok(Some(reply.slot))
    }

    /// Asks an environment that scores whole episodes for the rewards of those that ended in turns that began before
    /// tick `ticks`.
    pub(crate) fn settle(&mut self, ticks: u64) {
        let is_kept = |new: &Vec<NewTurn>| match new.last() {
            Some(NewTurn { start, end: Some(End::Done | End::Limit), .. }) => *start < ticks,
            _ => false,
        };
        let ended: Vec<usize> = (0..self.new.len()).filter(|slot| is_kept(&self.new[*slot])).collect();
        for (slot, reward) in self.talk.rewards_of(&ended) {
            if let Err(fault) = reward {
                self.last(slot).end = Some(End::Fault(fault));
            }
        }
    }

    /// Notes that an episode is over: also if an answer had no room.
    pub(crate) fn ended(&mut self, sample: usize) {
        if self.talk.forget_answer(sample) {
            self.last(sample).end = Some(End::Limit);
        }
    }

    fn last(&mut self, sample: usize) -> &mut NewTurn {
        self.new[sample].last_mut().expect("a turn was played")
    }

    /// Returns the turns of an episode that began before tick `ticks`, of those of this step, and counts what happened
    /// in them.
    pub(crate) fn keep(
        &mut self,
        sample: usize,
        ticks: u64,
        turns: &[Turn],
        events: &mut Events,
    ) -> KeptTurns {
        let (episode, version) = self.talk.episode(sample);
        let new = &mut self.new[sample];
        let before = episode.turns.len() - new.len();
        new.truncate(new.iter().take_while(|turn| turn.start < ticks).count());
        let one = |(turn, of): (&Turn, &PlayedTurn)| CarriedTurn {
            turn: *turn,
            response: of.response.clone(),
            reward: of.reward.to_bits(),
            said: of.said.clone(),
            version,
        };
        let kept = turns.iter().zip(&episode.turns[before..]).take(new.len()).map(one).collect();
        let mut of = KeptTurns { turns: kept, finish: None, has_fault: false };
        for turn in new.drain(..) {
            events.tally.cut += u64::from(turn.is_cut);
            let Some(end) = turn.end else { continue };
            of.finish = of.turns.last().map(|last| last.turn.finish);
            match end {
                End::Done => {}
                End::Limit => events.tally.truncated += 1,
                End::Fault(fault) => {
                    of.has_fault = true;
                    events.tally.aborted += 1;
                    fault.iter().for_each(|fault| events.tally.count(fault));
                    events.fault = events.fault.take().or(fault.as_ref().map(Fault::of));
                }
            }
        }
        of
    }
}
