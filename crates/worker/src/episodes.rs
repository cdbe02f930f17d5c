//! A text environment that Python plays, several episodes in one interpreter: a class in the user's file, a Gymnasium
//! text environment, or a client of an OpenEnv server. `shapes.py` gives them one interface.
//!
//! Failures are distinguished: it raised, hung, died, exceeded its memory, or returned something that is not a turn. An
//! episode whose worker has ended since its reset is lost, which does not count as a second failure.

use crate::ids::Ids;
use crate::images::SampleImage;
use crate::launch::{Launch, Limits};
use crate::pool::{Pool, Stop};
use crate::python::{Columns, line};
use crate::raised::Raised;
use crate::reply::{field, field_of_first, reply_to, string};
use crate::sandbox::Network;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll_base::{Bytes, Error, JsonPart, Result, shown_address, slugs};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// Serves the environment; embedded, so that nothing needs to be installed.
const SERVE: &str = concat!(
    include_str!("load.py"),
    include_str!("protocol.py"),
    include_str!("pictures.py"),
    include_str!("shapes.py"),
    include_str!("mcp.py"),
    include_str!("serve_episodes.py")
);
/// Serves tasks in containers.
const SERVE_TASKS: &str = concat!(
    include_str!("load.py"),
    include_str!("protocol.py"),
    include_str!("pictures.py"),
    include_str!("containers.py"),
    include_str!("harbor.py"),
    include_str!("serve_episodes.py")
);

/// Most bytes of a worker's line.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// A message without its content.
const MESSAGE_BYTES: usize = 128;
/// Most messages at the beginning of an episode, which a row of the data may have.
const FIRST_MESSAGES_MAX: usize = 16 << 10;
/// Most bytes of the schemas of an environment's tools, as a tree.
const TOOLS_BYTES_MAX: usize = 2 << 20;
/// Longest time for images before a run, and for the tests of a task: its worker holds them to what its tasks say.
const OF_TASKS_MAX: Duration = Duration::from_secs(25 * 3600);

/// The environment that plays episodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EpisodesOf {
    Class {
        file: PathBuf,
        /// The class in `file`, or a function that makes an environment.
        class: String,
    },
    /// Free functions as tools, `EpisodesSpec::tools`: a row's prompt begins an episode.
    Functions,
    /// A registered environment, by the id that `gymnasium.make` takes.
    Gymnasium { id: String },
    /// An OpenEnv server, by its address.
    OpenEnv { url: String },
    /// Tasks in harbor's format, each episode in a container, `EpisodesSpec::tasks`.
    Harbor,
}

impl EpisodesOf {
    /// Returns the environment's name for messages: of an address what is no secret.
    fn name(&self) -> String {
        match self {
            EpisodesOf::Class { class, .. } => class.clone(),
            EpisodesOf::Functions => "tools".into(),
            EpisodesOf::Gymnasium { id } => id.clone(),
            EpisodesOf::OpenEnv { url } => shown_address(url),
            EpisodesOf::Harbor => "harbor".into(),
        }
    }
}

/// The tasks that are played in containers, and what runs these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerTasks {
    /// Folders of tasks; with none, a worker only removes the containers that others left.
    pub folders: Vec<PathBuf>,
    /// The program that runs containers, with words of its own; `None` for `docker` or `podman`, whichever is found.
    pub engine: Option<String>,
    /// Limit on the memory of a container.
    pub memory: Bytes,
}

/// A function in a user's file that the model may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolFunction {
    pub file: PathBuf,
    pub function: String,
}

/// The environment to load, and its limits.
#[derive(Clone, Debug)]
pub struct EpisodesSpec {
    pub of: EpisodesOf,
    /// Free functions that the model may call, for `Functions` and for a class whose methods are tools.
    pub tools: Vec<ToolFunction>,
    /// Servers of the Model Context Protocol whose tools the model may call: each a command, or an address.
    pub servers: Vec<String>,
    /// True if episodes begin with rows; with tools, `reset` gets their columns as arguments.
    pub has_rows: bool,
    pub tasks: ContainerTasks,
    /// The key of an OpenEnv server's actions that carries the response.
    pub action: String,
    /// The key of its observations to show; `None` for their only text, or else all of them.
    pub observation: Option<String>,
    pub reply: ReplyLimits,
    /// The images that tools may return; `None` refuses those that return one.
    pub images: Option<ReplyImages>,
    /// The interpreter; `None` for `default_python`.
    pub python: Option<String>,
    /// Limit on the address space of the interpreter.
    pub memory: Bytes,
    pub network: Network,
    /// Longest time to answer one turn.
    pub step_timeout: Duration,
    /// Longest time to begin an episode, and to start.
    pub reset_timeout: Duration,
}

/// The images that an answer to a turn may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyImages {
    /// Most images of an answer.
    pub most: usize,
    /// What the model's chat template writes for an image: it is in a message's text where an image is.
    pub placeholder: String,
}

/// Most bytes of an image of an answer, as a file.
pub const REPLY_IMAGE_BYTES_MAX: usize = 2 << 20;
/// Most pixels of an image of an answer.
const REPLY_IMAGE_PIXELS_MAX: u32 = 1 << 24;
/// An image of an answer as text.
const REPLY_IMAGE_TEXT: usize = REPLY_IMAGE_BYTES_MAX / 3 * 4 + 64;

/// The most that an answer to a turn may hold. Longer text is cut in the worker, before anything reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyLimits {
    pub messages: usize,
    /// Bytes of text of all its messages, in UTF-8.
    pub bytes: usize,
}

impl ReplyLimits {
    /// Returns the limits of an answer that becomes up to `tokens` tokens: 32 bytes a token, where text has 4 to 6; and
    /// a message for 4 tokens, as many as a template takes around it, but 8 in any case.
    pub fn of(tokens: u32) -> ReplyLimits {
        let tokens = tokens as usize;
        ReplyLimits { messages: (tokens / 4).max(8), bytes: tokens.saturating_mul(32).min(REPLY_BYTES_MAX) }
    }

    /// Returns the host bytes of one answer.
    pub fn host_bytes(&self) -> Bytes {
        Bytes((self.bytes + self.messages * MESSAGE_BYTES) as u64)
    }
}

/// Messages of an environment: (role, content).
pub type Messages = Vec<(String, String)>;

/// The answer to a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    pub messages: Messages,
    /// The content of the files of its images, in the order of the placeholders in its messages.
    pub images: Vec<Vec<u8>>,
    /// Finite.
    pub reward: f64,
    /// The episode is over.
    pub done: bool,
    /// True if its text was cut to `EpisodesSpec::reply`.
    pub is_cut: bool,
}

/// Holds what an environment offers in addition to its messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// Functions that the model may call, as JSON schemas; not empty if `step` takes calls.
    pub tools: Vec<Value>,
    /// True if `end` gives the reward, and `step` none.
    pub scores_at_end: bool,
}

/// A request to begin an episode. It borrows the row; the only copy is in the worker's line.
#[derive(Serialize)]
struct Reset<'a> {
    reset: usize,
    seed: u32,
    prompt: &'a Value,
    row: Option<&'a Columns>,
    /// The images of the row's prompt, each as `SampleImage::to_json` has it; absent where rows have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<Vec<Value>>,
}

pub struct PythonEpisodes {
    pool: Pool,
    name: String,
    ids: Ids,
    /// Most messages of an answer to a turn.
    messages_max: usize,
    /// Most images of an answer to a turn.
    images_max: usize,
    step_timeout: Duration,
    reset_timeout: Duration,
    /// Longest time for the reward of a whole episode.
    end_timeout: Duration,
}

impl PythonEpisodes {
    /// Starts the interpreter and loads the environment.
    ///
    /// Errors: `text-environment-missing` with the traceback's last lines; those of starting a worker.
    pub fn start(spec: &EpisodesSpec, stop: Stop) -> Result<PythonEpisodes> {
        let missing = |file: &PathBuf, hint: &str| {
            let message = format!("`{}` is not a file", file.display());
            Error::usage("text-environment-missing", message).near(file).hint(hint)
        };
        if let EpisodesOf::Class { file, .. } = &spec.of
            && !file.is_file()
        {
            return Err(missing(
                file,
                "write env = \"python:FILE.py:CLASS\" with a path from where the command runs",
            ));
        }
        if let Some(tool) = spec.tools.iter().find(|tool| !tool.file.is_file()) {
            return Err(missing(
                &tool.file,
                "write environment.tools = [\"python:FILE.py:FUNCTION\"] with paths from where the command runs",
            ));
        }
        let what = spec.to_json().to_string();
        let (python, name) = (spec.python.as_deref(), spec.of.name());
        let item = (&*name, &[what.as_str()][..]);
        let is_harbor = spec.of == EpisodesOf::Harbor;
        let script = if is_harbor { SERVE_TASKS } else { SERVE };
        let mut launch = Launch::of_python(python, script, item, spec.memory, spec.network, check_loaded);
        // Clients of engines reserve more addresses than they use.
        launch.is_private = is_harbor;
        let of_tasks = |time: Duration| if is_harbor { OF_TASKS_MAX } else { time };
        let images_max = spec.images.as_ref().map_or(0, |images| images.most);
        let (step_timeout, reset_timeout) = (spec.step_timeout, spec.reset_timeout);
        // No retries: the environment may already have taken the turn.
        let limits =
            Limits { workers: 1, timeout: step_timeout, start_timeout: of_tasks(reset_timeout), retries: 0 };
        let mut pool = Pool::start(launch, limits, stop).map_err(of_environment)?;
        pool.lengthen_replies(images_max * REPLY_IMAGE_TEXT);
        let (ids, messages_max) = (Ids::default(), spec.reply.messages);
        let end_timeout = of_tasks(step_timeout);
        Ok(PythonEpisodes {
            pool,
            name,
            ids,
            messages_max,
            images_max,
            step_timeout,
            reset_timeout,
            end_timeout,
        })
    }

    /// Returns what the environment offers.
    ///
    /// Errors: as `reset`.
    pub fn about(&mut self) -> Result<About> {
        self.ask(json!({ "about": 0 }), "about", |reply| {
            let tools = field(reply, "tools").map(|tools| tools.tree(TOOLS_BYTES_MAX));
            match (tools, field(reply, "scores_at_end").and_then(JsonPart::boolean)) {
                (Some(Ok(Value::Array(tools))), Some(scores_at_end)) => Ok(About { tools, scores_at_end }),
                (Some(Err(what)), _) => Err(Some(format!("tools {what}"))),
                _ => Err(None),
            }
        })
    }

    /// Begins an episode in a slot. `prompt`: string, messages or null. `row`: the columns and the images that a class
    /// gets.
    ///
    /// Errors: `text-environment-raised`, `-timeout`, `-crashed`, `-over-budget`, `-bad-reply`.
    pub fn reset(
        &mut self,
        slot: usize,
        seed: u32,
        prompt: &Value,
        row: Option<(&Columns, Option<&[SampleImage]>)>,
    ) -> Result<Messages> {
        self.pool.set_timeout(self.reset_timeout);
        let images = row.and_then(|(_, images)| images);
        let images = images.map(|images| images.iter().map(SampleImage::to_json).collect());
        let reset = Reset { reset: slot, seed, prompt, row: row.map(|(columns, _)| columns), images };
        let first = self.ask(reset, "reset", |reply| messages(reply, FIRST_MESSAGES_MAX)?.ok_or(None));
        self.pool.set_timeout(self.step_timeout);
        first
    }

    /// Passes a model's turn and calls (`name`, `arguments`) to a slot's episode. `None` if its worker has ended.
    ///
    /// Errors: as `reset`.
    pub fn step(&mut self, slot: usize, response: &str, calls: &[Value]) -> Result<Option<Turn>> {
        let (most, images_max) = (self.messages_max, self.images_max);
        self.ask(json!({ "step": slot, "response": response, "calls": calls }), "step", |reply| {
            if field(reply, "lost").is_some() {
                return Ok(None);
            }
            let (reward, done) = (field(reply, "reward"), field(reply, "done"));
            let is_cut = field(reply, "cut").and_then(JsonPart::boolean).unwrap_or(false);
            match (
                messages(reply, most)?,
                reward.and_then(JsonPart::number),
                done.and_then(JsonPart::boolean),
            ) {
                (Some(messages), Some(reward), Some(done)) => {
                    let images = images_of(reply, images_max)?;
                    Ok(Some(Turn { messages, images, reward, done, is_cut }))
                }
                _ => Err(None),
            }
        })
    }

    /// Returns the reward of the whole episode in a slot, which is over; `None` if its worker has ended.
    ///
    /// Errors: as `reset`.
    pub fn end(&mut self, slot: usize) -> Result<Option<f64>> {
        self.pool.set_timeout(self.end_timeout);
        let reward = self.ask(json!({ "end": slot }), "end", |reply| {
            if field(reply, "lost").is_some() {
                return Ok(None);
            }
            field(reply, "reward").and_then(JsonPart::number).map(Some).ok_or(None)
        });
        self.pool.set_timeout(self.step_timeout);
        reward
    }

    /// Returns how often the worker was restarted.
    pub fn restarts(&self) -> u64 {
        self.pool.restarts()
    }

    /// Asks and reads the answer to `what`; `read` errs with words on it, or with none where it is no such answer.
    fn ask<T>(
        &mut self,
        request: impl Serialize,
        what: &str,
        read: impl FnOnce(JsonPart<'_>) -> std::result::Result<T, Option<String>>,
    ) -> Result<T> {
        let id = self.ids.next_id();
        let lines = self.pool.call(&[line(request, &id)]).remove(0).map_err(of_environment)?;
        let Ok(reply) = reply_to(&lines[0], &id) else {
            self.pool.discard(0);
            return Err(self.bad_reply("wrote a line that is no answer to its request"));
        };
        if let Some(raised) = field(reply, "raised").map(Raised::read) {
            let message = format!("environment `{}` raised {}", self.name, raised.head());
            let error = Error::new(slugs::TEXT_ENVIRONMENT_RAISED, message);
            let hint = match raised.kind() {
                "ContainerFault" => {
                    "its episode has no reward: run the command that failed by hand to see why"
                }
                _ => "fix the environment",
            };
            return Err(raised.facts(error).hint(hint));
        }
        if field(reply, "memory").is_some() {
            return Err(of_environment(self.pool.over_budget(0)));
        }
        if let Some(what) = string(reply, "bad") {
            return Err(self.bad_reply(&what));
        }
        let none = || format!("a line that is no answer to `{what}`");
        read(reply).map_err(|words| self.bad_reply(&words.unwrap_or_else(none)))
    }

    fn bad_reply(&self, what: &str) -> Error {
        let message = format!("environment `{}`: {what}", self.name);
        Error::new(slugs::TEXT_ENVIRONMENT_BAD_REPLY, message)
            .hint("reset(seed) returns messages, step(response) returns (messages, reward, done); messages are a string, a dict with `role` and `content`, or a list of these")
    }
}

impl EpisodesSpec {
    /// Returns the description that `HarborTasks` of `harbor.py` reads.
    fn tasks_to_json(&self) -> Value {
        let ContainerTasks { folders, engine, memory } = &self.tasks;
        json!({
            "folders": folders,
            "engine": engine,
            "memory_mb": memory.0 >> 20,
            "network": self.network == Network::Allow,
            "step_seconds": self.step_timeout.as_secs_f64(),
            "reset_seconds": self.reset_timeout.as_secs_f64(),
            // Four bytes a token, of the 32 that a reply may have.
            "output_bytes": self.reply.bytes / 8,
        })
    }

    /// Returns the description that `open_shape` of `shapes.py` reads.
    fn to_json(&self) -> Value {
        let mut what = match &self.of {
            EpisodesOf::Class { file, class } => json!({ "file": file, "class": class }),
            EpisodesOf::Functions => json!({}),
            EpisodesOf::Gymnasium { id } => json!({ "gymnasium": id }),
            EpisodesOf::OpenEnv { url } => {
                json!({ "openenv": url, "action": self.action, "timeout": self.step_timeout.as_secs_f64() })
            }
            EpisodesOf::Harbor => json!({ "harbor": self.tasks_to_json() }),
        };
        what["turn"] = json!([self.reply.messages, self.reply.bytes]);
        if let Some(ReplyImages { most, placeholder }) = &self.images {
            let (bytes, pixels) = (REPLY_IMAGE_BYTES_MAX, REPLY_IMAGE_PIXELS_MAX);
            what["images"] =
                json!({ "most": most, "bytes": bytes, "pixels": pixels, "placeholder": placeholder });
        }
        if self.has_rows {
            what["has_rows"] = json!(true);
        }
        if !self.tools.is_empty() {
            let place = |tool: &ToolFunction| json!([tool.file, tool.function]);
            what["tools"] = self.tools.iter().map(place).collect();
        }
        if !self.servers.is_empty() {
            what["servers"] = json!(self.servers);
        }
        if let Some(key) = &self.observation {
            what["observation"] = json!(key);
        }
        what
    }
}

/// Returns the messages of an answer; `None` where there are none.
///
/// Errors: words on more than `most`.
fn messages(reply: JsonPart<'_>, most: usize) -> std::result::Result<Option<Messages>, Option<String>> {
    let list = field(reply, "messages");
    let (Some(list), Some(count)) = (list, list.and_then(JsonPart::count)) else { return Ok(None) };
    if count > most {
        return Err(Some(format!("{count} messages, and {most} is the most")));
    }
    let mut all = Vec::with_capacity(count);
    let read = list.each(&mut |message| {
        all.push(message_of(message).ok_or(())?);
        Ok::<(), ()>(())
    });
    Ok(read.is_ok().then_some(all))
}

/// Returns the images of an answer, of at most `most`.
///
/// Errors: words on what is no image, and on too many or too large ones.
fn images_of(reply: JsonPart<'_>, most: usize) -> std::result::Result<Vec<Vec<u8>>, Option<String>> {
    let Some(list) = field(reply, "images") else { return Ok(Vec::new()) };
    let count = list.count().ok_or(None)?;
    if count > most {
        return Err(Some(format!("{count} images, and {most} is the most")));
    }
    let mut images = Vec::with_capacity(count);
    list.each(&mut |image| {
        let image = image.string().and_then(|text| STANDARD.decode(text).ok());
        let image = image.ok_or_else(|| Some("an image that is no text in base64".to_string()))?;
        if image.len() > REPLY_IMAGE_BYTES_MAX {
            return Err(Some(format!("an image of more than {REPLY_IMAGE_BYTES_MAX} bytes")));
        }
        images.push(image);
        Ok(())
    })?;
    Ok(images)
}

/// Reads a list of role and content.
fn message_of(message: JsonPart<'_>) -> Option<(String, String)> {
    let mut texts = Vec::with_capacity(2);
    // What follows is not read.
    let _ = message.each(&mut |text| {
        texts.push(text.string());
        if texts.len() < 2 { Ok(()) } else { Err(()) }
    });
    let content = texts.pop()??;
    Some((texts.pop()??, content))
}

/// Reads the first line of a worker: `{"ready": true}`, or `{"load": traceback}`.
fn check_loaded(name: &str, line: &str) -> Result<()> {
    let Some(raised) = field_of_first(line, "load").map(Raised::read) else { return Ok(()) };
    let message = format!("environment `{name}` does not load: {}", raised.head());
    let Words { slug, hint } = match raised.kind() {
        "TaskRefused" => Words {
            slug: "harbor-task-refused",
            hint: "leave the task out of the folder, or change what the error names",
        },
        "ContainerFault" => Words {
            slug: "container-engine-failed",
            hint: "run the command that the error names by hand to see why; environment.engine names another program",
        },
        _ => Words {
            slug: "text-environment-missing",
            hint: "import the file with the same interpreter to see why; `environment.python` names another",
        },
    };
    Err(raised.facts(Error::usage(slug, message)).hint(hint))
}

/// The slug and the hint of a failed environment.
struct Words {
    slug: &'static str,
    hint: &'static str,
}

/// Turns a pool's error about a reward into one about an environment.
fn of_environment(error: Error) -> Error {
    let Words { slug, hint } = match error.slug {
        slugs::REWARD_WORKER_TIMEOUT => Words {
            slug: slugs::TEXT_ENVIRONMENT_TIMEOUT,
            hint: "raise environment.step_timeout_ms, or make the environment return in time",
        },
        slugs::REWARD_WORKER_OVER_BUDGET => Words {
            slug: slugs::TEXT_ENVIRONMENT_OVER_BUDGET,
            hint: "raise environment.worker_memory, or lower environment.num_workers",
        },
        slugs::REWARD_WORKER_CRASHED | slugs::REWARD_WORKER_OOM_KILLED => Words {
            slug: "text-environment-crashed",
            hint: "run the environment alone to see why; a crash in native code may also be the limit environment.worker_memory",
        },
        slugs::REWARD_BAD_REPLY => Words {
            slug: slugs::TEXT_ENVIRONMENT_BAD_REPLY,
            hint: "an environment answers by what it returns, 1 MiB a turn at most; nothing of its own goes to the worker's pipes",
        },
        slugs::REWARD_WORKER_NOT_STARTED => Words {
            slug: "text-environment-missing",
            hint: "environment.python names the interpreter; without it: that of the virtual environment of plimsoll, of $VIRTUAL_ENV, or python3",
        },
        slugs::REWARD_SANDBOX_MISSING => Words {
            slug: "text-environment-missing",
            hint: "set environment.network = \"allow\" if the environment may reach the network",
        },
        _ => return error,
    };
    let message = error.message.replacen("reward `", "environment `", 1);
    let message = message.replace("took for one batch", "took for one turn");
    Error { slug, message, hints: vec![hint.to_string()], ..error }
}
