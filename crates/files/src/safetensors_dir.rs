//! A directory of safetensors: one file, or shards with an index. Reads headers only. Checks every offset, size, shape
//! and dtype against the file's length; tensors fill the file without hole or overlap.

use crate::mxfp4;
use crate::storage::{Storage, read_small};
use crate::tensors::{RowOrder, TensorInfo};
use crate::wrapped::is_of_other_part;
use plimsoll_base::{Encoding, Error, Result, shown};
use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Component, Path};

const HEADER_BYTES_MAX: u64 = 100_000_000; // the format's own limit
const INDEX_BYTES_MAX: u64 = 64 << 20;
const SHARDS_MAX: usize = 4096;
/// Most tensors of a file or index; the largest models have 92,000, and a run saves three sets of states of 75,000 at
/// most. An entry takes up to five times its text in memory.
pub(crate) const TENSORS_MAX: usize = 1 << 18;
/// Most axes of a tensor: a decoder's have one to four, those for images and films five.
const AXES_MAX: usize = 8;
/// Element types of the format that no weight here has.
const OTHER_DTYPES: [&str; 14] = [
    "BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F64", "F8_E4M3", "F8_E5M2", "F8_E8M0",
    "C64",
];

/// Reads the headers of `model.safetensors`, or of the shards that `model.safetensors.index.json` names.
pub(crate) fn open_directory(dir: &Path) -> Result<(Vec<Storage>, Vec<TensorInfo>)> {
    let single = dir.join("model.safetensors");
    let index = dir.join("model.safetensors.index.json");
    if single.symlink_metadata().is_ok() {
        let storage = Storage::open(&single)?;
        let tensors = read_header(&storage, 0)?;
        return Ok((vec![storage], tensors));
    }
    if index.symlink_metadata().is_err() {
        let message =
            format!("{}: neither model.safetensors nor model.safetensors.index.json is there", dir.display());
        let error = Error::new("model-file-missing", message);
        return Err(if dir.join("pytorch_model.bin").exists() {
            error.hint(
                "only safetensors are read: convert pytorch_model.bin with transformers' save_pretrained",
            )
        } else {
            error.hint("check `model` in the run file, or fetch the model again")
        });
    }
    open_shards(dir, &index)
}

/// Reads the shards of an index: each tensor must be in the file that the index names.
fn open_shards(dir: &Path, index: &Path) -> Result<(Vec<Storage>, Vec<TensorInfo>)> {
    let weight_map = read_index(index)?;
    let mut names: Vec<&String> = weight_map.values().collect();
    names.sort();
    names.dedup();
    if names.len() > SHARDS_MAX {
        return Err(corrupt(index, format!("{} shards, the limit is {SHARDS_MAX}", names.len())));
    }
    let (mut files, mut tensors) = (Vec::new(), Vec::new());
    for name in names {
        // A shard is in the index's folder: a path that leads out of it is not followed.
        if !matches!(Path::new(name).components().collect::<Vec<_>>().as_slice(), [Component::Normal(_)]) {
            return Err(corrupt(index, format!("shard `{}` is not a plain file name", shown(name))));
        }
        let storage = Storage::open(&dir.join(name))?;
        let shard = read_header(&storage, files.len())?;
        for tensor in &shard {
            match weight_map.get(&tensor.name) {
                Some(owner) if owner == name => {}
                Some(owner) => {
                    let (tensor, owner) = (shown(&tensor.name), shown(owner));
                    let what = format!("tensor `{tensor}` is in {name}, the index says {owner}");
                    return Err(corrupt(index, what));
                }
                None => {
                    return Err(corrupt(
                        index,
                        format!("tensor `{}` of {name} is not in the index", shown(&tensor.name)),
                    ));
                }
            }
        }
        tensors.extend(shard);
        files.push(storage);
    }
    let here: std::collections::HashSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    let is_read = |name: &str| here.contains(name) || is_of_other_part(name);
    if let Some((tensor, shard)) = weight_map.iter().find(|(name, _)| !is_read(name)) {
        let (shard, tensor) = (dir.join(shard), shown(tensor));
        let message = format!("{}: no tensor `{tensor}`, which the index promises", shard.display());
        return Err(Error::new("model-tensor-missing", message).hint("fetch the model again"));
    }
    Ok((files, tensors))
}

#[cfg(feature = "hub")]
pub(crate) fn shard_names(index: &Path) -> Result<Vec<String>> {
    let mut names: Vec<String> = read_index(index)?.into_values().collect();
    names.sort();
    names.dedup();
    Ok(names)
}

fn read_index(index: &Path) -> Result<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Entries<String>,
    }
    let bytes = read_small(index, INDEX_BYTES_MAX)?;
    let parsed: Index = serde_json::from_slice(&bytes).map_err(|e| corrupt(index, e.to_string()))?;
    Ok(parsed.weight_map.0.into_iter().collect())
}

/// A tensor's name and its bytes in the file.
type Placed = (String, Range<u64>);

/// Reads where a file's data begins and its tensors, in order, from the header; the data may be truncated.
///
/// Errors: those of `read_header` about the header alone.
pub(crate) fn tensors_at(path: &Path) -> Result<(u64, Vec<Placed>)> {
    let (data_start, entries) = read_entries(&Storage::open(path)?)?;
    let span = |(name, entry): (String, Entry)| {
        let (start, end) = entry.data_offsets;
        (shown(&name).to_string(), data_start.saturating_add(start)..data_start.saturating_add(end))
    };
    Ok((data_start, entries.into_iter().map(span).collect()))
}

/// Reads the entries of a header in the order of their data, and where the data begins.
fn read_entries(storage: &Storage) -> Result<(u64, Vec<(String, Entry)>)> {
    let name = storage.name();
    let corrupt = |what: String| {
        Error::new("model-file-corrupt", format!("{name}: {what}")).hint("fetch or copy the file again")
    };
    let mut length = [0; 8];
    storage.read_exact_at(&mut length, 0)?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > HEADER_BYTES_MAX {
        return Err(corrupt(format!("header of {header_bytes} bytes, the limit is {HEADER_BYTES_MAX}")));
    }
    // The length is compared with the file before memory is allocated.
    if header_bytes > storage.bytes() - 8 {
        let message = format!("{name}: header of {header_bytes} bytes, the file has {}", storage.bytes());
        return Err(Error::new("model-file-truncated", message).hint("fetch or copy the file again"));
    }
    let mut header = vec![0; header_bytes as usize];
    storage.read_exact_at(&mut header, 8)?;
    let Entries::<Entry>(mut entries) =
        serde_json::from_slice(&header).map_err(|e| corrupt(format!("header is not valid: {e}")))?;
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    Ok((8 + header_bytes, entries))
}

/// Reads and checks the header of one file.
pub(crate) fn read_header(storage: &Storage, file: usize) -> Result<Vec<TensorInfo>> {
    let name = storage.name();
    let corrupt = |what: String| {
        Error::new("model-file-corrupt", format!("{name}: {what}")).hint("fetch or copy the file again")
    };
    let (data_start, entries) = read_entries(storage)?;
    refuse_duplicates(&entries).map_err(&corrupt)?;
    let mut end = 0u64;
    let mut tensors = Vec::with_capacity(entries.len());
    for (tensor, entry) in entries {
        check_span(&tensor, &entry, end).map_err(&corrupt)?;
        end = entry.data_offsets.1;
        // Vision parts have counters and masks; only their names are read.
        if is_of_other_part(&tensor) && OTHER_DTYPES.contains(&entry.dtype.as_str()) {
            continue;
        }
        let info = check_entry(&tensor, &entry).map_err(&corrupt)?;
        let offset = data_start.checked_add(entry.data_offsets.0);
        let offset = offset.ok_or_else(|| corrupt(format!("tensor `{tensor}` begins beyond 2^64")))?;
        tensors.push(TensorInfo { name: tensor, file, offset, ..info });
    }
    let data_bytes = storage.bytes() - data_start;
    if end > data_bytes {
        let message =
            format!("{name}: the header promises {end} bytes of tensors, the file has {data_bytes}");
        return Err(Error::new("model-file-truncated", message).hint("fetch or copy the file again"));
    }
    if end < data_bytes {
        return Err(corrupt(format!("{data_bytes} bytes follow the header, the tensors take {end}")));
    }
    Ok(tensors)
}

/// Checks that an entry starts at the end of the one before it.
fn check_span(name: &str, entry: &Entry, expect_start: u64) -> std::result::Result<(), String> {
    let name = shown(name);
    let (start, end) = entry.data_offsets;
    if end < start {
        return Err(format!("tensor `{name}` ends at {end}, before it begins at {start}"));
    }
    if start < expect_start {
        return Err(format!("tensor `{name}` begins at {start}, inside the one that ends at {expect_start}"));
    }
    if start > expect_start {
        return Err(format!("nothing owns the bytes {expect_start} to {start}, before tensor `{name}`"));
    }
    Ok(())
}

/// Checks one entry against its own shape.
fn check_entry(name: &str, entry: &Entry) -> std::result::Result<TensorInfo, String> {
    let name = shown(name);
    let (start, end) = entry.data_offsets;
    let encoding = match entry.dtype.as_str() {
        // Half of a tensor in blocks, which is read if the configuration says that there are some.
        "U8" if mxfp4::is_half(&name) => Encoding::Mxfp4,
        "F32" => Encoding::F32,
        "F16" => Encoding::F16,
        "BF16" => Encoding::Bf16,
        other => {
            let other = shown(other);
            return Err(format!("tensor `{name}` has dtype {other}; F32, F16 and BF16 are read"));
        }
    };
    let shape = &entry.shape;
    if shape.is_empty() || shape.len() > AXES_MAX || shape.contains(&0) {
        return Err(format!(
            "tensor `{name}` has shape {shape:?}; one to {AXES_MAX} axes, none of them 0, are read"
        ));
    }
    let bytes = match encoding {
        Encoding::Mxfp4 => shape.iter().try_fold(1u64, |all, axis| all.checked_mul(*axis)),
        _ => encoding.tensor_bytes(shape),
    };
    match bytes {
        Some(bytes) if bytes == end - start => Ok(TensorInfo {
            name: String::new(),
            shape: shape.clone(),
            encoding,
            file: 0,
            offset: 0,
            bytes,
            row_order: RowOrder::Stored,
            added: 0.0,
        }),
        Some(bytes) => Err(format!(
            "tensor `{name}` of shape {shape:?} and dtype {} takes {bytes} bytes, its offsets give {}",
            entry.dtype,
            end - start
        )),
        None => Err(format!("tensor `{name}` has shape {shape:?}, whose size overflows")),
    }
}

fn refuse_duplicates(entries: &[(String, Entry)]) -> std::result::Result<(), String> {
    let mut names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("tensor `{}` is listed twice", shown(pair[0]))),
        None => Ok(()),
    }
}

fn corrupt(path: &Path, what: String) -> Error {
    Error::new("model-file-corrupt", format!("{}: {what}", path.display()))
        .hint("fetch or copy the file again")
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    #[serde(deserialize_with = "axes")]
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// Reads at most `AXES_MAX + 1` axes of a shape and skips the rest: a list of zeros takes four times its text.
fn axes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<u64>, D::Error> {
    struct Axes;
    impl<'de> Visitor<'de> for Axes {
        type Value = Vec<u64>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a shape")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Vec<u64>, A::Error> {
            let mut axes = Vec::new();
            while axes.len() <= AXES_MAX
                && let Some(axis) = seq.next_element()?
            {
                axes.push(axis);
            }
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok(axes)
        }
    }
    deserializer.deserialize_seq(Axes)
}

/// All entries but the metadata, in file order. A map would keep one of two tensors with the same name.
struct Entries<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<Entries<T>, D::Error> {
        struct Visit<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Visit<T> {
            type Value = Entries<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> std::result::Result<Entries<T>, M::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else if entries.len() == TENSORS_MAX {
                        return Err(serde::de::Error::custom(format!("more than {TENSORS_MAX} tensors")));
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Visit(std::marker::PhantomData))
    }
}
