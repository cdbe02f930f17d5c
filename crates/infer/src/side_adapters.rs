//! Adapters side by side: those that a server has under names of their own, each in a slot.

use crate::bound::BoundModel;
use plimsoll_arch::{Compute, LoraTargets, Site};
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_config::{Auto, LoraSpec};
use plimsoll_device::{ADAPTER_SLOTS_MAX, Device};
use plimsoll_files::{Adapter, OpenModel};
use plimsoll_model::{Adapters, AdaptersFrom, Decoder, ParamTable, SlotTable, load_adapters};
use plimsoll_plan::Lora;
use plimsoll_serve::ServedAdapter;
use std::path::PathBuf;

/// An adapter as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedAdapter {
    /// The name that requests have for it.
    pub name: String,
    pub folder: PathBuf,
}

/// Opened adapters, in the order of their slots.
#[derive(Debug, Default)]
pub struct SideAdapters {
    pub served: Vec<ServedAdapter>,
    files: Vec<Adapter>,
}

impl SideAdapters {
    /// Opens adapters of `model`.
    ///
    /// Errors: those of opening; `adapter-slots-unsupported`, `contradictory-keys`.
    pub fn open(given: &[NamedAdapter], model: &OpenModel) -> Result<SideAdapters> {
        if !given.is_empty() && model.adapter.is_some() {
            return Err(Error::usage(
                "contradictory-keys",
                format!(
                    "{} is an adapter itself, and --adapter adds others to a model without one",
                    model.source
                ),
            )
            .hint("serve its base, and name it with --adapter NAME=FOLDER too"));
        }
        if given.len() > ADAPTER_SLOTS_MAX {
            let message = format!("{} adapters, and {ADAPTER_SLOTS_MAX} is the most", given.len());
            return Err(Error::usage("adapter-slots-unsupported", message));
        }
        let mut all = SideAdapters::default();
        for NamedAdapter { name, folder } in given {
            let adapter = Adapter::open(folder, &model.spec)?;
            check_built(&adapter, model)?;
            all.served.push(ServedAdapter { name: name.clone(), sha256: adapter.content_sha256()? });
            all.files.push(adapter);
        }
        Ok(all)
    }

    /// Returns what is planned for them: slots of the highest rank and all targets; none without adapters.
    pub fn lora(&self) -> Option<LoraSpec> {
        let rank = self.files.iter().map(|of| of.config.rank).max()?;
        let targets = self.files.iter().flat_map(|of| of.config.targets.iter());
        Some(LoraSpec {
            rank,
            // Each slot has a factor of its own.
            alpha: f64::from(rank),
            rslora: false,
            targets: LoraTargets::new(targets).expect("an adapter has targets"),
            quantize: None,
            adapter: None,
            of_critic: false,
            merge: Auto::Value(false),
            slots: self.files.len() as u32,
            trained_slots: 0,
        })
    }

    /// Reads the adapters into the slots of a model whose plan has them.
    ///
    /// Errors: those of reading; `model-weight-not-finite`.
    pub fn load(&self, dev: &dyn Device, of: &BoundModel<'_>, staging: Bytes) -> Result<()> {
        let Some((table, adapters)) = &of.adapters else { return Ok(()) };
        let Some(slots) = adapters.slots else { return Ok(()) };
        let at = (table, of.layout());
        let mut files = self.files.iter().enumerate();
        files.try_for_each(|(slot, files)| slots.load(dev, at, slot, files, staging))
    }
}

impl<'a> BoundModel<'a> {
    /// Returns the decoder with the adapter of one slot in all rows, with a factor that its slot need not have.
    pub fn of_slot(&self, slot: usize, scale: f32) -> Decoder<'a> {
        let (table, slots, lora) = self.slots();
        let of = &self.shape;
        let all = slots.slot(table, slot);
        let adapters = Adapters::bind(&of.spec, table, of.weights, lora.shape, scale, all);
        let Decoder { spec, dtype, ref params, rope } = *self.decoder();
        Decoder { spec, dtype, params: params.clone().with_adapters(Some(&adapters)), rope }
    }

    /// Fills a slot with numbers of a seed and gives it a factor, for measuring.
    ///
    /// Errors: none but those of the device.
    pub fn randomise_slot(
        &self,
        dev: &dyn Device,
        slot: usize,
        scale: f32,
        seed: u64,
        staging: Bytes,
    ) -> Result<()> {
        let (table, slots, _) = self.slots();
        dev.write_f32(slots.scales, slot, &[scale]);
        let from = AdaptersFrom::Random(seed);
        load_adapters(dev, table, self.layout(), &[slots.slot(table, slot)], from, staging)
    }

    fn slots(&self) -> (&ParamTable, SlotTable<'a>, Lora) {
        let (table, adapters) = self.adapters.as_ref().expect("a plan with slots");
        (table, adapters.slots.expect("a plan with slots"), self.shape.lora.expect("a plan with slots"))
    }
}

/// Refuses a model whose layers cannot all have adapters side by side.
///
/// Errors: `adapter-slots-unsupported`.
pub fn check_slots(model: &OpenModel) -> Result<()> {
    let mut sites =
        (0..model.spec.layers.len()).flat_map(|layer| model.spec.layer(layer).sites().collect::<Vec<_>>());
    let of_experts = (0..model.spec.layers.len()).any(|layer| model.spec.layer(layer).experts().is_some());
    let what = if model.adapter.is_some() {
        "the model is an adapter itself"
    } else if of_experts {
        "the model has experts"
    } else if sites.any(|site| site.is_of_heads()) {
        "heads of latent attention have adapters"
    } else {
        return Ok(());
    };
    let message = format!("adapters side by side on {}: not built where {what}", model.source);
    Err(Error::usage("adapter-slots-unsupported", message).hint("serve a dense model"))
}

/// Refuses what slots are not built for.
fn check_built(adapter: &Adapter, model: &OpenModel) -> Result<()> {
    let targets = adapter.config.targets;
    let layers = || (0..model.spec.layers.len()).map(|layer| (layer, model.spec.layer(layer)));
    let of_experts = layers().any(|(layer, of)| {
        let has = |site: &Site| site.has_adapter(&model.spec, adapter.config.shape(), layer);
        of.sites()
            .filter(has)
            .any(|site| site.is_of_heads() || (site.is_of_experts() && of.experts().is_some()))
    });
    let what = if adapter.config.tower.is_some() {
        "a tower has adapters"
    } else if of_experts {
        "experts, or the heads of latent attention, have adapters"
    } else if model.encodings.is_some() {
        "the base is a GGUF file"
    } else if adapter.config.compute != Compute::Full {
        "an adapter was trained on products of eight bits"
    } else if adapter.config.quantize.is_some() {
        // Alone it is served on that base: others would have other bits.
        "an adapter was trained on a base of fewer bits"
    } else {
        return Ok(());
    };
    let message = format!("adapters of {targets} side by side on {}: not built where {what}", model.source);
    Err(Error::usage("adapter-slots-unsupported", message)
        .hint("serve the one adapter: plimsoll serve FOLDER")
        .hint("of a model with experts, adapters of attention alone have slots"))
}
