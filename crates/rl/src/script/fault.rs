//! What goes wrong while a script is served: the script gets the error of its request, or the run ends.

use plimsoll_base::{Error, slugs};

/// An error of the script's request, which the script gets, or one that ends the run.
#[derive(Debug)]
pub(super) enum Fault {
    OfRequest(Error),
    OfRun(Error),
}

pub(super) type Served<T> = std::result::Result<T, Fault>;

/// Errors of a training pass that leave weights as they were: the script may go on.
const LEFT_WHOLE: [&str; 3] = [slugs::LOGPROB_MISMATCH, slugs::LOSS_NOT_FINITE, slugs::GRADIENT_NOT_FINITE];

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::OfRun(error)
    }
}

impl Fault {
    /// Returns the fault of a pass: the request's where the weights are as they were.
    pub(super) fn of_pass(error: Error) -> Fault {
        if LEFT_WHOLE.contains(&error.slug) { Fault::OfRequest(error) } else { Fault::OfRun(error) }
    }
}

/// Returns an array's fault.
pub(super) fn bad_array(name: &str, what: impl std::fmt::Display) -> Fault {
    Fault::OfRequest(Error::usage("script-bad-array", format!("the array `{name}`: {what}")))
}

/// Returns the fault of a request that makes no sense.
pub(super) fn bad_request(what: impl Into<String>, hint: &str) -> Fault {
    Fault::OfRequest(Error::usage("script-bad-request", what).hint(hint))
}

/// Returns the fault of a request at the wrong time.
pub(super) fn out_of_order(what: impl Into<String>, hint: &str) -> Fault {
    Fault::OfRequest(wrong_time(what, hint))
}

/// Returns the error of a request at the wrong time.
pub(super) fn wrong_time(what: impl Into<String>, hint: &str) -> Error {
    Error::usage("script-out-of-order", what).hint(hint)
}

/// Returns the fault of a request beyond what is planned.
pub(super) fn too_large(what: impl Into<String>, hint: impl Into<String>) -> Fault {
    Fault::OfRequest(Error::usage("script-too-large", what).hint(hint))
}
