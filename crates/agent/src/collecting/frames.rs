//! Batches as Parquet files that pandas opens: one row per frame and no others, so that reading them needs no flags.
//!
//! Observations and actions are flat lists of numbers; their shapes are in the file's metadata. Data that a batch
//! stores apart from frames is a column here: `next_observation` is the observation after the frame, also at the end of
//! an episode, and `final_return` is set at the frame that ended one.

use parquet::basic::{Compression, ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::errors::{ParquetError, Result as Written};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;
use plimsoll_base::{Bytes, Result};
use plimsoll_collect::{Batch, Row, RowLayout};
use plimsoll_env::{ElementType, Leaf, flags};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

/// Numbers handed to a column at a time, or those of one frame if that has more.
const CHUNK_ELEMENTS: usize = 64 << 10;
/// Bounds what the writer holds besides the numbers: pages of a column, compressed and not, and the footer.
const WRITER_BYTES: u64 = 8 << 20;
/// Headers of pages and of the file: a page has 20,000 frames at most.
const HEADERS_PER_FRAME: u64 = 1;

/// Writes the frames of some batches of one collector.
///
/// Errors: `disk-full`, `write-failed`.
pub(super) fn write_frames(path: &Path, batches: &[Batch], metadata: &[(String, String)]) -> Result<()> {
    let Some(first) = batches.first() else { return Ok(()) };
    let columns = columns(&first.layout);
    // The final name only ever belongs to a complete file.
    let part = path.with_extension("part");
    let written = write(&part, batches, &columns, metadata).and_then(|()| std::fs::rename(&part, path));
    written.map_err(|err| plimsoll_files::write_error(path, &err))
}

/// Returns the largest size of a file's frames, and of the host memory for writing them.
pub(super) fn bytes(layout: &RowLayout) -> (u64, Bytes) {
    let columns = columns(layout);
    let of_frame =
        columns.iter().map(|column| column.elements() as u64 * column.kind.bytes() + 2).sum::<u64>();
    // Levels are one bit per number where they are not constant.
    let levels = columns.iter().map(|column| column.elements() as u64).sum::<u64>().div_ceil(4);
    let largest = columns.iter().map(Column::elements).max().unwrap_or(1).max(CHUNK_ELEMENTS) as u64;
    // Numbers, their two levels, and the encoder's copy.
    (of_frame + levels + HEADERS_PER_FRAME, Bytes(WRITER_BYTES + largest * (8 + 4 + 8)))
}

/// How Parquet stores an element: 32 and 64 bits are its only widths.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bool,
    /// Number of bits, and whether it is signed.
    Int(i8, bool),
    Float,
    Double,
}

impl Kind {
    fn of(element: ElementType) -> Kind {
        match element {
            ElementType::Bool => Kind::Bool,
            ElementType::Int8 => Kind::Int(8, true),
            ElementType::Int16 => Kind::Int(16, true),
            ElementType::Int32 => Kind::Int(32, true),
            ElementType::Int64 => Kind::Int(64, true),
            ElementType::Uint8 => Kind::Int(8, false),
            ElementType::Uint16 => Kind::Int(16, false),
            ElementType::Uint32 => Kind::Int(32, false),
            ElementType::Uint64 => Kind::Int(64, false),
            ElementType::Float32 => Kind::Float,
            ElementType::Float64 => Kind::Double,
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Kind::Bool => 1,
            Kind::Int(64, _) | Kind::Double => 8,
            Kind::Int(..) | Kind::Float => 4,
        }
    }

    fn physical(self) -> Physical {
        match self {
            Kind::Bool => Physical::BOOLEAN,
            Kind::Int(64, _) => Physical::INT64,
            Kind::Int(..) => Physical::INT32,
            Kind::Float => Physical::FLOAT,
            Kind::Double => Physical::DOUBLE,
        }
    }

    fn field(self, name: &str, repetition: Repetition) -> Written<Arc<Type>> {
        let logical = match self {
            Kind::Int(bit_width, is_signed) => Some(LogicalType::integer(bit_width, is_signed)),
            _ => None,
        };
        let field = Type::primitive_type_builder(name, self.physical()).with_repetition(repetition);
        field.with_logical_type(logical).build().map(Arc::new)
    }
}

struct Column {
    name: String,
    kind: Kind,
    source: Source,
}

enum Source {
    EnvIndex,
    /// An element of a row's column, which begins at this offset.
    At(usize),
    /// A bit of its flags.
    Flag(u8),
    /// The sum of rewards, at the frame that ended an episode.
    FinalReturn,
    Leaf(Slot, Leaf),
}

#[derive(Clone, Copy)]
enum Slot {
    Observation,
    Action,
    Next,
}

fn columns(layout: &RowLayout) -> Vec<Column> {
    let column = |name: &str, element: ElementType, source: Source| Column {
        name: name.into(),
        kind: Kind::of(element),
        source,
    };
    let mut columns = vec![column("env_index", ElementType::Uint32, Source::EnvIndex)];
    for (name, element, range) in [
        ("episode_index", ElementType::Uint32, &layout.episode_indices),
        ("step", ElementType::Uint32, &layout.steps),
        ("policy_version", ElementType::Uint64, &layout.policy_versions),
        ("reward", ElementType::Float32, &layout.rewards),
        ("logprob", ElementType::Float32, &layout.logprobs),
        ("value", ElementType::Float32, &layout.values),
    ] {
        // Columns that the policy does not produce are left out.
        if !range.is_empty() {
            columns.push(column(name, element, Source::At(range.start)));
        }
    }
    for (name, bit) in [
        ("terminated", flags::TERMINATED),
        ("truncated", flags::TRUNCATED),
        ("cut", flags::CUT),
        ("aborted", flags::ABORTED),
    ] {
        columns.push(column(name, ElementType::Bool, Source::Flag(bit)));
    }
    columns.push(column("final_return", ElementType::Float64, Source::FinalReturn));
    for (name, slot, leaves) in [
        ("observation", Slot::Observation, &layout.observation.leaves),
        ("action", Slot::Action, &layout.action.leaves),
        ("next_observation", Slot::Next, &layout.observation.leaves),
    ] {
        for leaf in leaves {
            let name = if leaf.path.is_empty() { name.to_string() } else { format!("{name}.{}", leaf.path) };
            columns.push(column(&name, leaf.element, Source::Leaf(slot, leaf.clone())));
        }
    }
    columns
}

impl Column {
    fn elements(&self) -> usize {
        if let Source::Leaf(_, leaf) = &self.source { leaf.num_elements.max(1) } else { 1 }
    }

    /// True if a frame's numbers are a list; a leaf of one number is written as that number.
    fn is_list(&self) -> bool {
        matches!(&self.source, Source::Leaf(_, leaf) if !leaf.shape.is_empty())
    }

    fn field(&self) -> Written<Arc<Type>> {
        match (&self.source, self.is_list()) {
            (Source::FinalReturn, _) => self.kind.field(&self.name, Repetition::OPTIONAL),
            (_, false) => self.kind.field(&self.name, Repetition::REQUIRED),
            (_, true) => {
                let element = self.kind.field("element", Repetition::REQUIRED)?;
                let list = Type::group_type_builder("list").with_fields(vec![element]);
                let list = Arc::new(list.with_repetition(Repetition::REPEATED).build()?);
                let whole = Type::group_type_builder(&self.name).with_fields(vec![list]);
                let whole = whole.with_repetition(Repetition::REQUIRED);
                // Also the older name, for readers that know no other.
                let whole = whole.with_converted_type(ConvertedType::LIST);
                whole.with_logical_type(Some(LogicalType::List)).build().map(Arc::new)
            }
        }
    }

    /// Adds the numbers of this column in frame `t` of a row.
    fn take(&self, row: &Row, layout: &RowLayout, t: usize, into: &mut Chunk) {
        let bytes = row.bytes();
        match &self.source {
            Source::EnvIndex => into.put(self.kind, &row.env_index.to_ne_bytes()),
            Source::At(start) => {
                let width = self.kind.bytes() as usize;
                into.put(self.kind, &bytes[start + t * width..][..width]);
            }
            Source::Flag(bit) => into.put(self.kind, &[u8::from(row.flags(layout)[t] & bit != 0)]),
            Source::FinalReturn => {
                let end = row.finals(layout).find(|end| end.frame == t);
                into.definition.push(i16::from(end.is_some()));
                if let Some(end) = end {
                    into.put(self.kind, &end.episode_return.to_ne_bytes());
                }
            }
            Source::Leaf(slot, leaf) => {
                let slot = match slot {
                    Slot::Observation => row.observation(layout, t),
                    Slot::Action => row.action(layout, t),
                    Slot::Next => row.next_observation(layout, t),
                };
                let elements = leaf.of(slot).chunks_exact(leaf.element.bytes());
                if self.is_list() {
                    // A list without elements takes one place.
                    let places = leaf.num_elements.max(1);
                    into.definition.extend((0..places).map(|_| i16::from(leaf.num_elements > 0)));
                    into.repetition.extend((0..places).map(|place| i16::from(place > 0)));
                }
                elements.for_each(|element| into.put(self.kind, element));
            }
        }
    }
}

/// Numbers on their way into a column, in Parquet's types, and their levels.
#[derive(Default)]
struct Chunk {
    bools: Vec<bool>,
    ints: Vec<i32>,
    longs: Vec<i64>,
    floats: Vec<f32>,
    doubles: Vec<f64>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl Chunk {
    /// Adds one number, in the slots' format.
    fn put(&mut self, kind: Kind, bytes: &[u8]) {
        macro_rules! number {
            ($type:ty) => {
                <$type>::from_ne_bytes(bytes.try_into().expect("an element has its bytes"))
            };
        }
        match kind {
            Kind::Bool => self.bools.push(bytes[0] != 0),
            Kind::Int(8, true) => self.ints.push(number!(i8).into()),
            Kind::Int(8, false) => self.ints.push(bytes[0].into()),
            Kind::Int(16, true) => self.ints.push(number!(i16).into()),
            Kind::Int(16, false) => self.ints.push(number!(u16).into()),
            // Unsigned numbers have the same bits; the column's type says so.
            Kind::Int(64, _) => self.longs.push(number!(i64)),
            Kind::Int(..) => self.ints.push(number!(i32)),
            Kind::Float => self.floats.push(number!(f32)),
            Kind::Double => self.doubles.push(number!(f64)),
        }
    }

    fn give(&mut self, column: &mut SerializedColumnWriter<'_>) -> Written<()> {
        let levels = |levels: &[i16]| (!levels.is_empty()).then(|| levels.to_vec());
        let (definition, repetition) = (levels(&self.definition), levels(&self.repetition));
        macro_rules! give {
            ($writer:expr, $values:expr) => {
                $writer.write_batch($values, definition.as_deref(), repetition.as_deref()).map(|_| ())
            };
        }
        match column.untyped() {
            ColumnWriter::BoolColumnWriter(writer) => give!(writer, &self.bools)?,
            ColumnWriter::Int32ColumnWriter(writer) => give!(writer, &self.ints)?,
            ColumnWriter::Int64ColumnWriter(writer) => give!(writer, &self.longs)?,
            ColumnWriter::FloatColumnWriter(writer) => give!(writer, &self.floats)?,
            ColumnWriter::DoubleColumnWriter(writer) => give!(writer, &self.doubles)?,
            _ => unreachable!("no column has another type"),
        }
        self.bools.clear();
        self.ints.clear();
        self.longs.clear();
        self.floats.clear();
        self.doubles.clear();
        self.definition.clear();
        self.repetition.clear();
        Ok(())
    }
}

fn write(
    path: &Path,
    batches: &[Batch],
    columns: &[Column],
    metadata: &[(String, String)],
) -> std::io::Result<()> {
    let file: File = plimsoll_files::create_part(path, false)?;
    let handle = file.try_clone()?;
    put(file, batches, columns, metadata).map_err(|err| match err {
        // The system's error rather than the crate's wording.
        ParquetError::External(err) => match err.downcast::<std::io::Error>() {
            Ok(err) => *err,
            Err(err) => std::io::Error::other(err),
        },
        err => std::io::Error::other(err),
    })?;
    handle.sync_all()
}

fn put(file: File, batches: &[Batch], columns: &[Column], metadata: &[(String, String)]) -> Written<()> {
    let fields: Vec<Arc<Type>> = columns.iter().map(Column::field).collect::<Written<_>>()?;
    let schema = Type::group_type_builder("frames").with_fields(fields).build()?;
    let shapes = columns.iter().filter_map(|column| match &column.source {
        Source::Leaf(_, leaf) => Some((format!("{}.shape", column.name), format!("{:?}", leaf.shape))),
        _ => None,
    });
    let notes = metadata.iter().cloned().chain(shapes).map(|(key, value)| KeyValue::new(key, value));
    // Without dictionaries, which would keep whole columns in memory.
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_compression(Compression::SNAPPY)
        .set_key_value_metadata(Some(notes.collect()));
    let mut writer =
        SerializedFileWriter::new(BufWriter::new(file), Arc::new(schema), Arc::new(properties.build()))?;
    let mut group = writer.next_row_group()?;
    let mut chunk = Chunk::default();
    for column in columns {
        let mut out =
            group.next_column()?.ok_or_else(|| ParquetError::General("a column too many".into()))?;
        let at_once = (CHUNK_ELEMENTS / column.elements()).max(1);
        let mut waiting = 0;
        for batch in batches {
            for row in batch.rows() {
                let marks = row.flags(&batch.layout);
                let none = flags::INVALID | flags::RESET_ROW;
                for t in (0..marks.len()).filter(|&t| marks[t] & none == 0) {
                    column.take(row, &batch.layout, t, &mut chunk);
                    waiting += 1;
                    if waiting == at_once {
                        chunk.give(&mut out)?;
                        waiting = 0;
                    }
                }
            }
        }
        if waiting > 0 {
            chunk.give(&mut out)?;
        }
        out.close()?;
    }
    group.close()?;
    writer.close().map(|_| ())
}
