//! The adapters that are trained: each has a slot with its weights, gradients and states while it is in use. Others are
//! parked in files, bit for bit, so there may be more models than slots.

use crate::adapter::{scale_of, seeded};
use crate::parked::{Parked, StateSets};
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_device::{Device, MatrixLayout};
use plimsoll_infer::bound::BoundModel;
use plimsoll_memory::{Buf, Resident};
use plimsoll_model::{Decoder, FlatTensors, ParamTable, SlotBufs, SlotTensors, fill_slot, save_slot};
use plimsoll_plan::{Lora, RoleName, trained_slot};
use plimsoll_tinker::{AdapterChoice, SaveKind};
use plimsoll_train::{Optimizer, Share, UpdateOptions};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A slot that is trained.
struct TrainedSlot<'a> {
    /// The model that it has.
    model: Option<String>,
    weights: Buf<'a>,
    optimizer: Optimizer<'a>,
    /// The gradients since the last step.
    sums: Buf<'a>,
    has_sums: bool,
    /// When it was used last, in jobs.
    used: u64,
}

/// What is known of a model: its shape, and where it is.
struct Known {
    adapter: AdapterChoice,
    /// Its slot; none if it is parked.
    slot: Option<usize>,
    parked: Parked,
}

/// All models that are trained.
pub struct TrainedSlots<'b, 'a> {
    pub dev: &'b dyn Device,
    pub bound: &'b BoundModel<'a>,
    pub table: &'b ParamTable,
    staging: Bytes,
    slots: Vec<TrainedSlot<'a>>,
    models: BTreeMap<String, Known>,
    folder: PathBuf,
    jobs: u64,
}

/// A model in its slot.
pub struct InSlot<'s, 'a> {
    pub decoder: Decoder<'a>,
    pub scale: f32,
    pub lora: Lora,
    pub optimizer: &'s mut Optimizer<'a>,
    pub weights: Buf<'a>,
    pub sums: Buf<'a>,
    pub has_sums: &'s mut bool,
}

impl<'b, 'a> TrainedSlots<'b, 'a> {
    /// Takes the trained slots of a model. Models that have no slot are parked in `folder`, which is made anew.
    ///
    /// Errors: `write-failed`.
    pub fn bind(
        dev: &'b dyn Device,
        bound: &'b BoundModel<'a>,
        resident: Resident<'a>,
        staging: Bytes,
        folder: PathBuf,
    ) -> Result<TrainedSlots<'b, 'a>> {
        let (table, adapters) = bound.adapters.as_ref().expect("a plan with slots");
        let (all, lora) = (adapters.slots.expect("a plan with slots"), bound.shape.lora.expect("slots"));
        let slot = |index: usize| {
            let name = trained_slot(RoleName::Actor.name(), index);
            let weights = all.slot(table, index);
            let optimizer = Optimizer::new(dev, table, weights, resident, &name, Share::WHOLE);
            let sums = resident.buf(&format!("{name}.sums"));
            TrainedSlot { model: None, weights, optimizer, sums, has_sums: false, used: 0 }
        };
        let slots = (0..lora.trained_slots as usize).map(slot).collect();
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(|err| Error::io("write-failed", &folder, &err))?;
        Ok(TrainedSlots { dev, bound, table, staging, slots, models: BTreeMap::new(), folder, jobs: 0 })
    }

    /// Returns the element order of an adapter's matrices.
    pub fn layout(&self) -> MatrixLayout {
        self.bound.layout()
    }

    /// Makes a model that begins from its seed, with a new optimizer.
    ///
    /// Errors: `tinker-bad-request` for one that trains nothing here; those of parking another.
    pub fn create(&mut self, model: &str, adapter: &AdapterChoice) -> Result<()> {
        let begin = seeded(adapter);
        if !begin.attention && !begin.mlp {
            let message =
                "the adapter has neither attention nor feed-forward layers: the unembedding has none here";
            return Err(Error::new("tinker-bad-request", message).hint("set train_attn or train_mlp"));
        }
        let slot = self.take_slot(model)?;
        self.fill(slot, adapter, &begin, None)?;
        self.settle(model, adapter, slot);
        Ok(())
    }

    /// Sets a model to what is in a store; makes it if it is not there. Its gradients are cleared.
    ///
    /// Errors: those of reading and of parking another; the model is then as it was.
    pub fn load(
        &mut self,
        model: &str,
        adapter: &AdapterChoice,
        weights: &dyn SlotTensors,
        states: Option<StateSets<'_>>,
    ) -> Result<()> {
        // Into another slot than its own, so that a store that cannot be read leaves the model as it was.
        let slot = self.take_slot(model)?;
        self.fill(slot, adapter, weights, states)?;
        self.settle(model, adapter, slot);
        Ok(())
    }

    /// Gives a model the slot that was filled for it, and frees the one that it had.
    fn settle(&mut self, model: &str, adapter: &AdapterChoice, slot: usize) {
        let parked = self.drop_model(model).unwrap_or_else(|| Parked::new(&self.folder, model));
        self.slots[slot].model = Some(model.to_string());
        self.models.insert(model.to_string(), Known { adapter: adapter.clone(), slot: Some(slot), parked });
    }

    /// Forgets a model. Returns where it would be parked, if it was there.
    pub fn drop_model(&mut self, model: &str) -> Option<Parked> {
        let known = self.models.remove(model)?;
        match known.slot {
            Some(slot) => self.slots[slot].model = None,
            None => known.parked.remove(),
        }
        Some(known.parked)
    }

    pub fn adapter(&self, model: &str) -> Result<AdapterChoice> {
        let known = self.models.get(model).ok_or_else(|| unknown(model))?;
        Ok(known.adapter.clone())
    }

    /// Returns a model in a slot, brought back from its file if it was parked.
    ///
    /// Errors: those of parking and of reading; `internal` for a model that is not there.
    pub fn get(&mut self, model: &str) -> Result<InSlot<'_, 'a>> {
        let known = self.models.get(model).ok_or_else(|| unknown(model))?;
        let (adapter, slot) = (known.adapter.clone(), known.slot);
        let slot = match slot {
            Some(slot) => slot,
            None => self.bring_back(model, &adapter)?,
        };
        self.jobs += 1;
        let lora = self.bound.shape.lora.expect("a plan with slots");
        let scale = scale_of(&adapter);
        let TrainedSlot { weights, optimizer, sums, has_sums, used, .. } = &mut self.slots[slot];
        *used = self.jobs;
        let decoder = self.bound.of_slot(slot, scale);
        Ok(InSlot { decoder, scale, lora, optimizer, weights: *weights, sums: *sums, has_sums })
    }

    fn bring_back(&mut self, model: &str, adapter: &AdapterChoice) -> Result<usize> {
        let slot = self.take_slot(model)?;
        let known = self.models.get(model).expect("it was there just now");
        let (open, updates, has_sums) = known.parked.open()?;
        let (weights, states) =
            (open.set(""), StateSets { m: open.set("adam_m."), v: open.set("adam_v."), updates });
        self.fill(slot, adapter, &weights, Some(states))?;
        if has_sums {
            let sums = [self.slots[slot].sums];
            let (rank, from) = (adapter.rank as usize, open.set("sums."));
            fill_slot(self.bufs(&sums), rank, &from, self.staging)?;
        }
        self.slots[slot].has_sums = has_sums;
        self.slots[slot].model = Some(model.to_string());
        let known = self.models.get_mut(model).expect("it was there just now");
        known.parked.remove();
        known.slot = Some(slot);
        Ok(slot)
    }

    fn bufs<'s>(&'s self, sets: &'s [Buf<'a>]) -> SlotBufs<'s, 'a> {
        SlotBufs { dev: self.dev, table: self.table, layout: self.layout(), sets }
    }

    /// Fills a slot's weights and states; gradients and, without `states`, the states are those of a new one.
    fn fill(
        &mut self,
        slot: usize,
        adapter: &AdapterChoice,
        from: &dyn SlotTensors,
        states: Option<StateSets<'_>>,
    ) -> Result<()> {
        let TrainedSlot { weights, optimizer, .. } = &self.slots[slot];
        let (rank, staging) = (adapter.rank as usize, self.staging);
        let learned: Vec<Buf<'a>> = std::iter::once(*weights).chain(optimizer.master()).collect();
        fill_slot(self.bufs(&learned), rank, from, staging)?;
        let moments: Vec<Buf<'a>> = optimizer.states().into_iter().take(2).map(|of| of.buf).collect();
        let updates = match states {
            Some(StateSets { m, v, updates }) => {
                fill_slot(self.bufs(&moments[..1]), rank, &m, staging)?;
                fill_slot(self.bufs(&moments[1..]), rank, &v, staging)?;
                updates
            }
            None => {
                moments.iter().for_each(|buf| self.dev.zero(*buf));
                0
            }
        };
        self.dev.check()?;
        let slot = &mut self.slots[slot];
        slot.optimizer.step = updates;
        slot.has_sums = false;
        Ok(())
    }

    /// Returns a free slot for a model; parks the model that was not used for the longest time if there is none.
    fn take_slot(&mut self, model: &str) -> Result<usize> {
        if let Some(free) = self.slots.iter().position(|slot| slot.model.is_none()) {
            return Ok(free);
        }
        let others = self.slots.iter().enumerate().filter(|(_, slot)| slot.model.as_deref() != Some(model));
        let (slot, _) = others.min_by_key(|(_, slot)| slot.used).expect("a slot of another model");
        let other = self.slots[slot].model.clone().expect("no slot is free");
        let adapter = self.models[&other].adapter.clone();
        let TrainedSlot { optimizer, sums, has_sums, .. } = &self.slots[slot];
        let mut sets: Vec<(&str, Buf<'a>)> = vec![("", self.exact(slot))];
        sets.extend(optimizer.states().iter().take(2).map(|of: &FlatTensors<'a>| (of.prefix, of.buf)));
        if *has_sums {
            sets.push(("sums.", *sums));
        }
        let parked = &self.models[&other].parked;
        self.write(&sets, &adapter, &parked.path)?;
        parked.note(optimizer.step, *has_sums)?;
        self.models.get_mut(&other).expect("it was there just now").slot = None;
        self.slots[slot].model = None;
        Ok(slot)
    }

    /// Returns a slot's weights, of two copies the one in f32.
    fn exact(&self, slot: usize) -> Buf<'a> {
        let slot = &self.slots[slot];
        slot.optimizer.master().unwrap_or(slot.weights)
    }

    fn write(
        &self,
        sets: &[(&str, Buf<'a>)],
        adapter: &AdapterChoice,
        path: &std::path::Path,
    ) -> Result<u64> {
        let (prefixes, bufs): (Vec<&str>, Vec<Buf<'a>>) = sets.iter().copied().unzip();
        let begin = seeded(adapter);
        let has = |name: &str| begin.trains(name);
        let of = self.bufs(&bufs);
        Ok(save_slot(of, &prefixes, adapter.rank as usize, &has, path, self.staging)?.bytes)
    }

    /// Writes a model's weights, and returns their bytes: those that are sampled, or those that training goes on from,
    /// which may have more bits.
    ///
    /// Errors: those of writing.
    pub fn save_weights(&mut self, model: &str, kind: SaveKind, path: &std::path::Path) -> Result<u64> {
        let (slot, adapter) = self.slot_of(model)?;
        let weights = if kind == SaveKind::Sampler { self.slots[slot].weights } else { self.exact(slot) };
        self.write(&[("", weights)], &adapter, path)
    }

    /// Returns a model's weights that training goes on from, and the factor of its adapter.
    ///
    /// Errors: those of bringing it back.
    pub fn weights(&mut self, model: &str) -> Result<(Buf<'a>, f32)> {
        let (slot, adapter) = self.slot_of(model)?;
        Ok((self.exact(slot), scale_of(&adapter)))
    }

    /// Writes a model's states, and returns their bytes and the updates that made them.
    ///
    /// Errors: those of writing.
    pub fn save_states(&mut self, model: &str, path: &std::path::Path) -> Result<(u64, u64)> {
        let (slot, adapter) = self.slot_of(model)?;
        let optimizer = &self.slots[slot].optimizer;
        let states = optimizer.states();
        let sets: Vec<(&str, Buf<'a>)> = states.iter().take(2).map(|of| (of.prefix, of.buf)).collect();
        Ok((self.write(&sets, &adapter, path)?, optimizer.step))
    }

    fn slot_of(&mut self, model: &str) -> Result<(usize, AdapterChoice)> {
        self.get(model)?;
        let known = &self.models[model];
        Ok((known.slot.expect("it was brought back"), known.adapter.clone()))
    }
}

impl InSlot<'_, '_> {
    /// Makes one step with the gradients since the last one, and clears them. Returns their norm.
    ///
    /// Errors: those of the device.
    pub fn step(self, dev: &dyn Device, how: UpdateOptions) -> Result<f64> {
        if !*self.has_sums {
            dev.zero(self.sums);
        }
        let norm = self.optimizer.grad_norm(dev, self.sums);
        if !norm.is_finite() {
            let message = format!("the norm of the model's gradients is {norm}: their sum is too large");
            return Err(Error::new("gradient-not-finite", message).hint("load what was saved last"));
        }
        self.optimizer.update(dev, self.weights, self.sums, None, how, norm);
        *self.has_sums = false;
        dev.sync();
        dev.check()?;
        Ok(norm)
    }
}

fn unknown(model: &str) -> Error {
    Error::new("internal", format!("the engine has no model {model:?}"))
}
