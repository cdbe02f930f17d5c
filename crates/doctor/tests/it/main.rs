//! The doctor from outside. `hostile` is a separate target: it measures the memory of its process.

mod confusion;
mod ends;
mod endless;
mod machine;
mod repeats;
