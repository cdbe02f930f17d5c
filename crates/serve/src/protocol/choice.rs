//! What a request says about calling functions, in the protocols whose choice has more forms than a word.

use crate::protocol::refusal::{Refusal, Reply};
use serde_json::Value;

/// Whether the model calls functions.
#[derive(Clone, Debug, PartialEq)]
pub enum CallChoice {
    /// As it likes.
    Free,
    /// None: it is not shown any.
    Never,
    /// At least one, or the one of this name.
    Forced(Option<String>),
}

impl CallChoice {
    /// Returns the functions that the model is shown. Here is the one place for calls that are forced.
    ///
    /// Errors: `serve-field-refused` for a forced call.
    pub fn shown(self, param: &str, tools: Vec<Value>) -> Reply<Vec<Value>> {
        match self {
            CallChoice::Free => Ok(tools),
            CallChoice::Never => Ok(Vec::new()),
            CallChoice::Forced(name) => {
                let what =
                    name.map_or("a function".into(), |name| format!("{:?}", plimsoll_base::shown(&name)));
                let message =
                    format!("{param}: nothing makes the model call {what} here; it can be auto or none");
                Err(Refusal::unsupported(param, message))
            }
        }
    }
}
