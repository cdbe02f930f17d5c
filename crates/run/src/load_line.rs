//! The load line during a run: planned and measured memory of each part of a step, growth, and the supervisor's note.
//!
//! It reads /proc once at each boundary between parts. All it keeps is bounded and planned. `spent` is its own cost.

use crate::events::{Event, MemoryEvent, PartMemory, TrendEvent, WarningEvent};
use crate::status::{Doing, StatusWriter};
use crate::under_way;
use plimsoll_base::{Bytes, Error, Phase};
use plimsoll_memory::CardMemory;
use plimsoll_memory::host::{Host, Rss, RssReader};
use plimsoll_memory::trend::{Scratch, Series, Verdict};
use plimsoll_memory::{Place, Plan, Pool};
use std::path::Path;
use std::time::{Duration, Instant};

/// Steps between two growth tests.
const TREND_EVERY: u32 = 50;
/// Growth gets a warning if this many equally long runs would reach the limit.
const RUNS_TO_LIMIT: u64 = 100;
/// Fraction of the steps whose readings the test drops, within bounds: 1 / `WARM_UP_SHARE`.
const WARM_UP_SHARE: u32 = 20;
const WARM_UP: std::ops::RangeInclusive<u32> = 10..=100;
/// Time between two readings of a card, which are slower than those of /proc.
const CARD_EVERY: Duration = Duration::from_millis(250);

const KINDS: [&str; plimsoll_plan::LOAD_LINE_KINDS] = ["anon", "file", "shmem", "workers"];

/// A row of the plan to compare readings with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    Card,
    Trainer,
    Files,
    Shmem,
    Workers,
    EnvWorkers,
    Supervisor,
}

impl Row {
    fn name(self) -> &'static str {
        match self {
            Row::Card => "what the run holds of the card",
            Row::Trainer => "the trainer's resident memory",
            Row::Files => "its pages of files",
            Row::Shmem => "its shared memory",
            Row::Workers => "row reward.workers",
            Row::EnvWorkers => "rows env.workers and eval.workers",
            Row::Supervisor => "row process.supervisor",
        }
    }
}

/// Compares a run's memory with its plan.
#[derive(Debug)]
pub struct Watch {
    reader: RssReader,
    status: StatusWriter,
    planned: Planned,
    doing: Doing,
    /// Readings of the current step, one per part.
    parts: Vec<PartMemory>,
    supervisor: Option<u32>,
    supervisor_bytes: u64,
    /// True if the run has workers, which run other people's code.
    has_workers: bool,
    workers_bytes: u64,
    has_read_others: bool,
    series: [Series; KINDS.len()],
    scratch: Scratch,
    verdicts: [Option<Verdict>; KINDS.len()],
    growing: [bool; KINDS.len()],
    /// Rows already reported: each is reported once per run.
    over: Vec<Row>,
    strict: Option<Error>,
    is_strict: bool,
    peak: Bytes,
    /// Memory that the run holds on a card, and when that was read.
    card: Option<(Bytes, Instant)>,
    spent: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Planned {
    /// Resident memory of the trainer in each phase, and the maximum.
    phases: [Bytes; Phase::ALL.len()],
    peak: Bytes,
    arena: [Bytes; Phase::ALL.len()],
    arena_bytes: Bytes,
    files: Bytes,
    shmem: Bytes,
    workers: Bytes,
    has_env_workers: bool,
    supervisor: Bytes,
    /// Device memory in each phase, and the maximum.
    card: [Bytes; Phase::ALL.len()],
    card_peak: Bytes,
    limit: Option<Bytes>,
}

impl Watch {
    /// Watches a run of `steps` steps under this plan. `strict` makes the first excess an error.
    pub fn new(plan: &Plan, steps: u32, strict: bool) -> Watch {
        let mut status = StatusWriter::new();
        status.status.steps = steps;
        status.status.planned_bytes = plan.peak(Pool::Host).peak.0;
        if let Some(limit) = &plan.limits.host {
            (status.status.limit_bytes, status.status.limit_source) = (limit.bytes.0, limit.source.clone());
        }
        let mut watch = Watch::of(Planned::of(plan), steps, strict, status);
        watch.status.write();
        watch
    }

    fn of(planned: Planned, steps: u32, strict: bool, status: StatusWriter) -> Watch {
        let warm_up = (steps / WARM_UP_SHARE).clamp(*WARM_UP.start(), *WARM_UP.end());
        Watch {
            reader: RssReader::new(),
            status,
            planned,
            doing: Doing::Start,
            parts: Vec::with_capacity(Doing::ALL.len()),
            supervisor: plimsoll_worker::supervisor_pid(),
            supervisor_bytes: 0,
            has_workers: planned.workers > Bytes(0),
            workers_bytes: 0,
            has_read_others: false,
            series: std::array::from_fn(|_| Series::new(warm_up)),
            scratch: Scratch::new(),
            verdicts: [None; KINDS.len()],
            growing: [false; KINDS.len()],
            over: Vec::new(),
            strict: None,
            is_strict: strict,
            peak: Bytes(0),
            card: None,
            spent: Duration::ZERO,
        }
    }

    /// Sets the run directory, where the supervisor records a crash.
    pub(crate) fn set_dir(&mut self, dir: &Path) {
        self.status.status.dir = std::path::absolute(dir).ok();
        self.status.write();
    }

    /// Records that `doing` begins: reads memory of the part that ended, the card's by `card`, and checks the plan.
    pub fn begin(&mut self, doing: Doing, step: u32, card: impl FnOnce() -> Option<CardMemory>) {
        let started = Instant::now();
        // Between steps everything is read; within a step, only what changes.
        let rss = match doing {
            Doing::Idle => self.reader.read(),
            _ => self.reader.read_again(&self.status.status.rss),
        };
        if self.card.is_none_or(|(_, when)| when.elapsed() > CARD_EVERY) {
            self.card = card().map(|memory| (memory.ours(), Instant::now()));
        }
        self.peak = self.peak.max(rss.now);
        self.end_part(&rss);
        self.doing = doing;
        under_way::begin(doing);
        let status = &mut self.status.status;
        (status.phase, status.step, status.rss, status.workers_bytes) =
            (doing, step, rss, self.workers_bytes);
        status.waits_for.clear();
        self.status.write();
        self.spent += started.elapsed();
    }

    /// Writes down what this rank needs of another.
    pub(crate) fn waits_for(&mut self, whom: String) {
        self.status.status.waits_for = whom;
        self.status.write();
    }

    /// Ends a step: returns its readings, the trend at every `TREND_EVERY` steps, and a warning for each exceeded row.
    pub(crate) fn end_step(
        &mut self,
        step: u32,
        steps: u32,
        card: impl FnOnce() -> Option<CardMemory>,
    ) -> Vec<Event> {
        self.begin(Doing::Idle, step, card);
        let started = Instant::now();
        let rss = self.status.status.rss;
        self.read_others();
        let kinds = [rss.anon.0, rss.file.0, rss.shmem.0, self.workers_bytes];
        for (series, bytes) in self.series.iter_mut().zip(kinds) {
            series.push(bytes as f64);
        }
        let mut events = vec![Event::Memory(MemoryEvent {
            step,
            parts: std::mem::take(&mut self.parts),
            workers_bytes: self.workers_bytes,
            workers_planned_bytes: self.planned.workers.0,
            supervisor_bytes: self.supervisor_bytes,
            supervisor_planned_bytes: self.planned.supervisor.0,
        })];
        events.extend(self.check_line(step, &rss));
        if step.is_multiple_of(TREND_EVERY) || step == steps {
            events.extend(self.check_trend(step, steps, kinds));
        }
        self.spent += started.elapsed();
        events
    }

    fn read_others(&mut self) {
        let host = Host::this();
        let held = |pid: u32| host.rss_of(pid).map_or(0, |rss| rss.now.0);
        // Its binary's pages are the trainer's, which have a row; how many it maps depends on the file system.
        let own = |pid: u32| host.rss_of(pid).map_or(0, |rss| rss.anon.0 + rss.shmem.0);
        self.supervisor_bytes = self.supervisor.map_or(0, own);
        if self.has_workers {
            // Processes that a worker starts count with it.
            let ours = [Some(std::process::id()), self.supervisor];
            let workers = host.run_pids().into_iter().filter(|pid| !ours.contains(&Some(*pid)));
            // Environment workers share the pages of their interpreter, which have their own row.
            let anon = |pid: u32| host.rss_of(pid).map_or(0, |rss| rss.anon.0);
            self.workers_bytes =
                if self.planned.has_env_workers { workers.map(anon).sum() } else { workers.map(held).sum() };
        }
        self.has_read_others = true;
    }

    /// Returns the memory of the run's other processes, as of the last step.
    pub fn others_bytes(&mut self) -> u64 {
        if !self.has_read_others {
            self.read_others();
        }
        self.supervisor_bytes + self.workers_bytes
    }

    /// Returns the error of a strict run that exceeded the line, once.
    pub(crate) fn strict_error(&mut self) -> Option<Error> {
        self.strict.take()
    }

    /// Returns the highest reading of the trainer's resident memory.
    pub fn peak(&self) -> Bytes {
        self.peak
    }

    /// Returns the supervisor's resident memory without the binary's pages; 0 without one.
    pub fn supervisor_bytes(&self) -> u64 {
        self.supervisor_bytes
    }

    /// Returns the last trend test of each kind.
    pub fn trend(&self) -> TrendEvent {
        self.trend_event(self.status.status.step)
    }

    /// Returns the time spent on watching.
    pub fn spent(&self) -> Duration {
        self.spent
    }

    /// Adds time spent on reporting.
    pub(crate) fn add_spent(&mut self, time: Duration) {
        self.spent += time;
    }

    fn end_part(&mut self, rss: &Rss) {
        // A step has few parts; evaluations and saves between steps are reported with the next one.
        if self.parts.len() < Doing::ALL.len() {
            let (planned, arena, card) = self.planned.of_part(self.doing);
            self.parts.push(PartMemory {
                phase: self.doing,
                planned_bytes: planned.0,
                rss_bytes: rss.now.0,
                anon_bytes: rss.anon.0,
                file_bytes: rss.file.0,
                shmem_bytes: rss.shmem.0,
                arena_planned_bytes: arena.0,
                arena_bytes: self.planned.arena_bytes.0,
                device_planned_bytes: card.0,
                device_bytes: self.card_bytes().0,
            });
        }
    }

    fn card_bytes(&self) -> Bytes {
        self.card.map_or(Bytes(0), |(bytes, _)| bytes)
    }

    /// Returns a warning for each row exceeded for the first time.
    fn check_line(&mut self, step: u32, rss: &Rss) -> Vec<Event> {
        let most = self.status.status.phase;
        let highest = self.peak.max(rss.now);
        let planned = self.planned;
        let mut events = Vec::new();
        let workers = if planned.has_env_workers { Row::EnvWorkers } else { Row::Workers };
        for (row, held, allowed) in [
            (Row::Card, self.card_bytes(), planned.card_peak),
            (Row::Trainer, highest, planned.peak),
            (Row::Files, rss.file, planned.files),
            (Row::Shmem, rss.shmem, planned.shmem),
            (workers, Bytes(self.workers_bytes), planned.workers),
            (Row::Supervisor, Bytes(self.supervisor_bytes), planned.supervisor),
        ] {
            if held <= allowed || self.over.contains(&row) {
                continue;
            }
            self.over.push(row);
            let message = format!("step {step}: {} is {held}, the plan has {allowed}", row.name());
            let error = Error::new("over-the-line", message)
                .fact(format!(
                    "anon {}, file {}, shmem {}; read when {} began",
                    rss.anon,
                    rss.file,
                    rss.shmem,
                    most.name()
                ))
                .hint("raise the limit by the difference, and report the run file: the plan is wrong")
                .hint("memory.strict = false continues with a warning");
            events.push(Event::Warning(WarningEvent::of(&error, step)));
            if self.is_strict {
                self.strict.get_or_insert(error);
            }
        }
        events
    }

    /// Returns the trend of each kind, with a warning for each that has begun to grow towards a limit within reach.
    fn check_trend(&mut self, step: u32, steps: u32, now: [u64; KINDS.len()]) -> Vec<Event> {
        for (verdict, series) in self.verdicts.iter_mut().zip(&self.series) {
            *verdict = series.verdict(&mut self.scratch);
        }
        if self.verdicts.iter().all(Option::is_none) {
            return Vec::new();
        }
        let mut events = vec![Event::Trend(self.trend_event(step))];
        for (kind, name) in KINDS.iter().enumerate() {
            let Some(verdict) = self.verdicts[kind].filter(|verdict| verdict.grows && !self.growing[kind])
            else {
                continue;
            };
            let total: u64 = now.iter().sum();
            let limit = self.planned.limit.and_then(|limit| verdict.steps_to(total, limit.0));
            if limit.is_some_and(|away| away > RUNS_TO_LIMIT * u64::from(steps)) {
                continue;
            }
            self.growing[kind] = true;
            let slope = Bytes(verdict.slope_bytes_per_step as u64);
            let forecast = limit.map_or(String::new(), |steps| format!("; the limit is {steps} steps away"));
            let message = format!("step {step}: {name} memory grows by {slope} a step{forecast}");
            let error = Error::new("host-memory-trend", message);
            events.push(Event::Warning(WarningEvent::of(&error, step)));
        }
        events
    }

    fn trend_event(&self, step: u32) -> TrendEvent {
        let named = KINDS.iter().zip(self.verdicts);
        TrendEvent { step, kinds: named.filter_map(|(name, v)| Some((name.to_string(), v?))).collect() }
    }
}

impl Planned {
    fn of(plan: &Plan) -> Planned {
        let sum = |keep: &dyn Fn(&plimsoll_memory::Region) -> bool| -> Bytes { plan.layout.sum(keep) };
        // The host arena is touched before the first step and stays, so it counts in full in every phase.
        let on_host = plan.layout.regions.iter().any(|r| r.place == Place::Arena && r.pool == Pool::Host);
        let arena_bytes = plan.arena_bytes();
        let resident_arena = if on_host { arena_bytes } else { Bytes(0) };
        let outside = |phase: Phase| {
            sum(&|r| {
                r.pool == Pool::Host
                    && matches!(r.place, Place::Offloaded | Place::Heap | Place::Process)
                    && r.phases.contains(phase)
            })
        };
        let named = |name: &str| sum(&|r| r.name == name);
        // The arena of one of several ranks is in shared memory.
        let others = named("ranks.others");
        let of_ranks = if others > Bytes(0) { arena_bytes + others } else { Bytes(0) };
        let env_workers = named("env.workers") + named("eval.workers");
        let phases = Phase::ALL.map(|phase| resident_arena + outside(phase));
        Planned {
            phases,
            peak: phases.into_iter().max().unwrap_or_default(),
            arena: Phase::ALL.map(|phase| sum(&|r| r.place == Place::Arena && r.phases.contains(phase))),
            arena_bytes,
            files: named("process.image") + named("cuda.files"),
            // A driver may allocate page-locked memory as shared memory.
            shmem: sum(&|r| r.pool == Pool::Shm || r.place == Place::Offloaded)
                + named("cuda.shared")
                + named("env.slots")
                + named("eval.slots")
                + of_ranks,
            workers: named("reward.workers")
                + named("track.worker")
                + named("advantage.worker")
                + env_workers,
            has_env_workers: env_workers > Bytes(0),
            supervisor: named("process.supervisor"),
            card: Phase::ALL.map(|phase| plan.in_phase(Pool::Device, phase)),
            card_peak: plan.peak(Pool::Device).peak,
            limit: plan.limits.host.as_ref().map(|limit| limit.bytes),
        }
    }

    /// Returns the plan for a part of a step: (the trainer's resident memory, the arena's regions, the card's memory).
    fn of_part(&self, doing: Doing) -> (Bytes, Bytes, Bytes) {
        let phase = match doing {
            Doing::Rollout | Doing::Eval => Phase::Rollout,
            Doing::Score => Phase::Score,
            Doing::Critic => Phase::Critic,
            Doing::Update => Phase::Update,
            Doing::Start | Doing::Reward | Doing::Save | Doing::Idle => {
                return (self.peak, self.arena_bytes, self.card_peak);
            }
        };
        let at = phase as usize;
        (self.phases[at], self.arena[at], self.card[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Bytes = Bytes::mib(1 << 20);

    fn watch(planned: Planned, steps: u32, strict: bool) -> Watch {
        Watch::of(planned, steps, strict, StatusWriter::default())
    }

    /// More than any test process needs.
    fn enough() -> Planned {
        Planned {
            phases: [ROOM; Phase::ALL.len()],
            peak: ROOM,
            files: ROOM,
            shmem: ROOM,
            ..Planned::default()
        }
    }

    #[test]
    fn the_slots_that_workers_share_are_shared_memory() {
        let mut plan = Plan { layout: plimsoll_memory::Layout::new(), limits: Default::default() };
        for (name, bytes) in [("env.slots", 16 << 10), ("eval.slots", 4096), ("env.buffers", 100)] {
            plan.layout.outside(name, "collect", Pool::Host, Place::Heap, Bytes(bytes));
        }
        assert_eq!(Planned::of(&plan).shmem, Bytes(20 << 10));
    }

    fn no_card() -> Option<CardMemory> {
        None
    }

    fn warnings(events: &[Event]) -> Vec<&WarningEvent> {
        fn warning(event: &Event) -> Option<&WarningEvent> {
            if let Event::Warning(warning) = event { Some(warning) } else { None }
        }
        events.iter().filter_map(warning).collect()
    }

    #[test]
    fn a_row_that_is_exceeded_is_named_once_and_ends_a_strict_run() {
        let mut calm = watch(enough(), 10, true);
        assert!(warnings(&calm.end_step(1, 10, no_card)).is_empty() && calm.strict_error().is_none());

        let tight = Planned { peak: Bytes::mib(1), ..enough() };
        for strict in [false, true] {
            let mut watch = watch(tight, 10, strict);
            watch.begin(Doing::Rollout, 1, no_card);
            let events = watch.end_step(1, 10, no_card);
            let told = warnings(&events);
            assert!(told.len() == 1 && told[0].slug == "over-the-line", "{told:?}");
            assert!(told[0].message.contains("the plan has 1.0 MiB"), "{}", told[0].message);
            assert_eq!(watch.strict_error().map(|error| error.slug), strict.then_some("over-the-line"));
            assert!(warnings(&watch.end_step(2, 10, no_card)).is_empty() && watch.strict_error().is_none());
        }
    }

    #[test]
    fn a_step_has_one_entry_a_part_and_a_bounded_number_of_them() {
        let mut watch = watch(enough(), 10, false);
        for doing in [Doing::Rollout, Doing::Reward, Doing::Score, Doing::Update] {
            watch.begin(doing, 1, no_card);
        }
        let events = watch.end_step(1, 10, no_card);
        let Event::Memory(memory) = &events[0] else { panic!("{events:?}") };
        let parts: Vec<&str> = memory.parts.iter().map(|part| part.phase.name()).collect();
        assert_eq!(parts, ["start", "rollout", "reward", "score", "update"]);
        assert!(memory.parts.iter().all(|p| p.rss_bytes == p.anon_bytes + p.file_bytes + p.shmem_bytes));
        (0..1000).for_each(|_| watch.begin(Doing::Save, 2, no_card));
        assert!(watch.parts.len() <= Doing::ALL.len());
    }

    #[test]
    fn memory_that_leaks_is_named_by_its_kind_with_a_forecast() {
        let told = leak_under(Bytes::mib(4 << 10));
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].slug, "host-memory-trend");
        let message = &told[0].message;
        let (_, grows) = message.split_once("anon memory grows by ").expect("its kind");
        let (kib, limit) = grows.split_once(" KiB a step; ").expect("a slope");
        // What leaks, and what other tests of this process allocate meanwhile.
        let kib: f64 = kib.parse().expect("a number");
        assert!((250.0..2500.0).contains(&kib) && limit.starts_with("the limit is "), "{told:?}");
        // A hundred runs would survive it. In the same test, because two of them would see each other's memory.
        let told = leak_under(Bytes::mib(100 << 10));
        assert!(told.is_empty(), "{told:?}");
    }

    /// The warnings of 100 of 200 steps that leak 252 KiB each.
    fn leak_under(limit: Bytes) -> Vec<WarningEvent> {
        let mut watch = watch(Planned { limit: Some(limit), ..enough() }, 200, false);
        let (mut leaked, mut told) = (Vec::new(), Vec::new());
        for step in 1..=100 {
            // A page less than 256 KiB: the allocator's own words must not round it up to a page more.
            leaked.push(vec![1u8; (256 << 10) - (4 << 10)]);
            let events = watch.end_step(step, 200, no_card);
            // Other tests of this process read files meanwhile.
            let of_anon = |told: &&WarningEvent| told.message.contains(": anon memory");
            told.extend(warnings(&events).into_iter().filter(of_anon).cloned());
        }
        assert!(leaked.iter().all(|part| part[0] == 1));
        assert!(watch.trend().kinds["anon"].grows && !watch.trend().kinds["shmem"].grows);
        told
    }
}
