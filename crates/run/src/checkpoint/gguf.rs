//! Writes a model as one GGUF file, which llama.cpp opens.

use super::verbs;
use super::weights::{Dtypes, Made, Progress, Sums, each_rows};
use plimsoll_base::{Error, Result};
use plimsoll_files::{FileRecord, GgufDecl, GgufWriter, Head, OpenModel, gguf_order};
use plimsoll_text::gguf_tables;
use std::path::Path;

/// Writes the GGUF file `to`, which gets its name only when complete.
///
/// Errors: `model-unsupported` and `tokenizer-unsupported` for what GGUF cannot hold; `disk-full`, `write-failed`.
pub(super) fn write_gguf(
    model: &OpenModel,
    made: Option<Made<'_>>,
    dtypes: Dtypes,
    to: &Path,
    progress: Progress<'_>,
) -> Result<(FileRecord, Sums)> {
    if model.head == Head::Score {
        let message = format!("{}: a reward model, and GGUF files hold language models", model.source);
        return Err(Error::new("model-unsupported", message).hint("export it as a folder: --format folder"));
    }
    let (dtype, ids) = (dtypes.written, model.token_ids());
    let tokenizer = gguf_tables(&model.tokenizer, model.spec.vocab, &ids)?;
    let name = to.file_stem().expect("a target that was checked").to_string_lossy();
    let decl = GgufDecl { name: &name, spec: &model.spec, dtype, tokenizer: &tokenizer, ids: &ids };
    verbs::check_room(to, decl.file_bytes()?)?;
    verbs::fill_file(to, |part| {
        let mut writer = GgufWriter::create(part, &decl)?;
        let order = gguf_order(&model.spec);
        let sums = each_rows(model, made, dtypes, &order, progress, |name, values, scratch| {
            writer.write_rows(name, values, scratch)
        })?;
        Ok((writer.finish()?, sums))
    })
}

/// Checks that a name ends in `.gguf`, by which a model is read as GGUF.
///
/// Errors: `bad-value`.
pub(super) fn check_name(to: &Path) -> Result<()> {
    if to.extension().is_some_and(|extension| extension == "gguf") {
        return Ok(());
    }
    let message = format!("--to {}: the name of a GGUF file ends in .gguf", to.display());
    Err(Error::usage("bad-value", message).hint(format!("--to {}.gguf", to.display())))
}
