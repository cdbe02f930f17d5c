//! `[[reward]] kind = "judge"`: what it takes and what it refuses.

use super::*;
use plimsoll_reward::JudgeSpec;

const JUDGE: &str = "reward.0.kind=judge";
const URL: &str = "reward.0.url=http://127.0.0.1:8000/v1";
const RUBRIC: &str = "reward.0.rubric=[\"It is right.\", \"It is short.\"]";

#[test]
fn a_judge_has_its_keys_and_a_default_for_each_other() {
    let sets = [
        JUDGE,
        URL,
        RUBRIC,
        "reward.0.rubric_weights=[3, 1]",
        "reward.0.judge_model=big",
        "reward.0.second_ask=0.1",
    ];
    let run = load_text(GOOD, &sets, &[]).unwrap().run;
    let expect = JudgeSpec {
        url: Some("http://127.0.0.1:8000/v1".into()),
        model: Some("big".into()),
        rubric: vec!["It is right.".into(), "It is short.".into()],
        rubric_weights: vec![3.0, 1.0],
        second_ask: 0.1,
        ..JudgeSpec::default()
    };
    assert_eq!(run.reward[0].judge(), expect);
    // What the planner writes is read again, also where there is no judge.
    for sets in [&sets[..], &[]] {
        let run = load_text(GOOD, sets, &[]).unwrap().run;
        assert_eq!(load_text(&run.to_toml(), &[], &[]).unwrap().run, run);
    }
    load_text(GOOD, &["reward.0.kind=judge:https://host/v1", "reward.0.scale=[1, 5]"], &[]).unwrap();
}

#[test]
fn what_no_judge_can_use_is_refused() {
    for (sets, slug, contains) in [
        (&[URL][..], "contradictory-keys", "kind = \"exact\" asks no judge"),
        (
            &["reward.0.second_ask=0"],
            "contradictory-keys",
            "remove reward.0.second_ask, or set kind = \"judge\"",
        ),
        (&[JUDGE], "missing-key", "`reward.0.url` is missing"),
        (&["reward.0.kind=judge:http://h/v1", URL], "contradictory-keys", "an address too"),
        (&[JUDGE, "reward.0.url=h:8000"], "reward-bad-judge", "none of http:// or https://"),
        (&["reward.0.kind=judge:http://me:secret@h/v1"], "reward-bad-judge", "set `key_env`"),
        (&["reward.0.kind=judge:"], "reward-bad-judge", "url = \"http://127.0.0.1:8000/v1\""),
        (&[JUDGE, URL, "reward.0.prompt=/no/such.txt"], "reward-bad-judge", "{response}"),
        (&[JUDGE, URL, "reward.0.rubric=[\"a\", \" \"]"], "bad-value", "each a text"),
        (&[JUDGE, URL, "reward.0.rubric_weights=[1]"], "contradictory-keys", "1 weights for 0 criteria"),
        (&[JUDGE, URL, RUBRIC, "reward.0.rubric_weights=[1, 0]"], "bad-value", "above 0"),
        (&[JUDGE, URL, RUBRIC, "reward.0.scale=[1, 5]"], "contradictory-keys", "yes and no"),
        (&[JUDGE, URL, "reward.0.scale=[5, 1]"], "bad-value", "the lowest number and the highest"),
        (&[JUDGE, URL, "reward.0.scale=[0, inf]"], "bad-value", "finite"),
        (&[JUDGE, URL, "reward.0.temperature=-1"], "bad-value", "not negative"),
        (&[JUDGE, URL, "reward.0.max_tokens=0"], "bad-value", "at least 1"),
        (&[JUDGE, URL, "reward.0.second_ask=1.5"], "bad-value", "from 0 to 1"),
    ] {
        let error = load_text(GOOD, sets, &[]).expect_err(&format!("{sets:?}"));
        assert_eq!((error.slug, error.exit), (slug, Exit::Usage), "{sets:?}: {error}");
        assert!(error.to_string().contains(contains), "{sets:?} lacks {contains}: {error}");
        assert!(!error.hints.is_empty(), "{sets:?}: {error}");
    }
}

#[test]
fn a_key_in_place_of_its_variable_is_not_shown() {
    for name in ["sk-12345", "", "1A", "A B"] {
        let error = load_text(GOOD, &[JUDGE, URL, &format!("reward.0.key_env={name}")], &[]).unwrap_err();
        let text = error.to_string();
        assert!(error.slug == "bad-value" && text.contains("such as \"JUDGE_KEY\""), "{text}");
        assert!(name.is_empty() || !text.contains(name), "{text}");
    }
}

#[test]
fn the_example_of_the_docs_is_a_reward() {
    let docs = include_str!("../../../../docs/details/rewards.md");
    let section = docs.split_once("## A judge\n").expect("there is a section").1;
    let example =
        section.split("```toml\n").nth(1).and_then(|text| text.split("```").next()).expect("an example");
    let (before, after) = GOOD.split_once("[[reward]]\n").expect("the good file has a reward");
    let rest = after.find("\n[").map_or("", |at| &after[at..]);
    let run = load_text(&format!("{before}{example}{rest}"), &[], &[]).unwrap().run;
    assert_eq!((run.reward.len(), run.reward[0].kind.as_str()), (1, "judge"));
    assert_eq!(run.reward[0].judge().rubric_weights, [3.0, 1.0]);
}
