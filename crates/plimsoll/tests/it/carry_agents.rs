//! `async.partial_rollouts` with agents that own their loop: which weights draw a request follows from tokens, however
//! fast agents are, and a resumed run begins their episodes again.

use crate::carry::as_after;
use crate::carry_episodes::{lines, of};
use crate::common::{every_nth, in_turn, turn};
use crate::ranks::left;
use crate::run::{Run, has_python, refs};

/// Asks for a sum, up to three times. A word in a file says what else it does.
const AGENT: &str = r#"
import json, os, random, sys, threading, time, urllib.error, urllib.request

# A file, because a resumed run has the command that it had.
MODE, THREADS = open(sys.argv[1]).read(), int(sys.argv[2])
URL, TOKEN = os.environ["PLIMSOLL_URL"], os.environ["PLIMSOLL_TOKEN"]

def post(address, body, token=TOKEN):
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode(), headers)) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.loads(refusal.read() or b"null")

def play(episode):
    draw = random.Random(os.urandom(8) if MODE == "forgets" else episode["seed"])
    question = {"role": "user", "content": f"{draw.randint(100, 999)}+{draw.randint(100, 999)}="}
    messages, points = [], 0
    for turn in range(3):
        messages.append(question)
        if MODE == "slow":
            time.sleep(random.random() * 0.03)
        if MODE == "twice" and turn == 1 and episode["member"] == 0:
            status, answer = post(episode["base_url"] + "/chat/completions", {"messages": messages, "n": 2}, episode["token"])
            print("twice", status, answer["error"]["code"], flush=True)
        if MODE == "dies" and turn == 1 and episode["index"] == 3 and episode["member"] == 1:
            os._exit(3)
        status, answer = post(episode["base_url"] + "/chat/completions", {"messages": messages}, episode["token"])
        if status != 200:
            print("chat", status, answer["error"]["code"], flush=True)
            return None
        said = answer["choices"][0]["message"]["content"]
        points += len(said) % 5
        messages.append({"role": "assistant", "content": said})
        if points % 3 == 2:
            break
    if MODE == "slow":
        time.sleep(random.random() * 0.03)
    return float(points)

def work():
    while True:
        status, episode = post(URL + "/v1/episodes", {"agent": os.environ.get("PLIMSOLL_AGENT")})
        if status == 204:
            continue
        if status != 200:
            return
        reward = play(episode)
        if reward is not None:
            post(f"{URL}/v1/episodes/{episode['id']}/reward", {"reward": reward}, episode["token"])

threads = [threading.Thread(target=work) for _ in range(THREADS)]
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
replay = true
turns_max = 3
turn_tokens_max = 8
[data]
prompt_tokens_max = 8
eval = "none"
[rollout]
prompts_per_step = 2
group_size = 4
carry = 3
max_new_tokens = 40
temperature = 20.0
[train]
steps = 6
learning_rate = 1e-4
cut_multiple = 4
"#;

fn folder() -> Option<Run> {
    if !has_python() {
        return None;
    }
    let folder = Run::new(RUN);
    folder.write("agent.py", AGENT);
    Some(folder)
}

/// The settings of agents that play `at_once` episodes each.
fn agents(folder: &Run, mode: &str, at_once: u32, more: &[&str]) -> Vec<String> {
    folder.write("mode", mode);
    let [agent, word] = ["agent.py", "mode"].map(|name| folder.text_path(name));
    let command = format!("environment.command=[\"python3\", \"{agent}\", \"{word}\", \"{at_once}\"]");
    let sets = [&["model_options.positions=extend"], more].concat();
    sets.iter().map(|set| set.to_string()).chain([command]).collect()
}

#[test]
fn bits_depend_on_no_thread_no_place_and_no_agent() {
    let Some(folder) = folder() else { return };
    let mut one = None;
    let ways = [
        ("threads-4", "slow", 20, &["run.threads=4"][..]),
        ("threads-1", "plays", 20, &["run.threads=1"]),
        ("threads-2", "plays", 20, &["run.threads=2", "rollout.sequences_max=3"]),
        ("several", "slow", 7, &["environment.num_workers=3"]),
        (
            "full",
            "plays",
            20,
            &["rollout.on_full=preempt", "rollout.sequences_max=16", "rollout.kv_blocks=40"],
        ),
        // Those of the carried groups, and one more.
        ("fewest", "plays", 13, &[]),
    ];
    for (dir, mode, at_once, more) in in_turn(turn(), &ways) {
        folder.train(dir, &refs(&agents(&folder, mode, *at_once, more)));
        let left = left(&folder, dir);
        assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "{dir}");
    }
    let dir = "threads-4";
    assert_eq!(of(&folder, dir, "rollout/logprob_mismatch_max"), [0.0; 6]);
    assert_eq!(of(&folder, dir, "rollout/carried"), [3.0, 3.0, 3.0, 3.0, 2.0, 0.0]);
    assert_eq!(of(&folder, dir, "environment/episodes"), [8.0; 6]);
    assert_eq!(of(&folder, dir, "environment/aborted"), [0.0; 6]);
    assert_eq!(of(&folder, dir, "rollout/dropped_tokens"), [0.0; 6], "nothing is drawn in vain");
    assert!(of(&folder, dir, "rollout/stale_share").iter().any(|share| *share > 0.0));
    let lines = lines(&folder, dir, 6);
    let mut episodes: Vec<u64> =
        lines.iter().map(|line| line["episode"].as_u64().expect("a number")).collect();
    episodes.dedup();
    episodes.sort_unstable();
    assert_eq!(episodes, (0..12).collect::<Vec<u64>>(), "each is trained once");
    let mut split = 0;
    for line in &lines {
        let turns = line["turns"].as_array().expect("turns");
        let versions: Vec<u64> =
            turns.iter().map(|turn| turn["policy_version"].as_u64().expect("one")).collect();
        assert!(versions.is_sorted(), "{line}");
        split += usize::from(versions.first() != versions.last());
        for pair in turns.windows(2) {
            assert_eq!(pair[0]["said"][0], line["messages"][0], "{line}");
        }
    }
    assert!(split > 3, "{split} episodes take several steps");
    let summary = folder.read_json("threads-4/summary.json");
    assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
    assert!(summary["rss_peak_bytes"].as_u64() <= summary["rss_planned_bytes"].as_u64(), "{summary}");
    assert!(summary["carry"]["ticks"].as_f64() > Some(0.0), "{summary}");
}

#[test]
fn a_run_goes_on_with_episodes_that_agents_begin_again() {
    let Some(folder) = folder() else { return };
    let sets = |mode: &str, faults: &str| {
        agents(&folder, mode, 20, &["checkpoint.every=1", "checkpoint.keep=6", faults])
    };
    let (many, none) = ("environment.restarts_max=100", "environment.restarts_max=0");
    let resumes = |mode: &str, faults: &str| [sets(mode, faults), vec!["--resume".to_string()]].concat();
    folder.train("whole", &refs(&sets("plays", many)));
    for (_, (step, mode)) in every_nth(3, [(1, "slow"), (2, "plays"), (4, "slow")]) {
        let dir = as_after(&folder, "whole", step);
        folder.train(&dir, &refs(&resumes(mode, many)));
        assert_eq!(left(&folder, &dir), left(&folder, "whole"), "from step {step}");
    }
    // What an agent asks differently is not trained.
    let dir = as_after(&folder, "whole", 3);
    folder.train(&dir, &refs(&resumes("forgets", many)));
    assert!(folder.metric(&dir, "environment/bad_replies") > 0.0);
    folder.train("strict", &refs(&sets("plays", none)));
    let dir = as_after(&folder, "strict", 3);
    let words = [
        "text-environment-failing",
        "text-environment-bad-reply",
        "otherwise when it is begun again",
        "its request 1",
    ];
    folder.train_fails(&dir, &refs(&resumes("forgets", none)), 1, &words);
}

/// Weights that do not move show that nothing else does.
#[test]
fn with_weights_that_stay_an_agents_episode_is_that_of_one_step() {
    let Some(folder) = folder() else { return };
    let of = |dir: &str, more: &[&str]| {
        folder.train(
            dir,
            &refs(&agents(&folder, "plays", 20, &[&["train.learning_rate=1e-30"], more].concat())),
        );
        let mut lines = lines(&folder, dir, 6);
        lines.sort_by_key(|line| line["episode"].as_u64());
        for line in &mut lines {
            line["step"].take();
            let turns = line["turns"].as_array_mut().expect("turns");
            turns.iter_mut().for_each(|turn| _ = turn["policy_version"].take());
        }
        lines
    };
    assert_eq!(of("carried", &[]), of("plain", &["async.partial_rollouts=0", "environment.replay=false"]));
}

#[test]
fn agents_that_do_not_behave_are_named() {
    let Some(folder) = folder() else { return };
    // A run whose agents are too few for what is under way.
    folder.train_fails(
        "few",
        &refs(&agents(&folder, "plays", 3, &["environment.reset_timeout_ms=1500"])),
        1,
        &["agent-missing", "episodes wait for", "keeps an episode that goes on", "one more at once"],
    );
    folder.train("twice", &refs(&agents(&folder, "twice", 20, &[])));
    let log = crate::common::text(&folder.read("twice/agents.log"));
    assert!(log.contains("twice 400 agent-limit"), "{log}");
    let many = ["environment.restarts_max=100", "environment.num_workers=4"];
    folder.train("dies", &refs(&agents(&folder, "dies", 7, &many)));
    assert!(of(&folder, "dies", "environment/crashes").iter().sum::<f64>() >= 1.0);
    folder.train_fails(
        "dies-once",
        &refs(&agents(&folder, "dies", 20, &["environment.restarts_max=0"])),
        1,
        &["agent-failing", "restarts_max is 0"],
    );
}

#[test]
fn what_agents_cannot_carry_is_refused() {
    let folder = Run::new(RUN);
    let command = "environment.command=[\"true\"]";
    for (more, why) in [
        ("environment.replay=false", "a resumed run cannot begin the episodes of agents again"),
        ("environment.branches_max=2", "takes several steps is one sequence"),
        ("async.partial_rollouts=0", "environment.replay = true with async.partial_rollouts = 0"),
    ] {
        folder.plan_refused(&[command, more], 2, &["contradictory-keys", why]);
    }
}
