//! Where `unsafe` is allowed, and that each declaration documents what its caller must uphold. Blocks are left to
//! clippy: `undocumented_unsafe_blocks` requires their comments.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::finding::Finding;
use crate::source::{Source, Token};

/// Crates that need it: kernels, mappings, rings; and the Python wheel.
const CRATES: [&str; 5] =
    ["crates/cpu/", "crates/cuda/", "crates/memory/", "crates/worker/", "crates/python/"];

pub fn check(source: &Source) -> Vec<Finding> {
    if CRATES.iter().any(|folder| source.path.starts_with(folder)) {
        let mut declarations = Declarations { source, findings: Vec::new() };
        declarations.visit_file(&source.file);
        return declarations.findings;
    }
    let message = "unsafe outside crates cpu, cuda, memory, worker and python";
    let uses = source
        .tokens
        .iter()
        .enumerate()
        .filter(|(i, token)| token.text == "unsafe" && !is_type(&source.tokens[i + 1..]));
    uses.map(|(_, token)| Finding::new(&source.path, token.line, message)).collect()
}

/// Returns true if the tokens after `unsafe` make it part of a function pointer type or an attribute.
fn is_type(after: &[Token]) -> bool {
    let after: Vec<&str> = after.iter().take(4).map(|token| token.text.as_str()).collect();
    matches!(after[..], ["(", ..] | ["fn", "(", ..] | ["extern", "fn", "(", ..] | ["extern", _, "fn", "("])
}

/// Visits `unsafe fn`, `unsafe trait` and `unsafe extern`. A trait documents the promises of its methods.
struct Declarations<'s> {
    source: &'s Source,
    findings: Vec<Finding>,
}

impl Declarations<'_> {
    fn check(&mut self, keyword: Option<impl Spanned>) {
        let Some(line) = keyword.map(|keyword| keyword.span().start().line) else { return };
        let above: Vec<&str> = self.source.text.lines().take(line - 1).collect();
        let is_attached = |line: &&&str| line.trim().starts_with("//") || line.trim().starts_with("#[");
        let mut comments = above.iter().rev().take_while(is_attached);
        if !comments.any(|line| line.contains("# Safety") || line.contains("SAFETY:")) {
            let message = "an unsafe declaration without a `# Safety` section above it";
            self.findings.push(Finding::new(&self.source.path, line, message));
        }
    }
}

fn keyword(signature: &syn::Signature) -> Option<syn::token::Unsafe> {
    match signature.safety {
        syn::Safety::Unsafe(keyword) => Some(keyword),
        _ => None,
    }
}

impl<'s> Visit<'s> for Declarations<'_> {
    fn visit_item_fn(&mut self, item: &'s syn::ItemFn) {
        self.check(keyword(&item.sig));
        visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'s syn::ItemImpl) {
        if item.trait_.is_none() {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'s syn::ImplItemFn) {
        self.check(keyword(&item.sig));
    }

    fn visit_trait_item_fn(&mut self, item: &'s syn::TraitItemFn) {
        self.check(keyword(&item.sig));
    }

    fn visit_item_trait(&mut self, item: &'s syn::ItemTrait) {
        self.check(item.unsafety);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_foreign_mod(&mut self, item: &'s syn::ItemForeignMod) {
        self.check(item.unsafety);
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
    fn only_in_its_crates() {
        let text = "fn g() {\n    unsafe { f() }\n}\n";
        assert_eq!(lines("crates/cpu/src/a.rs", text), [0; 0]);
        assert_eq!(lines("crates/rl/src/a.rs", text), [2]);
        let text = "#![forbid(unsafe_code)] // unsafe\nconst A: &str = \"unsafe\";\n\
                    type F = unsafe extern \"C\" fn(u8);\ntype G = unsafe fn(u8);\n";
        assert_eq!(lines("crates/rl/src/a.rs", text), [0; 0]);
    }

    #[test]
    fn every_declaration_has_its_comment() {
        let check = |text: &str, expect: &[usize]| {
            assert_eq!(lines("crates/memory/src/a.rs", text), expect, "{text}")
        };
        check("/// Does.\n///\n/// # Safety\n/// None.\n#[inline]\npub unsafe fn f() {}\n", &[]);
        check("/// Does.\npub unsafe fn f() {}\n", &[2]);
        check("/// # Safety\n/// None.\nfn g() {}\n\nunsafe fn f() {}\n", &[5]);
        check("type F = unsafe extern \"C\" fn(u8);\ntype G = unsafe fn(u8);\n", &[]);
        check("// SAFETY: the library's header says so.\nunsafe extern \"C\" {}\n", &[]);
        check("unsafe extern \"C\" {}\n", &[1]);
        check("impl T for A {\n    unsafe fn f() {}\n}\n", &[]);
        check("impl A {\n    unsafe fn f() {}\n}\n", &[2]);
        check("trait A {\n    unsafe fn f();\n}\nunsafe trait B {}\n", &[2, 4]);
    }
}
