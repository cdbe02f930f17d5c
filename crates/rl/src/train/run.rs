//! A language-model run as the loop sees it: how it begins, resumes, saves and reports.

use super::rows::rows;
use crate::context::Cursor;
use crate::data::session::Session;
use crate::diverged::prove;
use crate::methods::estimator::UserEstimator;
use crate::methods::parts::StepParts;
use crate::players::Player;
use crate::roles::{Role, Trainer};
use crate::save::{prepare, save_of_ranks};
use crate::script::{Between, Script, closed};
use crate::supply::apart::{self, QueueFill, whom_at_end};
use crate::supply::restored::Restored;
use crate::supply::{Supply, in_flight};
use plimsoll_base::{Error, Result};
use plimsoll_config::{LearnsFrom, Objective, RunSpec};
use plimsoll_files::{OpenModel, TensorInfo, is_of_further_tokens};
use plimsoll_infer::responder::Responder;
use plimsoll_infer::responses::response_text;
use plimsoll_model::rope;
use plimsoll_plan::{RoleName, longest_sequence};
use plimsoll_reward::Rewards;
use plimsoll_run::checkpoint::{BASE, RoleState, RunState, SCRIPT};
use plimsoll_run::ending::Summary;
use plimsoll_run::events::Event;
use plimsoll_run::lead::{Job, Lead, Save, Saving};
use plimsoll_run::progress::Progress;
use plimsoll_train::name_tensor;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// The name of a trained tower among a checkpoint's roles.
const TOWER: &str = "tower";

pub(super) struct LanguageRun<'r> {
    pub(super) run: &'r RunSpec,
    pub(super) session: Session,
    pub(super) trainer: Trainer<'r>,
    pub(super) rewards: Rewards,
    /// None where advantages are of one by name.
    pub(super) estimator: Option<UserEstimator>,
    /// Parts of a step that only some runs have.
    pub(super) parts: StepParts,
    /// Who produces the responses.
    pub(super) player: Box<dyn Player>,
    /// None where nothing is sampled.
    pub(super) objective: Option<Objective>,
    /// Past what the last step took from the data.
    pub(super) cursor: Cursor,
    /// Where the samples come from, if any are sampled.
    pub(super) supply: Box<dyn Supply>,
    /// Who makes the steps, if not the method.
    pub(super) script: Option<Script>,
    /// How long each rank had waited when the step began.
    pub(super) waited: Vec<Duration>,
}

impl<'r> LanguageRun<'r> {
    fn set_names(&self) -> Vec<String> {
        self.session.eval.iter().map(|set| set.name.clone()).collect()
    }

    /// Restores what the supply had waiting.
    fn restore_supply(&mut self, folder: &Path, state: &RunState) -> Result<()> {
        let Session { data, text, .. } = &mut self.session;
        let (text, rollout, limits) = (&*text, &self.run.rollout, self.player.limits(self.run));
        let mut item = |position: u64| {
            let items = self.player.prompts(text, &mut |first, n| data.batch(text, first, n), position, 1);
            items.map(|mut items| items.pop().expect("one position, one prompt"))
        };
        let words = |ids: &[u32], finish| response_text(text, ids, finish, &rollout.stop, rollout.keep_stop);
        let vocab = self.trainer.sampler.shape.spec.vocab;
        let (run, item) = (self.run, &mut item);
        self.supply.restore(&mut Restored { folder, state, run, vocab, limits, item, text: &words })
    }

    /// Shows a prompt as the model reads it: a wrong form is the commonest cause of a run that learns nothing.
    fn show_first_prompt(&mut self, lead: &mut Lead<'_, '_, '_, '_>) -> Result<()> {
        if let Some(words) = self.session.ending_words(self.run) {
            lead.note(words);
        }
        let Session { model, data, text, facts, .. } = &mut self.session;
        let (longest, known) = (longest_sequence(self.run, facts), facts.spec.max_positions);
        if longest > known as usize {
            lead.note(format!("sequences reach {longest} positions; the model was trained for {known}"));
        }
        let shape = self.trainer.sampler.shape;
        if let Some(words) = rope::words(&shape.spec, shape.positions) {
            lead.note(words);
        }
        if let Some(words) = further_words(model) {
            lead.note(words);
        }
        if let Some(words) = shape.lora.and_then(|lora| lora.shape.reach(&shape.spec)) {
            lead.note(words);
        }
        if self.player.episodes().is_some() {
            return Ok(());
        }
        if let Some(first) = data.batch(text, 0, 1)?.first() {
            lead.note(text.first_prompt_words(first));
        }
        let unread = self.session.unread_words(self.run).into_iter();
        unread.map(|words| format!("rows of {words}")).try_for_each(|text| lead.say(&Event::Rows { text }))
    }

    /// Does what a script asks between two steps, until it begins `step`.
    ///
    /// Errors: `interrupted` where it ends the run; `script-ended`; those of saving.
    fn serve_between<'scope>(&mut self, lead: &mut Lead<'_, '_, 'scope, '_>, step: u32) -> Result<()>
    where
        'r: 'scope,
    {
        loop {
            let Some(script) = &mut self.script else { return Ok(()) };
            let (saves, ends) = match script.between(step)? {
                Between::Step => return Ok(()),
                Between::Save => (true, false),
                Between::Close { save } => (save, true),
            };
            if saves {
                lead.save_now(self)?;
            }
            self.script.iter_mut().try_for_each(Script::done)?;
            if ends {
                return Err(closed(step - 1, saves, lead.dir.path()));
            }
        }
    }

    /// Says where agents play, if they do, and lets them know.
    fn show_players(&mut self, lead: &mut Lead<'_, '_, '_, '_>) -> Result<()> {
        let words = self.player.announce(lead.dir.path())?;
        words.into_iter().for_each(|words| lead.note(words));
        Ok(())
    }
}

/// Returns what a run says of tensors that predict further tokens, if a model's files have any: after training they
/// would be those of another model.
fn further_words(model: &OpenModel) -> Option<String> {
    let is_further = |tensor: &&TensorInfo| is_of_further_tokens(&tensor.name, &model.spec);
    let count = model.tensors.iter().filter(is_further).count();
    (count > 0).then(|| {
        format!(
            "{count} tensors of the model predict further tokens (MTP): nothing trains them, and checkpoints and \
             exports leave them out with their key"
        )
    })
}

impl<'r: 'scope, 'scope> Job<'scope> for LanguageRun<'r> {
    fn begin(&mut self, lead: &mut Lead<'_, '_, 'scope, '_>) -> Result<()> {
        self.show_first_prompt(lead)?;
        self.show_players(lead)?;
        let reports = self.evaluate_sets(lead, 0)?;
        lead.progress.set_before(&self.set_names(), &reports);
        Ok(())
    }

    fn restore(
        &mut self,
        lead: &mut Lead<'_, '_, 'scope, '_>,
        checkpoint: &Path,
        state: &RunState,
    ) -> Result<()> {
        self.show_players(lead)?;
        let first = self.trainer.first().shape.name;
        let then = |role: RoleName| {
            let named = |name| state.roles.get(name).copied();
            named(role.name()).or_else(|| named(BASE).filter(|_| role == first)).unwrap_or_default()
        };
        let of_tower = state.roles.get(TOWER).and_then(|of| of.updates).unwrap_or(state.policy_version);
        let of_role = |role| then(role).updates.unwrap_or(state.policy_version);
        self.trainer.restore(checkpoint, of_role, of_tower)?;
        for role in RoleName::all() {
            let now = self.trainer.role(role).and_then(|role| role.sum_squares);
            check_same(now, then(role).frozen, role, role == first)?;
        }
        if let (Some(coef), Some(objective)) = (state.kl_coef, &mut self.objective) {
            objective.set_kl_coef(coef);
        }
        self.cursor = Cursor { data_position: state.data_position, next_sample_id: state.next_sample_id };
        in_flight::cut(lead.dir.path(), state.progress.step)?;
        if let Some(script) = &mut self.script {
            script.restore(checkpoint)?;
        }
        self.restore_supply(checkpoint, state)
    }

    fn step(&mut self, lead: &mut Lead<'_, '_, 'scope, '_>, step: u32) -> Result<()> {
        self.serve_between(lead, step)?;
        self.waited = self.trainer.group.waited();
        let made = match self.run.method().needs().learns_from {
            LearnsFrom::Samples => self.policy_step(lead, step),
            LearnsFrom::Completions => self.supervised_step(lead, step),
            LearnsFrom::Pairs | LearnsFrom::Labels => self.pair_step(lead, step),
        };
        // Also of a step that failed: what a reward or an agent printed may say why.
        let lines = self.rewards.words().first_lines().into_iter().chain(self.player.first_lines());
        lines.for_each(|line| lead.note(line));
        made
    }

    fn evaluate(&mut self, lead: &mut Lead<'_, '_, 'scope, '_>, step: u32) -> Result<()> {
        self.evaluate_sets(lead, step).map(drop)
    }

    fn evaluate_at_end(&mut self, lead: &mut Lead<'_, '_, 'scope, '_>) -> Result<()> {
        let reports = self.evaluate_sets(lead, self.run.train().steps)?;
        lead.progress.set_after(&self.set_names(), &reports);
        Ok(())
    }

    fn updates(&self) -> u64 {
        self.trainer.all_updates()
    }

    fn agree_on_signal(&self, own: i32) -> Result<i32> {
        let all = self.trainer.group.all_gather(&own.to_le_bytes())?;
        let signals =
            all.iter().filter_map(|bytes| Some(i32::from_le_bytes(bytes.as_slice().try_into().ok()?)));
        Ok(signals.max().unwrap_or(own))
    }

    fn whom_at_end(&self, step: u32) -> Option<String> {
        let apart = self.trainer.apart?.apart;
        let queue = QueueFill { full: self.supply.num_there(), places: self.run.staleness() };
        Some(whom_at_end(apart, step, queue))
    }

    fn has_all_weights(&self) -> bool {
        let is_first = self.trainer.group.rank() == 0;
        is_first && !self.trainer.first().is_spread()
    }

    fn prove(&mut self) -> Result<()> {
        prove(&mut self.trainer)
    }

    fn reload(&mut self) -> Result<()> {
        self.trainer.reload(&self.session.model)
    }

    fn name_tensor(&self, error: Error) -> Error {
        let role = self.trainer.first();
        if role.is_spread() {
            // Others may be gone, and with them their parts.
            return error;
        }
        let (table, learned) = role.learned();
        name_tensor(self.trainer.sampler.dev, table, learned, error)
    }

    fn state(&self, state: &mut RunState) {
        state.policy_version = self.trainer.updates();
        state.data_position = self.cursor.data_position;
        state.next_sample_id = self.cursor.next_sample_id;
        self.supply.state(state);
        state.kl_coef = self.objective.and_then(|objective| objective.adaptive_kl_coef());
        let of = |role: &Role<'_>| RoleState {
            updates: role.optimizer.is_some().then(|| role.updates()),
            frozen: role.sum_squares,
        };
        let roles = RoleName::all().filter_map(|name| Some((name, self.trainer.role(name)?)));
        state.roles = roles.map(|(name, role)| (name.name().into(), of(role))).collect();
        if let Some(tower) = &self.trainer.tower {
            let of_tower = RoleState { updates: Some(tower.optimizer.step), frozen: None };
            state.roles.insert(TOWER.into(), of_tower);
        }
    }

    fn score(&self, progress: &Progress) -> Option<f64> {
        progress.last_metric.filter(|_| progress.last_eval_step == progress.saved_step)
    }

    fn keeps_best(&self) -> bool {
        true
    }

    fn save(&mut self, saving: Saving<'_>) -> Result<Save<'scope>> {
        let group = self.trainer.group;
        if group.is_alone() {
            let everything = saving.everything.is_some();
            let mut job = prepare(&self.trainer, &self.session.model, &*self.supply, saving)?;
            if let Some(state) = self.script.as_ref().and_then(Script::state).filter(|_| everything) {
                job.add_file(SCRIPT, state)?;
            }
            return Ok(Save::Later(Box::new(move || job.run())));
        }
        let (trainer, model, supply) = (&mut self.trainer, &self.session.model, &*self.supply);
        Ok(Save::Done(match trainer.apart {
            Some(with) => apart::save(trainer, with, model, supply, saving)?,
            None => save_of_ranks(trainer, group, model, supply, saving)?,
        }))
    }

    fn summary(&self, lead: &Lead<'_, '_, 'scope, '_>) -> Summary {
        let p = &lead.progress;
        let rate = |tokens: u64, seconds: f64| {
            if tokens > 0 && seconds > 0.0 { json!(tokens as f64 / seconds) } else { Value::Null }
        };
        let mut summary = json!({
            "steps": p.step,
            "eval_before": p.eval_before,
            "eval_after": p.eval_after,
            "pass_at_k_before": p.pass_at_k_before,
            "pass_at_k_after": p.pass_at_k_after,
            "sets": p.sets_json(),
            "best": p.best.map(|best| json!({ "step": best.step, "metric": self.run.eval.metric, "value": best.score })),
            "reward_first": p.reward_first,
            "reward_last": p.reward_last,
            "seconds": lead.seconds(),
            "tokens_per_second_rollout": rate(p.rollout_tokens, p.rollout_s),
            "tokens_per_second_update": rate(p.update_tokens, p.update_s),
            "share_of_peak": lead.share_of_peak(),
        });
        lead.common_summary(&mut summary);
        if let Some(carry) = &p.carry {
            summary["carry"] = carry.summary();
        }
        if let Some(rows) = rows(self.trainer.group, &summary) {
            summary["ranks"] = rows;
        }
        if let (Some(accuracy), Some(margin)) = (p.pair_accuracy_before, p.pair_margin_before) {
            summary["pairs_before"] = json!({ "accuracy": accuracy, "margin": margin });
        }
        if let (Some(accuracy), Some(margin)) = (p.pair_accuracy_after, p.pair_margin_after) {
            summary["pairs_after"] = json!({ "accuracy": accuracy, "margin": margin });
        }
        summary
    }
}

/// Requires that the weights of a role that do not learn are those that the run began with.
///
/// Errors: `resume-differs`.
fn check_same(now: Option<f64>, then: Option<f64>, role: RoleName, is_first: bool) -> Result<()> {
    if now.map(f64::to_bits) == then.map(f64::to_bits) {
        return Ok(());
    }
    let (whose, what_for) = match role {
        _ if is_first => ("`model`", "what the adapters change"),
        RoleName::Critic => ("`critic.model`", "what the adapters change"),
        RoleName::Actor | RoleName::Reference => ("`model`", "the reference"),
        RoleName::Teacher(_) => ("`distill.teacher`", "what the student learns from"),
        _ => ("the reward model", "what scores responses"),
    };
    let message = format!("the weights of {whose} are not those that the run began with");
    Err(Error::new("resume-differs", message)
        .fact(format!("they are {what_for}"))
        .hint("put the model back as it was"))
}
