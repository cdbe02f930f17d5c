//! Results of `bench mismatch`: how runs are summed up, put together and shown.

use super::*;

fn course(scores: &[f64]) -> Course {
    let points = (0..).step_by(10).zip(scores).map(|(step, &score)| Point { step, score });
    Course { points: points.collect(), difference: 0.5, largest_difference: 2.0, ..Course::default() }
}

fn result(rows: &[(&str, bool)]) -> Value {
    let rows: Vec<Value> =
        rows.iter().map(|(case, corrects)| json!({ "case": case, "corrects": corrects })).collect();
    json!({ "bench": "mismatch", "command": "plimsoll bench mismatch", "machine": "avx2", "threads": 2, "rows": rows })
}

/// Writes results to files of a folder, and puts them together.
fn joined(results: &[Value]) -> Result<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let files: Vec<PathBuf> = (0..results.len()).map(|n| folder.path().join(format!("{n}.json"))).collect();
    for (file, result) in files.iter().zip(results) {
        fs::write(file, result.to_string()).expect("a file");
    }
    join(&files)
}

#[test]
fn a_run_has_collapsed_at_the_first_score_below_a_share_of_its_best_so_far() {
    assert_eq!(course(&[0.2, 0.8, 0.5, 0.3, 0.9]).collapsed_at(COLLAPSED), Some(30));
    assert_eq!(course(&[0.2, 0.8, 0.4]).collapsed_at(COLLAPSED), None, "half of it is not below half");
    assert_eq!(course(&[]).collapsed_at(COLLAPSED), None);
    assert_eq!((course(&[0.2, 0.8, 0.4]).best(), course(&[]).best()), (Some(0.8), None));
}

#[test]
fn a_case_sums_up_runs_of_which_some_ended_early() {
    let ended = Course { ended: Some("error[x]".into()), ..course(&[0.5]) };
    let row = row(&CASES[2], true, &[course(&[0.3, 0.9]), ended]);
    assert_eq!((&row["case"], &row["corrects"]), (&json!("0.002"), &json!(true)));
    assert_eq!((&row["steps"], &row["scores"]), (&json!([0.0, 10.0]), &json!([0.4, 0.9])));
    assert_eq!((&row["best"], &row["last"]), (&json!([0.9, 0.5]), &json!([0.9, 0.5])));
    assert_eq!((&row["collapsed_at"], &row["ended"]), (&json!([null, null]), &json!([null, "error[x]"])));
}

#[test]
fn results_of_one_run_are_put_together_in_the_order_of_the_cases() {
    let parts = [result(&[("8-bit", true), ("8-bit", false)]), result(&[("exact", false), ("0.15", true)])];
    let all = joined(&parts).expect("results of one run");
    let cases: Vec<(&Value, bool)> = all["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| (&row["case"], row["corrects"] == true))
        .collect();
    assert_eq!(
        cases,
        [(&json!("exact"), false), (&json!("0.15"), true), (&json!("8-bit"), false), (&json!("8-bit"), true)]
    );
}

#[test]
fn what_is_no_result_of_the_same_run_is_not_put_together() {
    let mut other = result(&[("exact", false)]);
    other["threads"] = json!(3);
    for (second, words) in [
        (other, "another run than in"),
        (json!({ "bench": "rollout" }), "no result of `bench mismatch`"),
        (json!("x"), "no result of `bench mismatch`"),
    ] {
        let error = joined(&[result(&[("exact", false)]), second]).expect_err(words);
        assert_eq!(error.slug, "bench-run-failed");
        assert!(error.message.contains("1.json") && error.message.contains(words), "{error}");
    }
    let missing = join(&[PathBuf::from("no-such-file.json")]).expect_err("no file");
    assert!(missing.message.starts_with("no-such-file.json: "), "{missing}");
}

#[test]
fn the_table_says_which_runs_collapsed_and_which_ended() {
    let row = |collapsed: Value, ended: Value| {
        json!({ "case": "8-bit", "corrects": true, "difference": [0.01, 0.03], "largest_difference": [1.0, 2.5],
            "best": [0.5, 1.0], "last": [0.25, 0.75], "collapsed_at": collapsed, "ended": ended })
    };
    let rows = [
        row(json!([null, null]), json!([null, null])),
        row(json!([40, 20]), json!([null, null])),
        row(json!([null, null]), json!([null, "error[loss-not-finite]"])),
    ];
    let text = words(&json!({ "rows": rows }));
    let lines: Vec<&str> = text.lines().skip(1).collect();
    assert!(lines[0].contains("0.02000") && lines[0].contains("2.500"), "{text}");
    assert!(lines[0].contains("0.750 (0.500 to 1.000)") && lines[0].ends_with(" no"), "{text}");
    assert!(lines[1].ends_with("2 of 2, from step 20"), "{text}");
    assert!(lines[2].ends_with("ended: error[loss-not-finite]"), "{text}");
}

#[test]
fn a_result_is_written_as_numbers_as_a_page_and_as_a_picture() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("new/results");
    let found = result(&[("exact", false), ("0.15", true)]);
    assert_eq!(write(found.clone(), Some(&out)).expect("a folder that can be made"), found);
    let read = |name: &str| fs::read_to_string(out.join(name)).expect("a file");
    assert_eq!(serde_json::from_str::<Value>(&read("mismatch.json")).expect("JSON"), found);
    assert_eq!(read("mismatch.md").lines().filter(|line| line.starts_with("| ")).count(), 3);
    let picture = read("mismatch.svg");
    // The exact run is in both halves.
    assert_eq!(picture.matches("<polyline").count(), 3);
    assert!(picture.ends_with("</svg>\n"));
    assert_eq!(write(found.clone(), None).expect("nothing to write"), found);
}

#[test]
fn the_command_is_what_a_user_types() {
    let options = MismatchOptions {
        run: "runs/first.toml".into(),
        sets: vec!["seed=3".into()],
        steps: 9,
        seeds: 2,
        only: Vec::new(),
        join: Vec::new(),
    };
    assert_eq!(
        command_line(&options),
        "plimsoll bench mismatch runs/first.toml --steps 9 --seeds 2 --set seed=3"
    );
    assert_eq!(cases()[0], "exact", "the run that others are compared with");
}
