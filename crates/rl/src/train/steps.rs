//! The steps that a language-model run can make: of a sampling policy, of text, and of pairs. Each ends by reporting
//! its numbers to the loop.

use super::rows::waited_since;
use super::run::LanguageRun;
use crate::context::StepContext;
use crate::data::session::Session;
use crate::methods::policy::step;
use crate::methods::sft::sft_step;
use crate::methods::{PairMethod, metrics};
use crate::players::KeptEpisode;
use crate::roles::UpdateStats;
use crate::supply::rollout::StepSamples;
use plimsoll_base::Result;
use plimsoll_infer::model_reward;
use plimsoll_infer::responses::{KeptSample, Place, SamplesHeader};
use plimsoll_infer::sample_images::kept_images;
use plimsoll_plan::SAMPLES_KEPT;
use plimsoll_run::lead::{Lead, Stepped};
use plimsoll_run::metrics::Metrics;
use plimsoll_run::run_dir::RunDir;
use plimsoll_run::scores::EvalReport;
use plimsoll_run::status::Doing;
use plimsoll_run::vitals::Vitals;
use std::cell::RefCell;
use std::time::Instant;

impl LanguageRun<'_> {
    pub(super) fn policy_step(&mut self, lead: &mut Lead<'_, '_, '_, '_>, n: u32) -> Result<()> {
        let started = Instant::now();
        self.expect_images();
        let objective = self.objective.expect("a method that samples has an objective");
        let Session { data, text, model, .. } = &mut self.session;
        let (text, said) = (&*text, RefCell::new(&mut *lead));
        let mut cx = StepContext {
            run: self.run,
            text,
            eos: &model.eos_token_ids,
            objective,
            rewards: &mut self.rewards,
            player: &mut *self.player,
            estimator: self.estimator.as_mut(),
            parts: &mut self.parts,
            prompts: &mut |first, n| data.batch(text, first, n),
            cursor: self.cursor,
            edge: &mut |doing| said.borrow_mut().part(doing, n),
            waits: &mut |whom| said.borrow_mut().waits_for(whom),
        };
        let result = match &mut self.script {
            None => step(&mut self.trainer, &mut *self.supply, &mut cx, n),
            Some(script) => script.step(&mut self.trainer, &mut cx, n),
        };
        let StepContext { objective, cursor, .. } = cx;
        self.objective = Some(objective);
        let report = result?;
        // A failed step is made again from where it began.
        self.cursor = cursor;
        let seconds = started.elapsed().as_secs_f64();
        let progress = &mut lead.progress;
        progress.mismatch_max = progress.mismatch_max.max(report.logprob_mismatch_max);
        progress.rollout_tokens += report.sampled_tokens as u64;
        progress.update_tokens += report.update_rows;
        progress.rollout_s += report.seconds.rollout;
        progress.update_s += report.seconds.update;
        progress.flops += report.flops;
        progress.rollout_flops += report.rollout_flops;
        progress.rollout_passes += report.rollout_passes;
        let reward = report.reward;
        progress.reward_first = progress.reward_first.or(reward);
        progress.reward_last = reward.or(progress.reward_last);
        self.supply.record(lead, n)?;
        if let Some(samples) = &report.samples {
            self.keep_samples(&lead.dir, n, samples)?;
        }
        if let Some(fault) = &report.fault {
            lead.note(format!("step {n}: an episode was left out: {fault}"));
        }
        if let Some(samples) = report.samples.as_ref().filter(|_| n == 1) {
            note_faults(samples, lead);
        }
        let mut metrics = report.metrics;
        metrics.insert("num_tokens".into(), lead.progress.rollout_tokens as f64);
        self.add_image_seconds(&mut metrics);
        let sets: Vec<&str> = self.session.data.names().collect();
        let groups = report.samples.as_ref().map_or(&[][..], StepSamples::groups);
        metrics::add_sets(&mut metrics, &sets, groups);
        let (vitals, loss) = (report.vitals, report.reverse_kl);
        let told = self.script.is_some().then(|| metrics.clone());
        self.step_done(lead, n, Stepped { seconds, reward, loss, metrics, vitals, ..Stepped::default() })?;
        // Its script hears of a step once that is written down.
        self.script.as_mut().zip(told).map_or(Ok(()), |(script, metrics)| script.made(n, &metrics))
    }

    /// Tells which images the step after this one will probably need: those of the prompts after its own.
    fn expect_images(&mut self) {
        let Some(images) = &mut self.trainer.sampler.images else { return };
        let count = self.run.prompts_per_rollout();
        let first = self.cursor.data_position + count;
        match self.player.images_of(first) {
            None => images.expect(self.session.data.images_at(first, count as usize).iter()),
            Some(_) => {
                let prompts = first..first + count;
                images.expect(prompts.filter_map(|prompt| self.player.images_of(prompt)).flatten());
            }
        }
    }

    pub(super) fn supervised_step(&mut self, lead: &mut Lead<'_, '_, '_, '_>, n: u32) -> Result<()> {
        let started = Instant::now();
        let rows = self.run.rollout.prompts_per_step as usize;
        let items = self.session.data.batch(&self.session.text, self.cursor.data_position, rows)?;
        lead.part(Doing::Update, n);
        let report = sft_step(&mut self.trainer, self.run, &items, n)?;
        self.cursor.data_position += rows as u64;
        self.cursor.next_sample_id += rows as u64;
        let (loss, metrics) = (report.sums.mean_nll(), metrics::of_sft(&report));
        self.data_step_done(lead, n, started, report.update, loss, metrics)
    }

    pub(super) fn pair_step(&mut self, lead: &mut Lead<'_, '_, '_, '_>, n: u32) -> Result<()> {
        let started = Instant::now();
        let rows = self.run.rollout.prompts_per_step as usize;
        let items = self.session.data.batch(&self.session.text, self.cursor.data_position, rows)?;
        lead.part(Doing::Update, n);
        let method = PairMethod::of(self.run.method());
        let report = (method.step)(&mut self.trainer, self.run, &items, n)?;
        self.cursor.data_position += rows as u64;
        self.cursor.next_sample_id += 2 * rows as u64;
        let (loss, metrics) = (report.sums.loss, metrics::of_pairs(&report));
        self.data_step_done(lead, n, started, report.update, loss, metrics)
    }

    /// Adds the seconds of a step in which images were decoded and seen, in a run with images.
    fn add_image_seconds(&mut self, metrics: &mut Metrics) {
        if let Some(seconds) = self.trainer.take_image_seconds() {
            metrics.insert("time/images".into(), seconds);
        }
    }

    /// Reports a step that is all update.
    fn data_step_done(
        &mut self,
        lead: &mut Lead<'_, '_, '_, '_>,
        n: u32,
        started: Instant,
        update: UpdateStats,
        loss: f64,
        mut metrics: Metrics,
    ) -> Result<()> {
        self.add_image_seconds(&mut metrics);
        let seconds = started.elapsed().as_secs_f64();
        lead.progress.update_tokens += update.rows;
        lead.progress.update_s += seconds;
        let loss = Some(loss);
        let vitals = Vitals { grad_norm: Some(update.grad_norm), loss, ..Vitals::default() };
        self.step_done(lead, n, Stepped { seconds, loss, metrics, vitals, ..Stepped::default() })
    }

    fn step_done(&mut self, lead: &mut Lead<'_, '_, '_, '_>, n: u32, stepped: Stepped) -> Result<()> {
        if n == 1 {
            self.note_idle_ranks(lead, &stepped.metrics);
        }
        let accuracy = lead.progress.last_eval;
        let ranks_waited = waited_since(&self.waited, self.trainer.group);
        let stepped = Stepped { accuracy, counts_tokens: true, ranks_waited, ..stepped };
        lead.step_done(n, self.trainer.all_updates(), stepped)
    }

    /// Says after the first step if an update has fewer micro-batches than there are ranks.
    fn note_idle_ranks(&self, lead: &mut Lead<'_, '_, '_, '_>, metrics: &Metrics) {
        let ranks = self.trainer.apart.map_or(self.trainer.group.ranks(), |ranks| ranks.apart.trainers());
        let count = metrics.get("update/micro_batches").map_or(ranks, |count| *count as usize);
        // A step that trains no actor has none.
        if (1..ranks).contains(&count) {
            let idle = ranks - count;
            lead.note(format!(
                "an update has {count} micro-batches, so {idle} of {ranks} ranks wait for it; train.cut_multiple = {ranks} makes {ranks}"
            ));
        }
    }

    /// Writes the first samples of every twentieth step, of the first and of the last.
    fn keep_samples(&mut self, dir: &RunDir, n: u32, of: &StepSamples) -> Result<()> {
        let every = (self.run.train().steps / 20).max(1);
        if n != 1 && !n.is_multiple_of(every) && n != self.run.train().steps {
            return Ok(());
        }
        let (group, samples) = (self.run.rollout.group_size as usize, &*of.rollout.samples);
        if let Some(episodes) = self.player.episodes() {
            let kept = 0..episodes.num_played().min(SAMPLES_KEPT);
            let album = self.session.text.album.as_deref();
            let rows = kept.map(|s| episodes.kept(n, samples, s).with_placeholders(album));
            let mut rows: Vec<KeptEpisode> = rows.collect();
            for row in &mut rows {
                let images = self.player.images_of(row.episode).unwrap_or_default();
                if let Some(album) = &self.session.text.album {
                    row.images = kept_images(images, album, &mut |file, png| dir.write_thumbnail(file, png))?;
                }
            }
            return dir.write_samples(n, &rows);
        }
        let names = model_reward::names(&self.rewards, &self.run.model_rewards);
        let names: Vec<String> = names.into_iter().map(str::to_string).collect();
        let sets: Vec<&str> = self.session.data.names().collect();
        let kept = SamplesHeader {
            text: &self.session.text,
            step: n,
            answer_column: &self.run.data.answer_column,
            names: &names,
            samples,
            policy_version: of.rollout.of.policy_version,
        };
        let which =
            of.groups.start * group..(of.groups.end * group).min(of.groups.start * group + SAMPLES_KEPT);
        let mut images = Vec::new();
        if let Some(album) = &self.session.text.album {
            for of in of.rollout.groups.iter().take(which.end.div_ceil(group)).skip(of.groups.start) {
                images.push(kept_images(&of.item.images, album, &mut |file, png| {
                    dir.write_thumbnail(file, png)
                })?);
            }
        }
        let first = of.groups.start;
        let rows: Vec<KeptSample> = which
            .map(|s| {
                let versions = of.rollout.versions.get(s).map_or(&[][..], Vec::as_slice);
                let (of, i) = (&of.rollout.groups[s / group], s % group);
                let place = Place { set: sets[of.item.set], index: of.position, of_group: i };
                let images = images.get(s / group - first).cloned().unwrap_or_default();
                let sample = kept.sample(s, place, &of.item, &of.texts[i], &of.scored[i]);
                sample.with_images(images).drawn_by(versions)
            })
            .collect();
        dir.write_samples(n, &rows)
    }
}

/// Says after the first step how many responses have no visible character, and how many are cut: a mean reward shows
/// neither.
fn note_faults(samples: &StepSamples, lead: &mut Lead<'_, '_, '_, '_>) {
    let texts = samples.groups().iter().flat_map(|group| &group.texts);
    let empty = texts.filter(|text| text.trim().is_empty()).count();
    let words = EvalReport::fault_words(empty, samples.num_cut());
    if !words.is_empty() {
        lead.note(format!("step 1: {} responses{words}", samples.sequences().len()));
    }
}
