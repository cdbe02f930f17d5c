//! Where the product may open files by a path for reading: in rooms that commands are made of, only through
//! `plimsoll_base`, which waits for no pipe without a writer and reads no device.

use crate::finding::Finding;
use crate::rooms::room_of;
use crate::source::Source;

/// Rooms in which most paths are named by users.
const ROOMS: [&str; 12] = [
    "agent", "bench", "config", "files", "infer", "plan", "plimsoll", "rl", "run", "serve", "stacks", "text",
];
/// Calls that open a path for reading, and wait for a pipe's writer.
const CALLS: [&str; 4] =
    ["File : : open (", "fs : : read (", "fs : : read_to_string (", "= read_to_string ("];
/// Beginnings of literal paths: files of the kernel, which no user names.
const OF_THE_KERNEL: [&str; 3] = ["\"/proc/", "\"/sys/", "\"/dev/"];

/// Reports direct opens in the rooms of commands.
pub fn check(source: &Source) -> Vec<Finding> {
    let is_product = room_of(&source.path).is_some_and(|(room, _)| ROOMS.contains(&room));
    if !is_product || source.path.ends_with("tests.rs") || !source.path.contains("/src/") {
        return Vec::new();
    }
    let message = "opens a path directly, and waits for a pipe without a writer: use `read_small`, `read_small_text`, \
                   `open_regular`, `open_folder` or `NamedFile` of plimsoll_base";
    let places = CALLS.iter().flat_map(|call| {
        let argument = call.split(' ').count();
        let is_of_users = move |at: &&[crate::source::Token]| {
            !at.get(argument).is_some_and(|token| OF_THE_KERNEL.iter().any(|of| token.text.starts_with(of)))
        };
        source.find(call).into_iter().filter(is_of_users).map(|at| at[0].line)
    });
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
    fn commands_open_what_users_name_in_one_way() {
        let text = "fn f(path: &Path) {\n    File::open(path);\n    std::fs::read(path);\n    fs::read_to_string(path);\n\
                    \u{20}   let a = read_to_string(path);\n    File::open(\"/dev/tty\");\n    read_small(path, 9);\n}\n\
                    #[cfg(test)]\nmod tests {\n    fn g() { File::open(path); }\n}\n";
        assert_eq!(lines("crates/plimsoll/src/commands/grade.rs", text), [2, 3, 4, 5]);
        for room in ["stacks", "run", "files"] {
            assert_eq!(lines(&format!("crates/{room}/src/a.rs"), text), [2, 3, 4, 5], "{room}");
        }
        for elsewhere in
            ["crates/memory/src/a.rs", "crates/text/src/a_tests.rs", "crates/plimsoll/tests/it/a.rs"]
        {
            assert_eq!(lines(elsewhere, text), [0; 0], "{elsewhere}");
        }
    }
}
