//! Reads the modules of a file: items, imports, and the paths that code, macros and attributes name, without tests.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

use super::names::{Module, Path};
use crate::source::{Source, words};

/// Adds the modules of a file: its own and inline ones.
pub fn read(source: &Source, modules: &mut BTreeMap<Path, Module>) {
    let path = module_of(&source.path);
    let mut reader = Reader { path, file: &source.path, modules };
    reader.module().file = source.path.clone();
    reader.visit_file(&source.file);
}

/// Returns the module of a file: `src/a/b.rs` is `a::b`, `src/a/mod.rs` is `a`.
fn module_of(path: &str) -> Path {
    let file = path.split_once("/src/").map_or(path, |(_, file)| file).trim_end_matches(".rs");
    let mut names: Path = file.split('/').map(str::to_string).collect();
    if matches!(names.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        names.pop();
    }
    names
}

struct Reader<'a> {
    /// Path of the module being read.
    path: Path,
    file: &'a str,
    modules: &'a mut BTreeMap<Path, Module>,
}

impl Reader<'_> {
    fn module(&mut self) -> &mut Module {
        self.modules.entry(self.path.clone()).or_default()
    }

    /// Adds the imports of a `use`; its paths are mentions unless it only re-exports them.
    fn import(&mut self, tree: &UseTree, mut path: Path, is_re_export: bool) {
        let (name, alias) = match tree {
            UseTree::Path(inner) => {
                path.push(inner.ident.to_string());
                return self.import(&inner.tree, path, is_re_export);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|item| self.import(item, path.clone(), is_re_export));
            }
            UseTree::Glob(_) => return self.module().globs.push(path),
            UseTree::Name(name) => (&name.ident, &name.ident),
            UseTree::Rename(rename) => (&rename.ident, &rename.rename),
        };
        let mut alias = alias.to_string();
        match name.to_string().as_str() {
            "self" if alias == "self" => alias = path.last().cloned().unwrap_or_default(),
            "self" => {}
            name => path.push(name.to_string()),
        }
        if !is_re_export {
            self.module().mentions.insert(path.clone());
        }
        self.module().imports.push((alias, path));
    }

    /// Adds the paths among the tokens of a macro or an attribute.
    fn mention_words(&mut self, words: &[String]) {
        let is_name = |word: &String| word.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let mut rest = words;
        while let Some((first, after)) = rest.split_first() {
            rest = after;
            if is_name(first) {
                let mut path = vec![first.clone()];
                while let [a, b, name, after @ ..] = rest
                    && a == ":"
                    && b == ":"
                    && is_name(name)
                {
                    path.push(name.clone());
                    rest = after;
                }
                self.module().mentions.insert(path);
            } else if first == "."
                && let Some((_, after)) = rest.split_first()
            {
                rest = after; // a field or a method
            }
        }
    }
}

impl<'s> Visit<'s> for Reader<'_> {
    fn visit_item(&mut self, item: &'s Item) {
        let (attributes, name) = parts(item);
        if is_test(attributes) {
            return;
        }
        if let Some(name) = name {
            self.module().items.insert(name.to_string());
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'s syn::ItemMod) {
        if item.content.is_some() {
            self.path.push(item.ident.to_string());
            self.module().file = self.file.to_string();
            visit::visit_item_mod(self, item);
            self.path.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'s syn::ItemUse) {
        self.import(&item.tree, Vec::new(), !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_impl_item_fn(&mut self, item: &'s syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'s syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.module().mentions.insert(names);
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'s Visibility) {}

    fn visit_macro(&mut self, item: &'s syn::Macro) {
        self.mention_words(&words(item.tokens.clone()));
        visit::visit_macro(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'s Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.mention_words(&words(list.tokens.clone()));
        }
    }
}

/// Returns true if `#[cfg(test)]` or `#[cfg(all(test, ..))]` marks an item.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let words = words(list.tokens.clone());
            words[0] == "test" || words.starts_with(&["all".into(), "(".into(), "test".into()])
        }
        _ => false,
    })
}

/// Returns an item's attributes, and the name that it brings into its module.
fn parts(item: &Item) -> (&[Attribute], Option<&syn::Ident>) {
    match item {
        Item::Const(item) => (&item.attrs, Some(&item.ident)),
        Item::Enum(item) => (&item.attrs, Some(&item.ident)),
        Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
        Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
        Item::Static(item) => (&item.attrs, Some(&item.ident)),
        Item::Struct(item) => (&item.attrs, Some(&item.ident)),
        Item::Trait(item) => (&item.attrs, Some(&item.ident)),
        Item::Type(item) => (&item.attrs, Some(&item.ident)),
        Item::Union(item) => (&item.attrs, Some(&item.ident)),
        Item::Impl(item) => (&item.attrs, None),
        Item::Mod(item) => (&item.attrs, None),
        Item::Use(item) => (&item.attrs, None),
        _ => (&[], None),
    }
}
