//! Environments that Python plays, in each of their forms: tools, Gymnasium, OpenEnv.

use plimsoll_base::{Error, Result};
use plimsoll_text::Message;
use plimsoll_textenv::{Hosts, Job, Kind, ReplyImages, Said, Settings, Start, ToolFunction};
use plimsoll_worker::Network;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// One episode at a time, in one slot.
pub(crate) struct Table(pub(crate) Hosts);

impl Table {
    pub(crate) fn open(env: &str, settings: &Settings) -> Result<Table> {
        Ok(Table(Hosts::start(&Kind::parse(env).unwrap(), settings)?))
    }

    pub(crate) fn ask(&mut self, job: Job) -> Result<Said> {
        self.0.ask(0, job);
        let reply = self.0.take(true).expect("there is a reply to each job");
        reply.outcome.map(|said| said.expect("its worker is alive"))
    }

    pub(crate) fn reset(&mut self, start: Start) -> Vec<Message> {
        self.ask(Job::Reset(start)).unwrap().messages
    }

    pub(crate) fn step(&mut self, response: &str, calls: &[Value]) -> Said {
        self.ask(Job::Step(response.to_string(), calls.to_vec())).unwrap()
    }
}

pub(crate) fn example() -> String {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/sums_by_tools.py");
    format!("python:{}:SumsByTools", file.display())
}

pub(crate) fn call(name: &str, arguments: Value) -> Value {
    json!({ "name": name, "arguments": arguments })
}

pub(crate) fn tool(content: &str) -> Message {
    Message::new("tool", content)
}

/// The interpreter with numpy, gymnasium and websockets, if this machine has one.
fn other_python() -> Option<String> {
    let python = std::env::var("PLIMSOLL_TEST_PYTHON").ok();
    if python.is_none() {
        eprintln!("skipped: PLIMSOLL_TEST_PYTHON names no interpreter with gymnasium and websockets");
    }
    python
}

pub(crate) fn write(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.py");
    std::fs::write(&file, text).unwrap();
    (folder, file.display().to_string())
}

#[test]
fn a_class_of_tools_is_described_called_and_scored_at_the_end() {
    let mut table = Table::open(&example(), &crate::settings()).unwrap();
    let about = table.0.about().clone();
    assert!(about.scores_at_end);
    // Alphabetical, in the form in which transformers describes a function.
    assert_eq!(
        about.tools[0],
        json!({"type": "function", "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {"type": "object", "properties": {
                "x": {"type": "integer", "description": "The first number."},
                "y": {"type": "integer", "description": "The second number."},
            }, "required": ["x", "y"]},
            "return": {"type": "integer", "description": "The sum."},
        }})
    );
    assert_eq!(about.tools[1]["function"]["name"], "answer");

    let first = table.reset(Start::train(3, 5));
    assert_eq!(first, table.reset(Start::train(3, 5)), "equal starts, equal messages");
    let numbers: Vec<i64> =
        first[0].content.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    let (a, b) = (numbers[0], numbers[1]);
    let said = table.step("", &[call("add", json!({ "x": a, "y": b }))]);
    assert_eq!(
        said,
        Said { messages: vec![tool(&(a + b).to_string())], reward: 0.0, done: false, ..Said::default() }
    );
    // A wrong call is an answer, not a fault, as in TRL.
    let said = table.step("", &[call("divide", json!({})), call("add", json!({ "x": 1 }))]);
    assert_eq!(said.messages[0], tool("{'error': 'Tool divide not found.'}"));
    assert!(said.messages[1].content.contains("missing 1 required positional argument: 'y'"), "{said:?}");
    assert_eq!(table.ask(Job::End).unwrap().reward, 0.0, "cut before its answer");
    table.step("", &[call("answer", json!({ "value": a + b }))]);
    assert_eq!(
        table.step("Done.", &[]),
        Said { messages: vec![], reward: 0.0, done: true, ..Said::default() }
    );
    assert_eq!(table.ask(Job::End).unwrap().reward, 1.0);
}

const FUNCTIONS: &str = r#"
def add(x: int, y: int = 1) -> int:
    """Adds.

    Args:
        x: One.
        y: Other.

    Returns:
        The sum.
    """
    return x + y

async def later(x: int) -> int:
    """Waits.

    Args:
        x: One.
    """
    return x

def untyped(x):
    """U.

    Args:
        x: One.
    """

def untold(x: int):
    """U."""

def silent(x: int): pass

def placed(*x: int):
    """U."""

short = lambda x: x

class Sums:
    reward = 0.0
    def reset(self, n): return None
    def twice(self, n: int) -> int:
        """T."""
        return 2 * n

class Adds(Sums):
    def add(self):
        """A."""

class Plain:
    def reset(self, seed): return 'x'
    def step(self, r): return 'x', 0, True
"#;

/// A file with functions and a row, and the settings of an environment that has some of the functions.
pub(crate) fn functions(names: &[&str]) -> (tempfile::TempDir, Settings) {
    let (folder, file) = write(FUNCTIONS);
    let rows = folder.path().join("rows.jsonl");
    std::fs::write(&rows, "{\"prompt\": \"Add.\", \"n\": 3}\n").unwrap();
    let tool = |name: &&str| ToolFunction { file: file.clone().into(), function: name.to_string() };
    let tools = names.iter().map(tool).collect();
    (folder, Settings { tools, rows: Some(rows), ..crate::settings() })
}

#[test]
fn functions_of_no_class_are_described_and_called_and_leave_the_reward_to_the_run() {
    let (_folder, settings) = functions(&["later", "add"]);
    let mut table = Table::open("tools", &settings).unwrap();
    let about = table.0.about().clone();
    assert!(!about.scores_at_end);
    // In their order, as TRL lists them.
    let of_add = json!({"type": "function", "function": {
        "name": "add", "description": "Adds.",
        "parameters": {"type": "object", "properties": {
            "x": {"type": "integer", "description": "One."}, "y": {"type": "integer", "description": "Other."},
        }, "required": ["x"]},
        "return": {"type": "integer", "description": "The sum."},
    }});
    assert_eq!((&about.tools[0]["function"]["name"], &about.tools[1]), (&json!("later"), &of_add));
    let begun = table.ask(Job::Reset(Start::train(0, 0))).unwrap();
    assert_eq!(begun.messages, [Message::new("user", "Add.")]);
    assert_eq!(Value::Object(begun.columns), json!({"n": 3}), "the row's columns are for rewards");
    let said = table.step("", &[call("add", json!({ "x": 2 })), call("later", json!({ "x": 7 }))]);
    assert_eq!((said.messages, said.done), (vec![tool("3"), tool("7")], false));
    let said = table.step("", &[call("add", json!({ "z": 2 })), call("twice", json!({}))]);
    assert!(said.messages[0].content.contains("unexpected keyword argument 'z'"), "{said:?}");
    assert_eq!(said.messages[1], tool("{'error': 'Tool twice not found.'}"));
    assert!(table.step("3", &[]).done);
}

#[test]
fn functions_come_before_the_methods_of_a_class() {
    let (folder, settings) = functions(&["add"]);
    let file = folder.path().join("mine.py");
    let mut table = Table::open(&format!("python:{}:Sums", file.display()), &settings).unwrap();
    let names: Vec<Value> =
        table.0.about().tools.iter().map(|tool| tool["function"]["name"].clone()).collect();
    assert_eq!(names, ["add", "twice"]);
    table.reset(Start::train(0, 0));
    let said = table.step("", &[call("add", json!({ "x": 2 })), call("twice", json!({ "n": 2 }))]);
    assert_eq!(said.messages, [tool("3"), tool("4")]);
}

#[test]
fn functions_that_a_model_cannot_be_told_about_are_refused() {
    for (name, words) in [
        ("absent", "has no `absent`, and a tool is a function; it has: add, later, untyped"),
        ("Sums", "is a type, and a tool is a function"),
        ("short", "`short` is a lambda"),
        ("untyped", "the argument `x` of the tool `untyped` has no type hint"),
        ("untold", "does not describe its argument `x`"),
        ("silent", "the tool `silent` has no docstring"),
        ("placed", "the argument `x` of the tool `placed` is passed by its place"),
    ] {
        let (_folder, settings) = functions(&["add", name]);
        let error = refusal("tools", &settings);
        assert_eq!(error.slug, "text-environment-missing", "{error}");
        assert!(error.message.contains(words), "{name}: {error}");
    }
    let (folder, settings) = functions(&["add"]);
    let class = |name: &str| format!("python:{}:{name}", folder.path().join("mine.py").display());
    assert!(refusal(&class("Adds"), &settings).message.contains("two tools are called `add`"));
    let bare = Settings { rows: None, ..settings.clone() };
    assert!(refusal(&class("Plain"), &bare).message.contains("environment.tools are for a class"));
    let missing = ToolFunction { file: "absent.py".into(), function: "f".into() };
    let error = refusal("tools", &Settings { tools: vec![missing], ..settings });
    assert!(error.message.contains("`absent.py` is not a file"), "{error}");
}

pub(crate) fn refusal(env: &str, settings: &Settings) -> Error {
    Table::open(env, settings).err().expect("it does not start")
}

#[test]
fn what_is_no_environment_is_refused_before_an_episode() {
    let (_folder, file) = write(
        "class NoReset:\n    def step(self, r): pass\n\
         class NoReward:\n    def reset(self): pass\n    def tool(self): pass\n\
         class Plain:\n    def reset(self, seed): return 'x'\n    def step(self, r): return 'x', 0, True\n\
         class Image:\n    observation_space = action_space = 3\n    def reset(self, seed): pass\n",
    );
    for (class, words) in [
        ("NoReset", "no method `reset`"),
        ("NoReward", "no method `step`, nor `get_reward`"),
        ("Image", "only Text spaces"),
        ("Absent", "it has: NoReset, NoReward, Plain, Image"),
    ] {
        let error = refusal(&format!("python:{file}:{class}"), &crate::settings());
        assert_eq!(error.slug, "text-environment-missing", "{error}");
        assert!(error.message.contains(words), "{class}: {error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.jsonl");
    std::fs::write(&rows, "{\"a\": 1}\n").unwrap();
    let error = refusal(&format!("python:{file}:Plain"), &Settings { rows: Some(rows), ..crate::settings() });
    assert!(error.message.contains("this one has another form"), "{error}");
}

#[test]
fn a_gymnasium_environment_of_text_is_played_in_words() {
    let Some(python) = other_python() else { return };
    let (_folder, file) = write(
        "import gymnasium\nfrom gymnasium.spaces import Text\n\
         class Echo(gymnasium.Env):\n\
         \x20   observation_space = action_space = Text(100)\n\
         \x20   def reset(self, *, seed=None, options=None):\n\
         \x20       super().reset(seed=seed)\n\
         \x20       self.left = 2\n\
         \x20       return f'Say {self.np_random.integers(10)}.', {}\n\
         \x20   def step(self, action):\n\
         \x20       self.left -= 1\n\
         \x20       return f'You said {action}.', 0.5, self.left == 0, False, {}\n",
    );
    let settings = Settings { python: Some(python), ..crate::settings() };
    let mut table = Table::open(&format!("python:{file}:Echo"), &settings).unwrap();
    let first = table.reset(Start::train(0, 0));
    assert_eq!(first, table.reset(Start::train(0, 0)));
    assert!(first[0].content.starts_with("Say "));
    let said = table.step("five", &[]);
    assert_eq!(
        said,
        Said {
            messages: vec![Message::new("user", "You said five.")],
            reward: 0.5,
            done: false,
            ..Said::default()
        }
    );
    assert_eq!(table.step("six", &[]), Said { messages: vec![], reward: 0.5, done: true, ..Said::default() });
    // By its id: registered, but of numbers.
    let error = refusal("gym:CartPole-v1", &settings);
    assert!(error.message.contains("only Text spaces"), "{error}");
}

/// A server that speaks as OpenEnv's does, with the two kinds of environment.
struct Server {
    process: Child,
    port: String,
}

impl Server {
    fn start(python: &str) -> Server {
        let program = include_str!("openenv_server.py");
        let mut command = Command::new(python);
        let mut process = command
            .args(["-c", program])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the interpreter starts");
        let mut port = String::new();
        BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut port).unwrap();
        Server { process, port: port.trim().to_string() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_server_of_openenv_is_played_by_its_messages_or_its_tools() {
    let Some(python) = other_python() else { return };
    let server = Server::start(&python);
    let settings = Settings { python: Some(python), network: Network::Allow, ..crate::settings() };
    let env = |name: &str| format!("openenv:http://127.0.0.1:{}/{name}", server.port);

    let mut echo = Table::open(&env("echo"), &settings).unwrap();
    assert!(echo.0.about().tools.is_empty() && !echo.0.about().scores_at_end);
    let first = echo.reset(Start::train(0, 0));
    assert!(first[0].content.starts_with("ready, seed "), "{first:?}");
    let said = echo.step("hello", &[]);
    assert_eq!(
        said,
        Said { messages: vec![Message::new("user", "hello")], reward: 0.5, done: false, ..Said::default() }
    );
    assert_eq!(echo.step("bye", &[]), Said { messages: vec![], reward: 0.5, done: true, ..Said::default() });

    let other = Settings { action: "code".into(), observation: Some("length".into()), ..settings.clone() };
    let mut refused = Table::open(&env("echo"), &other).unwrap();
    refused.reset(Start::train(0, 0));
    let error = refused.ask(Job::Step("x".into(), vec![])).unwrap_err();
    assert_eq!(error.slug, "text-environment-raised");
    assert!(error.message.contains("the server refused `step`: no `message`"), "{error}");

    let mut calc = Table::open(&env("calc"), &settings).unwrap();
    assert_eq!(calc.0.about().tools[0]["function"]["name"], "add");
    assert_eq!(calc.reset(Start::train(0, 0)), [Message::new("user", "Begin.")]);
    let said = calc.step("", &[call("add", json!({ "a": 2, "b": 40 })), call("no", json!({}))]);
    assert_eq!(said.messages[0], tool("42"));
    assert!(said.messages[1].content.contains("tool_not_found"), "{said:?}");
    assert!(!said.done && said.reward == 1.0);
    assert!(calc.step("42", &[]).done);

    let error = refusal("openenv:http://127.0.0.1:1", &settings);
    assert!(error.message.contains("Connection refused"), "{error}");
}

/// The name of an object, `<PIL.Image ...>`, was the result.
#[test]
fn r_a_tool_that_returns_an_image_is_refused_by_name() {
    let (_folder, file) = write(
        r#"
class Draws:
    reward = 0.0
    def reset(self): return "Say."
    def look(self, how: str):
        """Looks.

        Args:
            how: As what.
        """
        kind = type("Image", (), {"__module__": "PIL.Image"})
        parts = [{"type": "text", "text": "a"}, {"type": "image", "image": 1}]
        return {"object": kind(), "heir": type("Png", (kind,), {})(), "parts": parts, "text": "a"}[how]
"#,
    );
    let mut table = Table::open(&format!("python:{file}:Draws"), &crate::settings()).unwrap();
    for how in ["object", "heir", "parts"] {
        table.reset(Start::train(0, 0));
        let error =
            table.ask(Job::Step(String::new(), vec![call("look", json!({ "how": how }))])).unwrap_err();
        assert_eq!(error.slug, "text-environment-raised");
        assert!(error.message.contains("environment.images_max = 0 takes none"), "{how}: {error}");
    }
    table.reset(Start::train(0, 0));
    assert_eq!(table.step("", &[call("look", json!({ "how": "text" }))]).messages, [tool("a")]);
}

#[test]
fn images_of_tools_are_files_with_a_place_in_the_text() {
    let (_folder, file) = write(
        r#"
import io

class Image:
    """What Pillow has."""

    width, height, mode = 4, 3, "RGB"

    def save(self, out, form, **how):
        out.write(form.encode())

Image.__module__ = "PIL.Image"

class ToolResponse:
    text, image = "c", [b"verl"]

class Draws:
    reward = 0.0
    def reset(self): return "Say."
    def look(self, how: str):
        """Looks.

        Args:
            how: As what.
        """
        large = Image()
        large.width = 1 << 23
        uri = {"type": "image_url", "image_url": {"url": "data:image/png;base64,dXJp"}}
        parts = [{"type": "text", "text": "a"}, {"type": "image", "image": Image()}, "b", uri]
        odd = [{"type": "image", "image": "/etc/passwd"}]
        every = {"object": Image(), "parts": parts, "response": ToolResponse(), "large": large, "odd": odd}
        return {**every, "long": {"type": "image", "bytes": b"x" * (3 << 20)}, "many": [Image()] * 3}[how]
"#,
    );
    let images = Some(ReplyImages { most: 2, placeholder: "<I>".into() });
    let settings = Settings { images, ..crate::settings() };
    let mut table = Table::open(&format!("python:{file}:Draws"), &settings).unwrap();
    let ask = |table: &mut Table, how: &str| {
        table.reset(Start::train(0, 0));
        table.ask(Job::Step(String::new(), vec![call("look", json!({ "how": how }))]))
    };
    for (how, text, files) in [
        ("object", "<I>", &["PNG"][..]),
        ("parts", "a<I>b<I>", &["PNG", "uri"]),
        ("response", "<I>c", &["verl"]),
    ] {
        let said = ask(&mut table, how).unwrap();
        assert_eq!(said.messages, [tool(text)], "{how}");
        assert_eq!(
            said.images,
            files.iter().map(|file| file.as_bytes().to_vec()).collect::<Vec<_>>(),
            "{how}"
        );
    }
    for (how, words) in [
        ("large", "8388608 x 3 pixels"),
        ("odd", "that is no image of Pillow"),
        ("long", "an image of 3145728 bytes"),
        ("many", "3 images in an answer"),
    ] {
        let error = ask(&mut table, how).unwrap_err();
        assert!(error.to_string().contains(words), "{how}: {error}");
    }
}

#[test]
fn long_and_odd_answers_are_cut_or_refused_before_they_are_sent() {
    let (_folder, file) = write(ANSWERS);
    let mut table = Table::open(&format!("python:{file}:Answers"), &crate::settings()).unwrap();
    let mut step = |which: &str| {
        table.reset(Start::train(0, 0));
        table.ask(Job::Step(which.to_string(), Vec::new()))
    };
    // 128 tokens: 32 bytes each, and a message for 4 of them.
    let said = step("long").unwrap();
    assert!(
        said.is_cut && said.messages[0].content == "7".repeat(4096),
        "{}",
        said.messages[0].content.len()
    );
    let said = step("wide").unwrap();
    let lengths: Vec<usize> = said.messages.iter().map(|message| message.content.len()).collect();
    assert_eq!((lengths, said.is_cut), (vec![4000, 95, 0], true), "characters are whole");
    let said = step("most").unwrap();
    assert_eq!((said.messages.len(), said.is_cut, said.reward), (32, false, f64::from(f32::MAX)));
    for (which, contains) in [
        ("many", "step said 33 messages; environment.turn_tokens_max has room for 32"),
        ("role", "a role of 33 characters; at most 32"),
        ("large", "the reward is 1e+300; the largest is 3.403e+38"),
        ("small", "the reward is -3.5e+38"),
        ("half", "surrogates not allowed"),
    ] {
        let error = step(which).unwrap_err();
        assert_eq!(error.slug, "text-environment-bad-reply");
        assert!(error.message.contains(contains), "{which}: {error}");
    }
    let error = step("raise").unwrap_err();
    assert_eq!(error.slug, "text-environment-raised");
    assert!(error.message.contains("\\ud800"), "{error}");
    // All in one worker, which lives.
    assert_eq!(step("a").unwrap(), Said::words("a"));
}

const ANSWERS: &str = r#"
class Answers:
    def reset(self, seed): return "Say."
    def step(self, which):
        if which == "raise": raise ValueError("\ud800")
        said = {
            "long": "7" * 100_000,
            "wide": ["7" * 4000, "\u00e9\u4e00" * 40, "7"],
            "most": ["7"] * 32,
            "many": ["7"] * 33,
            "role": {"role": "r" * 33, "content": "7"},
            "half": "7\ud800",
        }.get(which, which)
        reward = {"most": 3.4028234663852886e38, "large": 1e300, "small": -3.5e38}.get(which, 0.0)
        return said, reward, False
"#;
