//! The doctor from outside. `hostile` is a separate target: it measures the memory of its process.

mod confusion;
mod cut_logs;
mod cut_siblings;
mod endless;
mod ends;
mod machine;
mod records;
mod repeats;
mod strangers;
mod unseen;
