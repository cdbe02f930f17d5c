//! What the modules of a crate define and import, and the files whose items each file's code names.
//!
//! Not a compiler: it knows modules, items, `use` and paths. Other names count as defined in the module's file.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// file -> file -> names.
pub type Edges = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// A path of names from the crate's root.
pub type Path = Vec<String>;

pub struct Crate {
    modules: BTreeMap<Path, Module>,
    /// Cached meanings of names in modules.
    known: RefCell<BTreeMap<(Path, String), BTreeSet<Target>>>,
}

/// Names that a module brings into scope.
#[derive(Default)]
pub struct Module {
    pub file: String,
    pub items: BTreeSet<String>,
    pub imports: Vec<(String, Path)>,
    pub globs: Vec<Path>,
    /// Paths that its code names.
    pub mentions: BTreeSet<Path>,
}

/// The meaning of a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Module(Path),
    /// An item that a file defines.
    Item {
        file: String,
        name: String,
    },
}

impl Crate {
    pub fn new(modules: BTreeMap<Path, Module>) -> Crate {
        Crate { modules, known: RefCell::default() }
    }

    /// Returns every file with the files that it depends on.
    pub fn edges(&self) -> Edges {
        let mut edges: Edges = self.modules.values().map(|m| (m.file.clone(), BTreeMap::new())).collect();
        for (path, module) in &self.modules {
            let targets = edges.get_mut(&module.file).expect("every file is a key");
            for target in module.mentions.iter().flat_map(|mention| self.resolve(path, mention)) {
                if let Target::Item { file, name } = target
                    && file != module.file
                {
                    targets.entry(file).or_default().insert(name);
                }
            }
        }
        edges
    }

    /// Returns what `path` means in `module`; several if a function and a module share a name.
    fn resolve(&self, module: &Path, path: &[String]) -> BTreeSet<Target> {
        let Some((first, rest)) = path.split_first() else { return BTreeSet::new() };
        let here = match first.as_str() {
            "crate" => BTreeSet::from([Target::Module(vec![])]),
            "self" => BTreeSet::from([Target::Module(module.clone())]),
            "super" => BTreeSet::from([Target::Module(parent(module))]),
            name => self.lookup(module, name),
        };
        leading_on(here, rest).into_iter().flat_map(|target| self.follow(target, rest)).collect()
    }

    fn follow(&self, target: Target, rest: &[String]) -> BTreeSet<Target> {
        let (Target::Module(path), Some((name, further))) = (&target, rest.split_first()) else {
            return BTreeSet::from([target]);
        };
        let mut found = match name.as_str() {
            "super" => BTreeSet::from([Target::Module(parent(path))]),
            name => self.lookup(path, name),
        };
        if found.is_empty()
            && let Some(module) = self.modules.get(path)
        {
            found.insert(Target::Item { file: module.file.clone(), name: name.clone() });
        }
        leading_on(found, further).into_iter().flat_map(|target| self.follow(target, further)).collect()
    }

    /// Returns what a name means in a module. A name that leads to itself adds nothing.
    fn lookup(&self, path: &Path, name: &str) -> BTreeSet<Target> {
        let Some(module) = self.modules.get(path) else { return BTreeSet::new() };
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
            found.insert(Target::Item { file: module.file.clone(), name: name.to_string() });
        }
        // Cached before imports that begin with their own name are resolved: `use plan::plan;`.
        self.known.borrow_mut().insert(key.clone(), found.clone());
        for (_, import) in module.imports.iter().filter(|(alias, _)| alias == name) {
            found.extend(self.resolve(path, import));
        }
        if found.is_empty() {
            for target in module.globs.iter().flat_map(|glob| self.resolve(path, glob)) {
                if let Target::Module(from) = target {
                    found.extend(self.lookup(&from, name));
                }
            }
        }
        self.known.borrow_mut().insert(key, found.clone());
        found
    }
}

/// Drops functions with a module's name if the path continues: `plan::ledger` is in the module.
fn leading_on(mut found: BTreeSet<Target>, rest: &[String]) -> BTreeSet<Target> {
    if !rest.is_empty() && found.iter().any(|target| matches!(target, Target::Module(_))) {
        found.retain(|target| matches!(target, Target::Module(_)));
    }
    found
}

fn parent(module: &Path) -> Path {
    module[..module.len().saturating_sub(1)].to_vec()
}
