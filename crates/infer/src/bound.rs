//! A model bound to the arena: its weights and adapters where a plan has them, and its passes forward.

use crate::album::Album;
use crate::form::TextForm;
use crate::image_table::ImageTable;
use crate::phases::enter;
use crate::text::TextModel;
use crate::weights::{Elsewhere, Loading, Weights, bind_weights, load_part, spread, whole_source};
use plimsoll_base::{Bytes, Result};
use plimsoll_device::{Device, ListedTokens};
use plimsoll_files::{Head, OpenModel};
use plimsoll_memory::{Buf, Overlay, Resident};
use plimsoll_model::{
    Activations, Adapters, AdaptersFrom, Decoder, Fp8Bufs, Fp8Weights, Merged, ParamTable, Params, Pass,
    SlotTable, head, head_top, layers, load, load_adapters, rope, teacher_rows, values,
};
use plimsoll_plan::{PerRole, RoleName, RoleShape, WeightsAre};
use plimsoll_train::{Packer, Sequence, Share};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// A model of a run or of a command, bound to the arena.
pub struct BoundModel<'a> {
    pub shape: RoleShape,
    pub table: ParamTable,
    /// Adapters, if it has any, with their table.
    pub adapters: Option<(ParamTable, Adapters<'a>)>,
    /// The frozen weights and what has its adapters added to them, if its products read that.
    merged: Option<(Params<'a>, Merged<'a>)>,
    /// The rounded weights, if products read those.
    rounded: Option<Fp8Weights<'a>>,
    /// Sum of squares of weights that are frozen, which identifies their model, and of its adapters if these are frozen
    /// too.
    pub sum_squares: Option<f64>,
    pub(crate) weights: Weights<'a>,
}

/// Holds what the head computed for the rows of a micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'p> {
    /// [R] f32: log-probabilities of response tokens, or values.
    pub numbers: Buf<'p>,
    /// The most likely tokens of each row, if the pass lists them.
    pub listed: Option<ListedTokens<'p>>,
    /// [R, t] e: what the head read, if the pass keeps its rows.
    pub kept: Option<Buf<'p>>,
    /// R.
    pub count: usize,
}

/// The models that roles are read from.
#[derive(Clone, Copy)]
pub struct Sources<'m> {
    /// The first role's: the actor and its reference, or the reward model that is trained.
    pub model: &'m OpenModel,
    /// The models of roles that start from another one.
    pub others: PerRole<&'m OpenModel>,
    /// The images that prompts may name.
    pub album: Option<&'m Arc<Album>>,
}

impl<'m> Sources<'m> {
    pub fn one(model: &'m OpenModel) -> Sources<'m> {
        Sources { model, others: PerRole::none(), album: None }
    }

    /// Returns them with the images of what is read.
    pub fn with_images(self, text: &'m TextModel) -> Sources<'m> {
        Sources { album: text.album.as_ref(), ..self }
    }

    pub fn of(&self, role: RoleName) -> &'m OpenModel {
        self.others.get(role).copied().unwrap_or(self.model)
    }
}

impl<'a> BoundModel<'a> {
    /// Binds a role's regions and reads its weights from `model`, those of its adapters excepted. `first` is the first
    /// role, whose rotary table serves the others where their shapes allow it; none for the first role itself.
    ///
    /// Errors: those of reading.
    pub fn bind(
        dev: &dyn Device,
        resident: Resident<'a>,
        overlay: &mut Overlay<'_>,
        shape: RoleShape,
        first: Option<&BoundModel<'a>>,
        model: &OpenModel,
        how: Loading,
    ) -> Result<BoundModel<'a>> {
        let (name, table) = (shape.name.name(), Rc::unwrap_or_clone(shape.table()));
        let own_rope = resident.get(&format!("{name}.rope"));
        let rope = match first {
            None => resident.buf("rope.table"),
            Some(first) => own_rope.unwrap_or(first.rope()),
        };
        if first.is_none() || own_rope.is_some() {
            rope::fill(dev, &shape.spec, rope);
        }
        if let Some(all) = resident.get(&format!("offload.{name}.weights")) {
            // An offloaded role is a copy of the first role before its first step.
            let of = first.expect("the first role is never offloaded").decoder().params.all;
            dev.offload_begin();
            dev.offload_out(0, &mut std::iter::once((of, all)));
            dev.sync();
            let source = whole_source(&table, all);
            let weights = Elsewhere { source, rope, part: None, sum_squares: dev.sum_squares(of) };
            return Ok(BoundModel::frozen(shape, table, weights.sum_squares, Weights::Streamed(weights)));
        }
        if let WeightsAre::Spread(share) = shape.weights_are {
            let of = (shape, table, share);
            return BoundModel::bind_spread(dev, (resident, overlay), of, rope, first, model, how);
        }
        if let (WeightsAre::FirstRolesParts, Some((of, ..))) =
            (shape.weights_are, first.and_then(BoundModel::in_parts))
        {
            let weights = Elsewhere { source: of.source.clone(), rope, part: None, ..*of };
            let sum_squares = weights.sum_squares;
            let frozen = BoundModel::frozen(shape, table, sum_squares, Weights::Streamed(weights));
            return Ok(frozen.with_adapters(resident));
        }
        let (owner, all) = match (shape.weights_are, first) {
            (WeightsAre::FirstRoles, Some(first)) => (first.shape.name, first.decoder().params.all),
            _ => (shape.name, resident.buf(&format!("{name}.weights"))),
        };
        let params = bind_weights(&shape, &table, resident, owner, all);
        if owner == shape.name {
            load(dev, model, &table, &params, how.seed, how.staging)?;
        }
        let adapters = bind_adapters(&shape, resident);
        let frozen = params.clone();
        let merged = shape.merged().map(|table| {
            let all = resident.buf(&format!("{name}.merged"));
            (frozen.clone(), Merged::bind(&shape.spec, &table, shape.weights, all))
        });
        let params = match (&adapters, &merged) {
            (Some((_, adapters)), Some((_, merged))) => params.with_merged(adapters, merged),
            (adapters, _) => params.with_adapters(adapters.as_ref().map(|(_, adapters)| adapters)),
        };
        let (params, rounded) = with_rounded(dev, (&shape, owner), resident, params);
        let is_frozen = adapters.is_some() || (first.is_some() && shape.update.is_none());
        let sum_squares = is_frozen.then(|| frozen.sum_squares(dev));
        let decoder = Decoder { spec: shape.spec, dtype: shape.weights, params, rope };
        let weights = Weights::Resident(decoder);
        Ok(BoundModel { shape, table, adapters, merged, rounded, sum_squares, weights })
    }

    /// Binds a role whose weights the ranks share out.
    fn bind_spread(
        dev: &dyn Device,
        (resident, overlay): (Resident<'a>, &mut Overlay<'_>),
        (shape, table, share): (RoleShape, ParamTable, Share),
        rope: Buf<'a>,
        first: Option<&BoundModel<'a>>,
        model: &OpenModel,
        how: Loading,
    ) -> Result<BoundModel<'a>> {
        let name = shape.name.name();
        let part = resident.buf(&format!("{name}.weights"));
        let sum_squares = match first.filter(|_| shape.whole_in().is_none()) {
            Some(first) => first.copy_part(dev, share, part),
            None => load_part(dev, overlay, &shape, &table, (share, part), model, how)?,
        };
        let source = spread(&table, share, part);
        let weights = Elsewhere { source, rope, part: Some((share, part)), sum_squares };
        let bound = BoundModel::frozen(shape, table, sum_squares, Weights::Streamed(weights));
        let is_frozen = shape.lora.is_some() || shape.update.is_none();
        let sum_squares = bound.sum_squares.filter(|_| is_frozen);
        Ok(BoundModel { sum_squares, ..bound.with_adapters(resident) })
    }

    fn frozen(shape: RoleShape, table: ParamTable, sum_squares: f64, weights: Weights<'a>) -> BoundModel<'a> {
        let (adapters, merged, rounded) = (None, None, None);
        BoundModel { shape, table, adapters, merged, rounded, sum_squares: Some(sum_squares), weights }
    }

    /// Returns it with its adapters, if its shape has any, on top of weights that stream.
    fn with_adapters(self, resident: Resident<'a>) -> BoundModel<'a> {
        BoundModel { adapters: bind_adapters(&self.shape, resident), ..self }
    }

    /// Reads or makes the adapters, if it has any; slots are empty.
    ///
    /// Errors: those of reading.
    pub fn load_adapters(&self, dev: &dyn Device, from: AdaptersFrom<'_>, staging: Bytes) -> Result<()> {
        if let Some((table, adapters)) = &self.adapters {
            if let Some(slots) = adapters.slots {
                dev.zero(slots.all);
                dev.zero(slots.scales);
                return Ok(());
            }
            load_adapters(dev, table, self.layout(), &[adapters.all], from, staging)?;
        }
        self.refresh(dev);
        Ok(())
    }

    /// Computes what products read instead of weights and adapters, after those have changed: the weights that have the
    /// adapters in them, or rounded ones.
    pub fn refresh(&self, dev: &dyn Device) {
        if let Some(((weights, merged), (_, adapters))) = self.merged.as_ref().zip(self.adapters.as_ref()) {
            merged.update(dev, weights, adapters);
        }
        if let Some(rounded) = &self.rounded {
            rounded.update(dev, &self.decoder().params);
        }
    }

    /// Runs forward passes over all sequences. `images`: those that prompts may name; `form`: what responses were held
    /// to, of a model with a vocabulary; `each` gets the sequences of a
    /// micro-batch and what the head computed.
    ///
    /// Errors: those of packing and of the device; those of reading images.
    pub fn score(
        &self,
        dev: &dyn Device,
        overlay: &mut Overlay<'_>,
        (packer, images, form): (&mut Packer, Option<&mut ImageTable<'a>>, Option<&TextForm>),
        sequences: &[Sequence<'_>],
        inv_temperature: f32,
        each: &mut dyn FnMut(Range<usize>, HeadRows<'_>),
    ) -> Result<()> {
        let pass = self.shape.score.expect("the plan has a scoring pass for each role that scores");
        let images = match images {
            Some(images) => {
                images.hold(dev, overlay, sequences.iter().flat_map(|s| [s.prompt, s.response]))?;
                Some(&*images)
            }
            None => None,
        };
        let phase = enter(dev, overlay, pass.mode.phase());
        let acts = Activations::bind(&phase, pass.mode, pass.limits);
        let from = self.layers(dev, &phase);
        let decoder = &*from.decoder().over(pass.vocab);
        let seen = images.map(|images| (images.seen(&phase, pass.mode), images.vocab()));
        let (mut first, keeps) = (0, pass.limits.taught > 0);
        while first < sequences.len() {
            let batch = packer.pack_as(pass.packing, sequences, first)?;
            let pass = match &seen {
                Some((seen, vocab)) => seen.upload_texts(dev, acts, batch.index, *vocab)?,
                None => Pass::upload(dev, acts, batch.index),
            };
            layers(dev, &*from, &pass);
            let pass = match form.filter(|_| self.shape.head == Head::Vocabulary) {
                Some(form) => {
                    form.put(dev, &pass, batch.head, sequences)?;
                    pass.with_masks()
                }
                None => pass,
            };
            let numbers = self.head(dev, decoder, &pass, inv_temperature);
            first = batch.sequences.end;
            if pass.listed().is_some() {
                head_top(dev, decoder, &pass, inv_temperature);
            }
            let count = batch.head.len();
            let kept = keeps.then(|| teacher_rows(decoder, &pass));
            each(batch.sequences, HeadRows { numbers, listed: pass.listed(), kept, count });
            dev.check()?;
        }
        Ok(())
    }

    /// Runs the head after the layers and returns its numbers: [R] f32.
    pub fn head<'p>(
        &self,
        dev: &dyn Device,
        decoder: &Decoder<'_>,
        pass: &Pass<'p>,
        inv_temperature: f32,
    ) -> Buf<'p> {
        match self.shape.head {
            Head::Vocabulary => {
                head(dev, decoder, pass, inv_temperature);
                pass.head_out().logprobs
            }
            Head::Score => {
                values(dev, decoder, pass);
                pass.values()
            }
        }
    }
}

/// Rounds the weights of `owner`, which a role has too, if it computes with such; returns what its products read.
fn with_rounded<'a>(
    dev: &dyn Device,
    (shape, owner): (&RoleShape, RoleName),
    resident: Resident<'a>,
    params: Params<'a>,
) -> (Params<'a>, Option<Fp8Weights<'a>>) {
    let Some(table) = shape.rounded() else { return (params, None) };
    let region = |what: &str| format!("{}.{what}", owner.name());
    let bufs = Fp8Bufs { codes: resident.buf(&region("fp8")), scales: resident.get(&region("fp8_scales")) };
    let rounded = Fp8Weights::bind(&shape.spec, &table, shape.target.kind, shape.weights, bufs);
    rounded.update(dev, &params);
    (params.with_fp8(&rounded), Some(rounded))
}

/// Resolves the handles of a role's adapters, if it has any.
fn bind_adapters<'a>(shape: &RoleShape, resident: Resident<'a>) -> Option<(ParamTable, Adapters<'a>)> {
    let (lora, table) = shape.lora.zip(shape.adapters())?;
    let region = |what: &str| resident.buf(&format!("{}.{what}", shape.name.name()));
    let bind = |all| Adapters::bind(&shape.spec, &table, shape.weights, lora.shape, lora.scale, all);
    let of = if lora.slots > 0 {
        let stride = SlotTable::stride_of(&table) as usize;
        let slots = SlotTable { all: region("adapters"), stride, scales: region("adapter_scales") };
        bind(slots.slot(&table, 0)).with_slots(slots)
    } else {
        bind(region("adapters"))
    };
    Some((Rc::unwrap_or_clone(table), of))
}
