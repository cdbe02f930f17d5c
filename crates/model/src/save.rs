//! Weights out of the arena as a Hugging Face safetensors file, streamed through one fixed buffer.

use crate::load::Staging;
use crate::params::ParamTable;
use crate::weights::Params;
use plimsoll_base::{Bytes, DType, Result};
use plimsoll_device::{Device, Matrix};
use plimsoll_files::{SafetensorsWriter, TensorDecl};
use std::path::Path;

/// Writes `model.safetensors` in `dtype` at `path`; returns its SHA-256 in hex.
///
/// Errors: `disk-full`, `write-failed`.
pub fn save<D: Device + ?Sized>(
    dev: &D,
    table: &ParamTable,
    params: &Params<'_>,
    dtype: DType,
    path: &Path,
    staging: Bytes,
) -> Result<String> {
    let mut declared = Vec::new();
    for param in &table.params {
        for part in &param.parts {
            let mut shape = vec![u64::from(part.rows)];
            if !param.is_vector() {
                shape.push(u64::from(param.k));
            }
            declared.push(TensorDecl { name: part.name.clone(), dtype, shape });
        }
    }
    let mut writer = SafetensorsWriter::create(path, &declared, &[])?;
    let Staging { mut stored, mut values } = Staging::new(staging);
    for param in &table.params {
        let buf = params.all.slice(param.offset as usize, param.elements as usize);
        let width = param.k.max(1) as usize;
        let chunk_rows = values.len() / width;
        assert!(chunk_rows > 0, "staging of {} values for rows of {width}", values.len());
        let mut first = 0;
        while first < param.n as usize {
            let rows = chunk_rows.min(param.n as usize - first);
            let out = &mut values[..rows * width];
            if param.is_vector() {
                dev.read_f32(buf, first, out);
            } else {
                dev.read_rows(
                    Matrix::new(buf, param.n as usize, param.k as usize, params.embed.layout),
                    first,
                    out,
                );
            }
            writer.write_f32_as(dtype, out, &mut stored)?;
            first += rows;
        }
    }
    writer.finish()
}
