//! Tests of the crate from outside: what is read, what is known of options, and rows computed by hand.

mod carried;
mod commands;
mod decides;
mod import;
mod jobs;
mod launch;
mod losses;
mod notebooks;
mod objectives;
mod options;
mod plans;
mod scripts;
