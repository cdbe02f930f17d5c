//! Cleans a line of a log, strips loggers' prefixes, and finds the process that wrote it.

use memchr::{memchr_iter, memchr2};
use plimsoll_base::JsonPart;
use regex::Regex;
use std::borrow::Cow;
use std::sync::LazyLock;

/// Most characters of a line to show.
const SHOWN_CHARS: usize = 400;

/// Prefixes of launchers, container runtimes, loggers and clocks, and boxes around tracebacks.
static PREFIX: LazyLock<Regex> = LazyLock::new(|| {
    regex(concat!(
        r"^(?:\s*(?:",
        r#"\{(?:"(?:ts|time|timestamp|asctime|level|levelname|severity|logger|name|caller|file|filename|line|lineno|pid|rank|host|hostname|stream)": ?(?:"[^"]*"|[0-9.]+), ?)*"(?:log|message|msg|textPayload)": ?""#, // JSON
        r"|\[pod/[\w./-]+\]|[A-Za-z0-9_.]+-[A-Za-z0-9_.-]*[0-9][A-Za-z0-9_.-]* +\|(?: |$)|\[[a-z][a-z0-9_.-]+\] ?\|(?: |$)|[a-z][a-z0-9_.-]+ {2,}\|(?: |$)|\[\d+,(?:\d+|mpirank:\d+,[a-z0-9-]+)\](?:<std(?:out|err)>)?:", // kubectl, compose, mpirun
        r"|##\[(?:error|warning|debug)\]|(?:[Rr]ank|RANK)[ _]?\d+:|\[[Rr]ank \d+\]:?|<std(?:out|err)>:?|> |`{1,3}", // CI, ranks, quotes
        r"|\d{1,3}(?:\.\d{1,3}){3}: |[EWIFC]\d{4} \d\d:\d\d:\d\d(?:\.\d+)? +\d+ [\w/.-]+:\d+\]", // pdsh, glog
        r"|",
        r"\([A-Za-z_][\w.:<>*/\-,= ]*(?:pid|ip)=[^)]*\)", // (WorkerDict pid=12, ip=10.0.0.1), (task, pid=12)
        r"|\((?:raylet|autoscaler|gcs_server|driver)\b[^)]*\)", // (raylet)
        r"|\(pid=\d+(?:, ip=[^)]*)?\)",
        r"|\[(?:rank ?\d+|default\d+|node[\w-]*|worker[\w-]*)\]:?|\[\d{1,4}\]:", // [rank0]: [3]:
        r"|\[[a-z][a-z0-9_-]*\](?: |$)|\[?\d\d:\d\d:\d\d(?:[.,-]\d+)?(?:\]|  ?|$)", // [trainer], [10:11:12], 10:11:12
        r"|\d\d/\d\d/\d{2,4} \d\d:\d\d:\d\d(?: [AP]M)?(?: |$)|[A-Za-z0-9_.]+:[A-Za-z0-9_<>]+:\d+ - ", // 03/02/2026 10:11:12, loguru's place
        r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: (?:TP|DP|PP|EP)\d+)+\]", // SGLang
        r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?(?: [A-Z] \d+ \d+)?\]?",
        r"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)? ?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d \S+ [\w@./-]+(?:\[\d+\])?:",
        r"|(?:stdout|stderr) [FP]",
        r"|\(?\b(?:INFO|ERROR|WARNING|WARN|DEBUG|CRITICAL|FATAL)\b\)?:?(?: \d\d-\d\d \d\d:\d\d:\d\d)?(?: \[?[\w/.\-]+\.\w+:\d+\]?)?",
        r"|- (?:[\w.:-]+ - )?(?:INFO|ERROR|WARNING|WARN|DEBUG|CRITICAL)\b(?: -|:)", // - trainer - INFO -
        r"|\[[\w/.\-]+\.(?:py|cc|cpp|cu):\d+(?::\w+)?\]:?",
        r"|\d{1,4}: |[\w-]+-\d+: |\d+\.\d+s \d+ ", // srun -l, pods, notebooks
        r"|\|(?: *[\w.:-]+ *\|)+",                 // | ERROR | stderr |
        r"|Exception has occurred: (?:[a-z_]\w*\.)*|[│┃](?: |$)|E(?: {3,})", // an editor's debugger
        r"))+",
    ))
});
/// The process that wrote a line of a shared log, from the first bracket on.
static TAG: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"^(?:\((?:[A-Za-z_][\w.:<>*/\-,= ]*)?pid=\d+|\[rank ?\d+\]|\[default\d+\]|\[\d{1,3}\]:)")
});
/// Most characters before the bracket.
const TAG_AT_MOST: usize = 40;
/// Colours whose escape was lost in a copy. Without a number, a word may begin there: `[multiproc_executor.py:1]`.
static BARE_COLOUR: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?:\x1b|\\u001b|\\x1b|\\033)\[(?:\d{1,3}(?:;\d{1,3})*)?m|\[\d{1,3}(?:;\d{1,3})*m|\[m(?P<next>[^a-z_]|$)",
    )
});

pub fn regex(pattern: &str) -> Regex {
    Regex::new(&ascii(pattern)).expect("the pattern is valid")
}

/// Limits `\b`, `\w`, `\d` and `\s` to ASCII: with Unicode tables an expression is ten times larger, and slower.
fn ascii(pattern: &str) -> String {
    let (mut text, mut chars) = (String::with_capacity(2 * pattern.len()), pattern.chars());
    while let Some(char) = chars.next() {
        if char != '\\' {
            text.push(char);
            continue;
        }
        match chars.next() {
            Some('b') => text.push_str(r"(?-u:\b)"),
            Some('w') => text.push_str("[0-9A-Za-z_]"),
            Some('W') => text.push_str("[^0-9A-Za-z_]"),
            Some('d') => text.push_str("[0-9]"),
            Some('s') => text.push_str(r"[ \t\n\r]"),
            Some(escaped) => text.extend(['\\', escaped]),
            None => text.push('\\'),
        }
    }
    text
}

/// Decodes bytes of a log: replaces broken UTF-8, drops control characters and colours.
pub fn clean(bytes: &[u8]) -> String {
    let may_be_colour =
        |at: usize| bytes.get(at + 1).is_some_and(|next| next.is_ascii_digit() || *next == b'm');
    let has_colour = memchr_iter(b'[', bytes).any(may_be_colour);
    let is_plain =
        !has_colour && !bytes.starts_with(b"{\"") && bytes.iter().all(|byte| (b' '..=b'~').contains(byte));
    if is_plain && let Ok(text) = str::from_utf8(bytes) {
        return text.to_owned();
    }
    let text = String::from_utf8_lossy(bytes);
    let text = unpacked(&text).map_or(text, Cow::Owned);
    let text: Cow<str> = if has_colour { BARE_COLOUR.replace_all(&text, "$next") } else { text };
    text.chars().map(|c| if c == '\t' { ' ' } else { c }).filter(|c| !c.is_control()).collect()
}

/// Names by which loggers write a message, a time and a level.
const NAMES: [&str; 11] = [
    "log",
    "message",
    "msg",
    "textPayload",
    "time",
    "timestamp",
    "asctime",
    "ts",
    "level",
    "severity",
    "levelname",
];
const MESSAGE: std::ops::Range<usize> = 0..4;
const TIME: std::ops::Range<usize> = 4..8;
const LEVEL: std::ops::Range<usize> = 8..11;

/// Returns the time, level and message of a line that is a JSON object of a container runtime or a logger.
fn unpacked(line: &str) -> Option<String> {
    let line = line.trim_ascii();
    if !(line.starts_with("{\"") && line.ends_with('}')) {
        return None;
    }
    let mut found = [const { None::<String> }; NAMES.len()];
    // Whatever else the object has is passed over: a line may have the length of a log.
    let read = JsonPart::of(line.as_bytes()).ok()?.fields(&mut |name, value| {
        if let Some(at) = NAMES.iter().position(|known| *known == name) {
            found[at] = value.string();
        }
        Ok::<(), ()>(())
    });
    read.ok()??;
    let text = |keys: std::ops::Range<usize>| found[keys].iter().find_map(Option::as_deref);
    let message = text(MESSAGE)?;
    let time = text(TIME).filter(|time| !time.contains('"'));
    let level = text(LEVEL).map(str::to_ascii_uppercase);
    let level = level.filter(|level| level.chars().all(|c| c.is_ascii_uppercase()));
    let parts = [level.as_deref(), time, Some(message.trim_end())];
    Some(parts.into_iter().flatten().collect::<Vec<&str>>().join(" ").replace('\n', " "))
}

pub fn message(line: &str) -> &str {
    after_prefix(line).trim_start()
}

/// Returns possible metrics. A table row looks like the prefix of some loggers.
pub fn metrics(line: &str) -> &str {
    let text = line.trim_start();
    if text.starts_with('|') { text } else { message(line) }
}

/// Returns the message with its leading spaces.
pub fn after_prefix(line: &str) -> &str {
    PREFIX.find(line).map_or(line, |found| &line[found.end()..])
}

/// Returns the tag of the process that wrote the line, if it has one.
pub fn tag(line: &str) -> Option<&str> {
    let at = memchr2(b'(', b'[', line.as_bytes())?;
    if at > TAG_AT_MOST && line[..at].chars().count() > TAG_AT_MOST {
        return None;
    }
    TAG.find(&line[at..]).map(|found| found.as_str())
}

/// Levels of harmless lines, where loggers write them. NCCL's "NCCL WARN" is its word for a failure.
static QUIET: LazyLock<Regex> = LazyLock::new(|| {
    regex(concat!(
        r"(?:^|[\[(|]|[\d)\]] | - )\s*(?:INFO|DEBUG|WARNING|WARN|NOTICE)\b[\s:\]|)\-]", // [INFO], 10:11:12 WARN, - INFO -
        r"|\b\w*Warning:|^\s*\[NeMo [DIW] \d", // x.py:12: UserWarning:, [NeMo W 2026-03-01
        r"|(?:^|[\[\s])[IW]\d{3,4} \d\d:\d\d:", // glog's W0302 10:11:12
        r"|^(?:\[rank\d+\]:)?\[[IW] [\w./]+\.\w+:\d+\]", // PyTorch's [W socket.cpp:663]
        r"|\[\d{4}-\d\d-\d\d [\d:,.]+ [IW] \d+ \d+\]", // Ray's [2026-03-01 10:11:12,000 W 77 77]
    ))
});
/// Characters in which a logger names the level.
const LEVEL_CHARS: usize = 160;

/// Returns true if its logger calls the line information or a warning.
pub fn is_quiet(line: &str) -> bool {
    let end = line.char_indices().nth(LEVEL_CHARS).map_or(line.len(), |(at, _)| at);
    // A launcher's logger that repeats the ranks' output calls all of it information.
    let is_relayed = || line[..end].split_once(" - [rank").is_some_and(|(_, rest)| rest.contains("]: "));
    let is_head = || line[..end].trim_end().ends_with("] Traceback (most recent call last):");
    QUIET.is_match(&line[..end]) && !is_relayed() && !is_head()
}

pub fn shown(line: &str) -> String {
    line.trim().chars().take(SHOWN_CHARS).collect()
}

/// Returns true for the first line of a frame, plain or in a box.
pub fn is_frame(message: &str) -> bool {
    message.starts_with("File \"") || message.contains('\u{2771}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_lose_what_loggers_put_before_them() {
        for (line, expect) in [
            ("Killed", "Killed"),
            ("(WorkerDict pid=71876, ip=10.0.0.2) RuntimeError: x", "RuntimeError: x"),
            ("[rank3]: torch.OutOfMemoryError: x", "torch.OutOfMemoryError: x"),
            ("(EngineCore_DP0 pid=17) ERROR 09-28 15:47:24 [core.py:718] ValueError: x", "ValueError: x"),
            ("2026-03-01T10:11:12.123456789Z stderr F Killed", "Killed"),
            (
                "(raylet) [2026-03-01 10:11:12,219 E 393 393] (raylet) node_manager.cc:3277: x",
                "node_manager.cc:3277: x",
            ),
            ("2026-03-01 10:11:12,000 - tuner - INFO - [rank7]: KeyError: 'x'", "KeyError: 'x'"),
            (
                "Mar 10 01:33:03 node-6 kernel: Out of memory: Killed process 1 (a)",
                "Out of memory: Killed process 1 (a)",
            ),
            ("│ RuntimeError: x", "RuntimeError: x"),
            ("2026-03-01 10:11:12 | ERROR | stderr | RuntimeError: x", "RuntimeError: x"),
            ("train-worker-0: RuntimeError: x", "RuntimeError: x"),
            (
                "[engine] | (EngineCore pid=3) ERROR 08-27 08:52:59 [core.py:13] KeyError: 'x'",
                "KeyError: 'x'",
            ),
            ("trainer  | RuntimeError: x", "RuntimeError: x"),
            ("algo-1-x7k2 | RuntimeError: x", "RuntimeError: x"),
            ("[trainer] RuntimeError: x", "RuntimeError: x"),
            ("[10:11:12] RuntimeError: x", "RuntimeError: x"),
            ("10:11:12-725979 ERROR    RuntimeError: x", "RuntimeError: x"),
            ("03/02/2026 10:11:12 - ERROR - RuntimeError: x", "RuntimeError: x"),
            ("2026-03-02 10:11:12.123 | ERROR    | app.run:main:42 - RuntimeError: x", "RuntimeError: x"),
            ("[1,mpirank:0,algo-1]<stderr>:RuntimeError: x", "RuntimeError: x"),
            ("(task, pid=62) RuntimeError: x", "RuntimeError: x"),
            ("(worker1, rank=1, pid=77, ip=10.0.0.2) RuntimeError: x", "RuntimeError: x"),
            ("{\"level\":\"error\",\"ts\":17.5,\"msg\":\"RuntimeError: x\"}", "RuntimeError: x\"}"),
            ("[torch_memory_saver.cpp] x", "[torch_memory_saver.cpp] x"),
            ("step | loss | reward", "step | loss | reward"),
            ("704.7s 1461 RuntimeError: x", "RuntimeError: x"),
            ("[2026-03-01 10:11:12 TP0 DP1] RuntimeError: x", "RuntimeError: x"),
            (
                "|    0   N/A  N/A     52464      C   python  307MiB |",
                "|    0   N/A  N/A     52464      C   python  307MiB |",
            ),
            (
                "[2026-03-01 10:11:12,123] [INFO] [launch.py:319:sigkill_handler] x",
                "[INFO] [launch.py:319:sigkill_handler] x",
            ),
        ] {
            assert_eq!(message(line), expect, "{line}");
        }
    }

    #[test]
    fn levels_are_where_loggers_write_them() {
        for line in [
            "INFO 03-02 10:00:00 [a.py:1] x",
            "(EngineCore pid=5) WARNING 03-02 10:00:00 x",
            "2026-03-01 10:11:12,000 WARNING worker.py:1839 -- x",
            "2026-03-01 10:11:12,000 - __main__ - INFO - x",
            "[2026-03-01 10:11:12,123] [INFO] [launch.py:319:f] x",
            "/opt/a.py:12: UserWarning: x",
            "[rank0]:[W306 12:24:36.982942725 ProcessGroupNCCL.cpp:1496] x",
            "WARNING:root:x",
            "[2026-03-01 10:11:12,219 W 393 393] rpc_client.h:153: x",
        ] {
            assert!(is_quiet(line), "{line}");
        }
        for line in [
            "node1:5:9 [0] init.cc:844 NCCL WARN Duplicate GPU detected",
            "DistBackendError: NCCL error, invalid usage (run with NCCL_DEBUG=WARN for details)",
            "[rank0]:[E306 12:24:36.982942725 ProcessGroupNCCL.cpp:1496] x",
            "ERROR 03-02 10:00:00 [a.py:1] x",
            "(raylet) [2026-03-01 10:11:12,219 E 393 393] (raylet) node_manager.cc:3277: x",
            "ValueError: log level INFO is not known",
            "2026-03-01 10:11:12,000 - tuner - INFO - [rank7]: KeyError: 'x'",
        ] {
            assert!(!is_quiet(line), "{line}");
        }
    }

    #[test]
    fn a_tag_names_the_process() {
        assert_eq!(tag("(WorkerDict pid=71876, ip=10.0.0.2) x"), Some("(WorkerDict pid=71876"));
        assert_eq!(tag("[rank0]:[E219 12:14:43.351647859 x] y"), Some("[rank0]"));
        assert_eq!(tag("RuntimeError: x"), None);
    }

    #[test]
    fn objects_of_container_runtimes_are_unpacked() {
        for (line, expect) in [
            (
                r#"{"log":"KeyError: \"x\"\n","stream":"stderr","time":"2026-03-01T10:11:12.123456789Z"}"#,
                r#"KeyError: "x""#,
            ),
            (
                r#"{"timestamp":"2026-03-01T10:11:12Z","severity":"ERROR","message":"KeyError: 'x'"}"#,
                "KeyError: 'x'",
            ),
            (r#"{"loss": 0.5, "epoch": 0.1}"#, r#"{"loss": 0.5, "epoch": 0.1}"#),
            (r#"{"log":"cut off"#, r#"cut off"#),
        ] {
            assert_eq!(message(&clean(line.as_bytes())), expect, "{line}");
        }
        assert!(is_quiet(&clean(br#"{"level":"info","msg":"x"}"#)));
    }

    #[test]
    fn text_is_clean_whatever_the_bytes() {
        assert_eq!(clean(b"[36m(A pid=1)[0m x\x07\xff\ty"), "(A pid=1) x\u{fffd} y");
        assert_eq!(clean(b"a[0] = m"), "a[0] = m");
        assert_eq!(clean(b"[mx[m y[m"), "[mx y");
        assert_eq!(clean(b"ERROR [multiproc_executor.py:81] x"), "ERROR [multiproc_executor.py:81] x");
    }
}
