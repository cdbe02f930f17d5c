//! The state of one run, read from its directory piece by piece and held in bounded memory. Nothing is written.

use super::files::Files;
use super::line::{Line, Part};
use super::samples;
use super::series::Series;
use super::tail::{Look, Tail};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

/// Bytes of the log read per turn, so that a slow disk or a long log does not delay other runs.
const TURN_BYTES: u64 = 4 << 20;
/// Events kept. The oldest are dropped first, and counted.
const NOTABLE_MAX: usize = 400;
const EVALS_MAX: usize = 1024;
const EVAL_SETS_MAX: usize = 16;
const PARTS_MAX: usize = 24;
/// Longest text in an event, in characters.
const TEXT_CHARS_MAX: usize = 4000;

/// The highest readings of a part of a step.
#[derive(Clone, Debug, Default)]
struct Peak {
    most: Part,
    /// Memory of the trainer, its workers and its supervisor, read together.
    all_bytes: u64,
}

/// Processes that a run started; the load line includes them.
#[derive(Clone, Copy, Debug, Default)]
struct Others {
    planned_bytes: u64,
    measured_bytes: u64,
}

/// A run and the position up to which it was read.
pub struct Run {
    pub name: String,
    pub dir: PathBuf,
    tail: Tail,
    files: Files,
    exists: bool,
    pub series: Series,
    buckets_max: usize,
    what: String,
    steps: Option<u32>,
    planned_bytes: Option<u64>,
    limit_bytes: Option<u64>,
    seconds: f64,
    seconds_left: Option<f64>,
    /// Tokens a second of all steps so far, sampled and trained.
    rates: [Option<f64>; 2],
    /// By data set: (step, score).
    evals: BTreeMap<String, Vec<(u32, f64)>>,
    peaks: Vec<Peak>,
    others: Others,
    trend: Value,
    notable: VecDeque<Value>,
    notable_left_out: u64,
    num_warnings: u64,
    finished: bool,
    unreadable_lines: u64,
    sample_files: Vec<String>,
    /// Incremented with every change that a page may show.
    pub version: u64,
    /// Incremented with every change of `detail`.
    detail_version: u64,
}

impl Run {
    /// Reads nothing yet. A curve has at most `buckets_max` points.
    pub fn new(name: String, dir: &Path, buckets_max: usize) -> Run {
        Run {
            name,
            dir: dir.to_path_buf(),
            tail: Tail::new(&dir.join("events.jsonl")),
            files: Files::default(),
            exists: true,
            series: Series::with_buckets(0, buckets_max),
            buckets_max,
            what: String::new(),
            steps: None,
            planned_bytes: None,
            limit_bytes: None,
            seconds: 0.0,
            seconds_left: None,
            rates: [None; 2],
            evals: BTreeMap::new(),
            peaks: Vec::new(),
            others: Others::default(),
            trend: Value::Null,
            notable: VecDeque::new(),
            notable_left_out: 0,
            num_warnings: 0,
            finished: false,
            unreadable_lines: 0,
            sample_files: Vec::new(),
            version: 0,
            detail_version: 0,
        }
    }

    /// Reads what was added, up to a bound. Returns true if there is more to read now.
    pub fn turn(&mut self) -> bool {
        let look = self.tail.look();
        let was_there = std::mem::replace(&mut self.exists, look != Look::Gone);
        if look == Look::Restarted {
            self.begin_again();
        }
        let read = if matches!(look, Look::Grown | Look::Restarted) { self.read() } else { 0 };
        let small_files = self.files.look(&self.dir);
        let files = samples::list(&self.dir);
        let other_files = files != self.sample_files;
        self.sample_files = files;
        let changed = small_files || other_files || was_there != self.exists;
        self.detail_version += u64::from(changed);
        let ranks = self.files.look_at_ranks(&self.dir);
        self.version += u64::from(changed || ranks || read > 0 || look == Look::Restarted);
        read > 0 && self.tail.offset < self.tail.length()
    }

    /// Drops all state from the log, which was cut, replaced or started again.
    fn begin_again(&mut self) {
        let fresh = Run::new(std::mem::take(&mut self.name), &self.dir, self.buckets_max);
        let old = std::mem::replace(self, fresh);
        self.series = Series::with_buckets(old.series.epoch + 1, self.buckets_max);
        self.tail = old.tail;
        self.files = old.files;
        self.sample_files = old.sample_files;
        (self.version, self.detail_version) = (old.version + 1, old.detail_version + 1);
    }

    fn read(&mut self) -> u64 {
        let mut tail = std::mem::replace(&mut self.tail, Tail::new(Path::new("")));
        let read = tail.read(TURN_BYTES, |offset, bytes| match Line::parse(bytes) {
            Some(line) => self.add(offset, &line),
            None => self.unreadable_lines += 1,
        });
        self.tail = tail;
        // A failed read is tried again in the next turn; what was read stays.
        read.unwrap_or(0)
    }

    fn add(&mut self, offset: u64, line: &Line<'_>) {
        // Clocks jump; the run counts its own seconds since the start.
        self.seconds = line.seconds_since_start.unwrap_or(self.seconds);
        match line.event.as_ref() {
            "started" => self.start(line),
            "step" => self.step(offset, line),
            "memory" => self.memory(line),
            "eval" => self.eval(line),
            "trend" => {
                let grows =
                    |kinds: &Value| kinds.as_object().is_some_and(|k| k.values().any(|v| v["grows"] == true));
                self.trend = line.kinds.clone().unwrap_or_default();
                self.detail_version += 1;
                if grows(&self.trend) {
                    self.note(line, json!({}));
                }
            }
            "resumed" => {
                self.finished = false;
                self.note(line, json!({ "notes": cut_all(&line.notes) }));
            }
            "warning" => {
                self.num_warnings += 1;
                let slug = cut(line.slug.as_deref().unwrap_or_default());
                let message = cut(line.message.as_deref().unwrap_or_default());
                self.note(line, json!({ "slug": slug, "message": message, "facts": cut_all(&line.facts) }));
            }
            "saved" => self.note(line, json!({ "path": cut(line.path.as_deref().unwrap_or_default()) })),
            "finished" => {
                self.finished = true;
                self.note(line, json!({}));
            }
            _ => {}
        }
    }

    fn start(&mut self, line: &Line<'_>) {
        self.what = cut(line.what.as_deref().unwrap_or_default());
        self.steps = line.steps.or(self.steps);
        self.planned_bytes = line.planned_bytes.or(self.planned_bytes);
        self.limit_bytes = line.limit_bytes.or(self.limit_bytes);
        self.finished = false;
        self.note(line, json!({ "what": self.what.clone() }));
    }

    fn step(&mut self, offset: u64, line: &Line<'_>) {
        let Some(step) = line.step else { return self.unreadable_lines += 1 };
        if self.series.last_step().is_some_and(|last| step <= last) {
            self.evals.values_mut().for_each(|points| points.retain(|(at, _)| *at < step));
            self.note(line, json!({ "event": "went back" }));
        }
        self.series.add(step, offset, line.numbers());
        self.steps = line.steps.or(self.steps);
        self.planned_bytes = line.planned_bytes.or(self.planned_bytes);
        self.seconds_left = line.seconds_left;
        self.rates = [line.tokens_per_second_rollout, line.tokens_per_second_update];
    }

    fn memory(&mut self, line: &Line<'_>) {
        let others = line.workers_bytes + line.supervisor_bytes;
        self.others = Others {
            planned_bytes: line.workers_planned_bytes + line.supervisor_planned_bytes,
            measured_bytes: self.others.measured_bytes.max(others),
        };
        for part in line.parts.iter().take(PARTS_MAX) {
            let at = match self.peaks.iter().position(|peak| peak.most.phase == part.phase) {
                Some(at) => at,
                None if self.peaks.len() == PARTS_MAX => continue,
                None => {
                    self.peaks.push(Peak {
                        most: Part { phase: cut(&part.phase), ..Part::default() },
                        all_bytes: 0,
                    });
                    self.peaks.len() - 1
                }
            };
            self.detail_version += u64::from(self.peaks[at].add(part, others));
        }
    }

    fn eval(&mut self, line: &Line<'_>) {
        let (Some(step), Some(score)) = (line.step, line.score) else { return };
        let set = cut(line.set.as_deref().unwrap_or_default());
        if !self.evals.contains_key(&set) && self.evals.len() == EVAL_SETS_MAX {
            return;
        }
        let points = self.evals.entry(set.clone()).or_default();
        points.retain(|(at, _)| *at < step);
        points.push((step, score));
        if points.len() > EVALS_MAX {
            *points = points.iter().copied().step_by(2).collect();
        }
        self.note(line, json!({ "set": set, "score": score, "num_samples": line.num_samples }));
    }

    fn note(&mut self, line: &Line<'_>, more: Value) {
        let mut event = json!({ "event": cut(&line.event), "step": line.step, "seconds": self.seconds });
        let known = event.as_object_mut().expect("made as one");
        known.extend(more.as_object().cloned().unwrap_or_default());
        self.notable.push_back(event);
        if self.notable.len() > NOTABLE_MAX {
            self.notable.pop_front();
            self.notable_left_out += 1;
        }
        self.detail_version += 1;
    }

    fn state(&self) -> &'static str {
        match () {
            () if !self.exists => "gone",
            () if self.files.crash.is_some() => "failed",
            () if self.files.is_held == Some(true) => "running",
            () if self.finished || self.files.summary.is_some() => "finished",
            () if self.files.is_held == Some(false) => "stopped",
            () => "unknown",
        }
    }

    /// Returns the highest joint reading of the trainer, its workers and its supervisor.
    fn all_peak_bytes(&self) -> Option<u64> {
        self.peaks.iter().map(|peak| peak.all_bytes).max()
    }

    /// Returns the planned host memory of all of them.
    fn load_line_bytes(&self) -> Option<u64> {
        let host = self.files.plan["pools"].as_array()?.iter().find(|pool| pool["pool"] == "host")?;
        host["peak_bytes"].as_u64()
    }

    /// Returns what changes with each step: about a kilobyte, plus a third of one for each of several ranks.
    pub fn brief(&self) -> Value {
        let last = |name: &str| self.series.last(name);
        let evals = self.evals.values().next();
        let score = |point: Option<&(u32, f64)>| point.map(|(_, score)| *score);
        let best = |points: &Vec<(u32, f64)>| points.iter().map(|(_, score)| *score).reduce(f64::max);
        json!({
            "name": self.name,
            "what": self.what,
            "state": self.state(),
            "step": self.series.last_step().unwrap_or(0),
            "steps": self.steps,
            "seconds": self.seconds,
            "seconds_left": self.seconds_left,
            "reward": last("reward"),
            "reward_best": self.series.extremes("reward").map(|(_, most)| most),
            "loss": last("loss"),
            "loss_least": self.series.extremes("loss").map(|(least, _)| least),
            "eval_first": score(evals.and_then(|points| points.first())),
            "eval_last": score(evals.and_then(|points| points.last())),
            "eval_best": evals.and_then(best),
            "rollout_rate": self.rates[0],
            "update_rate": self.rates[1],
            "frame_rate": last("frames_per_second"),
            "rss_bytes": last("memory/host/step/measured"),
            "peak_bytes": self.all_peak_bytes(),
            "planned_bytes": self.planned_bytes,
            "load_line_bytes": self.load_line_bytes(),
            "limit_bytes": self.limit_bytes,
            "num_warnings": self.num_warnings,
            "ranks": self.files.ranks,
            "read_bytes": self.tail.offset,
            "log_bytes": self.tail.length(),
            "version": self.version,
            "detail_version": self.detail_version,
            "epoch": self.series.epoch,
        })
    }

    /// Returns what rarely changes.
    pub fn detail(&self) -> Value {
        let peaks = self.peaks.iter().map(|Peak { most, all_bytes }| {
            json!({
                "phase": most.phase,
                "planned_bytes": most.planned_bytes,
                "rss_bytes": most.rss_bytes,
                "all_bytes": all_bytes,
                "arena_planned_bytes": most.arena_planned_bytes,
                "arena_bytes": most.arena_bytes,
                "device_planned_bytes": most.device_planned_bytes,
                "device_bytes": most.device_bytes,
            })
        });
        json!({
            "detail_version": self.detail_version,
            "dir": self.dir.display().to_string(),
            "plan": self.files.plan,
            "peaks": peaks.collect::<Vec<Value>>(),
            "parts_of_host": {
                "measured": self.all_peak_bytes(),
                "trainer": {
                    "planned_bytes": self.peaks.iter().map(|peak| peak.most.planned_bytes).max(),
                    "measured_bytes": self.peaks.iter().map(|peak| peak.most.rss_bytes).max(),
                },
                "workers": {
                    "planned_bytes": self.others.planned_bytes,
                    "measured_bytes": self.others.measured_bytes,
                },
            },
            "evals": self.evals,
            "trend": self.trend,
            "notable": self.notable,
            "notable_left_out": self.notable_left_out,
            "crash": self.files.crash,
            "summary": self.files.summary,
            "run_file": self.files.run_file,
            "settings": self.files.settings,
            "sample_files": self.sample_files,
            "unreadable_lines": self.unreadable_lines + self.tail.too_long,
            "metrics_left_out": self.series.names_left_out,
        })
    }

    pub fn slugs(&self) -> Vec<String> {
        let crash = self.files.crash.as_ref().map(|crash| &crash["slug"]);
        let noted = self.notable.iter().map(|event| &event["slug"]).chain(crash);
        let mut slugs: Vec<String> = noted.filter_map(|slug| slug.as_str().map(str::to_string)).collect();
        slugs.sort();
        slugs.dedup();
        slugs
    }

    /// Rereads single steps from `first` to `last` from the log, up to `bytes_max`, where buckets hold several.
    pub fn zoom(&self, first: u32, last: u32, bytes_max: u64) -> Series {
        let mut near = Series::new(self.series.epoch);
        let mut tail = Tail::new(&self.dir.join("events.jsonl"));
        if tail.look() == Look::Gone {
            return near;
        }
        tail.start_at(self.series.offset_of(first));
        let mut over = false;
        let end = tail.offset + bytes_max;
        while !over && tail.offset < end {
            let read = tail.read(1, |offset, bytes| {
                let Some(line) = Line::parse(bytes).filter(|line| line.event == "step") else { return };
                let Some(step) = line.step else { return };
                over |= step > last;
                if (first..=last).contains(&step) {
                    near.add(step, offset, line.numbers());
                }
            });
            if read.unwrap_or(0) == 0 {
                break;
            }
        }
        near
    }

    /// Returns the numbers for Prometheus, by metric.
    pub fn gauges(&self) -> Map<String, Value> {
        let brief = self.brief();
        let mut gauges = Map::new();
        for name in [
            "step",
            "steps",
            "seconds",
            "seconds_left",
            "planned_bytes",
            "peak_bytes",
            "limit_bytes",
            "num_warnings",
        ] {
            gauges.insert(format!("run/{name}"), brief[name].clone());
        }
        gauges.insert("run/eval".into(), brief["eval_last"].clone());
        gauges.insert("run/running".into(), json!(u8::from(brief["state"] == "running")));
        gauges.insert("run/failed".into(), json!(u8::from(brief["state"] == "failed")));
        if let Some(ranks) = brief["ranks"]["rows"].as_array() {
            gauges.insert("run/ranks".into(), json!(ranks.len()));
            gauges.insert("run/slowest_rank".into(), brief["ranks"]["slowest"].clone());
        }
        gauges.extend(
            self.series.names().filter_map(|name| Some((name.to_string(), json!(self.series.last(name)?)))),
        );
        gauges
    }
}

impl Peak {
    /// Returns true if one of the readings is a new maximum.
    fn add(&mut self, part: &Part, others: u64) -> bool {
        let most = &mut self.most;
        let raise = |known: &mut u64, now: u64| now > std::mem::replace(known, now.max(*known));
        let raised = [
            raise(&mut most.planned_bytes, part.planned_bytes),
            raise(&mut most.rss_bytes, part.rss_bytes),
            raise(&mut most.arena_planned_bytes, part.arena_planned_bytes),
            raise(&mut most.arena_bytes, part.arena_bytes),
            raise(&mut most.device_planned_bytes, part.device_planned_bytes),
            raise(&mut most.device_bytes, part.device_bytes),
            raise(&mut self.all_bytes, part.rss_bytes + others),
        ];
        raised.contains(&true)
    }
}

fn cut(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

fn cut_all(lines: &[String]) -> Vec<String> {
    lines.iter().take(40).map(|line| cut(line)).collect()
}
