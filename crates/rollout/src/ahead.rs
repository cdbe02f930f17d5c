//! Decode passes that run ahead of the host: while there is only decoding to do, recorded passes follow each other on
//! the device, and the host looks at each pass's tokens while the next one runs.
//!
//! Blocks for all passes of a run are allocated before it; a sequence that has ended keeps its row until the run ends
//! and writes into its own blocks and the spare one. Rows are padded to a bucket with copies of the last one, which
//! write the same bits to the same places; if rows have states, with a spare sequence that has none.

use crate::Samples;
use crate::engine::{Engine, Model, Request, StopCondition};
use crate::limits::{PASSES_MAX, bucket};
use crate::stats::RolloutStats;
use plimsoll_base::Result;
use plimsoll_device::{ATTENTION_CHUNK, Device, KEY_WORDS, NO_PARENT, Pipeline, Sampling};
use plimsoll_model::{
    Decoder, DrawRun, Pass, PassIndex, advance, draw, layers, list_rows, name_rows, rehearsal_sizes,
    score_rows, upload_keys,
};

/// What is recorded of a decode pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// All of it: requests whose responses are drawn alike.
    Whole,
    /// Its layers: requests that come and go.
    Layers,
}

/// Inputs and outputs of a run of passes.
pub(crate) struct Run<'r, 'a, 'p> {
    pub(crate) pipeline: &'r dyn Pipeline,
    pub(crate) model: Model<'r, 'a, 'p>,
    pub(crate) request: &'r Request<'r>,
}

impl Engine {
    /// Decodes ahead of the host as long as there is nothing else to do. False if it cannot.
    pub(crate) fn run_ahead(
        &mut self,
        run: &mut Run<'_, '_, '_>,
        stop: &mut dyn StopCondition,
        out: &mut Samples,
        stats: &mut RolloutStats,
    ) -> Result<bool> {
        let (new_tokens, vocab) = (run.request.max_new_tokens, run.model.decoder.spec.vocab);
        let passes = self.schedule.next_run(out, |_| new_tokens, PASSES_MAX, |_| (), &mut self.index);
        if passes == 0 {
            return Ok(false);
        }
        let live = self.schedule.head_samples.len();
        let rows = self.index.ids.len();
        self.ended.clear();
        self.ended.resize(live, false);
        let key_of = |s| (run.request.sampling.seed, run.request.sample_id(s));
        let pass = self.begin_run(run.model, key_of, out);
        let (mut left, mut done) = (live, 0);
        for step in 0..passes {
            let tokens = self.put_pass(run, &pass);
            run.pipeline.fetch(step % 2, &[tokens, pass.head_out().logprobs]);
            done += 1;
            if step > 0 {
                left -= self.take_pass(run, (step - 1) % 2, stop, out)?;
            }
            if self.should_leave(left, live, rows) || (step > 0 && self.drafts_pay(vocab, run.request, out)) {
                break;
            }
        }
        self.take_pass(run, (done - 1) % 2, stop, out)?;
        self.schedule.end_run(out);
        stats.passes += done as u64;
        stats.rows += (done * live) as u64;
        Ok(true)
    }

    /// Runs a pass of every size that a request may need, and records every pass that runs ahead, so that the device
    /// allocates for them before the first request. Does nothing on a device without a pipeline.
    ///
    /// Errors: those of the device.
    pub fn rehearse(
        &mut self,
        model: Model<'_, '_, '_>,
        samplings: &[Sampling],
        recorded: Recorded,
    ) -> Result<()> {
        let Model { dev, decoder, .. } = model;
        let Some(pipeline) = dev.pipeline() else { return Ok(()) };
        let limits = self.limits.pass();
        for &sampling in samplings {
            let request = Request {
                prompts: &[],
                group_size: 1,
                max_new_tokens: 1,
                sampling,
                eos: &[],
                first_sample_id: 0,
                numbers: &[],
            };
            let run = Run { pipeline, model, request: &request };
            for rows in rehearsal_sizes(&limits, self.limits.keys()) {
                let heads = rows.min(limits.head_rows);
                self.index.rehearse(&limits, rows, self.limits.keys(), heads);
                self.keys.clear();
                self.keys.resize(heads * KEY_WORDS, 0);
                let pass = self.upload_placed(model);
                layers(dev, decoder, &pass);
                upload_keys(dev, &pass, &self.keys);
                draw(dev, decoder, &pass, sampling);
                if pass.listed().is_some() {
                    score_rows(dev, decoder, &pass, &self.keys[..heads]);
                    list_rows(dev, decoder, &pass, 0, &DrawRun::plain(heads, sampling));
                    name_rows(dev, decoder, &pass, &vec![0; self.limits.listed]);
                }
            }
            if recorded == Recorded::Whole || sampling == samplings[0] {
                for size in self.limits.recorded_sizes() {
                    self.rehearse_run(&run, recorded, size, false);
                    if recorded == Recorded::Layers && size.0 > 1 && !self.schedule.adapters.is_empty() {
                        self.rehearse_run(&run, recorded, size, true);
                    }
                }
            }
            dev.sync();
            dev.check()?;
        }
        Ok(())
    }

    /// Runs a pass of rows and keys, records it, and replays it. `mixed`: neighbours have several adapters.
    fn rehearse_run(
        &mut self,
        run: &Run<'_, '_, '_>,
        recorded: Recorded,
        (rows, keys_max): (usize, usize),
        mixed: bool,
    ) {
        let (stride, limits) = (self.limits.table_stride(), self.limits.pass());
        self.index.clear();
        for row in 0..rows {
            self.index.ids.push(0);
            self.index.positions.push(0);
            self.index.segments.extend_from_slice(&[row as u32, 1, 0, (row * stride) as u32, NO_PARENT]);
            self.index.head_rows.push(row as u32);
            self.index.push_spare(&limits, stride);
            self.index.adapters.extend(mixed.then_some(row as u32 % 2));
        }
        self.index.keys_max = keys_max;
        self.keys.clear();
        self.keys.resize(rows * KEY_WORDS, 0);
        let pass = self.upload_placed(run.model);
        upload_keys(run.model.dev, &pass, &self.keys);
        let key = graph_key(run.model.decoder, &self.index, None);
        for _ in 0..3 {
            match recorded {
                Recorded::Whole => _ = self.put_pass(run, &pass),
                Recorded::Layers => {
                    run.pipeline.replay(key, &mut || layers(run.model.dev, run.model.decoder, &pass));
                    draw(run.model.dev, run.model.decoder, &pass, run.request.sampling);
                }
            }
        }
    }

    /// Uploads rows at place 0, if rows have places: what is recorded is then what passes with images replay.
    fn upload_placed<'p>(&mut self, model: Model<'_, '_, 'p>) -> Pass<'p> {
        if model.sight.is_some() {
            self.index.places.resize(3 * self.index.ids.len(), 0);
        }
        self.upload(model)
    }

    /// Uploads the first pass's rows and keys.
    pub(crate) fn begin_run<'p>(
        &mut self,
        model: Model<'_, '_, 'p>,
        key_of: impl Fn(usize) -> (u64, u64),
        out: &Samples,
    ) -> Pass<'p> {
        self.push_keys(key_of, out);
        // Rows that fill a bucket are copies of the last.
        let last = self.keys.len() - KEY_WORDS;
        while self.keys.len() < KEY_WORDS * self.index.head_rows.len() {
            self.keys.extend_from_within(last..last + KEY_WORDS);
        }
        let pass = self.upload(model);
        upload_keys(model.dev, &pass, &self.keys);
        pass
    }

    /// Issues one pass: layers, sampling, and the step to the next position.
    pub(crate) fn put_pass<'p>(&self, run: &Run<'_, '_, 'p>, pass: &Pass<'p>) -> plimsoll_memory::Buf<'p> {
        let how = run.request.sampling;
        let key = graph_key(run.model.decoder, &self.index, Some(how));
        run.pipeline.replay(key, &mut || {
            layers(run.model.dev, run.model.decoder, pass);
            draw(run.model.dev, run.model.decoder, pass, how);
            advance(run.model.dev, pass);
        });
        pass.tokens()
    }

    /// Takes the tokens of a pass that has finished. Returns how many responses ended with it.
    fn take_pass(
        &mut self,
        run: &Run<'_, '_, '_>,
        slot: usize,
        stop: &mut dyn StopCondition,
        out: &mut Samples,
    ) -> Result<usize> {
        self.take_fetched(run.model.dev, run.pipeline, slot)?;
        let mut ended = 0;
        for row in 0..self.ended.len() {
            if !self.ended[row] {
                self.ended[row] = self.take_token(row, run.request, stop, out)?;
                ended += usize::from(self.ended[row]);
            }
        }
        Ok(ended)
    }

    /// Waits for a pass's tokens and log-probabilities.
    ///
    /// Errors: those of the device.
    pub(crate) fn take_fetched(
        &mut self,
        dev: &dyn Device,
        pipeline: &dyn Pipeline,
        slot: usize,
    ) -> Result<()> {
        let rows = self.index.head_rows.len();
        pipeline.fetched(slot, &mut |words| {
            for row in 0..rows {
                self.tokens[row] = words[row];
                self.logprobs[row] = f32::from_bits(words[rows + row]);
            }
        });
        dev.check()
    }

    /// True if the remaining rows would fit a clearly smaller bucket, or make room for a waiting sequence.
    pub(crate) fn should_leave(&self, left: usize, live: usize, rows: usize) -> bool {
        left == 0 || (left < live && self.schedule.someone_waits()) || bucket(left) * 4 <= rows * 3
    }
}

/// Returns a hash of everything that a decode pass's launches depend on; without `how`, those of its layers.
pub(crate) fn graph_key(decoder: &Decoder<'_>, index: &PassIndex, how: Option<Sampling>) -> u64 {
    hash_of(decoder.adapters_key(), index, how)
}

fn hash_of(adapters: u64, index: &PassIndex, how: Option<Sampling>) -> u64 {
    let drawn = how.map_or([u64::MAX; 2], |how| {
        [
            u64::from(how.temperature.to_bits()) << 32 | u64::from(how.top_k),
            u64::from(how.top_p.to_bits()) << 32 | u64::from(how.min_p.to_bits()),
        ]
    });
    let (rows, keys) = (index.ids.len() as u64, index.keys_max.div_ceil(ATTENTION_CHUNK) as u64);
    let words = [adapters, index.mixes_adapters().into(), rows, keys, drawn[0], drawn[1]];
    // FNV-1a over words: a run has a handful of keys.
    words.iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_several_adapters_have_a_recording_of_their_own() {
        let of = |adapters: &[u32]| PassIndex {
            ids: vec![0; 4],
            adapters: adapters.to_vec(),
            keys_max: ATTENTION_CHUNK,
            ..PassIndex::default()
        };
        let key = |adapters: &[u32]| hash_of(1, &of(adapters), None);
        assert_eq!(key(&[]), key(&[3, 3, 3, u32::MAX]));
        assert_ne!(key(&[3, 3, 3, 3]), key(&[3, 3, 1, 3]));
        assert_eq!(key(&[0, 1, 0, 1]), key(&[0, 1, 2, 3]));
    }
}
