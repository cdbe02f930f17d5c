//! Rewards over prompts with images: what functions and servers get of them.

use crate::external::{FUNCTIONS, case, has_python, serve, spec, totals};
use plimsoll_reward::{Prompt, RewardSpec, Rewards, SampleImage, Words};
use serde_json::{Map, Value, json};
use std::sync::Arc;

#[test]
fn rewards_see_the_images_of_a_prompt() {
    if !has_python() {
        return;
    }
    let images: Arc<[SampleImage]> =
        [SampleImage::Bytes((*b"12345").into()), SampleImage::Path(FUNCTIONS.into())].into();
    let seen = |spec: RewardSpec| {
        let mut rewards = Rewards::saying(&[spec], Words::of_run()).unwrap();
        rewards.check_columns(&Map::new()).unwrap();
        let with = Prompt { rendered: "<p>".into(), images: images.clone(), ..Prompt::default() };
        let without = Prompt { rendered: "<p>".into(), ..Prompt::default() };
        let cases = vec![case(with.clone(), "a"), case(without.clone(), "b"), case(with, "c")];
        let mixed = totals(rewards.score(cases).unwrap());
        (mixed, totals(rewards.score(vec![case(without, "a")]).unwrap()))
    };
    let expect = (vec![Some(8.0), Some(0.0), Some(8.0)], vec![Some(0.0)]);
    assert_eq!(seen(spec("counts_bytes")), expect);
    // Functions that do not name them, and those that take whatever there is, are called as before.
    assert_eq!(seen(spec("exact_keywords")).1, [Some(1.0)]);
    let url = serve(2, |number, body| {
        let count = |list: &Value| list.as_array().map_or(0, Vec::len);
        let images = (number == 0)
            .then(|| json!([{"path": null, "bytes": "MTIzNDU="}, {"path": FUNCTIONS, "bytes": null}]));
        assert_eq!(images.as_ref(), body.get("images").map(|lists| &lists[0]));
        let rewards: Vec<usize> = match body.get("images") {
            Some(lists) => lists.as_array().unwrap().iter().map(count).collect(),
            None => vec![0],
        };
        Some((200, json!({ "rewards": rewards }).to_string()))
    });
    assert_eq!(seen(RewardSpec::of_kind(url)), (vec![Some(2.0), Some(0.0), Some(2.0)], vec![Some(0.0)]));
}
