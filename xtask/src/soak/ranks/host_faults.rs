//! `cargo xtask soak --ranks N --hosts H`: what goes wrong between hosts. Hosts that read another model, another
//! commit of one, another reward file; a rank that is killed before it joins; a network on which the trainers' ports
//! fail, that loses and reorders, and on which strangers hold connections. Each ends by the name that is written
//! here, on every host, or leaves the bits of one process.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::super::compare;
use super::super::process::{End, LIFE_SECONDS_MAX, Life, Options, Training, run_file, send};
use super::bench::{Bench, END_SECONDS_MAX};
use super::hosts::{layout, namespace, slug, victim};
use super::network::{Network, PORT, Weather};

/// Steps of a run over a slow network, where one takes ten seconds; and of one that differs, which makes none.
const STEPS: u32 = 3;
/// Runs over a bad network, and how many at once.
const RUNS: usize = 20;
const RUNS_AT_ONCE: usize = 4;
/// Time to meet over a bad network.
const JOIN_SECONDS: &str = "60";
/// A loss of one in twenty, a fifth of a second there and back, and three of ten that others overtake.
const BAD: Weather = Weather { milliseconds: 100, lost: 0.05, late: 0.3, silent: 0 };
const GOOD: Weather = Weather { milliseconds: 0, lost: 0.0, late: 0.0, silent: 0 };
/// The hosts of a network.
const HOSTS: usize = 2;

const REWARDS: &str =
    "def score(completions, **columns):\n    return [len(text) % 3 for text in completions]\n";
/// The commits that two caches of the hub have for one branch.
const COMMITS: [char; 2] = ['a', 'b'];

/// One line of the table.
pub struct Row {
    fault: &'static str,
    runs: usize,
    seconds: f64,
    seen: String,
}

/// Seconds until all hosts had ended, the longest of all runs, and what the user sees; `None` without the rights.
type Done = Result<Option<(f64, String)>, String>;

/// Takes a line for the user.
type Telling<'s> = &'s mut dyn FnMut(&str);

struct Fault {
    name: &'static str,
    /// How often; once in the short form.
    runs: usize,
    /// Runs it that often; says how far it is.
    run: fn(&mut Bench<'_>, usize, Telling<'_>) -> Done,
}

const fn fault(name: &'static str, run: fn(&mut Bench<'_>, usize, Telling<'_>) -> Done) -> Fault {
    Fault { name, runs: 1, run }
}

const FAULTS: [Fault; 8] = [
    fault("the same files on each host", |bench, _, _| reads(bench, Reads::Same)),
    fault("another model on one host", |bench, _, _| reads(bench, Reads::Model)),
    fault("another commit of a model of the hub", |bench, _, _| reads(bench, Reads::Commit)),
    fault("another reward file", |bench, _, _| reads(bench, Reads::Reward)),
    fault("a rank killed before it joins", killed_early),
    fault("the trainers' ports fail", ports_fail),
    Fault {
        runs: RUNS,
        ..fault("5 % lost, 100 ms, 30 % late", |bench, runs, say| bad_network(bench, BAD, runs, say))
    },
    Fault {
        runs: RUNS,
        ..fault("5 % lost, 100 ms, 30 % late, 100 silent connections a second", |bench, runs, say| {
            bad_network(bench, Weather { silent: 100, ..BAD }, runs, say)
        })
    },
];

/// Runs every fault; `say` gets a line for each. An error is a broken requirement.
pub fn soak(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Vec<Row>, String> {
    let mut bench = Bench::new(options, options.ranks)?;
    let mut rows = Vec::new();
    let is_meant = |name: &str| options.only.split('|').any(|part| name.contains(part));
    for Fault { name, runs, run } in FAULTS.iter().filter(|fault| is_meant(fault.name)) {
        let most = if options.short { 1 } else { options.runs };
        let runs = if most == 0 { *runs } else { most.min(*runs) };
        match run(&mut bench, runs, say).map_err(|err| format!("{name}: {err}"))? {
            None => say(&format!("skipped: {name}: it needs rights that this user lacks")),
            Some((seconds, seen)) => {
                say(&format!("{name}: {seen}; {runs} of {runs}, at most {seconds:.1} s"));
                rows.push(Row { fault: name, runs, seconds, seen });
            }
        }
    }
    Ok(rows)
}

/// Starts `train` as one host of a run.
fn start(training: &Training, before: Vec<String>, words: &[&str]) -> Result<Life, String> {
    let mut on_host = training.at(training.dir.clone());
    on_host.before = before;
    on_host.start(words)
}

/// The part of its run that the last host reads otherwise than the others.
#[derive(Clone, Copy, PartialEq)]
enum Reads {
    Same,
    Model,
    Commit,
    Reward,
}

/// Starts hosts of which the last reads something else. They must all say so, before the first step.
fn reads(bench: &mut Bench<'_>, what: Reads) -> Done {
    let Some(host) = namespace() else { return Ok(None) };
    let options = bench.options;
    let name = bench.training().dir;
    let training = Training::new(options, Path::new("own.toml"), &name.to_string_lossy());
    let mut lives = Vec::new();
    let begun = Instant::now();
    for (number, words) in layout(options, options.hosts).iter().enumerate() {
        let is_other = number + 1 == options.hosts;
        let folder = folder(bench, number, if is_other { what } else { Reads::Same })?;
        let place = ["-C".into(), folder.display().to_string()];
        let hub = ["HF_HUB_OFFLINE=1".to_string(), format!("HF_HOME={}/hf", folder.display())];
        let model = (what == Reads::Commit).then_some("--set=model=hf:o/m");
        let words: Vec<&str> = words.iter().map(String::as_str).chain(model).collect();
        // `env` is the host's first word already, before the job's secret.
        let before = [&host[..1], &place, &hub, &host[1..]].concat();
        lives.push(start(&training, before, &words)?);
    }
    let (ends, seconds) = (all(lives)?, begun.elapsed().as_secs_f64());
    if what == Reads::Same {
        return if ends.iter().all(|end| end.code == Some(0)) {
            Ok(Some((seconds, "trained".into())))
        } else {
            Err(said(&ends))
        };
    }
    let names_it = |end: &End| {
        end.code == Some(2) && slug(&end.stderr) == "ranks-differ" && end.stderr.contains(" on rank 0, and ")
    };
    if !ends.iter().all(names_it) {
        return Err(said(&ends));
    }
    let steps = [training.dir.join("checkpoints/latest"), training.dir.join("samples/step-000001.jsonl")];
    match steps.iter().find(|path| path.exists()) {
        Some(path) => Err(format!("{} is there: it made a step", path.display())),
        None => Ok(Some((seconds, sentence(&ends[0])))),
    }
}

/// Makes the folder of a host: a run file, a model, a cache of the hub with it, and a reward.
fn folder(bench: &Bench<'_>, number: usize, reads: Reads) -> Result<PathBuf, String> {
    let folder = bench.options.folder.join(format!("host-{number}"));
    let _ = fs::remove_dir_all(&folder);
    let text = run_file("m", STEPS).replace("kind = \"exact\"", "kind = \"python:own.py:score\"");
    let text = text.replace("micro_batch_tokens = 256\n", "micro_batch_tokens = 256\ncut_multiple = 4\n");
    let other = usize::from(reads == Reads::Reward);
    let of_model = usize::from([Reads::Model, Reads::Commit].contains(&reads));
    let repository = folder.join("hf/hub/models--o--m");
    let commit: String = std::iter::repeat_n(COMMITS[of_model], 40).collect();
    let work = || -> std::io::Result<()> {
        fs::create_dir_all(repository.join("refs"))?;
        fs::write(repository.join("refs/main"), &commit)?;
        // Two checkpoints of one run are two models of one form.
        let mut steps: Vec<PathBuf> =
            fs::read_dir(bench.whole.join("checkpoints"))?.flatten().map(|entry| entry.path()).collect();
        steps.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-")));
        steps.sort();
        let from = &steps[steps.len() - 1 - of_model.min(steps.len() - 1)];
        for to in [folder.join("m"), repository.join("snapshots").join(&commit)] {
            fs::create_dir_all(&to)?;
            for file in fs::read_dir(from)?.flatten().filter(|file| file.path().is_file()) {
                fs::copy(file.path(), to.join(file.file_name()))?;
            }
        }
        fs::write(folder.join("own.toml"), &text)?;
        fs::write(folder.join("own.py"), REWARDS.replace('3', ["3", "4"][other]))
    };
    work().map_err(|err| format!("{}: {err}", folder.display()))?;
    Ok(folder)
}

/// Kills a rank of the last host while no other host is there, so that no ranks have met.
fn killed_early(bench: &mut Bench<'_>, _: usize, _: Telling<'_>) -> Done {
    let Some(host) = namespace() else { return Ok(None) };
    let training = bench.training();
    let mut layout = layout(bench.options, bench.options.hosts);
    let last = layout.pop().unwrap_or_default();
    let begin = |words: &[String]| {
        start(&training, host.clone(), &words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut lives = vec![begin(&last)?];
    let mut found = None;
    lives[0].wait_until(LIFE_SECONDS_MAX, |life| {
        found = victim(life.pid(), 1, 0);
        found.is_some()
    });
    send("KILL", found.ok_or("it ended before it could be hit")?);
    let killed = Instant::now();
    for words in &layout {
        lives.push(begin(words)?);
    }
    let ends = all(lives)?;
    let seconds = killed.elapsed().as_secs_f64();
    let first = bench.ranks - bench.ranks / bench.options.hosts;
    let (own, others) = ends.split_first().ok_or("no host")?;
    let is_named = own.stderr.contains(&format!("rank {first}, its supervisor with pid "));
    let others_name = |end: &End| slug(&end.stderr) == "rank-missing" && end.code != Some(0);
    if own.code == Some(0) || !is_named || slug(&own.stderr) != "rank-lost" || !others.iter().all(others_name)
    {
        return Err(said(&ends));
    }
    if seconds <= END_SECONDS_MAX {
        Ok(Some((seconds, format!("{}, and on other hosts {}", sentence(own), sentence(&others[0])))))
    } else {
        Err(format!("all ended after {seconds:.1} s"))
    }
}

/// Lets the ports of trainers fail once there is a checkpoint, and not that of supervisors.
fn ports_fail(bench: &mut Bench<'_>, _: usize, _: Telling<'_>) -> Done {
    if bench.options.hosts != HOSTS {
        return Ok(None);
    }
    let Some(network) = Network::new(GOOD) else { return Ok(None) };
    let training = bench.training();
    let lives = over(bench.options, &network, &training, "--set=train.steps=100000")?;
    let saved = Instant::now();
    while !training.dir.join("checkpoints/latest").exists() {
        if saved.elapsed().as_secs() > LIFE_SECONDS_MAX {
            return Err("no checkpoint".into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    network.pass_port_alone();
    let begun = Instant::now();
    let ends = all(lives)?;
    if ends.iter().all(|end| end.code != Some(0) && end.stderr.contains("error[ranks-unreachable]: ")) {
        Ok(Some((begun.elapsed().as_secs_f64(), sentence(&ends[0]))))
    } else {
        Err(said(&ends))
    }
}

/// Starts both hosts of a run over a network.
fn over(options: &Options, network: &Network, training: &Training, set: &str) -> Result<Vec<Life>, String> {
    let ranks = format!("--ranks={}", options.ranks);
    let join = format!("--join={}", Network::join());
    let begin = |host: usize| {
        let own = format!("--host-rank={host}");
        let words = [&*ranks, "--hosts=2", &own, &join, "--join-seconds", JOIN_SECONDS, set];
        start(training, network.host(host), &words)
    };
    (0..HOSTS).map(begin).collect()
}

/// Trains over a bad network, again and again. Each run must leave the bits of one process. A run takes two minutes,
/// so it says how many are over.
fn bad_network(bench: &mut Bench<'_>, weather: Weather, runs: usize, say: Telling<'_>) -> Done {
    if bench.options.hosts != HOSTS || Network::new(weather).is_none() {
        return Ok(None);
    }
    let set = format!("--set=train.steps={STEPS}");
    let alone = bench.training();
    let end = alone.start(&[&set])?.wait(LIFE_SECONDS_MAX)?;
    if end.code != Some(0) {
        return Err(format!("the run that is left alone failed: {}", end.stderr));
    }
    let runs: Vec<Training> = (0..runs).map(|_| bench.training()).collect();
    let options = bench.options;
    let one = |training: &Training| -> Result<f64, String> {
        let network = Network::new(weather).ok_or("a network could not be built")?;
        let begun = Instant::now();
        let ends = all(over(options, &network, training, &set)?)?;
        if ends.iter().any(|end| end.code != Some(0)) {
            return Err(said(&ends));
        }
        compare::directories(&alone.dir, &training.dir)?;
        Ok(begun.elapsed().as_secs_f64())
    };
    let (one, mut longest, mut over) = (&one, 0.0f64, 0);
    for some in runs.chunks(RUNS_AT_ONCE) {
        let ended: Vec<Result<f64, String>> = thread::scope(|scope| {
            let threads: Vec<_> = some.iter().map(|training| scope.spawn(move || one(training))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("a panic".into())))
                .collect()
        });
        for seconds in ended {
            longest = longest.max(seconds?);
        }
        over += some.len();
        say(&format!("  {over} of {} are over, at most {longest:.1} s", runs.len()));
    }
    Ok(Some((longest, "equal".into())))
}

fn all(lives: Vec<Life>) -> Result<Vec<End>, String> {
    lives.into_iter().map(|life| life.wait(LIFE_SECONDS_MAX)).collect()
}

/// Returns what all hosts said, for an error.
fn said(ends: &[End]) -> String {
    let all =
        ends.iter().enumerate().map(|(host, end)| format!("host {host}, {}:\n{}", end.words(), end.stderr));
    all.collect::<Vec<_>>().join("\n")
}

/// Returns the sentence of a host's first error, which the launcher shows after the rank's number, without paths.
fn sentence(end: &End) -> String {
    let line = end.stderr.lines().find_map(|line| Some(line.split_once("error[")?.1)).unwrap_or("nothing]");
    let short = |word: &str| {
        if word.starts_with('/') {
            word.rsplit('/').next().unwrap_or(word).to_string()
        } else {
            word.to_string()
        }
    };
    format!("`error[{}`", line.split(' ').map(short).collect::<Vec<_>>().join(" "))
}

/// Returns the table as a Markdown page.
pub fn table(options: &Options, rows: &[Row]) -> String {
    let Options { ranks, hosts, .. } = options;
    let mut text = format!(
        "# Faults of hosts\n\n`cargo xtask soak --ranks {ranks} --hosts {hosts}`: a run of {ranks} ranks on {hosts} hosts of one machine. A host is a process \
         namespace, and where the network is bad a network namespace too, with a process between the two that carries frames \
         (`bench/delay.py`), because not every kernel has netem. The rendezvous is on port {PORT}. What ends does so with the sentence that is shown, on every host; \
         what does not leaves the weights, states, metrics and samples of one process, bit for bit.\n\n\
         | fault | runs | the longest | what the user sees |\n|---|---|---|---|\n"
    );
    for Row { fault, runs, seconds, seen } in rows {
        text += &format!("| {fault} | {runs} of {runs} | {seconds:.1} s | {seen} |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_shown_without_ranks_and_paths() {
        let end = |stderr: &str| End { code: Some(2), stderr: stderr.into() };
        assert_eq!(
            sentence(&end("step 1\nrank 2: error[ranks-differ]: model: /a/b/m has x on rank 0\nhint: y\n")),
            "`error[ranks-differ]: model: m has x on rank 0`"
        );
        assert_eq!(sentence(&end("")), "`error[nothing]`");
    }
}
