//! Where the product may write to a terminal: in files that make other people's text visible first, or that pass on
//! what such a file wrote. Everything else goes through them, so that no escape sequence of a log, a file or a peer
//! moves a cursor.

use crate::finding::Finding;
use crate::rooms::room_of;
use crate::source::Source;

/// The files, with what they show.
const PLACES: [(&str, &str); 9] = [
    ("crates/plimsoll/src/output.rs", "data and notes"),
    ("crates/plimsoll/src/errors.rs", "errors"),
    ("crates/plimsoll/src/terminal.rs", "the live line"),
    ("crates/ranks/src/launch.rs", "lines of ranks, and what rank 0 wrote"),
    ("crates/run/src/stall.rs", "a warning of its own numbers"),
    ("crates/worker/src/supervisor.rs", "what its trainer wrote"),
    ("crates/worker/src/words.rs", "lines of workers"),
    ("crates/worker/src/keeper.rs", "words of its own, which the trainer reads"),
    ("crates/worker/src/enter.rs", "words of its own, which the trainer reads"),
];
const CALLS: [&str; 7] = [
    "io : : stderr ( )",
    "io : : stdout ( )",
    "println ! (",
    "eprintln ! (",
    "print ! (",
    "eprint ! (",
    "dbg ! (",
];

/// Reports direct writes to stdout and stderr.
pub fn check(source: &Source) -> Vec<Finding> {
    let is_product = room_of(&source.path).is_some() && source.path.contains("/src/");
    let is_place = PLACES.iter().any(|(path, _)| *path == source.path);
    // The wheel has no terminal of its own, and build scripts speak to cargo.
    let is_other = source.path.starts_with("crates/python/") || source.path.ends_with("tests.rs");
    if !is_product || is_place || is_other {
        return Vec::new();
    }
    let message = "writes to a terminal directly, where other people's text may move the cursor: use `output` of \
                   plimsoll, or return the words";
    let places = CALLS.iter().flat_map(|call| source.find(call).into_iter().map(|at| at[0].line));
    places.map(|line| Finding::new(&source.path, line, message)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::source;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&source(path, text)).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_terminal_is_written_to_in_few_places() {
        let text = "fn f() {\n    println!(\"{a}\");\n    std::io::stderr().write_all(b);\n    io::stdout().flush();\n\
                    \u{20}   command.stderr(Stdio::null());\n    eprintln!();\n}\n\
                    #[cfg(test)]\nmod tests {\n    fn g() { println!(); }\n}\n";
        assert_eq!(lines("crates/plimsoll/src/commands/grade.rs", text), [3, 4, 2, 6]);
        assert_eq!(lines("crates/run/src/a.rs", text), [3, 4, 2, 6]);
        for elsewhere in [
            "crates/plimsoll/src/output.rs",
            "crates/text/src/a_tests.rs",
            "crates/plimsoll/tests/it/a.rs",
            "xtask/src/a.rs",
        ] {
            assert_eq!(lines(elsewhere, text), [0; 0], "{elsewhere}");
        }
    }
}
