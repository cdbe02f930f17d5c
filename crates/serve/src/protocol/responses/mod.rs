//! Answers `POST /v1/responses`, OpenAI's API of responses: a conversation of items (`items.rs`) with its settings
//! (`request.rs`), its answer as items or as their events (`answer.rs`). Nothing is stored, so what refers to an
//! earlier response is refused by name, and so are tools that only OpenAI's own servers run.

mod answer;
mod counted;
mod items;
mod request;

pub use request::read;

#[cfg(test)]
#[path = "responses_tests.rs"]
mod tests;
