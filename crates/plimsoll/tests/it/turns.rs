//! Text environments from outside: episodes that become training samples, other people's code in them, and what becomes
//! of its failures.

use crate::common::{command, every_nth, text};
use crate::run::{Run, check_done, check_train_fails, has_python};
use serde_json::Value;
use std::process::Output;

/// Games in the characters of the small model. What goes wrong goes wrong in the second turn of some episodes.
pub const GAMES: &str = r#"
import os, random, time

class Sums:
    def reset(self, seed):
        self.draw = random.Random(seed)
        self.rare = self.draw.random() < 0.3
        self.a, self.b = self.draw.randint(100, 999), self.draw.randint(100, 999)
        self.tries = 0
        return f"{self.a}+{self.b}="

    def step(self, response):
        self.tries += 1
        if response == str(self.a + self.b):
            return None, 1.0, True
        if self.tries == 3:
            return None, 0.0, True
        if self.rare:
            return self.broken()
        return [f"{self.a}+", {"role": "user", "content": f"{self.b}="}], 0.0, False

    def broken(self):
        return f"{self.a}+{self.b}=", 0.0, False

class Slow(Sums):
    def step(self, response):
        time.sleep(0.002 * (self.a % 5))
        return super().step(response)

class Late(Sums):
    """Half of its episodes end with their first turn, before one breaks and takes the others of its worker along."""
    def step(self, response):
        rare, self.rare = self.rare, self.rare and self.tries > 0
        said = (None, 0.0, True) if self.a % 2 else super().step(response)
        self.rare = rare
        return said

class Raises(Sums):
    def broken(self):
        raise ValueError("no such move")

class Dies(Sums):
    def step(self, response):
        os._exit(3)

class Hangs(Sums):
    def broken(self):
        time.sleep(600)

class Eats(Late):
    def broken(self):
        held = [bytearray(64 << 20) for _ in range(64)]
        return "1", 0.0, False

class Exits(Late):
    def broken(self):
        os._exit(3)

class ReturnsNothing(Sums):
    def broken(self):
        return None

class Nan(Sums):
    def broken(self):
        return "1", float("nan"), False

class Letters(Sums):
    def broken(self):
        return "try again", 0.0, False

class Talks(Sums):
    def broken(self):
        return "1" * 5000, 0.0, False

class Forgetful(Sums):
    def reset(self, seed):
        return super().reset(random.random())

class Quiet(Sums):
    def reset(self, seed):
        return ""

class NoStep:
    def reset(self, seed):
        return "1+1="
"#;

/// Two steps on the small model.
pub const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[environment]
turns_max = 3
turn_tokens_max = 8
[rollout]
prompts_per_step = 8
group_size = 4
max_new_tokens = 5
[train]
steps = 2
learning_rate = 1e-4
[eval]
prompts_max = 8
"#;

fn train(folder: &Run, dir: &str, env: &str, sets: &[&str]) -> Output {
    folder.output(dir, &[&[&*format!("environment.env={env}")], sets].concat())
}

fn game(folder: &Run, dir: &str, class: &str, sets: &[&str]) -> Output {
    let env = format!("python:{}:{class}", folder.text_path("games.py"));
    train(folder, dir, &env, &[&["data.prompt_tokens_max=8"], sets].concat())
}

fn games() -> Run {
    let folder = Run::new(RUN);
    folder.write("games.py", GAMES);
    folder
}

/// Whatever the method: every drawn token's log-probability is the trainer's, what the environment said moves nothing
/// (its place in the rollout's log-probabilities holds no number), and the arena is the plan's.
#[test]
fn episodes_train_exactly_and_their_lines_tell_turns_mask_and_rewards() {
    let folder = Run::new(RUN);
    let said = check_done(&train(&folder, "said", "text:second-try", &["train.steps=1"]));
    assert!(said.contains(" cut by the length limit") && !said.contains(" visible character"), "{said}");
    for (name, sets) in [
        ("grpo", &["loss.kl_coef=0.05"][..]),
        ("gspo", &["method=gspo", "train.mini_batch=16"]),
        ("ppo", &["method=ppo", "loss.lambda=0.9", "loss.kl_coef=0.05", "loss.kl_in=reward"]),
        (
            "zero",
            &[
                "method=ppo",
                "loss.lambda=0.9",
                "loss.kl_coef=0.05",
                "loss.kl_in=reward",
                "loss.mask_hole=zero_value",
            ],
        ),
        ("turn", &["method=reinforce", "environment.credit=turn", "loss.gamma=0.9"]),
        ("tight", &["rollout.on_full=preempt", "rollout.kv_blocks=5", "rollout.sequences_max=9"]),
    ] {
        check_done(&train(&folder, name, "text:second-try", sets));
        assert_eq!(folder.metric(name, "rollout/logprob_mismatch_max"), 0.0, "{name}");
        let summary = folder.read_json(&format!("{name}/summary.json"));
        assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
        assert!(summary["rss_peak_bytes"].as_u64() <= summary["rss_planned_bytes"].as_u64(), "{summary}");
        assert!(summary["eval_before"].is_f64() && summary["eval_after"].is_f64(), "{summary}");
        let turns = folder.metric(name, "episode/turns_mean") / 2.0;
        assert!((1.2..2.0).contains(&turns), "{name}: {turns}");
        assert_eq!(folder.metric(name, "environment/episodes"), 64.0);
        assert_eq!(folder.metric(name, "environment/aborted"), 0.0);
    }
    // What a hole means to GAE is not one thing.
    assert!(folder.result_and_samples("ppo")[0] != folder.result_and_samples("zero")[0]);
    let same = |a: &str, b: &str| {
        let of = |dir: &str| folder.read_lines(&format!("{dir}/samples/step-000001.jsonl"));
        assert_eq!(of(a), of(b), "{a} and {b}");
    };
    same("grpo", "tight");
    same("grpo", "ppo");
    let mut seconds = 0;
    for episode in folder.read_lines("grpo/samples/step-000001.jsonl") {
        let (mask, tokens) = (episode["mask"].as_array().unwrap(), episode["tokens"].as_array().unwrap());
        let turns = episode["turns"].as_array().unwrap();
        assert_eq!(mask.len(), tokens.len());
        let (mut total, mut at) = (0.0, 0);
        for (t, turn) in turns.iter().enumerate() {
            let [first, last] = [0, 1].map(|i| turn["tokens"][i].as_u64().unwrap() as usize);
            let logprobs = turn["logprobs"].as_array().unwrap();
            assert!(logprobs.len() == last - first && logprobs.iter().all(Value::is_f64), "{turn}");
            assert!(mask[at..first].iter().all(|m| m == 0) && mask[first..last].iter().all(|m| m == 1));
            // The sum is asked for again in eight tokens.
            assert!(
                t == 0 || (first - at == 8 && turns[t - 1]["said"][0] == episode["messages"][0]),
                "{episode}"
            );
            total += turn["reward"].as_f64().unwrap();
            at = last;
            assert_eq!(turn["policy_version"], 0);
        }
        assert_eq!(at, tokens.len(), "an episode ends with what was drawn");
        assert_eq!(episode["reward"].as_f64().unwrap(), total);
        seconds += usize::from(turns.len() == 2);
    }
    assert!(seconds > 3, "some sums are wrong");
}

#[test]
fn a_run_of_episodes_that_goes_on_equals_one_that_never_stopped() {
    let folder = games();
    let python = has_python();
    for (_, (name, class, sets)) in every_nth(
        2,
        [
            ("native", None, &["checkpoint.every=1"][..]),
            ("ppo", None, &["checkpoint.every=1", "method=ppo", "environment.credit=turn"]),
            ("python", Some("Sums"), &["checkpoint.every=1"]),
        ],
    ) {
        let run = |dir: &str, sets: &[&str]| match class {
            None => train(&folder, dir, "text:second-try", sets),
            Some(class) => game(&folder, dir, class, sets),
        };
        if class.is_some() && !python {
            continue;
        }
        let (long, short) = (format!("{name}-long"), format!("{name}-short"));
        check_done(&run(&long, sets));
        check_done(&run(&short, &[sets, &["train.steps=1"]].concat()));
        check_done(&run(&short, &[sets, &["--resume"]].concat()));
        assert!(folder.result_and_samples(&long) == folder.result_and_samples(&short), "{name}: other bits");
        if class.is_some() {
            folder.write("games.py", &GAMES.replace("600", "601"));
            let output = run(&short, &[sets, &["train.steps=3", "--resume"]].concat());
            check_train_fails(&output, &["error[resume-differs]: ", "games.py has other contents"]);
        }
    }
}

#[test]
fn who_answers_first_moves_no_bit() {
    if !has_python() {
        return;
    }
    let folder = games();
    check_done(&game(&folder, "one", "Sums", &[]));
    check_done(&game(&folder, "slow", "Slow", &["environment.num_workers=3", "rollout.sequences_max=5"]));
    assert!(folder.result_and_samples("one") == folder.result_and_samples("slow"), "workers decide bits");
}

#[test]
fn faults_of_an_environment_are_told_apart_and_counted_and_the_run_goes_on() {
    if !has_python() {
        return;
    }
    let folder = games();
    for (_, (class, counter, sets)) in every_nth(
        3,
        [
            ("Raises", "exceptions", &[][..]),
            ("ReturnsNothing", "bad_replies", &[]),
            ("Nan", "bad_replies", &[]),
            ("Exits", "crashes", &[]),
            ("Eats", "over_budget", &["environment.worker_memory=1GiB"]),
            (
                "Hangs",
                "timeouts",
                &["environment.step_timeout_ms=300", "train.steps=1", "rollout.prompts_per_step=2"],
            ),
        ],
    ) {
        let more = ["environment.restarts_max=1000", "data.eval=none"];
        let output = game(&folder, class, class, &[&more[..], sets].concat());
        check_done(&output);
        let count = folder.metric(class, &format!("environment/{counter}"));
        let aborted = folder.metric(class, "environment/aborted");
        assert!(count >= 1.0 && aborted >= count, "{class}: {count} {counter}, {aborted} aborted");
        let faults = ["exceptions", "bad_replies", "crashes", "over_budget", "timeouts"];
        let all: f64 = faults.iter().map(|name| folder.metric(class, &format!("environment/{name}"))).sum();
        assert_eq!(all, count, "{class} is distinguished");
        assert!(text(&output.stderr).contains("an episode was left out: environment `"), "{class}");
        let lines = folder.read_lines(&format!("{class}/samples/step-000001.jsonl"));
        assert!(lines.iter().any(|episode| episode["reward"].is_null()), "{class}: a fault has no return");
    }
}

#[test]
fn what_an_environment_may_not_do_is_named() {
    if !has_python() {
        return;
    }
    let folder = games();
    let none = ["data.eval=none", "environment.restarts_max=0"];
    for (_, (class, contains)) in every_nth(
        2,
        [
            ("Raises", &["error[text-environment-failing]: ", "no such move", "line "][..]),
            (
                "Letters",
                &["error[tokenizer-unknown-character]: ", "character 't'", "the environment said it"],
            ),
            ("Forgetful", &["error[text-environment-bad-reply]: ", "differently"]),
            ("Quiet", &["error[text-environment-bad-reply]: ", "reset gave no text", "tried twice"]),
            ("NoStep", &["error[text-environment-missing]: ", "`NoStep` has no method `step`"]),
            ("Chess", &["error[text-environment-missing]: ", "no class `Chess`; it has: Sums"]),
        ],
    ) {
        check_train_fails(&game(&folder, "out", class, &none), contains);
        std::fs::remove_dir_all(folder.path("out")).ok();
    }
    // One worker's death is one failure, and leaves no episode.
    let all =
        &["error[text-environment-failing]: ", ": all 32 episodes of one rollout failed", "exit code 3"];
    check_train_fails(&game(&folder, "dies", "Dies", &none[..1]), all);
    check_done(&game(&folder, "talks", "Talks", &none));
    assert!(folder.metric("talks", "environment/cut") >= 1.0);
    let missing = format!("python:{}:Game", folder.text_path("none.py"));
    let output = train(&folder, "out", &missing, &["data.prompt_tokens_max=8"]);
    check_train_fails(&output, &["error[text-environment-missing]: ", "none.py` is not a file"]);
    let output = train(&folder, "out", "text:guess-number", &[]);
    check_train_fails(&output, &["error[tokenizer-unknown-character]: ", "the environment said it"]);
    let output = train(&folder, "out", "text:second-try", &["data.prompt_tokens_max=7"]);
    check_train_fails(&output, &["error[prompt-too-long]: ", "begins with", "overlong = \"truncate-left\""]);
    // Room for one turn and its reply: the second turn is cut, or does not begin.
    check_done(&train(&folder, "short", "text:second-try", &["environment.episode_tokens_max=12"]));
    assert!(folder.metric("short", "environment/truncated") >= 1.0);
    assert_eq!(folder.metric("short", "rollout/logprob_mismatch_max"), 0.0);
}

/// Environments that talk in words run with a model that has byte tokens and no chat template.
#[test]
fn every_environment_that_comes_with_the_program_runs_under_a_chat_template() {
    let folder = Run::new(RUN);
    let model = concat!("model=", env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden/llama");
    let template = "data.chat_template={% for m in messages %}<bos>{{ m.role }}: {{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<bos>assistant: {% endif %}";
    for env in ["text:guess-number", "text:countdown", "text:python-tool", "text:second-try"] {
        if env == "text:python-tool" && !has_python() {
            continue;
        }
        let sets = [
            model,
            "model_options.tokenizer=bytes",
            "model_options.positions=extend",
            "environment.turn_tokens_max=160",
            "rollout.prompts_per_step=2",
            "train.steps=1",
            "eval.prompts_max=2",
            template,
        ];
        let output = train(&folder, "out", env, &sets);
        check_done(&output);
        assert_eq!(folder.metric("out", "rollout/logprob_mismatch_max"), 0.0, "{env}");
        std::fs::remove_dir_all(folder.path("out")).expect("a run left it");
    }
}

#[test]
fn the_example_of_an_environment_of_ones_own_runs() {
    if !has_python() {
        return;
    }
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let folder = Run::new(RUN);
    let dir = format!("run.dir={}", folder.text_path("out"));
    let output = command(&["train", "examples/three_tries.toml", "--set", &dir, "--set", "train.steps=1"])
        .args(["--set", "eval.prompts_max=4", "--set", "rollout.prompts_per_step=4"])
        .current_dir(root)
        .output()
        .expect("the binary runs");
    check_done(&output);
    assert_eq!(folder.metric("out", "environment/aborted"), 0.0);
}

/// The model knows only digits and calls nothing, so every episode is one turn; its reward is then `get_reward`'s.
pub const TOOLS: &str = "\
class Counted:
    def reset(self, a, b):
        self.asked = 0
        return f'{a}+{b}='

    def look(self) -> str:
        \"\"\"Looks.\"\"\"
        return 'nothing'

    def get_reward(self):
        self.asked += 1
        assert self.asked == 1, 'asked twice'
        return 0.25
";

/// Mentions tools, and writes none of them, whose letters the model does not know.
pub const QUIET: &str =
    "{% if tools is defined %}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";

#[test]
fn an_environment_of_tools_is_scored_once_at_the_end_of_each_episode() {
    if !has_python() {
        return;
    }
    let folder = Run::new(RUN);
    folder.write("tools.py", TOOLS);
    folder.write("rows.jsonl", "{\"a\": 1, \"b\": 2}\n{\"a\": 30, \"b\": 4}\n");
    let env = format!("python:{}:Counted", folder.text_path("tools.py"));
    let rows = format!("environment.rows={}", folder.text_path("rows.jsonl"));
    let template = format!("data.chat_template={QUIET}");
    let short = "data.prompt_tokens_max=8";
    let output = train(&folder, "out", &env, &[&rows, &template, short, "train.steps=1"]);
    check_done(&output);
    assert_eq!(folder.metric("out", "episode/return"), 0.25);
    assert_eq!(folder.metric("out", "episode/turns_mean"), 1.0);
    assert_eq!(folder.metric("out", "environment/aborted"), 0.0);

    let fails = |dir: &str, env: &str, sets: &[&str], words: &[&str]| {
        check_train_fails(&train(&folder, dir, env, &[&[short], sets].concat()), words);
    };
    fails("untold", &env, &[&rows], &["error[tools-without-template]", "(look)"]);
    fails("wrong", "text:guess-number", &[&rows], &["it belongs to env = \"python:FILE.py:CLASS\""]);
    fails("shut", "openenv:http://127.0.0.1:1", &[], &["environment.network = \"allow\""]);
}
