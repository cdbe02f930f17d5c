//! Prompts in a fixed order: a generated task or rows of a file, as tokens. Position i of the data is the same
//! prompt whatever happened before, so a run knows where it is by a number.

use crate::runfile::{Data, Overlong};
use plimsoll_base::rng::{Stream, permutation};
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_text::{
    ChatTemplate, Prompt, Row, SftRow, Task, Tokenizer, load_jsonl, load_sft_jsonl, tokenize_prompt,
    tokenize_sft,
};
use serde_json::{Map, Value};
use std::path::Path;

/// Strings to tokens for one model.
#[derive(Debug)]
pub struct TextModel {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template or the run file's.
    pub template: Option<ChatTemplate>,
    /// Put before every conversation.
    pub system_prompt: Option<String>,
    /// True if string prompts are one user message.
    pub apply_chat: bool,
    /// Ends a supervised completion of plain text.
    pub eos: Option<u32>,
}

/// One prompt with what its rewards need.
#[derive(Clone, Debug, Default)]
pub struct Item {
    /// Tokens.
    pub ids: Vec<u32>,
    /// Text, for rewards and samples.
    pub text: String,
    /// The conversation, where the prompt is one.
    pub messages: Option<Value>,
    /// The row's other columns.
    pub columns: Map<String, Value>,
    /// What a supervised run learns; empty elsewhere.
    pub completion: Vec<u32>,
}

#[derive(Debug)]
enum Source {
    Task { task: Box<Task>, supervised: bool, limit: Limit },
    Items(Vec<Item>),
}

/// A data set.
#[derive(Debug)]
pub struct Dataset {
    source: Source,
    /// Its name, for messages.
    pub name: String,
    /// Longest prompt in tokens.
    pub prompt_tokens: usize,
    /// Longest supervised completion in tokens.
    pub completion_tokens: usize,
    /// Rows left out because their prompt was too long.
    pub dropped: usize,
    seed: u64,
    shuffle: bool,
    epoch: Option<(u64, Vec<u32>)>,
}

impl Dataset {
    /// Opens `name`: a `builtin:` task or a JSONL file. `supervised` rows have completions.
    ///
    /// Errors: those of reading and tokenizing; `prompt-too-long`, `data-empty`.
    pub fn open(name: &str, data: &Data, text: &TextModel, supervised: bool, seed: u64) -> Result<Dataset> {
        let mut set = Dataset {
            source: Source::Items(Vec::new()),
            name: name.to_string(),
            prompt_tokens: 0,
            completion_tokens: 0,
            dropped: 0,
            seed,
            shuffle: data.shuffle,
            epoch: None,
        };
        if name.starts_with("builtin:") {
            set.open_task(Box::new(Task::parse(name)?), data, supervised, text)?;
        } else {
            set.open_file(Path::new(name), data, supervised, text)?;
        }
        if let Some(limit) = data.prompt_tokens_max {
            set.prompt_tokens = set.prompt_tokens.max(1).min(limit as usize);
        }
        Ok(set)
    }

    /// The fixed test set of a task, or all rows of a file; at most `max` rows.
    pub fn test_items(name: &str, data: &Data, text: &TextModel, max: Option<u32>) -> Result<Vec<Item>> {
        let max = max.map_or(usize::MAX, |n| n as usize);
        let rows = match name.starts_with("builtin:") {
            true => Task::parse(name)?.test_rows(),
            false => load_jsonl(Path::new(name), &data.prompt_column)?,
        };
        let limit = Limit::of(data);
        let mut items = Vec::new();
        for (i, row) in rows.into_iter().enumerate().take(max) {
            let item = text.item(row)?;
            if let Some(item) = limit.apply(item, name, i)? {
                items.push(item);
            }
        }
        if items.is_empty() {
            return Err(no_rows(name));
        }
        Ok(items)
    }

    /// Positions `first..first + n` of the data.
    pub fn batch(&mut self, text: &TextModel, first: u64, n: usize) -> Result<Vec<Item>> {
        let positions = first..first + n as u64;
        match &self.source {
            Source::Task { task, supervised, limit } => {
                let (name, seed) = (&self.name, self.seed);
                let make = |i| task_item_within(task, *supervised, *limit, text, name, seed, i);
                forgetting(|| positions.clone().map(make).collect())
            }
            Source::Items(_) => positions.map(|i| self.item(text, i)).collect(),
        }
    }

    /// Bytes that the rows hold.
    pub fn bytes(&self) -> Bytes {
        let Source::Items(items) = &self.source else { return Bytes(0) };
        let item = |i: &Item| {
            let columns: usize = i.columns.iter().map(|(k, v)| k.len() + v.to_string().len() + 96).sum();
            // Each message is a table of two texts.
            let messages = i
                .messages
                .as_ref()
                .map_or(0, |m| m.to_string().len() + 320 * m.as_array().map_or(0, Vec::len));
            size_of::<Item>()
                + 4 * (i.ids.len() + i.completion.len())
                + i.text.len()
                + messages
                + columns
                + 64
        };
        Bytes(items.iter().map(item).sum::<usize>() as u64 + 4 * items.len() as u64)
    }

    /// The first row's columns, for checking what rewards ask for.
    pub fn first_columns(&self) -> Map<String, Value> {
        match &self.source {
            Source::Task { task, .. } => task.train_row(self.seed, 0).columns,
            Source::Items(items) => items[0].columns.clone(),
        }
    }

    fn open_task(&mut self, task: Box<Task>, data: &Data, supervised: bool, text: &TextModel) -> Result<()> {
        self.source = Source::Task { task, supervised, limit: Limit::of(data) };
        // A task's prompts are of one form; a few show their length.
        for i in 0..64 {
            let item = self.item(text, i)?;
            self.prompt_tokens = self.prompt_tokens.max(item.ids.len());
            self.completion_tokens = self.completion_tokens.max(item.completion.len());
        }
        Ok(())
    }

    fn open_file(&mut self, path: &Path, data: &Data, supervised: bool, text: &TextModel) -> Result<()> {
        let mut items = Vec::new();
        if supervised {
            for row in load_sft_jsonl(path)? {
                items.push(text.sft_item(&row)?);
            }
        } else {
            for row in load_jsonl(path, &data.prompt_column)? {
                items.push(text.item(row)?);
            }
        }
        let (total, limit) = (items.len(), Limit::of(data));
        let mut kept = Vec::with_capacity(total);
        for (i, item) in items.into_iter().enumerate() {
            kept.extend(limit.apply(item, &self.name, i)?);
        }
        self.dropped = total - kept.len();
        if kept.is_empty() {
            return Err(no_rows(&self.name));
        }
        self.prompt_tokens = kept.iter().map(|i| i.ids.len()).max().unwrap_or(0);
        self.completion_tokens = kept.iter().map(|i| i.completion.len()).max().unwrap_or(0);
        self.source = Source::Items(kept);
        Ok(())
    }

    fn item(&mut self, text: &TextModel, position: u64) -> Result<Item> {
        match &self.source {
            Source::Task { task, supervised, limit } => {
                task_item_within(task, *supervised, *limit, text, &self.name, self.seed, position)
            }
            Source::Items(items) => {
                let (epoch, at) = (position / items.len() as u64, (position % items.len() as u64) as usize);
                if !self.shuffle {
                    return Ok(items[at].clone());
                }
                if self.epoch.as_ref().is_none_or(|(e, _)| *e != epoch) {
                    self.epoch = Some((epoch, permutation(self.seed, Stream::Data, epoch, items.len())));
                }
                let (_, order) = self.epoch.as_ref().expect("made above");
                Ok(items[order[at] as usize].clone())
            }
        }
    }
}

impl TextModel {
    /// A row as tokens.
    pub fn item(&self, row: Row) -> Result<Item> {
        let ids = tokenize_prompt(
            &self.tokenizer,
            self.template.as_ref(),
            &row.prompt,
            self.system_prompt.as_deref(),
            self.apply_chat,
        )?;
        let (text, messages) = (prompt_text(&row.prompt), prompt_messages(&row.prompt));
        Ok(Item { ids, text, messages, columns: row.columns, completion: Vec::new() })
    }

    fn sft_item(&self, row: &SftRow) -> Result<Item> {
        let (ids, completion) = tokenize_sft(
            &self.tokenizer,
            self.template.as_ref(),
            row,
            self.system_prompt.as_deref(),
            self.apply_chat,
            self.eos,
        )?;
        Ok(Item { ids, text: prompt_text(&row.prompt), completion, ..Item::default() })
    }
}

/// Runs `work` on a thread that ends with it.
///
/// The tokenizer's library keeps the tokens of 10,000 words for each thread and offers no way to keep fewer. Prompts that
/// are made are ever new, so on the run's own thread that memory would grow for hundreds of steps and help nothing.
fn forgetting<T: Send>(work: impl Fn() -> T + Sync) -> T {
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("prompts".into());
        thread.spawn_scoped(scope, &work).ok().map(std::thread::ScopedJoinHandle::join)
    });
    match done {
        Some(Ok(made)) => made,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        // No thread to be had: the work is the same here.
        None => work(),
    }
}

/// The item at a position of a task. Positions are fixed, so a prompt that is too long cannot be left out.
fn task_item_within(
    task: &Task,
    supervised: bool,
    limit: Limit,
    text: &TextModel,
    name: &str,
    seed: u64,
    position: u64,
) -> Result<Item> {
    let item = task_item(task, supervised, text, seed, position)?;
    let length = item.ids.len();
    let kept = limit.apply(item, name, position as usize)?;
    kept.ok_or_else(|| limit.too_long(name, position as usize, length))
}

fn task_item(task: &Task, supervised: bool, text: &TextModel, seed: u64, index: u64) -> Result<Item> {
    if supervised {
        text.sft_item(&task.sft_row(seed, index))
    } else {
        text.item(task.train_row(seed, index))
    }
}

/// The last message of a conversation, or the text itself: what a reward function is shown.
fn prompt_text(prompt: &Prompt) -> String {
    match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Messages(messages) => messages.last().map(|m| m.content.clone()).unwrap_or_default(),
    }
}

/// A conversation as functions of other stacks take it: a list of `{"role", "content"}`.
fn prompt_messages(prompt: &Prompt) -> Option<Value> {
    match prompt {
        Prompt::Text(_) => None,
        Prompt::Messages(messages) => {
            let one =
                |m: &plimsoll_text::Message| serde_json::json!({ "role": m.role, "content": m.content });
            Some(messages.iter().map(one).collect())
        }
    }
}

/// `data.prompt_tokens_max` and what becomes of a prompt that is longer.
#[derive(Clone, Copy, Debug)]
struct Limit {
    prompt_tokens: Option<usize>,
    overlong: Overlong,
}

impl Limit {
    fn of(data: &Data) -> Limit {
        Limit { prompt_tokens: data.prompt_tokens_max.map(|n| n as usize), overlong: data.overlong }
    }

    /// The item within the limit; `None` if it is dropped.
    fn apply(&self, mut item: Item, name: &str, row: usize) -> Result<Option<Item>> {
        if item.ids.is_empty() {
            let message = format!("{name}: row {} has a prompt without a token", row + 1);
            return Err(
                Error::new("prompt-empty", message).hint("give the row a prompt, or take it out of the file")
            );
        }
        let length = item.ids.len();
        let Some(limit) = self.prompt_tokens.filter(|&limit| limit < length) else { return Ok(Some(item)) };
        match self.overlong {
            Overlong::Drop => Ok(None),
            Overlong::TruncateLeft => {
                item.ids.drain(..length - limit);
                Ok(Some(item))
            }
            Overlong::Error => Err(self.too_long(name, row, length)),
        }
    }

    fn too_long(&self, name: &str, row: usize, length: usize) -> Error {
        let limit = self.prompt_tokens.unwrap_or(0);
        let message =
            format!("{name}: row {} has {length} tokens, data.prompt_tokens_max is {limit}", row + 1);
        let error = Error::new("prompt-too-long", message);
        match name.starts_with("builtin:") {
            true => {
                error.hint("raise data.prompt_tokens_max; the rows of a task are all of about that length")
            }
            false => error
                .hint("raise data.prompt_tokens_max, or set data.overlong = \"drop\" or \"truncate-left\""),
        }
    }
}

fn no_rows(name: &str) -> Error {
    Error::new("data-empty", format!("{name}: no row is left"))
        .hint("raise data.prompt_tokens_max, or check the file")
}
