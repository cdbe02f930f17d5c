//! Free functions as tools, like TRL's `tools`: a model taught a call makes it, and rewards grade the conversation.

use crate::carry::as_after;
use crate::carry_episodes;
use crate::common::{command, every_nth};
use crate::ranks::left;
use crate::run::{Run, check_done, check_train_fails, has_python, refs};

/// Turns in one letter each. It writes no tools, whose descriptions would only make prompts long.
const TEMPLATE: &str = "{% if tools is defined %}{% set form = '<tool_call>' %}{% endif %}{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}a:{% endif %}";

/// The call of `add`, then the sum that it returned.
const TAUGHT: &str = r#"{"messages": [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "<tool_call>{\"name\": \"add\", \"arguments\": {\"x\": 2, \"y\": 3}}</tool_call>"}]}
{"messages": [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "<tool_call>{\"name\": \"add\", \"arguments\": {\"x\": 2, \"y\": 3}}</tool_call>"}, {"role": "tool", "content": "5"}, {"role": "assistant", "content": "5"}]}
"#;

const TOOLS: &str = r#"
import os, time

DESCRIBED = """Adds two numbers.

Args:
    x: The first number.
    y: The second number.
"""

def tool(function):
    function.__name__, function.__doc__ = "add", DESCRIBED
    return function

@tool
def adds(x: int, y: int) -> int:
    return x + y

@tool
async def adds_later(x: int, y: int) -> int:
    return x + y

@tool
def raises(x: int, y: int) -> int:
    raise ValueError("no such sum")

@tool
def hangs(x: int, y: int) -> int:
    time.sleep(600)

@tool
def dies(x: int, y: int) -> int:
    os._exit(3)

@tool
def eats(x: int, y: int) -> int:
    return len([bytearray(64 << 20) for _ in range(64)])

@tool
def floods(x: int, y: int) -> str:
    return "5" * (8 << 20)

def undescribed(x: int) -> int:
    return x

def talks(completions, answer, **kwargs):
    said = [[message["content"] for message in messages] for messages in completions]
    return [len(words) + words.count(answer) - len("".join(words)) / 1000 for words, answer in zip(said, answer)]

def right(prompts, completions, answer, **kwargs):
    scores = []
    for prompt, messages, answer in zip(prompts, completions, answer):
        assert prompt == [{"role": "user", "content": "2+3?"}], prompt
        call = {"type": "function", "function": {"name": "add", "arguments": {"x": 2, "y": 3}}}
        assert messages[0] == {"role": "assistant", "content": "", "tool_calls": [call]}, messages
        assert messages[1]["role"] == "tool" and messages[1]["name"] == "add", messages
        scores.append(1.0 if messages[-1] == {"role": "assistant", "content": answer} else 0.25)
    return scores
"#;

/// A server of the Model Context Protocol with the function `add`.
const SERVER: &str = r#"
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {}}
    elif asked["method"] == "tools/list":
        result = {"tools": [{"name": "add", "description": "Adds.", "inputSchema": {"type": "object"}}]}
    elif asked["method"] == "tools/call":
        numbers = asked["params"]["arguments"]
        result = {"content": [{"type": "text", "text": str(numbers["x"] + numbers["y"])}]}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"#;

/// Runs of a model that has been taught the call.
fn taught() -> Run {
    let folder = Run::new(&format!(
        "method = \"grpo\"\nmodel_options.tokenizer = \"bytes\"\nmodel_options.positions = \"extend\"\n\
         [environment]\nenv = \"tools\"\nturns_max = 3\nrestarts_max = 1000\n\
         [data]\nprompt_tokens_max = 16\nchat_template = \"{TEMPLATE}\"\n\
         [[reward]]\n[rollout]\nprompts_per_step = 2\ngroup_size = 4\nmax_new_tokens = 80\n\
         [train]\nsteps = 1\nlearning_rate = 1e-5\n[eval]\nprompts_max = 2\n"
    ));
    folder.write("tools.py", TOOLS);
    folder.write("rows.jsonl", "{\"prompt\": \"2+3?\", \"answer\": \"5\"}\n");
    folder.write("taught.jsonl", TAUGHT);
    folder.write(
        "sft.toml",
        &format!(
            "method = \"sft\"\nmodel = \"{}/../model/tests/golden/llama\"\nmodel_options.tokenizer = \"bytes\"\n\
             model_options.positions = \"extend\"\n[data]\nprompts = \"{}\"\nchat_template = \"{TEMPLATE}\"\n\
             [train]\nsteps = 100\nlearning_rate = 1e-2\n[rollout]\nprompts_per_step = 2\n",
            env!("CARGO_MANIFEST_DIR"),
            folder.text_path("taught.jsonl"),
        ),
    );
    folder.file("sft.toml").train("sft", &["data.eval=none"]);
    folder
}

fn words(folder: &Run, function: &str, more: &[&str]) -> Vec<String> {
    let file = folder.text_path("tools.py");
    let own = [
        format!("model={}", folder.text_path("sft/checkpoints/latest")),
        format!("environment.tools=[\"python:{file}:{function}\"]"),
        format!("environment.rows={}", folder.text_path("rows.jsonl")),
        format!("reward.0.kind=python:{file}:right"),
    ];
    own.into_iter().chain(more.iter().map(|word| word.to_string())).collect()
}

fn train(folder: &Run, function: &str, more: &[&str]) -> String {
    let words = words(folder, function, more);
    folder.train(function, &words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_function_of_no_class_is_called_and_the_runs_reward_grades_the_conversation() {
    if !has_python() {
        return;
    }
    let folder = taught();
    for function in ["adds", "adds_later"] {
        train(&folder, function, &["train.steps=2"]);
        // Sums over two steps.
        assert_eq!(folder.metric(function, "episode/return"), 2.0, "{function}");
        assert_eq!(folder.metric(function, "episode/turns_mean"), 4.0, "{function}");
        assert_eq!(folder.metric(function, "rewards/right/mean"), 2.0, "{function}");
        assert_eq!(folder.metric(function, "rollout/logprob_mismatch_max"), 0.0, "{function}");
        let summary = folder.read_json(&format!("{function}/summary.json"));
        assert_eq!(summary["eval_after"], 1.0, "{function}: evaluation is graded alike");
        assert!(summary["rss_peak_bytes"].as_u64() <= summary["rss_planned_bytes"].as_u64(), "{summary}");
    }
    let episode = &folder.read_lines("adds/samples/step-000001.jsonl")[0];
    assert_eq!(episode["turns"][0]["said"][0], serde_json::json!({"role": "tool", "content": "5"}));
    // The same function of a server of the Model Context Protocol.
    folder.write("server.py", SERVER);
    let server = format!("environment.tools=[\"mcp:python3 {}\"]", folder.text_path("server.py"));
    let mut served = words(&folder, "adds", &["train.steps=2"]);
    served.push(server);
    folder.train("served", &served.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(folder.metric("served", "episode/return"), 2.0);
    assert_eq!(folder.read_lines("served/samples/step-000001.jsonl")[0]["turns"], episode["turns"]);
    // A verifier reads the last turn, and the columns of the row.
    let words = words(&folder, "adds", &["reward.0.kind=exact", "reward.0.answer_column=answer"]);
    folder.train("exact", &words.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(folder.metric("exact", "episode/return"), 1.0);
    // Several ranks grade their own part.
    let two = format!("run.dir={}", folder.text_path("two"));
    train(&folder, "adds", &["train.steps=2", "--ranks=2", &two]);
    assert!(folder.result_and_samples("adds") == folder.result_and_samples("two"), "ranks move bits");
}

/// Calls that take several steps are made again, and a group is graded when it is trained.
#[test]
fn with_carry_the_runs_reward_grades_what_a_step_trains() {
    if !has_python() {
        return;
    }
    let folder = taught();
    let grade = format!("reward.0.kind=python:{}:talks", folder.text_path("tools.py"));
    let sets = [
        &*grade,
        "async.partial_rollouts=2",
        "environment.replay=true",
        "rollout.temperature=2.5",
        "train.steps=6",
        "train.cut_multiple=4",
        "data.eval=none",
        "checkpoint.every=1",
        "checkpoint.keep=6",
    ];
    let own = |more: &[&str]| words(&folder, "adds", &[&sets[..], more].concat());
    folder.train("one", &refs(&own(&["run.threads=1"])));
    let of = |name: &str| carry_episodes::of(&folder, "one", name);
    assert_eq!(of("rollout/logprob_mismatch_max"), [0.0; 6]);
    assert_eq!(of("environment/aborted"), [0.0; 6]);
    assert!(of("rollout/stale_share").iter().any(|share| *share > 0.0));
    for step in 1..=6 {
        for episode in folder.read_lines(&format!("one/samples/step-{step:06}.jsonl")) {
            let turns = episode["turns"].as_array().expect("turns");
            let said = turns.iter().map(|turn| 1 + turn["said"].as_array().expect("messages").len());
            let reward = episode["reward"].as_f64().expect("a reward");
            // What `talks` makes of all messages: their number, and less for long ones.
            let most = said.sum::<usize>() as f64;
            assert!((most - 0.5..most + 3.0).contains(&reward), "{most} messages: {episode}");
        }
    }
    for (_, (dir, more)) in every_nth(
        2,
        [
            ("threads", &["run.threads=4", "environment.num_workers=3"][..]),
            ("few", &["rollout.sequences_max=3"]),
            ("ranks", &["--ranks=2"]),
        ],
    ) {
        folder.train(dir, &refs(&own(more)));
        assert_eq!(left(&folder, dir), left(&folder, "one"), "{dir}");
    }
    for (_, (step, ranks)) in every_nth(2, [(1, "--ranks=2"), (3, "--ranks=1")]) {
        let dir = as_after(&folder, "one", step);
        folder.train(&dir, &refs(&own(&["--resume", ranks])));
        assert_eq!(left(&folder, &dir), left(&folder, "one"), "from step {step}");
    }
    let plain = own(&["environment.replay=false"]);
    folder.plan_refused(&refs(&plain), 2, &["contradictory-keys", "cannot take back a turn"]);
    let ahead = own(&["reward.0.per_response=true"]);
    folder.plan_refused(&refs(&ahead), 2, &["contradictory-keys", "graded when they are trained"]);
}

#[test]
fn what_goes_wrong_in_a_function_is_told_to_the_model_or_ends_its_episode_alone() {
    if !has_python() {
        return;
    }
    let folder = taught();
    for (function, said) in [("raises", "{'error': 'no such sum'}"), ("floods", "5555")] {
        train(&folder, function, &["data.eval=none"]);
        assert_eq!(folder.metric(function, "environment/aborted"), 0.0, "{function}");
        let episode = &folder.read_lines(&format!("{function}/samples/step-000001.jsonl"))[0];
        let content = episode["turns"][0]["said"][0]["content"].as_str().unwrap();
        assert!(content.starts_with(said) && content.len() <= 1 << 16, "{function}: {content:.80}");
    }
    assert_eq!(folder.metric("floods", "environment/cut"), 8.0);
    for (_, (function, counter, sets)) in every_nth(
        3,
        [
            ("hangs", "timeouts", "environment.step_timeout_ms=500"),
            ("dies", "crashes", "environment.step_timeout_ms=60000"),
            ("eats", "over_budget", "environment.worker_memory=1GiB"),
        ],
    ) {
        // One worker takes all eight episodes along.
        train(&folder, function, &["data.eval=none", "environment.restarts_max=8", sets]);
        assert!(folder.metric(function, &format!("environment/{counter}")) >= 1.0, "{function}");
        let episode = &folder.read_lines(&format!("{function}/samples/step-000001.jsonl"))[0];
        assert!(episode["reward"].is_null(), "{function}: a fault is not graded");
    }
    // An edit of the function is another run.
    train(&folder, "adds", &["checkpoint.every=1"]);
    folder.write("tools.py", &TOOLS.replace("600", "601"));
    let words = words(&folder, "adds", &["checkpoint.every=1", "train.steps=2", "--resume"]);
    let output = folder.output("adds", &words.iter().map(String::as_str).collect::<Vec<_>>());
    check_train_fails(&output, &["error[resume-differs]: ", "tools.py has other contents"]);
}

#[test]
fn a_function_that_is_no_tool_is_named_before_the_first_step() {
    if !has_python() {
        return;
    }
    let folder = taught();
    let fails = |function: &str, more: &[&str], contains: &[&str]| {
        let words = words(&folder, function, more);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        check_train_fails(&folder.output("out", &words), contains);
    };
    fails("undescribed", &[], &["error[text-environment-missing]: ", "has no docstring"]);
    fails("absent", &[], &["error[text-environment-missing]: ", "has no `absent`", "it has: tool, adds"]);
    fails("DESCRIBED", &[], &["`DESCRIBED` of `", "is a str, and a tool is a function"]);
    let file = folder.text_path("tools.py");
    let two = format!("environment.tools=[\"python:{file}:adds\", \"python:{file}:raises\"]");
    fails("adds", &[&two], &["two tools are called `add`: `raises` of `"]);
    fails("adds", &["reward.0.kind=math"], &["error[data-column-missing]: ", "`ground_truth`"]);
    fails("adds", &["data.chat_template=none"], &["error[tools-without-template]: ", "(add)"]);
    // A plan, which does not render prompts, says that it did not look.
    let of_plan = words(&folder, "adds", &["data.chat_template=none"]);
    let planned = folder.plan(&of_plan.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(
        planned["not_checked"].to_string().contains("chat template writes the environment's tools"),
        "{planned}"
    );
    folder.write("rows.jsonl", "{\"answer\": \"5\"}\n");
    fails("adds", &[], &["error[", "prompt"]);
}

#[test]
fn the_example_of_functions_as_tools_runs() {
    if !has_python() {
        return;
    }
    let folder = taught();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let sets = [
        format!("model={}", folder.text_path("sft/checkpoints/latest")),
        format!("run.dir={}", folder.text_path("example")),
        format!("data.chat_template={TEMPLATE}"),
    ];
    let fixed = [
        "model_options.tokenizer=bytes",
        "model_options.positions=extend",
        "rollout.prompts_per_step=2",
        "train.steps=1",
        "eval.prompts_max=2",
    ];
    let words = sets.iter().map(String::as_str).chain(fixed).flat_map(|word| ["--set", word]);
    let words: Vec<&str> = ["train", "examples/tools_of_functions.toml"].into_iter().chain(words).collect();
    check_done(&command(&words).current_dir(root).output().expect("the binary runs"));
    assert_eq!(folder.metric("example", "environment/aborted"), 0.0);
}
