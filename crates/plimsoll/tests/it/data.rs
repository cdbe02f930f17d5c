//! Data from outside: weighted sets, Parquet, pass rates, evaluation sets, and what a run leaves for people.

use crate::common::{check_refused, plimsoll, text};
use crate::run::Run;
use serde_json::{Value, json};
use std::path::Path;

const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
# Messages as sums alone, which is what the model knows.
chat_template = "{{ messages[-1].content }}"
prompts = [
    { path = "builtin:addition", weight = 2.0 },
    { path = "VERL", name = "verl" },
    "ROWS",
]
eval = ["builtin:addition", { path = "VERL", name = "verl" }]
[rollout]
prompts_per_step = 8
group_size = 2
max_new_tokens = 4
[[reward]]
kind = "exact"
[[reward]]
kind = "format"
pattern = "[0-9]+"
weight = 0.5
[train]
steps = 4
learning_rate = 1e-3
micro_batch_tokens = 64
[eval]
prompts_max = 8
every = 1
metric = "verl/reward"
[checkpoint]
every = 1
keep = 1
"#;

fn verl() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../text/tests/parquet/verl-zstd.parquet")
        .display()
        .to_string()
}

/// The run file, the verl data and six rows of JSON lines.
fn folder() -> Run {
    let folder = Run::new("");
    let rows: String = (1..7)
        .map(|i| format!("{}\n", json!({"prompt": format!("{i}+{i}="), "ground_truth": (2 * i).to_string()})))
        .collect();
    std::fs::write(folder.path("rows.jsonl"), rows).expect("a file");
    std::fs::copy(verl(), folder.path("verl.parquet")).expect("a file");
    let run = RUN
        .replace("VERL", &folder.text_path("verl.parquet"))
        .replace("ROWS", &folder.text_path("rows.jsonl"));
    std::fs::write(folder.path("x.toml"), run).expect("a file");
    folder
}

#[test]
fn sets_take_turns_are_evaluated_by_name_and_resume() {
    let folder = folder();
    let output = folder.output("whole", &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.contains("  addition\n") && said.contains("  verl\n") && !said.contains('⠀'), "{said}");

    // Half of each step's eight prompts are of the task, a quarter of each file, whatever the step.
    let events = folder.events("whole");
    let steps: Vec<&Value> = events.iter().filter(|event| event["event"] == "step").collect();
    let mean = |name: &str| {
        let shares =
            steps.iter().map(|step| step["metrics"][format!("sets/{name}/share")].as_f64().expect("a share"));
        shares.sum::<f64>() / steps.len() as f64
    };
    assert_eq!(steps.len(), 4);
    assert!((mean("addition") - 0.5).abs() <= 0.125 && (mean("verl") - 0.25).abs() <= 0.125, "{steps:?}");
    assert!(steps[0]["metrics"]["sets/rows/reward"].is_number(), "{}", steps[0]);

    // Each set has its events and its table; what was the number of one set is the mean.
    let evals: Vec<&Value> = events.iter().filter(|event| event["event"] == "eval").collect();
    assert_eq!(evals.iter().filter(|eval| eval["set"] == "verl").count(), 5);
    let summary = folder.read_json("whole/summary.json");
    for key in ["before", "after"] {
        let sets = ["addition", "verl"].map(|set| summary["sets"][set][key].as_f64().expect("a score"));
        assert_eq!(summary[format!("eval_{key}")], json!((sets[0] + sets[1]) / 2.0), "{summary}");
    }

    // The best checkpoint is the one with the highest score on that set, and stays.
    let score = |eval: &&&Value| eval["score"].as_f64().expect("a score");
    let of_set = evals.iter().filter(|eval| eval["set"] == "verl" && eval["step"] != 0);
    let best = of_set.clone().map(|eval| score(&eval)).fold(f64::MIN, f64::max);
    let first = of_set.clone().find(|eval| score(eval) == best).expect("one is the best");
    assert_eq!(summary["best"], json!({"step": first["step"], "metric": "verl/reward", "value": best}));
    let link = std::fs::read_link(folder.path("whole/checkpoints/best")).expect("a link");
    assert_eq!(link.display().to_string(), format!("step-{:06}", first["step"].as_u64().unwrap()));
    assert!(folder.path("whole/checkpoints/best/model.safetensors").is_file());

    // A run that stopped after two steps and went on has the same samples, and the same best.
    folder.train("parts", &["train.steps=2"]);
    folder.train("parts", &["--resume"]);
    for name in ["step-000003", "step-000004", "eval-000004-verl", "eval-000004-addition"] {
        let read = |dir: &str| folder.read_lines(&format!("{dir}/samples/{name}.jsonl"));
        assert_eq!(read("parts"), read("whole"), "{name}");
    }
    assert_eq!(std::fs::read_link(folder.path("parts/checkpoints/best")).expect("a link"), link);
    let svg =
        |dir: &str| std::fs::read_to_string(folder.path(&format!("{dir}/curves.svg"))).expect("a drawing");
    assert_eq!(svg("parts"), svg("whole"));

    // Every file of a list is fingerprinted.
    folder.train("parts", &["--resume", "train.steps=5"]);
    let rows = std::fs::read_to_string(folder.path("rows.jsonl")).unwrap();
    std::fs::write(folder.path("rows.jsonl"), rows.replace("\"2\"", "\"3\"")).unwrap();
    let sets = ["--resume", "train.steps=6"];
    folder.train_refused("parts", &sets, 1, &["error[resume-differs]", "rows.jsonl has other contents"]);
}

#[test]
fn samples_are_plain_json_and_the_report_is_written() {
    let folder = folder();
    let sets = ["train.steps=2", "data.eval=builtin:addition", "eval.metric=reward"];
    let sampled = ["eval.samples=4", "eval.temperature=1.0"];
    folder.train("out", &[&sets[..], &sampled[..]].concat());
    // Columns that pandas makes a table of: the same in each row of each file.
    let names = [
        "step",
        "prompt",
        "response",
        "set",
        "prompt_index",
        "sample",
        "ground_truth",
        "reward",
        "rewards",
        "response_tokens",
        "finish",
        "policy_version",
        "logprobs",
        "token_chars",
    ];
    for (file, rows, set) in [("eval-000000", 32, "builtin:addition"), ("step-000001", 16, "addition")] {
        let found = folder.read_lines(&format!("out/samples/{file}.jsonl"));
        assert_eq!(found.len(), rows, "{file}");
        for row in &found {
            let keys: Vec<&String> = row.as_object().expect("an object").keys().collect();
            assert_eq!(keys, names, "{file}");
            let part = |name: &str| row["rewards"][name].as_f64().expect("a score");
            let sum = part("exact") + 0.5 * part("format");
            assert!((row["reward"].as_f64().expect("a reward") - sum).abs() < 1e-6, "{row}");
            assert_eq!(
                row["logprobs"].as_array().map(Vec::len),
                row["response_tokens"].as_u64().map(|n| n as usize)
            );
        }
        assert!(found.iter().any(|row| row["set"] == set), "{file}");
    }
    let svg = std::fs::read_to_string(folder.path("out/curves.svg")).expect("a drawing");
    assert!(
        svg.contains("reward, and score on held-out prompts") && svg.contains("response length in tokens")
    );
    // The same prompts before and after.
    let side = std::fs::read_to_string(folder.path("out/samples/side_by_side.md")).expect("a page");
    let prompts: Vec<&str> = side.lines().filter(|line| line.starts_with("| prompt |")).collect();
    assert_eq!(prompts.len(), 3, "{side}");
    for line in prompts {
        let cells: Vec<&str> = line.split(" | ").collect();
        assert_eq!(cells[1].trim_end_matches(" |"), cells[2].trim_end_matches(" |"), "{line}");
    }
    assert!(side.contains("| | after step 0, reward ") && side.contains("after step 2, reward "), "{side}");
}

#[test]
fn pass_rates_of_a_model_order_and_filter_what_it_trains_on() {
    let folder = folder();
    let (rows, rated) = (folder.text_path("rows.jsonl"), folder.text_path("rated.jsonl"));
    let eval =
        ["eval", "--model", "builtin:nano", "--data", &rows, "--samples", "8", "--max-new-tokens", "4"];
    let found = crate::run::json(&[&eval[..], &["--pass-rates", &rated, "--json"]].concat());
    let rows = folder.read_lines("rated.jsonl");
    let rates: Vec<f64> = rows.iter().map(|row| row["pass_rate"].as_f64().expect("a rate")).collect();
    assert_eq!(
        (rows.len(), rows[2]["prompt"].as_str(), rows[2]["ground_truth"].as_str()),
        (6, Some("3+3="), Some("6"))
    );
    assert!(rates.iter().all(|rate| (rate * 8.0).fract() == 0.0), "{rates:?}");
    let mean = rates.iter().sum::<f64>() / 6.0;
    assert!((found["pass_at_k"]["1"].as_f64().expect("pass@1") - mean).abs() < 1e-6, "{found} {rates:?}");

    // The model's own rates are what they are; these show the order.
    let given = [0.25, 1.0, 0.0, 0.75, 0.5, 0.625];
    let text_of = |rate: &dyn Fn(usize) -> Value| -> String {
        let rows = rows.iter().enumerate().map(|(i, row)| {
            let mut row = row.clone();
            row["pass_rate"] = rate(i);
            format!("{row}\n")
        });
        rows.collect()
    };
    std::fs::write(&rated, text_of(&|i| json!(given[i]))).unwrap();
    let prompts = format!("data.prompts={rated}");
    let sets = [&prompts, "data.eval=none", "eval.metric=reward"];
    let column = ["data.pass_rate_column=pass_rate", "train.steps=1"];
    let common = [&sets[..], &column[..], &["rollout.prompts_per_step=4"]].concat();
    for (dir, more, expect) in [
        ("easy", &["data.curriculum=easy-first"][..], ["2+2=", "4+4=", "6+6=", "5+5="]),
        ("hard", &["data.curriculum=hard-first"], ["3+3=", "1+1=", "5+5=", "6+6="]),
        // Of what is left.
        (
            "middle",
            &["data.curriculum=easy-first", "data.pass_rate_min=0.25", "data.pass_rate_max=0.75"],
            ["4+4=", "6+6=", "5+5=", "1+1="],
        ),
    ] {
        folder.train(dir, &[&common[..], more].concat());
        let samples = folder.read_lines(&format!("{dir}/samples/step-000001.jsonl"));
        let prompts: Vec<&str> = samples.iter().step_by(2).filter_map(|row| row["prompt"].as_str()).collect();
        assert_eq!(prompts, expect, "{dir}");
    }
    let refused = |more: &[&str], expect: &[&str]| {
        folder.train_refused("no", &[&common[..], more].concat(), 1, expect);
    };
    refused(
        &["data.pass_rate_min=0.3", "data.pass_rate_max=0.4"],
        &["error[data-empty]", "of 6 rows none is left", "6 have a pass rate outside 0.3 to 0.4"],
    );
    refused(&["data.pass_rate_column=rate"], &["error[data-column-missing]", "row 1: no column `rate`"]);
    refused(
        &["data.prompts=builtin:addition"],
        &["error[data-column-missing]", "a task has no column `pass_rate`"],
    );
    for rate in [json!(1.5), json!(-0.1), json!("half"), Value::Null] {
        let shown = rate.to_string();
        std::fs::write(&rated, text_of(&|i| if i == 3 { rate.clone() } else { json!(0.5) })).unwrap();
        refused(&[], &["error[data-bad-pass-rate]", "row 4: column `pass_rate` is", &shown]);
    }
}

#[test]
fn verls_columns_need_no_settings_in_any_verb() {
    let folder = folder();
    let (path, template) =
        (folder.text_path("verl.parquet"), "data.chat_template={{ messages[-1].content }}");
    let eval = [
        "eval",
        "--model",
        "builtin:nano",
        "--data",
        &path,
        "--max-new-tokens",
        "4",
        "--set",
        template,
        "--json",
    ];
    let by = |column: &[&str]| {
        let output = plimsoll(&[&eval[..], column].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("one object")
    };
    let found = by(&[]);
    assert_eq!((&found["prompts"], &found["unscored"]), (&json!(9), &json!(0)));
    assert_eq!(found["score"], by(&["--set", "data.answer_column=reward_model.ground_truth"])["score"]);
    // The system message is in the prompt unless the template leaves it out, and a limit holds for Parquet too.
    let more = ["--set", "data.prompt_tokens_max=4", "--set", "data.overlong=drop"];
    assert_eq!(by(&more)["prompts"], 9);
    check_refused(
        &[&eval[..], &["--set", "data.prompt_tokens_max=3"]].concat(),
        1,
        &["error[prompt-too-long]", "row 1 has 4 tokens"],
    );
    check_refused(
        &[&eval[..], &["--set", "data.answer_column=reward_model.answer"]].concat(),
        2,
        &["error[data-column-missing]", "reward_model.answer"],
    );
    let bytes = std::fs::read(folder.path("verl.parquet")).unwrap();
    std::fs::write(folder.path("verl.parquet"), &bytes[..bytes.len() / 2]).unwrap();
    check_refused(
        &eval,
        1,
        &["error[data-bad-parquet]", "verl.parquet: it does not end as a Parquet file does"],
    );
}

#[test]
fn a_late_row_without_an_answer_is_refused_before_the_first_step() {
    let folder = folder();
    let mut rows: String =
        (0..40).map(|i| format!("{{\"prompt\": \"{i}+1=\", \"ground_truth\": \"{}\"}}\n", i + 1)).collect();
    for (row, why) in [
        ("{\"prompt\": \"7+7=\"}\n", "needs the column `ground_truth`, which the data does not have"),
        ("{\"prompt\": \"7+7=\", \"ground_truth\": null}\n", "which is null here"),
    ] {
        let whole = rows.len();
        rows.push_str(row);
        folder.write("late.jsonl", &rows);
        let sets = [
            &format!("data.prompts={}", folder.text_path("late.jsonl"))[..],
            "data.eval=none",
            "eval.metric=reward",
        ];
        let words = ["error[data-column-missing]", why, "the prompt of the row: \"7+7=\"", "the data: "];
        folder.train_refused("late", &sets, 2, &words);
        rows.truncate(whole);
    }
}

#[test]
fn pass_rates_have_all_their_digits() {
    let folder = folder();
    let (rows, fifths) = (folder.text_path("rows.jsonl"), folder.text_path("fifths.jsonl"));
    let eval =
        ["eval", "--model", "builtin:nano", "--data", &rows, "--samples", "5", "--max-new-tokens", "4"];
    crate::run::json(&[&eval[..], &["--pass-rates", &fifths, "--json"]].concat());
    let found = folder.read_lines("fifths.jsonl");
    let digits: Vec<String> = found.iter().map(|row| row["pass_rate"].to_string()).collect();
    let are_fifths =
        digits.iter().all(|rate| ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"].contains(&rate.as_str()));
    assert!(are_fifths, "{digits:?}");
}

#[test]
fn the_model_of_a_run_reads_rows_as_the_run_did() {
    let folder = Run::new(&crate::run::SMALL.replace(
        "prompts = \"builtin:addition\"",
        "prompts = \"ROWS\"\nprompt_column = \"question\"\nanswer_column = \"answer\"\nsystem_prompt = \"12+\"\n\
         chat_template = \"{% for m in messages %}{{ m.content }}{% endfor %}\"",
    ));
    let rows = folder.text_path("rows.jsonl");
    std::fs::write(&rows, "{\"question\": \"3=\", \"answer\": \"15\"}\n".repeat(4)).unwrap();
    let prompts = format!("data.prompts={rows}");
    folder.train("out", &[&prompts, "train.steps=1"]);
    let json = |args: &[&str]| {
        let output = plimsoll(&[args, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("one object")
    };
    for model in [folder.text_path("out"), folder.text_path("out/checkpoints/latest")] {
        let tokens = |more: &[&str]| {
            json(&[&["generate", "--model", &model, "--prompt", "3="], more].concat())["prompt_tokens"]
                .clone()
        };
        assert_eq!(tokens(&[]), 5, "{model}");
        assert_eq!(tokens(&["--set", "data.system_prompt=1"]), 3, "--set wins");
        assert_eq!(tokens(&["--raw"]), 2);
        let found = json(&["eval", "--model", &model, "--data", &rows, "--max-new-tokens", "4"]);
        assert!(found["prompts_are"].as_str().is_some_and(|words| words.contains("\"12+3=\"")), "{found}");
    }
    let model = folder.text_path("out");
    check_refused(
        &["eval", "--model", &model, "--data", &rows, "--set", "data.prompt_column=prompt"],
        1,
        &[
            "error[data-column-missing]",
            "columns there: `question`, `answer`",
            "--set data.prompt_column=NAME",
        ],
    );
}
