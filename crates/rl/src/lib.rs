//! A whole run: its plan, its step, its loop, and the verbs of the command line.

pub mod runfile;
