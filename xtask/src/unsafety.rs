//! Where `unsafe` may stand, and that each use says why it is sound.

use crate::source::Source;
use crate::tidy::Finding;

/// Crates that need it: kernels, mappings, rings; and the Python wheel.
const CRATES: [&str; 5] =
    ["crates/cpu/", "crates/cuda/", "crates/memory/", "crates/worker/", "crates/python/"];

/// How far above an `unsafe` its comment may begin.
const COMMENT_LINES_MAX: usize = 40;

/// Checks one source.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for start in source.find("unsafe") {
        let line = source.line_of(start);
        let after: String = source.code[start + "unsafe".len()..].iter().take(40).collect();
        if is_type(&after) {
            continue;
        }
        if !CRATES.iter().any(|folder| source.path.starts_with(folder)) {
            let message = "unsafe outside crates cpu, cuda, memory, worker and python";
            findings.push(Finding::new(&source.path, line, message));
            continue;
        }
        let declares = after.trim_start().starts_with("fn") || after.trim_start().starts_with("trait");
        let declares = declares || after.trim_start().starts_with("extern") && after.contains("fn ");
        let block = enclosing_impl(source, start);
        // The promise of a trait's method is documented at the trait; one comment may speak for a block of intrinsics.
        let by_trait = declares && block.as_ref().is_some_and(|block| block.of_trait);
        let by_block = !declares && block.is_some_and(|block| is_explained(source, block.line, false));
        if !by_trait && !by_block && !is_explained(source, line, declares) {
            let wanted = if declares { "a `# Safety` section" } else { "a `// SAFETY:` comment" };
            findings.push(Finding::new(&source.path, line, format!("unsafe without {wanted} above it")));
        }
    }
    findings
}

/// Whether what follows `unsafe` makes it part of a function pointer's type or of an attribute.
fn is_type(after: &str) -> bool {
    let after: String = after.split_whitespace().collect::<Vec<_>>().join(" ");
    after.starts_with("fn(")
        || after.starts_with("extern") && after.contains(" fn(")
        || after.starts_with('(')
}

/// The `impl` block around a place.
struct ImplBlock {
    line: usize,
    /// `impl Trait for Type`.
    of_trait: bool,
}

fn enclosing_impl(source: &Source, index: usize) -> Option<ImplBlock> {
    let mut depth = 0;
    for i in (0..index).rev() {
        match source.code[i] {
            '}' => depth += 1,
            '{' if depth > 0 => depth -= 1,
            '{' => {
                let start = (0..i)
                    .rev()
                    .find(|&j| ['{', '}', ';', ']'].contains(&source.code[j]))
                    .map_or(0, |j| j + 1);
                let header: String = source.code[start..i].iter().collect();
                let skipped = header.len() - header.trim_start().len();
                if header.trim_start().starts_with("impl") {
                    return Some(ImplBlock {
                        line: source.line_of(start + skipped),
                        of_trait: header.split_whitespace().any(|word| word == "for"),
                    });
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether the comment above the statement that holds `line` explains it.
fn is_explained(source: &Source, line: usize, declares: bool) -> bool {
    let explains = |text: &str| text.contains("SAFETY:") || declares && text.contains("# Safety");
    if explains(&source.line(line)) {
        return true;
    }
    for above in (line.saturating_sub(COMMENT_LINES_MAX).max(1)..line).rev() {
        let text = source.line(above);
        let text = text.trim();
        if explains(text) {
            return true;
        }
        let is_comment = text.starts_with("//") || text.starts_with("#[");
        let is_same_group = text.starts_with("unsafe impl"); // Send and Sync share a comment
        let ends_statement = text.is_empty() || text.ends_with([';', '{', '}']);
        if !is_comment && !is_same_group && ends_statement {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Source::new(path, text)).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn only_in_its_crates() {
        let text = "// SAFETY: none needed.\nunsafe { f() }\n";
        assert_eq!(lines("crates/cpu/src/a.rs", text), [0; 0]);
        assert_eq!(lines("crates/rl/src/a.rs", text), [2]);
        assert_eq!(
            lines("crates/rl/src/a.rs", "#![forbid(unsafe_code)] // unsafe\nlet a = \"unsafe\";\n"),
            [0; 0]
        );
    }

    #[test]
    fn every_block_has_its_comment() {
        let check = |text: &str, expect: &[usize]| {
            assert_eq!(lines("crates/memory/src/a.rs", text), expect, "{text}")
        };
        check("f();\nunsafe { g() }\n", &[2]);
        check("// SAFETY: a\n// b\nlet x =\n    unsafe { g() };\nunsafe { h() };\n", &[5]);
        check("// SAFETY: a\nunsafe impl Send for A {}\nunsafe impl Sync for A {}\n", &[]);
        check("// a\nunsafe impl Send for A {}\n", &[2]);
        check("/// Does.\n///\n/// # Safety\n/// None.\n#[inline]\npub unsafe fn f() {}\n", &[]);
        check("/// Does.\npub unsafe fn f() {}\n", &[2]);
        check("type F = unsafe extern \"C\" fn(u8);\ntype G = unsafe fn(u8);\n", &[]);
        check("// SAFETY: the library's header says so.\nunsafe extern \"C\" {}\n", &[]);
        check("unsafe extern \"C\" {}\n", &[1]);
        check("impl T for A {\n    unsafe fn f() {}\n    fn g() { unsafe { f() } }\n}\n", &[3]);
        check("impl A {\n    unsafe fn f() {}\n}\n", &[2]);
        check(
            "// SAFETY: `new` has checked the machine.\n#[inline]\nimpl A {\n    fn g() { unsafe { f() } }\n}\n",
            &[],
        );
    }
}
