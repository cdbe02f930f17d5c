//! Agents that own their loop: programs that play a run's episodes over HTTP, what their conversations become, and what
//! becomes of agents that do not behave.

use crate::common::{python_with, text};

use crate::run::{Run, check_done, check_train_fails, has_python};
use serde_json::Value;
use std::process::Output;

/// Asks for a sum, twice after a wrong answer. A word on its command line says what else it does.
const AGENT: &str = r#"
import json, os, random, sys, threading, time, urllib.error, urllib.request

MODE = sys.argv[1]
if "PLIMSOLL_URL" in os.environ:
    URL, TOKEN = os.environ["PLIMSOLL_URL"], os.environ["PLIMSOLL_TOKEN"]
else:
    for _ in range(1200):
        if os.path.exists(sys.argv[2]):
            break
        time.sleep(0.05)
    told = json.load(open(sys.argv[2]))
    URL, TOKEN = told["url"], told["token"]

def post(address, body, token=TOKEN):
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, headers)) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.loads(refusal.read() or b"null")

def chat(episode, messages, **more):
    return post(episode["base_url"] + "/chat/completions", {"messages": messages, **more}, episode["token"])

def report(episode, body):
    return post(f"{URL}/v1/episodes/{episode['id']}/reward", body, episode["token"])

def tell(what, answer):
    print(what, answer[0], answer[1]["error"]["code"] if "error" in (answer[1] or {}) else "ok", flush=True)

def play(episode):
    draw = random.Random(episode["seed"])
    a, b = draw.randint(100, 999), draw.randint(100, 999)
    question, messages = {"role": "user", "content": f"{a}+{b}="}, []
    for turn in range(2):
        messages.append(question)
        if MODE == "rewrites" and turn == 1:
            messages = [question, {"role": "assistant", "content": "1"}, question]
        if MODE == "slow":
            time.sleep(0.002 * (a % 5))
        status, answer = chat(episode, messages)
        if status != 200:
            tell("chat", (status, answer))
            return -1.0
        said = answer["choices"][0]["message"]
        if said["content"] == str(a + b):
            return 1.0
        messages.append({"role": "assistant", "content": said["content"], "refusal": None})
    if MODE == "again":
        # The same place once more, two responses at a time.
        tell("again", chat(episode, messages[:1], n=2))
    return 0.0

TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}

def chats(episode):
    """Three turns under a chat template, with a tool's result between them; answers go back as they came."""
    messages = [{"role": "user", "content": f"Look. {episode['seed']}"}]
    for turn in range(3):
        status, answer = chat(episode, messages, tools=[TOOL], stream=False)
        if status != 200:
            tell("chat", (status, answer))
            return 0.0
        said = answer["choices"][0]["message"]
        messages.append({key: value for key, value in said.items() if value is not None})
        messages.append({"role": "tool", "content": f"seen {turn}", "tool_call_id": "x"})
    return float(len(said["content"] or "") % 3)

def work():
    while True:
        status, episode = post(URL + "/v1/episodes", {"agent": os.environ.get("PLIMSOLL_AGENT")})
        if status == 204:
            continue
        if status != 200:
            return
        if MODE == "silent" and episode["index"] % 3 == 1 and episode["member"] == 0:
            continue
        if MODE == "dies" and episode["index"] % 3 == 1 and episode["member"] == 0:
            chat(episode, [{"role": "user", "content": "1+1="}])
            os.abort()
        if MODE == "gives-up" and episode["member"] == 0:
            report(episode, {"error": "the tool is gone"})
            continue
        if MODE == "mute":
            report(episode, {"reward": 1.0})
            continue
        report(episode, {"reward": chats(episode) if MODE == "chats" else play(episode)})
        if MODE == "once":
            os._exit(0)

if MODE == "hoards":
    # One agent that holds what it can: claims and conversations that it never sends to their end.
    import socket
    host, port = URL.split("//")[1].split(":")
    _, mine = post(URL + "/v1/episodes", {"agent": "hoarder"})
    def half(path, token):
        link = socket.create_connection((host, int(port)))
        link.sendall(
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nContent-Length: 500\r\n\r\n{".encode()
        )
        return link
    chat_path = f"/episodes/{mine['id']}/v1/chat/completions"
    hoard = [half("/v1/episodes", TOKEN) for _ in range(150)] + [half(chat_path, mine["token"]) for _ in range(150)]
    report(mine, {"error": "not played"})
if MODE == "broken":
    sys.exit("no such module")
if MODE == "absent":
    time.sleep(600)
threads = [threading.Thread(target=work) for _ in range(1 if MODE == "once" else 8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"#;

const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[environment]
env = "http-agent"
network = "allow"
turns_max = 2
turn_tokens_max = 8
[data]
prompt_tokens_max = 8
[rollout]
prompts_per_step = 6
group_size = 4
max_new_tokens = 5
[train]
steps = 2
learning_rate = 1e-4
[eval]
prompts_max = 8
"#;

fn folder() -> Option<Run> {
    if !has_python() {
        return None;
    }
    let folder = Run::new(RUN);
    folder.write("agent.py", AGENT);
    Some(folder)
}

fn train(folder: &Run, dir: &str, mode: &str, sets: &[&str]) -> Output {
    let command =
        format!("environment.command=[\"python3\", \"{}\", \"{mode}\"]", folder.text_path("agent.py"));
    folder.output(dir, &[&[command.as_str()], sets].concat())
}

#[test]
fn what_an_agent_was_answered_is_trained_token_for_token_whoever_plays_it() {
    let Some(folder) = folder() else { return };
    let said = check_done(&train(&folder, "one", "plays", &[]));
    assert!(said.contains("agents: `python3 "), "{said}");
    let several = ["environment.num_workers=3", "rollout.sequences_max=5"];
    check_done(&train(&folder, "several", "slow", &several));
    assert!(
        folder.result_and_samples("one") == folder.result_and_samples("several"),
        "who plays decides bits"
    );
    for (method, sets) in [("ppo", &["method=ppo", "loss.kl_coef=0.05"][..]), ("gspo", &["method=gspo"])] {
        check_done(&train(&folder, method, "plays", sets));
        assert_eq!(folder.metric(method, "rollout/logprob_mismatch_max"), 0.0, "{method}");
    }
    assert_eq!(folder.metric("one", "rollout/logprob_mismatch_max"), 0.0);
    assert_eq!(folder.metric("one", "environment/episodes"), 48.0);
    assert_eq!(folder.metric("one", "environment/aborted"), 0.0);
    let summary = folder.read_json("one/summary.json");
    assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
    assert!(summary["rss_peak_bytes"].as_u64() <= summary["rss_planned_bytes"].as_u64(), "{summary}");
    let episodes = folder.read_lines("one/samples/step-000001.jsonl");
    let mut seconds = 0;
    for episode in &episodes {
        let turns = episode["turns"].as_array().unwrap();
        let mask: Vec<u64> =
            episode["mask"].as_array().unwrap().iter().map(|m| m.as_u64().unwrap()).collect();
        assert!(episode["branches"].is_null() && episode["reward"].is_number(), "{episode}");
        if turns.len() == 2 {
            // The question is asked again in eight tokens, which were not drawn.
            let [end, start] =
                [&turns[0]["tokens"][1], &turns[1]["tokens"][0]].map(|n| n.as_u64().unwrap() as usize);
            assert_eq!(start - end, 8);
            assert!(mask[end..start].iter().all(|&m| m == 0), "{episode}");
            assert_eq!(turns[0]["said"][0], episode["messages"][0]);
            seconds += 1;
        }
        assert_eq!(mask.iter().sum::<u64>() as usize, turns.iter().map(logprobs).sum::<usize>());
    }
    assert!(seconds > 3, "some sums are wrong");
}

fn logprobs(turn: &Value) -> usize {
    turn["logprobs"].as_array().unwrap().len()
}

#[test]
fn a_rewritten_conversation_is_a_branch_where_the_plan_has_room_for_one() {
    let Some(folder) = folder() else { return };
    let branches = ["environment.branches_max=2", "rollout.group_size=8"];
    check_done(&train(&folder, "two", "rewrites", &branches));
    assert_eq!(folder.metric("two", "rollout/logprob_mismatch_max"), 0.0);
    let episodes = folder.read_lines("two/samples/step-000001.jsonl");
    let branched: Vec<&Value> = episodes.iter().filter(|e| e["branches"].is_array()).collect();
    assert!(!branched.is_empty(), "some sums are wrong");
    for episode in branched {
        let branch = &episode["branches"][0];
        let turn = &episode["turns"][1];
        assert_eq!(turn["branch"], 1);
        // The prompt is longer than the plan's: its rest is context.
        let start = turn["tokens"][0].as_u64().unwrap() as usize;
        assert_eq!(start, 9, "{episode}");
        let mask = branch["mask"].as_array().unwrap();
        assert!(mask[..start].iter().all(|m| m == 0) && mask[start..].iter().all(|m| m == 1), "{episode}");
        assert!(episode["mask"].as_array().unwrap().iter().all(|m| m == 1));
    }
    // Without room the request is refused, and what was answered before is trained.
    check_done(&train(&folder, "one", "rewrites", &[]));
    let log = text(&folder.read("one/agents.log"));
    assert!(log.contains("chat 400 agent-limit"), "{log}");
    assert!(folder.metric("one", "environment/truncated") >= 1.0);
    assert_eq!(folder.metric("one", "environment/aborted"), 0.0);
    // Three responses more are beyond turns_max, and with room for them they are branches.
    check_done(&train(&folder, "again", "again", &["environment.branches_max=2"]));
    let log = text(&folder.read("again/agents.log"));
    assert!(log.contains("again 400 agent-limit"), "{log}");
    let room = ["environment.turns_max=4", "environment.branches_max=3"];
    check_done(&train(&folder, "wide", "again", &room));
    assert!(text(&folder.read("wide/agents.log")).contains("again 200 ok"));
    assert_eq!(folder.metric("wide", "rollout/logprob_mismatch_max"), 0.0);
}

/// A model of random weights, whose answers are bytes of all kinds.
#[test]
fn answers_under_a_chat_template_are_never_tokenized_again() {
    let Some(folder) = folder() else { return };
    let template = "{% for t in tools %}{{ t.function.name }}<tool_call> {% endfor %}{% for m in messages %}<bos>{{ m.role }}: {{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<bos>assistant: {% endif %}";
    folder.write("chat.jinja", template);
    let template = format!("data.chat_template={}", folder.text_path("chat.jinja"));
    let sets = [
        concat!("model=", env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden/llama"),
        "model_options.tokenizer=bytes",
        "model_options.positions=extend",
        template.as_str(),
        "data.prompt_tokens_max=96",
        "environment.turns_max=3",
        "environment.turn_tokens_max=64",
        "rollout.max_new_tokens=12",
        "rollout.prompts_per_step=2",
        "data.eval=none",
    ];
    check_done(&train(&folder, "out", "chats", &sets));
    assert_eq!(folder.metric("out", "rollout/logprob_mismatch_max"), 0.0);
    let episodes = folder.read_lines("out/samples/step-000001.jsonl");
    assert_eq!(episodes.len(), 8);
    for episode in &episodes {
        let turns = episode["turns"].as_array().unwrap();
        assert!(turns.len() == 3 && episode["branches"].is_null(), "one sequence: {episode}");
        assert_eq!(turns[0]["said"][0]["content"], "seen 0");
        let drawn: usize = turns.iter().map(logprobs).sum();
        let mask = episode["mask"].as_array().unwrap();
        assert!(drawn < mask.len() && mask.iter().filter(|&m| m == 1).count() == drawn, "{episode}");
    }
}

#[test]
fn the_example_with_tools_plays_through_openais_client() {
    let (Some(folder), Some(python)) = (folder(), python_with("openai")) else { return };
    let template = "{% for t in tools %}{{ t.function.name }}<tool_call> {% endfor %}{% for m in messages %}<bos>{{ m.role }}: {{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<bos>assistant: {% endif %}";
    folder.write("chat.jinja", template);
    let template = format!("data.chat_template={}", folder.text_path("chat.jinja"));
    let agent = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/agent_with_tools.py");
    let command = format!("environment.command=[\"{python}\", \"{agent}\"]");
    let sets = [
        command.as_str(),
        concat!("model=", env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden/llama"),
        "model_options.tokenizer=bytes",
        "model_options.positions=extend",
        template.as_str(),
        "data.prompt_tokens_max=160",
        "environment.turns_max=4",
        "environment.turn_tokens_max=64",
        "environment.restarts_max=0",
        "rollout.max_new_tokens=8",
        "rollout.prompts_per_step=8",
        "train.dead_steps_max=0",
        "data.eval=none",
    ];
    check_done(&folder.output("out", &sets));
    assert_eq!(folder.metric("out", "rollout/logprob_mismatch_max"), 0.0);
    assert_eq!(folder.metric("out", "environment/episodes"), 64.0);
    assert_eq!(folder.metric("out", "environment/aborted"), 0.0);
}

#[test]
fn agents_that_fail_cost_their_episodes_and_too_many_end_the_run() {
    let Some(folder) = folder() else { return };
    let loose = ["environment.restarts_max=1000", "data.eval=none", "train.steps=1"];
    let silent = [&loose[..], &["environment.step_timeout_ms=1500"]].concat();
    check_done(&train(&folder, "silent", "silent", &silent));
    // Others may be slow too, on a machine that is busy.
    assert!(folder.metric("silent", "environment/timeouts") >= 2.0);
    check_done(&train(&folder, "dies", "dies", &loose));
    assert!(folder.metric("dies", "environment/crashes") >= 2.0);
    assert_eq!(folder.metric("dies", "rollout/logprob_mismatch_max"), 0.0);
    check_done(&train(&folder, "gives-up", "gives-up", &loose));
    assert_eq!(folder.metric("gives-up", "environment/exceptions"), 6.0);
    // One that plays an episode and ends is started again, as often as it takes.
    check_done(&train(
        &folder,
        "once",
        "once",
        &["data.eval=none", "train.steps=1", "environment.num_workers=2"],
    ));

    let strict = ["data.eval=none", "environment.restarts_max=1"];
    let named = |mode: &str, sets: &[&str], contains: &[&str]| {
        check_train_fails(&train(&folder, "out", mode, &[&strict[..], sets].concat()), contains);
        std::fs::remove_dir_all(folder.path("out")).ok();
    };
    named("broken", &[], &["error[agent-failing]: ", "2 times", "no such module"]);
    named("gives-up", &[], &["error[text-environment-failing]: ", "an agent gave up: the tool is gone"]);
    named("mute", &[], &["error[text-environment-failing]: ", "the model said nothing"]);
    named("absent", &["environment.reset_timeout_ms=700"], &["error[agent-missing]: ", "24 are free"]);
    let none = ["environment.command=[\"plimsoll-has-no-such-program\"]", "data.eval=none"];
    let output = folder.output("out", &none);
    check_train_fails(&output, &["error[agent-failing]: ", "plimsoll-has-no-such-program"]);
}

/// Half-sent claims and conversations held connections and readers, and the episodes of other agents timed out.
#[test]
fn r_one_agent_starved_the_others() {
    let Some(folder) = folder() else { return };
    let sets = ["data.eval=none", "train.steps=1", "environment.step_timeout_ms=10000"];
    check_done(&train(&folder, "out", "hoards", &sets));
    assert_eq!(folder.metric("out", "environment/timeouts"), 0.0);
}

#[test]
fn agents_of_somebody_else_find_the_address_in_the_run_directory() {
    let Some(folder) = folder() else { return };
    let told = folder.text_path("out/agent.json");
    let mut agent = std::process::Command::new("python3");
    agent.args([folder.text_path("agent.py").as_str(), "plays", told.as_str()]);
    let mut agent = agent.spawn().expect("it starts");
    let said = check_done(&folder.output("out", &["environment.network=deny"]));
    assert!(said.contains("agents are waited for at http://127.0.0.1:"), "{said}");
    assert!(agent.wait().expect("it was started").success(), "it ends with the run");
    assert_eq!(folder.metric("out", "environment/episodes"), 48.0);
    assert!(!folder.path("out/agent.json").exists(), "the token goes with the run");
}

#[test]
fn a_run_of_agents_goes_on_with_the_same_bits() {
    let Some(folder) = folder() else { return };
    let sets = ["checkpoint.every=1"];
    check_done(&train(&folder, "long", "plays", &sets));
    check_done(&train(&folder, "short", "plays", &["checkpoint.every=1", "train.steps=1"]));
    check_done(&train(&folder, "short", "plays", &["checkpoint.every=1", "--resume"]));
    assert!(folder.result_and_samples("long") == folder.result_and_samples("short"), "other bits");
}

#[test]
fn keys_of_agents_are_checked() {
    let folder = Run::new(RUN);
    for (sets, contains) in [
        (
            &["environment.env=text:second-try", "environment.port=4"][..],
            &["error[contradictory-keys]: ", "http-agent"][..],
        ),
        (&["environment.branches_max=3"], &["error[bad-value]: ", "environment.branches_max"]),
        (&["environment.turns_max=64"], &["error[bad-value]: ", "environment.turns_max"]),
        (&["method=reinforce", "environment.credit=turn"], &["error[contradictory-keys]: ", "one reward"]),
        (
            &["environment.command=[\"python3\"]", "environment.network=deny"],
            &["error[contradictory-keys]: ", "environment.network = \"allow\""],
        ),
        (&["--ranks=2"], &["error[ranks-method]: "]),
    ] {
        let output = folder.output("out", sets);
        check_train_fails(&output, contains);
    }
    // `plan` starts no agent.
    let plan = folder.plan(&[]);
    assert!(plan["not_checked"].to_string().contains("agents, which are started"), "{plan}");
}
