//! Whole answers: prompts are sampled, and responses graded as they end.

use crate::players::player::{Answered, Play};
use crate::roles::Trainer;
use crate::rollout::ranks::sample;
use crate::supply::gathered::Gathered;
use plimsoll_algo::shaping::GroupShaping;
use plimsoll_base::Result;
use plimsoll_config::ModelReward;
use plimsoll_infer::grading::GradedRequest;
use plimsoll_infer::model_reward;
use plimsoll_infer::sampler::sampling;
use plimsoll_infer::text::Item;
use plimsoll_reward::{Rewards, Scored};
use plimsoll_rollout::Request;
use plimsoll_run::status::Doing;
use std::time::Instant;

/// Samples and grades responses to the next `prompts` prompts of the data.
pub(super) fn answer(
    trainer: &mut Trainer<'_>,
    play: &mut Play<'_>,
    prompts: usize,
    gathered: &mut Gathered,
) -> Result<Answered> {
    let items = (play.prompts)(play.position, prompts)?;
    (play.edge)(Doing::Rollout);
    let ids: Vec<&[u32]> = items.iter().map(|item| item.ids.as_slice()).collect();
    let greedy = match play.shaping {
        GroupShaping::Greedy => greedy(trainer, play, (&items, &ids), gathered)?,
        _ => Vec::new(),
    };
    let of = request(play, (&items, &ids), play.size());
    let graders = (&mut *play.rewards, &play.run.model_rewards[..]);
    let (scored, texts) = respond(trainer, graders, &of, &mut *play.edge, gathered)?;
    Ok(Answered { items, scored, texts, branches: None, greedy })
}

/// Samples responses to the items of a request, and grades them by rewards and by reward models. Adds to `gathered`
/// what that took. Returns the scores and the texts.
///
/// Errors: those of sampling and of the rewards.
pub(crate) fn respond(
    trainer: &mut Trainer<'_>,
    (rewards, models): (&mut Rewards, &[ModelReward]),
    of: &GradedRequest<'_>,
    edge: &mut dyn FnMut(Doing),
    gathered: &mut Gathered,
) -> Result<(Vec<Scored>, Vec<String>)> {
    let started = Instant::now();
    let mut sampled = started;
    let mut whole = sample(trainer, rewards, of, &mut || {
        sampled = Instant::now();
        edge(Doing::Reward);
    })?;
    gathered.rollout_s += (sampled - started).as_secs_f64();
    gathered.stats.add_counts(&whole.stats);
    model_reward::add(models, trainer, of.items, of.request.group_size, &mut whole.scored)?;
    gathered.add_counted(whole.counted);
    gathered.reward_s += sampled.elapsed().as_secs_f64();
    Ok((whole.scored, whole.texts))
}

/// Samples and grades the greedy answer to each prompt. Returns their rewards.
fn greedy(
    trainer: &mut Trainer<'_>,
    play: &mut Play<'_>,
    (items, ids): (&[Item], &[&[u32]]),
    gathered: &mut Gathered,
) -> Result<Vec<Option<f32>>> {
    let started = Instant::now();
    let mut of = request(play, (items, ids), 1);
    of.request.sampling.temperature = 0.0;
    let mut whole = sample(trainer, play.rewards, &of, &mut || {})?;
    gathered.stats.add_counts(&whole.stats);
    model_reward::add(&play.run.model_rewards, trainer, items, 1, &mut whole.scored)?;
    gathered.add_counted(whole.counted);
    // Its time counts, and so do its tokens.
    gathered.tokens += trainer.sampler.samples.sampled_tokens();
    gathered.rollout_s += started.elapsed().as_secs_f64();
    Ok(whole.scored.iter().map(|scored| scored.total).collect())
}

/// Returns the request for `group_size` responses to each item.
fn request<'q, 'p: 'q>(
    play: &Play<'p>,
    (items, prompts): (&'q [Item], &'q [&'q [u32]]),
    group_size: usize,
) -> GradedRequest<'q> {
    let (text, rollout, steps) = (play.text, &play.run.rollout, play.steps());
    let request = Request {
        prompts,
        group_size,
        max_new_tokens: rollout.max_new_tokens as usize,
        sampling: sampling(rollout, play.run.seed),
        eos: play.eos,
        first_sample_id: play.sample_id,
        numbers: &[],
    };
    GradedRequest { request, items, text, rollout, steps }
}
