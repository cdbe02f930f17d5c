//! Exports a model as a Hugging Face folder or one GGUF file: a checkpoint, an adapter merged into its base, or any
//! other model that can be opened. The result gets its name only when complete.

use super::gguf::{check_name, write_gguf};
use super::merge::{Merged, is_left_out, merged, nothing_to_merge, open_adapted, tensors_of};
use super::weights::{Dtypes, Made, Progress, Sums, dtype_of, each_rows};
use super::{MANIFEST, Manifest, RUN_FILE, STATE, verbs};
use plimsoll_arch::{SightSpec, expected_tensors, tower_tensors};
use plimsoll_base::{Bytes, DType, Error, Result, read_small_text};
use plimsoll_files::{
    ADAPTER_CONFIG, FileRecord, Head, OpenModel, PREPROCESSOR, PROCESSOR_FILES, SafetensorsWriter,
    TensorDecl, add_compute, check_against, config_json, generation_config_json, is_written_whole,
    score_config_json, whole_config_json, whole_name, write_new,
};
use plimsoll_text::files_to_save;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Largest run file of a checkpoint.
const RUN_FILE_BYTES_MAX: u64 = 1 << 20;

/// Options of an export.
pub struct Ask<'a> {
    /// The folder or file to write.
    pub to: &'a Path,
    /// True for a GGUF file, whose name ends in .gguf.
    pub is_gguf: bool,
    /// True to merge an adapter into its base model.
    pub merge: bool,
    /// The adapter's base model, if it is not where the adapter says.
    pub base: Option<&'a str>,
    /// Dtype of the written weights, f32 or bf16; by default the model's own.
    pub dtype: Option<DType>,
    pub progress: Progress<'a>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Exported {
    /// The checkpoint, the adapter's folder, or the model's name.
    pub from: String,
    /// Dtype of the written weights.
    pub dtype: &'static str,
    /// Bytes and SHA-256 of the GGUF file, or of the folder's weights.
    pub bytes: u64,
    pub sha256: String,
    pub merged: Option<Merged>,
    /// Tensors not written: those of multi-token prediction.
    pub left_out: usize,
}

/// Returns true if `path` is or could be a checkpoint or an adapter: other models have `config.json`, no manifest.
pub fn is_of_run(path: &Path) -> bool {
    path.is_dir() && (path.join(MANIFEST).exists() || !path.join("config.json").is_file())
}

/// Exports a run's newest checkpoint, or the one at `path`; with `merge` an adapter (also peft's) merged into its base.
///
/// Errors: `merge-refused` for an adapter without `merge`, `merge` without an adapter, and a random base;
/// `model-unsupported` and `tokenizer-unsupported` for what GGUF cannot hold; those of `verbs::export` and of opening.
pub fn export(path: &Path, ask: Ask<'_>) -> Result<Exported> {
    check(&ask)?;
    let (from, model) = if ask.merge { open_adapted(path, ask.base)? } else { open_whole(path)? };
    export_opened(&from.display().to_string(), &model, trained_dtype(&from), None, ask)
}

/// Exports an open model. `made` supplies the weights of a random one.
///
/// Errors: see `export`.
pub fn export_model(model: &OpenModel, made: Option<Made<'_>>, ask: Ask<'_>) -> Result<Exported> {
    check(&ask)?;
    match (&model.adapter, ask.merge) {
        (Some(_), false) => return Err(needs_merge(&model.source)),
        (None, true) => return Err(nothing_to_merge(&model.source)),
        _ => {}
    }
    export_opened(&model.source, model, None, made, ask)
}

/// Checks that the target's name is valid and free, before anything is opened.
///
/// Errors: `bad-value`, `export-exists`, `output-unwritable`.
fn check(ask: &Ask<'_>) -> Result<()> {
    if ask.is_gguf {
        check_name(ask.to)?;
    }
    verbs::check_target(ask.to)
}

fn export_opened(
    from: &str,
    model: &OpenModel,
    trained: Option<DType>,
    made: Option<Made<'_>>,
    ask: Ask<'_>,
) -> Result<Exported> {
    let dtypes = Dtypes::of(model, trained, ask.dtype)?;
    let of_tower = model.adapter.as_ref().is_some_and(|adapter| adapter.config.tower.is_some());
    if of_tower && (ask.is_gguf || !is_written_whole(model.spec.family)) {
        let message =
            format!("{} has adapters of the tower, and this export has the text alone", model.source);
        return Err(Error::new("merge-refused", message)
            .hint("leave out --format gguf, or --merge: the adapter alone is a folder of peft's"));
    }
    check_against(model)?;
    let (record, sums) = if ask.is_gguf {
        write_gguf(model, made, dtypes, ask.to, ask.progress)?
    } else {
        write_folder(model, made, dtypes, ask.to, ask.progress)?
    };
    Ok(Exported {
        from: from.to_string(),
        dtype: dtypes.written.name(),
        bytes: record.bytes,
        sha256: record.sha256,
        merged: ask.merge.then(|| merged(PathBuf::from(from), model, dtypes, sums)),
        left_out: model.tensors.iter().filter(|tensor| is_left_out(tensor, model)).count(),
    })
}

/// Writes a folder in the layout of `save_pretrained`.
fn write_folder(
    model: &OpenModel,
    made: Option<Made<'_>>,
    dtypes: Dtypes,
    to: &Path,
    progress: Progress<'_>,
) -> Result<(FileRecord, Sums)> {
    let dtype = dtypes.written;
    let whole = if made.is_some() { None } else { Whole::of(model, dtype)? };
    let mut tensors = if made.is_some() { expected_tensors(&model.spec) } else { tensors_of(model) };
    tensors.extend(whole.iter().flat_map(Whole::tower));
    let files = files_to_save(&model.tokenizer)?;
    let elements: u64 = tensors.iter().map(|(_, shape)| shape.iter().product::<u64>()).sum();
    let small: u64 = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    verbs::check_room(to, Bytes(elements * dtype.bytes() + small))?;
    verbs::fill_folder(to, |part| {
        let ids = model.token_ids();
        let pretty = |value: &serde_json::Value| {
            serde_json::to_vec_pretty(value).expect("it is the JSON that was just written")
        };
        let mut config = match (model.head, &whole) {
            (Head::Vocabulary, Some(whole)) => whole.config.clone(),
            (Head::Vocabulary, None) => config_json(&model.spec, dtype, &ids),
            (Head::Score, _) => score_config_json(&model.spec, dtype, &ids),
        };
        add_compute(&mut config, model.compute);
        write_new(&part.join("config.json"), &pretty(&config))?;
        whole.iter().try_for_each(|_| copy_processor(model, part))?;
        write_new(&part.join("generation_config.json"), &pretty(&generation_config_json(&ids)))?;
        for (name, bytes) in &files {
            write_new(&part.join(name), bytes)?;
        }
        let declared = tensors.iter().cloned().map(|(name, shape)| {
            let dtype = dtype_of(&name, dtype);
            let name = if whole.is_some() { whole_name(&name) } else { name };
            TensorDecl { name, dtype, shape }
        });
        let declared: Vec<TensorDecl> = declared.collect();
        let mut writer = SafetensorsWriter::create(&part.join(super::WEIGHTS), &declared, &[])?;
        let sums = each_rows(model, made, dtypes, &tensors, progress, |name, values, scratch| {
            writer.write_f32_as(dtype_of(name, dtype), values, scratch)
        })?;
        Ok((writer.finish()?, sums))
    })
}

/// What a folder has besides its text if the model reads images.
struct Whole {
    config: Value,
    sight: SightSpec,
}

impl Whole {
    /// Returns it for a language model of a family that is written whole.
    ///
    /// Errors: those of `OpenModel::sight`.
    fn of(model: &OpenModel, dtype: DType) -> Result<Option<Whole>> {
        let Some(sight) = model.sight()?.filter(|_| model.head == Head::Vocabulary) else { return Ok(None) };
        let config = whole_config_json(model, &model.spec, &sight, dtype, &model.token_ids());
        Ok(config.map(|config| Whole { config, sight }))
    }

    /// Returns the names and shapes of the tower's tensors.
    fn tower(&self) -> Vec<(String, Vec<u64>)> {
        tower_tensors(&self.sight.tower).into_iter().map(|tensor| (tensor.name, tensor.shape)).collect()
    }
}

/// Copies what says how images become patches from a model's folder.
///
/// Errors: those of reading and writing.
fn copy_processor(model: &OpenModel, part: &Path) -> Result<()> {
    for name in std::iter::once(PREPROCESSOR).chain(PROCESSOR_FILES) {
        let Some(from) = model.path.as_ref().map(|path| path.join(name)).filter(|path| path.is_file()) else {
            continue;
        };
        let text = read_small_text(&from, RUN_FILE_BYTES_MAX);
        let text = text.map_err(|err| Error::io("model-file-unreadable", &from, &err))?;
        write_new(&part.join(name), text.as_bytes())?;
    }
    Ok(())
}

/// Opens a checkpoint of a whole model, after checking its files against its manifest.
fn open_whole(path: &Path) -> Result<(PathBuf, OpenModel)> {
    if path.join(ADAPTER_CONFIG).exists() && !path.join(MANIFEST).exists() {
        return Err(needs_merge(&path.display().to_string()));
    }
    let folder = verbs::newest(path)?.path;
    Manifest::read(&folder)?.verify(&folder)?;
    if folder.join(ADAPTER_CONFIG).exists() {
        return Err(needs_merge(&folder.display().to_string()));
    }
    let model = OpenModel::open(&folder.display().to_string(), None, false)?;
    Ok((folder, model))
}

/// Returns the dtype in which a checkpoint's run stored its weights, if it has a run file.
fn trained_dtype(checkpoint: &Path) -> Option<DType> {
    debug_assert!(RUN_FILE.starts_with(STATE));
    let text = read_small_text(&checkpoint.join(RUN_FILE), RUN_FILE_BYTES_MAX).ok()?;
    plimsoll_config::weights_of_text(&text).map(plimsoll_config::ModelDtype::dtype)
}

fn needs_merge(name: &str) -> Error {
    let message = format!("{name}: it holds an adapter, and this export writes a whole model");
    Error::usage("merge-refused", message).hint("add --merge")
}
