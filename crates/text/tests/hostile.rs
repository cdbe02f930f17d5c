//! Model files that were made to take the process: each ends in its named error, in bounded memory and time. Peaks are of
//! resident memory, which the kernel counts, so the cases run one after another in a process without other tests.

use plimsoll_base::Result;
use plimsoll_text::{ChatTemplate, Message};
use std::time::{Duration, Instant};

/// What any parser may take beyond what was resident before.
const PEAK_BYTES_MAX: u64 = 512 << 20;
/// Most time for one case, on a busy machine and without optimisation of the whole program.
const TIME_MAX: Duration = Duration::from_secs(30);

/// A line of `/proc/self/status`, in bytes.
fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the process can read its status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the line is there");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") << 10
}

/// Runs a case and asserts its error, its peak and its time.
#[track_caller]
fn refused<T>(name: &str, slug: &str, words: &str, work: impl FnOnce() -> Result<T>) {
    let name: String = name.chars().take(100).collect();
    std::fs::write("/proc/self/clear_refs", "5").expect("the process may reset its peak");
    let (before, begun) = (status_bytes("VmRSS:"), Instant::now());
    let error = match work() {
        Ok(_) => panic!("{name}: accepted"),
        Err(error) => error,
    };
    let (peak, took) = (status_bytes("VmHWM:").saturating_sub(before), begun.elapsed());
    assert_eq!(error.slug, slug, "{name}: {error}");
    assert!(error.message.contains(words), "{name}: {error}");
    assert!(error.to_string().len() < 2000, "{name}: an error of {} bytes", error.to_string().len());
    assert!(peak < PEAK_BYTES_MAX, "{name}: {} MiB", peak >> 20);
    assert!(took < TIME_MAX, "{name}: {took:?}");
    println!("{:>4} MiB {:>5} ms  {name}: {}", peak >> 20, took.as_millis(), error.message);
}

fn rendered(template: &str) -> Result<String> {
    let messages = [Message::new("user", "1+1="), Message::new("assistant", "2")];
    ChatTemplate::new(template, &[("eos_token", "</s>")])?.render(&messages, true)
}

#[test]
fn hostile_model_files_end_in_named_errors() {
    templates_that_grow();
    templates_that_are_long();
}

fn templates_that_grow() {
    let doubled = "{% set ns = namespace(s='x', l=[1]) %}{% for i in range(60) %}";
    for (template, words) in [
        ("{% set ns=namespace(s='x') %}{% for i in range(60) %}{% set ns.s=ns.s~ns.s %}{% endfor %}1".into(), "128.0 MiB"),
        (format!("{doubled}{{% set ns.s = ns.s + ns.s %}}{{% endfor %}}"), "128.0 MiB"),
        (format!("{doubled}{{% set ns.l = ns.l + ns.l %}}{{% endfor %}}"), "128.0 MiB"),
        (format!("{doubled}{{% set s %}}{{{{ ns.s }}}}{{{{ ns.s }}}}{{% endset %}}{{% set ns.s = s %}}{{% endfor %}}"), "128.0 MiB"),
        (format!("{doubled}{{% set ns.s = ns.s | replace('x', 'xx') %}}{{% endfor %}}"), "20000000 steps"),
        (format!("{doubled}{{% set ns.s = [ns.s, ns.s] | join %}}{{% endfor %}}"), "128.0 MiB"),
        (format!("{doubled}{{% set ns.s = '%s%s' | format(ns.s, ns.s) %}}{{% endfor %}}"), "128.0 MiB"),
        (format!("{doubled}{{% set ns.s = '{{}}{{}}'.format(ns.s, ns.s) %}}{{% endfor %}}"), "128.0 MiB"),
        (format!("{doubled}{{% set ns.l = [ns.l, ns.l] %}}{{% endfor %}}{{{{ ns.l }}}}"), "20000000 steps"),
        (format!("{doubled}{{% set ns.l = [ns.l, ns.l] %}}{{% endfor %}}{{{{ ns.l | tojson }}}}"), "20000000 steps"),
        (format!("{doubled}{{% set ns.l = [ns.l, ns.l] %}}{{% endfor %}}{{{{ ns.l == ns.l }}}}"), "20000000 steps"),
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
        ("{% for i in range(10**5) %}{% for j in range(10**5) %}{{ j }}{% endfor %}{% endfor %}".into(), "20000000 steps"),
        ("{% for i in range(9**5) %}{% set x = dict(a=i) %}{% for j in range(9**5) %}{% endfor %}{% endfor %}".into(), "20000000 steps"),
    ] {
        refused(&template, "chat-template-invalid", words, || rendered(&template));
    }
}

/// As long as the attack had them: each overflowed the stack or took seconds.
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
