//! Plan against truth, the short form of `cargo xtask truth`: a few runs drawn at random, each planned and then made.

#[path = "../../../xtask/src/truth/mod.rs"]
#[allow(dead_code, reason = "the long form prints tables, this one only asserts")]
mod truth;

#[test]
fn a_few_runs_take_what_their_plans_say() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plimsoll = std::path::Path::new(env!("CARGO_BIN_EXE_plimsoll"));
    let runs =
        truth::measure(plimsoll, folder.path(), 5, 7, |_, _| ()).unwrap_or_else(|words| panic!("{words}"));
    for run in &runs {
        assert!(run.faults().is_empty(), "{}: {:?}", run.what, run.faults());
    }
    assert!(truth::markdown(&runs, 7).contains("| runs | 5 |"));
    let object: serde_json::Value = serde_json::from_str(&truth::to_json(&runs, 7)).expect("one object");
    assert_eq!((object["arenas_equal"].as_u64(), object["faults"].as_u64()), (Some(5), Some(0)));
}
