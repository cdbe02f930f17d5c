//! The two refusals of an adapter's files before they are compared with a model.

use plimsoll_base::Error;

pub(crate) fn damaged(message: String) -> Error {
    Error::new("adapter-damaged", message).hint("fetch or save the adapter again")
}

pub(super) fn unsupported(message: String) -> Error {
    Error::new("adapter-unsupported", message)
        .hint("merge the adapter into its model with peft's merge_and_unload, and set `model` to the result")
}
