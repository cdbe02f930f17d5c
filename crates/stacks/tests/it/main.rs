//! Tests of the crate from outside: what is read, what is known of options, and rows computed by hand.

mod import;
mod launch;
mod options;
mod plans;
mod scripts;
