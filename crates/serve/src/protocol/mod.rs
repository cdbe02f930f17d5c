//! The protocol of clients: OpenAI's chats (`chat.rs`, `messages.rs`) and completions, vLLM's requests of token ids
//! (`tokens.rs`), and their answers. Fields that it does not have are refused by name (`fields.rs`, `refusal.rs`). A
//! request becomes a `Parsed` one (`parsed.rs`), and an outbox's parts become a body or events (`reply.rs`).

pub mod chat;
pub mod completions;
pub mod fields;
pub mod logprobs;
pub mod messages;
pub mod parsed;
pub mod refusal;
pub mod reply;
pub mod tokens;
