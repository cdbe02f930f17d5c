//! Opening models: which tokens they have, and which of two have the same.

use crate::chars::{model, tokenizer};
use plimsoll_config::ModelOptions;
use plimsoll_files::TokenizerFiles;
use plimsoll_infer::models::{open_any_model, open_model, other_tokens};

fn with_tokenizer(tokenizer: &str) -> ModelOptions {
    ModelOptions { tokenizer: Some(tokenizer.into()), ..ModelOptions::default() }
}

#[test]
fn a_model_with_other_tokens_than_the_actor_is_told_by_what_differs() {
    let actor = model(&["</s>"], "abc", None);
    let found = |other| other_tokens(&actor, &other).expect("tokenizers that can be read");
    assert_eq!(found(model(&["</s>"], "abc", None)), None);
    let mut more_rows = model(&["</s>"], "abc", None);
    more_rows.spec.vocab += 64;
    assert_eq!(found(more_rows), None, "rows beyond the tokenizer are padding");
    let fewer = found(model(&["</s>"], "ab", None)).expect("a difference");
    assert_eq!(fewer, "its embedding has 3 rows, the actor may sample 4 tokens");
    let other = found(model(&["</s>"], "abd", None)).expect("a difference");
    assert!(other.contains("they differ in token `"), "{other}");
}

#[test]
fn random_weights_have_learnt_no_tokens_that_could_differ() {
    let actor = model(&["</s>"], "abc", None);
    let mut other = model(&["</s>"], "xyz", None);
    other.random = true;
    assert_eq!(other_tokens(&actor, &other).expect("nothing to read"), None);
    // An embedding that is too small is one all the same.
    other.spec.vocab = 2;
    assert!(other_tokens(&actor, &other).expect("nothing to read").is_some());
}

#[test]
fn a_tokenizer_of_the_run_file_is_a_file_a_models_folder_or_bytes() {
    let own = open_model("builtin:nano", &ModelOptions::default()).expect("it is built in").tokenizer;
    assert!(!own.bytes);
    let bytes = open_model("builtin:nano", &with_tokenizer("bytes")).expect("bytes need no file").tokenizer;
    assert_eq!(bytes, TokenizerFiles { bytes: true, ..TokenizerFiles::default() });
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, tokenizer(&["</s>"], "abc")).expect("a file");
    let file = open_any_model("builtin:nano", &with_tokenizer(path.to_str().expect("UTF-8")));
    assert_eq!(file.expect("a file").tokenizer.tokenizer_json, Some(tokenizer(&["</s>"], "abc")));
}

#[test]
fn a_tokenizer_that_is_not_there_is_named_with_what_the_key_takes() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("tokenizer.jsn");
    let error = open_model("builtin:nano", &with_tokenizer(missing.to_str().expect("UTF-8")));
    let error = error.expect_err("no such file");
    assert_eq!(error.slug, "tokenizer-missing");
    assert!(error.message.contains("tokenizer.jsn"), "{error}");
    assert!(error.hints.iter().any(|hint| hint.contains("\"bytes\"")), "{:?}", error.hints);
}
