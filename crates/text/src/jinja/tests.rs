//! Tests what templates may not take: stack, memory, time. `tests/hostile.rs` measures the process.

use super::{Context, Messages, Template};

fn run(template: &str) -> Result<String, String> {
    let messages = [("user", "hi"), ("assistant", "ho")];
    let messages = Messages::Plain(&messages);
    let context = Context { messages, variables: &[], add_generation_prompt: true, now: None, special: &[] };
    Template::parse(template)?.render(&context)
}

/// Runs a template with as little stack as the smallest thread that calls it has.
fn run_with_little_stack(template: String) -> Result<String, String> {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    thread.spawn(move || run(&template)).expect("a thread starts").join().expect("it does not panic")
}

const STACK_BYTES: usize = 1 << 20;

#[track_caller]
fn refused(template: &str, words: &str) {
    let shown: String = template.chars().take(80).collect();
    match run_with_little_stack(template.to_string()) {
        Ok(text) => panic!("{shown}: {} bytes", text.len()),
        Err(what) => assert!(what.contains(words), "{shown}: {what}"),
    }
}

/// Each overflowed the stack, by its tree or by its evaluation.
#[test]
fn r_a_long_template_overflowed_the_stack() {
    let nested = "nest deeper than 128";
    let chain = "more than 128 levels of operators, filters, attributes or brackets";
    for n in [129, 20_000] {
        for (begin, middle, close, end, words) in [
            ("{{ ", "-", "", "1 }}", chain),
            ("{{ ", "not ", "", "1 }}", chain),
            ("{{ ", "1+", "", "1 }}", chain),
            ("{{ ", "1~", "", "1 }}", chain),
            ("{{ ", "1 and ", "", "1 }}", chain),
            ("{{ ", "1 or ", "", "1 }}", chain),
            ("{{ ", "1**", "", "1 }}", chain),
            ("{{ a", ".a", "", " }}", chain),
            ("{{ a", "[0]", "", " }}", chain),
            ("{{ a", "()", "", " }}", chain),
            ("{{ 1", "|abs", "", " }}", chain),
            ("{{ 1", " is odd", "", " }}", chain),
            ("{{ 1", " if 1", "", " }}", chain),
            ("{{ ", "1 if 1 else ", "", "1 }}", nested),
            ("{{ ", "(", ")", " }}", nested),
            ("{{ ", "[", "]", " }}", nested),
            ("{{ ", "{1:", "}", " }}", nested),
            ("{{ a", "[a", "]", " }}", nested),
            ("{{ a", "(a", ")", " }}", nested),
            ("{{ a", "|f(a", ")", " }}", nested),
            ("{{ 1", " is f(1", ")", " }}", nested),
        ] {
            refused(&format!("{begin}{}{}{end}", middle.repeat(n), close.repeat(n)), words);
        }
    }
    for block in ["{% if 1 %}", "{% for x in [1] %}", "{% set x %}", "{% macro m() %}", "{% filter e %}"] {
        refused(&block.repeat(129), nested);
    }
    refused(&format!("{{% set {}a{} = 1 %}}", "(".repeat(200), ")".repeat(200)), nested);
    let many = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(10_000));
    refused(&many, "more than 4096 tags, in a template of 120021 bytes");
    refused(&format!("{{{{ a{} }}}}", ".a".repeat(200_000)), "400007 bytes, the limit is 262144");
}

#[test]
fn r_evaluation_overflowed_the_stack() {
    let deep = "nest deeper than 300";
    for (template, words) in [
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", deep),
        ("{% macro m(x=m()) %}{% endmacro %}{{ m() }}", deep),
        ("{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}", deep),
        (
            "{% set ns = namespace(l=[]) %}{% for i in range(99) %}{% set ns.l = [ns.l] %}{% endfor %}",
            "deeper than 64",
        ),
        ("{% set ns = namespace() %}{% set ns.ns = ns %}", "cannot be put into another value"),
        ("{% set ns = namespace() %}{{ [ns] }}", "cannot be put into another value"),
        ("{% macro m() %}{% endmacro %}{{ {'m': m} }}", "cannot be put into another value"),
    ] {
        refused(template, words);
    }
    refused(&format!("{{{{ 'a' | map({}'e') }}}}", "'map', ".repeat(10_000)), deep);
    // Just within every limit.
    let tree = format!("{}1{}", "(-".repeat(60), ")".repeat(60));
    let blocks = format!("{}{{{{ {tree} }}}}{}", "{% if 1 %}".repeat(60), "{% endif %}".repeat(60));
    assert_eq!(run_with_little_stack(blocks).unwrap(), "1");
    let recursive = "{% macro m(n) %}{% if n %}{{ n }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(20) }}";
    assert!(run_with_little_stack(recursive.into()).unwrap().starts_with("20191817"));
}

/// Steps count what each operation handles, so none takes long.
#[test]
fn work_within_one_operation_is_counted() {
    // Or, on a slow machine, their time.
    let steps = " steps";
    for template in [
        "{% set a = 'a' * 10**7 %}{% for i in range(99999) %}{% if a == a ~ '' %}{% endif %}{% endfor %}",
        "{% set a = 'a' * 10**7 %}{% for i in range(99999) %}{{ 'b' in a }}{{ a | length }}{% endfor %}",
        "{% set l = range(99999) %}{% for i in l %}{% if -1 in l %}{% endif %}{% endfor %}",
        "{{ range(99999) | unique }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l == ns.l }}",
    ] {
        refused(template, steps);
    }
}

/// Within its steps a template could take 16 s of a processor, for each request of a server.
#[test]
fn r_a_template_took_as_long_as_its_slowest_steps() {
    for template in [
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = range(200) | map('string') | join(',') %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{% for i in range(99999) %}{{ m(40) }}{% endfor %}",
    ] {
        let begun = std::time::Instant::now();
        refused(template, " steps");
        assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{template}: {:?}", begun.elapsed());
    }
}
