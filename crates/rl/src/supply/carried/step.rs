//! The rollout of a step with carried groups: prompts join, all draw to the step's tick, and the groups that have ended
//! are graded; the others stay under way.

use super::report::CarryReport;
use crate::context::StepContext;
use crate::players::{Grades, Group, GroupsUnderWay, Response, StepRollout, count_ages};
use crate::roles::Trainer;
use crate::supply::gathered::Gathered;
use crate::supply::group::{Branch, SampleGroup};
use crate::supply::rollout::{Rollout, StepSamples};
use plimsoll_base::Result;
use plimsoll_infer::responder::Responder;
use plimsoll_reward::Scored;
use plimsoll_rollout::GroupTimes;
use plimsoll_run::checkpoint::BufferState;
use plimsoll_run::status::Doing;
use std::sync::Arc;
use std::time::Instant;

/// Draws what `step` trains on, and moves `cx.cursor` past the prompts that joined. What is left of the groups is to be
/// kept. `is_due`: true of a group that the step waits for. Returns the samples with what the step counted.
///
/// Errors: those of sampling and of the rewards; `rank-lost` where another rank has one.
pub(in crate::supply) fn next(
    all: &mut GroupsUnderWay,
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    step: u32,
    is_due: &dyn Fn(&Group) -> bool,
) -> Result<(StepSamples, CarryReport, Gathered)> {
    let started = Instant::now();
    // After a resume, those of earlier steps.
    grade_ahead(trainer, cx, step, &all.groups);
    let (mut groups, joined) = under_way(&all.groups, cx)?;
    let mut report = CarryReport { joined, ..CarryReport::default() };
    let drew = draw(trainer, cx, &mut groups, is_due, (step, &mut report))?;
    let StepRollout { chosen, mut gathered, events, counts, tail_tick_s } = drew;
    (report.counts, report.tail_tick_s) = (counts, tail_tick_s);
    let size = cx.run.rollout.group_size as usize;
    cx.cursor.data_position += joined as u64;
    cx.cursor.next_sample_id += (joined * size) as u64;

    let mut is_chosen = vec![false; groups.len()];
    chosen.iter().for_each(|g| is_chosen[*g] = true);
    let (mut taken, mut carried) = (Vec::with_capacity(chosen.len()), Vec::new());
    for (group, is_chosen) in groups.into_iter().zip(is_chosen) {
        if is_chosen { taken.push(group) } else { carried.push(group) }
    }
    gathered.rollout_s = started.elapsed().as_secs_f64();
    (cx.edge)(Doing::Reward);
    let graded = Instant::now();
    let (player, mut play) = cx.play(step);
    let grades = player.grade(trainer, &mut play, &taken, events, &mut gathered)?;
    gathered.reward_s = graded.elapsed().as_secs_f64();
    report.seconds_ahead = grades.seconds_ahead;

    let version = trainer.updates();
    let branches: Vec<Option<Vec<Branch>>> = taken.iter().map(|group| player.branches(group)).collect();
    let trained: Vec<&Response> = taken.iter().zip(&branches).flat_map(trained_of).collect();
    report.carried = carried.len();
    count_ages(&mut report.counts, trained.iter().copied(), version);
    let longest = trained.iter().map(|response| response.drawn().count()).max().unwrap_or(0);
    report.counts.saved_s = report.saved_s(longest, gathered.rollout_s);
    let versions = trained.into_iter().map(Response::runs).collect();
    let groups = into_samples(taken, branches, grades, &mut gathered);
    gathered.rounds = 1;
    grade_ahead(trainer, cx, step, &carried);
    all.next = Some(carried);
    let of = BufferState { step, policy_version: version, groups: 0 };
    let samples = Arc::clone(&trainer.sampler.samples);
    let (samples, _) = Rollout::whole(Arc::new(Rollout { of, groups, samples, versions }), version);
    Ok((samples, report, gathered))
}

/// Begins to grade what has ended of groups that go on.
fn grade_ahead(trainer: &Trainer<'_>, cx: &mut StepContext<'_>, step: u32, groups: &[Group]) {
    let (player, mut play) = cx.play(step);
    player.grade_ahead(trainer.group, &mut play, groups);
}

/// Returns the responses of a group that have a sequence.
fn trained_of<'g>((group, branches): (&'g Group, &Option<Vec<Branch>>)) -> Vec<&'g Response> {
    match branches {
        Some(branches) => branches.iter().map(|branch| &group.responses[branch.sample]).collect(),
        None => group.responses.iter().collect(),
    }
}

/// Returns groups as samples to train on, and counts them.
pub(in crate::supply) fn into_samples(
    taken: Vec<Group>,
    branches: Vec<Option<Vec<Branch>>>,
    grades: Grades,
    gathered: &mut Gathered,
) -> Vec<SampleGroup> {
    let (mut scored, mut texts) = (grades.scored.into_iter(), grades.texts.into_iter());
    let mut one = |(group, branches): (Group, Option<Vec<Branch>>)| {
        let Group { position, item, responses, .. } = group;
        let scored: Vec<Scored> = scored.by_ref().take(responses.len()).collect();
        let texts = texts.by_ref().take(responses.len()).collect();
        gathered.count_group(&scored);
        gathered.passed += 1;
        SampleGroup { position, item, scored, texts, branches, greedy: None }
    };
    taken.into_iter().zip(branches).map(&mut one).collect()
}

/// Returns the groups under way in this step, by age, and how many of them joined: as many prompts as there is room
/// for, and none that the run would not train.
fn under_way(before: &[Group], cx: &mut StepContext<'_>) -> Result<(Vec<Group>, usize)> {
    let size = cx.run.rollout.group_size as usize;
    let mut groups = before.to_vec();
    let (first, last) =
        (cx.cursor.data_position, u64::from(cx.run.train().steps) * cx.run.prompts_per_rollout());
    let room = cx.run.prompts_under_way().saturating_sub(groups.len() as u64);
    let joined = room.min(last.saturating_sub(first)) as usize;
    let items = cx.player.prompts(cx.text, &mut *cx.prompts, first, joined)?;
    (cx.edge)(Doing::Rollout);
    let id = cx.cursor.next_sample_id;
    let begun = |(item, n)| Group::begun(first + n, id + n * size as u64, item, size);
    groups.extend(items.into_iter().zip(0..).map(begun));
    Ok((groups, joined))
}

/// Draws to the step's tick, and says in `report` how many groups are waited for.
fn draw(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    groups: &mut [Group],
    is_due: &dyn Fn(&Group) -> bool,
    (step, report): (u32, &mut CarryReport),
) -> Result<StepRollout> {
    let wanted = cx.run.rollout.prompts_per_step as usize;
    let due: Vec<bool> = groups.iter().map(is_due).collect();
    report.waited_for = due.iter().filter(|is_due| **is_due).count();
    let mut times = GroupTimes::new(wanted.min(groups.len()), due);
    let ended = groups.iter().enumerate().filter(|(_, group)| group.has_ended());
    ended.for_each(|(g, _)| times.end(g, 0));
    if times.bound() == 0 {
        return Ok(StepRollout { chosen: times.chosen(), ..StepRollout::default() });
    }
    let (player, mut play) = cx.play(step);
    player.play_on(trainer, &mut play, groups, times)
}
