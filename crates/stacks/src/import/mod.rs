//! Converts another stack's launch file to a run file, and lists everything that is not carried over.

pub(crate) mod data;
pub(crate) mod draft;
pub(crate) mod images;
pub(crate) mod lora;
pub(crate) mod parts;
mod settle;
pub(crate) mod track;
mod write;

pub use write::Imported;

use crate::launch::source::{Choice, Source};
use crate::launch::{self, Launch};
use crate::registry::STACKS;
use crate::secret::withhold;
use crate::setting::{OF_TEXT, SURROUNDINGS, Setting, TRAINER, one_line};
use crate::stack::Stack;
use crate::unbuilt;
use draft::{Draft, Import};
use plimsoll_base::{Error, Result};
use std::path::Path;

/// The user's choices that a file does not make.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// Imports the built part of a job that needs more.
    pub force: bool,
    /// The file's trainer, if it does not name one.
    pub trainer: Option<String>,
    /// Lists each omitted option of the other engine, instead of their number.
    pub all: bool,
    /// Which command of the text at the top of a script counts, from 1.
    pub command: Option<usize>,
}

/// Reads the file at `path` as `stack` would, up to 1 MiB, and converts it to a run file.
///
/// Errors, exit code 2: `import-unreadable`, `import-nothing-found`, `import-command-unknown`, those of `translate`.
pub fn import(stack: &'static Stack, path: &Path, wishes: &Wishes) -> Result<Imported> {
    let choice = Choice { trainer: wishes.trainer.as_deref(), command: wishes.command };
    let Launch { surroundings, settings, functions } = launch::read(stack, path, choice)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if let Some(number) = wishes.command.filter(|_| !settings.iter().any(|one| one.key == OF_TEXT)) {
        return Err(no_commands(&name, number));
    }
    let settings = surroundings.into_iter().chain(settings).collect();
    let draft = draft_of(stack, settings, &name, wishes);
    let draft = draft.and_then(|draft| draft.ok_or_else(|| launch::nothing_found(stack, path, "import")));
    let mut draft = draft.map_err(|error| whose(error, stack, path))?;
    if let Some(file) = functions {
        draft.missing.push(format!(
            "{}: Python loads no function of a notebook: write the cells that define them to this file, without those that train",
            file.display()
        ));
    }
    Ok(draft.finish(&name, wishes.all))
}

/// Converts settings to a run file; `None` if none are of `stack`, or if it is not imported.
///
/// Errors, exit code 2: `import-trainer-unknown`, `import-no-method`, `import-not-built`.
pub fn translate(
    stack: &'static Stack,
    settings: Vec<Setting>,
    file: &str,
    wishes: &Wishes,
) -> Result<Option<Imported>> {
    Ok(draft_of(stack, settings, file, wishes)?.map(|draft| draft.finish(file, wishes.all)))
}

fn draft_of(
    stack: &'static Stack,
    settings: Vec<Setting>,
    file: &str,
    wishes: &Wishes,
) -> Result<Option<Draft>> {
    let Some(import) = stack.import else { return Ok(None) };
    let settings = withhold(stack.table, settings).into_iter();
    let (surroundings, mut settings): (Vec<Setting>, Vec<Setting>) =
        settings.partition(|one| SURROUNDINGS.iter().any(|start| one.key.starts_with(start)));
    let is_of_stack = |one: &Setting| one.key != TRAINER && stack.table.row_of(&one.key).is_some();
    let is_without_job = |one: &Setting| one.key == TRAINER && import.job(&one.value).is_none();
    if !settings.iter().any(|one| is_of_stack(one) || is_without_job(one)) {
        return Ok(None);
    }
    // A trainer whose defaults another package has written is the same one: `unsloth grpo`.
    let is_named = |name: &&String| {
        settings.iter().any(|one| one.key == TRAINER && one.value.rsplit(' ').next() == Some(name))
    };
    let wished =
        wishes.trainer.iter().find(|name| !is_named(name)).map(|name| Setting::new(TRAINER, name, 0));
    settings.extend(wished);
    let trainer = (stack.trainer)(&settings).ok_or_else(|| trainer_unknown(import, file))?;
    let job = import.job(&trainer).ok_or_else(|| {
        let named = settings.iter().find(|one| one.key == TRAINER && one.value == trainer);
        no_trainer(import, &trainer, named.map_or(String::new(), Setting::place))
    })?;
    let mut draft = Draft::new(stack.table, import, job, settings, surroundings);
    draft.translate()?;
    if let Some(adapter) = import.adapter {
        adapter(&mut draft);
    }
    if let Some(images) = import.images {
        images(&mut draft);
    }
    let refused = draft.refused();
    if !refused.is_empty() && !wishes.force {
        return Err(unbuilt::refusal(file, draft.title(), &refused));
    }
    draft.settle();
    Ok(Some(draft))
}

/// Adds to an error about a file that says too little whose it is, if it shows that.
fn whose(error: Error, stack: &Stack, path: &Path) -> Error {
    let is_it = ["import-nothing-found", "import-trainer-unknown"].contains(&error.slug);
    let Some(text) = launch::read_text(path).ok().filter(|_| is_it) else { return error };
    let source =
        Source { path: &path.to_string_lossy(), text: &text, choice: Choice::default(), notebook: None };
    let others = STACKS.iter().filter(|other| other.name != stack.name && other.import.is_some());
    match others.into_iter().find(|other| (other.is_of)(&source)) {
        Some(other) => {
            error.hint(format!("it is a file of {0}: plimsoll import {0} {1}", other.name, path.display()))
        }
        None => error,
    }
}

fn no_commands(file: &str, number: usize) -> Error {
    let message = format!(
        "{} has no commands in a text at its top, of which --command {number} is one",
        one_line(file)
    );
    Error::usage("import-command-unknown", message)
        .hint("leave --command out: it is for a script of trl that reads its settings with TrlParser or HfArgumentParser")
}

fn trainers(import: &Import) -> String {
    // With the defaults of another package a trainer has two words.
    let names = import.jobs.iter().flat_map(|job| job.trainers).filter(|name| !name.contains(' '));
    names.copied().collect::<Vec<_>>().join(", ")
}

fn trainer_unknown(import: &Import, file: &str) -> Error {
    let message = format!("{} does not say which trainer of {} it is for", one_line(file), import.title);
    Error::usage("import-trainer-unknown", message)
        .hint(format!("say it: --trainer NAME, one of {}", trainers(import)))
}

fn no_trainer(import: &Import, trainer: &str, place: String) -> Error {
    let place = if place.is_empty() { place } else { place + ": " };
    let message = format!("{place}the trainer is `{}`, whose job is not built here", one_line(trainer));
    let built = format!("built are the jobs of {}'s trainers {}", import.title, trainers(import));
    let error = Error::usage("import-no-method", message).fact(built);
    let Some((_, method)) = import.nearest.iter().find(|(name, _)| *name == trainer) else {
        return error
            .hint("docs/methods.md lists the methods; --trainer NAME names another trainer than the file");
    };
    let what = match *method {
        "distill" => {
            "it learns from a teacher too, from its own samples alone (TRL's lmbda = 1); distill.divergence has its losses: beta = 0 is `forward`, 1 `reverse`, between them `jsd` with distill.jsd_beta"
        }
        _ => "its loss is another, or the options of that trainer are not read",
    };
    error
        .fact(format!("the nearest method here is `{method}`: {what}"))
        .hint(format!("write its run file by hand: docs/methods.md describes `{method}`"))
}
