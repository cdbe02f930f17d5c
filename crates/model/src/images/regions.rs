//! The regions of images in a pass over text, as rows of the plan.

use crate::activations::mode::Mode;
use crate::activations::shape::Target;
use plimsoll_arch::{SightSpec, TowerSpec};
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_memory::{Buf, InPhase, Layout, Pool};

/// Limits of the images of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// M: rows of the pass, as in `PassLimits`.
    pub rows: usize,
    /// I: rows that are vectors.
    pub image_rows: usize,
}

/// Returns a region for n vectors of a tower: [sets, n, H] f32.
///
/// Errors: `size-overflow`.
pub fn vectors_layout(
    name: &str,
    tower: &TowerSpec,
    pool: Pool,
    phases: PhaseSet,
    vectors: usize,
) -> Result<Layout> {
    let mut layout = Layout::new();
    let shape = [tower.sets() as u64, vectors as u64, u64::from(tower.out)];
    layout.arena(name, "model", pool, phases, &shape, DType::F32).map(|()| layout)
}

/// Returns the index arrays of images in the phase of a mode. Names begin with the mode's prefix and `images`.
///
/// Errors: `size-overflow`.
pub fn images_layout(spec: &SightSpec, target: Target, mode: Mode, limits: ImageLimits) -> Result<Layout> {
    let mut layout = Layout::new();
    let phases = PhaseSet::of(&[mode.phase()]);
    let [m, i] = [limits.rows, limits.image_rows].map(|n| n as u64);
    let mut add = |name: &str, shape: &[u64], dtype| {
        let name = format!("{}.images.{name}", mode.prefix());
        layout.arena(&name, "model", target.pool, phases, shape, dtype)
    };
    add("rows", &[i], DType::U32)?;
    add("which", &[i], DType::U32)?;
    add("taken", &[i, u64::from(spec.tower.out)], DType::F32)?;
    add("places", &[m, 3], DType::U32)?;
    Ok(layout)
}

/// Returns the rows of gradients that a pass keeps for other ranks, [sets, I, H] f32, in the phase of a mode.
///
/// Errors: `size-overflow`.
pub fn kept_rows_layout(
    name: &str,
    spec: &SightSpec,
    target: Target,
    mode: Mode,
    rows: usize,
) -> Result<Layout> {
    vectors_layout(name, &spec.tower, target.pool, PhaseSet::of(&[mode.phase()]), rows)
}

/// Handles to the index arrays of images in a phase.
#[derive(Clone, Copy, Debug)]
pub struct ImageRegions<'p> {
    pub(super) rows: Buf<'p>,
    pub(super) which: Buf<'p>,
    pub(super) taken: Buf<'p>,
    pub(super) places: Buf<'p>,
}

impl<'p> ImageRegions<'p> {
    /// Resolves the handles of `images_layout` in a phase. Panics if the phase has no such regions.
    pub fn bind(phase: &InPhase<'p>, mode: Mode) -> ImageRegions<'p> {
        let prefix = mode.prefix();
        let buf = |name: &str| phase.buf(&format!("{prefix}.images.{name}"));
        ImageRegions { rows: buf("rows"), which: buf("which"), taken: buf("taken"), places: buf("places") }
    }
}
