//! Strings to tokens and back: tokenizers, chat templates, prompt data and generated tasks.
