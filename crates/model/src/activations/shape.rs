//! What the regions of a pass depend on: its limits, how long each intermediate is kept, and its size in each layer.

use super::mode::{Mode, Recompute};
use crate::own_logits::OwnLogits;
use plimsoll_arch::{Cache, Caches, ModelSpec};
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::Layouts;
use plimsoll_memory::{Buf, Layout, Pool, Turn};

/// Limits of one pass; enforced where batches are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassLimits {
    /// M: rows.
    pub rows: usize,
    /// R: rows that go through the head.
    pub head_rows: usize,
    /// K: tokens that are listed of each head row; 0 if none are.
    pub listed: usize,
    /// t: elements of a row that a teacher's head reads: a teacher keeps its head rows, an update reads them. Else 0.
    pub taught: usize,
    /// What single head rows may have of their own.
    pub own: OwnLogits,
    /// S: segments.
    pub segments: usize,
    /// Entries of all block tables.
    pub table_entries: usize,
    /// Block copies.
    pub copies: usize,
    /// The caches, with their units per layer.
    pub caches: Caches,
}

impl PassLimits {
    /// Returns the last unit of a cache.
    pub(crate) fn last(&self, cache: Cache) -> u32 {
        self.caches.units(cache.index()) as u32 - 1
    }
}

/// The device that a layout is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub kind: &'static Layouts,
    pub pool: Pool,
    pub threads: usize,
}

/// How long a pass keeps an intermediate of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Until the pass ends.
    Pass,
    /// Until the next layer, which overwrites it.
    Layer,
    /// Until the layer's backward pass, unless that recomputes whole layers.
    Kept,
    /// Until the layer's backward pass, unless that recomputes anything.
    Cheap,
    /// Until the layer's backward pass, which never recomputes it.
    Always,
    /// From pass to pass of a rollout; in an update like `Kept`.
    Cached,
}

impl Life {
    /// Returns whether every layer has its own.
    fn is_kept(self, mode: Mode) -> bool {
        match (self, mode.recompute()) {
            (Life::Pass, _) => true,
            (Life::Layer, _) => false,
            (Life::Cached, None) => matches!(mode, Mode::Rollout { .. }),
            (Life::Kept | Life::Cheap | Life::Always, None) => false,
            (Life::Kept | Life::Cached, Some(recompute)) => !recompute.is_of_layers(),
            (Life::Cheap, Some(recompute)) => recompute == Recompute::None,
            (Life::Always, Some(_)) => true,
        }
    }

    /// Returns its turn: what each layer overwrites is free while the head of an update runs.
    fn turn(self, mode: Mode) -> Turn {
        if mode.recompute().is_some() && !self.is_kept(mode) { Turn::Layers } else { Turn::Whole }
    }
}

/// A pass of a model, which decides its regions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassShape<'s> {
    pub(crate) spec: &'s ModelSpec,
    pub(crate) mode: Mode,
    pub(crate) limits: PassLimits,
}

/// A region of rows: how many elements a row has in each layer, 0 for none, and how long they are kept.
#[derive(Clone, Copy)]
pub(crate) struct Rows<W = fn(&PassShape<'_>, u32) -> u32> {
    pub(crate) life: Life,
    pub(crate) width: W,
}

impl<W: Fn(&PassShape<'_>, u32) -> u32 + Copy> Rows<W> {
    /// Returns the slots of a pass and the elements of a row in each: one slot for all layers if their widths differ.
    pub(crate) fn slots(self, of: &PassShape<'_>) -> (usize, usize) {
        let (mut slots, mut all, mut widest) = (0, 0, 0);
        for width in (0..of.spec.layers.len()).map(|layer| self.width(of, layer)).filter(|width| *width > 0) {
            (slots, all, widest) = (slots + 1, all + width, widest.max(width));
        }
        if !self.life.is_kept(of.mode) {
            (slots.min(1), widest)
        } else if all == slots * widest {
            (slots, widest)
        } else {
            (1, all)
        }
    }

    /// Returns the elements of a row that precede a layer's.
    pub(crate) fn before(self, of: &PassShape<'_>, layer: u32) -> usize {
        let own = self.life.is_kept(of.mode);
        (0..if own { layer } else { 0 }).map(|layer| self.width(of, layer)).sum()
    }

    /// Returns the first `m` rows of a layer.
    pub(crate) fn layer<'p>(self, of: &PassShape<'_>, buf: Buf<'p>, layer: u32, m: usize) -> Buf<'p> {
        buf.slice(self.before(of, layer) * of.limits.rows, m * self.width(of, layer))
    }

    fn width(self, of: &PassShape<'_>, layer: u32) -> usize {
        (self.width)(of, layer) as usize
    }
}

/// Collects the regions of a pass, which its parts add.
pub(crate) struct Regions<'s> {
    pub(crate) of: PassShape<'s>,
    /// The dtype of weights and of the inputs of products.
    pub(crate) weights: DType,
    pub(crate) target: Target,
    pub(crate) layout: Layout,
}

impl<'s> Regions<'s> {
    pub(crate) fn new(of: PassShape<'s>, weights: DType, target: Target) -> Regions<'s> {
        Regions { of, weights, target, layout: Layout::new() }
    }

    /// Adds a region.
    ///
    /// Errors: `size-overflow`.
    pub(crate) fn add(&mut self, life: Life, name: &str, shape: &[usize], dtype: DType) -> Result<()> {
        self.add_in(life.turn(self.of.mode), name, shape, dtype)
    }

    /// Adds a region of rows, if a layer has any.
    ///
    /// Errors: `size-overflow`.
    pub(crate) fn rows(&mut self, name: &str, rows: Rows, dtype: DType) -> Result<()> {
        match rows.slots(&self.of) {
            (0, _) => Ok(()),
            (slots, width) => self.add(rows.life, name, &[slots, self.of.limits.rows, width], dtype),
        }
    }

    /// Adds a region with a turn.
    ///
    /// Errors: `size-overflow`.
    pub(crate) fn add_in(&mut self, turn: Turn, name: &str, shape: &[usize], dtype: DType) -> Result<()> {
        let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
        let (mode, pool) = (self.of.mode, self.target.pool);
        let (name, phases) = (format!("{}.{name}", mode.prefix()), PhaseSet::of(&[mode.phase()]));
        self.layout.arena_in_turn(&name, "model", pool, phases, turn, &shape, dtype)
    }
}
