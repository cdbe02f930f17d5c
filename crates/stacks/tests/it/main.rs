//! Tests of the crate from outside: what is read, what is known of options, and rows computed by hand.

mod branches;
mod carried;
mod commands;
mod decides;
mod families;
mod import;
mod jobs;
mod launch;
mod losses;
mod notebooks;
mod objectives;
mod options;
mod others;
mod plans;
mod scripts;
mod unsloth;
mod yaml;
