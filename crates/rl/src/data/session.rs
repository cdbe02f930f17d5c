//! Opening what a run file names: model headers, tokenizer, data. The plan opens the same things as the run, but only
//! those that it needs.

use crate::checks::{CheckedFor, Checks};
use crate::data::dataset::Dataset;
use crate::data::first_rows::{first_rows, first_rows_of_episodes};
use crate::data::models::{model_of_plan, other_models, other_models_of_plan, other_specs, trained_model};
use crate::data::pairs;
use crate::data::readers::unread_words;
use crate::data::{hub, images, labels};
use crate::players::first_prompt_tokens;
use crate::ranks;
use crate::supply::apart::{self, share_of_trainers};
use crate::teachers::aligned;
use plimsoll_base::{Bytes, Error, Result, nearest_path, shown};
use plimsoll_config::{ColumnSearch, DataSets, Environment, LearnsFrom, ModelOptions, RunSpec, SupplyKind};
use plimsoll_devices::Card;
use plimsoll_files::OpenModel;
use plimsoll_infer::facts::verb_facts;
use plimsoll_infer::form::form_bytes;
use plimsoll_infer::models::{encodings_of, reward_adapters};
use plimsoll_infer::sets::{EvalSet, ReadItems, test_items};
use plimsoll_infer::teacher_prompt::TeacherPrompt;
use plimsoll_infer::text::{Item, TextModel, text_model};
use plimsoll_memory::Limits;
use plimsoll_plan::carry::{Gains, ResponseLengths, gains};
use plimsoll_plan::rent::{self, Market, Offer};
use plimsoll_plan::{
    Facts, HostFacts, Hosts, PerRole, PlanReport, RoleName, SmallestLimits, check_lengths, disk_facts,
    image_bytes, rows_kept, staging_bytes, tokenizer_bytes,
};
use plimsoll_run::resume;
use plimsoll_text::file_size;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// Host bytes of a data file's rows besides their tokens, per byte of JSON: the prompt as text, and the columns.
const TEXT_BYTES_PER_FILE_BYTE: u64 = 2;
/// Host bytes of their tokens per byte of JSON, where they are not known: a token of four bytes, as on GSM8K.
const TOKEN_BYTES_PER_FILE_BYTE: u64 = 1;
/// Host bytes of the prompts that a teacher with other tokens reads, per byte of JSON: a token may be one byte.
const TEACHER_BYTES_PER_FILE_BYTE: u64 = 4;
/// Host bytes of a row besides its values: the item, the table that copies of it share, its tokens' allocations.
const DATA_BYTES_PER_ROW: u64 = 384;
/// Host bytes of an image of a row besides its content: its names, its numbers and where they are.
const BYTES_PER_IMAGE: u64 = 512;
/// Copies of a row as JSON on its way to a worker: a line with it and its prompt, in a buffer that doubles as it grows.
const ROW_COPIES_SENT: u64 = 4;
/// Copies of the columns of samples on their way to rewards or an own advantage: by column, as a request, and its text.
const COLUMN_COPIES_SENT: u64 = 3;

/// The opened inputs of a training run.
pub struct Session {
    pub model: OpenModel,
    /// The models of roles that start from another one.
    pub others: PerRole<OpenModel>,
    pub text: TextModel,
    pub data: Dataset,
    pub eval: Vec<EvalSet>,
    /// The facts of them that the plan needs.
    pub facts: Facts,
    /// A token that ended no response of the model, and is learnt to.
    learnt_end: Option<u32>,
}

impl Session {
    /// Opens everything that `run` names.
    pub fn open(run: &RunSpec) -> Result<Session> {
        Session::of_model(run, trained_model(run, &run.model, &run.model_options)?)
    }

    /// Opens everything for a run that resumes from `checkpoint`, which holds all of the model except reference
    /// weights. If `model` can no longer be opened, and no reference is read from it, opens the checkpoint's model.
    pub(crate) fn open_again(
        run: &RunSpec,
        checkpoint: &Path,
        say: &mut dyn FnMut(String),
    ) -> Result<Session> {
        let error = match trained_model(run, &run.model, &run.model_options) {
            Ok(model) => return Session::of_model(run, model),
            Err(error) => error,
        };
        // With adapters the reference is the model that the checkpoint's adapter names.
        if run.has_reference() && run.lora.is_none() {
            let why = match run.objective().and_then(|objective| objective.kl) {
                None => format!("method `{}`", run.method()),
                Some(kl) => format!("loss.kl_coef = {}", kl.controller.coef()),
            };
            return Err(error
                .fact(format!("missing are the weights of the reference model ({why})"))
                .fact(format!("everything else is in {}", checkpoint.display()))
                .hint("put the model back as it was, and resume again"));
        }
        say(format!("{}; weights, configuration and tokenizer are the checkpoint's", error.message));
        let tokenizer = run.model_options.tokenizer.clone().filter(|name| name == "bytes");
        let options = ModelOptions { tokenizer, revision: None, ..run.model_options.clone() };
        // The checkpoint has gone on from the adapter that the run began with.
        let mut again = run.clone();
        again.lora.iter_mut().for_each(|lora| lora.adapter = None);
        let mut model = trained_model(&again, &checkpoint.display().to_string(), &options)?;
        // Later checkpoints name the model that the run began with, as earlier ones did.
        model.source = run.model.clone();
        Session::of_model(run, model)
    }

    fn of_model(run: &RunSpec, model: OpenModel) -> Result<Session> {
        let others = other_models(run, &model)?;
        Session::of_models(run, model, others)
    }

    fn of_models(run: &RunSpec, mut model: OpenModel, others: PerRole<OpenModel>) -> Result<Session> {
        let mut text = text_of(run, &model, &others)?;
        text.album = images::album(run, &model)?;
        let learnt_end = text.turn_end().filter(|_| run.learns_from() == Some(LearnsFrom::Completions));
        // What is learnt to end with ends responses, in evaluations and in what is saved.
        text.ends.extend(learnt_end);
        model.eos_token_ids.clone_from(&text.ends);
        let mut data = match run.environment() {
            Some(_) => Dataset::none(first_prompt_tokens(run, &text)?),
            None => {
                Dataset::open(prompts_of(run)?, &run.data, &text, run.method().needs().learns_from, run.seed)?
            }
        };
        check_under_way(run, &data)?;
        aligned::check(run, &text, &mut data)?;
        let eval = match run.environment() {
            // Their environment makes the prompts.
            Some(_) => {
                let sets = run.eval_sets.iter().cloned();
                sets.map(|(name, _)| EvalSet { name, items: Vec::new() }).collect()
            }
            None => {
                let read: ReadItems = match run.method().needs().learns_from {
                    LearnsFrom::Pairs => pairs::test_items,
                    LearnsFrom::Labels => labels::test_items,
                    LearnsFrom::Samples | LearnsFrom::Completions => test_items,
                };
                EvalSet::open_all(run.eval_sets.clone(), &run.data, &text, run.eval.prompts_max, read)?
            }
        };
        if run.learns_from() == Some(LearnsFrom::Pairs) {
            let held_out = eval.iter().map(|set| (set.name.as_str(), set.items.as_slice()));
            data.items()
                .chain(held_out)
                .try_for_each(|(name, items)| pairs::check_length(run, name, items))?;
        }
        check_answers(run, &data, &eval)?;
        let longest_eval = eval.iter().flat_map(|set| &set.items).map(|i| i.ids.len()).max().unwrap_or(0);
        // Sets are evaluated one after another.
        let largest_eval = eval.iter().map(|set| set.items.len()).max().unwrap_or(0);
        let largest_eval = largest_eval.max(run.eval_episodes());
        let (prompt_tokens, eval_prompts) =
            limits_of_data(run).unwrap_or((data.prompt_tokens.max(longest_eval), largest_eval));
        let rows = data.items().map(|(_, items)| items).chain(eval.iter().map(|set| set.items.as_slice()));
        let tokens = Bytes(rows.flatten().map(Item::token_bytes).sum());
        // Pairs are scored as they are, and nothing is sampled without rewards.
        let samples_none = run.learns_from_judged() && !run.has_rewards();
        let facts = Facts {
            completion_tokens: data.completion_tokens.max(longest_answer(&eval)),
            sight: images::shape(
                run,
                text.album.as_deref(),
                others.get(RoleName::TEACHER),
                limits_of_data(run).map(|limits| limits.0),
            )?,
            ..facts_of(
                run,
                &model,
                &others,
                prompt_tokens,
                if samples_none { 0 } else { eval_prompts },
                tokens,
            )?
        };
        Ok(Session { model, others, text, data, eval, facts, learnt_end })
    }

    /// Returns the SHA-256 of all that the run reads besides weights.
    ///
    /// Errors: `data-missing`.
    pub fn inputs(&self, run: &RunSpec) -> Result<BTreeMap<String, String>> {
        let teachers: Vec<&OpenModel> = self.others.teachers().map(|(_, model)| model).collect();
        resume::inputs(run, &self.model, self.others.get(RoleName::Critic), &teachers)
    }

    /// Returns all models of the run.
    pub fn models(&self) -> impl Iterator<Item = &OpenModel> {
        std::iter::once(&self.model).chain(self.others.values())
    }

    /// Says with which token answers are learnt to end, or warns of one that ends nothing.
    pub(crate) fn ending_words(&self, run: &RunSpec) -> Option<String> {
        let Some(end) = self.learnt_end else {
            return warnings_of(run, &self.text).pop().map(|words| format!("warning: {words}"));
        };
        let name = self.text.tokenizer.token_text(end).unwrap_or_default();
        Some(format!(
            "answers end with {name}, as the chat template has it: it now ends responses, and is saved in eos_token_id"
        ))
    }

    /// Says what of the rows is not read.
    pub(crate) fn unread_words(&self, run: &RunSpec) -> Vec<String> {
        unread_words(run, self.data.counts())
    }

    /// Returns the columns of the first row of each set, for checking what rewards ask for.
    ///
    /// Errors: those of reading `environment.rows`.
    pub(crate) fn first_columns(&self, run: &RunSpec) -> Result<Vec<Map<String, Value>>> {
        if run.environment().is_some() {
            return Ok(first_rows_of_episodes(run)?.columns);
        }
        // What is trained without sampling has no rewards.
        let training = self.data.first_columns().filter(|_| run.objective().is_some());
        let held_out = self.eval.iter().filter_map(|set| Some(Map::clone(&set.items.first()?.columns)));
        Ok(training.chain(held_out).collect())
    }
}

/// Requires that each row has the answers that rewards compare with, those of late steps too, and that some row has
/// each column that a key names.
///
/// Errors: `data-column-missing`.
fn check_answers(run: &RunSpec, data: &Dataset, eval: &[EvalSet]) -> Result<()> {
    let mut search = ColumnSearch::new(&run.named_columns);
    // Supervised rows keep no columns, and only rewards read those of held-out ones.
    if run.learns_from() != Some(LearnsFrom::Completions) {
        data.columns_of_tasks().for_each(|columns| search.see(&columns));
        data.items().flat_map(|(_, items)| items).for_each(|item| search.see(&item.columns));
    }
    if run.learns_from() != Some(LearnsFrom::Completions) || !run.rewards.is_empty() {
        eval.iter().flat_map(|set| &set.items).for_each(|item| search.see(&item.columns));
    }
    search.finish()?;
    let check = plimsoll_reward::answers_check(&run.rewards)?;
    // What is trained without sampling has no rewards.
    let training = data.items().filter(|_| run.objective().is_some());
    let held_out = eval.iter().map(|set| (set.name.as_str(), set.items.as_slice()));
    for (name, items) in training.chain(held_out) {
        for item in items {
            let of_row = |error: Error| error.fact(format!("the prompt of the row: {:?}", shown(&item.text)));
            check(&item.columns).map_err(|error| of_row(error).fact(format!("the data: {name}")))?;
        }
    }
    Ok(())
}

/// Requires that no row is under way twice.
///
/// Errors: `data-too-small`.
fn check_under_way(run: &RunSpec, data: &Dataset) -> Result<()> {
    let (rows, under_way) = (data.rows(), run.prompts_under_way());
    // An environment has as many prompts as there are seeds.
    let has_rows = run.supply() == SupplyKind::Carried && run.environment().is_none();
    let Some(rows) = rows.filter(|rows| has_rows && *rows < under_way) else { return Ok(()) };
    let message = format!("the data has {rows} rows, and {under_way} prompts are to be under way");
    let step = u64::from(run.rollout.prompts_per_step);
    let hint = if rows > step {
        format!("set async.partial_rollouts = {} or less", rows - step)
    } else {
        "set async.partial_rollouts = 0, or take more data".to_string()
    };
    Err(Error::usage("data-too-small", message)
        .fact(format!("{step} of a step, and async.partial_rollouts = {} more", run.partial_rollouts()))
        .hint(hint))
}

/// The facts that a plan knows of the files that a run file names.
struct Known {
    facts: Facts,
    /// Rows of the data, if it was opened and has an end.
    rows: Option<u64>,
    /// Assumptions of the facts, for people.
    assumed: Vec<String>,
    /// Files that were not read, for people.
    not_checked: Vec<String>,
    /// Fields of the rows that are not read, for people.
    unread: Vec<String>,
    /// Warnings of the text side, for people.
    warnings: Vec<String>,
    /// Columns of the first row of each set.
    columns: Vec<Map<String, Value>>,
    /// Files that are not there though one of nearly that name is, for people.
    misspelt: Vec<String>,
}

impl Known {
    /// Opens what a plan needs. With `data.prompt_tokens_max` and a method that samples, reads only the first rows of
    /// the data, and neither the model's files nor the data need be at hand.
    ///
    /// Errors: those of `Session::open`.
    fn of(run: &RunSpec) -> Result<Known> {
        let Some((prompt_tokens, eval_prompts)) = limits_of_data(run) else {
            let model = trained_model(run, &run.model, &run.model_options)?;
            let (others, assumed) = other_models_of_plan(run, &model)?;
            let session = Session::of_models(run, model, others)?;
            let (columns, rows, unread) =
                (session.first_columns(run)?, session.data.rows(), session.unread_words(run));
            let warnings = warnings_of(run, &session.text);
            let (assumed, not_checked) = (assumed.into_iter().collect(), Vec::new());
            let (facts, misspelt) = (session.facts, Vec::new());
            return Ok(Known { facts, rows, assumed, not_checked, unread, warnings, columns, misspelt });
        };
        let (model, assumed_model) = model_of_plan(run)?;
        let (others, assumed_teacher) = other_models_of_plan(run, &model)?;
        let album = images::album(run, &model)?;
        let facts = Facts {
            sight: images::shape(run, album.as_deref(), others.get(RoleName::TEACHER), Some(prompt_tokens))?,
            ..facts_of(run, &model, &others, prompt_tokens, eval_prompts, Bytes(0))?
        };
        // `random:PRESET` is a shape, also in place of a model that is elsewhere.
        let text = (!model.random).then(|| text_of(run, &model, &others)).transpose()?;
        let text = text.map(|text| TextModel { album, ..text });
        let rows = match run.environment() {
            Some(_) => first_rows_of_episodes(run)?,
            None => {
                prompts_of(run)?;
                first_rows(run, text.as_ref())?
            }
        };
        let mut not_checked = rows.not_checked;
        if text.is_none() && run.environment().is_none() {
            not_checked.push("prompts as tokens, which need the model's tokenizer".into());
        }
        let assumed_data = rows.missing.iter().map(|path| {
            format!(
                "{path} is not there: data.prompt_tokens_max = {prompt_tokens} bounds its prompts, and its rows take no memory"
            )
        });
        let near = |path: &String| {
            let near = nearest_path(Path::new(path))?;
            Some(format!("{path} is not there; did you mean {}?", near.display()))
        };
        let misspelt = rows.missing.iter().filter_map(near).collect();
        let assumed = assumed_model.into_iter().chain(assumed_teacher).chain(assumed_data).collect();
        let counts = rows.counts.iter().map(|(path, counts)| (path.as_str(), counts));
        let unread = unread_words(run, counts);
        let warnings = text.map(|text| warnings_of(run, &text)).unwrap_or_default();
        let columns = rows.columns;
        Ok(Known { facts, rows: None, assumed, not_checked, unread, warnings, columns, misspelt })
    }
}

/// Warns of what a run would do that its user probably does not intend: a turn that has no end.
fn warnings_of(run: &RunSpec, text: &TextModel) -> Vec<String> {
    // What learns from answers learns their end, which is then one.
    let learns_it = run.learns_from() == Some(LearnsFrom::Completions);
    let judged = run.learns_from_judged() && !run.has_rewards();
    text.turn_end_warning().filter(|_| !learns_it && !judged).into_iter().collect()
}

/// Returns the facts of a run of one rank, of which no completion is known. `tokens`: bytes of the data's tokens, 0
/// where none were read.
fn facts_of(
    run: &RunSpec,
    model: &OpenModel,
    others: &PerRole<OpenModel>,
    prompt_tokens: usize,
    eval_prompts: usize,
    tokens: Bytes,
) -> Result<Facts> {
    Ok(Facts {
        prompt_tokens,
        models: other_specs(run, model, others),
        adapters: reward_adapters(run, others),
        encodings: encodings_of(model, others),
        host: host_facts(run, model, others, prompt_tokens, tokens)?,
        ..verb_facts(run, model, prompt_tokens, eval_prompts)
    })
}

/// Returns the longest prompt and the number of evaluation prompts where the run file limits them: the plan then uses
/// the limits instead of the data, and is the same with and without the data at hand.
pub(super) fn limits_of_data(run: &RunSpec) -> Option<(usize, usize)> {
    let prompt_tokens = run.data.prompt_tokens_max.filter(|_| run.objective().is_some())?;
    let eval_prompts = if run.eval_sets.is_empty() {
        0
    } else if run.environment().is_some() {
        run.eval_episodes()
    } else {
        run.eval.prompts_max.map_or(usize::MAX, |n| n as usize)
    };
    Some((prompt_tokens.max(1) as usize, eval_prompts))
}

/// Returns the tokens of the longest answer of held-out pairs.
fn longest_answer(sets: &[EvalSet]) -> usize {
    sets.iter()
        .flat_map(|set| &set.items)
        .map(|i| i.completion.len().max(i.rejected.len()))
        .max()
        .unwrap_or(0)
}

/// Opens the tokenizer and the chat template of a run's model, and what its teacher reads.
///
/// Errors: as `text_model`, `TextModel::with_teacher`.
fn text_of(run: &RunSpec, model: &OpenModel, others: &PerRole<OpenModel>) -> Result<TextModel> {
    let teacher_prompt = run.distill().and_then(|distill| distill.prompt.clone()).map(TeacherPrompt);
    let text = TextModel { teacher_prompt, ..text_model(model, &run.data)?.held(&run.rollout, model)? };
    match others.get(RoleName::TEACHER).filter(|_| run.aligns_text()) {
        Some(teacher) => text.with_teacher(&run.data, model, teacher),
        None => Ok(text),
    }
}

/// Plans a run for this machine, or for the given limits, and makes the checks of `train`.
///
/// Errors: those of opening the model and the data, and of the checks; `size-overflow`; a run that does not fit is a
/// report, not an error.
pub fn plan_run(run: &RunSpec, machine: &Machine) -> Result<PlanReport> {
    Ok(plan_run_with(run, machine, None)?.0)
}

/// Plans a run as `plan_run`, and what carried prompts would bring if its responses had these lengths.
///
/// Errors: those of `plan_run`.
pub fn plan_run_with(
    run: &RunSpec,
    machine: &Machine,
    lengths: Option<&ResponseLengths>,
) -> Result<(PlanReport, Option<Gains>)> {
    let when = if machine.is_here() { CheckedFor::Plan } else { CheckedFor::PlanElsewhere };
    let mut checks = Checks::begin(when, run)?;
    let run = &hub::localised(run, limits_of_data(run).is_none())?;
    let Known { mut facts, rows, assumed, not_checked, unread, mut warnings, columns, misspelt } =
        Known::of(run)?;
    // The layout is that of every rank.
    let share = share_of_trainers(run, &machine.hosts, machine.hosts.share())?;
    let of_trainers = machine.hosts.ranks - run.rollout_ranks() as usize;
    (facts.share, facts.hosts, facts.trainers) = (share, machine.hosts, machine.hosts.of_first(of_trainers));
    facts.card = machine.card;
    checks.rewards(run, &columns)?;
    checks.estimator(run, 0, &plimsoll_reward::Words::of_run())?;
    checks.endpoint(run);
    checks.environment(run)?;
    check_lengths(run, &facts)?;
    let limits = machine.limits.clone().unwrap_or_default();
    let report = plimsoll_plan::plan_with(run, &facts, &limits)?;
    apart::check(run, &report.shape)?;
    let gains = lengths.map(|lengths| gains(run, &facts, &limits, lengths, rows)).transpose()?;
    let not_checked = not_checked.into_iter().chain(checks.not_checked).collect();
    warnings.splice(0..0, report.warnings.iter().cloned());
    Ok((PlanReport { assumed, not_checked, unread, warnings, misspelt, ..report }, gains))
}

/// Returns the SHA-256 of all that a run reads, by name: what its ranks must have alike.
///
/// Errors: those of opening it.
pub fn read_by(run: &RunSpec) -> Result<BTreeMap<String, String>> {
    let run = &hub::localised(run, true)?;
    let session = Session::open(run)?;
    ranks::with_weights(session.inputs(run)?, session.models())
}

/// A machine that a run is planned for: this one, where nothing is given.
#[derive(Clone, Debug)]
pub struct Machine {
    pub limits: Option<Limits>,
    pub card: Option<Card>,
    /// The ranks, and the hosts over which they are spread.
    pub hosts: Hosts,
}

impl Machine {
    fn is_here(&self) -> bool {
        self.limits.is_none() && self.card.is_none()
    }
}

/// Plans a run on some numbers of each card of the table, cheapest first.
///
/// Errors: as `plan_run`.
pub fn rent(run: &RunSpec, market: &Market<'_>) -> Result<Vec<Offer>> {
    let run = &hub::localised(run, limits_of_data(run).is_none())?;
    let facts = Known::of(run)?.facts;
    check_lengths(run, &facts)?;
    rent::offers(run, &facts, market)
}

pub fn smallest_limits(run: &RunSpec) -> Result<SmallestLimits> {
    let run = &hub::localised(run, limits_of_data(run).is_none())?;
    let facts = Known::of(run)?.facts;
    check_lengths(run, &facts)?;
    plimsoll_plan::smallest_limits(run, &facts)
}

fn prompts_of(run: &RunSpec) -> Result<&DataSets> {
    run.data.prompts.as_ref().ok_or_else(|| {
        Error::usage("missing-key", "data.prompts is missing")
            .hint("set data.prompts to a JSONL file or a built-in task")
    })
}

fn host_facts(
    run: &RunSpec,
    model: &OpenModel,
    others: &PerRole<OpenModel>,
    prompt_tokens: usize,
    tokens: Bytes,
) -> Result<HostFacts> {
    let (mut rows, mut reading, mut sent, mut json, mut longest, mut count) = (0, 0, 0, 0, 0, 0);
    let aligned = others.get(RoleName::TEACHER).filter(|_| run.aligns_text());
    let of_teacher = if aligned.is_some() { TEACHER_BYTES_PER_FILE_BYTE } else { 0 };
    let files = run.data.files().map(|path| (path, 0));
    let workers = |section: &Environment| u64::from(section.num_workers.value().unwrap_or(1));
    let of_episodes = run
        .environment()
        .into_iter()
        .flat_map(|section| section.row_files().map(move |path| (path, ROW_COPIES_SENT * workers(section))));
    for (path, copies) in files.chain(of_episodes).filter(|(path, _)| Path::new(path).is_file()) {
        // Files are read one after another, and all rows stay in memory.
        let size = file_size(Path::new(path), run.data.images.as_deref())?;
        json += size.json.0;
        // Images are sent to rewards and environments as base64.
        let of_row = size.longest.0 + size.images_longest.0.div_ceil(3) * 4;
        longest = of_row.max(longest);
        count += size.rows;
        rows += size.values.0 + size.rows * DATA_BYTES_PER_ROW;
        rows += size.images.0 + size.num_images * BYTES_PER_IMAGE;
        reading = size.reading.0.max(reading);
        sent = (of_row * copies).max(sent);
    }
    // Text of which each byte is a token has four bytes for each: only reading it shows that.
    let tokens = tokens.0.max(json * (TOKEN_BYTES_PER_FILE_BYTE + of_teacher));
    let rows = rows + json * TEXT_BYTES_PER_FILE_BYTE + tokens;
    Ok(HostFacts {
        image: image_bytes(),
        tokenizer: aligned.map_or(Bytes(0), tokenizer_bytes) + tokenizer_bytes(model),
        data: Bytes(rows + reading + sent) + columns_sent(run, Bytes(longest), count),
        clients: clients_of(run, model, prompt_tokens),
        schema: form_bytes(&run.rollout, model),
        script: Bytes(0),
        staging: others
            .values()
            .map(|other| staging_bytes(run.memory.staging, other))
            .fold(staging_bytes(run.memory.staging, model), Bytes::max),
        rows_kept: rows_kept(run),
        disk: images::with_copies(run, disk_facts(run)),
    })
}

/// Returns what columns of samples take on their way to rewards and to a function that estimates advantages. All may be
/// of the longest of `rows` rows: a step may draw one again and again.
fn columns_sent(run: &RunSpec, longest: Bytes, rows: u64) -> Bytes {
    let rewards = |group: u32| {
        let sent = run.rewards.iter().map(|reward| reward.samples_sent(group.max(1) as usize));
        sent.fold(0, u64::saturating_add)
    };
    // Held-out prompts are graded between steps.
    let (group, samples) = (run.rollout.group_size, run.eval.samples);
    let most = (run.prompts_under_way() * u64::from(group)).max(rows * u64::from(samples));
    let graded = rewards(group).max(rewards(samples)).min(most);
    let estimated = run.estimator().map_or(0, |_| run.sequences_per_step());
    Bytes(longest.0.saturating_mul(COLUMN_COPIES_SENT).saturating_mul(graded.max(estimated)))
}

/// Returns what connections of agents take: as many as there are episodes under way, and as many that wait.
fn clients_of(run: &RunSpec, model: &OpenModel, prompt_tokens: usize) -> Bytes {
    if !run.plays_agents() {
        return Bytes(0);
    }
    let at_once = run.prompts_under_way() as usize * run.rollout.group_size as usize;
    plimsoll_serve::host_bytes([at_once; 2], [prompt_tokens, run.response_tokens_max()], &model.spec, None, 0)
}
