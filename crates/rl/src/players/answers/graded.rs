//! The grading of carried groups. A response that has ended is final, since it ended before the step's tick: rewards
//! that score each response by itself grade it while the update runs, or while others draw where its group has ended
//! too (`early_grading.rs`). Other rewards grade a group when it is trained.
//!
//! A grade depends on the response, its prompt and the step in which it ended. So it is the same whenever it is made:
//! ahead, with its group, or again after a resume.

use crate::players::dealt::OwnPart;
use crate::players::groups::{Group, Response};
use crate::players::player::{Grades, Play};
use crate::roles::Trainer;
use crate::rollout::counted::Counted;
use crate::rollout::exchange::exchange;
use crate::rollout::message::Kind;
use crate::supply::gathered::Gathered;
use plimsoll_base::Result;
use plimsoll_infer::grading::{self, GradedRequest, Grading};
use plimsoll_infer::model_reward;
use plimsoll_infer::text::Item;
use plimsoll_ranks::Group as Ranks;
use plimsoll_reward::Scored;
use plimsoll_rollout::Samples;
use serde::{Deserialize, Serialize};

/// What one rank graded.
#[derive(Serialize, Deserialize)]
struct RankGraded {
    scored: Vec<Scored>,
    texts: Vec<String>,
    counted: Counted,
    seconds_ahead: f64,
}

/// Begins to grade the responses of carried groups that have ended and that no one grades yet: of several ranks each
/// its groups.
pub(super) fn grade_ahead(play: &mut Play<'_>, ranks: &Ranks, groups: &[Group]) {
    let (rewards, run, text) = (&mut *play.rewards, play.run, play.text);
    if !rewards.grades_ahead() {
        return;
    }
    for group in groups.iter().filter(|group| is_own(group, ranks)) {
        let ended = group
            .responses
            .iter()
            .enumerate()
            .filter_map(|(s, response)| Some((group.sample_id(s), response, response.finish?)));
        let new: Vec<(u64, &Response, _)> = ended.filter(|(key, ..)| !rewards.is_ahead(*key)).collect();
        for step in new.chunk_by(|a, b| a.1.ended_in == b.1.ended_in) {
            let responses = step.iter().map(|(key, response, finish)| (*key, &response.ids[..], *finish));
            let steps = [step[0].1.ended_in, run.train().steps];
            grading::grade_ahead(rewards, (text, &run.rollout), &group.item, responses, steps);
        }
    }
}

/// True if this rank grades a group while it is under way.
pub(super) fn is_own(group: &Group, ranks: &Ranks) -> bool {
    owner(group, ranks.ranks()) == ranks.rank()
}

/// Returns the rank that grades a group while it is under way.
fn owner(group: &Group, ranks: usize) -> usize {
    (group.position % ranks as u64) as usize
}

/// Grades the groups of a step: of several ranks each its part. Their responses are then the trainer's `samples`.
pub(super) fn grade(
    trainer: &mut Trainer<'_>,
    play: &mut Play<'_>,
    groups: &[Group],
    gathered: &mut Gathered,
) -> Result<Grades> {
    let size = play.size();
    let samples = Samples::to_write(&mut trainer.sampler.samples);
    samples.clear();
    for response in groups.iter().flat_map(|group| &group.responses) {
        samples.push_response(&response.ids, &response.logprobs, response.finish.expect("it has ended"));
    }
    let (rank, ranks) = (trainer.group.rank(), trainer.group.ranks());
    // Where nothing is graded ahead, parts of one size.
    let of: Vec<usize> = if play.rewards.grades_ahead() {
        groups.iter().map(|group| owner(group, ranks)).collect()
    } else {
        (0..groups.len()).map(|g| g % ranks).collect()
    };
    let own: Vec<&Group> = groups.iter().zip(&of).filter(|(_, of)| **of == rank).map(|(g, _)| g).collect();
    let own_part = grade_own(play, own);
    let parts = exchange(trainer.group, Kind::Graded, own_part)?;
    let seconds_ahead = parts.iter().map(|part| part.seconds_ahead).fold(0.0, f64::max);
    let (mut counted, mut scored, mut texts) = (Vec::with_capacity(parts.len()), Vec::new(), Vec::new());
    let mut parts: Vec<_> = parts
        .into_iter()
        .map(|part| {
            counted.push(part.counted);
            part.scored.into_iter().zip(part.texts)
        })
        .collect();
    for s in 0..groups.len() * size {
        let (score, text) = parts[of[s / size]].next().expect("a rank grades its part");
        scored.push(score);
        texts.push(text);
    }
    gathered.add_counted(Counted::sum(counted));
    groups.iter().for_each(|group| group.teach(&mut trainer.lengths));
    let items: Vec<Item> = if play.run.model_rewards.is_empty() {
        Vec::new()
    } else {
        groups.iter().map(|group| group.item.clone()).collect()
    };
    model_reward::add(&play.run.model_rewards, trainer, &items, size, &mut scored)?;
    Ok(Grades { scored, texts, seconds_ahead })
}

fn grade_own(play: &mut Play<'_>, own: Vec<&Group>) -> Result<RankGraded> {
    let size = play.size();
    let part = OwnPart::new(own);
    let request = part.request(play.run, play.eos);
    let (text, rollout, steps) = (play.text, &play.run.rollout, play.steps());
    let of = GradedRequest { request, items: &[], text, rollout, steps };
    let keys = part.groups.iter().flat_map(|group| (0..size).map(|s| group.sample_id(s)));
    let keys: Vec<Option<u64>> =
        keys.map(|key| Some(key).filter(|key| play.rewards.is_ahead(*key))).collect();
    let mut grading = Grading::begin(play.rewards, &of, part.groups.iter().map(|group| &group.item))?;
    for ((s, response), key) in part.responses().into_iter().enumerate().zip(keys) {
        grading.take(s, &response.ids, response.finish.expect("it has ended"), key);
    }
    let texts = grading.texts();
    let scored = play.rewards.finish()?;
    let seconds_ahead = play.rewards.seconds_ahead();
    Ok(RankGraded { scored, texts, counted: Counted::of(play.rewards), seconds_ahead })
}
