//! Hostile bodies of requests: small values to the largest body end in a prompt or in a named refusal, within what the
//! plan has for reading one. Peaks are of the process's resident memory, which the kernel counts, so the cases run one
//! after another in a process without other tests.

use plimsoll_files::TokenizerFiles;
use plimsoll_serve::Bodies;
use plimsoll_text::{ChatTemplate, Tokenizer};

/// Says what a usual template reads: roles, contents, calls and tools.
const TEMPLATE: &str = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{% for m in messages %}\
    {{ m.role }}:{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name }}{% endfor %}{% endfor %}";

/// A line of `/proc/self/status`, in bytes.
fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the process can read its status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the line is there");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") << 10
}

/// Returns what `work` returns, and the most resident bytes beyond those from before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    std::fs::write("/proc/self/clear_refs", "5").expect("the process may reset its peak");
    let before = status_bytes("VmRSS:");
    let result = work();
    (result, status_bytes("VmHWM:").saturating_sub(before))
}

/// Runs this test again in a process whose allocator gives memory back at once, so that no earlier case hides a peak.
/// Returns true in that process.
fn gives_memory_back() -> bool {
    if std::env::var_os("MALLOC_TRIM_THRESHOLD_").is_some() {
        return true;
    }
    let mut again = std::process::Command::new(std::env::current_exe().expect("this test"));
    again.args(std::env::args_os().skip(1));
    let allocator =
        [("MALLOC_MMAP_THRESHOLD_", "16384"), ("MALLOC_TRIM_THRESHOLD_", "0"), ("MALLOC_TOP_PAD_", "0")];
    assert!(again.envs(allocator).status().expect("this test runs").success());
    false
}

/// Bodies of up to `most` bytes, each with the slug of its refusal.
fn cases(most: usize) -> Vec<(&'static str, String, &'static str)> {
    let filled = |before: &str, piece: &str, after: &str| {
        let room = most - before.len() - after.len() - 1;
        format!("{before}{}0{after}", piece.repeat(room / piece.len()))
    };
    let chat = |field: &str, piece: &str, end: &str| {
        filled(
            &format!(r#"{{"messages":[{{"role":"user","content":"a"}}],{field}"#),
            piece,
            &format!("{end}}}"),
        )
    };
    let message = |field: &str, piece: &str, end: &str| {
        filled(
            &format!(r#"{{"messages":[{{"role":"assistant","content":"a",{field}"#),
            piece,
            &format!("{end}}}]}}"),
        )
    };
    let (too_large, refused, bad) = ("serve-body-too-large", "serve-field-refused", "serve-bad-request");
    vec![
        ("messages of numbers", filled(r#"{"messages":["#, "0,", "]}"), bad),
        ("messages of objects", filled(r#"{"messages":["#, "{},", "]}"), bad),
        ("messages with a field", filled(r#"{"messages":["#, r#"{"":0},"#, "]}"), bad),
        ("variables", chat(r#""chat_template_kwargs":{"x":["#, "0,", "]}"), too_large),
        ("exact variables", chat(r#""chat_template_kwargs":{"y":1e400000,"x":["#, "0,", "]}"), too_large),
        ("tools", chat(r#""tools":["#, "{},", "]"), too_large),
        ("reasoning", message(r#""reasoning":["#, "[0],", "]"), too_large),
        (
            "arguments",
            message(r#""tool_calls":[{"function":{"name":"f","arguments":"["#, "0,", r#"]"}}]"#),
            too_large,
        ),
        ("tool_choice", chat(r#""tool_choice":["#, "0,", "]"), refused),
        ("logit_bias", chat(r#""logit_bias":["#, "0,", "]"), refused),
        ("stop", chat(r#""stop":["#, "\"\",", "]"), bad),
        ("seed", chat(r#""seed":["#, "0,", "]"), bad),
        ("fields", chat(r#""a":0,"b":["#, "0,", "]"), refused),
        (
            "many fields",
            format!("{{{}\"z\":0}}", (0..most / 10).map(|n| format!("\"{n}\":0,")).collect::<String>()),
            bad,
        ),
        ("lists of ids", filled(r#"{"prompt":["#, "[],", "]}"), bad),
        ("texts", filled(r#"{"prompt":["#, "\"\",", "]}"), bad),
    ]
}

#[test]
fn a_hostile_body_takes_no_more_than_reading_one_has_in_the_plan() {
    if !gives_memory_back() {
        return;
    }
    let files = TokenizerFiles { bytes: true, ..TokenizerFiles::default() };
    let tokenizer = Tokenizer::from_files(&files, 260).expect("bytes need no file");
    let bodies = Bodies::new(tokenizer, ChatTemplate::new(TEMPLATE, &[]).expect("a template"));
    let (most, planned) = bodies.limits();
    let small = r#"{"messages":[{"role":"user","content":"a"}]}"#;
    bodies.read(small.as_bytes()).expect("a chat");
    for (name, body, slug) in cases(most) {
        let (read, peak) = peak_of(|| bodies.read_as_written(body.as_bytes()));
        println!("{:>6} KiB of {}  {name}", peak >> 10, planned >> 10);
        let error = read.expect_err(name);
        assert_eq!(error.slug, slug, "{name}: {error}");
        assert!(peak <= planned as u64, "{name}: {} KiB of {}", peak >> 10, planned >> 10);
    }
    as_many_as_may_be(&bodies);
}

/// Reads as many values as there may be, with the copies that a template needs.
fn as_many_as_may_be(bodies: &Bodies) {
    let planned = bodies.limits().1;
    let many = |count: usize| {
        format!(
            r#"{{"messages":[{{"role":"user","content":"a"}}],"chat_template_kwargs":{{"x":[{}0]}}}}"#,
            "0,".repeat(count)
        )
    };
    let most = (0..24).rev().fold(0, |count, bit| {
        let more = count | 1 << bit;
        let is_read = bodies.read_as_written(many(more).as_bytes()).is_ok();
        if is_read { more } else { count }
    });
    let body = many(most);
    let (read, peak) = peak_of(|| bodies.read_as_written(body.as_bytes()));
    println!("{:>6} KiB of {}  {most} numbers", peak >> 10, planned >> 10);
    read.expect("as many as may be");
    assert!(most > 4096 && peak <= planned as u64, "{most} numbers: {} KiB of {}", peak >> 10, planned >> 10);
}
