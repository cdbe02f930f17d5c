//! The stages of a reproduction: read, planned before any of them runs, and trained one after another.

use super::record::FolderState;
use crate::commands::layers::Sets;
use crate::{output, signals};
use plimsoll_arch::preset_of;
use plimsoll_base::{Error, Result};
use plimsoll_config::{DataSets, Loaded, Reproduction, ReproductionStage, RunFile, RunSpec};
use plimsoll_devices::Card;
use plimsoll_files::OpenModel;
use plimsoll_memory::Pool;
use plimsoll_plan::{Hosts, PlanReport, duration};
use plimsoll_rl::data::epochs;
use plimsoll_rl::data::session::{Machine, plan_run};
use plimsoll_run::ending::run_dir_path;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command};

/// Lists what a plan says where model or data are elsewhere.
const ELSEWHERE: [&str; 3] = ["data-not-local", "data-missing", "model-not-local"];

/// Reads the run files of all stages, with `sets` on top of each. What they write is inside the folder.
///
/// Errors: those of run files; `bad-value` for a place outside.
pub fn load(what: &Reproduction, sets: &Sets, quiet: bool) -> Result<Vec<Loaded>> {
    let load = |stage: &ReproductionStage| {
        let loaded = sets.load(Path::new(&stage.run), quiet)?;
        let places = [("run.dir", &loaded.run.run.dir), ("track.dir", &loaded.run.track.dir)];
        for (key, place) in places.into_iter().filter_map(|(key, place)| Some((key, place.as_ref()?))) {
            if !is_inside(place) {
                let takes = "a path below the folder of the reproduction, in which everything happens";
                let message = format!("`{key}` is \"{place}\"; it takes {takes}");
                let error = loaded.provenance.error("bad-value", key, &message);
                return Err(error.hint(format!("set {key} to {takes}")));
            }
        }
        Ok(loaded)
    };
    what.stage.iter().map(load).collect()
}

/// Returns true for a path that leads below the folder from which it is read, and not up or elsewhere on the way.
fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components().filter(|part| *part != Component::CurDir).peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Returns the settings that are other than those of the files, as `FILE: KEY = VALUE, not VALUE`.
///
/// Errors: those of run files.
pub fn differences(what: &Reproduction, loaded: &[Loaded]) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for (stage, loaded) in what.stage.iter().zip(loaded) {
        let of_file = plimsoll_config::load(Path::new(&stage.run), &[], std::iter::empty())?;
        let of_file: BTreeMap<String, String> =
            of_file.settings().into_iter().map(|setting| (setting.key, setting.value)).collect();
        for setting in loaded.settings() {
            let own = of_file.get(&setting.key).map_or("nothing", String::as_str);
            if own != setting.value {
                let (key, value) = (setting.key, setting.value);
                found.insert(format!("{}: {key} = {value}, not {own}", stage.run));
            }
        }
    }
    Ok(found)
}

/// Plans every stage, for this machine or for a card. A stage that starts from an earlier one has its model's shape.
///
/// Errors: those of `plan`; a stage that does not fit is a report.
pub fn plan(what: &Reproduction, loaded: &[Loaded], card: Option<Card>) -> Result<Vec<PlanReport>> {
    let mut models: BTreeMap<PathBuf, String> = BTreeMap::new();
    let mut reports = Vec::with_capacity(loaded.len());
    for (stage, loaded) in what.stage.iter().zip(loaded) {
        let mut run = loaded.run.clone();
        let from = |name: &str| models.get(Path::new(name.trim_end_matches("/checkpoints/latest"))).cloned();
        let rewards = run.reward.iter_mut().filter_map(|reward| reward.model.as_mut());
        for name in std::iter::once(&mut run.model).chain(rewards).filter(|name| !Path::new(name).exists()) {
            *name = from(name).unwrap_or_else(|| name.clone());
        }
        models.insert(run_dir_path(loaded), run.model.clone());
        reports.push(plan_one(stage, run, card)?);
    }
    Ok(reports)
}

fn plan_one(stage: &ReproductionStage, mut run: RunFile, card: Option<Card>) -> Result<PlanReport> {
    let machine = Machine { limits: None, card, hosts: Hosts::even(1, 1, None)? };
    let is_here =
        |run: &RunFile| OpenModel::open(&run.model, run.model_options.revision.as_deref(), false).is_ok();
    if let Some(model) = stage.plan_model.as_ref().filter(|_| card.is_some() || !is_here(&run)) {
        (run.model, run.model_options.revision) = (model.clone(), None);
    }
    if let Some((prompt, answer)) = stage.plan_tokens.filter(|_| card.is_some()) {
        return plan_of_lengths(run, prompt, answer, &machine);
    }
    let planned = epochs::resolve(&mut run).and_then(|_| plan_run(&RunSpec::new(&run), &machine));
    match (planned, stage.plan_tokens) {
        (Err(error), Some((prompt, answer))) if ELSEWHERE.contains(&error.slug) => {
            plan_of_lengths(run, prompt, answer, &machine)
        }
        (planned, _) => planned,
    }
}

/// Plans rows of the given lengths and a model of the run's shape, in place of model and data that are elsewhere.
fn plan_of_lengths(mut run: RunFile, prompt: u32, answer: u32, machine: &Machine) -> Result<PlanReport> {
    if let Some((preset, _)) = preset_of(&run.model) {
        run.model = format!("random:{preset}");
        // A token a byte: the texts below are as long as they say.
        run.model_options.tokenizer = Some("bytes".into());
        run.model_options.revision = None;
        (run.data.chat_template, run.data.system_prompt) = (None, None);
    }
    let text = |letter: &str, tokens: u32| letter.repeat(tokens.saturating_sub(1) as usize);
    let row = json!({
        "prompt": text("p", prompt),
        "completion": text("a", answer),
        "chosen": text("a", answer),
        "rejected": text("b", answer),
    });
    let path = std::env::temp_dir().join(format!("plimsoll-plan-{}.jsonl", std::process::id()));
    plimsoll_files::write_atomic(&path, format!("{row}\n").as_bytes())?;
    let set = DataSets::one(path.display().to_string());
    run.data.eval = run.data.eval.as_ref().map(|_| set.clone());
    run.data.prompts = Some(set);
    let planned = plan_run(&RunSpec::new(&run), machine);
    // It is small, and in the folder for such files.
    let _ = std::fs::remove_file(&path);
    planned
}

/// Returns a sentence about a plan: where its peak is, and how long it takes at most.
pub fn words(report: &PlanReport) -> String {
    let device = report.plan.peak(Pool::Device).peak;
    let (bytes, place) = match device.0 {
        0 => (report.plan.peak(Pool::Host).peak, "memory"),
        _ => (device, "card memory"),
    };
    format!("{bytes} of {place}, {} if every response has full length", duration(report.run_s()))
}

/// Trains the stages that did not end yet, each as the command that it prints. Returns the exit code of one that ended
/// early.
///
/// Errors: those of `train`.
pub fn train(
    loaded: &[Loaded],
    sets: &Sets,
    state: &mut FolderState,
    state_file: &Path,
    quiet: bool,
) -> Result<Option<u8>> {
    let count = loaded.len();
    for (i, loaded) in loaded.iter().enumerate() {
        let file = loaded.path.display().to_string();
        let of = format!("stage {} of {count}, {file}", i + 1);
        if state.done.contains(&file) {
            output::note(quiet, &format!("{of}: done before"));
            continue;
        }
        let dir = run_dir_path(loaded);
        // A run that died before its first checkpoint has nothing to go on from.
        let how = match (dir.join("checkpoints/latest").exists(), dir.join("events.jsonl").exists()) {
            (true, _) => Some("--resume"),
            (false, true) => Some("--overwrite"),
            (false, false) => None,
        };
        let mut words: Vec<OsString> = vec!["train".into(), file.clone().into()];
        words.extend(sets.sets.iter().flat_map(|set| ["--set".into(), set.into()]));
        words.extend(how.into_iter().chain(quiet.then_some("--quiet")).map(OsString::from));
        let shown: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        output::note(quiet, &format!("{of}: plimsoll {}", shown.join(" ")));
        let code = signals::wait_for(&mut spawn(&words)?)?;
        if code != 0 {
            return Ok(Some(code));
        }
        state.done.insert(file);
        state.write(state_file)?;
    }
    Ok(None)
}

/// Starts this program with other words.
fn spawn(words: &[OsString]) -> Result<Child> {
    let started = std::env::current_exe().and_then(|program| Command::new(program).args(words).spawn());
    started.map_err(|err| {
        Error::new("io-error", format!("`plimsoll train` was not started: {err}"))
            .hint("check the limit on processes: ulimit -u")
    })
}
