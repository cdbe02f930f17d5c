//! Policy files: safetensors named as in `torch.nn.Sequential`, as PyTorch scripts save an actor-critic. Widths are
//! read from the shapes; what does not match an environment's spaces is refused by name. A file without a critic can
//! act but gives no values.

use super::{MlpHead, MlpParams, MlpSpec};
use crate::params::{Param, ParamTable};
use plimsoll_arch::ParamKind;
use plimsoll_base::{Error, Result, slugs};
use plimsoll_device::{Device, Matrix, MatrixLayout};
use plimsoll_files::TensorFile;
use std::path::{Path, PathBuf};

/// Maximum hidden layers of a policy.
const HIDDEN_MAX: usize = 16;
/// Maximum width of a layer; a wider file is no small network.
const WIDTH_MAX: u64 = 1 << 16;
const CHUNK_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub struct PolicyFile {
    file: TensorFile,
    path: PathBuf,
    /// Prefix of the actor's tensors: `actor`, or CleanRL's `actor_mean` for continuous actions.
    actor: &'static str,
    /// True if it has the tensors of a critic.
    has_critic: bool,
}

impl PolicyFile {
    /// Opens `path`: a file, or a folder that holds `model.safetensors`, such as a checkpoint.
    ///
    /// Errors: `policy-shape-mismatch` if there is no actor; those of `TensorFile::open`.
    pub fn open(path: &Path) -> Result<PolicyFile> {
        let path = if path.is_dir() { path.join("model.safetensors") } else { path.to_path_buf() };
        let file = TensorFile::open(&path)?;
        let names = ["actor", "actor_mean"];
        let actor = names.into_iter().find(|name| file.tensor(&format!("{name}.0.weight")).is_some());
        let actor = actor.ok_or_else(|| {
            let message = format!("{}: no tensor `actor.0.weight`", path.display());
            Error::new("policy-shape-mismatch", message).hint(
                "name the tensors actor.0.weight, actor.0.bias, actor.2.weight, .. and critic.0.weight, ..",
            )
        })?;
        let has_critic = file.tensor("critic.0.weight").is_some();
        Ok(PolicyFile { file, path, actor, has_critic })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if the file has a critic. Without one the critic's weights are left at zero.
    pub fn has_critic(&self) -> bool {
        self.has_critic
    }

    /// Returns the widths of the hidden layers.
    ///
    /// Errors: `policy-shape-mismatch` if there are none, or a width is invalid.
    pub fn hidden(&self) -> Result<Vec<u32>> {
        let rows = |i: usize| {
            let tensor = self.file.tensor(&format!("{}.{}.weight", self.actor, 2 * i))?;
            (tensor.shape.len() == 2).then_some(tensor.shape[0])
        };
        let widths: Vec<u64> = (0..=HIDDEN_MAX).map_while(rows).collect();
        if let Some(width) = widths.iter().find(|width| !(1..=WIDTH_MAX).contains(*width)) {
            return Err(self.mismatch(format!("a map of its actor has {width} rows, from 1 to {WIDTH_MAX}")));
        }
        match widths.split_last() {
            Some((_, hidden)) if widths.len() <= HIDDEN_MAX => Ok(hidden.iter().map(|&n| n as u32).collect()),
            _ => Err(self.mismatch(format!("its actor has no matrices, or more than {HIDDEN_MAX}"))),
        }
    }

    /// Requires a critic, without which a policy acts but cannot learn.
    ///
    /// Errors: `policy-shape-mismatch`.
    pub fn require_critic(&self) -> Result<()> {
        if self.has_critic {
            Ok(())
        } else {
            Err(self.mismatch("no tensor `critic.0.weight`, and PPO learns with a critic".into()))
        }
    }

    /// Requires the tensors of `spec` in their shapes; the critic's only if the file has one.
    ///
    /// Errors: `policy-shape-mismatch` names the first tensor that is missing or has another shape.
    pub fn check(&self, spec: &MlpSpec, table: &ParamTable) -> Result<()> {
        for param in self.held(table) {
            let (name, wanted) = (self.name(param), shape(param));
            match self.file.tensor(&name) {
                None => return Err(self.mismatch(format!("no tensor `{name}`, which {} needs", words(spec)))),
                Some(tensor) if !same(&tensor.shape, &wanted) => {
                    let what =
                        format!("tensor `{name}` is {:?}, {} needs {wanted:?}", tensor.shape, words(spec));
                    return Err(self.mismatch(what));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Fills `params` after `check`.
    ///
    /// Errors: `policy-shape-mismatch`; `model-weight-not-finite`; those of reading.
    pub fn load(
        &self,
        dev: &dyn Device,
        spec: &MlpSpec,
        table: &ParamTable,
        params: &MlpParams<'_>,
    ) -> Result<()> {
        self.check(spec, table)?;
        dev.zero(params.all);
        let layout = MatrixLayout::of_weights(table.device, params.all.dtype());
        let mut stored = vec![0u8; CHUNK_BYTES];
        for param in self.held(table) {
            let (name, width) = (self.name(param), param.k.max(1) as usize);
            let mut values = vec![0f32; param.n as usize * width];
            self.file.read(&name, 0, &mut stored, &mut values)?;
            if let Some(bad) = values.iter().find(|x| !x.is_finite()) {
                let message = format!("{}: tensor `{name}` holds {bad}", self.path.display());
                return Err(Error::new(slugs::MODEL_WEIGHT_NOT_FINITE, message));
            }
            let buf = params.all.slice(param.offset as usize, param.elements as usize);
            if param.is_vector() {
                dev.write_f32(buf, 0, &values)
            } else {
                dev.write_rows(Matrix::new(buf, param.n as usize, width, layout), 0, &values)
            }
        }
        Ok(())
    }

    fn held<'t>(&self, table: &'t ParamTable) -> impl Iterator<Item = &'t Param> + use<'t> {
        let has_critic = self.has_critic;
        let of_critic = |param: &Param| matches!(param.kind, ParamKind::CriticLinear | ParamKind::CriticBias);
        table.params.iter().filter(move |param| has_critic || !of_critic(param))
    }

    /// Returns the tensor's name in this file.
    fn name(&self, param: &Param) -> String {
        let name = &param.parts[0].name;
        match name.strip_prefix("actor.") {
            Some(rest) => format!("{}.{rest}", self.actor),
            None => name.clone(),
        }
    }

    fn mismatch(&self, what: String) -> Error {
        Error::new("policy-shape-mismatch", format!("{}: {what}", self.path.display()))
            .hint("give the policy of this environment, or another environment")
    }
}

fn shape(param: &Param) -> Vec<u64> {
    if param.is_vector() { vec![param.n.into()] } else { vec![param.n.into(), param.k.into()] }
}

/// Compares shapes; PyTorch scripts may store vectors as `[1, A]`.
fn same(found: &[u64], wanted: &[u64]) -> bool {
    found == wanted || (wanted.len() == 1 && found == [1, wanted[0]])
}

/// Formats as `a policy of 4 numbers with 2 choices`.
fn words(spec: &MlpSpec) -> String {
    let head = match &spec.head {
        MlpHead::Categorical(sizes) => format!("choices among {sizes:?}"),
        MlpHead::Gaussian(dims) => format!("{dims} continuous actions"),
    };
    format!("a policy of {} observed numbers, hidden {:?}, with {head}", spec.inputs, spec.hidden)
}
