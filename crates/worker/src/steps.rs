//! Steps of a response: places in its text at which a reward function says what the part before was worth.

use plimsoll_base::{JsonPart, shown};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most steps of a response. A reply has room for them next to its scores.
pub const STEPS_MAX: usize = 64;
/// Most bytes of a step's text: a place and a number.
const STEP_BYTES_MAX: usize = 128;

/// The end of a step and its reward.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardStep {
    /// Characters of the response before the step's end.
    pub end: u32,
    /// The reward of the step; NaN and infinities unchanged.
    pub reward: f64,
}

/// Reads the steps of a batch: for each response a list of `[end, reward]`, or null.
///
/// Errors: words on what was returned instead.
pub fn read_steps(lists: Option<JsonPart<'_>>, responses: &[&str]) -> Result<Vec<Vec<RewardStep>>, String> {
    let none = "no list of steps for each completion";
    let lists = lists.ok_or(none)?;
    let count = lists.count().ok_or(none)?;
    if count != responses.len() {
        return Err(format!("steps of {count} completions for {}", responses.len()));
    }
    let mut all = Vec::with_capacity(count);
    lists.each(&mut |list| {
        all.push(of_one(all.len(), list, responses[all.len()])?);
        Ok::<(), String>(())
    })?;
    Ok(all)
}

fn of_one(index: usize, list: JsonPart<'_>, response: &str) -> Result<Vec<RewardStep>, String> {
    if list.is_null() {
        return Ok(Vec::new());
    }
    let who = |what: String| format!("steps of completion {index} that are none: {what}");
    let count = list.count().ok_or_else(|| who(shown(list.text()).into()))?;
    if count > STEPS_MAX {
        return Err(who(too_many(count)));
    }
    let mut steps: Vec<Value> = Vec::with_capacity(count);
    list.each(&mut |step| {
        let is_short = step.text().len() <= STEP_BYTES_MAX;
        let value = is_short.then(|| serde_json::from_str(step.text()).ok()).flatten();
        let no_step = || who(format!("step {} is {}, not [end, reward]", steps.len(), shown(step.text())));
        let value = value.ok_or_else(no_step)?;
        steps.push(value);
        Ok::<(), String>(())
    })?;
    read_steps_of(index, &steps, response)
}

fn too_many(count: usize) -> String {
    format!("{count} of them, and at most {STEPS_MAX} are read")
}

/// Reads the steps of response `index` of a batch, each `[end, reward]`.
///
/// Errors: words on what was returned instead.
pub fn read_steps_of(index: usize, list: &[Value], response: &str) -> Result<Vec<RewardStep>, String> {
    let who = |what: String| format!("steps of completion {index} that are none: {what}");
    if list.len() > STEPS_MAX {
        return Err(who(too_many(list.len())));
    }
    let length = response.chars().count();
    let (mut steps, mut before) = (Vec::with_capacity(list.len()), 0);
    for (number, step) in list.iter().enumerate() {
        let end = step.get(0).and_then(Value::as_u64);
        let reward = step.get(1).and_then(|reward| match reward {
            Value::String(text) => text.parse().ok(),
            other => other.as_f64(),
        });
        let (Some(end), Some(reward), 2) = (end, reward, step.as_array().map_or(0, Vec::len)) else {
            return Err(who(format!("step {number} is {step:.80}, not [end, reward]")));
        };
        if end <= before {
            return Err(who(format!("step {number} ends at {end}, not after {before}")));
        }
        if end > length as u64 {
            return Err(who(format!("step {number} ends at {end}, and the text has {length} characters")));
        }
        before = end;
        steps.push(RewardStep { end: end as u32, reward });
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn steps_end_within_their_text_one_after_the_other() {
        let read = |lists: Value| {
            let text = lists.to_string();
            read_steps(Some(JsonPart::of(text.as_bytes()).expect("JSON")), &["12+é=", ""])
        };
        let of = |end, reward| RewardStep { end, reward };
        assert_eq!(read(json!([[[2, 1], [5, -0.5]], null])), Ok(vec![vec![of(2, 1.0), of(5, -0.5)], vec![]]));
        assert_eq!(read(json!([[], []])), Ok(vec![vec![], vec![]]));
        assert!(read(json!([[[1, "nan"]], null])).is_ok_and(|steps| steps[0][0].reward.is_nan()));
        let many: Vec<[usize; 2]> = (1..=STEPS_MAX + 1).map(|end| [end, 0]).collect();
        for (lists, contains) in [
            (json!([[[6, 1]], null]), "ends at 6, and the text has 5 characters"),
            (json!([null, [[1, 1]]]), "completion 1 that are none: step 0 ends at 1, and the text has 0"),
            (json!([[[2, 1], [2, 1]], null]), "step 1 ends at 2, not after 2"),
            (json!([[[0, 1]], null]), "step 0 ends at 0, not after 0"),
            (json!([[[-1, 1]], null]), "not [end, reward]"),
            (json!([[[1.5, 1]], null]), "not [end, reward]"),
            (json!([[[1, null]], null]), "not [end, reward]"),
            (json!([[[1, 1, 1]], null]), "not [end, reward]"),
            (json!([[3], null]), "not [end, reward]"),
            (json!([5, null]), "completion 0 that are none: 5"),
            (json!([many, null]), "65 of them, and at most 64"),
            (json!([null]), "steps of 1 completions for 2"),
            (json!({}), "no list of steps"),
        ] {
            let error = read(lists.clone()).expect_err(&lists.to_string());
            assert!(error.contains(contains), "{lists}: {error}");
        }
    }
}
