//! The CPU's operations against f64 references, and the properties that the rest of the system is built on: a row's
//! bits are its own, and threads change none.

mod activation;
mod adamw;
mod adamw8;
mod attention;
mod attention_backward;
mod bench;
mod fixture;
mod rotation;
mod rows;
