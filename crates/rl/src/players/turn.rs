//! A turn of an episode, as players, steps, ranks and checkpoints know it.

use plimsoll_rollout::Turn;
use plimsoll_text::Message;
use serde::{Deserialize, Serialize};

/// A turn of the model that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlayedTurn {
    /// Its tokens among those of its sequence, and how it ended.
    pub turn: Turn,
    /// The response as the environment saw it.
    pub response: String,
    #[serde(with = "as_bits")]
    pub reward: f64,
    /// The environment's answer; empty after the last turn.
    pub said: Vec<Message>,
    /// The updates of the weights that drew it.
    pub version: u64,
}

/// What an agent asked first in an episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirstRequest {
    pub prompt: Vec<u32>,
    pub messages: Vec<Message>,
}

/// Numbers as their bits, which text would not keep.
mod as_bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(value.to_bits())
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<f64, D::Error> {
        u64::deserialize(from).map(f64::from_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_rollout::Finish;

    /// Checkpoints have it.
    #[test]
    fn a_turn_has_its_form_and_its_rewards_their_bits() {
        let turn = Turn { start: 3, end: 5, finish: Finish::Eos };
        let (response, said) = ("50".to_string(), vec![Message::new("user", "higher")]);
        let played = PlayedTurn { turn, response, reward: 1.0 / 3.0, said, version: 7 };
        let text = serde_json::to_string(&played).expect("plain data");
        let bits = (1f64 / 3.0).to_bits();
        let form = format!(
            r#"{{"turn":{{"start":3,"end":5,"finish":"eos"}},"response":"50","reward":{bits},"said":[{{"role":"user","content":"higher"}}],"version":7}}"#
        );
        assert_eq!(text, form);
        assert_eq!(serde_json::from_str::<PlayedTurn>(&text).expect("its own form"), played);
    }
}
