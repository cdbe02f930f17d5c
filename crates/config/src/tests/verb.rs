//! Settings of commands that train nothing.

use super::*;

#[test]
fn a_verb_takes_the_sections_it_knows() {
    let env = [
        ("PLIMSOLL__TRAIN__STEPS".to_string(), "3".to_string()),
        ("PLIMSOLL__SEED".to_string(), "9".to_string()),
    ];
    let sets = ["model=builtin:nano".to_string(), "rollout.top_k=3".to_string()];
    let verb =
        load_verb(&[("rollout.temperature", "0.0")], None, &sets, env.clone().into_iter()).unwrap().verb;
    assert_eq!((verb.seed, verb.rollout.top_k, verb.rollout.temperature), (9, 3, 0.0));
    let error = load_verb(&[], None, &["train.steps=3".to_string()], env.into_iter()).unwrap_err();
    assert_eq!(error.slug, "unknown-key");
}

#[test]
fn a_verb_refuses_what_only_steps_have() {
    for (set, key) in
        [("rollout.group_size=4", "`rollout.group_size`"), ("rollout.n=4", "`rollout.group_size`")]
    {
        let sets = ["model=m".to_string(), set.to_string()];
        let error = load_verb(&[], None, &sets, std::iter::empty()).unwrap().check_sets().unwrap_err();
        assert!(error.slug == "unknown-key" && error.message.contains(key), "{error}");
    }
    for set in ["async.staleness=1", "rollout.ahead=1"] {
        let sets = ["model=m".to_string(), set.to_string()];
        let error = load_verb(&[], None, &sets, std::iter::empty()).unwrap_err();
        assert!(error.slug == "unknown-key" && error.message.contains("`async`"), "{error}");
    }
    let sets = ["model=m".to_string(), "rollout.top_k=4".to_string()];
    load_verb(&[], None, &sets, std::iter::empty()).unwrap().check_sets().unwrap();
}

#[test]
fn a_verb_reads_rows_as_the_run_of_its_model_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    let text = "model = \"builtin:nano\"\nseed = 3\n[data]\nprompts = \"a.jsonl\"\nprompt_column = \"q\"\n\
                system_prompt = \"Be brief.\"\ntemplate_args = { a = 1 }\n";
    std::fs::write(&path, text).unwrap();
    let load = |sets: &[&str]| {
        let sets: Vec<String> = ["model=m"].iter().chain(sets).map(ToString::to_string).collect();
        load_verb(&[], Some(&path), &sets, std::iter::empty()).unwrap()
    };
    let loaded = load(&[]);
    let data = &loaded.verb.data;
    assert_eq!((data.prompt_column.as_str(), data.system_prompt.as_deref()), ("q", Some("Be brief.")));
    assert_eq!((data.template_args.len(), loaded.verb.seed, data.prompts.is_none()), (1, 0, true));
    assert!(loaded.provenance.describe("data.system_prompt").ends_with("run.toml:6"));
    assert_eq!(load(&["data.prompt_column=p"]).verb.data.prompt_column, "p");
}
