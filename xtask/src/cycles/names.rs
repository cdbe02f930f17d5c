//! What the modules of a crate define and import, and which file's items each file's code names.
//!
//! Not a compiler: it knows modules, items, `use` and paths. A name that it cannot find in a module counts as defined in
//! that module's file, as those that a macro defines are.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::tokens::tokens;
use crate::source::Source;

/// file -> file -> names.
pub type Edges = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

const ITEMS: [&str; 9] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];

/// A path of names from the crate's root.
type Path = Vec<String>;

/// The modules of a crate.
#[derive(Default)]
pub struct Crate {
    modules: BTreeMap<Path, Module>,
    /// What each file's code names: the module that it is named in, and the path.
    mentions: BTreeMap<String, Vec<(Path, Path)>>,
    /// What a name means in a module, once it was looked up.
    known: RefCell<BTreeMap<(Path, String), Vec<Target>>>,
}

/// What one module brings into scope.
#[derive(Default)]
struct Module {
    file: String,
    items: BTreeSet<String>,
    imports: Vec<(String, Path)>,
    globs: Vec<Path>,
}

/// What a path leads to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Module(Path),
    /// Something that this file defines.
    Item(String),
}

impl Crate {
    /// Reads the sources of one crate.
    pub fn read(sources: &[&Source]) -> Crate {
        let mut found = Crate::default();
        for source in sources {
            let module = module_of(&source.path);
            let is_tests = module.last().is_some_and(|name| name == "tests" || name.ends_with("_tests"));
            if !is_tests {
                Reader { tokens: tokens(source), file: &source.path, at: 0, found: &mut found }
                    .module(module);
            }
        }
        found
    }

    /// Every file with the files that it needs.
    pub fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        for (file, mentions) in &self.mentions {
            let targets = edges.entry(file.clone()).or_default();
            for (module, path) in mentions {
                for target in self.resolve(module, path) {
                    if let Target::Item(to) = target
                        && to != *file
                    {
                        targets.entry(to).or_default().insert(path.last().expect("paths have names").clone());
                    }
                }
            }
        }
        // A file that is only a target has a row too.
        let all: Vec<String> = edges.values().flat_map(BTreeMap::keys).cloned().collect();
        for file in all {
            edges.entry(file).or_default();
        }
        edges
    }

    /// What `path` means in `module`; several where a function and a module have one name.
    fn resolve(&self, module: &Path, path: &[String]) -> Vec<Target> {
        let Some((first, rest)) = path.split_first() else { return vec![] };
        let here = match first.as_str() {
            "crate" => vec![Target::Module(vec![])],
            "self" => vec![Target::Module(module.clone())],
            "super" => vec![Target::Module(parent(module))],
            name => self.lookup(module, name),
        };
        here.into_iter().flat_map(|target| self.follow(target, rest)).collect()
    }

    fn follow(&self, target: Target, rest: &[String]) -> Vec<Target> {
        let (Target::Module(module), Some((name, further))) = (&target, rest.split_first()) else {
            return vec![target];
        };
        if name == "super" {
            return self.follow(Target::Module(parent(module)), further);
        }
        let mut found = self.lookup(module, name);
        if found.is_empty()
            && let Some(module) = self.modules.get(module)
        {
            found.push(Target::Item(module.file.clone()));
        }
        found.into_iter().flat_map(|target| self.follow(target, further)).collect()
    }

    /// What a name means in a module. A name that leads to itself means nothing more.
    fn lookup(&self, path: &Path, name: &str) -> Vec<Target> {
        let Some(module) = self.modules.get(path) else { return vec![] };
        let key = (path.clone(), name.to_string());
        if let Some(known) = self.known.borrow().get(&key) {
            return known.clone();
        }
        let mut found = BTreeSet::new();
        let child: Path = path.iter().cloned().chain([name.to_string()]).collect();
        if self.modules.contains_key(&child) {
            found.insert(Target::Module(child));
        }
        if module.items.contains(name) {
            found.insert(Target::Item(module.file.clone()));
        }
        // Known so far, for imports that begin with their own name: `use plan::plan;`.
        self.known.borrow_mut().insert(key.clone(), found.iter().cloned().collect());
        for (_, import) in module.imports.iter().filter(|(alias, _)| alias == name) {
            found.extend(self.resolve(path, import));
        }
        if found.is_empty() {
            for glob in &module.globs {
                for target in self.resolve(path, glob) {
                    if let Target::Module(from) = target {
                        found.extend(self.lookup(&from, name));
                    }
                }
            }
        }
        let found: Vec<Target> = found.into_iter().collect();
        self.known.borrow_mut().insert(key, found.clone());
        found
    }
}

fn parent(module: &Path) -> Path {
    module[..module.len().saturating_sub(1)].to_vec()
}

/// The module that a file is: `src/a/b.rs` is `a::b`, `src/a/mod.rs` is `a`.
fn module_of(path: &str) -> Path {
    let file = path.split_once("/src/").map_or(path, |(_, file)| file).trim_end_matches(".rs");
    let mut names: Path = file.split('/').map(str::to_string).collect();
    if matches!(names.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        names.pop();
    }
    names
}

/// Reads the tokens of one file.
struct Reader<'s> {
    tokens: Vec<String>,
    file: &'s str,
    at: usize,
    found: &'s mut Crate,
}

impl Reader<'_> {
    /// Reads a module to its closing brace or the end of the file.
    fn module(&mut self, path: Path) {
        self.found.modules.entry(path.clone()).or_default().file = self.file.to_string();
        let mut depth = 0;
        while self.at < self.tokens.len() {
            let token = self.tokens[self.at].clone();
            let next = self.tokens.get(self.at + 1).cloned().unwrap_or_default();
            match token.as_str() {
                "{" => depth += 1,
                "}" if depth == 0 => return,
                "}" => depth -= 1,
                "mod" if self.tokens.get(self.at + 2).is_some_and(|sign| sign == "{") => {
                    self.at += 3;
                    self.module(path.iter().cloned().chain([next]).collect());
                }
                "mod" => self.at += 1,
                "use" => {
                    self.at += 1;
                    self.use_tree(&path, Vec::new());
                }
                item if depth == 0 && ITEMS.contains(&item) => {
                    let name = if next == "!" {
                        self.tokens.get(self.at + 2).cloned().unwrap_or_default()
                    } else {
                        next
                    };
                    if is_name(&name) && !ITEMS.contains(&name.as_str()) {
                        self.at_module(&path).items.insert(name);
                    }
                }
                word if is_name(word) && !self.is_field() => self.mention(&path),
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Notes the path that begins here, and stands on its last name then.
    fn mention(&mut self, module: &Path) {
        let mut path = vec![self.tokens[self.at].clone()];
        while self.tokens.get(self.at + 1).is_some_and(|sign| sign == "::")
            && self.tokens.get(self.at + 2).is_some_and(|word| is_name(word))
        {
            path.push(self.tokens[self.at + 2].clone());
            self.at += 2;
        }
        let is_from_glob = path.len() == 1 && !self.at_module(module).globs.is_empty() && path[0] != "crate";
        if path.len() > 1 || is_from_glob && path[0] != "super" && path[0] != "self" {
            self.found.mentions.entry(self.file.to_string()).or_default().push((module.clone(), path));
        }
    }

    fn is_field(&self) -> bool {
        self.at > 0 && matches!(self.tokens[self.at - 1].as_str(), "." | "::")
    }

    /// Reads `a::{b, c as d, e::*}` behind `start`, and stands on its last token then.
    fn use_tree(&mut self, module: &Path, start: Path) {
        let mut path = start.clone();
        while let Some(token) = self.tokens.get(self.at).cloned() {
            match token.as_str() {
                "{" => {
                    loop {
                        self.at += 1;
                        match self.tokens.get(self.at).map(String::as_str) {
                            Some("}") | None => break,
                            Some(",") => {}
                            Some(_) => {
                                self.use_tree(module, path.clone());
                                self.at -= 1;
                            }
                        }
                    }
                    self.at += 1;
                    return;
                }
                "*" => {
                    self.at_module(module).globs.push(path.clone());
                    self.at += 1;
                    return;
                }
                "as" => {
                    let alias = self.tokens.get(self.at + 1).cloned().unwrap_or_default();
                    self.import(module, path, alias);
                    self.at += 2;
                    return;
                }
                "," | "}" | ";" => break,
                "self" if !path.is_empty() => {}
                "::" => {}
                _ => path.push(token),
            }
            self.at += 1;
        }
        if path.len() > start.len()
            || self.tokens.get(self.at.wrapping_sub(1)).is_some_and(|word| word == "self")
        {
            let alias = path.last().cloned().unwrap_or_default();
            self.import(module, path, alias);
        }
    }

    fn import(&mut self, module: &Path, path: Path, alias: String) {
        self.found.mentions.entry(self.file.to_string()).or_default().push((module.clone(), path.clone()));
        self.at_module(module).imports.push((alias, path));
    }

    fn at_module(&mut self, path: &Path) -> &mut Module {
        self.found.modules.entry(path.clone()).or_default()
    }
}

fn is_name(word: &str) -> bool {
    word.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_')
}
