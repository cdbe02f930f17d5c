//! `bench ranks`: times a run on several numbers of ranks and hosts, as real processes. All must leave equal files.

use crate::hosts::on_hosts;
use plimsoll_base::{Error, Result, read_small};
use plimsoll_files::digest;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Options of `bench ranks`.
pub struct RanksOptions {
    /// Run files.
    pub runs: Vec<PathBuf>,
    /// Numbers of ranks.
    pub ranks: Vec<usize>,
    /// Numbers of hosts, each a process namespace of this machine. Those that do not divide the ranks are skipped.
    pub hosts: Vec<usize>,
    pub steps: usize,
    /// Further settings, `key=value`.
    pub sets: Vec<String>,
}

/// Parts of the names of metrics that depend on the clock, the process or the engine's passes.
const OF_THE_CLOCK: [&str; 9] =
    ["time/", "step_time", "per_second", "seconds", "rss", "memory", "host/", "passes", "preempt"];

/// Runs every run file on every number of ranks.
///
/// Errors: `bench-failed` with the words of a run that failed.
pub fn ranks(options: &RanksOptions) -> Result<Value> {
    let mut rows = Vec::new();
    for run in &options.runs {
        let mut first: Option<(usize, BTreeMap<String, String>)> = None;
        for (ranks, hosts) in layouts(options) {
            let folder = tempfile::tempdir().map_err(|err| failed(format!("a temporary folder: {err}")))?;
            let dir = folder.path().join("run");
            let started = Instant::now();
            let summary = train(options, run, ranks, hosts, &dir)?;
            let seconds = started.elapsed().as_secs_f64();
            let left = left(&dir)?;
            let (than, expect) = first.get_or_insert_with(|| (ranks, left.clone()));
            let differ: Vec<&String> = expect
                .keys()
                .chain(left.keys().filter(|name| !expect.contains_key(*name)))
                .filter(|name| expect.get(*name) != left.get(*name))
                .collect();
            rows.push(json!({
                "run": run.display().to_string(),
                "ranks": ranks,
                "hosts": hosts,
                "seconds": seconds,
                "step_seconds": step_seconds(&dir)?,
                "tokens_per_second_update": summary["tokens_per_second_update"],
                "tokens_per_second_rollout": summary["tokens_per_second_rollout"],
                "compared_with": than,
                "differ": differ,
                "sha256": left,
            }));
        }
    }
    let equal = rows.iter().all(|row| row["differ"].as_array().is_some_and(Vec::is_empty));
    Ok(json!({ "bench": "ranks", "steps": options.steps, "equal": equal, "rows": rows }))
}

/// Returns the pairs of ranks and hosts in which the hosts divide the ranks.
fn layouts(options: &RanksOptions) -> Vec<(usize, usize)> {
    let all = options.hosts.iter().flat_map(|hosts| options.ranks.iter().map(move |ranks| (*ranks, *hosts)));
    all.filter(|(ranks, hosts)| ranks.is_multiple_of(*hosts)).collect()
}

/// Trains in separate processes, as a user would. Returns the summary.
fn train(options: &RanksOptions, run: &Path, ranks: usize, hosts: usize, dir: &Path) -> Result<Value> {
    let mut words: Vec<String> =
        vec!["train".into(), run.display().to_string(), "--json".into(), "-q".into()];
    let own = [
        format!("run.dir={}", dir.display()),
        format!("train.steps={}", options.steps),
        "train.cut_multiple=8".to_string(),
        "run.device=cpu".to_string(),
    ];
    own.iter().chain(&options.sets).for_each(|set| words.extend(["--set".into(), set.clone()]));
    let outputs = match hosts {
        1 => {
            let program = std::env::current_exe().map_err(|err| failed(format!("this program: {err}")))?;
            let output = Command::new(program).args(words).args(["--ranks", &ranks.to_string()]).output();
            vec![output.map_err(|err| failed(format!("starting a run: {err}")))?]
        }
        _ => on_hosts(ranks, hosts, &words)?,
    };
    if let Some(output) = outputs.iter().find(|output| !output.status.success()) {
        let said = String::from_utf8_lossy(&output.stderr);
        let message = format!("{} on {ranks} ranks of {hosts} hosts: {}", run.display(), said.trim_end());
        return Err(failed(message));
    }
    serde_json::from_slice(&outputs[0].stdout).map_err(|err| failed(format!("its summary: {err}")))
}

/// Returns the median of the steps' seconds, without the first, which pages in.
fn step_seconds(dir: &Path) -> Result<f64> {
    let events = read(&dir.join("events.jsonl"))?;
    let times = events.split(|byte| *byte == b'\n').filter_map(|line| {
        let event: Value = serde_json::from_slice(line).ok()?;
        event["metrics"]["step_time"].as_f64()
    });
    let mut times: Vec<f64> = times.collect();
    if times.len() > 1 {
        times.remove(0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times.get(times.len() / 2).copied().unwrap_or(f64::NAN))
}

/// Returns SHA-256 digests of a run's files, without what the clock changes: tensors, samples, and metrics by step.
fn left(dir: &Path) -> Result<BTreeMap<String, String>> {
    let mut out = BTreeMap::new();
    let mut add = |name: &str, bytes: &[u8]| drop(out.insert(name.to_string(), digest(bytes)));
    let newest = dir.join("checkpoints/latest");
    for folder in [newest.clone(), newest.join("state"), dir.join("samples")] {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".safetensors") || name.ends_with(".jsonl") {
                add(&name, &read(&entry.path())?);
            }
        }
    }
    let events = read(&dir.join("events.jsonl"))?;
    let metrics = events.split(|byte| *byte == b'\n').filter_map(|line| {
        let event: Value = serde_json::from_slice(line).ok()?;
        let mut metrics = event.get("metrics")?.as_object()?.clone();
        metrics.retain(|name, _| !OF_THE_CLOCK.iter().any(|part| name.contains(part)));
        Some(Value::from(metrics).to_string())
    });
    add("metrics", metrics.collect::<Vec<_>>().join("\n").as_bytes());
    Ok(out)
}

/// Largest file of a run to compare: the weights of a small model.
const FILE_BYTES_MAX: u64 = 16 << 30;

fn read(path: &Path) -> Result<Vec<u8>> {
    read_small(path, FILE_BYTES_MAX).map_err(|err| failed(format!("{}: {err}", path.display())))
}

fn failed(message: String) -> Error {
    Error::new("bench-failed", message)
}

/// Returns the table for people.
pub fn words(found: &Value) -> String {
    let mut text = format!(
        "{:<32} {:>5} {:>5} {:>9} {:>9} {:>12}  {}\n",
        "run", "ranks", "hosts", "seconds", "step, s", "update tok/s", "bits"
    );
    for row in found["rows"].as_array().into_iter().flatten() {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let differ: Vec<&str> =
            row["differ"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let bits = if differ.is_empty() {
            format!("equal, {} files and metrics", row["sha256"].as_object().map_or(0, |all| all.len()))
        } else {
            format!("DIFFER: {}", differ.join(", "))
        };
        let name = row["run"].as_str().unwrap_or_default();
        text += &format!(
            "{name:<32} {:>5} {:>5} {:>9.2} {:>9.3} {:>12.0}  {bits}\n",
            number("ranks"),
            number("hosts"),
            number("seconds"),
            number("step_seconds"),
            number("tokens_per_second_update")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::{Bench, BenchOptions, bench_run, random_prompts};
    use plimsoll_arch::Compute;
    use plimsoll_base::{Bytes, Result};
    use plimsoll_config::{Auto, Lora, ModelDtype, Recompute};
    use plimsoll_files::digest;
    use plimsoll_infer::bound::Sources;
    use plimsoll_memory::{Limit, Limits, shared_file};
    use plimsoll_plan::{RoleName, Share, devices, plan_with};
    use plimsoll_ranks::Group;
    use plimsoll_rl::ranks::open;
    use plimsoll_rl::roles::Trainer;
    use plimsoll_train::Sequence;

    /// Holds what is trained, and where.
    #[derive(Clone, Copy)]
    struct Case {
        device: &'static str,
        /// Rank of the adapters; none if all weights are trained.
        lora_rank: Option<u32>,
        /// The stage of ZeRO: the states that ranks share out.
        zero_stage: u32,
    }

    /// Trains `builtin:nano` for two updates as one of several ranks in this process. Returns a digest of the result.
    fn trained(case: Case, share: Share, group: &Group) -> Result<String> {
        let options = BenchOptions {
            model: "builtin:nano".into(),
            threads: 1,
            repeats: 1,
            dtype: ModelDtype::Bf16,
            device: case.device.into(),
            recompute: Auto::Value(Recompute::Layer),
            lora: case.lora_rank.map(|rank| Lora { rank, ..Lora::default() }),
            quantize: Auto::Auto,
            compute: Compute::Full,
            checked: false,
            profile: false,
            tokenizer: None,
            images: false,
        };
        let mut run = bench_run(&options, 96, 1, 8);
        run.train_mut().micro_batch_tokens = Auto::Value(64);
        run.rollout.sequences_max = Auto::Value(4);
        run.train_mut().cut_multiple = Auto::Value(70);
        run.run.zero_stage = Auto::Value(case.zero_stage);
        let bench = Bench::open_with(&options, &mut run, 1, |run, facts| {
            // The image of a test counts in each rank's plan, though they are one process.
            let host = Some(Limit { bytes: Bytes(1 << 40), source: "the test".into() });
            plan_with(run, &plimsoll_plan::Facts { share, ..*facts }, &Limits { host, ..Limits::default() })
        })?;
        let shape = &bench.report.shape;
        let (dev, mut arena) = open(shape, options.opening(), group)?;
        let mut trainer = Trainer::new(&*dev, &mut arena, shape, Sources::one(&bench.model), 0)?;
        trainer.group = group;
        // All have their parts.
        group.barrier()?;
        let tokens = random_prompts(&bench.spec(), 96, 9);
        let sequences: Vec<Sequence<'_>> = tokens
            .iter()
            .enumerate()
            .map(|(group, ids)| Sequence { group, prompt: &ids[..1], response: &ids[1..][..1 + group % 8] })
            .collect();
        for step in 1..=2 {
            trainer.arrays.begin(sequences.iter().map(|s| s.response.len()));
            let how = run.train().update_options(step, 0);
            let mut loss = |buffers: &mut plimsoll_rl::arrays::TokenArrays,
                            tokens: std::ops::Range<usize>| {
                buffers.d_logprobs[tokens].fill(-0.01);
                Ok(())
            };
            let stats = trainer.update(RoleName::Actor, &sequences, 0..96, 1.0, how, &mut loss)?;
            assert_eq!(stats.micro_batches, 70, "there is work for every rank");
        }
        let values = trainer.with_gathered(RoleName::Actor, |dev, _, weights| {
            let mut values = vec![0f32; weights.len()];
            dev.read_f32(weights, 0, &mut values);
            values
        });
        // None ends before all have read its part.
        group.barrier()?;
        Ok(digest(&values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()))
    }

    /// Requires that several ranks, each a thread that comes to barriers at random times, train the weights of one.
    fn train_equally(case: Case, ranks: &[usize]) {
        let one = trained(case, Share::WHOLE, Group::alone()).expect("one rank");
        for &ranks in ranks {
            let file = shared_file("plimsoll-test").expect("memory");
            let file = &file;
            std::thread::scope(|scope| {
                let start = |rank: usize| {
                    scope.spawn(move || {
                        let group =
                            Group::on_one_host(rank, ranks, file)?.delayed(1 + (ranks * 100 + rank) as u64);
                        trained(case, Share { rank, ranks }, &group).inspect_err(|_| group.fail())
                    })
                };
                let threads: Vec<_> = (0..ranks).map(start).collect();
                let ended: Vec<_> =
                    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
                // The cause comes before those that ended for it.
                let failed = ended.iter().filter_map(|end| end.as_ref().err());
                let cause = failed.min_by_key(|error| error.slug == "rank-lost");
                if let Some(error) = cause.filter(|error| error.slug == "ranks-method") {
                    // The card's library does not add parts as one rank would.
                    eprintln!("skipped: {error}");
                    return;
                }
                assert!(cause.is_none(), "{ranks} ranks: {cause:?}");
                for (rank, weights) in ended.into_iter().flatten().enumerate() {
                    assert_eq!(weights, one, "rank {rank} of {ranks}");
                }
            });
        }
    }

    #[test]
    fn a_step_is_the_median_of_all_but_the_first() {
        let seconds = |events: &str| {
            let folder = tempfile::tempdir().expect("a folder");
            std::fs::write(folder.path().join("events.jsonl"), events).expect("a file");
            super::step_seconds(folder.path()).expect("events")
        };
        let step = |time: f64| format!("{{\"metrics\": {{\"step_time\": {time}}}}}\n");
        let steps = [9.0, 1.0, 3.0, 2.0].map(step).concat();
        assert_eq!(seconds(&format!("{{\"event\": \"begun\"}}\n{steps}no JSON\n")), 2.0);
        assert_eq!(seconds(&step(9.0)), 9.0, "there is no other");
        assert!(seconds("").is_nan());
        let error = super::step_seconds(std::path::Path::new("no-such-folder")).expect_err("no events");
        assert_eq!(error.slug, "bench-failed");
    }

    #[test]
    fn what_a_run_left_does_not_depend_on_the_clock() {
        let folder = tempfile::tempdir().expect("a folder");
        let left = |loss: f64, seconds: f64, weights: &str| {
            let newest = folder.path().join("checkpoints/latest");
            std::fs::create_dir_all(&newest).expect("a folder");
            std::fs::write(newest.join("model.safetensors"), weights).expect("a file");
            std::fs::write(newest.join("status.json"), seconds.to_string()).expect("a file");
            let event = serde_json::json!({ "metrics": { "loss": loss, "time/update": seconds, "host/rss": seconds } });
            std::fs::write(folder.path().join("events.jsonl"), event.to_string()).expect("a file");
            super::left(folder.path()).expect("what was written")
        };
        let first = left(0.5, 1.0, "a");
        assert_eq!(first.keys().collect::<Vec<_>>(), ["metrics", "model.safetensors"]);
        assert_eq!(left(0.5, 2.0, "a"), first);
        assert_ne!(left(0.25, 1.0, "a")["metrics"], first["metrics"]);
        assert_ne!(left(0.5, 1.0, "b")["model.safetensors"], first["model.safetensors"]);
    }

    #[test]
    fn the_table_names_what_differs() {
        let row = |differ: &[&str]| {
            serde_json::json!({ "run": "first", "ranks": 2, "hosts": 1, "seconds": 1.5, "step_seconds": 0.25,
                "sha256": { "metrics": "x", "model.safetensors": "y" }, "differ": differ })
        };
        let text = super::words(&serde_json::json!({ "rows": [row(&[]), row(&["metrics"])] }));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].ends_with("equal, 2 files and metrics"), "{text}");
        assert!(lines[2].ends_with("DIFFER: metrics") && lines[2].contains("NaN"), "{text}");
    }

    #[test]
    fn hosts_have_as_many_ranks_each() {
        let options = super::RanksOptions {
            runs: Vec::new(),
            ranks: vec![1, 2, 4, 3],
            hosts: vec![1, 2],
            steps: 1,
            sets: Vec::new(),
        };
        assert_eq!(super::layouts(&options), [(1, 1), (2, 1), (4, 1), (3, 1), (2, 2), (4, 2)]);
    }

    /// 64 ranks take the most time: each case has them in turn, with each commit another, as `every_nth` of the tests
    /// of `plimsoll` chooses.
    #[test]
    fn up_to_64_ranks_in_one_process_that_come_at_random_times_train_the_same_weights() {
        let set = |name: &str| std::env::var(name).unwrap_or_default();
        let turn: usize = set("PLIMSOLL_TURN").parse().unwrap_or(0);
        let case = |lora_rank, zero_stage| Case { device: "cpu", lora_rank, zero_stage };
        let cases = [(None, 2, 5), (Some(4), 3, 3), (None, 3, 2), (Some(4), 2, 7)];
        for (index, (lora_rank, zero_stage, few)) in cases.into_iter().enumerate() {
            let has_many = set("PLIMSOLL_FULL") == "1" || index == turn % 4;
            let ranks = [few, 64];
            train_equally(case(lora_rank, zero_stage), &ranks[..1 + usize::from(has_many)]);
        }
    }

    #[test]
    fn ranks_that_share_a_card_in_one_process_train_the_same_weights() {
        if let Err(error) = devices::check(Some("cuda")) {
            eprintln!("skipped: {error}");
            return;
        }
        let case = |lora_rank, zero_stage| Case { device: "cuda", lora_rank, zero_stage };
        train_equally(case(None, 2), &[2, 3, 8]);
        train_equally(case(None, 3), &[2, 3, 8]);
        train_equally(case(Some(8), 2), &[2, 5]);
        train_equally(case(Some(8), 3), &[2, 5]);
    }
}
