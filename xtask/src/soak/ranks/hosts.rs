//! `cargo xtask soak --ranks N --hosts H --rounds M`: a run of N ranks on H hosts of this machine is killed at a random
//! instant, one process, one host or all of it, and resumes, sometimes on fewer hosts. After every round weights,
//! states, samples and metrics must be those of one undisturbed rank, and nothing may hang.
//!
//! A host is a PID namespace: its processes see none of another's and share no memory with them, and it dies as one.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::super::compare;
use super::super::process::{End, Life, Options, Training, children, newest_step, send};
use super::bench::Bench;

/// Time limit of one start of all hosts.
const ROUND_SECONDS_MAX: u64 = 90;
/// How long surviving hosts wait for one that was killed before they met.
const JOIN_SECONDS: &str = "6";
/// Starts in a row that end before the kill; more mean that the machine is too fast for this run.
const MISSES_MAX: u32 = 20;
/// About every fourth round resumes on fewer hosts.
const FEWER_EVERY: u64 = 4;
/// How often to look for the process to kill.
const LOOK: Duration = Duration::from_millis(1);

/// The job's secret, for `env`.
pub const SECRET: &str = "PLIMSOLL_TOKEN=a secret of the soak";

/// The processes that were killed.
const HITS: [&str; 4] = ["one trainer", "one supervisor", "one host", "all hosts"];

/// The results of the rounds.
#[derive(Default)]
pub struct Report {
    rounds: u32,
    /// Duration of all of them.
    seconds: f64,
    /// Rounds by what was killed, and the longest time from the kill until all hosts had ended.
    hits: [u32; HITS.len()],
    ended_after: [f64; HITS.len()],
    without_checkpoint: u32,
    /// Rounds by the number of hosts that resumed.
    after: BTreeMap<usize, u32>,
    /// Errors of hosts that were not killed, by slug.
    said: BTreeMap<String, u32>,
}

/// Returns true if this user may make a host on this machine.
pub fn can_run() -> bool {
    namespace().is_some()
}

/// Runs the rounds within `options.minutes`; `say` gets a line for each. An error is the first difference, or a hang.
pub fn rounds(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Report, String> {
    if !can_run() {
        return Err("this user may not make namespaces of processes".into());
    }
    let host = namespace().unwrap_or_default();
    let mut bench = Bench::new(options, options.ranks)?;
    let begun = Instant::now();
    let training = bench.training();
    ended_well(Hosts::start(&training, &host, &layout(options, options.hosts), false)?.wait()?)?;
    compare::directories(&bench.whole, &training.dir)?;
    let alone = begun.elapsed();
    say(&format!("left alone on {} hosts: {:.1} s, equal", options.hosts, alone.as_secs_f64()));
    fs::remove_dir_all(&training.dir).map_err(|err| err.to_string())?;
    let (mut report, mut misses) = (Report::default(), 0);
    let begun = Instant::now();
    let is_in_time = || options.minutes == 0 || begun.elapsed().as_secs() < 60 * u64::from(options.minutes);
    while report.rounds < options.rounds && is_in_time() {
        let is_hit = round(options, &host, alone, &mut bench, &mut report, say)?;
        misses = if is_hit { 0 } else { misses + 1 };
        if misses > MISSES_MAX {
            return Err("it ends before it can be killed: take more steps".into());
        }
        report.seconds = begun.elapsed().as_secs_f64();
    }
    Ok(report)
}

/// Runs a round. Returns false if the run ended before the kill.
fn round(
    options: &Options,
    host: &[String],
    alone: Duration,
    bench: &mut Bench<'_>,
    report: &mut Report,
    say: &mut dyn FnMut(&str),
) -> Result<bool, String> {
    let training = bench.training();
    let hit = bench.rng.below(HITS.len() as u64) as usize;
    let instant = Duration::from_micros(bench.rng.below(alone.as_micros() as u64));
    let mut hosts = Hosts::start(&training, host, &layout(options, options.hosts), false)?;
    hosts.lives[0].wait_until_elapsed(instant);
    let killed = hosts.kill(hit, bench);
    let since = Instant::now();
    let ends = hosts.wait()?;
    let seconds = since.elapsed().as_secs_f64();
    if killed.is_empty() || ends[0].code == Some(0) {
        let _ = fs::remove_dir_all(&training.dir);
        return Ok(false);
    }
    let saved = newest_step(&training.dir);
    let fewer = options.hosts > 1 && bench.rng.below(FEWER_EVERY) == 0;
    let after = if fewer { 1 + bench.rng.below(options.hosts as u64 - 1) as usize } else { options.hosts };
    ended_well(Hosts::start(&training, host, &layout(options, after), true)?.wait()?)
        .map_err(|err| format!("{} killed, then on {after} hosts: {err}", HITS[hit]))?;
    compare::directories(&bench.whole, &training.dir)?;
    if training.dir.join(".ranks").exists() {
        return Err(format!("{}: .ranks was left over", training.dir.display()));
    }
    report.rounds += 1;
    report.hits[hit] += 1;
    report.ended_after[hit] = report.ended_after[hit].max(seconds);
    report.without_checkpoint += u32::from(saved.is_none());
    *report.after.entry(after).or_default() += 1;
    let living = ends.iter().enumerate().filter(|(host, _)| !killed.contains(host));
    for (_, end) in living {
        *report.said.entry(slug(&end.stderr).into()).or_default() += 1;
    }
    let at = saved.unwrap_or("no checkpoint".into());
    let number = report.rounds;
    say(&format!("{number}: {} killed after {at}; ended in {seconds:.1} s; equal on {after}", HITS[hit]));
    fs::remove_dir_all(&training.dir).map_err(|err| err.to_string())?;
    Ok(true)
}

/// Returns command words that make the command after them a host; `None` if this user may not.
pub fn namespace() -> Option<Vec<String>> {
    let plain = vec!["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let mapped = [&plain[..1], &["--map-root-user"], &plain[1..]].concat();
    let works = |words: &Vec<&str>| {
        let ran = Command::new(words[0]).args(&words[1..]).arg("true").stderr(Stdio::null()).status();
        ran.is_ok_and(|status| status.success())
    };
    let found = [plain, mapped].into_iter().find(works)?;
    // `env` becomes the program that it starts.
    Some(["env", SECRET].into_iter().chain(found).map(String::from).collect())
}

/// Returns each host's flags for a run on `hosts` of them, each with as many ranks as in the whole run.
pub fn layout(options: &Options, hosts: usize) -> Vec<Vec<String>> {
    let ranks = options.ranks / options.hosts * hosts;
    let ranks = format!("--ranks={ranks}");
    if hosts == 1 {
        return vec![vec![ranks]];
    }
    // Free for now; rank 0 tries the next ones too.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).map_or(29_500, |it| it.port());
    let words = |host: usize| {
        let own =
            [format!("--hosts={hosts}"), format!("--host-rank={host}"), format!("--join=127.0.0.1:{port}")];
        [vec![ranks.clone()], own.to_vec(), vec!["--join-seconds".into(), JOIN_SECONDS.into()]].concat()
    };
    (0..hosts).map(words).collect()
}

fn ended_well(ends: Vec<End>) -> Result<(), String> {
    match ends.iter().enumerate().find(|(_, end)| end.code != Some(0)) {
        Some((host, end)) => Err(format!("host {host} gives {}:\n{}", end.words(), end.stderr)),
        None => Ok(()),
    }
}

/// The hosts of a live run.
struct Hosts {
    lives: Vec<Life>,
}

impl Hosts {
    fn start(
        training: &Training,
        host: &[String],
        layout: &[Vec<String>],
        resumes: bool,
    ) -> Result<Hosts, String> {
        let start = |words: &Vec<String>| {
            let mut on_host = training.at(training.dir.clone());
            on_host.before = host.to_vec();
            let more = resumes.then_some("--resume");
            on_host.start(&words.iter().map(String::as_str).chain(more).collect::<Vec<_>>())
        };
        Ok(Hosts { lives: layout.iter().map(start).collect::<Result<_, String>>()? })
    }

    /// Sends SIGKILL. Returns the hosts that were hit; none if the run was already over.
    fn kill(&mut self, hit: usize, bench: &mut Bench<'_>) -> Vec<usize> {
        let one = bench.rng.below(self.lives.len() as u64) as usize;
        let hosts = if hit == 3 { (0..self.lives.len()).collect() } else { vec![one] };
        let pick = bench.rng.below(64) as usize;
        hosts.into_iter().filter(|host| self.kill_on(*host, hit, pick)).collect()
    }

    fn kill_on(&mut self, host: usize, hit: usize, pick: usize) -> bool {
        let mut found = None;
        self.lives[host].wait_until(ROUND_SECONDS_MAX, |life| {
            found = victim(life.pid(), hit, pick);
            if found.is_none() {
                thread::sleep(LOOK);
            }
            found.is_some()
        });
        found.into_iter().for_each(|pid| send("KILL", pid));
        found.is_some()
    }

    /// Waits for all of them.
    fn wait(self) -> Result<Vec<End>, String> {
        let end = Instant::now() + Duration::from_secs(ROUND_SECONDS_MAX);
        let left = || end.saturating_duration_since(Instant::now()).as_secs().max(1);
        let wait = |(host, life): (usize, Life)| {
            life.wait(left()).map_err(|err| format!("host {host} of a run hangs: {err}"))
        };
        self.lives.into_iter().enumerate().map(wait).collect()
    }
}

/// Returns the process to kill below `unshare`, whose child, the namespace's first process, starts the supervisors.
pub fn victim(unshare: u32, hit: usize, pick: usize) -> Option<u32> {
    let first = children(unshare).first().copied()?;
    if hit >= 2 {
        return Some(first);
    }
    let supervisors = children(first);
    let supervisor = *supervisors.get(pick % supervisors.len().max(1))?;
    if hit == 0 { children(supervisor).first().copied() } else { Some(supervisor) }
}

/// Returns the slug of the first error, which the launcher shows after the rank's number.
pub fn slug(stderr: &str) -> &str {
    let first = stderr.split_once("error[").and_then(|(_, rest)| rest.split_once(']'));
    first.map_or("nothing", |(slug, _)| slug)
}

/// Returns the table as a Markdown page.
pub fn table(options: &Options, report: &Report) -> String {
    let Options { ranks, hosts, steps, seed, minutes, .. } = options;
    let Report { rounds, seconds, without_checkpoint, .. } = report;
    let limit = if *minutes == 0 { String::new() } else { format!(" --minutes {minutes}") };
    let mut text = format!(
        "# Kills of hosts at random instants\n\n`cargo xtask soak --ranks {ranks} --hosts {hosts} --rounds {} --steps {steps} --seed {seed}{limit}`: a \
         run of {steps} steps on {ranks} ranks of {hosts} hosts, each a process namespace of its own on one machine, gets SIGKILL at a random instant, \
         and all hosts are started again with `--resume`, one time in {FEWER_EVERY} fewer of them. Weights, optimizer states and samples are compared \
         byte for byte with a run of one rank that was left alone, metrics number for number. A start that takes more than {ROUND_SECONDS_MAX} s hangs.\n\n\
         **{rounds} rounds in {:.1} minutes, 0 differ, 0 hang.** {without_checkpoint} rounds had no checkpoint yet. Hosts that were not killed said {}.\n\n\
         | killed | rounds | all ended within |\n|---|---|---|\n",
        options.rounds,
        seconds / 60.0,
        counted(&report.said),
    );
    for ((what, count), seconds) in HITS.iter().zip(report.hits).zip(report.ended_after) {
        text += &format!("| {what} | {count} | {seconds:.1} s |\n");
    }
    text += "\n| went on on | rounds |\n|---|---|\n";
    for (hosts, count) in &report.after {
        let word = if *hosts == 1 { "host" } else { "hosts" };
        text += &format!("| {hosts} {word} | {count} |\n");
    }
    text
}

/// Returns `rank-lost 3 times, rank-missing 1 times`.
fn counted(said: &BTreeMap<String, u32>) -> String {
    let all: Vec<String> = said.iter().map(|(slug, count)| format!("`{slug}` {count} times")).collect();
    if all.is_empty() { "nothing".into() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn options(ranks: usize, hosts: usize) -> Options {
        Options {
            device: String::new(),
            hit: None,
            binary: PathBuf::new(),
            folder: PathBuf::new(),
            kills: 0,
            steps: 60,
            seed: 1,
            faults: false,
            short: false,
            runs: 0,
            ranks,
            hosts,
            rounds: 100,
            minutes: 10,
            only: String::new(),
        }
    }

    #[test]
    fn each_host_has_its_number_and_all_have_one_address() {
        let all = layout(&options(4, 2), 2);
        assert_eq!(all.len(), 2);
        for (host, words) in all.iter().enumerate() {
            assert_eq!(words[..3], ["--ranks=4", "--hosts=2", &format!("--host-rank={host}")]);
            assert_eq!(words[3], all[0][3]);
        }
    }

    #[test]
    fn fewer_hosts_have_as_many_ranks_each() {
        assert_eq!(layout(&options(4, 2), 1), [["--ranks=2"]]);
        assert_eq!(layout(&options(6, 3), 2)[1][0], "--ranks=4");
        assert_eq!(layout(&options(3, 3), 1), [["--ranks=1"]]);
    }

    #[test]
    fn a_process_is_found_by_its_place_below_unshare() {
        // This process stands for `unshare`: a shell below it, and a sleep below that, are host and supervisor.
        let mut host =
            Command::new("sh").args(["-c", "sleep 60; true"]).stdout(Stdio::null()).spawn().expect("a shell");
        let own = host.id();
        let begun = Instant::now();
        while children(own).is_empty() && begun.elapsed() < Duration::from_secs(10) {
            thread::sleep(LOOK);
        }
        let sleep = children(own)[0];
        assert_eq!(victim(own, 2, 0), Some(sleep));
        assert_eq!((victim(own, 0, 5), victim(own, 1, 5)), (None, None), "it has started nothing");
        send("KILL", sleep);
        let _ = host.wait();
    }

    #[test]
    fn what_a_host_said_is_its_first_error() {
        assert_eq!(slug("note: a\nrank 2: error[rank-lost]: rank 1\nerror[b]: c\n"), "rank-lost");
        assert_eq!((slug("step 3"), slug("error[")), ("nothing", "nothing"));
    }

    #[test]
    fn the_table_says_how_many_rounds_there_were() {
        let mut report = Report { rounds: 7, seconds: 90.0, hits: [3, 2, 1, 1], ..Report::default() };
        report.after.insert(1, 2);
        report.said.insert("rank-lost".into(), 6);
        let text = table(&options(4, 2), &report);
        for part in [
            "--ranks 4 --hosts 2 --rounds 100 --steps 60 --seed 1 --minutes 10`",
            "**7 rounds in 1.5 minutes, 0 differ, 0 hang.**",
            "`rank-lost` 6 times",
            "| one trainer | 3 |",
            "| 1 host | 2 |",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
