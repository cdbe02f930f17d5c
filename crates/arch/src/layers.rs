//! How files say in what the layers of a decoder differ from each other, and from plain causal attention over rotated
//! heads.

/// Maximum decoder layers.
pub const LAYERS_MAX: usize = 256;

/// A set of decoder layers.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct LayerSet([u64; LAYERS_MAX / 64]);

impl LayerSet {
    /// Collects the layers below `layers` for which `is_in` is true. Panics above `LAYERS_MAX`.
    pub fn of(layers: u32, is_in: impl Fn(u32) -> bool) -> LayerSet {
        (0..layers).filter(|&layer| is_in(layer)).collect()
    }

    /// Returns the number of layers in the set below `layer`.
    pub fn before(&self, layer: u32) -> u32 {
        self.iter().take_while(|&one| one < layer).count() as u32
    }

    /// Returns all layers below `layers` but every n-th one.
    pub const fn all_but_every(n: u32, layers: u32) -> LayerSet {
        let (mut set, mut layer) = (LayerSet([0; LAYERS_MAX / 64]), 0);
        while layer < layers {
            if !(layer + 1).is_multiple_of(n) {
                set.0[layer as usize / 64] |= 1 << (layer % 64);
            }
            layer += 1;
        }
        set
    }

    /// Returns every n-th layer below `layers`.
    pub const fn every(n: u32, layers: u32) -> LayerSet {
        let mut set = LayerSet::all_but_every(n, layers);
        let mut layer = 0;
        while layer < layers {
            set.0[layer as usize / 64] ^= 1 << (layer % 64);
            layer += 1;
        }
        set
    }

    /// Returns the layers from `first` on, below `layers`.
    pub const fn onwards(first: u32, layers: u32) -> LayerSet {
        let mut set = LayerSet::every(1, layers);
        let mut layer = 0;
        while layer < first && layer < layers {
            set.0[layer as usize / 64] ^= 1 << (layer % 64);
            layer += 1;
        }
        set
    }

    /// True if the layer is in the set.
    pub const fn contains(&self, layer: u32) -> bool {
        (layer as usize) < LAYERS_MAX && self.0[layer as usize / 64] >> (layer % 64) & 1 == 1
    }

    /// Returns the number of layers in the set.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..LAYERS_MAX as u32).filter(|&layer| self.contains(layer))
    }
}

impl FromIterator<u32> for LayerSet {
    fn from_iter<I: IntoIterator<Item = u32>>(layers: I) -> LayerSet {
        let mut set = LayerSet::default();
        layers.into_iter().for_each(|layer| set.0[layer as usize / 64] |= 1 << (layer % 64));
        set
    }
}

impl std::fmt::Debug for LayerSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A part that some layers have, the same in each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayersWith<T> {
    /// The layers. The others have attention over keys, or a dense feed-forward part.
    pub layers: LayerSet,
    /// The part of each.
    pub each: T,
}

/// Sliding-window attention: the layers that have it and its width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// W: a row at position p sees the keys above p - W, including its own.
    pub keys: u32,
    /// The layers.
    pub layers: LayerSet,
    /// Base of these layers' own unscaled rope; none if they share that of the other layers.
    pub rope_theta: Option<f64>,
}

/// Heads of the layers without a window, where those with one have others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalHeads {
    /// Key-value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// True if values are keys before their norm.
    pub keys_are_values: bool,
}

/// The last layers, which have keys and values of earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedKeys {
    /// How many.
    pub layers: u32,
    /// True if their dense parts are twice as wide.
    pub wide: bool,
}

/// How attention differs from plain causal attention over rotated heads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attention {
    /// Layers with a window.
    pub window: Option<Window>,
    /// Layers whose heads are not rotated.
    pub unrotated: LayerSet,
    /// Factor on scores; none is 1/sqrt(d).
    pub scale: Option<f32>,
    /// Elements at the start of a head that are rotated; none is all.
    pub rotated: Option<u32>,
    /// Soft cap c: scaled scores become c tanh(x / c).
    pub score_cap: Option<f32>,
    /// True if each head has an output gate, computed by the query projection.
    pub gated: bool,
    /// Heads of the layers without a window, if they have others.
    pub global: Option<GlobalHeads>,
    /// True if the softmax of each query head has a sink.
    pub sinks: bool,
}

impl Attention {
    /// Plain causal attention over rotated heads.
    pub const PLAIN: Attention = Attention {
        window: None,
        unrotated: LayerSet::every(1, 0),
        scale: None,
        rotated: None,
        score_cap: None,
        gated: false,
        global: None,
        sinks: false,
    };
}

/// Constant factors of a decoder, 1 in most families, and the soft cap of its logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multipliers {
    /// Factor on embeddings.
    pub embedding: f32,
    /// Factor on what attention and the feed-forward part add to the residual stream.
    pub residual: f32,
    /// Divisor of logits.
    pub logits: f32,
    /// Soft cap c: logits become c tanh(x / c).
    pub logit_cap: Option<f32>,
}

impl Default for Multipliers {
    fn default() -> Multipliers {
        Multipliers { embedding: 1.0, residual: 1.0, logits: 1.0, logit_cap: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_layers_hold_what_they_say() {
        let sliding = LayerSet::all_but_every(4, 10);
        assert_eq!(sliding.iter().collect::<Vec<_>>(), [0, 1, 2, 4, 5, 6, 8, 9]);
        assert_eq!(LayerSet::every(4, 10).iter().collect::<Vec<_>>(), [3, 7]);
        assert_eq!(sliding, LayerSet::of(10, |layer| layer % 4 != 3));
        assert_eq!([0, 3, 4, 9, 200].map(|layer| sliding.before(layer)), [0, 3, 3, 7, 8]);
        assert!(sliding.contains(9) && !sliding.contains(10) && !sliding.contains(5000));
        let last = LayerSet::of(LAYERS_MAX as u32, |layer| layer == 255);
        assert_eq!((last.len(), last.contains(255)), (1, true));
    }

    #[test]
    fn a_layer_without_a_window_sees_all_keys() {
        let window = Window { keys: 8, layers: LayerSet::all_but_every(2, 4), rope_theta: None };
        let attention = Attention { window: Some(window), ..Attention::default() };
        let spec = crate::FileShape { layers: 4, attention, ..crate::FileShape::PLAIN }.spec();
        let windows: Vec<_> = spec.attentions().map(|attention| attention.window).collect();
        assert_eq!(windows, [Some(8), None, Some(8), None]);
    }
}
