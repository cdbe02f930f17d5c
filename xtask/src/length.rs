//! How long a file and a function may be. A function fits on a screen; a file of 800 lines is two subjects.

use crate::finding::Finding;
use crate::source::{Source, is_word};

/// Lines of a file.
pub const FILE_LINES_MAX: usize = 800;

/// Lines of a function, from `fn` to its closing brace.
pub const FUNCTION_LINES_MAX: usize = 70;

/// Checks one source.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    if source.num_lines() > FILE_LINES_MAX {
        let message = format!("{} lines, and a file has at most {FILE_LINES_MAX}", source.num_lines());
        findings.push(Finding::new(&source.path, 1, message));
    }
    for start in source.find("fn") {
        let Some((name, end)) = function(source, start) else { continue };
        let (first, last) = (source.line_of(start), source.line_of(end));
        let lines = last - first + 1;
        if lines > FUNCTION_LINES_MAX {
            let message =
                format!("function {name} has {lines} lines, and a function has at most {FUNCTION_LINES_MAX}");
            findings.push(Finding::new(&source.path, first, message));
        }
    }
    findings
}

/// The name of the function whose `fn` stands at `start`, and its closing brace. `None` for types and declarations.
fn function(source: &Source, start: usize) -> Option<(String, usize)> {
    let code = &source.code;
    let after = start + 2;
    let begin = after + code[after..].iter().take_while(|c| c.is_whitespace()).count();
    let name: String = code[begin..].iter().take_while(|c| is_word(**c)).collect();
    if name.is_empty() {
        return None;
    }
    let (mut nesting, mut braces) = (0i32, 0i32);
    for (i, c) in code.iter().enumerate().skip(begin) {
        match c {
            '(' | '[' => nesting += 1,
            ')' | ']' => nesting -= 1,
            ';' if nesting == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces == 0 && nesting == 0 {
                    return Some((name, i));
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        check(&Source::new("a.rs", text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn functions_up_to_the_limit() {
        let function =
            |lines: usize| format!("\nfn long(a: [u8; 3]) {{\n{}}}\n", "    a();\n".repeat(lines - 2));
        assert_eq!(findings(&function(FUNCTION_LINES_MAX)), [""; 0]);
        let found = findings(&function(FUNCTION_LINES_MAX + 1));
        assert_eq!(found, ["a.rs:2: function long has 71 lines, and a function has at most 70"]);
    }

    #[test]
    fn braces_in_strings_and_comments_do_not_count() {
        let filler = "// line\n".repeat(100);
        assert_eq!(findings(&format!("fn a() {{ f(\"{{\", '{{'); }} // {{\n{filler}")), [""; 0]);
        assert_eq!(findings(&format!("trait T {{ fn a(&self) -> [u8; 2]; }}\n{filler}")), [""; 0]);
        assert_eq!(findings(&format!("type F = fn(u8) -> u8;\n{filler}")), [""; 0]);
    }

    #[test]
    fn files_up_to_the_limit() {
        assert_eq!(findings(&"\n".repeat(FILE_LINES_MAX)), [""; 0]);
        assert_eq!(findings(&"\n".repeat(FILE_LINES_MAX + 1)).len(), 1);
    }
}
