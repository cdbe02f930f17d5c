//! `checkpoint export`: writes a checkpoint, an adapter with its base, or a model as a folder or a GGUF file.

use super::bench::one_of;
use crate::{output, terminal};
use plimsoll_arch::Quantization;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_config::ModelDtype;
use plimsoll_files::{ADAPTER_CONFIG, Source, adapter_base_of, adapter_quantization};
use plimsoll_rl::save::export::export_named;
use plimsoll_run::checkpoint::Merged;
use plimsoll_run::checkpoint::export::{Ask, Exported, export, is_of_run};
use plimsoll_run::checkpoint::verbs;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Share of a merge's elements rounded back to the base's values from which advice is printed.
const UNDONE_SHARE: f64 = 0.5;

#[derive(clap::Args)]
pub struct Args {
    /// A run directory, a checkpoint, an adapter's folder, or a model as a run file names it.
    #[arg(value_name = "RUN-or-MODEL")]
    model: String,
    /// A new folder, or a new GGUF file, whose name ends in .gguf.
    #[arg(long, visible_alias = "output", value_name = "PATH")]
    to: PathBuf,
    /// What is written: a Hugging Face folder, or one GGUF file for llama.cpp; the name says it unless given.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Add an adapter to its base model: a model without adapters. The model may be a folder of peft's too.
    #[arg(long)]
    merge: bool,
    /// With --merge: the model that the adapter was trained on, if it is not where the adapter says.
    #[arg(long, value_name = "MODEL", requires = "merge")]
    base: Option<String>,
    /// How weights are written; unless given as the model has them, and bf16 if its file is quantised.
    #[arg(long, value_parser = one_of::<ModelDtype>(["bf16", "f32"]))]
    dtype: Option<ModelDtype>,
    /// The seed of the weights of a random: model.
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Format {
    Folder,
    Gguf,
}

pub fn run(args: &Args, as_json: bool, quiet: bool) -> Result<()> {
    let (path, to) = (Path::new(&args.model), &args.to);
    let is_file = to.extension().is_some_and(|extension| extension == "gguf");
    let format = args.format.unwrap_or(if is_file { Format::Gguf } else { Format::Folder });
    let is_directory = matches!(Source::parse(&args.model, None), Ok(Source::Directory(_)));
    let is_of_run = is_of_run(path) || (is_directory && !path.exists());
    if is_of_run && format == Format::Folder && !args.merge && args.dtype.is_none() {
        return copy(path, to, as_json, quiet);
    }
    let live = terminal::live_line(quiet);
    let mut progress = |done: Bytes, all: Bytes| {
        if let Some(live) = &live {
            live.show(&format!("{done} of {all} written to {}", to.display()));
        }
    };
    let ask = Ask {
        to,
        is_gguf: format == Format::Gguf,
        merge: args.merge,
        base: args.base.as_deref(),
        dtype: args.dtype.map(ModelDtype::dtype),
        progress: &mut progress,
    };
    let found = if is_of_run {
        export(path, ask).map_err(or_a_model)
    } else {
        export_named(&args.model, args.seed, ask)
    };
    live.iter().for_each(terminal::LiveLine::finish);
    let found = found?;
    let Exported { from, dtype, bytes, sha256, merged, left_out } = &found;
    let value = json!({
        "from": from, "to": to, "dtype": dtype, "bytes": bytes, "sha256": sha256, "merged": merged,
        "left_out": left_out,
    });
    output::either(as_json, &value, |_| text(&found, to, format))
}

/// Copies a checkpoint as it is.
fn copy(path: &Path, to: &Path, as_json: bool, quiet: bool) -> Result<()> {
    if path.join(ADAPTER_CONFIG).is_file() && !path.join(plimsoll_run::checkpoint::MANIFEST).exists() {
        let message = format!("{}: it is an adapter's folder already", path.display());
        return Err(Error::usage("merge-refused", message).hint("add --merge for a model without adapters"));
    }
    let from = verbs::export(path, to).map_err(or_a_model)?;
    if let Some(how) = adapter_quantization(to)? {
        let words = format!(
            "note: this adapter belongs to weights in {how}: peft and vLLM add it to weights in full, which gives \
             other tokens; --merge writes a model for them"
        );
        output::note(quiet, &words);
    }
    if let Some(base) = adapter_base_name(to)? {
        let words = format!(
            "note: the base of this adapter is {base}, a name that peft does not know: `plimsoll checkpoint export {base} --to DIR` \
             writes a folder to name in its {ADAPTER_CONFIG}"
        );
        output::note(quiet, &words);
    }
    let found = json!({ "from": from.path, "to": to, "step": from.step });
    output::either(as_json, &found, |_| format!("{} from {}\n", to.display(), from.path.display()))
}

/// Returns the base of an adapter, if its name is one of Plimsoll's own.
fn adapter_base_name(folder: &Path) -> Result<Option<String>> {
    let is_own = |base: &String| ["pypi:", "builtin:", "random:"].iter().any(|kind| base.starts_with(kind));
    Ok(adapter_base_of(folder)?.filter(is_own))
}

/// Adds the other things that may be exported to an error about a directory without checkpoints.
fn or_a_model(error: Error) -> Error {
    match error.slug {
        "checkpoint-missing" => error.hint(
            "or a model: a folder with config.json, file.gguf, hf:org/name, pypi:package, builtin:nano",
        ),
        _ => error,
    }
}

fn text(found: &Exported, to: &Path, format: Format) -> String {
    let Exported { from, dtype, bytes, sha256, merged, left_out } = found;
    let mut text = match merged {
        Some(merged) => merged_text(merged, to, dtype),
        None => format!("{} from {from}, in {dtype}\n", to.display()),
    };
    if *left_out > 0 {
        text += &format!(
            "left out: {left_out} tensors that predict further tokens (`mtp.*`, or layers after the last), which is not trained\n"
        );
    }
    if format == Format::Gguf {
        text += &format!("{}, SHA-256 {sha256}\n", Bytes(*bytes));
    }
    text
}

fn merged_text(merged: &Merged, to: &Path, dtype: &str) -> String {
    let Merged { from, base, tensors, elements, undone, rounding_max, change_max, quantize, decoded, .. } =
        merged;
    let codes = match (quantize, decoded) {
        (Some(Quantization::Nf4), _) => ", whose linear layers are what nf4 makes of them".to_string(),
        (Some(Quantization::Gguf), _) => ", whose linear layers are what its blocks stand for".to_string(),
        (Some(Quantization::Mxfp4), _) => ", whose experts are what their blocks stand for".to_string(),
        (None, Some(decoded)) => format!(", whose blocks are decoded to {decoded}, as the run had them"),
        (None, None) => String::new(),
    };
    let share = *undone as f64 / (*elements).max(1) as f64;
    let mut text = format!(
        "{} from {} and {base}{codes}\n{tensors} tensors changed; largest change {change_max:.2e}, largest rounding error \
         {rounding_max:.2e}; {:.1} % of their elements are the base's again after rounding\n",
        to.display(),
        from.display(),
        100.0 * share
    );
    if share >= UNDONE_SHARE {
        let exact = if dtype == "f32" { "" } else { ", write the sum with --dtype f32" };
        text += &format!(
            "rounding to {dtype} took most of the adapter away: keep the adapter as it is (leave out --merge){exact}, or \
             train more steps\n"
        );
    }
    text
}
