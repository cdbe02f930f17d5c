//! Where the layers of a decoder differ from each other, and from plain causal attention over rotated heads.

use serde::{Deserialize, Serialize};

/// Layers of a decoder, at most.
pub const LAYERS_MAX: usize = 256;

/// Some of a decoder's layers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<u32>", into = "Vec<u32>")]
pub struct LayerSet([u64; LAYERS_MAX / 64]);

impl LayerSet {
    /// Those below `layers` that `is_in` says yes to. Panics above `LAYERS_MAX`.
    pub fn of(layers: u32, is_in: impl Fn(u32) -> bool) -> LayerSet {
        (0..layers).filter(|&layer| is_in(layer)).collect()
    }

    /// How many of them are below `layer`.
    pub fn before(&self, layer: u32) -> u32 {
        self.iter().take_while(|&one| one < layer).count() as u32
    }

    /// As `of`: all but every n-th one.
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

    /// As `of`: every n-th one.
    pub const fn every(n: u32, layers: u32) -> LayerSet {
        let mut set = LayerSet::all_but_every(n, layers);
        let mut layer = 0;
        while layer < layers {
            set.0[layer as usize / 64] ^= 1 << (layer % 64);
            layer += 1;
        }
        set
    }

    /// True if the layer is one of them.
    pub fn contains(&self, layer: u32) -> bool {
        self.0.get(layer as usize / 64).is_some_and(|word| word >> (layer % 64) & 1 == 1)
    }

    /// How many they are.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// In ascending order.
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

impl From<Vec<u32>> for LayerSet {
    fn from(layers: Vec<u32>) -> LayerSet {
        layers.into_iter().filter(|&layer| (layer as usize) < LAYERS_MAX).collect()
    }
}

impl From<LayerSet> for Vec<u32> {
    fn from(set: LayerSet) -> Vec<u32> {
        set.iter().collect()
    }
}

/// Layers whose rows see the keys next to them only.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// W: a row at position p sees the keys at positions above p - W, its own among them.
    pub keys: u32,
    /// The layers.
    pub layers: LayerSet,
    /// The base of a rotary rule of their own, which is not stretched; none if they share that of the other layers.
    pub rope_theta: Option<f64>,
}

/// How a decoder attends, beyond plain causal attention over rotated heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attention {
    /// Layers with a window.
    pub window: Option<Window>,
    /// Layers whose heads are not rotated.
    pub unrotated: LayerSet,
    /// Factor on scores; 1/sqrt(d) if none.
    pub scale: Option<f32>,
    /// Elements of a head that are rotated, the first ones; all if none.
    pub rotated: Option<u32>,
    /// c: scores, with their scale, become c tanh(x / c).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score_cap: Option<f32>,
    /// True if each head has an output gate, which its query's product gives too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub gated: bool,
}

impl Attention {
    /// True for plain causal attention over rotated heads.
    pub fn is_plain(&self) -> bool {
        *self == Attention::default()
    }

    /// Keys that a row of a layer sees; none if all that come before it.
    pub fn window_of(&self, layer: u32) -> Option<u32> {
        self.window.filter(|window| window.layers.contains(layer)).map(|window| window.keys)
    }
}

/// Constant factors of a decoder, 1 in most families, and what bends its logits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Multipliers {
    /// Of embeddings.
    pub embedding: f32,
    /// Of what a part of a layer adds to the residual stream.
    pub residual: f32,
    /// Logits are divided by it.
    pub logits: f32,
    /// c: logits become c tanh(x / c).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logit_cap: Option<f32>,
}

impl Default for Multipliers {
    fn default() -> Multipliers {
        Multipliers { embedding: 1.0, residual: 1.0, logits: 1.0, logit_cap: None }
    }
}

impl Multipliers {
    /// True if all are 1 and logits are not bent.
    pub fn is_plain(&self) -> bool {
        *self == Multipliers::default()
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
        let text = serde_json::to_string(&sliding).unwrap();
        assert_eq!(text, "[0,1,2,4,5,6,8,9]");
        assert_eq!(serde_json::from_str::<LayerSet>(&text).unwrap(), sliding);
        // A number that no decoder reaches is dropped, not written past the end.
        assert!(serde_json::from_str::<LayerSet>("[4294967295]").unwrap().is_empty());
    }

    #[test]
    fn a_layer_without_a_window_sees_all_keys() {
        let window = Window { keys: 8, layers: LayerSet::all_but_every(2, 4), rope_theta: None };
        let attention = Attention { window: Some(window), ..Attention::default() };
        assert_eq!([0, 1, 2, 3].map(|layer| attention.window_of(layer)), [Some(8), None, Some(8), None]);
        assert!(Attention::default().is_plain() && !attention.is_plain());
    }
}
