//! Divergence: names the tensor with numbers that are not finite. Nothing is repaired: a run that diverged ends.

use plimsoll_base::{Error, Result, slugs};
use plimsoll_device::{Device, OwnedRun, Run};
use plimsoll_memory::Buf;
use plimsoll_model::{Param, ParamTable};

fn sum_squares(dev: &dyn Device, all: Buf<'_>, param: &Param) -> f64 {
    dev.sum_squares(all.slice(param.offset as usize, param.elements as usize))
}

/// Adds the tensor with the largest weights to an error of a divergence.
pub fn name_tensor(dev: &dyn Device, table: &ParamTable, weights: Buf<'_>, error: Error) -> Error {
    let rms = |p: &Param| (sum_squares(dev, weights, p) / p.elements as f64).sqrt();
    let sized = table.params.iter().map(|p| (p, rms(p)));
    // NaN sorts above every number.
    let Some((param, rms)) = sized.max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())) else { return error };
    error.fact(format!("largest weights: `{}`, root mean square {rms:.3e}", param.parts[0].name))
}

/// Requires that every weight is finite.
///
/// Errors: `model-weight-not-finite` names the tensor.
pub fn finite_weights(dev: &dyn Device, table: &ParamTable, weights: Buf<'_>) -> Result<()> {
    let Some(param) = table.params.iter().find(|p| !sum_squares(dev, weights, p).is_finite()) else {
        return Ok(());
    };
    let message = format!("tensor `{}` is not finite after an update", param.parts[0].name);
    Err(Error::new(slugs::MODEL_WEIGHT_NOT_FINITE, message).hint("lower train.learning_rate"))
}

/// Returns the index of the first tensor with a non-finite gradient among this rank's. `grads`: its `owned` elements.
pub fn first_not_finite(
    dev: &dyn Device,
    table: &ParamTable,
    owned: &[OwnedRun],
    grads: Buf<'_>,
) -> Option<usize> {
    let is_finite = |param: &Param| {
        let whole = Run { start: param.offset, elements: param.elements };
        owned.iter().filter_map(|owned| owned.inside(whole)).all(|OwnedRun { run, at }| {
            dev.sum_squares(grads.slice(at as usize, run.elements as usize)).is_finite()
        })
    };
    table.params.iter().position(|param| !is_finite(param))
}

/// Returns the error that names the tensor whose gradient is not finite, by its index.
pub fn gradient_not_finite(table: &ParamTable, index: Option<usize>) -> Error {
    let broken = index.and_then(|index| table.params.get(index));
    let name = broken.map_or("their sum", |p| p.parts[0].name.as_str());
    Error::new(slugs::GRADIENT_NOT_FINITE, format!("the gradient of `{name}` is not finite"))
        .hint("lower train.learning_rate, or set train.grad_clip")
}
