//! Converts text to tokens and back: tokenizers, chat templates, prompt data and generated tasks.
//!
//! A *token* is an id below the model's vocabulary. Text that a tokenizer would silently lose,
//! ids for which the model has no row, and templates that do not end are refused by name.

mod answered;
mod call_end;
pub mod calls;
mod calls_form;
mod calls_gemma;
mod calls_keys;
mod calls_sections;
pub mod calls_xml;
mod chat;
mod data;
mod data_size;
mod drawn;
mod files_to_save;
mod gguf;
mod growth;
mod guard;
mod harmony;
mod harmony_turns;
mod images;
mod jinja;
mod labels;
mod message;
mod pairs;
mod parquet_file;
mod parquet_pages;
mod response;
mod row_fields;
mod row_tokens;
pub mod said;
mod spans;
mod stop;
mod stream;
mod strftime;
mod strings;
mod supervised;
mod tasks;
mod thinking;
mod tokenizer;
mod turns;
mod worse;

pub use answered::{AnsweredPrompt, AnsweredRows};
pub use calls_form::CallForm;
pub use chat::{ChatTemplate, Conversation, end_token, template_text};
pub use data::{
    Part, Prompt, Row, each_line_of, each_prompt, each_row_of, first_prompts, first_rows_of, prompts_of_lines,
};
pub use data_size::{FileSize, file_size};
pub use drawn::{DRAWN_TASKS, DrawnTask};
pub use files_to_save::files_to_save;
pub use gguf::tables::gguf_tables;
pub use guard::panic_becomes_an_error;
pub use images::{
    IMAGE_BYTES_MAX, ImageColumns, ImageFolder, ImageRow, ImageSource, each_prompt_with_images,
    each_row_s_images, first_prompts_with_images, sent_image,
};
pub use labels::{LabelledRow, halves, load_labelled};
pub use message::{BadPart, Message, joined_parts, read_calls};
pub use pairs::{PairRow, PairTokens, load_pairs};
pub use parquet_file::PARQUET_THREAD;
pub use response::ResponseReader;
pub use row_fields::{FieldCounts, TEMPLATE_COLUMNS, template_variables};
pub use row_tokens::RowTokenizer;
pub use spans::{AlignLimits, Aligned, Aligner, SPAN_TOKENS_MAX, Side, Span};
pub use stop::{STOPS_MAX, StopMatch, StopMatcher};
pub use stream::StreamDecoder;
pub use strings::Strings;
pub use supervised::{SftRow, SftTokens, SupervisedRow, load_sft};
pub use tasks::{TASKS, Task};
pub use tokenizer::Tokenizer;
pub use turns::written_after;
