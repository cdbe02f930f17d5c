//! Data sets of a run file: one, or a list with names and weights.

use super::*;

#[test]
fn data_sets_are_a_string_or_a_list() {
    let sets = |sets: &[&str]| load_text(GOOD, sets, &[]).unwrap().run;
    let one = sets(&["data.prompts=a.parquet"]);
    let names =
        |run: &RunFile| run.data.prompts.as_ref().unwrap().named().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&one), ["a.parquet"]);
    assert!(one.eval_sets().is_empty());
    let run = sets(&[
        "data.prompts=[\"x/a.b.jsonl\", { path = \"builtin:addition\", weight = 2 }, { path = \"c\", name = \"d\" }]",
        "data.prompts.2.weight=0.5",
    ]);
    assert_eq!(names(&run), ["a.b", "addition", "d"]);
    let weights: Vec<f64> = run.data.prompts.as_ref().unwrap().sets().iter().map(DataSet::weight).collect();
    assert_eq!(weights, [1.0, 2.0, 0.5]);
    // A task has a test set; files have none.
    assert_eq!(run.eval_sets(), [("addition".to_string(), "builtin:addition".to_string())]);
    assert_eq!(run.data.files().collect::<Vec<_>>(), ["x/a.b.jsonl", "c"]);
    for run in [one, run] {
        assert_eq!(toml::from_str::<RunFile>(&run.to_toml()).unwrap(), run);
    }
    let schema = json_schema();
    assert_eq!(schema["$defs"]["DataSets"]["anyOf"][0]["type"], "string");
    assert_eq!(schema["$defs"]["DataSet"]["additionalProperties"], false);
}
