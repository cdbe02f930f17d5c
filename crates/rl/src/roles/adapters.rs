//! The trained parameters of a role: its adapters, or all its weights, with their gradients and their dtype in files.

use super::phases::enter;
use super::role::Role;
use super::weights::{Loading, keep_part};
use plimsoll_base::{Bytes, DType, Result};
use plimsoll_device::Device;
use plimsoll_files::OpenModel;
use plimsoll_memory::{Buf, InPhase, Overlay};
use plimsoll_model::{Adapters, AdaptersFrom, Gradients, ParamTable, Params, load_adapters};
use plimsoll_plan::{RoleName, RoleShape};
use plimsoll_train::{Partial, Share};

impl Loading {
    /// Returns the adapters to start from: those in the model's files, or new ones. A critic never takes the actor's.
    pub(super) fn adapters(self, of: RoleName, model: &OpenModel) -> AdaptersFrom<'_> {
        let files = model.adapter.as_ref().filter(|_| of != RoleName::Critic);
        AdaptersFrom::Start { files, model, seed: self.seed }
    }
}

impl<'a> Role<'a> {
    /// Reads or initialises the adapters, if the role has any.
    ///
    /// Errors: those of reading.
    pub fn load_adapters(
        &self,
        dev: &dyn Device,
        overlay: &mut Overlay<'_>,
        from: AdaptersFrom<'_>,
        staging: Bytes,
    ) -> Result<()> {
        self.read_adapters(dev, overlay, from, staging)?;
        self.merge(dev);
        Ok(())
    }

    /// Adds frozen adapters to the sum of squares that identifies the role.
    pub(super) fn identify_adapters(&mut self, dev: &dyn Device) {
        let Role { shape, sum_squares, adapters, optimizer: None, .. } = self else { return };
        if let (Some(sum), Some((_, adapters)), Some(lora)) = (sum_squares, adapters, shape.lora) {
            *sum += f64::from(lora.scale) * dev.sum_squares(adapters.all);
        }
    }

    /// Recomputes the merged weights, if products read them. Called after the adapters have changed.
    pub(super) fn merge(&self, dev: &dyn Device) {
        if let Some(((weights, merged), (_, adapters))) = self.merged.as_ref().zip(self.adapters.as_ref()) {
            merged.update(dev, weights, adapters);
        }
    }

    fn read_adapters(
        &self,
        dev: &dyn Device,
        overlay: &mut Overlay<'_>,
        from: AdaptersFrom<'_>,
        staging: Bytes,
    ) -> Result<()> {
        let Some((table, adapters)) = &self.adapters else { return Ok(()) };
        let layout = self.layout();
        let load = |sets: &[Buf<'_>]| load_adapters(dev, table, layout, sets, from, staging);
        let Some((optimizer, master)) = self.optimizer.as_ref().and_then(|of| Some((of, of.master()?)))
        else {
            return load(&[adapters.all]);
        };
        // The f32 copy keeps the exact values that products read rounded.
        if self.update_shape().share == Share::WHOLE {
            return load(&[adapters.all, master]);
        }
        let phase = enter(dev, overlay, self.update_shape().pass.mode.phase());
        let whole = self.bind_gradients(&phase).all();
        load(&[adapters.all, whole])?;
        keep_part(dev, table, optimizer.share(), whole, master);
        Ok(())
    }

    /// Returns the trained parameters as a flat buffer with its table: the adapters, or all weights, or this rank's
    /// part of them if they are spread over ranks.
    pub fn learned(&self) -> (&ParamTable, Buf<'a>) {
        match (&self.adapters, self.part()) {
            (Some((table, adapters)), _) => (table, adapters.all),
            (None, Some((_, part))) => (&self.table, part),
            (None, None) => (&self.table, self.decoder().params.all),
        }
    }

    /// Returns the dtype of the trained parameters in files, if it is not the buffer's: adapters are f32.
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
