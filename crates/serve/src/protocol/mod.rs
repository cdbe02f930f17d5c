//! The protocols of clients: OpenAI's chats (`chat.rs`, `messages.rs`), completions and responses (`responses/`),
//! Anthropic's messages (`anthropic/`), vLLM's requests of token ids (`tokens.rs`), and their answers. Fields that a
//! protocol does not have here are refused by name (`fields.rs`, `refusal.rs`). Each conversation becomes the messages
//! that chat templates read (`dialogue.rs`), and a request a `Parsed` one (`parsed.rs`); an outbox's parts become a
//! body or events (`reply.rs`).

pub mod anthropic;
pub mod chat;
pub mod completions;
pub mod dialogue;
pub mod fields;
pub mod ids;
pub mod logprobs;
pub mod messages;
pub mod parsed;
pub mod prompt;
pub mod refusal;
pub mod reply;
pub mod responses;
pub mod tokens;
