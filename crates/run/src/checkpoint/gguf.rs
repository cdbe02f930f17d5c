//! Exports a checkpoint as one GGUF file, which llama.cpp opens: a whole model, or an adapter added to its base.

use super::merge::{Merged, merged, open_adapted};
use super::weights::{Progress, dtype_of, each_rows};
use super::{Manifest, verbs};
use plimsoll_base::{Error, Result};
use plimsoll_files::{ADAPTER_CONFIG, GgufDecl, GgufWriter, Head, OpenModel, check_against, gguf_order};
use plimsoll_text::gguf_tables;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What an export has made.
#[derive(Clone, Debug, Serialize)]
pub struct Exported {
    /// The checkpoint or the adapter's folder.
    pub from: PathBuf,
    /// Length of the file, and its sum.
    pub bytes: u64,
    pub sha256: String,
    /// What `merge` did.
    pub merged: Option<Merged>,
}

/// Writes a run's newest checkpoint, or the one at `path`, as the GGUF file `to`, which gets its name when it is complete. With
/// `merge`, as `export_merged` does, what the checkpoint holds is an adapter, which is added to its base model.
///
/// Errors: `merge-refused` for an adapter without `merge`; `model-unsupported` and `tokenizer-unsupported` for what a GGUF file
/// cannot hold; those of `export` and of `export_merged`.
pub fn export_gguf(path: &Path, to: &Path, merge: bool, progress: Progress<'_>) -> Result<Exported> {
    check_name(to)?;
    verbs::check_target(to)?;
    let (from, model) = if merge { open_adapted(path)? } else { open_whole(path)? };
    check_against(&model)?;
    if model.head == Head::Score {
        let message = format!("{}: a reward model, and GGUF files hold language models", from.display());
        return Err(Error::new("model-unsupported", message).hint("leave out --format gguf"));
    }
    let (dtype, ids) = (dtype_of(&model)?, model.token_ids());
    let tokenizer = gguf_tables(&model.tokenizer, model.spec.vocab, &ids)?;
    let name = to.file_stem().expect("a target that was checked").to_string_lossy();
    let decl = GgufDecl { name: &name, spec: &model.spec, dtype, tokenizer: &tokenizer, ids: &ids };
    verbs::check_room(to, decl.file_bytes()?)?;
    let (record, sums) = verbs::fill_file(to, |part| {
        let mut writer = GgufWriter::create(part, &decl)?;
        let sums = each_rows(&model, dtype, &gguf_order(&model.spec), progress, |name, values, scratch| {
            writer.write_rows(name, values, scratch)
        })?;
        Ok((writer.finish()?, sums))
    })?;
    let merged = merge.then(|| merged(from.clone(), &model, sums));
    Ok(Exported { from, bytes: record.bytes, sha256: record.sha256, merged })
}

/// A model is read as GGUF by the end of its name.
///
/// Errors: `bad-value`.
fn check_name(to: &Path) -> Result<()> {
    if to.extension().is_some_and(|extension| extension == "gguf") {
        return Ok(());
    }
    let message = format!("--to {}: the name of a GGUF file ends in .gguf", to.display());
    Err(Error::usage("bad-value", message).hint(format!("--to {}.gguf", to.display())))
}

/// Opens a checkpoint of a whole model, after its files were compared with its manifest.
fn open_whole(path: &Path) -> Result<(PathBuf, OpenModel)> {
    let folder = verbs::newest(path)?.path;
    Manifest::read(&folder)?.verify(&folder)?;
    if folder.join(ADAPTER_CONFIG).exists() {
        let message =
            format!("{}: it holds an adapter, and a GGUF file holds a whole model", folder.display());
        return Err(Error::usage("merge-refused", message).hint("add --merge"));
    }
    let model = OpenModel::open(&folder.display().to_string(), None, false)?;
    Ok((folder, model))
}
