//! Adapters side by side on one decoder: slots of one flat buffer, of which each row of a rollout's pass has one or
//! none.
//!
//! A slot has the shape of all: the highest rank and every target. An adapter of a lower rank or of fewer targets has
//! zeros elsewhere, which add nothing to a sum and change no bit of it.

use crate::activations::mode::Mode;
use crate::params::{ALIGN, ParamTable};
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::AdapterSlots;
use plimsoll_memory::{Buf, Layout, Pool};

/// Marks a row without an adapter.
pub const NO_SLOT: u32 = u32::MAX;

/// The slot of each row of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotRows<'p> {
    /// [M] u32.
    pub(crate) of_row: Buf<'p>,
    /// As in `AdapterSlots`.
    pub(crate) most: usize,
}

/// The slots of a decoder.
#[derive(Clone, Copy, Debug)]
pub struct SlotTable<'a> {
    /// [C, stride]: adapters as their table has them.
    pub all: Buf<'a>,
    pub stride: usize,
    /// [C] f32: factor of each adapter.
    pub scales: Buf<'a>,
}

impl<'a> SlotTable<'a> {
    /// Returns the elements of a slot of adapters of a table.
    pub fn stride_of(table: &ParamTable) -> u64 {
        table.elements.next_multiple_of(ALIGN)
    }

    /// Returns the elements of a slot that its table has.
    pub fn slot(&self, table: &ParamTable, slot: usize) -> Buf<'a> {
        self.all.slice(slot * self.stride, table.elements as usize)
    }

    /// Returns the slots for rows of a pass.
    pub(crate) fn of_rows<'x>(&self, SlotRows { of_row, most }: SlotRows<'x>) -> AdapterSlots<'x>
    where
        'a: 'x,
    {
        AdapterSlots { all: self.all, stride: self.stride, of_row, scales: self.scales, most }
    }
}

/// Adds the region of which slot each row of a rollout's pass has.
///
/// Errors: `size-overflow`.
pub fn slots_layout(mode: Mode, rows: usize, pool: Pool) -> Result<Layout> {
    let (mut layout, name) = (Layout::new(), format!("{}.adapt.rows", mode.prefix()));
    layout.arena(&name, "model", pool, PhaseSet::of(&[mode.phase()]), &[rows as u64], DType::U32)?;
    Ok(layout)
}
