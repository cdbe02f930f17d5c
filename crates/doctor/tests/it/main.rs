//! The doctor from outside. `hostile` is a target of its own: it measures the memory of its process.

mod confusion;
mod machine;
