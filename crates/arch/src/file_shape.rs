//! A decoder as its files describe it: one size for all layers, and sets of layers that differ in something.
//!
//! Readers and writers of files work on it. Everything else asks a `ModelSpec`, which has
//! the layers one by one. A family whose layers differ in more than this adds the difference here, for its files.
//!
//! Legend: V vocab, L layers, h hidden, a query heads, k key-value heads, d head dim, f feed-forward.

use crate::architecture::{Architecture, QkNorms};
use crate::{
    Attention, AttentionSpec, DeltaSpec, DenseSpec, ExpertsSpec, Family, Ffn, GlobalHeads, LatentSpec,
    LayerList, LayerSet, LayerSpec, LayersWith, Mixer, ModelSpec, Multipliers, RopeScaling, SharedKeys,
    TokenRun, Values, Window,
};

/// The shape of one decoder in the words of `config.json`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FileShape {
    /// Architecture family, which decides names on disk.
    pub family: Family,
    /// V: rows of the embedding.
    pub vocab: u32,
    /// h: width of the residual stream.
    pub hidden: u32,
    /// L: decoder layers.
    pub layers: u32,
    /// a: query heads.
    pub heads: u32,
    /// k: key-value heads.
    pub kv_heads: u32,
    /// d: elements of a head.
    pub head_dim: u32,
    /// f: feed-forward width of the layers without experts.
    pub ffn: u32,
    /// Epsilon of all RMS norms.
    pub rms_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// True if the head shares the embedding's weights.
    pub tied: bool,
    /// True if q, k and v have a bias.
    pub qkv_bias: bool,
    /// True if o has a bias.
    pub output_bias: bool,
    /// True if gate, up and down have a bias.
    pub mlp_bias: bool,
    /// How q and k are normalised before rope.
    pub qk_norms: Option<QkNorms>,
    /// Longest sequence that the model supports.
    pub max_positions: u32,
    /// How attention differs from plain causal attention.
    pub attention: Attention,
    /// Constant factors.
    pub multipliers: Multipliers,
    /// True if it is the language model of a vision-language model, whose names its adapters use.
    pub is_wrapped: bool,
    /// Experts (MoE models only).
    pub experts: Option<LayersWith<ExpertsSpec>>,
    /// Linear attention layers, if any.
    pub delta: Option<LayersWith<DeltaSpec>>,
    /// Latent attention of all layers, if they have it: `heads` and `kv_heads` are its heads, `head_dim` their rotated
    /// elements.
    pub latent: Option<LatentSpec>,
    /// The last layers, if they have keys and values of earlier ones.
    pub shared: Option<SharedKeys>,
    /// Elements of a layer's own input of each token, if layers have such inputs.
    pub inputs: Option<u32>,
}

impl FileShape {
    /// A plain decoder whose sizes are all 0, as a base for others.
    pub const PLAIN: FileShape = FileShape {
        family: Family::Llama,
        vocab: 0,
        hidden: 0,
        layers: 0,
        heads: 0,
        kv_heads: 0,
        head_dim: 0,
        ffn: 0,
        rms_eps: 0.0,
        rope_theta: 0.0,
        rope_scaling: RopeScaling::None,
        tied: false,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        qk_norms: None,
        max_positions: 0,
        attention: Attention::PLAIN,
        multipliers: Multipliers { embedding: 1.0, residual: 1.0, logits: 1.0, logit_cap: None },
        is_wrapped: false,
        experts: None,
        delta: None,
        latent: None,
        shared: None,
        inputs: None,
    };

    /// Returns the decoder with its layers one by one. Panics above `LAYERS_MAX` layers.
    pub const fn spec(&self) -> ModelSpec {
        let (mut layers, mut layer) = (LayerList::EMPTY, 0);
        // Index of the kind of layers that differ in the same things, in the order of their first layers; one is added.
        let mut index_of = [0; 16];
        while layer < self.layers {
            let (difference, kind) = self.layer(layer);
            if index_of[difference] == 0 {
                index_of[difference] = layers.num_kinds() + 1;
            }
            layers.push(index_of[difference] - 1, kind);
            layer += 1;
        }
        ModelSpec {
            family: self.family,
            vocab: self.vocab,
            hidden: self.hidden,
            layers,
            rms_eps: self.rms_eps,
            rope_theta: self.rope_theta,
            rope_scaling: self.rope_scaling,
            tied: self.tied,
            max_positions: self.max_positions,
            multipliers: self.multipliers,
            is_wrapped: self.is_wrapped,
            named_width: self.ffn,
            inputs: self.inputs,
            suppressed: TokenRun { first: 0, count: 0 },
        }
    }

    /// Returns whether a layer has keys and values of an earlier one, and whether its dense part is twice as wide.
    const fn shares(&self, layer: u32) -> (bool, bool) {
        match self.shared {
            Some(shared) if layer + shared.layers >= self.layers => (true, shared.wide),
            _ => (false, false),
        }
    }

    /// Returns a layer, and a number that layers share exactly if they are equal.
    const fn layer(&self, layer: u32) -> (usize, LayerSpec) {
        let window = match self.attention.window {
            Some(window) if window.layers.contains(layer) => Some(window),
            _ => None,
        };
        let is_rotated = !self.attention.unrotated.contains(layer);
        let (shares, is_wide) = self.shares(layer);
        let (of_mixer, mixer) = match (self.delta, self.latent) {
            (_, Some(latent)) => (5, Mixer::Latent(latent)),
            (Some(delta), _) if delta.layers.contains(layer) => (4, Mixer::Delta(delta.each)),
            _ => {
                let global = match (self.attention.global, window) {
                    (Some(global), None) => global,
                    _ => GlobalHeads {
                        kv_heads: self.kv_heads,
                        head_dim: self.head_dim,
                        keys_are_values: false,
                    },
                };
                let attention = AttentionSpec {
                    heads: self.heads,
                    kv_heads: global.kv_heads,
                    head_dim: global.head_dim,
                    qkv_bias: self.qkv_bias,
                    output_bias: self.output_bias,
                    qk_norms: self.qk_norms,
                    window: match window {
                        Some(window) => Some(window.keys),
                        None => None,
                    },
                    is_rotated,
                    own_theta: match window {
                        Some(window) => window.rope_theta,
                        None => None,
                    },
                    rotated: self.attention.rotated,
                    scale: self.attention.scale,
                    score_cap: self.attention.score_cap,
                    gated: self.attention.gated,
                    values: match (self.architecture().has_global_heads, global.keys_are_values) {
                        _ if shares => Values::Shared,
                        (false, _) => Values::Own,
                        (true, false) => Values::Normed,
                        (true, true) => Values::OfKeys,
                    },
                    sinks: self.attention.sinks,
                    over_latents: false,
                };
                let of = if shares { 6 } else { 2 * is_rotated as usize };
                (window.is_some() as usize + of, Mixer::Attention(attention))
            }
        };
        let (of_ffn, ffn) = match self.experts {
            Some(experts) if experts.layers.contains(layer) => (8, Ffn::Experts(experts.each)),
            _ => {
                let width = if is_wide { 2 * self.ffn } else { self.ffn };
                (0, Ffn::Dense(DenseSpec { width, bias: self.mlp_bias }))
            }
        };
        (of_mixer + of_ffn, LayerSpec { norms: &self.architecture().norms, mixer, ffn })
    }

    /// Returns the family's row of the table of architectures.
    pub const fn architecture(&self) -> &'static Architecture {
        self.family.architecture()
    }

    /// Returns the number of rotated elements of a head.
    pub fn rotary_width(&self) -> u32 {
        self.attention.rotated.unwrap_or(self.head_dim)
    }

    /// Returns the number of layers with linear attention.
    pub fn delta_layers(&self) -> u32 {
        self.delta.map_or(0, |delta| delta.layers.len())
    }
}

impl FileShape {
    /// Returns it if it is the whole of a decoder's shape. Panics if not.
    fn checked(self, whole: &ModelSpec) -> FileShape {
        let same = ModelSpec { suppressed: whole.suppressed, ..self.spec() } == *whole;
        assert!(same, "layers that differ in what no file has: {whole:?}");
        self
    }
}

impl ModelSpec {
    /// Returns the shape that files give this decoder. Panics if its layers differ in what no file has.
    pub fn file_shape(&self) -> FileShape {
        let those = |is: &dyn Fn(&LayerSpec) -> bool| {
            LayerSet::of(self.layers.len(), |layer| is(self.layers.get(layer)))
        };
        let latent = self.each_layer().find_map(|layer| layer.latent());
        let windowed = self.attentions().find(|attention| attention.window.is_some());
        let first = self.attentions().next().filter(|_| latent.is_none());
        let (global, attention) = if self.architecture().has_global_heads {
            // The sizes of a file are those of the layers with windows.
            let global = self.attentions().find(|attention| attention.window.is_none());
            let global = global.map(|of| GlobalHeads {
                kv_heads: of.kv_heads,
                head_dim: of.head_dim,
                keys_are_values: of.values == Values::OfKeys,
            });
            (global, windowed.or(first))
        } else {
            (None, first)
        };
        let is_windowed = |layer: &LayerSpec| layer.attention().is_some_and(|of| of.window.is_some());
        let is_unrotated = |layer: &LayerSpec| layer.attention().is_some_and(|of| !of.is_rotated);
        let (delta, experts) = (
            self.each_layer().find_map(|layer| layer.delta()),
            self.each_layer().find_map(|of| of.experts()),
        );
        let of = |number: fn(&AttentionSpec) -> u32| attention.as_ref().map_or(0, number);
        let is = |flag: fn(&AttentionSpec) -> bool| attention.as_ref().is_some_and(flag);
        let shape = FileShape {
            family: self.family,
            vocab: self.vocab,
            hidden: self.hidden,
            layers: self.layers.len(),
            heads: latent.map_or(of(|of| of.heads), |of| of.heads),
            kv_heads: latent.map_or(of(|of| of.kv_heads), |of| of.heads),
            head_dim: latent.map_or(of(|of| of.head_dim), |of| of.rotated),
            ffn: self.named_width,
            rms_eps: self.rms_eps,
            rope_theta: self.rope_theta,
            rope_scaling: self.rope_scaling,
            tied: self.tied,
            qkv_bias: is(|of| of.qkv_bias),
            output_bias: is(|of| of.output_bias),
            mlp_bias: self.each_layer().any(|layer| layer.dense().is_some_and(|of| of.bias)),
            qk_norms: attention.and_then(|of| of.qk_norms),
            max_positions: self.max_positions,
            attention: Attention {
                window: windowed.and_then(|of| {
                    let (layers, rope_theta) = (those(&is_windowed), of.own_theta);
                    of.window.map(|keys| Window { keys, layers, rope_theta })
                }),
                unrotated: those(&is_unrotated),
                scale: attention.and_then(|of| of.scale),
                rotated: attention.and_then(|of| of.rotated),
                score_cap: attention.and_then(|of| of.score_cap),
                gated: is(|of| of.gated),
                global,
                sinks: is(|of| of.sinks),
            },
            multipliers: self.multipliers,
            is_wrapped: self.is_wrapped,
            experts: experts
                .map(|each| LayersWith { layers: those(&|layer| layer.experts().is_some()), each }),
            delta: delta.map(|each| LayersWith { layers: those(&|layer| layer.delta().is_some()), each }),
            latent,
            shared: self.shared_keys(),
            inputs: self.inputs,
        };
        shape.checked(self)
    }

    /// Returns the last layers, if they have keys and values of earlier ones.
    fn shared_keys(&self) -> Option<SharedKeys> {
        let is_shared = |layer: &LayerSpec| layer.attention().is_some_and(|of| of.values == Values::Shared);
        let layers = self.layers.iter().filter(|layer| is_shared(layer)).count() as u32;
        let is_wide = |layer: &LayerSpec| layer.dense().is_some_and(|of| of.width != self.named_width);
        let wide = self.each_layer().any(|layer| is_shared(&layer) && is_wide(&layer));
        (layers > 0).then_some(SharedKeys { layers, wide })
    }
}
