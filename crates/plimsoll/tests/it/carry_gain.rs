//! Tests what carried prompts bring: what `plan --lengths` predicts, and what a run reports.

use crate::carry::long;
use crate::run::{Run, SMALL, has_python, number, refs};
use serde_json::Value;

const TAIL: &str = "--lengths=lognormal:12,0.9";

fn gains(folder: &Run, words: &[&str]) -> Value {
    folder.plan(words)["carry"].clone()
}

fn carries(gains: &Value) -> Vec<u64> {
    gains["rows"].as_array().expect("rows").iter().filter_map(|row| row["carry"].as_u64()).collect()
}

#[test]
fn a_plan_recommends_a_number_for_given_lengths() {
    let folder = Run::new(SMALL);
    let sets = long(&["rollout.prompts_per_step=8", TAIL]);
    let found = gains(&folder, &sets);
    assert_eq!(carries(&found), [0, 2, 3, 4, 8, 16]);
    let rows = found["rows"].as_array().expect("rows");
    for name in ["ticks", "tail_share"] {
        assert!(number(&rows[5], name) < number(&rows[0], name), "{name}: {found}");
    }
    for name in ["trained_tokens_per_tick", "staleness", "host_bytes"] {
        assert!(number(&rows[5], name) > number(&rows[0], name), "{name}: {found}");
    }
    assert_eq!(found, gains(&folder, &sets), "it draws the same lengths again");
    let recommended = found["recommended"].as_u64().expect("a number");
    let words = found["words"].as_str().expect("a sentence");
    assert!(words.contains(&format!("recommended: async.partial_rollouts = {recommended}")), "{words}");

    // A row of the data is under way once.
    let prompts: String = (0..12).map(|n| format!("{{\"prompt\": \"{n}+{n}=\"}}\n")).collect();
    let data = format!("data.prompts={}", folder.write_bytes("few.jsonl", prompts));
    let few = gains(&folder, &[&sets[..], &[&data]].concat());
    let refused = |row: usize| few["rows"][row]["refused"].as_str();
    assert_eq!((refused(3), refused(4)), (None, Some("the data has 12 rows")), "{few}");
    // All of one length: groups that are carried have ended, and wait.
    let even = gains(&folder, &long(&["rollout.prompts_per_step=8", "--lengths=lognormal:12,0"]));
    for name in ["idle_share", "tail_share", "recomputed_share"] {
        let of = |row: usize| number(&even["rows"][row], name);
        assert_eq!((of(0), of(5)), (0.0, 0.0), "{name}: {even}");
    }
    let table = folder.args("plan", &sets);
    let output = crate::common::plimsoll(&refs(&table));
    assert!(crate::common::text(&output.stdout).contains(words));
}

#[test]
fn lengths_are_read_from_an_earlier_run() {
    let folder = Run::new(SMALL);
    folder.train("run", &long(&["async.partial_rollouts=0"]));
    let of_run = format!("--lengths={}", folder.text_path("run"));
    let found = gains(&folder, &[&long(&[])[..], &[&of_run]].concat());
    let kept: Vec<u64> = (1..=6)
        .flat_map(|step| folder.read_lines(&format!("run/samples/step-{step:06}.jsonl")))
        .map(|line| line["response_tokens"].as_u64().expect("tokens"))
        .collect();
    assert!(
        found["lengths"]
            .as_str()
            .expect("words")
            .starts_with(&format!("{} responses to 12 prompts", kept.len()))
    );
    let mean = kept.iter().sum::<u64>() as f64 / kept.len() as f64;
    // Groups are drawn a hundred thousand times.
    assert!((number(&found["rows"][0], "trained_tokens") / 8.0 / mean - 1.0).abs() < 0.02, "{mean}: {found}");
    assert_eq!(carries(&found), [0, 1, 2, 3, 4]);
}

#[test]
fn lengths_that_cannot_be_compared_are_refused() {
    let folder = Run::new(SMALL);
    std::fs::create_dir_all(folder.path("empty/samples")).expect("a folder");
    let empty = format!("--lengths={}", folder.text_path("empty"));
    for (words, slug) in [
        (&["--lengths=lognormal:0,1"][..], "bad-usage"),
        (&["--lengths=uniform:1,9"], "bad-usage"),
        (&["--lengths=no-such-run"], "run-dir-unreadable"),
        (&[&empty], "run-dir-unreadable"),
        (&[TAIL, "--ranks=1,2"], "several numbers of ranks"),
        (&[TAIL, "async.reuse=1", "async.partial_rollouts=0"], "does not go with async.reuse"),
        (&[TAIL, "method=remax", "async.partial_rollouts=0"], "greedy"),
    ] {
        folder.plan_refused(
            &[&long(&[])[..], words].concat(),
            if slug.starts_with("run") { 1 } else { 2 },
            &[slug],
        );
    }
}

#[test]
fn a_plan_that_does_not_fit_names_the_most_that_does() {
    let folder = Run::new(SMALL);
    let sets = |carry: &str| -> Vec<String> {
        let more = [
            format!("async.partial_rollouts={carry}"),
            "rollout.max_new_tokens=400".into(),
            "rollout.sequences_max=8".into(),
        ];
        LONG_WITHOUT.iter().map(|set| set.to_string()).chain(more).collect()
    };
    let plan = |carry: &str, limit: &str| {
        let sets = sets(carry);
        let mut words: Vec<&str> = refs(&sets);
        words.push(limit);
        crate::run::object(&refs(&folder.args("plan", &[&words[..], &["--json"]].concat())))
    };
    let of = |carry: &str| {
        let (_, plan) = plan(carry, "--limit=host=100GiB");
        number(&plan["pools"]["host"], "peak_bytes")
    };
    let (few, many) = (of("40"), of("4000"));
    let limit = format!("--limit=host={}", ((few + many) / 2.0) as u64);
    let (code, refused) = plan("4000", &limit);
    assert_eq!(code, 3);
    let hints = refused["hints"].as_array().expect("hints");
    let set = hints
        .iter()
        .filter_map(|hint| hint["set"].as_str())
        .find(|set| set.starts_with("async.partial_rollouts="));
    let carry: u64 =
        set.expect("it names a number")["async.partial_rollouts=".len()..].parse().expect("digits");
    assert!(carry > 40 && carry < 4000, "{carry}");
    assert_eq!(plan(&carry.to_string(), &limit).0, 0);
    assert_eq!(plan(&(carry + 1).to_string(), &limit).0, 3, "{carry} is the most");
}

const LONG_WITHOUT: [&str; 2] = ["rollout.temperature=20", "model_options.positions=extend"];

#[test]
fn a_run_reports_its_tail_and_what_it_saved() {
    let folder = Run::new(SMALL);
    let summary = folder.summary("a", &long(&["train.steps=12"]));
    let metrics = folder.metrics("a");
    let sum = |name: &str| metrics.iter().map(|step| number(step, name)).sum::<f64>();
    for name in ["ticks", "dropped_tokens", "saved_seconds"] {
        let (all, steps) = (number(&summary["carry"], name), sum(&format!("rollout/{name}")));
        assert!((all - steps).abs() <= 1e-9 * all.abs(), "{name}: {all} {steps}");
    }
    for name in ["staleness", "stale_share", "idle_share", "tail_share", "recomputed_share"] {
        let (all, of) = (number(&summary["carry"], name), format!("rollout/{name}"));
        let (least, most) = metrics
            .iter()
            .map(|step| number(step, &of))
            .fold((1e9, 0.0), |(least, most), x| (f64::min(least, x), f64::max(most, x)));
        assert!(least <= all && all <= most && most > 0.0, "{name}: {all} of {least} to {most}");
    }
    // Ticks follow from what is kept: the longest response of the last step's groups, some of it drawn before.
    let last = folder.read_lines("a/samples/step-000012.jsonl");
    let longest = last.iter().filter_map(|line| line["response_tokens"].as_f64()).fold(0.0, f64::max);
    let (ticks, rollout_s) = (number(&metrics[11], "rollout/ticks"), number(&metrics[11], "time/rollout"));
    let tick_s = metrics[11]["time/tail_tick"].as_f64().unwrap_or(rollout_s / ticks);
    let saved = longest * tick_s - rollout_s;
    let paces: Vec<f64> = metrics.iter().filter_map(|step| step["time/tail_tick"].as_f64()).collect();
    assert!(!paces.is_empty() && paces.iter().all(|pace| (0.0..1.0).contains(pace)), "{paces:?}");
    assert!((number(&metrics[11], "rollout/saved_seconds") - saved).abs() < 1e-9, "{saved}");
    assert!(folder.summary("b", &["rollout.max_new_tokens=4"]).get("carry").is_none());
}

#[test]
fn samples_name_all_the_weights_that_drew_them() {
    let folder = Run::new(SMALL);
    folder.train("a", &long(&[]));
    let mut several = 0;
    for step in 1..=6 {
        for line in folder.read_lines(&format!("a/samples/step-{step:06}.jsonl")) {
            let newest = line["policy_version"].as_u64().expect("a number");
            let Some(runs) = line["policy_versions"].as_array() else { continue };
            several += 1;
            let of = |i: usize| -> Vec<u64> { runs.iter().filter_map(|run| run[i].as_u64()).collect() };
            assert!(of(0).is_sorted() && of(0).len() > 1 && of(0).last() == Some(&newest), "{line}");
            assert!(newest < step, "version {newest} in step {step}");
            assert_eq!(of(1).iter().sum::<u64>(), line["response_tokens"].as_u64().expect("tokens"));
        }
    }
    assert!(several > 0);
}

#[test]
fn a_bound_below_all_responses_is_noted_and_the_run_ends() {
    let folder = Run::new(SMALL);
    let words = folder.train("a", &long(&["async.stale_tokens_max=1", "train.steps=8"]));
    let note = "async.stale_tokens_max = 1 is small for responses of";
    assert_eq!(words.matches(note).count(), 1, "{words}");
    let waited = |dir: &str| -> f64 {
        folder.metrics(dir).iter().map(|step| number(step, "rollout/waited_for")).fold(0.0, f64::max)
    };
    assert!(waited("a") >= 2.0);
    assert!(!folder.train("b", &long(&["train.steps=8"])).contains("lag_tokens_max"));
    assert_eq!(waited("b"), 0.0);
}

/// A step's responses, whichever steps drew them.
const WHOLE: &str = "
def whole(completions, **kwargs):
    assert len(completions) == 8, len(completions)
    order = sorted(completions)
    return [float(order.index(text)) for text in completions]
";

#[test]
fn a_reward_of_the_whole_step_reads_what_the_step_trains() {
    if !has_python() {
        return;
    }
    let folder = Run::new("");
    let file = folder.write_bytes("whole.py", WHOLE);
    let reward = format!("kind = \"python:{file}:whole\"\nbatch_size = 1000");
    folder.write_bytes("x.toml", SMALL.replace("kind = \"hash\"", &reward));
    folder.train("a", &long(&[]));
    let metrics = folder.metrics("a");
    let stale = metrics.iter().map(|step| number(step, "rollout/stale_share")).fold(0.0, f64::max);
    assert!(stale > 0.0 && metrics.iter().all(|step| number(step, "reward") <= 3.5), "{metrics:?}");
}
