//! Regions of an update whose rows are compared with a teacher's head. Legend: R head rows, V the student's vocabulary,
//! t the teacher's hidden elements.

use super::shape::Regions;
use plimsoll_base::{DType, Result};
use plimsoll_device::{HeadOut, Logits, Matrix, Measure};
use plimsoll_memory::{Buf, Turn};

/// A teacher's head, and how a student's distribution is compared with its own.
#[derive(Clone, Copy, Debug)]
pub struct TeacherHead<'x> {
    /// [V, t].
    pub(crate) w: Matrix<'x>,
    pub(crate) logits: Logits<'static>,
    pub(crate) how: Measure,
}

/// The regions of an update that has a teacher's rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WholeBufs<'p> {
    /// [R, t] e.
    pub(crate) x: Buf<'p>,
    /// The outputs of the teacher's head for the targets.
    pub(crate) out: HeadOut<'p>,
    pub(crate) tile: Buf<'p>,
    pub(crate) values: Buf<'p>,
    pub(crate) means: Buf<'p>,
    /// [R] f32: derivatives of the loss by `values`.
    pub(crate) d: Buf<'p>,
}

impl<'p> WholeBufs<'p> {
    pub(crate) fn bind(get: &impl Fn(&str) -> Option<Buf<'p>>) -> Option<WholeBufs<'p>> {
        let out = HeadOut {
            logprobs: get("head.teacher_logprobs")?,
            lse: get("head.teacher_lse")?,
            entropy: get("head.teacher_entropy")?,
        };
        Some(WholeBufs {
            x: get("head.teacher")?,
            out,
            tile: get("head.teacher_tile")?,
            values: get("head.divergence")?,
            means: get("head.pull")?,
            d: get("head.d_divergence")?,
        })
    }
}

/// Adds the regions of an update with rows of a teacher's; `tile`: the elements of a head tile.
///
/// They are used between the last layer's forward and its backward pass alone.
///
/// Errors: `size-overflow`.
pub(crate) fn add_regions(to: &mut Regions<'_>, tile: usize) -> Result<()> {
    let (r, width, weights) = (to.of.limits.head_rows, to.of.limits.taught, to.weights);
    to.add_in(Turn::Head, "head.teacher", &[r, width], weights)?;
    to.add_in(Turn::Head, "head.teacher_tile", &[tile], DType::F32)?;
    for name in ["teacher_logprobs", "teacher_lse", "teacher_entropy", "divergence", "pull", "d_divergence"] {
        to.add_in(Turn::Head, &format!("head.{name}"), &[r], DType::F32)?;
    }
    Ok(())
}
