//! Evaluation over episodes: the mean return on seeds that are the same for every run.

use super::episode::EpisodesRequest;
use super::kept::KeptEpisode;
use super::rollout::EpisodesPlayer;
use crate::roles::Trainer;
use plimsoll_base::Result;
use plimsoll_infer::eval::{EVAL_SAMPLE_IDS, EvalHow, add_group, end_sums, prompts_at_once};
use plimsoll_plan::samples_kept;
use plimsoll_reward::{Rewards, Scored};
use plimsoll_run::scores::EvalReport;
use plimsoll_run::under_way;
use plimsoll_textenv::Start;
use std::time::Instant;

/// Plays `how.samples` episodes of each of `count` starts, as many at a time as the engine holds. A sample succeeds if
/// its return is 1 or more.
pub(in crate::players) fn evaluate(
    player: &mut impl EpisodesPlayer,
    trainer: &mut Trainer<'_>,
    how: &EvalHow<'_>,
    rewards: &mut Rewards,
    count: usize,
) -> Result<Option<(EvalReport, Vec<KeptEpisode>)>> {
    let started = Instant::now();
    let (mut report, mut examples) = (EvalReport::default(), Vec::new());
    let branches = player.record().section.branches_max.max(1) as usize;
    let at_once = prompts_at_once(&trainer.sampler, how.samples * branches);
    let kept = samples_kept(how.samples);
    let starts: Vec<Start> = (0..count as u64).map(Start::eval).collect();
    if trainer.group.is_alone() {
        under_way::expect(count * how.samples);
    }
    for (i, starts) in starts.chunks(at_once).enumerate() {
        let room = kept.saturating_sub(examples.len()).min(starts.len() * how.samples);
        let asked = EpisodesRequest {
            text: how.text,
            rollout: how.rollout,
            starts,
            group_size: how.samples,
            sampling: how.sampling,
            eos: how.eos,
            steps: [0, 0],
            first_sample_id: EVAL_SAMPLE_IDS + (i * at_once * how.samples) as u64,
            kept: room,
        };
        player.play_starts(trainer, rewards, &asked)?;
        // A rollout may be of one episode.
        if trainer.sampler.samples.is_empty() {
            player.check_left(&trainer.sampler.samples)?;
        }
        let episodes = player.record();
        report.tokens += trainer.sampler.samples.sampled_tokens();
        let whole = |(scored, total): (Scored, Option<f32>)| {
            if scored.parts.is_empty() { Scored { total, parts: vec![total], ..scored } } else { scored }
        };
        let scored: Vec<Scored> =
            episodes.scored(rewards).into_iter().zip(episodes.returns()).map(whole).collect();
        scored.chunks(how.samples).for_each(|group| add_group(&mut report, group));
        let album = trainer.sampler.images.as_ref().map(|images| &*images.album);
        let kept = (0..room).map(|s| episodes.kept(how.step, &trainer.sampler.samples, s));
        examples.extend(kept.map(|episode| episode.with_placeholders(album)));
    }
    end_sums(&mut report, count);
    report.seconds = started.elapsed().as_secs_f64();
    Ok(Some((report, examples)))
}
