//! Steps of a response: places in its text at which a reward function says what the part before was worth.

use serde_json::Value;

/// Most steps of a response. A reply has room for them next to its scores.
pub const STEPS_MAX: usize = 64;

/// The end of a step and its reward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RewardStep {
    /// Characters of the response before the step's end.
    pub end: u32,
    /// What the step is worth; NaN and infinities unchanged.
    pub reward: f64,
}

/// Reads the steps of a batch: for each response a list of `[end, reward]`, or null.
///
/// Errors: words on what was returned instead.
pub fn read_steps(lists: &Value, responses: &[&str]) -> Result<Vec<Vec<RewardStep>>, String> {
    let lists = lists.as_array().ok_or("no list of steps for each completion")?;
    if lists.len() != responses.len() {
        return Err(format!("steps of {} completions for {}", lists.len(), responses.len()));
    }
    lists.iter().zip(responses).enumerate().map(|(i, (list, response))| of_one(i, list, response)).collect()
}

fn of_one(index: usize, list: &Value, response: &str) -> Result<Vec<RewardStep>, String> {
    if list.is_null() {
        return Ok(Vec::new());
    }
    let none = || format!("steps of completion {index} that are none: {list:.80}");
    read_steps_of(index, list.as_array().ok_or_else(none)?, response)
}

/// Reads the steps of response `index` of a batch, each `[end, reward]`.
///
/// Errors: words on what was returned instead.
pub fn read_steps_of(index: usize, list: &[Value], response: &str) -> Result<Vec<RewardStep>, String> {
    let who = |what: String| format!("steps of completion {index} that are none: {what}");
    if list.len() > STEPS_MAX {
        return Err(who(format!("{} of them, and at most {STEPS_MAX} are read", list.len())));
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
        let read = |lists: Value| read_steps(&lists, &["12+é=", ""]);
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
