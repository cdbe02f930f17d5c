//! Token ids that requests name.

use crate::protocol::refusal::{Refusal, Reply};
use crate::state::ServerState;

/// Requires that ids are tokens of the model.
pub fn check_ids(ids: &[u32], param: &str, state: &ServerState) -> Reply<()> {
    match ids.iter().find(|&&id| id >= state.texts.vocab) {
        None => Ok(()),
        Some(id) => {
            let message =
                format!("{param} has the token {id}, the model's vocabulary has {}", state.texts.vocab);
            Err(Refusal::bad(param, message))
        }
    }
}
