//! Tests what every device gets from this crate: operations whose outputs overlap nothing in use.

mod overlap;
