//! Decode passes of requests that come and go: while no prompt has rows, a pass's layers are recorded once for a number
//! of rows and replayed, and what follows them is not, so responses that are drawn in any way share a recording.
//!
//! Responses without masks, biases and lists then run ahead of the host for a few passes, as those of one request do
//! (`ahead.rs`); others need what the host makes of the last token, so their passes come one by one.

use super::{Listener, Live};
use crate::ahead::graph_key;
use crate::engine::HeadRuns;
use plimsoll_base::Result;
use plimsoll_device::Pipeline;
use plimsoll_model::{DrawRun, advance, draw_runs, layers};

/// Most passes that run ahead: who hangs up keeps a row for as long.
const PASSES: usize = 16;

impl Live<'_, '_, '_> {
    /// Runs decode passes if nothing else is to be done. False if it cannot.
    ///
    /// Errors: those of the device.
    pub(super) fn run_ahead(&mut self, listener: &mut dyn Listener) -> Result<bool> {
        let Live { model, engine, out, slots, .. } = self;
        let Some(pipeline) = model.dev.pipeline().filter(|_| engine.limits.ahead) else { return Ok(false) };
        let is_free = engine.schedule.open_slots().iter().all(|&s| slots[s].has_nothing_of_its_own());
        let (new_tokens, alike) = (|s: usize| slots[s].max_new_tokens, |s: usize| slots[s].alike());
        let most = if is_free { PASSES } else { 1 };
        let passes = engine.schedule.next_run(out, new_tokens, most, alike, &mut engine.index);
        if passes == 0 {
            return Ok(false);
        }
        if is_free {
            self.run_free(pipeline, passes, listener)?;
        } else {
            self.run_one(pipeline, listener)?;
        }
        self.engine.schedule.end_run(self.out);
        Ok(true)
    }

    /// Runs passes whose next rows the device makes.
    fn run_free(
        &mut self,
        pipeline: &dyn Pipeline,
        passes: usize,
        listener: &mut dyn Listener,
    ) -> Result<()> {
        self.order_run();
        let Live { model, engine, out, slots, .. } = self;
        let (model, live, rows) = (*model, engine.schedule.head_samples.len(), engine.index.ids.len());
        engine.ended.clear();
        engine.ended.resize(live, false);
        let key = graph_key(model.decoder, &engine.index, None);
        let pass = engine.begin_run(model, |s| (slots[s].sampling.seed, slots[s].sample_id), out);
        let (mut left, mut done) = (live, 0);
        for step in 0..passes {
            pipeline.replay(key, &mut || layers(model.dev, model.decoder, &pass));
            let tokens = draw_runs(model.dev, model.decoder, &pass, &self.runs);
            advance(model.dev, &pass);
            pipeline.fetch(step % 2, &[tokens, pass.head_out().logprobs]);
            done += 1;
            if step > 0 {
                left -= self.take_pass(pipeline, (step - 1) % 2, listener)?;
            }
            if self.engine.should_leave(left, live, rows) || listener.waits() {
                break;
            }
        }
        self.take_pass(pipeline, (done - 1) % 2, listener)?;
        self.stats.passes += done as u64;
        self.stats.rows += (done * live) as u64;
        Ok(())
    }

    /// Runs one pass whose rows may have masks and biases, and may be listed.
    fn run_one(&mut self, pipeline: &dyn Pipeline, listener: &mut dyn Listener) -> Result<()> {
        self.order_heads();
        let key = graph_key(self.model.decoder, &self.engine.index, None);
        self.pass(listener, |model, pass| {
            pipeline.replay(key, &mut || layers(model.dev, model.decoder, pass));
        })
    }

    /// Makes the runs of rows that are drawn alike. Rows that fill the pass are drawn as the last one is, whose copies
    /// they are.
    fn order_run(&mut self) {
        let Live { engine, slots, heads, runs, .. } = self;
        heads.clear();
        runs.clear();
        for (row, &slot) in engine.schedule.head_samples.iter().enumerate() {
            let is_like = heads.last().is_some_and(|&(_, last)| slots[last].alike() == slots[slot].alike());
            match runs.last_mut().filter(|_| is_like) {
                Some(run) => run.rows += 1,
                None => runs.push(slots[slot].run()),
            }
            heads.push((row as u32, slot));
        }
        let fillers = engine.index.head_rows.len() - heads.len();
        runs.last_mut().into_iter().for_each(|run: &mut DrawRun| run.rows += fillers);
    }

    /// Takes the tokens of a pass that has finished. Returns how many responses ended with it.
    fn take_pass(
        &mut self,
        pipeline: &dyn Pipeline,
        slot: usize,
        listener: &mut dyn Listener,
    ) -> Result<usize> {
        self.engine.take_fetched(self.model.dev, pipeline, slot)?;
        let mut ended = 0;
        for row in 0..self.heads.len() {
            if !self.engine.ended[row] {
                let has_ended = self.take(row, listener);
                self.engine.ended[row] = has_ended;
                ended += usize::from(has_ended);
            }
        }
        Ok(ended)
    }

    /// Runs the scheduled pass, its layers by `compute`, and reports its tokens.
    pub(super) fn pass(
        &mut self,
        listener: &mut dyn Listener,
        compute: impl FnOnce(crate::Model<'_, '_, '_>, &plimsoll_model::Pass<'_>),
    ) -> Result<()> {
        let Live { model, engine, out, slots, runs, given, named_ids, listed, stats, unmasked, .. } = self;
        let heads = HeadRuns { runs, given, named: named_ids, listed };
        let mut masker = super::Masker { listener, slots, unmasked };
        let key = |s: usize| (slots[s].sampling.seed, slots[s].sample_id);
        engine.pass(*model, &heads, key, (out, &mut masker), stats, compute)?;
        self.report_scored(listener);
        for row in 0..self.heads.len() {
            self.take(row, listener);
        }
        Ok(())
    }
}
