//! How a model's weights are reached, wherever they are: as a decoder in the arena, as one that passes through it,
//! gathered for rollouts, or as what this rank keeps of them.

use crate::bound::BoundModel;
use crate::weights::{Elsewhere, Weights, keep_part, own_source, whole_region};
use plimsoll_device::{Device, MatrixLayout};
use plimsoll_memory::{Buf, InPhase, Overlay};
use plimsoll_model::{Decoder, Layers, ParamTable, Params, Source, Streamed, StreamedWeights};
use plimsoll_plan::RoleShape;
use plimsoll_train::Share;
use std::borrow::Cow;

impl<'a> BoundModel<'a> {
    /// Returns the role's decoder. Panics if its weights are elsewhere.
    pub fn decoder(&self) -> &Decoder<'a> {
        match &self.weights {
            Weights::Resident(decoder) => decoder,
            Weights::Streamed(_) => panic!("the {}'s weights are not in one place", self.shape.name.name()),
        }
    }

    /// Returns the decoder from which samples are drawn. What lies in parts is gathered for the phase, which is
    /// Rollout.
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
        let adapters = self.adapters.as_ref().map(|(_, adapters)| adapters);
        let params = Params::bind(&spec, &self.table, dtype, all).with_adapters(adapters);
        Cow::Owned(Decoder { spec, dtype, params, rope: of.rope })
    }

    /// Calls `body` with all weights that it learns in one buffer, for which those in parts are gathered.
    pub fn with_gathered<T>(
        &self,
        dev: &dyn Device,
        overlay: &mut Overlay<'_>,
        body: impl FnOnce(&dyn Device, Buf<'_>) -> T,
    ) -> T {
        match &self.weights {
            Weights::Streamed(of) if self.part().is_some() => {
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

    /// Returns its weights and what this rank keeps of them, if several ranks have them; those under adapters too.
    pub fn in_parts(&self) -> Option<(&Elsewhere<'a>, Share, Buf<'a>)> {
        match &self.weights {
            Weights::Streamed(of) => of.part.map(|(share, part)| (of, share, part)),
            Weights::Resident(_) => None,
        }
    }

    /// Returns what this rank keeps of the weights that it learns, or could, if several ranks have them.
    pub fn part(&self) -> Option<(Share, Buf<'a>)> {
        self.in_parts().filter(|_| self.adapters.is_none()).map(|(_, share, part)| (share, part))
    }

    /// Returns where all parts of these weights lie, if several ranks have them.
    pub fn source(&self) -> Option<Source<'a>> {
        self.in_parts().filter(|_| self.adapters.is_none()).map(|(of, ..)| of.source.clone())
    }

    /// Returns where this rank's part of its weights lies, if several ranks have them.
    pub fn own_source(&self) -> Option<Source<'a>> {
        self.part().map(|(share, part)| own_source(&self.table, share, part))
    }

    /// Copies the part of its weights that a rank keeps. Returns the sum of squares of all.
    pub fn copy_part(&self, dev: &dyn Device, share: Share, to: Buf<'_>) -> f64 {
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

    pub fn rope(&self) -> Buf<'a> {
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

    /// Returns what gives its layers to the passes of a phase.
    pub fn layers<'p>(&'p self, dev: &dyn Device, phase: &InPhase<'p>) -> Box<dyn Layers<'p> + 'p>
    where
        'a: 'p,
    {
        match &self.weights {
            Weights::Resident(decoder) => Box::<&'p Decoder<'p>>::new(decoder),
            Weights::Streamed(Elsewhere { source, rope, .. }) => {
                let adapters = self.adapters.as_ref().map(|(_, adapters)| adapters);
                let of = StreamedWeights {
                    spec: self.shape.spec,
                    table: &self.table,
                    source,
                    rope: *rope,
                    adapters,
                };
                Box::new(Streamed::begin(dev, of, phase, self.shape.name.name()))
            }
        }
    }

    /// Returns what the role learns, as a flat buffer with its table: its adapters, or all its weights; of weights in
    /// parts on several ranks this one's part.
    pub fn learned(&self) -> (&ParamTable, Buf<'a>) {
        match (&self.adapters, self.part()) {
            (Some((table, adapters)), _) => (table, adapters.all),
            (None, Some((_, part))) => (&self.table, part),
            (None, None) => (&self.table, self.decoder().params.all),
        }
    }
}
