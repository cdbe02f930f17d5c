//! Prompts in a fixed order: generated tasks and rows of files, as tokens. Position i of the data is always the same
//! prompt, so a number is enough to resume.

use crate::data::drawn::drawn_item;
use crate::data::supervised::{self, sft_item};
use crate::data::{labels, mixture::Mixture, pairs};
use plimsoll_base::rng::{Stream, permutation, philox};
use plimsoll_base::{Error, Result};
use plimsoll_config::{Curriculum, Data, DataSet, DataSets, LearnsFrom, no_rows_to_filter};
use plimsoll_infer::album::RowImage;
use plimsoll_infer::image_rows::{PLACEHOLDER, each_row};
use plimsoll_infer::text::{Item, Limit, TextModel, no_rows};
use plimsoll_reward::column;
use plimsoll_text::{AnsweredRows, DrawnTask, FieldCounts, ImageRow, Row, Task, template_variables};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

#[derive(Debug)]
enum Source {
    Task {
        task: Box<Task>,
        rows: LearnsFrom,
        limit: Limit,
    },
    /// A task that draws images.
    Drawn {
        task: Box<DrawnTask>,
        rows: LearnsFrom,
        limit: Limit,
    },
    Items(Vec<Item>),
}

/// The source of prompts: one data set, or several mixed by their weights.
#[derive(Debug)]
pub struct Dataset {
    sets: Vec<Set>,
    mixture: Mixture,
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
}

/// The name of a file, and how many of its rows have each field.
pub(crate) type SetCounts<'d> = (&'d str, &'d FieldCounts);

/// One data set, in its own order.
#[derive(Debug)]
struct Set {
    source: Source,
    name: String,
    seed: u64,
    shuffle: bool,
    curriculum: Curriculum,
    /// One entry per row, where the order depends on them.
    pass_rates: Vec<f32>,
    /// The order of one pass over the rows.
    epoch: Option<(u64, Vec<u32>)>,
    prompt_tokens: usize,
    completion_tokens: usize,
    /// How many rows of a file have each field.
    counts: FieldCounts,
}

/// Rows of a file that were left out of its data set.
#[derive(Clone, Copy, Debug, Default)]
struct LeftOut {
    rows: usize,
    too_long: usize,
    by_pass_rate: usize,
}

impl Dataset {
    /// Opens one data set or several, with rows of this kind.
    ///
    /// Errors: `prompt-too-long`, `data-empty`, `data-bad-pass-rate`, `data-column-missing`; reading and tokenizing.
    pub fn open(
        sets: &DataSets,
        data: &Data,
        text: &TextModel,
        rows: LearnsFrom,
        seed: u64,
    ) -> Result<Dataset> {
        let weights: Vec<f64> = sets.sets().iter().map(DataSet::weight).collect();
        let mut opened = Vec::with_capacity(weights.len());
        for (name, set) in sets.named() {
            // A set's order does not depend on the other sets.
            let seed = if sets.is_one() { seed } else { seed_of(seed, &name) };
            opened.push(Set::open(&set.path, name, data, text, rows, seed)?);
        }
        let longest = |of: fn(&Set) -> usize| opened.iter().map(of).max().unwrap_or(0);
        let (mut prompt_tokens, completion_tokens) =
            (longest(|set| set.prompt_tokens), longest(|set| set.completion_tokens));
        if let Some(limit) = data.prompt_tokens_max {
            prompt_tokens = prompt_tokens.max(1).min(limit as usize);
        }
        let mixture = Mixture::new(&weights, seed);
        Ok(Dataset { sets: opened, mixture, prompt_tokens, completion_tokens })
    }

    /// Returns a data set without rows, for environments that make prompts of up to `prompt_tokens` tokens.
    pub fn none(prompt_tokens: usize) -> Dataset {
        Dataset { sets: Vec::new(), mixture: Mixture::new(&[], 0), prompt_tokens, completion_tokens: 0 }
    }

    /// Returns the number of rows of all sets; none if a task makes them without end.
    pub(crate) fn rows(&self) -> Option<u64> {
        let of = |set: &Set| match &set.source {
            Source::Task { .. } | Source::Drawn { .. } => None,
            Source::Items(items) => Some(items.len() as u64),
        };
        self.sets.iter().map(of).sum()
    }

    /// Returns positions `first..first + n` of the data.
    pub fn batch(&mut self, text: &TextModel, first: u64, n: usize) -> Result<Vec<Item>> {
        let positions = first..first + n as u64;
        let places: Vec<(usize, u64)> = positions.map(|position| self.mixture.at(position)).collect();
        let sets = &self.sets;
        let of_tasks = places.iter().filter(|(set, _)| sets[*set].is_task());
        let made: Vec<Item> = match of_tasks.clone().next() {
            Some(_) => forgetting(|| {
                let item = |&(set, position): &(usize, u64)| sets[set].task_item(text, position);
                of_tasks.clone().map(item).collect::<Result<_>>()
            })?,
            None => Vec::new(),
        };
        let mut made = made.into_iter();
        let item = |(set, position): (usize, u64)| {
            let item = if self.sets[set].is_task() {
                made.next().expect("one was made for each place of a task")
            } else {
                self.sets[set].row(position).clone()
            };
            Item { set, ..item }
        };
        Ok(places.into_iter().map(item).collect())
    }

    /// Returns the images of the rows at positions `first..first + n`. A task draws its own where they are needed.
    pub(crate) fn images_at(&mut self, first: u64, n: usize) -> Vec<Arc<RowImage>> {
        let mut images = Vec::new();
        for position in first..first + n as u64 {
            let (set, position) = self.mixture.at(position);
            if !self.sets[set].is_task() {
                images.extend_from_slice(&self.sets[set].row(position).images);
            }
        }
        images
    }

    /// Returns what the rows of each set have; nothing of a task.
    pub(crate) fn counts(&self) -> impl Iterator<Item = SetCounts<'_>> {
        self.sets.iter().filter(|set| !set.is_task()).map(|set| (set.name.as_str(), &set.counts))
    }

    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.sets.iter().map(|set| set.name.as_str())
    }

    /// Returns the rows of each file with its name; none for a task, which makes rows as they are needed.
    pub fn items(&self) -> impl Iterator<Item = (&str, &[Item])> {
        self.sets.iter().filter_map(|set| match &set.source {
            Source::Task { .. } | Source::Drawn { .. } => None,
            Source::Items(items) => Some((set.name.as_str(), items.as_slice())),
        })
    }

    /// Returns the columns of each task's first row, which all of its rows have.
    pub(crate) fn columns_of_tasks(&self) -> impl Iterator<Item = Map<String, Value>> {
        self.sets.iter().filter_map(|set| match &set.source {
            Source::Task { task, .. } => Some(task.train_row(set.seed, 0).columns),
            Source::Drawn { task, .. } => Some(task.train_row(set.seed, 0, PLACEHOLDER).row.columns),
            Source::Items(_) => None,
        })
    }

    /// Returns the columns of each set's first row, for checking what rewards ask for.
    pub(crate) fn first_columns(&self) -> impl Iterator<Item = Map<String, Value>> {
        self.sets.iter().map(|set| match &set.source {
            Source::Task { task, .. } => task.train_row(set.seed, 0).columns,
            Source::Drawn { task, .. } => task.train_row(set.seed, 0, PLACEHOLDER).row.columns,
            Source::Items(items) => Map::clone(&items[0].columns),
        })
    }
}

impl Set {
    fn open(
        path: &str,
        name: String,
        data: &Data,
        text: &TextModel,
        rows: LearnsFrom,
        seed: u64,
    ) -> Result<Set> {
        let (shuffle, curriculum) = (data.shuffle, data.curriculum);
        let source = Source::Items(Vec::new());
        let (pass_rates, prompt_tokens, completion_tokens) = (Vec::new(), 0, 0);
        let mut set = Set {
            source,
            name,
            seed,
            shuffle,
            curriculum,
            pass_rates,
            epoch: None,
            prompt_tokens,
            completion_tokens,
            counts: FieldCounts::default(),
        };
        if path.starts_with("builtin:") {
            set.open_task(path, data, rows, text)?
        } else {
            set.open_file(Path::new(path), data, rows, text)?
        }
        Ok(set)
    }

    fn open_task(&mut self, path: &str, data: &Data, rows: LearnsFrom, text: &TextModel) -> Result<()> {
        let limit = Limit::of(data);
        self.source = match drawn_task(path, text) {
            Some(task) => Source::Drawn { task: Box::new(task), rows, limit },
            None => Source::Task { task: Box::new(training_task(path, data)?), rows, limit },
        };
        // All prompts of a task have one form; a few show their length.
        for i in 0..64 {
            let item = self.task_item(text, i)?;
            self.prompt_tokens = self.prompt_tokens.max(item.ids.len()).max(item.teacher.len());
            self.completion_tokens =
                self.completion_tokens.max(item.completion.len()).max(item.rejected.len());
        }
        Ok(())
    }

    fn open_file(&mut self, path: &Path, data: &Data, rows: LearnsFrom, text: &TextModel) -> Result<()> {
        let (limit, file) = (Limit::of(data), path.display().to_string());
        let (mut items, mut left_out) = (Vec::new(), LeftOut::default());
        let mut keep = |i: usize, item: Item, rate: Option<f32>| {
            match limit.apply(item, &file, i)? {
                Some(item) => {
                    items.push(item);
                    self.pass_rates.extend(rate.filter(|_| self.curriculum != Curriculum::None));
                }
                None => left_out.too_long += 1,
            }
            Ok(())
        };
        let (mut by_pass_rate, counts) = (0, &mut self.counts);
        let of_row = |i: usize, error: Error| error.fact(format!("row {} of {file}", i + 1));
        match rows {
            LearnsFrom::Samples => {
                let mut answered = AnsweredRows::new(text.rules.answered);
                each_row(path, data, text, |i, mut of, folder| {
                    let row = &mut of.row;
                    row.ignore(&text.rules.ignored);
                    let rate = pass_rate(row, data, path, i)?;
                    if !is_wanted(rate, data) {
                        by_pass_rate += 1;
                        return Ok(());
                    }
                    if !answered.admit(&mut row.prompt, i) {
                        return Ok(());
                    }
                    count_prompt(counts, row, text, data).map_err(|error| of_row(i, error))?;
                    let item = text.image_item(of, folder).map_err(|error| of_row(i, error))?;
                    keep(i, item, rate.map(|rate| rate as f32))
                })?;
                answered.finish(path)?;
            }
            LearnsFrom::Completions | LearnsFrom::Pairs | LearnsFrom::Labels => {
                let read = match rows {
                    LearnsFrom::Pairs => pairs::items,
                    LearnsFrom::Labels => labels::items,
                    _ => supervised::items,
                };
                let mut items = read(path, data, text, counts)?.into_iter().enumerate();
                items.try_for_each(|(i, item)| keep(i, item, None))?;
            }
        }
        left_out.by_pass_rate = by_pass_rate;
        left_out.rows = items.len() + left_out.too_long + by_pass_rate;
        if items.is_empty() {
            return Err(nothing_left(&file, left_out, data));
        }
        self.prompt_tokens = items.iter().map(|i| i.ids.len().max(i.teacher.len())).max().unwrap_or(0);
        self.completion_tokens =
            items.iter().map(|i| i.completion.len().max(i.rejected.len())).max().unwrap_or(0);
        self.source = Source::Items(items);
        Ok(())
    }

    fn is_task(&self) -> bool {
        !matches!(self.source, Source::Items(_))
    }

    /// Returns the item at a position of a task. Positions are fixed, so a prompt that is too long cannot be left out.
    fn task_item(&self, text: &TextModel, position: u64) -> Result<Item> {
        let (item, limit) = match &self.source {
            Source::Task { task, rows, limit } => (task_item(task, *rows, text, self.seed, position)?, limit),
            Source::Drawn { task, rows, limit } => {
                (drawn_item(task, *rows, text, (self.seed, position))?, limit)
            }
            Source::Items(_) => unreachable!("rows are not made"),
        };
        let length = item.ids.len();
        let kept = limit.apply(item, &self.name, position as usize)?;
        kept.ok_or_else(|| limit.too_long(&self.name, position as usize, length))
    }

    /// Returns the row at a position of the passes over the file.
    fn row(&mut self, position: u64) -> &Item {
        let Source::Items(items) = &self.source else { unreachable!("a task has no rows") };
        let (epoch, at) = (position / items.len() as u64, (position % items.len() as u64) as usize);
        if !self.shuffle && self.curriculum == Curriculum::None {
            return &items[at];
        }
        // Without shuffling all passes have one order, which is made once.
        let epoch = if self.shuffle { epoch } else { 0 };
        if self.epoch.as_ref().is_none_or(|(e, _)| *e != epoch) {
            let mut order = if self.shuffle {
                permutation(self.seed, Stream::Data, epoch, items.len())
            } else {
                (0..items.len() as u32).collect()
            };
            let rate = |row: &u32| self.pass_rates[*row as usize];
            match self.curriculum {
                Curriculum::None => {}
                // Stable: rows of one rate keep their order.
                Curriculum::EasyFirst => order.sort_by(|a, b| rate(b).total_cmp(&rate(a))),
                Curriculum::HardFirst => order.sort_by(|a, b| rate(a).total_cmp(&rate(b))),
            }
            self.epoch = Some((epoch, order));
        }
        let (_, order) = self.epoch.as_ref().expect("made above");
        &items[order[at] as usize]
    }
}

/// Counts what a row to sample from has.
///
/// Errors: those of rendering it.
pub(crate) fn count_prompt(counts: &mut FieldCounts, row: &Row, text: &TextModel, data: &Data) -> Result<()> {
    let names = std::iter::once(data.prompt_column.as_str());
    counts.columns(names.chain(row.columns.keys().map(String::as_str)));
    counts.prompt(&row.prompt, &template_variables(&row.columns)?, text.template.as_deref())
}

/// Reads a task to train on.
///
/// Errors: those of `Task::parse`; `no_rows_to_filter`.
pub(crate) fn training_task(path: &str, data: &Data) -> Result<Task> {
    match &data.pass_rate_column {
        Some(column) => Err(no_rows_to_filter(path, column)),
        None => Task::parse(path),
    }
}

/// Returns a set's own seed, so that two sets of one task have different rows.
fn seed_of(seed: u64, name: &str) -> u64 {
    name.bytes().fold(seed, |seed, byte| {
        let bits = philox(seed, Stream::Data, u64::from(byte), u64::MAX);
        u64::from(bits[1]) << 32 | u64::from(bits[0])
    })
}

/// Returns the pass rate of a row, where the run file names its column.
///
/// Errors: `data-column-missing`, `data-bad-pass-rate`.
pub(crate) fn pass_rate(row: &Row, data: &Data, path: &Path, index: usize) -> Result<Option<f64>> {
    let Some(name) = &data.pass_rate_column else { return Ok(None) };
    let place = format!("{}: row {}", path.display(), index + 1);
    let Some(value) = column(&row.columns, name) else {
        let there: Vec<&str> = row.columns.keys().take(20).map(String::as_str).collect();
        return Err(Error::new("data-column-missing", format!("{place}: no column `{name}`"))
            .fact(format!(
                "columns there: {}",
                if there.is_empty() { "none".into() } else { there.join(", ") }
            ))
            .hint("set data.pass_rate_column to the column with the pass rates"));
    };
    match value.as_f64().filter(|rate| (0.0..=1.0).contains(rate)) {
        Some(rate) => Ok(Some(rate)),
        None => Err(Error::new("data-bad-pass-rate", format!("{place}: column `{name}` is {value:.40}"))
            .hint("a pass rate is a number from 0 to 1: the share of right answers")),
    }
}

/// True for a row without a pass rate, and for one whose rate is within the run file's bounds.
pub(crate) fn is_wanted(rate: Option<f64>, data: &Data) -> bool {
    rate.is_none_or(|rate| {
        data.pass_rate_min.is_none_or(|min| rate >= min) && data.pass_rate_max.is_none_or(|max| rate <= max)
    })
}

/// Runs `work` on a thread that ends with it.
///
/// The tokenizer's library keeps the tokens of 10,000 words for each thread and offers no way to keep fewer. Generated
/// prompts are always new, so on the run's own thread that memory would grow for hundreds of steps without any use.
pub(crate) fn forgetting<T: Send>(work: impl Fn() -> T + Sync) -> T {
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("prompts".into());
        thread.spawn_scoped(scope, &work).ok().map(std::thread::ScopedJoinHandle::join)
    });
    match done {
        Some(Ok(made)) => made,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        // No thread is available: the result is the same on this one.
        None => work(),
    }
}

/// Returns the task of a name that draws images, for a model that sees.
pub(crate) fn drawn_task(path: &str, text: &TextModel) -> Option<DrawnTask> {
    text.album.as_ref()?;
    DrawnTask::find(path)
}

fn task_item(task: &Task, rows: LearnsFrom, text: &TextModel, seed: u64, index: u64) -> Result<Item> {
    match rows {
        LearnsFrom::Samples => text.item(task.train_row(seed, index)),
        LearnsFrom::Completions => sft_item(text, &task.sft_row(seed, index), &Map::new()),
        LearnsFrom::Pairs => pairs::item(text, ImageRow::of_text(task.pair_row(seed, index)), None),
        LearnsFrom::Labels => labels::item(text, ImageRow::of_text(task.labelled_row(seed, index))),
    }
}

fn nothing_left(name: &str, left_out: LeftOut, data: &Data) -> Error {
    let LeftOut { rows, too_long, by_pass_rate } = left_out;
    if by_pass_rate == 0 {
        return no_rows(name);
    }
    let (min, max) = (data.pass_rate_min.unwrap_or(0.0), data.pass_rate_max.unwrap_or(1.0));
    Error::new("data-empty", format!("{name}: of {rows} rows none is left"))
        .fact(format!("{by_pass_rate} have a pass rate outside {min} to {max}, {too_long} are too long"))
        .hint("set data.pass_rate_min and data.pass_rate_max to leave some")
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_files::TokenizerFiles;
    use plimsoll_infer::text::RowRules;
    use plimsoll_text::{Strings, Tokenizer};

    /// A step may take a row many times, and a plan has each row once.
    #[test]
    fn prompts_of_a_step_share_the_columns_of_their_row() {
        let files = TokenizerFiles { bytes: true, ..TokenizerFiles::default() };
        let text = TextModel {
            tokenizer: Tokenizer::from_files(&files, 259).unwrap().into(),
            template: None,
            system_prompt: None,
            strings: Strings::Raw,
            eos: None,
            ends: Vec::new(),
            rules: RowRules::default(),
            teacher_prompt: None,
            teacher_text: None,
            album: None,
            form: None,
        };
        let row = Item { messages: Some(Arc::default()), ..Item::default() };
        let (columns, messages) = (row.columns.clone(), row.messages.clone().unwrap());
        let set = Set {
            source: Source::Items(vec![row]),
            name: String::new(),
            seed: 0,
            shuffle: true,
            curriculum: Curriculum::None,
            pass_rates: Vec::new(),
            epoch: None,
            prompt_tokens: 1,
            completion_tokens: 0,
            counts: FieldCounts::default(),
        };
        let mixture = Mixture::new(&[1.0], 0);
        let mut data = Dataset { sets: vec![set], mixture, prompt_tokens: 1, completion_tokens: 0 };
        let items = data.batch(&text, 0, 8).unwrap();
        assert_eq!((items.len(), Arc::strong_count(&columns)), (8, 2 + 8));
        assert_eq!(Arc::strong_count(&messages), 2 + 8);
    }
}
