//! How comments are written: lines of at most 120 columns, and a doc comment of a function begins with a verb.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::finding::Finding;
use crate::rooms::room_of;
use crate::source::Source;

const COLUMNS_MAX: usize = 120;

/// Words that begin a noun clause, or point at another comment.
const OPENERS: [&str; 13] = [
    "What", "Whether", "Where", "How", "If", "Of", "Its", "Those of", "That of", "The same", "As `",
    "Like `", "With",
];

/// Reports long comments, and doc comments of product functions that do not begin with a verb.
pub fn check(source: &Source) -> Vec<Finding> {
    let lines = source.text.lines().enumerate();
    let long =
        lines.filter(|(_, line)| line.trim_start().starts_with("//") && line.chars().count() > COLUMNS_MAX);
    let message =
        |line: &str| format!("a comment of {} columns, and at most {COLUMNS_MAX}", line.chars().count());
    let findings = long.map(|(index, line)| Finding::new(&source.path, index + 1, message(line))).collect();
    let mut docs = Docs { path: &source.path, findings };
    if room_of(&source.path).is_some() {
        docs.visit_file(&source.file);
    }
    docs.findings
}

struct Docs<'s> {
    path: &'s str,
    findings: Vec<Finding>,
}

impl Docs<'_> {
    /// Reports the doc comment of a function by how it opens.
    fn read(&mut self, attributes: &[syn::Attribute]) {
        let Some(doc) = attributes.iter().find(|attribute| attribute.path().is_ident("doc")) else { return };
        let syn::Meta::NameValue(syn::MetaNameValue {
            value: syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }),
            ..
        }) = &doc.meta
        else {
            return;
        };
        let text = text.value();
        let begins = |opener: &&&str| {
            let rest = text.trim_start().strip_prefix(**opener);
            rest.is_some_and(|rest| opener.ends_with('`') || !rest.starts_with(char::is_alphanumeric))
        };
        if let Some(opener) = OPENERS.iter().find(begins) {
            let message =
                format!("a doc comment that opens with `{opener}`: begin with a verb, as in `Returns`");
            self.findings.push(Finding::new(self.path, doc.span().start().line, message));
        }
    }
}

impl<'s> Visit<'s> for Docs<'_> {
    fn visit_item_mod(&mut self, item: &'s syn::ItemMod) {
        let is_tests = item.attrs.iter().any(|attribute| attribute.path().is_ident("cfg"));
        if !is_tests {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'s syn::ItemFn) {
        self.read(&item.attrs);
    }

    fn visit_impl_item_fn(&mut self, item: &'s syn::ImplItemFn) {
        self.read(&item.attrs);
    }

    fn visit_trait_item_fn(&mut self, item: &'s syn::TraitItemFn) {
        self.read(&item.attrs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::source;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&source(path, text)).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_function_says_what_it_does_with_a_verb() {
        let text = "/// What it is.\nfn a() {}\n/// Returns it.\nfn b() {}\nstruct S;\nimpl S {\n    /// As `a`.\n    fn c() {}\n    /// Whatever comes.\n    fn d() {}\n}\n";
        assert_eq!(lines("crates/plan/src/a.rs", text), [1, 7]);
        assert!(lines("crates/plan/tests/it/a.rs", text).is_empty());
        assert!(lines("crates/plan/src/a.rs", "/// What a plan says.\nstruct S;\n").is_empty());
    }

    #[test]
    fn a_comment_ends_at_120_columns() {
        let text = |columns: usize| format!("// {}\nfn a() {{}}\n", "x".repeat(columns - 3));
        assert_eq!(lines("crates/plan/tests/it/a.rs", &text(121)), [1]);
        assert!(lines("crates/plan/src/a.rs", &text(120)).is_empty());
    }
}
