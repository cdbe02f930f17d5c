//! The regions of images in a pass over text, as rows of the plan.

use crate::activations::mode::Mode;
use crate::activations::shape::Target;
use crate::tower::VectorTable;
use plimsoll_arch::SightSpec;
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_memory::{Buf, InPhase, Layout};

/// Limits of the images of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// M: rows of the pass, as in `PassLimits`.
    pub rows: usize,
    /// I: rows that are vectors.
    pub image_rows: usize,
    /// n: vectors of all images that are held.
    pub vectors: usize,
}

/// Returns the regions of images in the phase of a mode: the table of vectors, with their gradients where the tower is
/// trained, and index arrays. Names begin with the mode's prefix and `images`.
///
/// Errors: `size-overflow`.
pub fn images_layout(
    spec: &SightSpec,
    target: Target,
    mode: Mode,
    limits: ImageLimits,
    trains_tower: bool,
) -> Result<Layout> {
    let mut layout = Layout::new();
    let phases = PhaseSet::of(&[mode.phase()]);
    let (width, sets) = (u64::from(spec.tower.out), 1 + spec.tower.deep.as_slice().len() as u64);
    let [m, i, n] = [limits.rows, limits.image_rows, limits.vectors].map(|n| n as u64);
    let table = [sets, n, width];
    let mut add = |name: &str, shape: &[u64], dtype| {
        let name = format!("{}.images.{name}", mode.prefix());
        layout.arena(&name, "model", target.pool, phases, shape, dtype)
    };
    add("vectors", &table, DType::F32)?;
    if trains_tower {
        add("d_vectors", &table, DType::F32)?;
    }
    add("rows", &[i], DType::U32)?;
    add("which", &[i], DType::U32)?;
    add("taken", &[i, width], DType::F32)?;
    add("places", &[m, 3], DType::U32)?;
    Ok(layout)
}

/// Handles to the regions of images in a phase.
#[derive(Clone, Copy, Debug)]
pub struct ImageRegions<'p> {
    pub vectors: VectorTable<'p>,
    pub d_vectors: Option<VectorTable<'p>>,
    pub(super) rows: Buf<'p>,
    pub(super) which: Buf<'p>,
    pub(super) taken: Buf<'p>,
    pub(super) places: Buf<'p>,
}

impl<'p> ImageRegions<'p> {
    /// Resolves the handles of `images_layout` in a phase. Panics if the phase has no such regions.
    pub fn bind(phase: &InPhase<'p>, mode: Mode, spec: &SightSpec) -> ImageRegions<'p> {
        let prefix = mode.prefix();
        let get = |name: &str| phase.get(&format!("{prefix}.images.{name}"));
        let buf = |name: &str| get(name).expect("a region of images");
        let (sets, width) = (1 + spec.tower.deep.as_slice().len(), spec.tower.out as usize);
        let table = |all| VectorTable { all, sets, width };
        ImageRegions {
            vectors: table(buf("vectors")),
            d_vectors: get("d_vectors").map(table),
            rows: buf("rows"),
            which: buf("which"),
            taken: buf("taken"),
            places: buf("places"),
        }
    }
}
