//! Texts are tokenized whole, as the tokenizer's file says, and cut by position. The expected ids are those of
//! `tokenizers` 0.23 for the same file and text, with `add_special_tokens` for texts of no template.

use plimsoll_files::TokenizerFiles;
use plimsoll_text::{ChatTemplate, Message, PairRow, Prompt, RowTokenizer, SftRow, Strings, Tokenizer};
use serde_json::{Map, Value, json};

/// A SentencePiece tokenizer as those of Llama 2: a space before a text and after a special token, bytes for the rest.
fn sentencepiece(pre_tokenizer: Value, normalizer: Value) -> TokenizerFiles {
    let mut vocab: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    vocab.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    vocab.extend("▁abcdef=+".chars().map(String::from));
    let merges = [("▁", "a"), ("b", "c"), ("▁", "d"), ("=", "e"), ("▁", "=")];
    vocab.extend(merges.iter().map(|(left, right)| format!("{left}{right}")));
    let ids: Map<String, Value> =
        vocab.iter().zip(0..).map(|(token, id)| (token.clone(), json!(id))).collect();
    let special = |id: u32, content: &str| json!({"id": id, "content": content, "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false});
    let json = json!({
        "version": "1.0", "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true, "vocab": ids, "merges": merges},
    });
    TokenizerFiles { tokenizer_json: Some(json.to_string().into_bytes()), ..TokenizerFiles::default() }
}

fn legacy() -> TokenizerFiles {
    let steps = json!([{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]);
    sentencepiece(Value::Null, json!({"type": "Sequence", "normalizers": steps}))
}

fn metaspace() -> TokenizerFiles {
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    sentencepiece(metaspace, Value::Null)
}

fn opened(files: &TokenizerFiles) -> Tokenizer {
    Tokenizer::from_files(files, 300).expect("a tokenizer")
}

fn rows<'t>(
    tokenizer: &'t Tokenizer,
    template: Option<&'t ChatTemplate>,
    strings: &'t Strings,
) -> RowTokenizer<'t> {
    RowTokenizer {
        tokenizer,
        template,
        system_prompt: None,
        strings,
        eos: Some(2),
        begins: true,
        continues: false,
    }
}

fn words(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    ids.iter().filter_map(|id| tokenizer.token_text(*id)).collect::<Vec<String>>().join(" ")
}

/// Texts of no template had no token that begins a text, which base models were trained with.
#[test]
fn r_a_text_began_without_the_token_that_begins_texts() {
    for files in [legacy(), metaspace()] {
        let tokenizer = opened(&files);
        let rows = rows(&tokenizer, None, &Strings::Raw);
        let prompt = |text: &str, rows: RowTokenizer<'_>| {
            words(&tokenizer, &rows.prompt(&Prompt::Text(text.into()), &Map::new()).expect("tokens"))
        };
        assert_eq!(prompt("a d", rows), "<s> ▁a ▁d");
        // A text that has it does not get it twice.
        assert_eq!(prompt("<s>a", rows).matches("<s>").count(), 1);
        let without = RowTokenizer { begins: false, ..rows };
        assert_eq!(prompt("a d", without), "▁a ▁d");
    }
    // The configuration says otherwise.
    let config = json!({"add_bos_token": false, "bos_token": "<s>"});
    let tokenizer = opened(&TokenizerFiles { tokenizer_config_json: Some(config), ..legacy() });
    let rows = rows(&tokenizer, None, &Strings::Raw);
    assert_eq!(words(&tokenizer, &rows.plain("a").expect("tokens")), "▁a");
}

/// A template writes its own special tokens, as transformers' `apply_chat_template` has it.
#[test]
fn a_conversation_begins_as_its_template_says() {
    let tokenizer = opened(&legacy());
    let template =
        ChatTemplate::new("{% for m in messages %}{{ m.content }}{% endfor %}", &[]).expect("a template");
    let rows = rows(&tokenizer, Some(&template), &Strings::Raw);
    let prompt = Prompt::Messages(vec![Message::new("user", "a")]);
    assert_eq!(words(&tokenizer, &rows.prompt(&prompt, &Map::new()).expect("tokens")), "▁a");
}

/// Prompt and answer were encoded apart, so that the answer began with a space that the whole text does not have.
#[test]
fn r_an_answer_began_with_a_space_of_its_own() {
    let template = "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}b {{ m.content }} b{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}";
    let template =
        ChatTemplate::new(template, &[("bos_token", "<s>"), ("eos_token", "</s>")]).expect("a template");
    for files in [legacy(), metaspace()] {
        let tokenizer = opened(&files);
        let raw = rows(&tokenizer, None, &Strings::Raw);
        let row = SftRow::answer(Prompt::Text("a=".into()), "bc");
        let learnt = raw.sft(&row, &Map::new()).expect("tokens");
        let found = (words(&tokenizer, &learnt.prompt), words(&tokenizer, &learnt.completion));
        assert_eq!(found, ("<s> ▁a =".into(), "bc </s>".into()));

        let chat = rows(&tokenizer, Some(&template), &Strings::Raw);
        let prompt = || Prompt::Messages(vec![Message::new("user", "a")]);
        let learnt = chat.sft(&SftRow::answer(prompt(), "d"), &Map::new()).expect("tokens");
        assert_eq!(words(&tokenizer, &learnt.completion), "▁d </s>");
        let turns = SftRow::Turns(vec![Message::new("user", "a"), Message::new("assistant", "d")]);
        let every_turn = chat.sft(&turns, &Map::new()).expect("tokens");
        assert_eq!((&every_turn.prompt, &every_turn.completion), (&learnt.prompt, &learnt.completion));
        let pair = chat.pair(&PairRow::of_texts(prompt(), "d", "a"), &Map::new()).expect("tokens");
        assert_eq!((&pair.prompt, &pair.chosen), (&learnt.prompt, &learnt.completion));
        assert_eq!(words(&tokenizer, &pair.rejected), "▁a </s>");
    }
}

/// A token across the end of the prompt is one of the answer, and of a pair of both answers.
#[test]
fn a_token_across_the_cut_belongs_to_the_answer() {
    let tokenizer = opened(&metaspace());
    let rows = rows(&tokenizer, None, &Strings::Raw);
    let learnt = rows.sft(&SftRow::answer(Prompt::Text("a=".into()), "e"), &Map::new()).expect("tokens");
    let found = (words(&tokenizer, &learnt.prompt), words(&tokenizer, &learnt.completion));
    assert_eq!(found, ("<s> ▁a".into(), "=e </s>".into()));
    let pair = PairRow::of_texts(Prompt::Text("a=".into()), "e", "d");
    let pair = rows.pair(&pair, &Map::new()).expect("tokens");
    let found = [&pair.prompt, &pair.chosen, &pair.rejected].map(|ids| words(&tokenizer, ids));
    assert_eq!(found, ["<s> ▁a", "=e </s>", "= d </s>"]);
}

/// Text after sampled tokens gets the space that the whole text has there, not that of a text of its own.
#[test]
fn r_text_after_a_turn_began_with_a_space_of_its_own() {
    let after = |files: &TokenizerFiles, last: &str| {
        let tokenizer = opened(files);
        let last: Vec<u32> = tokenizer.token_id(last).into_iter().collect();
        words(&tokenizer, &tokenizer.encode_after(&last, "bc").expect("tokens"))
    };
    // The old form puts a space after each special token, the new one before the whole text alone.
    assert_eq!(after(&legacy(), "</s>"), "▁ bc");
    assert_eq!(after(&metaspace(), "</s>"), "bc");
    assert_eq!(after(&metaspace(), "="), "bc");
    assert_eq!(after(&metaspace(), "none such"), "▁ bc");
}

/// Shows that what followed a turn that was cut was encoded alone, although the whole text has other tokens there.
#[test]
fn r_text_after_a_cut_turn_was_encoded_alone() {
    let after = |files: &TokenizerFiles, before: &str, text: &str| {
        let tokenizer = opened(files);
        let ids = |words: &str| -> Vec<u32> {
            words.split(' ').map(|word| tokenizer.token_id(word).expect("a token")).collect()
        };
        words(&tokenizer, &tokenizer.encode_after(&ids(before), text).expect("tokens"))
    };
    for files in [legacy(), metaspace()] {
        // No space of its own, whichever token was the last.
        assert_eq!(after(&files, "▁a b", "d"), "d");
        assert_eq!(after(&files, "▁a b", " d"), "▁d");
        assert_eq!(after(&files, "▁a", "bc d"), "bc ▁d");
        // The whole text has `bc` in one token: the b was sampled, and the c is encoded by itself, the rest as there.
        assert_eq!(after(&files, "▁a b", "c d"), "c ▁d");
        assert_eq!(after(&files, "a b", "cbc"), "c bc");
        // The whole text has `= e` merged too, and what follows it is not.
        assert_eq!(after(&files, "▁ =", "ee"), "e e");
        // A sampled byte of a character that was cut.
        assert_eq!(after(&files, "▁a <0xE2>", "bc"), "bc");
        assert_eq!(after(&files, "▁a", "bc </s>d"), words_of_whole(&files));
    }
}

/// The tokens of `bc </s>d` after `a` in the whole text.
fn words_of_whole(files: &TokenizerFiles) -> String {
    let tokenizer = opened(files);
    let whole = tokenizer.encode("abc </s>d").expect("tokens");
    words(&tokenizer, &whole[1..])
}

/// They were decoded alone, which takes the space away and makes U+FFFD of a byte.
#[test]
fn r_a_token_lost_its_space_and_its_byte() {
    for files in [legacy(), metaspace()] {
        let tokenizer = opened(&files);
        let bytes =
            |token: &str| tokenizer.token_bytes(tokenizer.token_id(token).expect("a token")).into_owned();
        assert_eq!((bytes("▁a"), bytes("bc"), bytes("<0xE2>")), (b" a".to_vec(), b"bc".to_vec(), vec![0xE2]));
    }
}

/// A response goes on with the assistant's last message, as transformers' `continue_final_message` has it.
#[test]
fn a_prompt_goes_on_with_the_assistants_words() {
    let keeps = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    let trims = keeps.replace("{{ m.content }}", "{{ m.content | trim }}");
    for (template, words, expect) in [
        (keeps, "Let me\n<think>\n", "[user]q[end][assistant]Let me\n<think>\n"),
        (&trims, "Let me\n<think>\n", "[user]q[end][assistant]Let me\n<think>"),
        (keeps, "", "[user]q[end][assistant]"),
    ] {
        let template = ChatTemplate::new(template, &[]).expect("a template");
        let messages = [Message::new("user", "q"), Message::new("assistant", words)];
        assert_eq!(template.render_continued(&messages, &Map::new()).expect("a text"), expect);
    }
    let drops = ChatTemplate::new("{{ messages[0].content }}", &[]).expect("a template");
    let messages = [Message::new("user", "q"), Message::new("assistant", "a")];
    assert_eq!(drops.render_continued(&messages, &Map::new()).unwrap_err().slug, "chat-template-invalid");
}

/// Variables of a row come before those of the run; a column of tools reaches the template.
#[test]
fn r_variables_and_tools_of_a_row_did_not_reach_the_template() {
    let tokenizer = opened(&metaspace());
    let source = "{% if tools %}{{ tools[0].name }}{% endif %}{{ messages[0].content }}{% if more %}{{ more }}{% endif %}";
    let defaults = [("more".to_string(), json!("d"))].into();
    let template = ChatTemplate::new(source, &[]).expect("a template").with_arguments(&defaults);
    let rows = rows(&tokenizer, Some(&template), &Strings::Raw);
    let prompt = Prompt::Messages(vec![Message::new("user", "a")]);
    let read = |columns: Value| {
        let variables =
            plimsoll_text::template_variables(columns.as_object().expect("columns")).expect("variables");
        rows.prompt(&prompt, &variables).map(|ids| tokenizer.decode(&ids, false))
    };
    assert_eq!(read(json!({})).expect("tokens"), "ad");
    let columns = json!({"tools": [{"name": "f"}], "chat_template_kwargs": {"more": "e"}});
    assert_eq!(read(columns.clone()).expect("tokens"), "fae");
    let blind = ChatTemplate::new("{{ messages[0].content }}", &[]).expect("a template");
    let variables =
        plimsoll_text::template_variables(columns.as_object().expect("columns")).expect("variables");
    let error = RowTokenizer { template: Some(&blind), ..rows }.prompt(&prompt, &variables).unwrap_err();
    assert_eq!(error.slug, "data-field-lost");
}
