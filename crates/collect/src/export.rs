//! Batches as safetensors files that numpy and pandas open: one tensor per column, with the rows of several batches one
//! after the other.
//!
//! R rows (environments times batches), T frames, K ends of episodes. `observation` is [R, T + 1, ...]; `action`,
//! `reward`, `flags`, `policy_version`, `episode_index` and `step` are [R, T, ...]; `env_index` is [R]; data of the
//! end of an episode is [K, ...], with its row and frame. A space of several leaves has one tensor per leaf,
//! `observation.NAME`.

use crate::{Batch, Row, RowLayout};
use plimsoll_base::Result;
use plimsoll_env::{ElementType, Leaf, Slot};
use plimsoll_files::{ArrayDecl, ArrayElement, SafetensorsWriter};
use std::ops::Range;
use std::path::Path;

/// The meaning of the bits of `flags`, in the file's metadata.
const FLAGS: &str = "1 terminated, 2 truncated, 4 cut, 8 reset_row, 16 aborted, 32 invalid";

/// Writes the rows of batches of one collector.
///
/// Errors: `disk-full`, `write-failed`.
pub fn write_batches(path: &Path, batches: &[Batch], metadata: &[(String, String)]) -> Result<()> {
    let Some(first) = batches.first() else { return Ok(()) };
    let layout = &*first.layout;
    let rows: Vec<&Row> = batches.iter().flat_map(|batch| batch.rows()).collect();
    let columns = columns(layout, rows.len() as u64, rows.iter().map(|row| row.num_finals as u64).sum());
    let mut notes = vec![("flags".to_string(), FLAGS.to_string())];
    notes.extend_from_slice(metadata);
    let decls: Vec<ArrayDecl> = columns.iter().map(|column| column.decl.clone()).collect();
    let mut writer = SafetensorsWriter::create_arrays(path, &decls, &notes)?;
    for column in &columns {
        for (index, row) in rows.iter().enumerate() {
            column.write(&mut writer, index as u32, row)?;
        }
    }
    writer.finish().map(|_| ())
}

struct Column<'a> {
    decl: ArrayDecl,
    source: Source<'a>,
}

/// The source of a column in a row.
enum Source<'a> {
    /// The environment's number.
    EnvIndex,
    /// A range of the row.
    Range(Range<usize>),
    /// The beginning of a range: one element of this many bytes for each end of an episode.
    Ends(Range<usize>, usize),
    /// The row's number, for each end of an episode.
    EndRows,
    /// A leaf of the slots of a range; with `of_ends` of the first ones, one for each end of an episode.
    Leaf { range: Range<usize>, slot: &'a Slot, leaf: &'a Leaf, of_ends: bool },
}

impl<'a> Column<'a> {
    fn new(name: &str, element: ArrayElement, shape: &[u64], source: Source<'a>) -> Column<'a> {
        Column { decl: ArrayDecl { name: name.to_string(), element, shape: shape.to_vec() }, source }
    }

    fn write(&self, writer: &mut SafetensorsWriter, index: u32, row: &Row) -> Result<()> {
        let bytes = row.bytes();
        let ends = row.num_finals;
        match &self.source {
            Source::EnvIndex => writer.write(&row.env_index.to_le_bytes()),
            Source::Range(range) => writer.write(&bytes[range.clone()]),
            Source::Ends(range, element) => writer.write(&bytes[range.start..range.start + ends * element]),
            Source::EndRows => (0..ends).try_for_each(|_| writer.write(&index.to_le_bytes())),
            Source::Leaf { range, slot, leaf, of_ends } => {
                let end = if *of_ends { range.start + ends * slot.bytes } else { range.end };
                let slots = &bytes[range.start..end];
                if leaf.bytes() == slot.bytes {
                    writer.write(slots)
                } else {
                    slots.chunks_exact(slot.bytes).try_for_each(|one| writer.write(leaf.of(one)))
                }
            }
        }
    }
}

fn columns(layout: &RowLayout, rows: u64, ends: u64) -> Vec<Column<'_>> {
    let grid = [rows, layout.frames as u64];
    let mut columns = vec![Column::new("env_index", ArrayElement::U32, &[rows], Source::EnvIndex)];
    for (name, element, range) in [
        ("reward", ArrayElement::F32, &layout.rewards),
        ("flags", ArrayElement::U8, &layout.flags),
        ("policy_version", ArrayElement::U64, &layout.policy_versions),
        ("episode_index", ArrayElement::U32, &layout.episode_indices),
        ("step", ArrayElement::U32, &layout.steps),
        ("logprob", ArrayElement::F32, &layout.logprobs),
        ("value", ArrayElement::F32, &layout.values),
    ] {
        // Columns that the policy does not give are left out.
        if !range.is_empty() {
            columns.push(Column::new(name, element, &grid, Source::Range(range.clone())));
        }
    }
    let frames = Source::Ends(layout.final_frames.clone(), 4);
    let returns = Source::Ends(layout.final_returns.clone(), 8);
    columns.push(Column::new("final_row", ArrayElement::U32, &[ends], Source::EndRows));
    columns.push(Column::new("final_frame", ArrayElement::U32, &[ends], frames));
    columns.push(Column::new("final_return", ArrayElement::F64, &[ends], returns));
    let with_next = [rows, layout.frames as u64 + 1];
    let RowLayout { observation, action, .. } = layout;
    for (name, slot, range, shape, of_ends) in [
        ("observation", observation, &layout.observations, &with_next[..], false),
        ("action", action, &layout.actions, &grid[..], false),
        ("final_observation", observation, &layout.final_observations, &[ends][..], true),
    ] {
        for leaf in &slot.leaves {
            let name = if leaf.path.is_empty() { name.to_string() } else { format!("{name}.{}", leaf.path) };
            let shape: Vec<u64> = shape.iter().copied().chain(leaf.shape.iter().map(|&n| n as u64)).collect();
            let source = Source::Leaf { range: range.clone(), slot, leaf, of_ends };
            columns.push(Column::new(&name, stored(leaf.element), &shape, source));
        }
    }
    columns
}

fn stored(element: ElementType) -> ArrayElement {
    match element {
        ElementType::Bool => ArrayElement::Bool,
        ElementType::Int8 => ArrayElement::I8,
        ElementType::Int16 => ArrayElement::I16,
        ElementType::Int32 => ArrayElement::I32,
        ElementType::Int64 => ArrayElement::I64,
        ElementType::Uint8 => ArrayElement::U8,
        ElementType::Uint16 => ArrayElement::U16,
        ElementType::Uint32 => ArrayElement::U32,
        ElementType::Uint64 => ArrayElement::U64,
        ElementType::Float32 => ArrayElement::F32,
        ElementType::Float64 => ArrayElement::F64,
    }
}
