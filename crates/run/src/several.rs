//! A rank of several, as its supervisor: what it tells the others at the start and at its trainer's end (`linked.rs` in
//! between), and how it acts on the verdict. Only rank 0's supervisor writes into the run directory.

use crate::build::own_build;
use crate::ending::run_dir_path;
pub use crate::linked::User;
use crate::linked::{Linked, lost, named, write_last};
use crate::resume::Start;
use crate::sent;
use crate::supervise::{Death, Pause, SignalPipe, place, read_note, signal_name};
use crate::views::{View, sweep, sweep_temporary};
use plimsoll_base::{Error, Exit, Result, read_small_text};
use plimsoll_config::{Loaded, Offload, TrainedKind};
use plimsoll_files::{digest, write_atomic};
use plimsoll_memory::host::{Host, OomWatch};
use plimsoll_ranks::{Cause, Ending, Group, Link, Member, Place, Verdict};
use plimsoll_worker::Ended;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often a supervisor whose trainer has ended checks whether the run has.
const LOOK: Duration = Duration::from_millis(50);
/// A request this long after another is a new one.
const ONE_REQUEST: Duration = Duration::from_secs(1);
const OTHER_RANK: u8 = Exit::OtherRank as u8;

/// A trainer's place among several ranks, and where it writes.
pub struct Joined {
    pub group: Group,
    /// Discards what ranks other than 0 write: rank 0 writes the same.
    view: Option<View>,
    /// A line for rank 0 to show the user.
    pub note: Option<String>,
}

impl Joined {
    /// Returns an error of this rank in rank 0's words, so that it is reported once.
    pub fn of_the_run(&self, error: Error) -> Error {
        match &self.view {
            Some(view) => view.of_the_run(error),
            None => error,
        }
    }
}

/// Joins this trainer to the ranks of its run, for which only rank 0 writes; `None` in a run of one.
///
/// Errors: `ranks-method` for methods that several ranks do not support yet; `run-dir-unwritable`.
pub fn join(loaded: &mut Loaded, start: &Start) -> Result<Option<Joined>> {
    let Some(place) = Place::of_environment()? else {
        // A run begun by several ranks may continue with one.
        sweep(&run_dir_path(loaded));
        return Ok(None);
    };
    let refused = |what: &str| {
        let message = format!("{what} with {} ranks: this build does it on one rank alone", place.ranks);
        Err(Error::usage("ranks-method", message).hint("leave out --ranks: one rank gives the same bits"))
    };
    if loaded.run.trains() == TrainedKind::Policy {
        return refused("a policy in an environment");
    }
    if loaded.run.plays_agents() {
        return refused("environment.env = \"http-agent\"");
    }
    if loaded.run.memory.offloads(Offload::Optimizer) {
        return refused("memory.offload = [\"optimizer\"]");
    }
    let listener =
        place.away.as_ref().map(|away| plimsoll_worker::inherited_listener(away.listener)).transpose()?;
    let group = Group::open(&place, listener)?;
    let of = run_dir_path(loaded);
    if place.rank == 0 {
        sweep(&of);
        sweep_temporary();
    }
    group.barrier()?;
    // Rank 0's directory is the run's.
    let has_run = group.all_gather(&[u8::from(of.join("run.toml").exists())])?[0] == [1];
    let sent = match start {
        Start::Resume { previous_good, .. } if has_run => Some(sent::send(&group, &of, *previous_good)?),
        _ => None,
    };
    let (path, note) = sent.as_ref().map_or((None, None), |sent| (sent.path.as_deref(), sent.note.clone()));
    let view = (place.rank > 0).then(|| View::make(&of, sent.is_some(), path)).transpose()?;
    if let Some(view) = &view {
        loaded.run.run.dir = Some(view.dir().display().to_string());
        // Rank 0's numbers are those of all.
        loaded.run.track.to.clear();
    }
    // Rank 0 may change the directory once the others have read it.
    group.barrier()?;
    Ok(Some(Joined { group, view, note }))
}

/// Stops a trainer whose run another rank has ended: it saves nothing, and its supervisor says why.
///
/// Errors: `rank-lost`.
pub fn check_others() -> Result<()> {
    match Place::of_environment()? {
        Some(place) if place.is_over() => {
            let error = Error::new("rank-lost", "another rank ended the run");
            Err(Error {
                exit: Exit::OtherRank,
                ..error.hint("the supervisor of this rank says which, and why")
            })
        }
        _ => Ok(()),
    }
}

/// Returns what all ranks must share: build, processor, driver, and the run file but threads, which change no bit.
pub fn alike(loaded: &Loaded) -> Vec<(String, String)> {
    let mut alike = alike_processes();
    let keys: Vec<(String, String)> = loaded
        .settings()
        .into_iter()
        .filter(|it| it.key != "run.threads")
        .map(|it| (it.key, it.value))
        .collect();
    // A long run file is cut; its checksum is not. It sorts after the keys, so that a differing key is named first.
    alike.push(("run files (SHA-256)".into(), digest(format!("{keys:?}").as_bytes())));
    alike.extend(keys.into_iter().map(|(key, value)| (format!("run file: {key}"), value)));
    alike
}

/// Most bytes of a file of the kernel: that of processors has about 1.5 KiB for each.
const FACTS_BYTES_MAX: u64 = 4 << 20;

/// Returns what must be equal on all ranks whatever they run, by name.
pub fn alike_processes() -> Vec<(String, String)> {
    let read = |path: &str| read_small_text(path.as_ref(), FACTS_BYTES_MAX).unwrap_or_default();
    let build = own_build();
    let cpuinfo = read("/proc/cpuinfo");
    let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let driver = read("/proc/driver/nvidia/version");
    vec![
        ("build".into(), format!("{} ({build:.16})", env!("CARGO_PKG_VERSION"))),
        ("machine".into(), cpu.trim_start_matches([' ', '\t', ':']).to_string()),
        ("driver".into(), driver.lines().next().unwrap_or("none").to_string()),
        ("PLIMSOLL_ISA".into(), std::env::var("PLIMSOLL_ISA").unwrap_or_default()),
    ]
}

/// Returns the threads of a rank whose run file sets none: its share of the processors.
///
/// `threads`: what this process may use. Ranks bound to processors by a launcher share with those bound to the same.
pub fn share_of_threads(rank: u32, members: &[Member], threads: usize, quota: Option<f64>) -> usize {
    let Some(own) = members.iter().find(|member| member.rank == rank) else { return threads };
    let near = || members.iter().filter(|member| member.site == own.site);
    let sharing = near().filter(|member| member.cpus == own.cpus).count();
    let of_quota = quota.map_or(usize::MAX, |quota| (quota / near().count() as f64).floor() as usize);
    (threads / sharing.max(1)).min(of_quota).max(1)
}

/// Returns NCCL's variables: no multicast, which hangs if only some ranks have it; few channels, to bound memory.
fn nccl_variables() -> Vec<(String, String)> {
    let channels = std::env::var(CHANNELS).unwrap_or_else(|_| "4".into());
    vec![("NCCL_NVLS_ENABLE".into(), "0".into()), (CHANNELS.into(), channels)]
}

/// NCCL's variable for channels between two ranks.
const CHANNELS: &str = "NCCL_MAX_P2P_NCHANNELS";

/// Runs this program with `args` as one rank's trainer, to the end of the run. Returns its exit code.
///
/// Errors: those of `supervise::supervise`; `rank-lost`, with exit code 5, if another rank ended the run.
pub fn supervise_rank(
    args: &[OsString],
    env: &[(String, String)],
    forward: &[SignalPipe<'_>],
    child_ended: SignalPipe<'_>,
    link: &Link,
    user: User<'_>,
) -> Result<u8> {
    let host = Host::this();
    let mut watch = OomWatch::begin(&host);
    let env = [env, &Place::variables(Some(&link.place)), &nccl_variables()].concat();
    let User { say, tell } = user;
    let (ended, has_told) = {
        let mut user = User { say: &mut *say, tell: &mut *tell };
        let linked = Linked::new(link, &mut user, &mut watch);
        let mut report = |seen: &_| linked.say(&Pause(seen).words());
        let ended = plimsoll_worker::supervise(args, &env, forward, child_ended, &mut report, Some(&linked));
        (ended.inspect(|ended| linked.tell_last(ended)), linked.has_told())
    };
    let ended = ended.inspect_err(|error| {
        let sentence = format!("error[{}]: {}", error.slug, error.message);
        link.ended(Ending { cause: Cause::Failed, sentence, exit: error.exit as u8 });
        wait_for_all(link, forward, &mut |_| {});
    })?;
    let evidence = (ended.signal().is_some() && !ended.is_for_others).then(|| watch.evidence());
    let last = read_note(ended.note.as_deref());
    let killed = evidence.as_ref().and_then(|evidence| Death::of(&ended, evidence, &host));
    let ending = ending_of(&ended, &last, killed.as_ref());
    link.ended(ending.clone());
    let mut end = End { rank: link.place.rank, ending, killed, last, has_told };
    let verdict = wait_for_all(link, forward, &mut |verdict| {
        if let Some(error) = end.news(verdict) {
            end.has_told = true;
            tell(&error);
        }
    });
    write_last(link, &end.last, verdict.as_ref());
    end.after(verdict, say)
}

/// Returns a trainer's end in the form that other ranks receive.
fn ending_of(ended: &Ended, last: &Value, killed: Option<&(Death<'_>, Error)>) -> Ending {
    let at = place(last);
    let of = |cause, sentence: String, exit: u8| Ending { cause, sentence, exit };
    if let Some((death, error)) = killed {
        return death.ending(error);
    }
    match (ended.status.code(), ended.is_for_others) {
        (Some(0), _) => of(Cause::Finished, at, 0),
        (_, true) => of(Cause::Secondary, format!("it ended for another rank, {at}"), OTHER_RANK),
        (Some(code), _) if code == i32::from(OTHER_RANK) => {
            // What it saw of the other one: no other rank may say more.
            let seen = ended.last_words.iter().rev().find_map(|line| line.strip_prefix("error[rank-lost]: "));
            let seen = seen.filter(|seen| !seen.starts_with("another rank has ended"));
            let seen = seen.map_or(String::new(), |seen| format!(": {seen}"));
            of(Cause::Secondary, format!("it ended for another rank{seen}, {at}"), OTHER_RANK)
        }
        (Some(code @ (130 | 143)), _) => of(Cause::Interrupted, at, code as u8),
        (Some(code), _) => {
            let words = ended.last_words.iter().rev().find(|line| line.starts_with("error["));
            let sentence = words.map_or(format!("it ended with exit code {code}"), |line| line.clone());
            of(Cause::Failed, format!("{sentence}, {at}"), code as u8)
        }
        (None, _) => {
            let signal = ended.signal().unwrap_or(15);
            of(Cause::Interrupted, signal_name(signal), 128 + signal as u8)
        }
    }
}

/// Waits until this rank may end, and forwards requests; a second one ends the wait. Returns what ended the run, unless
/// it ended well; `heard` gets that early, while others are ending.
fn wait_for_all(link: &Link, forward: &[SignalPipe<'_>], heard: &mut dyn FnMut(&Verdict)) -> Option<Verdict> {
    let mut asked: Option<Instant> = None;
    loop {
        if let Some(verdict) = link.verdict() {
            heard(&verdict);
        }
        if let Some(outcome) = link.outcome() {
            return outcome.verdict;
        }
        for one in forward.iter().filter(|one| one.came()) {
            if asked.is_some_and(|at| at.elapsed() >= ONE_REQUEST) {
                return None;
            }
            asked.get_or_insert_with(Instant::now);
            link.asked(one.signal);
        }
        std::thread::sleep(LOOK);
    }
}

/// A rank whose trainer has ended.
struct End<'a> {
    rank: u32,
    ending: Ending,
    /// Set if a signal ended it that this supervisor did not send.
    killed: Option<(Death<'a>, Error)>,
    /// Last content of the status page, or null.
    last: Value,
    /// True if the user has heard why the run ended.
    has_told: bool,
}

impl End<'_> {
    /// Returns what the user must hear at once, while other ranks are still ending.
    fn news(&self, verdict: &Verdict) -> Option<Error> {
        match &self.killed {
            _ if self.has_told => None,
            Some((_, error)) if verdict.member.rank == self.rank => Some(named(error, verdict)),
            None if self.ending.cause == Cause::Secondary => Some(lost(verdict)),
            _ => None,
        }
    }

    /// Reports this rank's outcome once the run is over.
    fn after(mut self, verdict: Option<Verdict>, say: &mut dyn FnMut(&str)) -> Result<u8> {
        if let (Some(verdict), Some((_, error))) = (&verdict, &mut self.killed)
            && verdict.member.rank == self.rank
        {
            *error = named(error, verdict);
        }
        // A trainer that was ended because the run was over has nothing to report, even if the verdict is on this rank.
        let is_news =
            |verdict: &Verdict| verdict.member.rank != self.rank || self.ending.cause == Cause::Secondary;
        let others = verdict.filter(is_news);
        let dir = self.last.get("dir").and_then(Value::as_str).filter(|_| self.rank == 0);
        if let Some(dir) = dir.map(Path::new) {
            // The terminal's sentence matters most; a second failure while recording it adds nothing.
            let _ = match (&others, &self.killed) {
                (Some(verdict), _) => write_crash(dir, verdict, &self.last),
                (None, Some((death, error))) => death.write_crash(dir, error).map(drop),
                (None, None) => Ok(()),
            };
        }
        match &others {
            None if !self.ending.cause.is_well() => tell_torchrun(&self.ending.sentence),
            Some(verdict) if verdict.member.rank == self.rank => tell_torchrun(&verdict.sentence),
            _ => {}
        }
        let own = self.killed.map_or(Ok(self.ending.exit), |(_, error)| Err(error));
        match others {
            _ if self.has_told => Ok(self.ending.exit),
            None => own,
            Some(verdict) if self.ending.cause == Cause::Secondary => Err(lost(&verdict)),
            Some(verdict) => {
                // Its own end was reported already; a cause that all ranks share is reported once.
                if !same_error(&verdict.sentence, &self.ending.sentence) {
                    say(&verdict.words());
                }
                own
            }
        }
    }
}

/// Returns true if two sentences differ at most in the place.
fn same_error(one: &str, other: &str) -> bool {
    let head = |text: &str| text.rsplit_once(", ").map_or(text.to_string(), |(head, _)| head.to_string());
    one == other || head(one) == head(other)
}

/// Writes the cause where torchrun reads the errors of its processes, so that it names this rank as the first to fail.
/// Source: pytorch `torch/distributed/elastic/multiprocessing/errors/__init__.py`.
fn tell_torchrun(sentence: &str) {
    let Some(path) = std::env::var_os("TORCHELASTIC_ERROR_FILE").filter(|path| !path.is_empty()) else {
        return;
    };
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let error =
        json!({ "message": { "message": sentence, "extraInfo": { "timestamp": seconds.to_string() } } });
    // Only for torchrun's report; stderr has the sentence too.
    let _ = std::fs::write(path, error.to_string());
}

/// Writes `crash.json` of a run that another rank ended.
fn write_crash(dir: &Path, verdict: &Verdict, last: &Value) -> Result<()> {
    let error = lost(verdict);
    let crash = json!({
        "slug": error.slug,
        "message": error.message,
        "facts": error.facts,
        "hints": error.hints,
        "exit": error.exit as i32,
        "step": last.get("step"),
        "phase": last.get("phase"),
        "readings": last,
        "rank": verdict.member.rank,
        "host": verdict.member.host,
        "pid": verdict.member.pid,
    });
    let mut text = serde_json::to_string_pretty(&crash).expect("a JSON value has a JSON text");
    text.push('\n');
    write_atomic(&dir.join("crash.json"), text.as_bytes()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn ended(raw: i32, forwarded: Option<i32>, is_for_others: bool, words: &[&str]) -> Ended {
        Ended {
            pid: 7,
            status: ExitStatus::from_raw(raw),
            forwarded,
            is_for_others,
            note: None,
            last_words: words.iter().map(|word| word.to_string()).collect(),
        }
    }

    #[test]
    fn the_others_hear_how_a_trainer_ended() {
        let at = json!({ "phase": "update", "step": 3, "steps": 9 });
        for (ended, cause, sentence, exit) in [
            (ended(0, None, false, &[]), Cause::Finished, "in step 3 of 9, phase update", 0),
            (ended(143 << 8, Some(15), false, &[]), Cause::Interrupted, "in step 3 of 9, phase update", 143),
            (
                ended(
                    1 << 8,
                    None,
                    false,
                    &["step 3", "error[loss-not-finite]: step 3: the loss is NaN", "hint: x"],
                ),
                Cause::Failed,
                "error[loss-not-finite]: step 3: the loss is NaN, in step 3 of 9, phase update",
                1,
            ),
            (
                ended(3 << 8, None, false, &[]),
                Cause::Failed,
                "it ended with exit code 3, in step 3 of 9, phase update",
                3,
            ),
            (
                ended(5 << 8, None, false, &[]),
                Cause::Secondary,
                "it ended for another rank, in step 3 of 9, phase update",
                5,
            ),
            (
                ended(5 << 8, None, false, &["error[rank-lost]: rank 1 closed its connection", "hint: x"]),
                Cause::Secondary,
                "it ended for another rank: rank 1 closed its connection, in step 3 of 9, phase update",
                5,
            ),
            // It was ended for another rank, whatever it made of that.
            (
                ended(143 << 8, None, true, &[]),
                Cause::Secondary,
                "it ended for another rank, in step 3 of 9, phase update",
                5,
            ),
            (
                ended(9, None, true, &[]),
                Cause::Secondary,
                "it ended for another rank, in step 3 of 9, phase update",
                5,
            ),
            (ended(15, Some(15), false, &[]), Cause::Interrupted, "SIGTERM", 143),
        ] {
            let found = ending_of(&ended, &at, None);
            assert_eq!((found.cause, &*found.sentence, found.exit), (cause, sentence, exit), "{ended:?}");
        }
        assert!(same_error("error[a]: b, before the first step", "error[a]: b, in step 1"));
        assert!(!same_error("error[a]: b, before the first step", "error[c]: b, before the first step"));
    }

    #[test]
    fn ranks_on_the_same_processors_share_them() {
        let on = |site: u32, rank: u32, cpus: &str| {
            let (host, cpus) = ("a".into(), cpus.into());
            Member { rank, host, site, address: None, pid: rank, cpus }
        };
        let member = |rank: u32, cpus: &str| on(0, rank, cpus);
        let hosts: Vec<Member> = (0..4).map(|rank| on(rank / 2, rank, "0-7")).collect();
        let shared: Vec<Member> = (0..4).map(|rank| member(rank, "0-7")).collect();
        let bound: Vec<Member> = (0..4).map(|rank| member(rank, &format!("{rank}"))).collect();
        for (members, threads, quota, expect) in [
            (&shared, 8, None, 2),
            (&shared, 2, None, 1),
            (&shared, 8, Some(4.0), 1),
            (&hosts, 8, None, 4),
            (&hosts, 8, Some(4.0), 2),
            (&bound, 1, None, 1),
            (&bound, 6, None, 6),
            (&bound, 6, Some(8.0), 2),
        ] {
            assert_eq!(share_of_threads(1, members, threads, quota), expect, "{threads} {quota:?}");
        }
    }
}
