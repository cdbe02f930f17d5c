//! Hostile model files: each ends in its named error, in bounded memory and time. Peaks are of the process's resident
//! memory, which the kernel counts, so the cases run one after another in a process without other tests.

use plimsoll_base::Result;
use plimsoll_files::{GgufTokenizer, TokenizerFiles};
use plimsoll_text::{ChatTemplate, Message, Tokenizer};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Bounds what any parser may take beyond what was resident before.
const PEAK_BYTES_MAX: u64 = 512 << 20;
/// Most time for one case, on a busy machine and without optimisation of the whole program.
const TIME_MAX: Duration = Duration::from_secs(30);

/// A line of `/proc/self/status`, in bytes.
fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the process can read its status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the line is there");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") << 10
}

/// Runs a case and asserts its peak and its time.
#[track_caller]
fn measured<T>(name: &str, work: impl FnOnce() -> T) -> T {
    let name: String = name.chars().take(100).collect();
    std::fs::write("/proc/self/clear_refs", "5").expect("the process may reset its peak");
    let (before, begun) = (status_bytes("VmRSS:"), Instant::now());
    let result = work();
    let (peak, took) = (status_bytes("VmHWM:").saturating_sub(before), begun.elapsed());
    println!("{:>4} MiB {:>5} ms  {name}", peak >> 20, took.as_millis());
    assert!(peak < PEAK_BYTES_MAX, "{name}: {} MiB", peak >> 20);
    assert!(took < TIME_MAX, "{name}: {took:?}");
    result
}

/// Works as `measured`; asserts the error of the case too.
#[track_caller]
fn refused<T>(name: &str, slug: &str, words: &str, work: impl FnOnce() -> Result<T>) {
    let Err(error) = measured(name, work) else { panic!("{name:.100}: accepted") };
    assert_eq!(error.slug, slug, "{name:.100}: {error}");
    assert!(error.message.contains(words), "{name:.100}: {error}");
    assert!(error.to_string().len() < 2000, "{name:.100}: an error of {} bytes", error.to_string().len());
    println!("{:>18} {}", "", error.message);
}

fn rendered(template: &str) -> Result<String> {
    let messages = [Message::new("user", "1+1="), Message::new("assistant", "2")];
    ChatTemplate::new(template, &[("eos_token", "</s>")])?.render(&messages, true)
}

#[test]
fn hostile_model_files_end_in_named_errors() {
    templates_that_grow();
    templates_that_are_long();
    templates_of_a_gguf_file();
    tokenizers_that_grow();
    tokenizers_that_are_large();
    tokenizers_that_the_library_cannot_use();
    the_largest_tokenizers();
}

fn templates_that_grow() {
    let doubled = "{% set ns = namespace(s='x', l=[1]) %}{% for i in range(60) %}";
    for (template, words) in [
        ("{% set ns=namespace(s='x') %}{% for i in range(60) %}{% set ns.s=ns.s~ns.s %}{% endfor %}1".into(), "128.0 MiB"),
        (format!("{doubled}{{% set ns.s = ns.s + ns.s %}}{{% endfor %}}"), "128.0 MiB"),
        (format!("{doubled}{{% set ns.l = ns.l + ns.l %}}{{% endfor %}}"), "128.0 MiB"),
        (format!("{doubled}{{% set s %}}{{{{ ns.s }}}}{{{{ ns.s }}}}{{% endset %}}{{% set ns.s = s %}}{{% endfor %}}"), "128.0 MiB"),
        (format!("{doubled}{{% set ns.s = ns.s | replace('x', 'xx') %}}{{% endfor %}}"), " steps"),
        (format!("{doubled}{{% set ns.s = [ns.s, ns.s] | join %}}{{% endfor %}}"), "128.0 MiB"),
        (format!("{doubled}{{% set ns.s = '%s%s' | format(ns.s, ns.s) %}}{{% endfor %}}"), "128.0 MiB"),
        (format!("{doubled}{{% set ns.s = '{{}}{{}}'.format(ns.s, ns.s) %}}{{% endfor %}}"), "128.0 MiB"),
        (format!("{doubled}{{% set ns.l = [ns.l, ns.l] %}}{{% endfor %}}{{{{ ns.l }}}}"), " steps"),
        (format!("{doubled}{{% set ns.l = [ns.l, ns.l] %}}{{% endfor %}}{{{{ ns.l | tojson }}}}"), " steps"),
        (format!("{doubled}{{% set ns.l = [ns.l, ns.l] %}}{{% endfor %}}{{{{ ns.l == ns.l }}}}"), " steps"),
        (format!("{doubled}{{{{ ns.s * 10**6 }}}}{{% set ns.s = ns.s ~ ns.s %}}{{% endfor %}}"), "128.0 MiB"),
        ("{% macro d(s, n) %}{{ d(s ~ s, n - 1) if n else s }}{% endmacro %}{{ d('x', 60) }}".into(), "128.0 MiB"),
        ("{{ 'a\\nb'|indent(10**10) }}".into(), "128.0 MiB"),
        ("{{ 'a\\nb' | indent('x' * 10**8) }}".into(), "128.0 MiB"),
        ("{{ ['a']*10**7 }}".into(), "128.0 MiB"),
        ("{{ 'x'*10**9 }}".into(), "128.0 MiB"),
        ("{{ ('x' * 10**8) | upper }}".into(), "128.0 MiB"),
        ("{{ ('x' * 10**7) | list }}".into(), "128.0 MiB"),
        ("{{ ('x ' * 10**7).split() }}".into(), "128.0 MiB"),
        ("{{ ('x' * 10**7)[::-1][::2] | tojson(indent=9) ~ ('x' * 10**8) ~ 'x' }}".into(), "128.0 MiB"),
        ("{{ range(10**9) }}".into(), "the limit is 100000"),
        ("{{ range(0 - 10**18, 10**18) }}".into(), "the limit is 100000"),
        ("{{ 2 ** 10**9 }}".into(), "beyond 2^63"),
        ("{{ 1.5 | round(10**9) }}{{ '%.999999999f' | format(1) }}".into(), "precision"),
        ("{{ strftime_now('%Y' * 10**7) }}".into(), "more than 4096 bytes"),
        ("{{ 'x' * 10**7 }}".into(), "a text of 10000000 bytes for 18, the limit is 1048576"),
        ("{{ raise_exception('x' * 10**7) }}".into(), "xxx... (10000000 bytes)"),
        ("{{ {}['a' * 10**7].b.c }}{{ ('a' * 10**7).nothing() }}".into(), "undefined"),
        ("{% for i in range(10**5) %}{% for j in range(10**5) %}{{ j }}{% endfor %}{% endfor %}".into(), " steps"),
        ("{% for i in range(9**5) %}{% set x = dict(a=i) %}{% for j in range(9**5) %}{% endfor %}{% endfor %}".into(), " steps"),
    ] {
        refused(&template, "chat-template-invalid", words, || rendered(&template));
    }
}

/// Renders templates as long as the attack had them: each overflowed the stack or took seconds.
fn templates_that_are_long() {
    let n = 30_000;
    for (template, words) in [
        (
            format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(10_000)),
            "more than 4096 tags, in a template of 120021 bytes",
        ),
        (format!("{{{{ {}1 }}}}", "-".repeat(n)), "more than 128 levels"),
        (format!("{{{{ {}1 }}}}", "not ".repeat(n)), "more than 128 levels"),
        (format!("{{{{ 1{} }}}}", "+1".repeat(n)), "more than 128 levels"),
        (format!("{{{{ 1{} }}}}", "~1".repeat(n)), "more than 128 levels"),
        (format!("{{{{ 1{} }}}}", " and 1".repeat(n)), "more than 128 levels"),
        (format!("{{{{ 1{} }}}}", "**1".repeat(n)), "more than 128 levels"),
        (format!("{{{{ a{} }}}}", ".a".repeat(200_000)), "400007 bytes, the limit is 262144"),
        (format!("{{{{ a{} }}}}", "|abs".repeat(200_000)), "800007 bytes, the limit is 262144"),
        (format!("{{{{ a{} }}}}", ".a".repeat(100_000)), "more than 128 levels"),
        (format!("{{{{ a{} }}}}", "|abs".repeat(60_000)), "more than 128 levels"),
        (format!("{{{{ {}1{} }}}}", "(".repeat(n), ")".repeat(n)), "nest deeper than 128"),
        ("{{ '".to_string() + &"x".repeat(8 << 20) + "' }}", "bytes, the limit is 262144"),
        (format!("{{% {} %}}", "x".repeat(100_000)), "no tag `xxx"),
    ] {
        refused(&template, "chat-template-invalid", words, || rendered(&template));
    }
}

fn templates_of_a_gguf_file() {
    let template =
        "{% set ns=namespace(s='x') %}{% for i in range(60) %}{% set ns.s=ns.s~ns.s %}{% endfor %}1";
    let tables = GgufTokenizer { chat_template: Some(template.into()), ..GgufTokenizer::default() };
    let files = TokenizerFiles {
        chat_template: tables.chat_template.clone(),
        gguf: Some(tables),
        ..TokenizerFiles::default()
    };
    refused("a template of a GGUF file", "chat-template-invalid", "128.0 MiB", || {
        ChatTemplate::from_files(&files)?.expect("it has one").render(&[Message::new("user", "1")], true)
    });
}

/// A BPE tokenizer of the characters of `1+x=` and a few more, with some of its parts changed.
fn bpe(changes: Value) -> Vec<u8> {
    let mut file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {
            "type": "BPE", "unk_token": "?", "vocab": { "1": 0, "+": 1, "x": 2, "=": 3, "?": 4, " ": 5, "11": 6 },
            "merges": ["1 1"],
        },
    });
    for (name, value) in changes.as_object().expect("changes are an object") {
        match name.strip_prefix("model.") {
            Some(option) => file["model"][option] = value.clone(),
            None => file[name] = value.clone(),
        }
    }
    file.to_string().into_bytes()
}

fn opened(json: Vec<u8>) -> Result<Tokenizer> {
    let files = TokenizerFiles { tokenizer_json: Some(json), ..TokenizerFiles::default() };
    Tokenizer::from_files(&files, 1 << 20)
}

fn sequence(name: &str, step: Value, count: usize) -> Value {
    json!({ "type": "Sequence", name: vec![step; count] })
}

fn tokenizers_that_grow() {
    let double = json!({ "type": "Replace", "pattern": { "String": "1" }, "content": "11" });
    let any = json!({ "type": "Replace", "pattern": { "Regex": "" }, "content": "x".repeat(5000) });
    let metaspace =
        json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false });
    for (name, changes, words) in [
        (
            "40 rules that double",
            json!({ "normalizer": sequence("normalizers", double.clone(), 40) }),
            "can make a text 1099511627776 times as long, the limit is 4096",
        ),
        ("a rule for nothing", json!({ "normalizer": any }), "can make a text 10001 times as long"),
        (
            "a long prefix",
            json!({ "normalizer": { "type": "Prepend", "prepend": "x".repeat(5000) } }),
            "5001 times",
        ),
        (
            "words that grow",
            json!({ "pre_tokenizer": sequence("pretokenizers", metaspace, 20) }),
            "3.656158440062976e15 times",
        ),
        (
            "a decoder that doubles",
            json!({ "decoder": sequence("decoders", double.clone(), 40) }),
            "its decoder can make the text of tokens 1099511627776 times as long, the limit is 16",
        ),
        (
            "added tokens that grow",
            json!({
                "normalizer": sequence("normalizers", double.clone(), 12),
                "added_tokens": (0..99).map(|i| json!({
                    "id": 9 + i, "content": format!("{i}{}", "1".repeat(4000)), "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": true, "special": false,
                })).collect::<Vec<_>>(),
            }),
            "added tokens",
        ),
    ] {
        refused(name, "tokenizer-invalid", words, || opened(bpe(changes)));
    }
    // A chain that could be sound is measured per text. With three rules more the probe takes its limit, 5 s, on slow
    // CPUs that do something else, too.
    let measured = opened(bpe(json!({ "normalizer": sequence("normalizers", double, 8) }))).unwrap();
    assert_eq!(measured.encode("x+x=1").unwrap().len(), 4 + 128);
    refused("8 rules that double", "tokenizer-invalid", "the limit is 1048576", || {
        measured.encode(&"1".repeat(10_000))
    });
    let prefix = json!({ "type": "Prepend", "prepend": "x".repeat(4000) });
    let apart = json!([{
        "id": 1, "content": "+", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": false,
    }]);
    let each = opened(bpe(json!({ "normalizer": prefix, "added_tokens": apart }))).unwrap();
    refused("a prefix for each part", "tokenizer-invalid", "the limit is 1048576", || {
        each.encode(&"1+".repeat(10_000))
    });
    // Repeats of a post-processor are not read: templates write special tokens.
    let repeats = vec![json!({ "Sequence": { "id": "A", "type_id": 0 } }); 1000];
    let post = json!({ "type": "TemplateProcessing", "single": repeats, "pair": [], "special_tokens": {} });
    let post = json!({ "post_processor": sequence("processors", post, 40) });
    assert_eq!(opened(bpe(post)).unwrap().encode("1+1=").unwrap(), [0, 1, 0, 3]);
}

fn tokenizers_that_are_large() {
    let tokens: Vec<String> = (0..600_000).map(|id| format!("\"{id}\":{id}")).collect();
    let vocabulary = format!("{{\"model\":{{\"vocab\":{{{}}}}}}}", tokens.join(","));
    let merges = format!("{{\"model\":{{\"merges\":[{}\"1 1\"]}}}}", "\"1 1\",".repeat(1_100_000));
    for (name, json, words) in [
        ("a long file", vec![b' '; (64 << 20) + 1], "67108865 bytes, the limit is 67108864"),
        ("many tokens", vocabulary.into_bytes(), "more than 524288 tokens"),
        ("many merges", merges.into_bytes(), "more than 1048576 merges"),
        ("nested lists", b"[".repeat(1 << 20), "expected a tokenizer"),
        ("nested options", [&b"{\"decoder\":"[..], &b"[".repeat(1 << 20)].concat(), "recursion limit"),
        ("no model", b"{}".to_vec(), "missing field `model`"),
    ] {
        refused(name, "tokenizer-invalid", words, || opened(json));
    }
    // Each zero of two bytes takes 32 as a JSON value.
    let zeros = format!("[{}0]", "0,".repeat(20 << 20));
    for (name, before, after, words) in [
        ("a list as normalizer", "{\"normalizer\":", "}", "more values than any tokenizer has"),
        ("a list as option", "{\"model\":{\"x\":", "}}", "more values than any tokenizer has"),
        ("a list as token", "{\"added_tokens\":[", "]}", "more values than any tokenizer has"),
        ("a list in a token", "{\"added_tokens\":[{\"x\":", "}]}", "more values than any tokenizer has"),
        ("a list as merge", "{\"model\":{\"merges\":[", "]}}", "expected a string"),
        ("a list as vocabulary", "{\"model\":{\"vocab\":", "}}", "expected a tuple"),
    ] {
        let json = [before, &zeros, after].concat().into_bytes();
        refused(name, "tokenizer-invalid", words, || opened(json));
    }
    let long = |bytes: usize| "x".repeat(bytes);
    let wide: Vec<Value> = (0..400u32).map(|i| json!([format!("{i}{}", long(4000)), 0.0])).collect();
    for (name, changes, words) in [
        ("a long token", json!({ "model.vocab": { long(1 << 20): 0 } }), "a token of 1048576 bytes"),
        (
            "a deep tree",
            json!({ "model.type": "Unigram", "model.vocab": [[long(100_000), 0.0]], "model.unk_id": 0 }),
            "a token of 100000 bytes",
        ),
        (
            "a wide tree",
            json!({ "model.type": "Unigram", "model.vocab": wide, "model.unk_id": 0 }),
            "more bytes of tokens than any vocabulary has",
        ),
        ("a long mark", json!({ "model.continuing_subword_prefix": long(1 << 20) }), "at most 64 bytes"),
        ("random tokens", json!({ "model.dropout": 0.5 }), "would have other tokens each time"),
        ("a long type", json!({ "model.type": long(1 << 20) }), "(1048576 bytes)"),
    ] {
        refused(name, "tokenizer-invalid", words, || opened(bpe(changes)));
    }
}

fn tokenizers_that_the_library_cannot_use() {
    let split = |regex: &str| {
        let step = json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false });
        bpe(json!({ "pre_tokenizer": step }))
    };
    let table =
        |table: &str| bpe(json!({ "normalizer": { "type": "Precompiled", "precompiled_charsmap": table } }));
    for (name, json, words) in [
        ("a bracket", split("("), "arsing error"),
        ("a large expression", split("(?:a{1000}){1000}(?:b{1000}){1000}"), "error building NFA"),
        ("a long expression", split(&"a".repeat(5000)), "5000 bytes, the limit is 4096"),
        ("a table that announces 4 GiB", table("/////wAAAABhYgA="), "announces more"),
        ("a table that points beyond itself", table("BAAAAP////9hYgA="), "the library cannot use it"),
        ("no table", table("AA=="), "announces more"),
    ] {
        refused(name, "tokenizer-invalid", words, || opened(json));
    }
    // Expressions that backtrack: whatever they are, opening ends.
    for regex in ["(?:a|a)*b(?!c)", "(?:a*)*b(?!c)", "a*a*a*a*b(?!c)", "(?=(?:a|1| )*b)", r"(a)?\1*\1*\1*b"] {
        let tokenizer = measured(regex, || opened(split(regex)).unwrap());
        measured(regex, || tokenizer.encode(&"a".repeat(20_000)).unwrap());
    }
    let deep = (0..55)
        .fold(json!({ "type": "NFC" }), |inner, _| json!({ "type": "Sequence", "normalizers": [inner] }));
    opened(bpe(json!({ "normalizer": deep }))).unwrap();
}

/// Just within every limit.
fn the_largest_tokenizers() {
    // A base of 724 tokens, all pairs of them, and each pair as a merge, twice.
    let base: Vec<String> =
        (0..723u32).map(|i| format!("{}\u{2581}", char::from_u32(0x4e00 + i).unwrap())).collect();
    let pairs: Vec<(&str, &str)> = base.iter().flat_map(|a| base.iter().map(move |b| (&**a, &**b))).collect();
    let tokens = base.iter().cloned().chain(pairs.iter().map(|(a, b)| format!("{a}{b}")));
    let vocabulary: serde_json::Map<String, Value> =
        tokens.zip(0..).map(|(token, id)| (token, id.into())).collect();
    assert!(vocabulary.len() > 523_000);
    let merges: Vec<_> = pairs.iter().chain(&pairs).collect();
    let json = bpe(json!({ "model.vocab": vocabulary, "model.merges": merges, "model.unk_token": null }));
    drop((vocabulary, merges));
    let tokenizer = measured("a BPE of 523,000 tokens and a million merges", || opened(json).unwrap());
    measured("a text of 1 MiB", || tokenizer.encode(&"\u{4e00}\u{2581}".repeat(1 << 18)).is_ok());
    let tokens: Vec<Value> =
        (0..255u32).map(|i| json!([format!("{}{}", i, "x".repeat(4000)), -1.0])).collect();
    let json = bpe(json!({ "model.type": "Unigram", "model.unk_id": 0, "model.vocab": tokens }));
    measured("a Unigram model of a mebibyte", || drop(opened(json).unwrap()));
}
