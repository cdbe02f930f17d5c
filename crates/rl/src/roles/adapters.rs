//! The trained parameters of a role: its adapters, or all its weights, with their gradients and their dtype in files.

use super::role::Role;
use plimsoll_base::{Bytes, DType, Result};
use plimsoll_device::Device;
use plimsoll_infer::bound::BoundModel;
use plimsoll_infer::phases::enter;
use plimsoll_infer::weights::keep_part;
use plimsoll_memory::{Buf, InPhase, Overlay};
use plimsoll_model::{Adapters, AdaptersFrom, Gradients, Params, load_adapters};
use plimsoll_plan::RoleShape;
use plimsoll_train::{Partial, Share};

impl<'a> Role<'a> {
    /// Makes adapters that are frozen too part of what identifies the role.
    pub(super) fn identify_adapters(&mut self, dev: &dyn Device) {
        let Role { model: BoundModel { shape, sum_squares, adapters, .. }, optimizer: None } = self else {
            return;
        };
        if let (Some(sum), Some((_, adapters)), Some(lora)) = (sum_squares, adapters, shape.lora) {
            *sum += f64::from(lora.scale) * dev.sum_squares(adapters.all);
        }
    }

    /// True if what it learns is in parts on several ranks.
    pub fn is_spread(&self) -> bool {
        self.part().is_some() && self.optimizer.is_some()
    }

    /// Reads or makes the adapters, if it has any.
    ///
    /// Errors: those of reading.
    pub fn load_adapters(
        &self,
        dev: &dyn Device,
        overlay: &mut Overlay<'_>,
        from: AdaptersFrom<'_>,
        staging: Bytes,
    ) -> Result<()> {
        let trained = self.optimizer.as_ref().and_then(|of| Some((of, of.master()?)));
        let (Some((table, adapters)), Some((optimizer, master))) = (&self.adapters, trained) else {
            return self.model.load_adapters(dev, from, staging);
        };
        let load = |sets: &[Buf<'_>]| load_adapters(dev, table, self.layout(), sets, from, staging);
        // The copy in f32 has what products read rounded.
        if self.update_shape().share == Share::WHOLE {
            load(&[adapters.all, master])?;
        } else {
            let phase = enter(dev, overlay, self.update_shape().pass.mode.phase());
            let whole = self.bind_gradients(&phase).all();
            load(&[adapters.all, whole])?;
            keep_part(dev, table, optimizer.share(), whole, master);
        }
        self.refresh(dev);
        Ok(())
    }

    /// Returns the dtype of what it learns in files, if that is not the buffer's: adapters are f32.
    pub(super) fn stored_as(&self) -> Option<DType> {
        self.adapters.as_ref().map(|_| DType::F32)
    }

    pub(super) fn partial<'p>(&self, phase: &InPhase<'p>) -> Partial<'p> {
        Partial::bind(phase, self.shape.name.name(), self.learned().0)
    }

    pub(super) fn bind_gradients<'p>(&self, phase: &InPhase<'p>) -> RoleGradients<'p> {
        let RoleShape { name, spec, weights, lora, .. } = &self.shape;
        match (&self.adapters, lora) {
            (Some((table, _)), Some(lora)) => {
                let all = phase.buf(&format!("{}.grads", name.name()));
                RoleGradients::Adapters(Adapters::bind(spec, table, *weights, lora.shape, lora.scale, all))
            }
            _ => RoleGradients::Weights(self.partial(phase).params(spec, &self.table, *weights)),
        }
    }
}

#[allow(clippy::large_enum_variant)] // One a role, on the stack.
pub(super) enum RoleGradients<'p> {
    Weights(Params<'p>),
    Adapters(Adapters<'p>),
}

impl<'p> RoleGradients<'p> {
    /// Returns the flat buffer of the gradients, on one rank or of adapters.
    pub(super) fn all(&self) -> Buf<'p> {
        self.to().all()
    }

    pub(super) fn to(&self) -> Gradients<'_, 'p> {
        match self {
            RoleGradients::Weights(params) => params.into(),
            RoleGradients::Adapters(adapters) => adapters.into(),
        }
    }
}
