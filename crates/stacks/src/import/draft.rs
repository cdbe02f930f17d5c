//! The draft of a run file: which of their keys became which of ours, and what happened to the rest.

use super::Imported;
use super::read::{flag, integer, list, number};
use plimsoll_base::{Error, Result};

/// One setting of the file, as text without its quotes.
#[derive(Clone, Debug)]
pub(super) struct Given {
    /// Their key, without `--`.
    pub key: String,
    /// Its value; several words are a list `a, b`.
    pub value: String,
    /// Why the value cannot be taken as it stands, if so.
    pub unreadable: Option<&'static str>,
    /// Where it stands in the file, from 1; 0 where that is not known.
    pub line: usize,
}

/// What the table does with a key.
#[derive(Clone, Copy)]
pub(super) enum Take {
    /// The same text under our key.
    Text(&'static str),
    /// The same whole number.
    Integer(&'static str),
    /// The same number.
    Number(&'static str),
    /// A whole number of steps; 0 and below is never, which is our absent key.
    Every(&'static str),
    /// A name for a name.
    Names(&'static str, &'static [(&'static str, &'static str)]),
    /// True is this value of ours; false is ours without the key.
    On(&'static str, &'static str),
    /// One number for both clips.
    Clips,
    /// Two numbers: `loss.clip_low`, `loss.clip_high`.
    ClipPair,
    /// Two numbers: `train.betas`.
    Betas,
    /// -1 is 0: all tokens.
    TopK,
    /// True is `recompute = "layer"`, false `"none"`.
    Recompute,
    /// True adds this to `memory.offload`.
    Offload(&'static str),
    /// Read together with others by the stack's own function.
    Later,
    /// Known, and not in a run file of ours: why.
    Lost(&'static str),
}

/// One stack's names.
pub(super) struct Names {
    /// What it is called in comments.
    pub title: &'static str,
    /// Finds the settings in a file.
    pub read: fn(&str) -> Vec<Given>,
    /// (its names of one setting, separated by `|`, what becomes of it); the first name is what `take` asks for.
    pub rows: &'static [(&'static str, Take)],
    /// (part of a key, one word): settings of a cluster, an engine or a logger.
    pub elsewhere: &'static [(&'static str, &'static str)],
    /// (first name, value) that holds there where a file says nothing, and differs from ours or has no default here.
    pub defaults: &'static [(&'static str, &'static str)],
    /// What takes several keys together: method, steps, batches, data, rewards.
    pub combine: fn(&mut Draft) -> Result<()>,
}

enum Fate {
    Pending,
    Carried,
    Changed(String),
    Left(String),
}

struct Entry {
    given: Given,
    /// First name of its row; empty if it has none.
    row: &'static str,
    take: Take,
    is_default: bool,
    fate: Fate,
}

/// A value taken from the file, and where it came from.
pub(super) struct Taken {
    pub value: String,
    pub from: String,
    index: usize,
}

struct Setting {
    key: String,
    /// As TOML.
    value: String,
    from: String,
}

/// What is known of the run file so far.
pub(super) struct Draft {
    names: &'static Names,
    entries: Vec<Entry>,
    settings: Vec<Setting>,
    /// Where each reward came from, and its lines.
    rewards: Vec<(String, Vec<(&'static str, String)>)>,
    /// What the file does not say and a run file must.
    chosen: Vec<String>,
}

const SECTIONS: [&str; 10] =
    ["", "model_options", "data", "rollout", "loss", "critic", "train", "memory", "eval", "checkpoint"];

impl Draft {
    pub fn new(names: &'static Names, given: Vec<Given>) -> Draft {
        let row_of = |key: &str| {
            names
                .rows
                .iter()
                .find(|(theirs, _)| theirs.split('|').any(|name| name == key))
                .map(|(row, take)| (row.split('|').next().expect("split has a first part"), *take))
        };
        let mut entries: Vec<Entry> = given
            .into_iter()
            .map(|given| {
                let (row, take) = row_of(&given.key).unwrap_or(("", Take::Later));
                Entry { given, row, take, is_default: false, fate: Fate::Pending }
            })
            .collect();
        for index in 0..entries.len() {
            let row = entries[index].row;
            if !row.is_empty() && entries[index + 1..].iter().any(|later| later.row == row) {
                entries[index].fate = Fate::Left("set again further on, which counts".into());
            }
        }
        for &(key, value) in names.defaults {
            if entries.iter().any(|entry| entry.row == key) {
                continue;
            }
            let (row, take) = row_of(key).expect("a default is of a row of the table");
            let given = Given { key: key.into(), value: value.into(), unreadable: None, line: 0 };
            entries.push(Entry { given, row, take, is_default: true, fate: Fate::Pending });
        }
        Draft { names, entries, settings: Vec::new(), rewards: Vec::new(), chosen: Vec::new() }
    }

    /// Applies the table, then what takes several keys together, then what contradicts the method.
    pub fn translate(&mut self) -> Result<()> {
        // In the order of the table, where a name of one clip comes after the name of both.
        let place = |entry: &Entry| {
            self.names
                .rows
                .iter()
                .position(|(row, _)| !entry.row.is_empty() && row.split('|').next() == Some(entry.row))
        };
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        order.sort_by_key(|&index| place(&self.entries[index]));
        for index in order {
            let entry = &self.entries[index];
            if !matches!(entry.fate, Fate::Pending) {
                continue;
            }
            if let Some(why) = entry.given.unreadable {
                self.entries[index].fate = Fate::Left(why.into());
            } else if entry.row.is_empty() {
                let key = &entry.given.key;
                let word = self.names.elsewhere.iter().find(|(part, _)| key.contains(part));
                self.entries[index].fate = Fate::Left(word.map_or("unknown", |(_, word)| word).into());
            } else if matches!(entry.given.value.as_str(), "None" | "null" | "~") {
                self.entries[index].fate = Fate::Left("not set".into());
            } else {
                self.apply(index);
            }
        }
        (self.names.combine)(self)?;
        self.settle();
        Ok(())
    }

    fn apply(&mut self, index: usize) {
        let Entry { given, take, .. } = &self.entries[index];
        let (text, take) = (given.value.clone(), *take);
        let real = |text: &str| number(text).map(|value| format!("{value:?}"));
        let pairs: Option<Vec<(&str, String)>> = match take {
            Take::Later => return,
            Take::Lost(why) => {
                self.entries[index].fate = Fate::Left(why.into());
                return;
            }
            Take::Text(key) => Some(vec![(key, quoted(&text))]),
            Take::Integer(key) => integer(&text).map(|value| vec![(key, value.to_string())]),
            Take::Every(key) => integer(&text).map(|value| match value > 0 {
                true => vec![(key, value.to_string())],
                false => Vec::new(),
            }),
            Take::Number(key) => real(&text).map(|value| vec![(key, value)]),
            Take::Names(key, names) => names
                .iter()
                .find(|(theirs, _)| text.eq_ignore_ascii_case(theirs))
                .map(|(_, ours)| vec![(key, quoted(ours))]),
            Take::On(key, value) => {
                flag(&text).map(|on| if on { vec![(key, quoted(value))] } else { Vec::new() })
            }
            Take::Clips => {
                real(&text).map(|value| vec![("loss.clip_low", value.clone()), ("loss.clip_high", value)])
            }
            Take::ClipPair | Take::Betas => match list(&text).as_slice() {
                [low, high] => real(low).zip(real(high)).map(|(low, high)| match take {
                    Take::Betas => vec![("train.betas", format!("[{low}, {high}]"))],
                    _ => vec![("loss.clip_low", low), ("loss.clip_high", high)],
                }),
                _ => None,
            },
            Take::TopK => integer(&text).map(|value| vec![("rollout.top_k", value.max(0).to_string())]),
            Take::Recompute => {
                flag(&text).map(|on| vec![("train.recompute", quoted(if on { "layer" } else { "none" }))])
            }
            Take::Offload(what) => flag(&text).map(|on| if on { self.offload(what) } else { Vec::new() }),
        };
        let from = self.origin(index);
        self.entries[index].fate = match &pairs {
            Some(_) => Fate::Carried,
            None => Fate::Left("a value that has no counterpart here".into()),
        };
        for (key, value) in pairs.into_iter().flatten() {
            self.set_toml(key, value, &from);
        }
    }

    fn offload(&self, what: &str) -> Vec<(&'static str, String)> {
        let before = self.settings.iter().find(|setting| setting.key == "memory.offload");
        let before = before.map(|setting| setting.value.trim_matches(['[', ']']).to_string());
        let items: Vec<String> = before.into_iter().chain([quoted(what)]).collect();
        vec![("memory.offload", format!("[{}]", items.join(", ")))]
    }

    fn origin(&self, index: usize) -> String {
        let entry = &self.entries[index];
        match entry.is_default {
            true => format!("default of {}: {}", self.names.title, entry.given.key),
            false => entry.given.key.clone(),
        }
    }

    /// The value of a setting by its first name, if the file or the stack's default gives one.
    pub fn take(&mut self, name: &str) -> Option<Taken> {
        let index = self
            .entries
            .iter()
            .rposition(|entry| entry.row == name && !matches!(entry.fate, Fate::Left(_)))?;
        self.entries[index].fate = Fate::Carried;
        Some(Taken { value: self.entries[index].given.value.clone(), from: self.origin(index), index })
    }

    /// The same as a whole number above 0; anything else is left out by name.
    pub fn take_count(&mut self, name: &str) -> Option<(i64, Taken)> {
        let taken = self.take(name)?;
        match integer(&taken.value).filter(|&count| count > 0) {
            Some(count) => Some((count, taken)),
            None => {
                self.leave(&taken, "not a whole number above 0");
                None
            }
        }
    }

    /// The same as a number.
    pub fn take_number(&mut self, name: &str) -> Option<(f64, Taken)> {
        let taken = self.take(name)?;
        match number(&taken.value) {
            Some(value) => Some((value, taken)),
            None => {
                self.leave(&taken, "not a number");
                None
            }
        }
    }

    /// Whether a switch is on.
    pub fn is_on(&mut self, name: &str) -> bool {
        self.take(name).is_some_and(|taken| flag(&taken.value).unwrap_or(false))
    }

    /// Lists a value that was not carried over.
    pub fn leave(&mut self, taken: &Taken, why: &str) {
        self.entries[taken.index].fate = Fate::Left(why.into());
    }

    /// Lists a value that means something slightly different here.
    pub fn change(&mut self, taken: &Taken, how: &str) {
        self.entries[taken.index].fate = Fate::Changed(how.into());
    }

    /// Lists what the file does not say and was chosen here.
    pub fn choose(&mut self, what: &str) {
        self.chosen.push(what.into());
    }

    pub fn set_text(&mut self, key: &str, value: &str, from: &str) {
        self.set_toml(key, quoted(value), from);
    }

    pub fn set_toml(&mut self, key: &str, value: impl Into<String>, from: &str) {
        self.settings.retain(|setting| setting.key != key);
        self.settings.push(Setting { key: key.into(), value: value.into(), from: from.into() });
    }

    pub fn add_reward(&mut self, from: &str, lines: Vec<(&'static str, String)>) {
        self.rewards.push((from.into(), lines));
    }

    /// The weights of the rewards, in their order.
    pub fn weigh_rewards(&mut self, weights: &[f64], from: &str) {
        for ((_, reward), weight) in self.rewards.iter_mut().zip(weights) {
            reward.push(("weight", format!("{weight:?}  # {}", one_line(from))));
        }
    }

    pub fn has_reward(&self) -> bool {
        !self.rewards.is_empty()
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.settings.iter().find(|setting| setting.key == key).map(|setting| setting.value.as_str())
    }

    /// True if a key of the file is one of the table's.
    pub fn knows_any(&self) -> bool {
        self.entries.iter().any(|entry| !entry.is_default && !entry.row.is_empty())
    }

    pub fn count(&self, key: &str) -> Option<i64> {
        self.get(key).and_then(integer)
    }

    /// Sequences of a step, if both factors are known.
    pub fn sequences(&self) -> Option<i64> {
        self.count("rollout.prompts_per_step")?.checked_mul(self.count("rollout.group_size")?)
    }

    /// Refuses a method that is not here.
    pub fn no_method(taken: &Taken) -> Error {
        Error::usage(
            "import-no-method",
            format!("`{}` is `{}`, which is no method here", taken.from, taken.value),
        )
        .hint(
            "change it to one that is, for example GRPO, and import again; docs/methods.md lists the methods",
        )
    }

    /// Takes our key back; the settings of theirs that made it are listed with `why`.
    fn withdraw(&mut self, key: &str, why: &str) {
        let Some(at) = self.settings.iter().position(|setting| setting.key == key) else { return };
        let gone = self.settings.remove(at);
        let entry = self.entries.iter_mut().find(|entry| entry.given.key == gone.from && !entry.is_default);
        if let Some(entry) = entry {
            entry.fate = Fate::Left(why.into());
        }
    }

    /// Takes back what the run file would refuse beside the method and the batch.
    fn settle(&mut self) {
        let method = self.get("method").unwrap_or_default().trim_matches('"').to_string();
        let no_critic = format!("`{method}` has no critic");
        if method != "ppo" {
            for key in ["model", "learning_rate", "value_clip", "warmup_steps", "updates_per_rollout"] {
                self.withdraw(&format!("critic.{key}"), &no_critic);
            }
            self.withdraw("loss.lambda", &no_critic);
        }
        if !matches!(method.as_str(), "ppo" | "reinforce") {
            self.withdraw("loss.gamma", &format!("`{method}` does not discount"));
        }
        if matches!(method.as_str(), "gspo" | "cispo" | "sapo" | "reinforce") {
            self.withdraw("loss.dual_clip", &format!("`{method}` has no dual clip"));
        }
        if matches!(method.as_str(), "sapo" | "reinforce") {
            self.withdraw("loss.clip_low", &format!("`{method}` does not clip"));
            self.withdraw("loss.clip_high", &format!("`{method}` does not clip"));
        }
        if self.get("loss.kl_coef").is_none_or(|value| number(value) == Some(0.0)) {
            for key in ["loss.kl_target", "loss.kl_estimator", "loss.kl_in"] {
                self.withdraw(key, "there is no KL term");
            }
        }
        if self.get("loss.kl_target").is_none() {
            self.withdraw("loss.kl_horizon", "there is no KL target");
        }
        if self.get("loss.overlong_buffer").is_none() {
            self.withdraw("loss.overlong_factor", "there is no overlong buffer");
        }
        self.settle_batch();
    }

    fn settle_batch(&mut self) {
        if let (Some(sequences), Some(mini)) = (self.sequences(), self.count("train.mini_batch"))
            && (mini <= 0 || mini >= sequences || sequences % mini != 0)
        {
            let why = match mini == sequences {
                true => "one update a step, as here without a key".to_string(),
                false => format!("does not divide the {sequences} sequences of a step; one update a step"),
            };
            self.withdraw("train.mini_batch", &why);
        }
        if let (Some(sequences), Some(updates)) = (self.sequences(), self.count("critic.updates_per_rollout"))
            && updates > 0
            && sequences % updates != 0
        {
            // The parts are equal here: the nearest number below that divides the step.
            let nearest = (1..updates.min(sequences)).rev().find(|&n| sequences % n == 0).unwrap_or(1);
            self.withdraw("critic.updates_per_rollout", "");
            let how = format!("{nearest}, which divides the {sequences} sequences of a step");
            self.set_toml("critic.updates_per_rollout", nearest.to_string(), &how);
            if let Some(entry) =
                self.entries.iter_mut().find(|entry| matches!(&entry.fate, Fate::Left(why) if why.is_empty()))
            {
                entry.fate = Fate::Changed(how);
            }
        }
        let steps = self.count("train.steps").unwrap_or(0);
        for key in ["train.warmup_steps", "critic.warmup_steps"] {
            if self.count(key).is_some_and(|warmup| warmup > steps) {
                self.withdraw(key, &format!("more than the {steps} steps of the run"));
            }
        }
    }

    /// The run file, its remarks as comments at the end.
    pub fn finish(self, file: &str) -> Imported {
        let title = self.names.title;
        // A line break in a name would end the comment.
        let mut text = format!("# Imported from {title}: {}\n", one_line(file));
        for section in SECTIONS.into_iter().chain(["run"]) {
            self.section(section, &mut text);
            if section == "rollout" {
                for (from, reward) in &self.rewards {
                    text += &format!("\n[[reward]]  # {}\n", one_line(from));
                    reward.iter().for_each(|(key, value)| text += &format!("{key} = {value}\n"));
                }
            }
        }
        let remarks = self.remarks();
        if !remarks.is_empty() {
            text += &format!("\n# What is not as it was in {}:\n", one_line(file));
            remarks.iter().for_each(|remark| text += &format!("#   {remark}\n"));
        }
        // What set no key by itself is named too, so that every key of theirs stands somewhere.
        let carried = |entry: &&Entry| matches!(entry.fate, Fate::Carried) && !entry.is_default;
        let unnamed: Vec<String> = self
            .entries
            .iter()
            .filter(carried)
            .filter(|entry| !text.contains(&one_line(&entry.given.key)))
            .map(|entry| shown(&entry.given))
            .collect();
        if !unnamed.is_empty() {
            text += "\n# Taken into account, or the same here without a key:\n";
            unnamed.iter().for_each(|setting| text += &format!("#   {setting}\n"));
        }
        Imported { run_file: text, remarks }
    }

    fn section(&self, section: &str, text: &mut String) {
        let of = |setting: &&Setting| setting.key.rsplit_once('.').map_or("", |(head, _)| head) == section;
        let settings: Vec<&Setting> = self.settings.iter().filter(of).collect();
        if settings.is_empty() {
            return;
        }
        if !section.is_empty() {
            *text += &format!("\n[{section}]\n");
        }
        for Setting { key, value, from } in settings {
            let name = key.rsplit('.').next().unwrap_or_default();
            *text += &format!("{name} = {value}  # {}\n", one_line(from));
        }
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = self.chosen.iter().map(|what| format!("chosen: {what}")).collect();
        for entry in self.entries.iter().filter(|entry| !entry.is_default) {
            if let Fate::Changed(how) = &entry.fate {
                remarks.push(format!("changed: {}: {how}", shown(&entry.given)));
            }
        }
        for entry in self.entries.iter().filter(|entry| !entry.is_default) {
            match &entry.fate {
                Fate::Left(why) => remarks.push(format!("left out: {}: {why}", shown(&entry.given))),
                Fate::Pending => remarks.push(format!("left out: {}: has no use here", shown(&entry.given))),
                Fate::Carried | Fate::Changed(_) => {}
            }
        }
        remarks
    }
}

fn shown(given: &Given) -> String {
    match given.value.is_empty() {
        true => one_line(&given.key),
        false => format!("{} = {}", one_line(&given.key), one_line(&given.value)),
    }
}

/// TOML of a string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

/// Text for a comment: control characters, line breaks among them, as spaces, at most 160 characters.
fn one_line(text: &str) -> String {
    text.chars().take(160).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A model's name as `model` takes it: `org/name` is of the hub.
pub(super) fn model_source(name: &str) -> String {
    let on_hub =
        name.matches('/').count() == 1 && !name.starts_with(['.', '/', '~', '$']) && !name.contains(':');
    if on_hub { format!("hf:{name}") } else { name.to_string() }
}

/// `model`, from the setting `name`.
pub(super) fn model(draft: &mut Draft, name: &str) {
    match draft.take(name) {
        Some(taken) if !taken.value.is_empty() => {
            draft.set_text("model", &model_source(&taken.value), &taken.from);
        }
        _ => {
            draft.set_text("model", "builtin:nano", "chosen");
            draft.choose("model = \"builtin:nano\": the file names no model");
        }
    }
}

/// `data.prompts` and `data.eval`: Parquet and JSON lines as they are, anything else as a file to be written as JSON lines.
pub(super) fn data(draft: &mut Draft, prompts: &str, eval: &str) {
    for (name, key) in [(prompts, "data.prompts"), (eval, "data.eval")] {
        let Some(taken) = draft.take(name) else { continue };
        let files = super::read::list(&taken.value);
        let paths: Vec<String> = files.iter().map(|file| data_path(file)).collect();
        match paths.as_slice() {
            [] => continue,
            [path] => draft.set_text(key, path, &taken.from),
            paths => draft.set_toml(key, data_list(paths), &taken.from),
        }
        let mut how = Vec::new();
        if paths.len() > 1 && key == "data.prompts" {
            how.push("the files take turns here: a `weight` for each, such as its number of rows, makes shares of them");
        }
        if paths != files {
            how.push("write it as JSON lines: a row a line, the answer in a column of its own");
        }
        if !how.is_empty() {
            draft.change(&taken, &how.join("; "));
        }
    }
    if draft.get("data.prompts").is_none() {
        draft.set_text("data.prompts", "data.jsonl", "chosen");
        draft.choose("data.prompts = \"data.jsonl\": the file names no data");
    }
}

/// A data file as it is read here.
fn data_path(file: &str) -> String {
    let (stem, ending) = file.rsplit_once('.').unwrap_or((file, ""));
    match ending {
        "jsonl" | "parquet" => file.to_string(),
        "json" => format!("{stem}.jsonl"),
        _ => format!("{}.jsonl", file.rsplit('/').next().unwrap_or("data")),
    }
}

/// Several files as a list, each under a name of its own: `train` of two folders is `gsm8k-train` and `math-train`.
fn data_list(paths: &[String]) -> String {
    let plain = |text: &str| -> String {
        text.chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '.' { c } else { '-' })
            .collect()
    };
    let stem = |path: &str| {
        let file = path.rsplit('/').next().unwrap_or(path);
        plain(file.rsplit_once('.').map_or(file, |(stem, _)| stem))
    };
    let mut names: Vec<String> = Vec::with_capacity(paths.len());
    for (i, path) in paths.iter().enumerate() {
        let folder = path.rsplit('/').nth(1).unwrap_or_default();
        let is_shared = paths.iter().filter(|other| stem(other) == stem(path)).count() > 1;
        let name = match is_shared {
            true => format!("{}-{}", plain(folder), stem(path)),
            false => stem(path),
        };
        let name = name.trim_start_matches(['.', '-']).to_string();
        names.push(if names.contains(&name) || name.is_empty() { format!("set-{}", i + 1) } else { name });
    }
    let table =
        |(path, name): (&String, &String)| format!("{{ path = {}, name = {} }}", quoted(path), quoted(name));
    format!("[{}]", paths.iter().zip(&names).map(table).collect::<Vec<_>>().join(", "))
}

/// `train.steps` where it would follow from the size of the data.
pub(super) fn unknown_steps(draft: &mut Draft) {
    draft.set_toml("train.steps", "100", "chosen");
    draft.choose("train.steps = 100: the file says passes over the data and not how much data there is");
}

/// `train.schedule`, and a warm-up that is a share of the steps.
pub(super) fn schedule(draft: &mut Draft, scheduler: &str, ratio: &str) {
    if let Some(taken) = draft.take(scheduler) {
        let name = match taken.value.as_str() {
            "constant" | "constant_with_warmup" => Some("constant"),
            "linear" => Some("linear"),
            "cosine" | "cosine_with_min_lr" => Some("cosine"),
            _ => None,
        };
        match name {
            Some(name) => draft.set_text("train.schedule", name, &taken.from),
            None => draft.leave(&taken, "no such schedule here"),
        }
        if taken.value == "cosine_with_min_lr" {
            draft.change(&taken, "ends at 0 here, at a share of the learning rate there");
        }
    }
    let steps = draft.count("train.steps").unwrap_or(0);
    if let Some((ratio, taken)) = draft.take_number(ratio) {
        match (0.0..=1.0).contains(&ratio) {
            _ if draft.get("train.warmup_steps").is_some() => {
                draft.leave(&taken, "a number of steps is set too, which counts");
            }
            true => {
                let warmup = (ratio * steps as f64).ceil();
                draft.set_toml("train.warmup_steps", format!("{warmup}"), &taken.from);
            }
            false => draft.leave(&taken, "not a share from 0 to 1"),
        }
    }
}

/// `train.micro_batch_tokens` from a number of sequences, each as long as prompt and response may be.
pub(super) fn micro_batch(draft: &mut Draft, name: &str) {
    let Some((count, taken)) = draft.take_count(name) else { return };
    let lengths = (draft.count("data.prompt_tokens_max"), draft.count("rollout.max_new_tokens"));
    match (draft.get("train.micro_batch_tokens"), lengths) {
        (Some(_), _) => draft.leave(&taken, "a limit in tokens is set too, which counts"),
        (None, (Some(prompt), Some(response))) => {
            let tokens = count.saturating_mul(prompt.saturating_add(response)).min(i64::from(u32::MAX));
            draft.set_toml("train.micro_batch_tokens", tokens.to_string(), &taken.from);
            draft.change(&taken, &format!("{count} sequences of {prompt} + {response} tokens"));
        }
        (None, _) => draft.leave(&taken, "planned: sequences have no longest prompt to count tokens by"),
    }
}

/// A reward model, whose tokens must be the actor's.
pub(super) fn reward_model(draft: &mut Draft, name: &str) {
    let Some(taken) = draft.take(name).filter(|taken| !taken.value.is_empty()) else { return };
    let model = quoted(&model_source(&taken.value));
    draft.add_reward(&taken.from, vec![("kind", quoted("model")), ("model", model)]);
}

/// A verifier where the file names none.
pub(super) fn no_reward(draft: &mut Draft) {
    if !draft.has_reward() {
        draft.add_reward("chosen", vec![("kind", quoted("math"))]);
        draft.choose("[[reward]] kind = \"math\": the file names no reward that can be called");
    }
}
