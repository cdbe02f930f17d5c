//! TRL's settings in a Python script: arguments of trainer and configuration, their model and data, and own rewards.

use super::jobs::JOBS;
use super::options::CONVERSATIONS;
use super::unsloth::loader as unsloth;
use crate::import::data;
use crate::launch::python::{self, Argument, Call, Outline, Value};
use crate::launch::source::Source;
use crate::setting::{Setting, TRAINER};
use plimsoll_base::{Error, Result};
use std::path::Path;

/// Trainers by their command-line names, and the prefixes of their classes. Those without a job are refused by name.
pub(super) const TRAINERS: [(&str, &str); 10] = [
    ("grpo", "GRPO"),
    ("rloo", "RLOO"),
    ("sft", "SFT"),
    ("dpo", "DPO"),
    ("reward", "Reward"),
    ("kto", "KTO"),
    ("orpo", "ORPO"),
    ("cpo", "CPO"),
    ("gkd", "GKD"),
    ("distillation", "Distillation"),
];

const CODE: &str = "code, which is not run: write its rows as JSON lines, or name the columns that they have before it: data.prompt_column, data.answer_column";
/// File formats, which are not names of data sets.
const FORMATS: [&str; 5] = ["json", "parquet", "csv", "text", "arrow"];
const FURTHER: &str = "a further trainer of the file: a job of its own, which --trainer imports";
/// Positional arguments of a trainer, in order.
const OF_GRPO: [&str; 4] = ["model", "reward_funcs", "args", "train_dataset"];
const OF_DPO: [&str; 5] = ["model", "ref_model", "args", "data_collator", "train_dataset"];
const OF_OTHERS: [&str; 4] = ["model", "args", "data_collator", "train_dataset"];
/// Classes that load a model or a processor of pictures, or make their batches.
const OF_PICTURES: [&str; 5] = [
    "AutoModelForImageTextToText",
    "AutoModelForVision2Seq",
    "AutoProcessor",
    "FastVisionModel",
    "UnslothVisionDataCollator",
];
/// Calls that wrap a model in an adapter.
const WRAPPERS: [&str; 3] = ["get_peft_model", "prepare_model_for_kbit_training", "PeftModel"];

/// Returns true for a script whose settings a parser reads from its command: it has no configuration.
pub(super) fn is_parsed(text: &str) -> bool {
    // Cheap check first: most files have no parser.
    if !["TrlParser(", "HfArgumentParser("].iter().any(|name| text.contains(name))
        || !text.contains("Trainer(")
    {
        return false;
    }
    let outline = Outline::of(text);
    !TRAINERS.iter().any(|(_, class)| !outline.calls(&format!("{class}Config")).is_empty())
}

/// Returns the settings of a script's trainer; empty if there is none.
///
/// Errors, exit code 2: `import-trainer-unknown` for several trainers of which none is chosen.
pub(super) fn read(source: &Source<'_>) -> Result<Vec<Setting>> {
    // Cheap check first: most files are not Python.
    if !source.text.contains("Trainer(") && !source.text.contains("Config(") {
        return Ok(Vec::new());
    }
    let outline = Outline::of(source.text);
    let mut found: Vec<(usize, &str, Option<Call>, Option<Call>)> = Vec::new();
    for (name, class) in TRAINERS {
        let first = |what: &str| outline.calls(&format!("{class}{what}")).into_iter().next();
        let (trainer, config) = (first("Trainer"), first("Config"));
        let at = [&trainer, &config].into_iter().flatten().map(|call| call.at).min();
        found.extend(at.map(|at| (at, name, trainer, config)));
    }
    found.sort_by_key(|(at, ..)| *at);
    let trainers = || found.iter().filter(|(_, _, trainer, _)| trainer.is_some());
    let (chosen, first) = (source.choice.trainer, trainers().next().or(found.first()));
    let chosen = found.iter().find(|(_, name, ..)| Some(*name) == chosen);
    if chosen.is_none() && trainers().count() > 1 {
        let places = trainers().map(|(at, name, ..)| (*name, source.place(outline.line(*at))));
        return Err(several(&places.collect::<Vec<_>>()));
    }
    let Some((at, name, trainer, config)) = chosen.or(first) else {
        let other = other_trainer(&outline).map(|(name, at)| Setting::new(TRAINER, name, outline.line(at)));
        return Ok(other.into_iter().collect());
    };
    let is_unsloth = unsloth::is_used(&outline);
    let named = if is_unsloth { format!("{}{name}", unsloth::START) } else { name.to_string() };
    let named =
        if JOBS.iter().any(|job| job.trainers.contains(&named.as_str())) { named } else { name.to_string() };
    let mut script =
        Script { source, outline: &outline, given: vec![Setting::new(TRAINER, named, outline.line(*at))] };
    if let Some((class, line)) = outline.derives_from("Trainer") {
        script.given.push(Setting::new("trainer_class", class, line));
    }
    if let Some(config) = config {
        script.given.extend(python::arguments(&outline, config));
    }
    script.attributes(name);
    if let Some(trainer) = trainer {
        script.trainer(name, trainer);
    }
    script.surroundings();
    let others = found.iter().filter(|(_, other, ..)| other != name);
    let further = others.map(|(at, other, ..)| Setting {
        unreadable: Some(FURTHER),
        ..Setting::new(*other, "", outline.line(*at))
    });
    Ok(script.given.into_iter().chain(further).collect())
}

/// Returns the error for a file that makes several trainers, each of which is a job of its own.
fn several(places: &[(&str, String)]) -> Error {
    let names: Vec<&str> = places.iter().map(|(name, _)| *name).collect();
    let message =
        format!("the file makes {} trainers, each of which is a job: {}", names.len(), names.join(", "));
    let error = Error::usage("import-trainer-unknown", message);
    let error = places.iter().fold(error, |error, (name, line)| error.fact(format!("{line}: {name}")));
    error.hint(format!("say which: --trainer {}", names.join(" or --trainer ")))
}

/// Returns the class of an unknown TRL trainer that the file instantiates, and the token of that.
fn other_trainer<'a>(outline: &'a Outline<'_>) -> Option<(&'a str, usize)> {
    let names = ["trl", "unsloth"].into_iter().flat_map(|package| outline.names_of_package(package));
    let mut names = names.filter(|name| name.ends_with("Trainer") && !name.starts_with("Patch"));
    names.find_map(|name| Some((name, outline.calls(name).first()?.at)))
}

struct Script<'a> {
    source: &'a Source<'a>,
    outline: &'a Outline<'a>,
    given: Vec<Setting>,
}

impl Script<'_> {
    fn trainer(&mut self, name: &str, call: &Call) {
        let order: &[&str] = match name {
            "grpo" | "rloo" => &OF_GRPO,
            "dpo" => &OF_DPO,
            _ => &OF_OTHERS,
        };
        let mut places = order.iter();
        for argument in &call.arguments {
            let place = if argument.name.is_none() { places.next().copied() } else { None };
            let Some(key) = argument.name.as_deref().or(place) else {
                self.unknown(&self.outline.source(&argument.source), argument);
                continue;
            };
            match key {
                "model" | "ref_model" => self.model(key, argument, call.at),
                "train_dataset" | "eval_dataset" => self.data(key, argument, call.at),
                "reward_funcs" => self.rewards(argument, call.at),
                "args" => self.configuration(argument, call.at),
                "peft_config" => self.adapter(argument, call.at),
                "environment_factory" => self.environment(argument, call.at),
                "tools" => self.tools(argument, call.at),
                _ => self.given.extend(python::settings(self.outline, key, argument, call.at)),
            }
        }
    }

    /// Reports a configuration that is not a call in this file; a call is read by itself.
    fn configuration(&mut self, argument: &Argument, at: usize) {
        let (value, _) = self.outline.meaning(&argument.value, at);
        match &value {
            // Its own default, and not that of a trainer's configuration.
            Value::Call(call) if call.last_name() == "TrainingArguments" => {
                self.given.push(Setting::new("learning_rate", "5e-5", argument.line));
                self.given.extend(python::arguments(self.outline, call));
            }
            Value::Call(_) => {}
            _ => self.unknown("args", argument),
        }
    }

    fn unknown(&mut self, key: &str, argument: &Argument) {
        self.given.push(python::expression(key, &self.outline.source(&argument.source), argument.line));
    }

    fn nested(&mut self, key: &str, name: &str, line: usize) {
        self.given.push(Setting { unreadable: Some(python::NESTED), ..Setting::new(key, name, line) });
    }

    fn model(&mut self, key: &str, argument: &Argument, at: usize) {
        let (mut value, mut at) = self.outline.origin(&argument.value, at);
        // A wrapped model counts as the model inside.
        for _ in 0..WRAPPERS.len() {
            let Value::Call(call) = &value else { break };
            self.saved_adapter(call);
            let Some(inner) = call.positional(0).filter(|_| is_wrapper(call)) else {
                break;
            };
            (value, at) = self.outline.origin(&inner.value, call.at.min(at));
        }
        match &value {
            // The base model of a saved adapter is in the adapter's own file.
            Value::Call(call) if call.name.starts_with("AutoPeftModel") => {}
            Value::Call(call) if call.last_name() == "from_pretrained" => self.loaded(key, call, argument),
            value => match self.outline.literal(value, at) {
                Some(name) => self.given.push(Setting::new(key, name, argument.line)),
                None => self.unknown(key, argument),
            },
        }
    }

    /// Reads FOLDER in `PeftModel.from_pretrained(model, FOLDER)` or
    /// `AutoPeftModelForCausalLM.from_pretrained(FOLDER)`.
    fn saved_adapter(&mut self, call: &Call) {
        let folder = match () {
            () if is_saved(call) => call.argument("model_id").or(call.positional(1)),
            () if call.name.starts_with("AutoPeftModel") => {
                call.argument("pretrained_model_name_or_path").or(call.positional(0))
            }
            () => return,
        };
        if let Some(folder) = folder {
            self.given.extend(python::settings(self.outline, "peft_config.adapter_path", folder, call.at));
        }
    }

    /// Reads the arguments of `AutoModelForCausalLM.from_pretrained(NAME, ...)`.
    fn loaded(&mut self, key: &str, call: &Call, argument: &Argument) {
        let by_name =
            ["pretrained_model_name_or_path", "model_name"].into_iter().find_map(|name| call.argument(name));
        let named = by_name.or(call.positional(0));
        match named.and_then(|named| Some((self.outline.literal(&named.value, call.at)?, named.line))) {
            Some((name, line)) => self.given.push(Setting::new(key, name, line)),
            None => self.unknown(key, argument),
        }
        if key != "model" {
            return;
        }
        if unsloth::is_of_class(call) {
            let has_length = self.given.iter().any(|one| one.key == "max_seq_length");
            let more = unsloth::loaded(self.outline, call, self.outline.line(call.at));
            let more = more.into_iter().filter(|one| !(has_length && one.key == "max_seq_length"));
            return self.given.extend(more);
        }
        for more in &call.arguments {
            let Some(key) = more.name.as_deref() else { continue };
            match key {
                "pretrained_model_name_or_path" | "model_name" | "quantization_config" => {}
                key => {
                    let key = if key == "revision" { "model_revision" } else { key };
                    self.given.extend(python::settings(self.outline, key, more, call.at));
                }
            }
        }
    }

    /// Reads the name in `load_dataset(NAME)`, or its files.
    fn data(&mut self, key: &str, argument: &Argument, at: usize) {
        let (mut value, mut at, mut steps) = self.outline.origin_with_steps(&argument.value, at);
        // A function in the file that loads its only data set.
        if let Value::Call(call) = &value
            && self.outline.is_function(&call.name)
            && let [loaded] = self.outline.calls("load_dataset").as_slice()
        {
            steps.insert(0, format!(".{}", call.name));
            (value, at) = (Value::Call(loaded.clone()), loaded.at);
        }
        let name = match &value {
            Value::Call(call) if call.last_name() == "load_dataset" => self.loaded_data(call, key, &steps),
            value => self.outline.literal(value, at),
        };
        let Some(name) = name else { return self.unknown(key, argument) };
        self.given.push(Setting::new(key, name, argument.line));
        let is_code = |step: &&String| step.starts_with('.') && step.as_str() != ".shuffle";
        let code = steps.iter().rev().filter(is_code).map(|step| Setting {
            unreadable: Some(CODE),
            ..Setting::new(format!("{key}{step}"), "", argument.line)
        });
        self.given.extend(code);
        // Code that writes `{"role": ..., "content": ...}` makes a conversation of each row.
        if let (Some(at), Some(_), true) =
            (self.outline.column("role"), self.outline.column("content"), !steps.is_empty())
        {
            self.given.push(Setting::new(CONVERSATIONS, "True", self.outline.line(at)));
        }
    }

    /// Returns the data of a `load_dataset` call: files, or a hub data set by its name here.
    fn loaded_data(&self, call: &Call, key: &str, steps: &[String]) -> Option<String> {
        let text = |one: Option<&Argument>| self.outline.literal(&one?.value, call.at);
        let name = text(call.positional(0).or(call.argument("path")))?;
        if FORMATS.contains(&name.as_str()) {
            return text(call.argument("data_files"));
        }
        if let Some(file) = text(call.argument("data_files")) {
            return Some(format!("hf:{name}/{file}"));
        }
        let folder = || text(call.argument("data_dir"));
        let subset = text(call.positional(1).or(call.argument("name"))).or_else(folder);
        let index =
            || steps.iter().find_map(|step| step.strip_prefix('[')?.strip_suffix(']').map(str::to_string));
        let split = text(call.argument("split")).or_else(index);
        let split = split.as_deref().and_then(data::split_of);
        let here = data::hub_name(&name, subset.as_deref(), split, key == "train_dataset");
        let revision = text(call.argument("revision"));
        Some(match (here, revision) {
            (Some(here), Some(revision)) => here.replacen(&name, &format!("{name}@{revision}"), 1),
            (Some(here), None) => here,
            (None, _) => name,
        })
    }

    /// Takes a class of this file as `python:FILE:NAME`, an imported one as `python:MODULE.py:NAME`.
    fn environment(&mut self, argument: &Argument, at: usize) {
        let (value, _) = self.outline.meaning(&argument.value, at);
        let Value::Name(name) = &value else { return self.unknown("environment_factory", argument) };
        let found = match self.outline.import_of(name) {
            _ if self.outline.is_class(name) => Some(format!("python:{}:{name}", self.source.path)),
            Some((module, name)) => {
                Some(format!("python:{}.py:{name}", module.trim_start_matches('.').replace('.', "/")))
            }
            None => None,
        };
        match found {
            Some(env) => self.given.push(Setting::new("environment_factory", env, argument.line)),
            None if self.outline.is_nested(name) => self.nested("environment_factory", name, argument.line),
            None => self.unknown("environment_factory", argument),
        }
    }

    /// Takes functions of this file as `python:FILE:NAME`, of a module next to it as `python:MODULE.py:NAME`.
    fn tools(&mut self, argument: &Argument, at: usize) {
        let items = match self.outline.meaning(&argument.value, at).0 {
            Value::List(items) if items.is_empty() => return,
            Value::Word(word) if word == "None" => return,
            Value::List(items) => items,
            _ => return self.unknown("tools", argument),
        };
        let mut places = Vec::with_capacity(items.len());
        for item in &items {
            match item {
                Value::Name(name) => match self.tool(name) {
                    Some(place) => places.push(quoted(&place)),
                    None if self.outline.is_nested(name) => {
                        return self.nested("tools", name, argument.line);
                    }
                    None => return self.given.push(python::expression("tools", name, argument.line)),
                },
                _ => return self.unknown("tools", argument),
            }
        }
        self.given.push(Setting::new("tools", format!("[{}]", places.join(", ")), argument.line));
    }

    /// Returns the place of a function; `None` for a class, an object's method, or a name in no file here.
    fn tool(&self, name: &str) -> Option<String> {
        if self.outline.is_function(name) {
            return Some(format!("python:{}:{name}", self.source.path));
        }
        let (module, function) = self.outline.import_of(name).or(name.rsplit_once('.'))?;
        let file = format!("{}.py", module.trim_start_matches('.').replace('.', "/"));
        let file = Path::new(self.source.path).parent()?.join(file);
        file.is_file().then(|| format!("python:{}:{function}", file.display()))
    }

    fn rewards(&mut self, argument: &Argument, at: usize) {
        let (value, at) = self.outline.meaning(&argument.value, at);
        let items = match value {
            Value::List(items) => items,
            one => vec![one],
        };
        let sources = self.outline.items(&argument.source);
        let whole = self.outline.source(&argument.source);
        let source =
            |index: usize| sources.get(index).filter(|_| sources.len() == items.len()).unwrap_or(&whole);
        let rewards = items.iter().enumerate();
        let names: Vec<String> = rewards.map(|(index, item)| self.reward(item, source(index), at)).collect();
        self.given.push(Setting::new("reward_funcs", format!("[{}]", names.join(", ")), argument.line));
    }

    /// Names one reward: `python:FILE:NAME` for a function of this file, `module.NAME` if imported, TRL's own by name.
    fn reward(&self, item: &Value, source: &str, at: usize) -> String {
        let Value::Name(name) = item else {
            return match item {
                Value::Call(call) if call.last_name() == "get_soft_overlong_punishment" => {
                    let of = |name, index| call.argument(name).or(call.positional(index));
                    let number = |one: Option<&Argument>| {
                        one.and_then(|one| self.outline.literal(&one.value, call.at))
                    };
                    let longest = number(of("max_completion_len", 0)).unwrap_or("1280".into());
                    let buffer = number(of("soft_punish_cache", 1)).unwrap_or("256".into());
                    format!("get_soft_overlong_punishment {longest} {buffer}")
                }
                _ => self.outline.literal(item, at).unwrap_or_else(|| quoted(source)),
            };
        };
        if self.outline.is_function(name) {
            return quoted(&format!("python:{}:{name}", self.source.path));
        }
        match self.outline.import_of(name) {
            Some((module, name)) if module == "trl" || module.starts_with("trl.") => name.to_string(),
            Some((module, name)) => format!("{}.{name}", module.trim_start_matches('.')),
            None => match self.outline.meaning(item, at) {
                (Value::Name(name), _) => name,
                (other, at) => self.outline.literal(&other, at).unwrap_or_else(|| name.clone()),
            },
        }
    }

    /// Reads settings made after the configuration, such as `config.beta = 0.1`. A parser's result is `NAME_args`.
    fn attributes(&mut self, trainer: &str) {
        // That of another trainer of the file is not this one's.
        let is_other = |class: &str| {
            TRAINERS.iter().any(|(name, start)| *name != trainer && class == format!("{start}Config"))
        };
        let is_configuration = |object: &str, value: &Value| match value {
            Value::Call(call) => {
                let class = call.last_name();
                (class.ends_with("Config") && !is_other(class)) || object.ends_with("_args")
            }
            _ => false,
        };
        for (argument, at, in_branch) in self.outline.attributes(is_configuration) {
            let key = argument.name.clone().unwrap_or_default();
            let mut given = python::settings(self.outline, &key, &argument, at);
            if in_branch {
                given.iter_mut().for_each(|one| one.unreadable = Some(python::EXPRESSION));
            }
            self.given.extend(given);
        }
    }

    /// Reads an adapter. `get_peft_config(args)` makes one only if a flag enables it.
    fn adapter(&mut self, argument: &Argument, at: usize) {
        match self.outline.meaning(&argument.value, at) {
            (Value::Call(call), _) if call.last_name() == "get_peft_config" => {
                self.given.push(Setting::new("peft_config", "None", argument.line));
            }
            (Value::Call(call), _) if call.last_name() == "LoraConfig" => {
                self.lora_config(&call, argument.line)
            }
            _ => self.given.extend(python::settings(self.outline, "peft_config", argument, at)),
        }
    }

    /// Finds calls anywhere that change the model (adapters, quantised weights) or name the run for a tracker.
    fn surroundings(&mut self) {
        if let Some((what, at)) = self.pictures() {
            self.given.push(Setting::new("images", what, self.outline.line(at)));
        }
        if let Some(call) = self.outline.calls("train_on_responses_only").first() {
            self.given.push(Setting::new("assistant_only_loss", "True", self.outline.line(call.at)));
        }
        for call in self.outline.calls("init").iter().filter(|call| call.name == "wandb.init").take(1) {
            let arguments = python::arguments(self.outline, call).into_iter();
            self.given.extend(arguments.map(|one| Setting { key: format!("wandb.init.{}", one.key), ..one }));
        }
        for call in self.outline.calls("BitsAndBytesConfig").iter().take(1) {
            self.given.extend(python::arguments(self.outline, call));
        }
        if self.given.iter().any(|one| one.key == "peft_config" || one.key.starts_with("peft_config.")) {
            return;
        }
        let line = |call: &Call| self.outline.line(call.at);
        if let Some(call) = self.outline.calls("LoraConfig").first() {
            self.lora_config(call, line(call));
        } else if let Some(call) = self.outline.calls("get_peft_model").first() {
            if unsloth::is_of_class(call) {
                self.given.extend(unsloth::adapter(self.outline, call, line(call)))
            } else {
                self.given.push(python::expression("peft_config", "get_peft_model(...)", line(call)))
            }
        }
    }

    /// Returns the column of pictures, and the token that shows that rows have them: a class that is called, a column,
    /// or a picture. The trainer there reads `image` and `images`.
    fn pictures(&self) -> Option<(String, usize)> {
        let outline = self.outline;
        let is_of_pictures =
            |name: &str| OF_PICTURES.contains(&name) || name.ends_with("ForConditionalGeneration");
        let class = outline.find_used(|name| is_of_pictures(name)).map(|(name, at)| (name.to_string(), at));
        let is_picture =
            |name: &str| outline.import_of(name).is_some_and(|(module, _)| module.starts_with("PIL"));
        let picture = || outline.find_used(is_picture).map(|(name, at)| (name.to_string(), at));
        let column =
            || ["image", "images"].iter().find_map(|name| Some((name.to_string(), outline.column(name)?)));
        let (column, (_, at)) = (column(), class.or_else(picture).or_else(column)?);
        Some((column.map_or("images".into(), |(name, _)| name), at))
    }

    /// Reads the arguments of `LoraConfig(...)`, and the kind of adapter.
    fn lora_config(&mut self, call: &Call, line: usize) {
        self.given.push(Setting::new("peft_config.peft_type", "LORA", line));
        let arguments = python::arguments(self.outline, call).into_iter();
        self.given.extend(arguments.map(|one| Setting { key: format!("peft_config.{}", one.key), ..one }));
    }
}

/// Returns true for a call that wraps its first argument's model in an adapter.
fn is_wrapper(call: &Call) -> bool {
    WRAPPERS.contains(&call.last_name()) || is_saved(call)
}

/// Returns true for a call that wraps a model in an adapter from a folder.
fn is_saved(call: &Call) -> bool {
    call.name.ends_with("PeftModel.from_pretrained")
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "'"))
}
