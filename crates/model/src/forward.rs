//! The forward pass, once for training, scoring, prefill and decode.

use crate::activations::bufs::{HeadBufs, LayerBufs, WindowBufs};
use crate::activations::{Activations, Mode, Recompute};
use crate::adapters::Site;
use crate::delta::{PLACE_FIELDS, push_any};
use crate::experts::{ExpertLayer, ExpertLoad};
use crate::mixer;
use crate::rope;
use crate::weights::{LayerParams, Params};
use plimsoll_base::{DType, ModelSpec, Multipliers};
use plimsoll_device::{
    ALL_KEYS, Batch, Device, HeadOut, KV_BLOCK, Logits, NO_PARENT, Norm, Rotation, SEGMENT_FIELDS, Sample,
    Sampling, Scores, Slots,
};
use plimsoll_memory::Buf;

/// A decoder: its shape, one role's weights, and the rotary table.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    pub spec: ModelSpec,
    /// Storage of weights and of the activations that products read.
    pub dtype: DType,
    pub params: Params<'a>,
    /// Filled by `rope::fill`.
    pub rope: Buf<'a>,
}

/// Index arrays of one pass, made on the host with capacity for the limits.
///
/// A row at position p of segment s attends to keys 0..=p of the segment's block table.
#[derive(Clone, Debug, Default)]
pub struct PassIndex {
    pub ids: Vec<u32>,
    pub positions: Vec<u32>,
    /// [M] block * 16 + slot.
    pub slots: Vec<u32>,
    /// [S, 5], see `plimsoll_device::Batch`.
    pub segments: Vec<u32>,
    /// Block tables, one after the other.
    pub tables: Vec<u32>,
    /// [C, 3] source block, destination block, slots: copied after the rows' own keys are written.
    pub copies: Vec<u32>,
    /// [R] rows that go through the head.
    pub head_rows: Vec<u32>,
    /// [R] what they predict; not used by the sampler.
    pub targets: Vec<u32>,
    /// [S, 2] where the states of linear attention are, see `plimsoll_device::Places`; empty where no layer has any.
    pub places: Vec<u32>,
    /// Where rows are in the cache of the layers with windows; empty where these have none of their own.
    pub window: WindowIndex,
    /// Positions stay below it while passes follow without the host; 0 where none do.
    pub keys_max: usize,
}

/// Where rows are in a second cache. Its tables begin where those of the pass do; entries of keys that no row sees are of any block.
#[derive(Clone, Debug, Default)]
pub struct WindowIndex {
    /// As those of `PassIndex`.
    pub slots: Vec<u32>,
    pub tables: Vec<u32>,
    pub copies: Vec<u32>,
}

impl WindowIndex {
    fn with_capacity(limits: &crate::PassLimits) -> WindowIndex {
        match limits.window_blocks {
            0 => WindowIndex::default(),
            _ => WindowIndex {
                slots: Vec::with_capacity(limits.rows),
                tables: Vec::with_capacity(limits.table_entries),
                copies: Vec::with_capacity(limits.copies * 3),
            },
        }
    }

    fn clear(&mut self) {
        [&mut self.slots, &mut self.tables, &mut self.copies].into_iter().for_each(Vec::clear);
    }
}

impl PassIndex {
    /// Empty arrays with room for `limits`, so that filling them never allocates.
    pub fn with_capacity(limits: &crate::PassLimits) -> PassIndex {
        PassIndex {
            ids: Vec::with_capacity(limits.rows),
            positions: Vec::with_capacity(limits.rows),
            slots: Vec::with_capacity(limits.rows),
            segments: Vec::with_capacity(limits.segments * SEGMENT_FIELDS),
            tables: Vec::with_capacity(limits.table_entries),
            copies: Vec::with_capacity(limits.copies * 3),
            head_rows: Vec::with_capacity(limits.head_rows),
            targets: Vec::with_capacity(limits.head_rows),
            places: Vec::with_capacity(if limits.places > 0 { limits.segments * PLACE_FIELDS } else { 0 }),
            window: WindowIndex::with_capacity(limits),
            keys_max: 0,
        }
    }

    /// Empties the arrays and keeps their room.
    pub fn clear(&mut self) {
        for array in [
            &mut self.ids,
            &mut self.positions,
            &mut self.slots,
            &mut self.segments,
            &mut self.tables,
            &mut self.copies,
            &mut self.head_rows,
            &mut self.targets,
            &mut self.places,
        ] {
            array.clear();
        }
        self.window.clear();
        self.keys_max = 0;
    }

    /// Fills in a pass of `rows` rows like real ones of that size: sequences of up to `length` tokens, all in one
    /// block, the first `heads` rows through the head. For running every shape once before it is needed. No pass has more
    /// than `limits.segments` times `length` rows.
    pub fn rehearse(
        &mut self,
        limits: &crate::PassLimits,
        rows: usize,
        length: usize,
        heads: usize,
        block: u32,
    ) {
        assert!(rows <= limits.segments * length, "{rows} rows in {} sequences of {length}", limits.segments);
        self.clear();
        let mut place = 0;
        for row in 0..rows {
            let position = (row % length) as u32;
            if position == 0 {
                let (first, table) = (row as u32, self.tables.len() as u32);
                let count = length.min(rows - row);
                self.segments.extend_from_slice(&[first, count as u32, 0, table, NO_PARENT]);
                self.tables.resize(self.tables.len() + count.div_ceil(KV_BLOCK), block);
                if limits.places > 0 {
                    push_any(&mut self.places, &mut place, count, limits.places);
                }
            }
            self.ids.push(0);
            self.positions.push(position);
            self.slots.push(block * KV_BLOCK as u32 + position % KV_BLOCK as u32);
        }
        if let Some(block) = (limits.window_blocks as u32).checked_sub(1) {
            self.window.tables.resize(self.tables.len(), block);
            let slot = |&position: &u32| block * KV_BLOCK as u32 + position % KV_BLOCK as u32;
            self.window.slots.extend(self.positions.iter().map(slot));
        }
        self.head_rows.extend(0..heads as u32);
        self.targets.resize(heads, 0);
    }

    pub fn num_segments(&self) -> usize {
        self.segments.len() / SEGMENT_FIELDS
    }

    /// Heap bytes of arrays made for `limits`.
    pub fn bytes(limits: &crate::PassLimits) -> u64 {
        let words = 3 * limits.rows
            + limits.segments * SEGMENT_FIELDS
            + limits.table_entries
            + 3 * limits.copies
            + 2 * limits.head_rows
            + if limits.places > 0 { limits.segments * PLACE_FIELDS } else { 0 };
        let window =
            if limits.window_blocks > 0 { limits.rows + limits.table_entries + 3 * limits.copies } else { 0 };
        4 * (words + window) as u64
    }
}

/// Sizes that cover every pass of sequences of up to `length` tokens: products choose their algorithms by
/// powers of two.
pub fn rehearsal_sizes(limits: &crate::PassLimits, length: usize) -> impl Iterator<Item = usize> {
    let most = limits.rows.min(limits.segments.saturating_mul(length));
    std::iter::successors(Some(most), |&n| (n > 16).then(|| n.div_ceil(2).next_power_of_two().min(n - 1)))
}

/// A pass whose index arrays are on the device.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'p> {
    pub(crate) acts: Activations<'p>,
    pub(crate) batch: Batch<'p>,
    pub(crate) ids: Buf<'p>,
    pub(crate) copies: Option<Buf<'p>>,
    /// Of the layers with windows, where they have a cache of their own.
    pub(crate) window: Option<Cache<'p>>,
    pub(crate) rows: usize,
    pub(crate) head_rows: usize,
    /// The derivative of the loss by the probability of an expert that all rows of its segment chose.
    pub(crate) balance: f32,
}

/// A cache as a pass sees it: where its rows are, and what is copied after their keys are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cache<'p> {
    pub(crate) batch: Batch<'p>,
    pub(crate) copies: Option<Buf<'p>>,
}

impl<'p> Pass<'p> {
    /// Sends the index arrays to the device. Panics where a limit is exceeded: batches are made within them.
    pub fn upload(dev: &dyn Device, acts: Activations<'p>, index: &PassIndex) -> Pass<'p> {
        let (rows, head_rows) = (index.ids.len(), index.head_rows.len());
        dev.write_u32(acts.ids, 0, &index.ids);
        dev.write_u32(acts.positions, 0, &index.positions);
        dev.write_u32(acts.kv_slots, 0, &index.slots);
        dev.write_u32(acts.segments, 0, &index.segments);
        dev.write_u32(acts.tables, 0, &index.tables);
        dev.write_u32(acts.head_rows, 0, &index.head_rows);
        if let Some(delta) = acts.delta {
            assert_eq!(index.places.len(), index.num_segments() * PLACE_FIELDS, "places of every segment");
            dev.write_u32(delta.places, 0, &index.places);
        }
        if let Some(targets) = acts.targets {
            assert_eq!(index.targets.len(), head_rows, "one target a head row");
            dev.write_u32(targets, 0, &index.targets);
        }
        let copies = (!index.copies.is_empty()).then(|| {
            let buf = acts.copies.expect("a layout with copies");
            dev.write_u32(buf, 0, &index.copies);
            buf.slice(0, index.copies.len())
        });
        let keys_max = index.positions.iter().max().map_or(0, |&p| p as usize + 1).max(index.keys_max);
        let batch = acts.batch(rows, index.num_segments(), index.tables.len(), keys_max);
        let window = acts.window.map(|bufs| upload_window(dev, &index.window, bufs, batch));
        Pass { acts, batch, ids: acts.ids.slice(0, rows), copies, window, rows, head_rows, balance: 0.0 }
    }

    /// The same with a loss of balance: its derivative by the probability of an expert that all rows of its segment chose.
    pub fn with_balance(self, factor: f32) -> Pass<'p> {
        Pass { balance: factor, ..self }
    }

    /// Adds what its experts got to `load`, after the backward pass.
    pub fn add_load(&self, dev: &dyn Device, load: &mut ExpertLoad) {
        let regions = self.acts.experts.expect("a pass through experts");
        load.add(dev, &regions, self.rows);
    }

    /// The cache of a layer that sees `window` keys.
    pub(crate) fn cache(&self, window: usize) -> Cache<'p> {
        let own = self.window.filter(|_| window != ALL_KEYS);
        own.unwrap_or(Cache { batch: self.batch, copies: self.copies })
    }

    /// [R] u32: what the last `draw` drew.
    pub fn tokens(&self) -> Buf<'p> {
        self.acts.sampler.expect("only the rollout samples").1.slice(0, self.head_rows)
    }

    /// [R] log-probabilities, log-sum-exps and entropies of the last `head` or `sample`. Panics for a pass that ends in values.
    pub fn head_out(&self) -> HeadOut<'p> {
        let (out, r) = (self.vocabulary().0, self.head_rows);
        HeadOut {
            logprobs: out.logprobs.slice(0, r),
            lse: out.lse.slice(0, r),
            entropy: out.entropy.slice(0, r),
        }
    }

    /// [R] f32: what the last `values` gave. Panics for one over a vocabulary.
    pub fn values(&self) -> Buf<'p> {
        match self.acts.head {
            HeadBufs::Values(values) => values.slice(0, self.head_rows),
            HeadBufs::Vocabulary { .. } => panic!("this pass ends in a vocabulary"),
        }
    }

    /// What the head over the vocabulary writes, and its tile.
    pub(crate) fn vocabulary(&self) -> (HeadOut<'p>, Buf<'p>) {
        match self.acts.head {
            HeadBufs::Vocabulary { out, tile } => (out, tile),
            HeadBufs::Values(_) => panic!("this pass ends in values"),
        }
    }
}

/// Sends the index arrays of the layers with windows.
fn upload_window<'p>(
    dev: &dyn Device,
    index: &WindowIndex,
    bufs: WindowBufs<'p>,
    batch: Batch<'p>,
) -> Cache<'p> {
    assert_eq!(index.slots.len(), batch.slots.len(), "a place in every cache");
    assert_eq!(index.tables.len(), batch.tables.len(), "tables of one length");
    dev.write_u32(bufs.slots, 0, &index.slots);
    dev.write_u32(bufs.tables, 0, &index.tables);
    let copies = (!index.copies.is_empty()).then(|| {
        let buf = bufs.copies.expect("a layout with copies");
        dev.write_u32(buf, 0, &index.copies);
        buf.slice(0, index.copies.len())
    });
    let (slots, tables) = (bufs.slots.slice(0, index.slots.len()), bufs.tables.slice(0, index.tables.len()));
    Cache { batch: Batch { slots, tables, ..batch }, copies }
}

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

impl<'a> Decoder<'a> {
    /// A norm of the residual stream, which here is 1 / `multipliers.residual` of the one that the family's formulas have: what parts
    /// add is then not multiplied, and a norm of the same weights with an epsilon so much larger gives the same.
    pub(crate) fn norm<'w>(&self, w: Buf<'w>) -> Norm<'w> {
        let residual = self.spec.multipliers.residual;
        let eps = self.spec.rms_eps / (residual * residual);
        Norm { w, eps, offset: self.spec.architecture().norm_offset }
    }

    /// Factor on embeddings, if it is not 1.
    pub(crate) fn embedding_factor(&self) -> Option<f32> {
        let root = match (self.spec.architecture().scales_embedding, self.dtype) {
            (false, _) => 1.0,
            // As the reference has it: rounded to the weights' dtype.
            (true, DType::Bf16) => half::bf16::from_f32((self.spec.hidden as f32).sqrt()).to_f32(),
            (true, _) => (self.spec.hidden as f32).sqrt(),
        };
        let factor = root * self.spec.multipliers.embedding / self.spec.multipliers.residual;
        (factor != 1.0).then_some(factor)
    }

    /// How logits are bent and multiplied, besides the factor of a temperature.
    pub(crate) fn logits(&self) -> Logits {
        let Multipliers { logits, logit_cap, .. } = self.spec.multipliers;
        Logits { factor: 1.0 / logits, cap: logit_cap }
    }

    /// How a layer's heads are rotated.
    pub(crate) fn rotation(&self, layer: u32) -> Rotation<'a> {
        // Attention divides scores by the root of d.
        let q_scale =
            self.spec.attention.scale.map_or(1.0, |scale| scale * (self.spec.head_dim as f32).sqrt());
        let width = self.spec.attention.rotated.map(|width| width as usize);
        Rotation { angles: rope::of_layer(&self.spec, self.rope, layer), width, q_scale }
    }

    /// What rows of a layer see, and how.
    pub(crate) fn scores(&self, layer: u32) -> Scores {
        let window = self.spec.attention.window_of(layer).map_or(ALL_KEYS, |keys| keys as usize);
        Scores { window, cap: self.spec.attention.score_cap }
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
    Some(ExpertLayer { dev, spec, experts, w, bufs: of, input, gate_up, product })
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
