//! Passes that verify drafts: a sequence has its last token and its drafts as rows, each row draws, and what is drawn
//! is kept up to the first token that is not the draft.
//!
//! The rows are those of the passes that would come one after the other, each a segment of its own over the sequence's
//! blocks: keys of all rows are written before one is read, and a row reads those up to its own. So it takes the same
//! kernels as any pass that decodes, and where these are recorded the same recordings. Keys of drafts that were wrong
//! stay where they are until the right token's take their place; no row reads them before, and no block is named by
//! them.

use crate::Samples;
use crate::ahead::Run;
use crate::drafts::{Drafter, Known};
use crate::engine::{Engine, HeadRuns, Model, Request, StopCondition};
use crate::limits::bucket;
use crate::schedule::Schedule;
use crate::stats::RolloutStats;
use plimsoll_base::Result;
use plimsoll_model::{DrawRun, Pass, layers};

impl Engine {
    /// Runs a pass that verifies drafts, if there are any and nothing else is to be done. False if it has run none.
    ///
    /// Errors: those of the pass.
    pub(crate) fn verify(
        &mut self,
        (model, request): (Model<'_, '_, '_>, &Request<'_>),
        stop: &mut dyn StopCondition,
        out: &mut Samples,
        stats: &mut RolloutStats,
    ) -> Result<bool> {
        if !self.drafter.as_ref().is_some_and(Drafter::is_on)
            || self.schedule.only_decoding(out, &mut self.index).is_empty()
        {
            return Ok(false);
        }
        if !self.drafts_pay(model.decoder.spec.vocab, request, out) {
            return Ok(false);
        }
        let drafts = self.drafter.as_ref().expect("it drafts").drafts();
        let most = if stop.has_turns() { self.limits.new_tokens } else { request.max_new_tokens };
        if !self.schedule.next_verified(out, |_| most, |s| drafts.of(s), &mut self.index) {
            return Ok(false);
        }
        let rows = self.schedule.head_samples.len();
        let key_of = |s| (request.sampling.seed, request.sample_id(s));
        match model.dev.pipeline().filter(|_| self.limits.ahead) {
            Some(pipeline) => {
                let run = Run { pipeline, model, request };
                let pass = self.begin_run(model, key_of, out);
                let tokens = self.put_pass(&run, &pass);
                pipeline.fetch(0, &[tokens, pass.head_out().logprobs]);
                self.take_fetched(model.dev, pipeline, 0)?;
                stats.passes += 1;
                stats.rows += rows as u64;
            }
            None => {
                let runs = [DrawRun::plain(rows, request.sampling)];
                let heads = HeadRuns { runs: &runs, ..HeadRuns::default() };
                let compute =
                    |model: Model<'_, '_, '_>, pass: &Pass<'_>| layers(model.dev, model.decoder, pass);
                self.pass(model, &heads, key_of, (out, stop), stats, compute)?;
            }
        }
        self.take_verified(rows, request, stop, out, stats)?;
        Ok(true)
    }

    /// Drafts for the running sequences. True if a pass that verifies the drafts takes less time for a token.
    pub(crate) fn drafts_pay(&mut self, vocab: u32, request: &Request<'_>, out: &Samples) -> bool {
        let Engine { drafter: Some(drafter), schedule, limits, .. } = self else { return false };
        if !drafter.is_on() {
            return false;
        }
        let running = schedule.running();
        for &sample in running {
            drafter.learn(&known(schedule, request, out, sample));
        }
        // The token after the last draft is drawn too.
        let room = |s: usize| {
            let of_turn = request.max_new_tokens - out.turn(s).len();
            let of_response = limits.new_tokens - out.ids(s).len();
            of_turn.min(of_response).min(limits.step()) - 1
        };
        let padded = |rows| if limits.ahead { bucket(rows) } else { rows };
        drafter.draft(running, room, vocab, padded, schedule.someone_waits())
    }

    /// Adds the last tokens of a response that has ended to its text, from which others are drafted.
    pub(crate) fn learn(&mut self, sample: usize, request: &Request<'_>, out: &Samples) {
        let Some(drafter) = self.drafter.as_mut().filter(|drafter| drafter.is_on()) else { return };
        drafter.learn(&known(&self.schedule, request, out, sample));
    }

    /// Takes the tokens of a pass that has verified drafts.
    fn take_verified(
        &mut self,
        rows: usize,
        request: &Request<'_>,
        stop: &mut dyn StopCondition,
        out: &mut Samples,
        stats: &mut RolloutStats,
    ) -> Result<()> {
        let mut row = 0;
        stats.drafted.passes += 1;
        while row < rows {
            let s = self.schedule.head_samples[row];
            let drafts = self.drafter.as_ref().map_or(0, |drafter| drafter.drafts().of(s).len());
            stats.drafted.sequences += 1;
            stats.drafted.drafts += drafts as u64;
            for at in 0..=drafts {
                self.schedule.know(s, out.ids(s));
                let has_ended = self.take_token(row + at, request, stop, out)?;
                let drafted =
                    self.drafter.as_ref().and_then(|drafter| drafter.drafts().of(s).get(at).copied());
                let is_right = drafted == Some(self.tokens[row + at]);
                stats.drafted.accepted += u64::from(is_right);
                if has_ended || !is_right {
                    break;
                }
            }
            row += 1 + drafts;
        }
        Ok(())
    }
}

fn known<'k>(schedule: &Schedule, request: &Request<'k>, out: &'k Samples, sample: usize) -> Known<'k> {
    let group = schedule.group(sample);
    Known { sample, group, prompt: request.prompts[group], ids: out.ids(sample) }
}
