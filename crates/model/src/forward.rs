//! The forward pass, once for training, scoring, prefill and decode.

use crate::activations::bufs::LayerBufs;
use crate::activations::{Mode, Recompute};
use crate::decoder::Decoder;
use crate::experts::ExpertLayer;
use crate::mixer;
use crate::pass::{Cache, Pass};
use crate::weights::LayerParams;
use plimsoll_arch::{ModelSpec, Site};
use plimsoll_device::{Batch, Device, HeadOut, Norm, Sample, Sampling, Slots};
use plimsoll_memory::Buf;

/// Embedding and all layers. The residual stream after the last layer is left in the activations.
pub fn layers(dev: &dyn Device, decoder: &Decoder<'_>, pass: &Pass<'_>) {
    layers_of(dev, decoder, pass, &mut |l| decoder.params.layers[l]);
}

/// The same with layers that are asked for one after the other.
pub(crate) fn layers_of<'w>(
    dev: &dyn Device,
    decoder: &Decoder<'_>,
    pass: &Pass<'_>,
    weights: &mut dyn FnMut(usize) -> LayerParams<'w>,
) {
    let spec = &decoder.spec;
    let first = pass.acts.layer(spec, 0, pass.rows).resid;
    dev.embed(decoder.params.embed, pass.ids, first);
    if let Some(factor) = decoder.embedding_factor() {
        dev.scale(first, factor);
    }
    let kept = pass.acts.kept(pass.rows);
    for l in 0..spec.layers as usize {
        let bufs = pass.acts.layer(spec, l, pass.rows);
        let w = weights(l);
        kept.inspect(|kept| kept.before_forward(dev, l));
        layer(dev, decoder, (&w, l as u32), pass, &bufs);
        kept.inspect(|kept| kept.after_forward(dev, l));
    }
}

/// One layer: `bufs.resid` in, `bufs.next` out.
fn layer(
    dev: &dyn Device,
    decoder: &Decoder<'_>,
    (w, l): (&LayerParams<'_>, u32),
    pass: &Pass<'_>,
    bufs: &LayerBufs<'_>,
) {
    layer_to_gates(dev, decoder, (w, l), pass, bufs);
    if let Some(experts) = expert_layer(dev, decoder, (w, l), bufs) {
        return experts.add_product(bufs.mid, bufs.next);
    }
    dev.glu(decoder.spec.architecture().gate, bufs.gate_up, decoder.spec.ffn as usize, bufs.product);
    let norm = w.ffn_post_norm.map(|norm| decoder.norm(norm)).zip(bufs.ffn_out);
    add_product(dev, w, Site::Down, bufs, (bufs.product, norm), (bufs.mid, bufs.next));
}

/// to = from + a product of `x` with its bias, or its norm, if there is one; then `out` keeps the product. The bias is added last: a
/// library adds biases to outputs of their own dtype only.
fn add_product(
    dev: &dyn Device,
    w: &LayerParams<'_>,
    site: Site,
    bufs: &LayerBufs<'_>,
    (x, norm): (Buf<'_>, Option<(Norm<'_>, Buf<'_>)>),
    (from, to): (Buf<'_>, Buf<'_>),
) {
    let bias = |out| w.bias(site).into_iter().for_each(|bias| dev.add_bias(out, bias));
    let Some((norm, out)) = norm else {
        linear(dev, w, site, bufs, (x, None, Some(from)), to);
        return bias(to);
    };
    linear(dev, w, site, bufs, (x, None, None), out);
    bias(out);
    dev.rms_norm_add(out, norm, from, to);
}

/// What the products of a part of a layer read: the residual stream's norm, or the stream itself.
pub(crate) fn part_input(
    dev: &dyn Device,
    decoder: &Decoder<'_>,
    resid: Buf<'_>,
    norm: Option<Buf<'_>>,
    out: Buf<'_>,
) {
    match norm {
        Some(norm) => dev.rms_norm(resid, decoder.norm(norm), out),
        None => dev.cast(resid, out),
    }
}

/// out = x W^T + bias, or resid + x W^T, of a product of a layer with its adapters.
pub(crate) fn linear(
    dev: &dyn Device,
    w: &LayerParams<'_>,
    site: Site,
    bufs: &LayerBufs<'_>,
    (x, bias, resid): (Buf<'_>, Option<Buf<'_>>, Option<Buf<'_>>),
    out: Buf<'_>,
) {
    match (w.adapters.added(site), resid) {
        (Some(adapter), _) => {
            let u = bufs.u[site as usize].expect("a pass with adapters has their u");
            dev.adapted(x, w.adapted(site, bias, adapter), resid, u, out);
        }
        (None, Some(resid)) => dev.matmul_add(x, w.ready(dev, site), resid, out),
        (None, None) => dev.matmul(x, w.ready(dev, site), bias, out, false),
    }
}

/// A layer up to `bufs.gate_up`, from which the backward pass goes on: it makes the product as it takes its gradient.
pub(crate) fn layer_to_gates(
    dev: &dyn Device,
    decoder: &Decoder<'_>,
    (w, l): (&LayerParams<'_>, u32),
    pass: &Pass<'_>,
    bufs: &LayerBufs<'_>,
) {
    part_input(dev, decoder, bufs.resid, w.attn_norm, bufs.norm_attn);
    linear(dev, w, Site::Qkv, bufs, (bufs.norm_attn, w.qkv_bias, None), bufs.qkv);
    mixer::forward(dev, decoder, (w, l), pass, bufs);
    attention_output(dev, decoder, w, bufs);
    part_input(dev, decoder, bufs.mid, w.ffn_norm, bufs.norm_ffn);
    match expert_layer(dev, decoder, (w, l), bufs) {
        Some(experts) => experts.to_gates(),
        None => linear(dev, w, Site::GateUp, bufs, (bufs.norm_ffn, w.gate_up_bias, None), bufs.gate_up),
    }
}

/// The feed-forward part of a layer, if it is made of experts.
pub(crate) fn expert_layer<'x, 'a, 'p>(
    dev: &'x dyn Device,
    decoder: &'x Decoder<'_>,
    (w, l): (&'x LayerParams<'a>, u32),
    bufs: &LayerBufs<'p>,
) -> Option<ExpertLayer<'x, 'a, 'p>> {
    let spec = &decoder.spec;
    let (experts, of) = spec.experts_of(l).zip(bufs.experts)?;
    let (input, gate_up, product) = (bufs.norm_ffn, bufs.gate_up, bufs.product);
    Some(ExpertLayer { dev, spec, experts, w, bufs: of, input, gate_up, product, u: bufs.u_once })
}

/// The residual after attention.
pub(crate) fn attention_output(
    dev: &dyn Device,
    decoder: &Decoder<'_>,
    w: &LayerParams<'_>,
    bufs: &LayerBufs<'_>,
) {
    let norm = w.attn_post_norm.map(|norm| decoder.norm(norm)).zip(bufs.attn_out);
    add_product(dev, w, Site::Output, bufs, (bufs.mixed, norm), (bufs.resid, bufs.mid));
}

/// Final norm of the head rows.
fn head_input<'p>(dev: &dyn Device, decoder: &Decoder<'_>, pass: &Pass<'p>) -> Buf<'p> {
    let width = decoder.spec.hidden as usize;
    let rows = pass.acts.head_rows.slice(0, pass.head_rows);
    let input = pass.acts.head_input.slice(0, pass.head_rows * width);
    let norm = pass.acts.head_norm.slice(0, pass.head_rows * width);
    dev.gather_rows(pass.acts.last_resid(&decoder.spec, pass.rows), rows, input);
    dev.rms_norm(input, decoder.norm(decoder.params.final_norm), norm);
    norm
}

/// Log-probabilities of the targets at a temperature, after `layers`.
pub fn head(dev: &dyn Device, decoder: &Decoder<'_>, pass: &Pass<'_>, inv_temperature: f32) {
    if pass.head_rows == 0 {
        return;
    }
    let norm = head_input(dev, decoder, pass);
    let targets = pass.acts.targets.expect("score and update have targets").slice(0, pass.head_rows);
    let logits = decoder.logits().and_times(inv_temperature);
    dev.head(norm, decoder.params.head, targets, logits, pass.vocabulary().1, pass.head_out());
}

/// The value of each head row, after `layers` of a critic or a reward model: one product, in f32. `Pass::values` has them.
pub fn values(dev: &dyn Device, critic: &Decoder<'_>, pass: &Pass<'_>) {
    if pass.head_rows > 0 {
        let norm = head_input(dev, critic, pass);
        dev.matmul(norm, critic.params.head, None, pass.values(), false);
    }
}

/// Draws a token for each head row, after `layers`. `keys`: [R, 3] sample id (low, high) and position.
///
/// Returns the tokens' buffer, [R] u32.
pub fn sample<'p>(
    dev: &dyn Device,
    decoder: &Decoder<'_>,
    pass: &Pass<'p>,
    keys: &[u32],
    how: Sampling,
) -> Buf<'p> {
    upload_keys(dev, pass, keys);
    draw(dev, decoder, pass, how)
}

/// Sends the sampler's keys: [R, 3] sample id (low, high) and position.
pub fn upload_keys(dev: &dyn Device, pass: &Pass<'_>, keys: &[u32]) {
    let (keys_buf, _) = pass.acts.sampler.expect("only the rollout samples");
    assert_eq!(keys.len(), pass.head_rows * 3, "one key a head row");
    dev.write_u32(keys_buf, 0, keys);
}

/// Draws a token for each head row with the keys on the device. Returns the tokens' buffer, [R] u32.
pub fn draw<'p>(dev: &dyn Device, decoder: &Decoder<'_>, pass: &Pass<'p>, how: Sampling) -> Buf<'p> {
    draw_runs(dev, decoder, pass, &[(pass.head_rows, how)])
}

/// As `draw`, in runs of head rows that follow each other, each with its own way of drawing.
pub fn draw_runs<'p>(
    dev: &dyn Device,
    decoder: &Decoder<'_>,
    pass: &Pass<'p>,
    runs: &[(usize, Sampling)],
) -> Buf<'p> {
    let (keys, _) = pass.acts.sampler.expect("only the rollout samples");
    let (tokens, out) = (pass.tokens(), pass.head_out());
    if pass.head_rows == 0 {
        return tokens;
    }
    let norm = head_input(dev, decoder, pass);
    let width = decoder.spec.hidden as usize;
    let (w, tile) = (decoder.params.head, pass.vocabulary().1);
    let mut first = 0;
    for &(rows, how) in runs {
        let of = |buf: Buf<'p>| buf.slice(first, rows);
        let out = HeadOut { logprobs: of(out.logprobs), lse: of(out.lse), entropy: of(out.entropy) };
        let (x, keys) = (norm.slice(first * width, rows * width), keys.slice(first * 3, rows * 3));
        let logits = decoder.logits();
        dev.sample(Sample { x, w, keys, how, logits, tile, tokens: of(tokens), out });
        first += rows;
    }
    assert_eq!(first, pass.head_rows, "every head row is in one run");
    tokens
}

/// After `draw` in a pass of one row a sequence: the rows of the next pass, made on the device.
pub fn advance(dev: &dyn Device, pass: &Pass<'_>) {
    let (keys, tokens) = pass.acts.sampler.expect("only the rollout samples");
    let (tokens, keys) = (tokens.slice(0, pass.head_rows), keys.slice(0, pass.head_rows * 3));
    let window = pass.window.map(|Cache { batch: Batch { slots, tables, .. }, .. }| Slots { slots, tables });
    dev.advance(pass.batch, window, pass.ids, tokens, keys);
}

/// True if the backward pass of a layer computes norms and the residual after attention again; whole layers do it as part
/// of themselves.
pub(crate) fn recomputes(mode: Mode) -> bool {
    mode.recompute() == Some(Recompute::Cheap)
}

/// True if the products of gates and ups are kept.
pub(crate) fn keeps_product(spec: &ModelSpec, mode: Mode) -> bool {
    mode.recompute() == Some(Recompute::None) && spec.experts.is_none()
}
