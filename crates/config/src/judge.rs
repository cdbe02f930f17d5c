//! `[[reward]] kind = "judge"`: its keys, which belong to no other kind.

use super::limits::{bad_value, contradiction};
use super::provenance::Provenance;
use super::sections::Reward;
use plimsoll_base::{Error, Result};
use plimsoll_reward::JudgeSpec;

/// Most criteria of a rubric: each is a line of every request and reply.
const CRITERIA_MAX: usize = 64;

impl Reward {
    /// Returns how its judge is asked.
    pub(crate) fn judge(&self) -> JudgeSpec {
        let default = JudgeSpec::default();
        JudgeSpec {
            url: self.url.clone(),
            model: self.judge_model.clone(),
            prompt: self.prompt.clone(),
            rubric: self.rubric.clone(),
            rubric_weights: self.rubric_weights.clone(),
            scale: self.scale.unwrap_or(default.scale),
            temperature: self.temperature.unwrap_or(default.temperature),
            max_tokens: self.max_tokens.unwrap_or(default.max_tokens),
            key_env: self.key_env.clone(),
            second_ask: self.second_ask.unwrap_or(default.second_ask),
        }
    }
}

/// Refuses keys of a judge in another kind, and keys of a judge that contradict each other.
pub(super) fn check(index: usize, reward: &Reward, at: &Provenance) -> Result<()> {
    let key = |name: &str| format!("reward.{index}.{name}");
    let contrary = |name: &str, what: &str, hint: &str| {
        let message = format!("`{}` is set, but {what}", key(name));
        Err(contradiction(at, &key(name), &message).hint(hint.to_string()))
    };
    if reward.kind.split(':').next() != Some("judge") {
        let mut own = Reward::KEYS.iter().filter(|row| row.is_of_judge()).map(|row| row.parts().1);
        return match own.find(|name| at.origins.contains_key(&key(name))) {
            None => Ok(()),
            Some(name) => {
                let hint = format!("remove {}, or set kind = \"judge\"", key(name));
                contrary(name, &format!("kind = \"{}\" asks no judge", reward.kind), &hint)
            }
        };
    }
    match (&reward.url, reward.kind == "judge") {
        (None, true) => {
            let origin = at.of(&key("kind"));
            return Err(super::de::missing_key(&at.source, origin, &key("url"))
                .hint("set it to the address of the judge's server, such as \"http://127.0.0.1:8000/v1\""));
        }
        (Some(_), false) => return contrary("url", "`kind` has an address too", "set kind = \"judge\""),
        _ => {}
    }
    let criteria = reward.rubric.len();
    if criteria > CRITERIA_MAX || reward.rubric.iter().any(|criterion| criterion.trim().is_empty()) {
        let takes = format!("up to {CRITERIA_MAX} criteria, each a text");
        return Err(bad_value(at, &key("rubric"), format!("{criteria} of them"), &takes));
    }
    let weights = reward.rubric_weights.len();
    if weights > 0 && weights != criteria {
        let what = format!("it has {weights} weights for {criteria} criteria");
        return contrary("rubric_weights", &what, "give one number for each criterion of `rubric`");
    }
    match reward.scale {
        Some(_) if criteria > 0 => {
            return contrary("scale", "a rubric is answered with yes and no", "remove `scale` or `rubric`");
        }
        Some([low, high]) if low >= high => {
            let numbers = format!("[{low}, {high}]");
            return Err(bad_value(at, &key("scale"), numbers, "the lowest number and the highest"));
        }
        _ => {}
    }
    variable(reward.key_env.as_deref(), &key("key_env"))
}

/// Requires the name of a variable. The value is not shown: it may be the key itself.
pub(super) fn variable(name: Option<&str>, key: &str) -> Result<()> {
    let Some(name) = name else { return Ok(()) };
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !name.is_empty() && is_name(name) && !name.starts_with(|first: char| first.is_ascii_digit()) {
        return Ok(());
    }
    Err(Error::usage("bad-value", format!("`{key}` is not the name of an environment variable"))
        .hint("name the variable that has the key, such as \"JUDGE_KEY\"; the key itself does not belong in a run file"))
}
