//! The forward pass, once for training, scoring, prefill and decode.

use crate::cache_index::Place;
use crate::decoder::{Decoder, Layers, Way};
use crate::layer::LayerPass;
use crate::own_logits::DrawRun;
use crate::parts;
use crate::pass::Pass;
use plimsoll_device::{Batch, Device, HeadOut, HeadSide, KEY_WORDS, ListedTokens, Sample, Sampling, Slots};
use plimsoll_memory::Buf;

/// Runs the embedding and all layers; leaves the final residual stream in the activations.
pub fn layers(dev: &dyn Device, from: &dyn Layers<'_>, pass: &Pass<'_>) {
    let decoder = from.decoder();
    let spec = &decoder.spec;
    let first = pass.acts.layer(spec, 0, pass.rows).resid;
    dev.embed(decoder.params.embed, pass.ids, first);
    if let Some(factor) = decoder.embedding_factor() {
        dev.scale(first, factor);
    }
    // The factor is of tokens alone.
    pass.images.inspect(|images| images.put(dev, first));
    parts::inputs::begin(dev, decoder, pass, first);
    let kept = pass.acts.kept(pass.rows);
    for l in 0..spec.layers.len() as usize {
        let bufs = pass.acts.layer(spec, l as u32, pass.rows);
        let w = from.layer(dev, l, Way::Forward);
        kept.inspect(|kept| kept.before_forward(dev, l));
        layer(&LayerPass { dev, decoder, w: &w, index: l as u32, pass, bufs: &bufs });
        pass.images.inspect(|images| images.add_after(dev, l, bufs.next));
        kept.inspect(|kept| kept.after_forward(dev, l));
    }
}

/// Computes a layer: `bufs.resid` in, `bufs.next` out.
fn layer(layer: &LayerPass<'_, '_, '_>) {
    layer_to_gates(layer);
    parts::add_ffn(layer);
    parts::inputs::add(layer);
    if let Some(scale) = layer.w.scale {
        layer.dev.scale_by(layer.bufs.next, scale);
    }
}

/// Computes a layer up to `bufs.gate_up`, where the backward pass continues: it makes the product with its gradient.
pub(crate) fn layer_to_gates(layer: &LayerPass<'_, '_, '_>) {
    let LayerPass { w, bufs, .. } = *layer;
    layer.part_input(bufs.resid, w.attn_norm, bufs.norm_attn);
    parts::mix(layer);
    layer.add_output();
    layer.part_input(bufs.mid, w.ffn_norm, bufs.norm_ffn);
    parts::to_gates(layer);
}

/// Applies the final norm to the head rows.
fn head_input<'p>(dev: &dyn Device, decoder: &Decoder<'_>, pass: &Pass<'p>) -> Buf<'p> {
    let width = decoder.spec.hidden as usize;
    let rows = pass.acts.head_rows.slice(0, pass.head_rows);
    let input = pass.acts.head_input.slice(0, pass.head_rows * width);
    let norm = pass.acts.head_norm.slice(0, pass.head_rows * width);
    dev.gather_rows(pass.acts.last_resid(&decoder.spec, pass.rows), rows, input);
    dev.rms_norm(input, decoder.norm(decoder.params.final_norm), norm);
    norm
}

/// Computes log-probabilities of the targets at a temperature, after `layers`.
pub fn head(dev: &dyn Device, decoder: &Decoder<'_>, pass: &Pass<'_>, inv_temperature: f32) {
    if pass.head_rows == 0 {
        return;
    }
    let norm = head_input(dev, decoder, pass);
    let targets = pass.acts.targets.expect("score and update have targets").slice(0, pass.head_rows);
    let logits = pass.logits(decoder, inv_temperature);
    dev.head(norm, decoder.params.head, targets, logits, pass.vocabulary().1, pass.head_out());
}

/// Lists the most likely tokens of each head row into `Pass::listed`, after `head` at the same temperature.
pub fn head_top(dev: &dyn Device, decoder: &Decoder<'_>, pass: &Pass<'_>, inv_temperature: f32) {
    let listed = pass.listed().expect("a pass with listed tokens");
    if pass.head_rows > 0 {
        let side = HeadSide {
            x: normed(decoder, pass),
            w: decoder.params.head,
            lse: pass.head_out().lse,
            logits: pass.logits(decoder, inv_temperature),
            tile: pass.vocabulary().1,
        };
        dev.head_top(side, listed);
    }
}

/// Lists the most likely tokens of a run of head rows from row `first` on into their part of `Pass::listed`, after what
/// computed their log-sum-exps at the same temperature, with the same masks and biases.
pub fn list_rows(dev: &dyn Device, decoder: &Decoder<'_>, pass: &Pass<'_>, first: usize, run: &DrawRun) {
    let ListedTokens { ids, logprobs } = pass.listed().expect("a pass with listed tokens");
    let (count, k) = (run.rows, pass.acts.limits.listed);
    if count == 0 {
        return;
    }
    let width = decoder.spec.hidden as usize;
    let side = HeadSide {
        x: normed(decoder, pass).slice(first * width, count * width),
        w: decoder.params.head,
        lse: pass.head_out().lse.slice(first, count),
        logits: pass.logits_of_run(decoder, first, run).and_times(run.how.inv_temperature()),
        tile: pass.vocabulary().1,
    };
    let [ids, logprobs] = [ids, logprobs].map(|buf| buf.slice(first * k, count * k));
    dev.head_top(side, ListedTokens { ids, logprobs });
}

/// Computes the log-probabilities of given tokens at temperature 1, for the head rows after those of `draw_runs`: as
/// `head` does. They are then their rows' tokens in `Pass::tokens`.
pub fn score_rows<'p>(dev: &dyn Device, decoder: &Decoder<'_>, pass: &Pass<'p>, given: &[u32]) {
    if given.is_empty() {
        return;
    }
    let (first, width) = (pass.head_rows - given.len(), decoder.spec.hidden as usize);
    let of = |buf: Buf<'p>| buf.slice(first, given.len());
    let (tokens, out) = (of(pass.tokens()), pass.head_out());
    dev.write_u32(tokens, 0, given);
    let out = HeadOut { logprobs: of(out.logprobs), lse: of(out.lse), entropy: of(out.entropy) };
    let x = normed(decoder, pass).slice(first * width, given.len() * width);
    dev.head(x, decoder.params.head, tokens, decoder.logits(), pass.vocabulary().1, out);
}

/// Computes the log-probabilities at temperature 1 of tokens `ids`, [N, K], for the last N head rows, after
/// `score_rows` of these. Returns them, [N, K] f32; what was listed for these rows is gone.
pub fn name_rows<'p>(dev: &dyn Device, decoder: &Decoder<'_>, pass: &Pass<'p>, ids: &[u32]) -> Buf<'p> {
    let listed = pass.listed().expect("a pass with listed tokens");
    let (count, k) = (ids.len() / pass.acts.limits.listed, pass.acts.limits.listed);
    let (first, width) = (pass.head_rows - count, decoder.spec.hidden as usize);
    let [to, logprobs] = [listed.ids, listed.logprobs].map(|buf| buf.slice(first * k, count * k));
    dev.write_u32(to, 0, ids);
    let x = normed(decoder, pass).slice(first * width, count * width);
    let lse = pass.head_out().lse.slice(first, count);
    dev.head_listed(x, decoder.params.head, lse, decoder.logits(), to, logprobs);
    logprobs
}

/// Computes the log-probabilities of tokens `ids`, [R, K], into `Pass::listed`, after `head` at the same temperature.
pub fn head_listed(
    dev: &dyn Device,
    decoder: &Decoder<'_>,
    pass: &Pass<'_>,
    inv_temperature: f32,
    ids: &[u32],
) {
    let ListedTokens { ids: to, logprobs } = pass.listed().expect("a pass with listed tokens");
    assert_eq!(ids.len(), to.len(), "K tokens of each head row");
    if pass.head_rows > 0 {
        dev.write_u32(to, 0, ids);
        let (norm, lse) = (normed(decoder, pass), pass.head_out().lse);
        let logits = pass.logits(decoder, inv_temperature);
        dev.head_listed(norm, decoder.params.head, lse, logits, to, logprobs);
    }
}

/// Returns what `head_input` computed.
pub(crate) fn normed<'p>(decoder: &Decoder<'_>, pass: &Pass<'p>) -> Buf<'p> {
    pass.acts.head_norm.slice(0, pass.head_rows * decoder.spec.hidden as usize)
}

/// Computes each head row's value into `Pass::values`, after `layers` of a critic or reward model: one product, in f32.
pub fn values(dev: &dyn Device, critic: &Decoder<'_>, pass: &Pass<'_>) {
    if pass.head_rows > 0 {
        let norm = head_input(dev, critic, pass);
        dev.matmul(norm, critic.params.head, None, pass.values(), false);
    }
}

/// Uploads the sampler's keys, [R, KEY_WORDS].
pub fn upload_keys(dev: &dyn Device, pass: &Pass<'_>, keys: &[u32]) {
    let (keys_buf, _) = pass.acts.sampler.expect("only the rollout samples");
    assert_eq!(keys.len(), pass.head_rows * KEY_WORDS, "one key a head row");
    dev.write_u32(keys_buf, 0, keys);
}

/// Draws a token for each head row, after `layers`, with the keys on the device. Returns the tokens' buffer, [R] u32.
pub fn draw<'p>(dev: &dyn Device, decoder: &Decoder<'_>, pass: &Pass<'p>, how: Sampling) -> Buf<'p> {
    draw_runs(dev, decoder, pass, &[DrawRun::plain(pass.head_rows, how)])
}

/// Draws as `draw` does, in consecutive runs of head rows, each with its own sampling and the masks and biases that
/// were put there. Rows after the last run are left to `score_rows`.
pub fn draw_runs<'p>(dev: &dyn Device, decoder: &Decoder<'_>, pass: &Pass<'p>, runs: &[DrawRun]) -> Buf<'p> {
    let (keys, _) = pass.acts.sampler.expect("only the rollout samples");
    let (tokens, out) = (pass.tokens(), pass.head_out());
    if pass.head_rows == 0 {
        return tokens;
    }
    let norm = head_input(dev, decoder, pass);
    let width = decoder.spec.hidden as usize;
    let (w, tile) = (decoder.params.head, pass.vocabulary().1);
    let mut first = 0;
    for run @ &DrawRun { rows, how, .. } in runs {
        let of = |buf: Buf<'p>| buf.slice(first, rows);
        let out = HeadOut { logprobs: of(out.logprobs), lse: of(out.lse), entropy: of(out.entropy) };
        let (x, keys) =
            (norm.slice(first * width, rows * width), keys.slice(first * KEY_WORDS, rows * KEY_WORDS));
        let logits = pass.logits_of_run(decoder, first, run);
        dev.sample(Sample { x, w, keys, how, logits, tile, tokens: of(tokens), out });
        first += rows;
    }
    assert!(first <= pass.head_rows, "{first} of {} head rows", pass.head_rows);
    tokens
}

/// Makes the rows of the next pass on the device, after `draw` in a pass of one row per sequence.
pub fn advance(dev: &dyn Device, pass: &Pass<'_>) {
    let (keys, tokens) = pass.acts.sampler.expect("only the rollout samples");
    let (tokens, keys) = (tokens.slice(0, pass.head_rows), keys.slice(0, pass.head_rows * KEY_WORDS));
    let window = pass.window.map(|Place { batch: Batch { slots, tables, .. }, .. }| Slots { slots, tables });
    dev.advance(pass.batch, window, pass.ids, tokens, keys);
    pass.images.inspect(|images| images.advance(dev));
}
