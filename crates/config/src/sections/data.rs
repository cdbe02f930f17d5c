//! `[data]`.

use crate::data_sets::DataSets;
use crate::key::{COUNT, SHARE, also};
use crate::values::{AnsweredPrompts, Curriculum, Overlong, TrainOn};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

section! {
    /// Prompts, and what to evaluate on.
    Data "data" {
        /// A JSONL or Parquet file, a data set of the hub (`hf:org/name/SUBSET/SPLIT`) or `builtin:TASK`, or a list of
        /// them with weights.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompts: Option<DataSets> = None,
        /// A JSONL or Parquet file, a data set of the hub or `builtin:TASK`, or a list of them; `none` is no
        /// evaluation. If absent, the test sets of the built-in tasks among `prompts`.
        #[serde(skip_serializing_if = "Option::is_none")]
        eval: Option<DataSets> = None,
        /// The column with the prompt: a string or chat messages.
        prompt_column: String = "prompt".into(),
        /// The column with the answer; `a.b` is the entry `b` of the column `a`.
        answer_column: String = "ground_truth".into(),
        /// The column with the share of right answers that some model gave, from 0 to 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        pass_rate_column: Option<String> = None,
        /// Rows of `prompts` below it are left out.
        #[serde(skip_serializing_if = "Option::is_none")]
        pass_rate_min: Option<f64> = None => [SHARE],
        /// Rows of `prompts` above it are left out.
        #[serde(skip_serializing_if = "Option::is_none")]
        pass_rate_max: Option<f64> = None => [SHARE],
        /// The order of each pass over the data, by pass rate.
        curriculum: Curriculum = Curriculum::None,
        /// Put before every prompt as a system message.
        #[serde(skip_serializing_if = "Option::is_none")]
        system_prompt: Option<String> = None,
        /// A Jinja template, or the path of a file with one, instead of the tokenizer's; `none` takes strings as they
        /// are. With a template a string is one user message, unless it already contains the template's own marks.
        #[serde(skip_serializing_if = "Option::is_none")]
        chat_template: Option<String> = None,
        /// Variables of the template by name, such as `enable_thinking = false`: what other stacks call
        /// `chat_template_kwargs`.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        template_args: BTreeMap<String, serde_json::Value> = BTreeMap::new() => [also(&["chat_template_kwargs"])],
        /// What a method that samples does with a prompt that ends with the assistant's words, as rows for `sft` do.
        #[serde(skip_serializing_if = "AnsweredPrompts::is_error")]
        answered: AnsweredPrompts = AnsweredPrompts::Error,
        /// Columns and fields of messages that are left out of every row, such as `["weight"]`: nothing reads them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        ignore: Vec<String> = Vec::new(),
        /// Whether text of no chat template begins with what the tokenizer puts before a text, such as a BOS token.
        #[serde(skip_serializing_if = "Clone::clone")]
        add_special_tokens: bool = true,
        /// What `sft` learns of a row with `messages`: the last turn, or every turn of the assistant.
        #[serde(skip_serializing_if = "TrainOn::is_last")]
        train_on: TrainOn = TrainOn::Last,
        /// Longest prompt in tokens; the longest in the data if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompt_tokens_max: Option<u32> = None => [COUNT, also(&["max_prompt_length", "prompt_max_len"])],
        /// What to do with a longer one.
        overlong: Overlong = Overlong::Error,
        /// The column with the images of a row: a file, `{"bytes": ..., "path": ...}`, a data URI, or a list of them.
        #[serde(skip_serializing_if = "Option::is_none")]
        images: Option<String> = None,
        /// The folder of the images that rows name; that of the data file if absent. Nothing outside it is read.
        #[serde(skip_serializing_if = "Option::is_none")]
        image_folder: Option<String> = None,
        /// Least area of an image in pixels; smaller ones are enlarged. If absent, as the model's files say.
        #[serde(skip_serializing_if = "Option::is_none")]
        image_pixels_min: Option<u64> = None => [COUNT, also(&["min_pixels"])],
        /// Largest area of an image in pixels; larger ones are made smaller. If absent, as the model's files say.
        #[serde(skip_serializing_if = "Option::is_none")]
        image_pixels_max: Option<u64> = None => [COUNT, also(&["max_pixels"])],
        /// Whether each pass over the data has its own order; with a curriculum, among rows of one pass rate.
        shuffle: bool = true,
    }
}
