//! Resuming a run: finds the checkpoint, and checks that the run file still describes the same run and the bits stay
//! the same. It never silently starts over: it reports what it finds and does.

use crate::build::own_build;
use crate::checkpoint::{Manifest, RUN_FILE, RunState, Store};
use crate::run_dir::{RunDir, step_name};
use plimsoll_base::{DType, Error, Result, open_regular};
use plimsoll_config::{Distill, Loaded, RunFile, RunSpec};
use plimsoll_files::{OpenModel, config_json, digest, record_of};
use plimsoll_plan::Resolved;
use plimsoll_text::{files_to_save, template_text};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

mod changes;
mod tasks;

/// The file of a checkpoint that holds the chat template.
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

pub use changes::merge;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// In a new directory.
    New {
        /// True if the run in the directory may be removed.
        overwrite: bool,
    },
    /// Where an earlier process of the run was killed or stopped.
    Resume {
        /// True if a damaged checkpoint may be skipped.
        previous_good: bool,
        /// True if the planner may choose again, which gives up bit equality.
        replan: bool,
    },
}

impl Start {
    pub fn replans(self) -> bool {
        matches!(self, Start::Resume { replan: true, .. })
    }
}

#[derive(Debug)]
pub enum Origin {
    /// The directory does not exist yet.
    New,
    Earlier(Box<Earlier>),
    /// All steps are done; the content of `summary.json`.
    Finished(Value),
}

#[derive(Debug)]
pub struct Earlier {
    /// Locked by this process.
    pub dir: RunDir,
    /// The run file as then resolved, with allowed changes.
    pub run: RunFile,
    /// Checkpoint to resume from; `None` starts at step 0.
    pub checkpoint: Option<Good>,
    pub replan: bool,
}

/// An undamaged checkpoint, read to the last byte.
#[derive(Debug)]
pub struct Good {
    pub folder: PathBuf,
    pub state: RunState,
}

/// Finds what a run resumes from. Passes messages for the user to `say`.
///
/// Errors: `checkpoint-damaged`, `checkpoint-newer`, `run-file-changed`, `run-dir-locked`, `run-dir-not-empty`,
/// `run-dir-damaged`, `symlink-refused`.
pub fn origin(loaded: &Loaded, start: Start, path: &Path, say: &mut dyn FnMut(String)) -> Result<Origin> {
    let Start::Resume { previous_good, replan } = start else { return Ok(Origin::New) };
    let Some(dir) = RunDir::take_up(path)? else {
        say(format!("{}: no run is there to resume; it starts at step 0", path.display()));
        return Ok(Origin::New);
    };
    let checkpoint = newest(&dir, previous_good, say)?;
    let recorded = match &checkpoint {
        Some(good) => {
            let file = good.folder.join(RUN_FILE);
            open_regular(&file)
                .and_then(std::io::read_to_string)
                .map_err(|err| Error::new("checkpoint-damaged", format!("{}: {err}", file.display())))?
        }
        None => dir.read_text("run.toml")?,
    };
    let recorded: RunFile = toml::from_str(&recorded).map_err(|err| {
        let what = format!("{}: its run.toml: {}", path.display(), err.message());
        Error::new("run-dir-damaged", what).hint("restore the file, or start in another directory")
    })?;
    let run = merge(&loaded.run, &recorded, replan)?;
    if replan {
        say("--replan: the planner chooses again; the run continues, but not with the same bits".into());
    }
    let done = checkpoint.as_ref().map_or(0, |good| good.state.progress.step);
    let summary =
        dir.read_text("summary.json").ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
    match summary {
        Some(summary) if done == run.train.steps && summary["steps"] == done => {
            say(format!("{} is finished: {done} of {} steps are done", path.display(), run.train.steps));
            return Ok(Origin::Finished(summary));
        }
        _ if done > run.train.steps => return Err(too_few_steps(done, run.train.steps)),
        _ => {}
    }
    match &checkpoint {
        Some(good) => say(format!("resumes after step {done} from {}", good.folder.display())),
        None => say(format!("{}: no complete checkpoint; it starts at step 0", path.display())),
    }
    Ok(Origin::Earlier(Box::new(Earlier { dir, run, checkpoint, replan })))
}

/// Returns the newest checkpoint that a run can resume from.
fn newest(dir: &RunDir, previous_good: bool, say: &mut dyn FnMut(String)) -> Result<Option<Good>> {
    let store = dir.store();
    store.clear_leftovers()?;
    let mut passed_over = Vec::new();
    let mut good = None;
    for step in store.steps().into_iter().rev() {
        let folder = store.path(step);
        match read(&folder, step) {
            Ok(Some(state)) => {
                good = Some((step, Good { folder, state }));
                break;
            }
            Ok(None) => say(format!("{} holds weights alone; passed over", folder.display())),
            Err(error) if previous_good => {
                say(format!("damaged, passed over: {}", error.message));
                passed_over.push(step);
            }
            Err(error) => return Err(with_way_out(error, dir, step)),
        }
    }
    if let Some((step, good)) = &good {
        // Only now: without a good checkpoint nothing is moved.
        for damaged in passed_over {
            store.set_aside(damaged)?;
        }
        store.point_best(good.state.progress.best.map(|best| best.step))?;
        store.point_latest(*step)?;
    } else if !passed_over.is_empty() {
        let message = format!("{}: all {} checkpoints are damaged", dir.path().display(), passed_over.len());
        return Err(Error::new("checkpoint-damaged", message)
            .hint("`plimsoll checkpoint verify` lists what is damaged: restore those files from a copy")
            .hint("start again in another directory: --set run.dir=PATH"));
    }
    Ok(good.map(|(_, good)| good))
}

/// Returns the steps of checkpoints that a run in `of` examines to resume: down to the one it takes.
pub(crate) fn candidates(of: &Path, previous_good: bool) -> Vec<u32> {
    let store = Store::of_run(of);
    let mut steps = Vec::new();
    for step in store.steps().into_iter().rev() {
        steps.push(step);
        match read(&store.path(step), step) {
            Ok(None) => {}
            Err(_) if previous_good => {}
            Ok(Some(_)) | Err(_) => break,
        }
    }
    steps
}

/// Reads the state of an undamaged checkpoint; `None` if it holds weights alone.
fn read(folder: &Path, step: u32) -> Result<Option<RunState>> {
    let manifest = Manifest::read(folder)?;
    manifest.verify(folder)?;
    if !manifest.resumable {
        return Ok(None);
    }
    let state = RunState::read(folder)?;
    match (manifest.step, state.progress.step) {
        (a, b) if a == step && b == step => Ok(Some(state)),
        (a, _) => Err(Error::new(
            "checkpoint-damaged",
            format!("{}: it is of step {a}, the folder says {step}", folder.display()),
        )),
    }
}

/// Adds a hint to the error of a damaged checkpoint: the previous one, if it is good.
fn with_way_out(error: Error, dir: &RunDir, damaged: u32) -> Error {
    let store = dir.store();
    let earlier = store.steps().into_iter().rev().filter(|step| *step < damaged);
    let good = earlier.into_iter().find(|step| matches!(read(&store.path(*step), *step), Ok(Some(_))));
    match good {
        Some(step) => error.hint(format!(
            "--resume=previous-good resumes from {}, which is good; steps computed again: {}",
            step_name(step),
            damaged - step
        )),
        None => error.hint("no earlier checkpoint is good: restore the file from a copy"),
    }
}

fn too_few_steps(done: u32, steps: u32) -> Error {
    Error::usage("run-file-changed", format!("train.steps = {steps}, but {done} steps are done"))
        .hint(format!("set train.steps to {done} or more"))
}

/// Holds what the bits of a run depend on apart from its run file and checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Fingerprint {
    pub machine: String,
    pub build: String,
    /// SHA-256 of the planner's decisions that bits depend on.
    pub plan: String,
    /// SHA-256 of each data file, and of the model's configuration, tokenizer and chat template.
    pub inputs: BTreeMap<String, String>,
}

impl Fingerprint {
    /// Returns the fingerprint of this process for a run that reads `inputs`.
    pub fn new(machine: String, inputs: BTreeMap<String, String>, resolved: &Resolved) -> Fingerprint {
        // Gradients depend on the split into micro-batches and on the accumulator's dtype.
        let plan = json!([
            resolved.micro_batch_tokens,
            resolved.recompute,
            resolved.optimizer_dtype,
            resolved.grad_dtype
        ]);
        Fingerprint::of(machine, &plan, inputs)
    }

    /// Returns the fingerprint of this process for a known plan and inputs.
    pub fn of(machine: String, plan: &Value, inputs: BTreeMap<String, String>) -> Fingerprint {
        Fingerprint { machine, build: own_build(), plan: digest(plan.to_string().as_bytes()), inputs }
    }

    /// Checks that a run resumed from `state` gives the same bits as one that never stopped.
    ///
    /// Errors: `resume-differs`; with `replan` it is reported instead. A different build is always reported.
    pub fn check(&self, state: &RunState, replan: bool, say: &mut dyn FnMut(String)) -> Result<()> {
        let mut differences = Vec::new();
        if self.machine != state.machine {
            differences
                .push(format!("machine type {}, the checkpoint is of {}", self.machine, state.machine));
        }
        if self.plan != state.plan {
            differences.push("the plan chooses other micro-batches or dtypes".to_string());
        }
        for (name, sha256) in &self.inputs {
            if state.inputs.get(name) != Some(sha256) {
                differences.push(format!("{name} has other contents"));
            }
        }
        if self.build != state.build {
            say("this is another build of plimsoll: the same bits as without a stop are not promised".into());
        }
        if differences.is_empty() {
            return Ok(());
        }
        if replan {
            differences.into_iter().for_each(|what| say(format!("--replan: {what}")));
            return Ok(());
        }
        let error = Error::new("resume-differs", "the run would not continue bit for bit");
        let error = differences.into_iter().fold(error, Error::fact);
        // A processor has the slower paths too.
        let are_paths = [&self.machine, &state.machine].iter().all(|machine| !machine.starts_with("cuda"));
        let error = if self.machine != state.machine && are_paths {
            error.hint(format!(
                "PLIMSOLL_ISA={} takes the path of the checkpoint, if this processor has it",
                state.machine
            ))
        } else {
            error
        };
        Err(error
            .hint("resume where it ran, with the data and the tokenizer as they were")
            .hint("--replan resumes anyway, and gives up bit equality"))
    }
}

/// Returns the SHA-256 of what a run reads besides weights: data, code, tokenizers, templates, and the shapes of its
/// models.
///
/// Errors: `data-missing`.
pub fn inputs(
    run: &RunSpec,
    model: &OpenModel,
    critic: Option<&OpenModel>,
    teachers: &[&OpenModel],
) -> Result<BTreeMap<String, String>> {
    let mut inputs = text_side(run, model)?;
    let environment =
        run.environment().into_iter().flat_map(|section| section.files().chain(section.row_files()));
    let rewards = run.rewards.iter().flat_map(|reward| reward.files());
    let estimator = run.estimator().into_iter().filter_map(|estimator| estimator.file.to_str());
    for name in run.data.files().chain(environment).chain(rewards).chain(estimator) {
        let record =
            record_of(Path::new(name)).map_err(|err| Error::io("data-missing", name.as_ref(), &err))?;
        inputs.insert(name.to_string(), record.sha256);
    }
    for folder in run.environment().into_iter().flat_map(|section| section.task_folders()) {
        inputs.insert(folder.to_string(), tasks::digest_of_tasks(folder)?);
    }
    let mut insert_shape = |model: &OpenModel, source: &str| {
        let config = config_json(&model.spec, DType::F32, &model.token_ids());
        inputs.insert(format!("config.json of {source}"), digest(config.to_string().as_bytes()));
    };
    // A critic that is a model of its own.
    if let (Some(model), Some(section)) = (critic, run.critic()) {
        insert_shape(model, &section.model);
    }
    let names: Vec<&str> = run.distill().into_iter().flat_map(Distill::teacher_models).collect();
    for (name, model) in names.iter().zip(teachers) {
        insert_shape(model, name);
    }
    // Its tokenizer may be another than the student's.
    for (name, model) in names.iter().zip(teachers).filter(|_| run.aligns_text()) {
        if let Some(json) = model.tokenizer.tokenizer_json.as_deref() {
            inputs.insert(format!("tokenizer.json of {name}"), digest(json));
        }
    }
    Ok(inputs)
}

/// Returns the SHA-256 of everything that decides how text becomes tokens and the shape they run through: equal
/// contents give equal hashes, for files of the model or of a checkpoint.
fn text_side(run: &RunSpec, model: &OpenModel) -> Result<BTreeMap<String, String>> {
    let config = config_json(&model.spec, DType::F32, &model.token_ids());
    let mut files =
        BTreeMap::from([(format!("config.json of {}", run.model), digest(config.to_string().as_bytes()))]);
    let source = run.model_options.tokenizer.as_ref().unwrap_or(&run.model);
    for (name, bytes) in files_to_save(&model.tokenizer)? {
        let what =
            if name == TOKENIZER_CONFIG { "tokenizer_config.json, with the chat template," } else { name };
        files.insert(format!("{what} of {source}"), digest(&bytes));
    }
    // A template in the run file is compared with it; a file may have changed since.
    if let Some(setting) = run.data.chat_template.as_deref().filter(|setting| *setting != "none")
        && let Cow::Owned(text) = template_text(setting)?
    {
        files.insert(format!("the chat template {setting}"), digest(text.as_bytes()));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(fingerprint: &Fingerprint) -> RunState {
        RunState {
            machine: fingerprint.machine.clone(),
            build: fingerprint.build.clone(),
            plan: fingerprint.plan.clone(),
            inputs: fingerprint.inputs.clone(),
            ..RunState::blank(Default::default())
        }
    }

    #[test]
    fn another_machine_plan_or_data_is_refused_and_replan_says_so() {
        let inputs = BTreeMap::from([("a.jsonl".to_string(), "1".to_string())]);
        let text = |text: &str| text.to_string();
        let here = Fingerprint { machine: text("avx2"), build: text("b"), plan: text("p"), inputs };
        let good = state(&here);
        let mut said = Vec::new();
        here.check(&good, false, &mut |words| said.push(words)).unwrap();
        assert_eq!(said, [""; 0]);
        here.check(&RunState { build: text("c"), ..good.clone() }, false, &mut |words| said.push(words))
            .unwrap();
        assert!(said[0].contains("another build"), "{said:?}");
        for (other, expect) in [
            (RunState { machine: text("scalar"), ..good.clone() }, "machine type avx2"),
            (RunState { plan: text("q"), ..good.clone() }, "micro-batches"),
            (RunState { inputs: BTreeMap::new(), ..good.clone() }, "a.jsonl"),
        ] {
            let error = here.check(&other, false, &mut |_| ()).unwrap_err();
            assert!(error.slug == "resume-differs" && error.facts[0].contains(expect), "{error}");
            let names_a_path = error.hints.iter().any(|hint| hint.contains("PLIMSOLL_ISA=scalar"));
            assert_eq!(names_a_path, other.machine != here.machine, "{error}");
            let mut said = Vec::new();
            here.check(&other, true, &mut |words| said.push(words)).unwrap();
            assert!(said[0].contains(expect), "{said:?}");
        }
    }
}
