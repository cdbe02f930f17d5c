//! Tasks in harbor's format. Their containers are played by `engine.py`, as machines that test this have neither docker
//! nor podman. The last case plays with a real one, where `PLIMSOLL_TEST_ENGINE` names it and `PLIMSOLL_TEST_IMAGE` an
//! image with a shell.

use crate::shapes::{Table, call, tool};
use plimsoll_base::{Bytes, Error, slugs};
use plimsoll_textenv::{ContainerTasks, Job, Settings, Start};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// A folder with tasks, and the folder of the stand-in's state.
struct World {
    folder: tempfile::TempDir,
    settings: Settings,
}

const TOML: &str = "schema_version = \"1.4\"\n[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 20\n[verifier.env]\nWANTED = \"${NOT_SET:-done}\"\n\
                    [environment]\nnetwork_mode = \"no-network\"\nmemory_mb = 64\ncpus = 1\n[environment.env]\nA = \"b\"\n";

/// Gives what the file `place/answer` has, if it is a number, and writes nothing if there is no such file.
const TEST: &str = "#!/bin/sh\ncat \"$ROOT/place/answer\" > /logs/verifier/reward.txt || rm /logs/verifier/reward.txt\necho $WANTED\n";

impl World {
    fn new(tasks: &[(&str, &str, &str)]) -> World {
        let folder = tempfile::tempdir().unwrap();
        for (name, toml, test) in tasks {
            let task = folder.path().join("tasks").join(name);
            for (file, text) in [
                ("task.toml", *toml),
                ("instruction.md", &*format!("Do {name}.\n")),
                ("environment/Dockerfile", "FROM scratch\n"),
                ("tests/test.sh", test),
            ] {
                std::fs::create_dir_all(task.join(file).parent().unwrap()).unwrap();
                std::fs::write(task.join(file), text).unwrap();
            }
        }
        std::fs::create_dir(folder.path().join("state")).unwrap();
        std::fs::write(folder.path().join("state/images"), "").unwrap();
        let engine = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/engine.py");
        let engine =
            format!("python3 -SE '{}' '{}'", engine.display(), folder.path().join("state").display());
        let tasks = folder.path().join("tasks");
        let settings = Settings {
            rows: Some(tasks.clone()),
            tasks: ContainerTasks { folders: vec![tasks], engine: Some(engine), memory: Bytes::mib(64) },
            ..crate::settings()
        };
        World { folder, settings }
    }

    fn play(&self) -> Table {
        Table::open("harbor", &self.settings).unwrap()
    }

    fn refused(&self) -> Error {
        Table::open("harbor", &self.settings).err().expect("it is refused")
    }

    fn state(&self, name: &str) -> PathBuf {
        self.folder.path().join("state").join(name)
    }

    /// Returns the commands of the engine that begin with a verb.
    fn calls(&self, verb: &str) -> Vec<String> {
        let calls = std::fs::read_to_string(self.state("calls")).unwrap();
        calls.lines().filter(|line| line.split(' ').next() == Some(verb)).map(String::from).collect()
    }

    fn containers(&self) -> usize {
        std::fs::read_dir(self.state("containers")).map_or(0, Iterator::count)
    }

    fn breaks(&self, verbs: &str) {
        std::fs::write(self.state("broken"), verbs).unwrap();
    }
}

fn bash(command: &str) -> Value {
    call("bash", json!({ "command": command }))
}

fn said(table: &mut Table, command: &str) -> String {
    let said = table.step("", &[bash(command)]);
    assert!(!said.done && said.reward == 0.0, "{said:?}");
    said.messages.into_iter().next().unwrap().content
}

#[test]
fn a_task_is_played_in_its_container_and_its_tests_give_the_reward() {
    let world = World::new(&[("one", TOML, TEST), ("two", TOML, TEST)]);
    let mut table = world.play();
    let about = table.0.about().clone();
    assert!(about.scores_at_end && about.tools.len() == 1);
    assert_eq!(about.tools[0]["function"]["name"], "bash");
    // Two tasks with one Dockerfile are one image, which is built before the first episode.
    assert_eq!((world.calls("build").len(), world.containers()), (1, 0));
    let mut begun = std::collections::BTreeSet::new();
    for index in [0, 0, 1, 2, 3] {
        begun.insert((table.reset(Start::train(0, index)).remove(0).content, index));
    }
    // Five episodes of four seeds, which are two tasks.
    assert_eq!(begun.len(), 4, "equal seeds begin equal tasks");
    let begun: std::collections::BTreeSet<String> = begun.into_iter().map(|(content, _)| content).collect();
    assert_eq!(begun, ["Do one.\n", "Do two.\n"].map(String::from).into());
    assert_eq!(world.containers(), 1, "a container of a place that begins again is removed");
    let run = world.calls("run").pop().unwrap();
    for flag in ["--network none", "--memory 64m", "--cpus 1", "--pids-limit 4096", "-e A=b"] {
        assert!(run.contains(flag), "{flag}: {run}");
    }
    // Files stay from call to call, and variables do not.
    assert_eq!(said(&mut table, "X=1; echo 0.5 > answer; echo $X"), "1\n");
    assert_eq!(said(&mut table, "echo $X$(cat answer); false"), "(exit code 1)\n0.5");
    assert_eq!(said(&mut table, "exit 7"), "(exit code 7)");
    assert_eq!(said(&mut table, "kill -9 $PPID; exit 3"), "(exit code 137)", "it killed its shell");
    let long = said(&mut table, "seq 100000");
    assert!(
        long.starts_with("1\n2\n")
            && long.contains(" bytes are left out here]")
            && long.ends_with("\n100000\n")
    );
    assert!(long.len() <= 128 * 4 + 64, "{} bytes", long.len());
    let refused = table.step("", &[call("sh", json!({})), call("bash", json!({"command": 3})), bash("a\0b")]);
    assert_eq!(refused.messages[0], tool("{'error': 'Tool sh not found.'}"));
    assert!(refused.messages[1..].iter().all(|one| one.content.contains("`command` is a text of up to")));
    assert!(table.step("It is done.", &[]).done, "a turn without a call ends the episode");
    assert_eq!((table.ask(Job::End).unwrap().reward, world.containers()), (0.5, 0));
    drop(table);
    assert_eq!(world.containers(), 0);
}

#[test]
fn what_the_engine_or_the_tests_fail_at_is_a_fault_and_never_a_reward() {
    let world = World::new(&[("one", TOML, TEST)]);
    let mut table = world.play();
    let fault = |table: &mut Table, job: Job, words: &str| {
        let error = table.ask(job).unwrap_err();
        assert_eq!(error.slug, slugs::TEXT_ENVIRONMENT_RAISED, "{error}");
        assert!(error.message.contains("ContainerFault") && error.message.contains(words), "{error}");
        assert_eq!(world.containers(), 0, "it is removed: {error}");
    };
    // The tests wrote no reward, or none that is a number.
    for (answer, words) in [
        ("true", "wrote no reward: "),
        ("echo inf > answer", "no finite number"),
        ("echo x > answer", "has no number"),
    ] {
        table.reset(Start::train(0, 0));
        table.step("", &[bash(answer)]);
        fault(&mut table, Job::End, words);
    }
    for (verb, words) in [("exec", "exec` failed with status 1"), ("exec inspect", "the container has ended")]
    {
        table.reset(Start::train(0, 0));
        world.breaks(verb);
        if verb == "exec" {
            // The container runs, so the command ended its shell; the tests then cannot be brought in.
            assert_eq!(said(&mut table, "true"), "(exit code 137)");
            table.ask(Job::End).unwrap_err();
        } else {
            fault(&mut table, Job::Step(String::new(), vec![bash("true")]), words);
        }
        world.breaks("");
    }
    table.reset(Start::train(0, 0));
    table.step("", &[bash("echo 1 > answer")]);
    world.breaks("cp");
    fault(&mut table, Job::End, "cp` failed with status 1: Error response from the stand-in");
    world.breaks("run");
    let before = world.calls("run").len();
    fault(&mut table, Job::Reset(Start::train(0, 0)), "no container starts in 2 tries");
    assert_eq!(world.calls("run").len() - before, 2);
    world.breaks("");
    table.reset(Start::train(0, 0));
    table.step("", &[bash("echo 1 > answer")]);
    assert_eq!(table.ask(Job::End).unwrap().reward, 1.0, "and it goes on");
}

#[test]
fn an_agent_whose_time_is_over_is_graded_and_tests_that_take_too_long_are_not() {
    let slow = TOML
        .replace("timeout_sec = 60.0", "timeout_sec = 0.5")
        .replace("timeout_sec = 20", "timeout_sec = 0.5");
    let world = World::new(&[(
        "slow",
        &slow,
        "sleep $(cat \"$ROOT/place/wait\")\necho '{\"a\": 1, \"reward\": 0.25}' > /logs/verifier/reward.json\n",
    )]);
    let mut table = world.play();
    for (wait, reward) in [("0", Some(0.25)), ("20", None)] {
        table.reset(Start::train(0, 0));
        let said = table.step("", &[bash(&format!("echo {wait} > wait; sleep 20")), bash("true")]);
        assert!(said.done && said.messages[0].content.starts_with("(killed after "), "{said:?}");
        assert_eq!(said.messages[1], tool("(not run: no time is left)"));
        let end = table.ask(Job::End);
        assert_eq!(end.as_ref().ok().map(|said| said.reward), reward, "{end:?}");
        assert!(end.is_ok() || end.unwrap_err().message.contains("took longer than 0.5 s"));
    }
    assert_eq!(world.containers(), 0);
}

#[test]
fn containers_of_a_worker_that_died_are_removed() {
    let world = World::new(&[("one", TOML, TEST)]);
    let mut table =
        Table::open("harbor", &Settings { step_timeout: Duration::from_secs(2), ..world.settings.clone() })
            .unwrap();
    table.reset(Start::train(0, 0));
    assert_eq!(world.containers(), 1);
    // A container of a process of another machine, which no one here may remove.
    let other = world.state("containers").join("plimsoll-00000000-1-1-1");
    std::fs::create_dir(&other).unwrap();
    drop(table);
    assert!(world.containers() == 1 && other.exists(), "the episode was under way");
}

#[test]
fn tasks_that_ask_for_what_is_not_built_are_refused_by_name() {
    for (change, words) in [
        (["memory_mb = 64", "memory_mb = 65"], "environment.container_memory allows 64 MiB"),
        (["cpus = 1", "gpus = 1"], "`environment.gpus` is not built here"),
        (["network_mode = \"no-network\"", ""], "environment.network is \"deny\""),
        (["network_mode = \"no-network\"", "network_mode = \"allowlist\""], "`network_mode = \"allowlist\"`"),
        (["[agent]", "[agent]\nnetwork_mode = \"public\""], "`agent.network_mode` differs"),
        (["[verifier]", "[verifier]\nenvironment_mode = \"separate\""], "`verifier.environment_mode`"),
        (["[agent]", "[[steps]]\nname = \"a\"\n[agent]"], "`steps` is not built here"),
        (["${NOT_SET:-done}", "${NOT_SET}"], "the variable NOT_SET is not set"),
        (["[agent]", "[agent"], "task.toml is no TOML"),
    ] {
        let toml = TOML.replacen(change[0], change[1], 1);
        assert_ne!(toml, TOML, "{change:?}");
        let error = World::new(&[("odd", &toml, TEST)]).refused();
        let text = error.to_string();
        assert!(
            error.slug == "harbor-task-refused" && text.contains("task `odd`") && text.contains(words),
            "{text}"
        );
    }
}

#[test]
fn a_real_engine_plays_a_task_and_nothing_of_it_is_left() {
    let named = |name: &str| std::env::var(name).ok();
    let (Some(engine), Some(image)) = (named("PLIMSOLL_TEST_ENGINE"), named("PLIMSOLL_TEST_IMAGE")) else {
        eprintln!(
            "skipped: PLIMSOLL_TEST_ENGINE and PLIMSOLL_TEST_IMAGE name no engine of containers and its image"
        );
        return;
    };
    let toml = TOML
        .replace("[environment]", &format!("[environment]\ndocker_image = \"{image}\"\nworkdir = \"/tmp\""));
    let test = "#!/bin/sh\ntest -e /sys/class/net/eth0 || cp answer /logs/verifier/reward.txt\n";
    let mut world = World::new(&[("real", &toml, test)]);
    world.settings.tasks.engine = Some(engine.clone());
    world.settings.reset_timeout = Duration::from_secs(60);
    let listed = || {
        let mut words = engine.split(' ');
        let mut command = std::process::Command::new(words.next().unwrap());
        let command = command.args(words).args(["ps", "-a", "--filter", "label=plimsoll.containers", "-q"]);
        String::from_utf8(command.output().unwrap().stdout).unwrap().lines().count()
    };
    let before = listed();
    let mut table = world.play();
    table.reset(Start::train(0, 0));
    assert_eq!(said(&mut table, "pwd; echo 0.5 > answer; exit 3"), "(exit code 3)\n/tmp");
    assert_eq!(said(&mut table, "kill -9 -1"), "(exit code 137)");
    assert_eq!((table.ask(Job::End).unwrap().reward, listed()), (0.5, before));
    table.reset(Start::train(0, 1));
    assert_eq!(listed(), before + 1);
    drop(table);
    assert_eq!(listed(), before, "the episode was under way");
}
