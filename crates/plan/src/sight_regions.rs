//! The regions of images in a run: the tower, the vectors, and the index arrays of each pass.

use crate::roles::PassShape;
use crate::shape::RunShape;
use crate::sight::SightShape;
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::TowerPasses;
use plimsoll_memory::Layout;
use plimsoll_model::tower::{TowerLimits, tower_layout, tower_rope_layout};
use plimsoll_model::{ImageLimits, Mode, PassLimits, images_layout, kept_rows_layout, vectors_layout};
use plimsoll_rollout::Engine;
use plimsoll_train::{StateDTypes, Summing, optimizer_layout};

/// Host bytes of a row of a pass for its images: its place, and which vector it is.
const ROW_BYTES: u64 = 20;
/// The mode in which a teacher's own tower sees.
pub const TEACHER_SEES: Mode = Mode::Teacher(0);

impl RunShape {
    /// Returns the regions of images, if there are any: vectors are computed in the phase that samples, and gradients
    /// of a tower that learns in that of the text's.
    pub(crate) fn image_regions(&self) -> Result<Layout> {
        let mut layout = Layout::new();
        let Some(sight) = &self.sight else { return Ok(layout) };
        let (weights, target, mode) =
            (self.weights, self.target, Mode::Rollout { truncates: self.truncates });
        let (tower, elements) = (&sight.spec.tower, [sight.table(target, weights).elements]);
        layout.arena("tower.weights", "model", target.pool, PhaseSet::RESIDENT, &elements, weights)?;
        layout.extend(tower_rope_layout("tower.rope", tower, sight.side, target.pool)?);
        let resident = PhaseSet::RESIDENT;
        layout.extend(vectors_layout("images.vectors", tower, target.pool, resident, sight.vectors)?);
        let rank = self.tower_rank();
        layout.extend(tower_layout(tower, weights, target, mode, sight.limits(), rank)?);
        layout.extend(self.images_of(sight, mode, self.engine.pass())?);
        if let Some((dtypes, mode)) = self.tower_update() {
            let (phase, table) = (mode.phase(), sight.table(target, weights));
            layout.extend(optimizer_layout("tower", &table, dtypes, target.pool, phase, false, 1)?);
        }
        if let Some(mode) = self.tower_learns() {
            layout.extend(tower_layout(tower, weights, target, mode, sight.limits(), rank)?);
            let phases = PhaseSet::of(&[mode.phase()]);
            layout.extend(vectors_layout("images.d_vectors", tower, target.pool, phases, sight.vectors)?);
            if self.ranks() > 1 {
                let rows = self.pass().rows;
                layout.extend(kept_rows_layout("images.kept_rows", &sight.spec, target, mode, rows)?);
            }
        }
        if self.sees_as_before() {
            // Under adapters the weights are as they were.
            if rank.is_none() {
                layout.arena("reference.tower", "model", target.pool, resident, &elements, weights)?;
            }
            layout.extend(vectors_layout("reference.images", tower, target.pool, resident, sight.vectors)?);
        }
        layout.extend(self.teacher_image_regions()?);
        Ok(layout)
    }

    /// Returns the regions of a teacher's own tower, which is frozen and sees in the phase in which the teacher scores.
    fn teacher_image_regions(&self) -> Result<Layout> {
        let mut layout = Layout::new();
        let Some(sight) = self.sight.as_ref().and_then(SightShape::of_teacher) else { return Ok(layout) };
        let (weights, target, tower) = (self.weights, self.target, &sight.spec.tower);
        let (elements, resident) = ([sight.table(target, weights).elements], PhaseSet::RESIDENT);
        layout.arena("teacher.tower.weights", "model", target.pool, resident, &elements, weights)?;
        layout.extend(tower_rope_layout("teacher.tower.rope", tower, sight.side, target.pool)?);
        let name = "teacher.images.vectors";
        layout.extend(vectors_layout(name, tower, target.pool, resident, sight.vectors)?);
        layout.extend(tower_layout(tower, weights, target, TEACHER_SEES, sight.limits(), None)?);
        Ok(layout)
    }

    /// True if a reference sees by the tower as it was before it learnt.
    fn sees_as_before(&self) -> bool {
        self.tower_learns().is_some() && self.training.as_ref().is_some_and(|training| training.reference)
    }

    /// Returns the mode of the backward pass of a tower that learns, in the phase of the text's.
    pub fn tower_learns(&self) -> Option<Mode> {
        let trains = self.sight.as_ref().is_some_and(|sight| sight.trains);
        self.training.as_ref().filter(|_| trains).map(|training| Mode::Update(training.recompute))
    }

    /// Returns the dtypes of a tower's gradients and states where all of its weights are trained, and the mode of its
    /// backward pass. Gradients are f32.
    pub fn tower_update(&self) -> Option<(StateDTypes, Mode)> {
        let mode = self.tower_learns().filter(|_| self.tower_rank().is_none())?;
        let dtypes = self.training.as_ref()?.dtypes;
        Some((StateDTypes { grads: DType::F32, summing: Summing::default(), ..dtypes }, mode))
    }

    /// Returns the rank of a tower's adapters, if it has some.
    fn tower_rank(&self) -> Option<u32> {
        self.lora.filter(|lora| lora.tower.is_some()).map(|lora| lora.shape.rank)
    }

    /// Returns the passes of a trained tower, which take scratch.
    pub(crate) fn tower_passes(&self) -> Option<TowerPasses> {
        let sight = self.sight.as_ref().filter(|_| self.tower_learns().is_some())?;
        let TowerLimits { patches, images } = sight.limits();
        Some(TowerPasses { spec: sight.spec.tower, patches, images, rank: self.tower_rank() })
    }

    /// Returns the index arrays of images in a role's pass, if it may have some.
    pub(crate) fn images_of_pass(&self, pass: PassShape) -> Result<Layout> {
        let sight = match pass.mode {
            Mode::Reward(_) => None,
            Mode::Teacher(_) => self.sight.as_ref().and_then(SightShape::of_teacher),
            _ => self.sight,
        };
        sight.map_or(Ok(Layout::new()), |sight| self.images_of(&sight, pass.mode, pass.limits))
    }

    fn images_of(&self, sight: &SightShape, mode: Mode, limits: PassLimits) -> Result<Layout> {
        let limits = ImageLimits { rows: limits.rows, image_rows: limits.rows };
        images_layout(&sight.spec, self.target, mode, limits)
    }

    /// Returns the host rows of images: those under way, and those that are decoded ahead; 0 bytes without images.
    pub(crate) fn image_rows(&self) -> [(&'static str, u64); 2] {
        let ahead = self.sight.as_ref().map_or(0, SightShape::ahead_bytes);
        [("infer.images", self.image_bytes()), ("infer.images_ahead", ahead)]
    }

    /// Returns the host bytes of images and of their places among rows; 0 without images.
    fn image_bytes(&self) -> u64 {
        let of_packer = self.packs().map_or(0, |pass| ROW_BYTES * pass.rows as u64);
        // Sequences whose answers have images have places of their own.
        let own =
            |sight: &SightShape| if sight.answers > 0 { Engine::own_place_bytes(&self.engine) } else { 0 };
        let of_rows = |sight: &SightShape| Engine::image_bytes(&self.engine) + own(sight) + of_packer;
        let tables = 1 + u64::from(self.sees_as_before());
        self.sight.as_ref().map_or(0, |sight| sight.decoding_bytes(tables).saturating_add(of_rows(sight)))
    }
}
