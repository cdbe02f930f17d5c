//! Access to a role's weights wherever they are: a decoder in the arena, layers streamed through it, a copy gathered
//! for rollouts, or this rank's part.

use super::role::Role;
use super::weights::{Elsewhere, Weights, keep_part, own_source, whole_region};
use plimsoll_device::{Device, MatrixLayout};
use plimsoll_memory::{Buf, InPhase, Overlay};
use plimsoll_model::{Decoder, Layers, Params, Source, Streamed};
use plimsoll_plan::RoleShape;
use plimsoll_train::Share;
use std::borrow::Cow;

impl<'a> Role<'a> {
    /// Returns the role's decoder. Panics if its weights are elsewhere.
    pub fn decoder(&self) -> &Decoder<'a> {
        match &self.weights {
            Weights::Resident(decoder) => decoder,
            Weights::Streamed(_) => panic!("the {}'s weights are not in one place", self.shape.name.name()),
        }
    }

    /// Returns the decoder to sample from. Weights in parts are gathered for `phase`, which is Rollout.
    pub fn sampled<'p>(&'p self, dev: &dyn Device, phase: &InPhase<'p>) -> Cow<'p, Decoder<'p>>
    where
        'a: 'p,
    {
        let of = match &self.weights {
            Weights::Resident(decoder) => return Cow::Borrowed(decoder),
            Weights::Streamed(of) => of,
        };
        let RoleShape { spec, weights: dtype, .. } = self.shape;
        let all = phase.buf(&whole_region(&self.shape));
        of.gather(dev, all);
        let params = Params::bind(&spec, &self.table, dtype, all);
        Cow::Owned(Decoder { spec, dtype, params, rope: of.rope })
    }

    /// Calls `body` with all trained parameters in one buffer; weights in parts are gathered for it.
    pub(crate) fn with_gathered<T>(
        &self,
        dev: &dyn Device,
        overlay: &mut Overlay<'_>,
        body: impl FnOnce(&dyn Device, Buf<'_>) -> T,
    ) -> T {
        match &self.weights {
            Weights::Streamed(of) if of.part.is_some() => {
                // No lease to wait for: only the caller reads resident regions now.
                let phase = self.shape.whole_in().expect("what is trained is whole in a phase");
                dev.begin_phase(phase, overlay.bytes());
                let phase = overlay.enter_leased(phase);
                let all = phase.buf(&whole_region(&self.shape));
                of.gather(dev, all);
                body(dev, all)
            }
            _ => body(dev, self.learned().1),
        }
    }

    /// True if the trained weights are in parts on several ranks.
    pub fn is_spread(&self) -> bool {
        self.part().is_some() && self.optimizer.is_some()
    }

    /// Returns this rank's part of the weights, if several ranks share them.
    pub(super) fn part(&self) -> Option<(Share, Buf<'a>)> {
        match &self.weights {
            Weights::Streamed(of) => of.part,
            Weights::Resident(_) => None,
        }
    }

    /// Returns the places of all parts of the weights, if several ranks share them.
    pub(super) fn source(&self) -> Option<Source<'a>> {
        match &self.weights {
            Weights::Streamed(of) if of.part.is_some() => Some(of.source.clone()),
            _ => None,
        }
    }

    /// Returns the places of this rank's part of the weights, if several ranks share them.
    pub(super) fn own_source(&self) -> Option<Source<'a>> {
        self.part().map(|(share, part)| own_source(&self.table, share, part))
    }

    /// Copies a rank's part of the weights to `to`. Returns the sum of squares of all weights.
    pub(super) fn copy_part(&self, dev: &dyn Device, share: Share, to: Buf<'_>) -> f64 {
        match &self.weights {
            Weights::Resident(decoder) => {
                keep_part(dev, &self.table, share, decoder.params.all, to);
                decoder.params.sum_squares(dev)
            }
            Weights::Streamed(Elsewhere { part, sum_squares, .. }) => {
                let (_, part) = part.expect("the first role is never offloaded");
                dev.accumulate(part, to, false);
                dev.sync();
                *sum_squares
            }
        }
    }

    pub(super) fn rope(&self) -> Buf<'a> {
        match &self.weights {
            Weights::Resident(decoder) => decoder.rope,
            Weights::Streamed(of) => of.rope,
        }
    }

    /// Returns the element order of the role's matrices.
    pub fn layout(&self) -> MatrixLayout {
        match &self.weights {
            Weights::Resident(decoder) => decoder.params.embed.layout,
            Weights::Streamed(_) => MatrixLayout::of_weights(self.table.device, self.shape.weights),
        }
    }

    /// Returns the source of the role's layers for the passes of a phase.
    pub(super) fn layers<'p>(&'p self, dev: &dyn Device, phase: &InPhase<'p>) -> Box<dyn Layers<'p> + 'p>
    where
        'a: 'p,
    {
        match &self.weights {
            Weights::Resident(decoder) => Box::<&'p Decoder<'p>>::new(decoder),
            Weights::Streamed(Elsewhere { source, rope, .. }) => {
                let (spec, name) = (self.shape.spec, self.shape.name.name());
                Box::new(Streamed::begin(dev, spec, &self.table, source, *rope, phase, name))
            }
        }
    }
}
