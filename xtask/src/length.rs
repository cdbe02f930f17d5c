//! Length limits of files and functions. A function fits on a screen; a file of 600 lines is two subjects.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::finding::Finding;
use crate::source::Source;

pub const FILE_LINES_MAX: usize = 600;

/// Files that are being split.
const NOT_YET: [&str; 1] = ["crates/reward/src/math/parse.rs"];

/// Lines of a function, from `fn` to its closing brace.
pub const FUNCTION_LINES_MAX: usize = 70;

pub fn check(source: &Source) -> Vec<Finding> {
    let num_lines = source.text.lines().count();
    let mut functions = Functions { path: &source.path, findings: Vec::new() };
    if num_lines > FILE_LINES_MAX && !NOT_YET.contains(&source.path.as_str()) {
        let message = format!("{num_lines} lines, and a file has at most {FILE_LINES_MAX}");
        functions.findings.push(Finding::new(&source.path, 1, message));
    }
    functions.visit_file(&source.file);
    functions.findings
}

struct Functions<'s> {
    path: &'s str,
    findings: Vec<Finding>,
}

impl Functions<'_> {
    fn measure(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let first = signature.fn_token.span().start().line;
        let lines = body.span().end().line - first + 1;
        if lines > FUNCTION_LINES_MAX {
            let name = &signature.ident;
            let message =
                format!("function {name} has {lines} lines, and a function has at most {FUNCTION_LINES_MAX}");
            self.findings.push(Finding::new(self.path, first, message));
        }
    }
}

impl<'s> Visit<'s> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'s syn::ItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'s syn::ImplItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'s syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.measure(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::source;

    fn findings(text: &str) -> Vec<String> {
        check(&source("a.rs", text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn functions_up_to_the_limit() {
        let function =
            |lines: usize| format!("\nfn long(a: [u8; 3]) {{\n{}}}\n", "    a();\n".repeat(lines - 2));
        assert_eq!(findings(&function(FUNCTION_LINES_MAX)), [""; 0]);
        let text = function(FUNCTION_LINES_MAX + 1);
        assert_eq!(findings(&text), ["a.rs:2: function long has 71 lines, and a function has at most 70"]);
        for around in ["impl A", "trait A", "mod a", "fn a()"] {
            let found = findings(&format!("{around} {{ {text} }}"));
            assert!(found.iter().any(|found| found.contains("function long has 71")), "{around}");
        }
    }

    #[test]
    fn files_up_to_the_limit() {
        assert_eq!(findings(&"\n".repeat(FILE_LINES_MAX)), [""; 0]);
        assert_eq!(findings(&"\n".repeat(FILE_LINES_MAX + 1)).len(), 1);
    }
}
