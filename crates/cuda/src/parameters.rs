//! The parameters of kernels, read from their sources, against which launches are checked.
//!
//! The driver takes the address of each argument and knows neither its type nor their number. The sources are C++ with
//! macros; this reads only what kernel declarations use: macros with and without arguments, `##` and `__VA_ARGS__`. A
//! declaration that it cannot read panics, and a test reads them all.

use std::collections::HashMap;

/// The kind of a kernel's parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ptr,
    U32,
    U64,
    F32,
    /// A `TensorMap` by value.
    Map,
}

/// The parameters of a file's kernels, by name.
pub(crate) type Parameters = HashMap<String, Vec<Kind>>;

/// Panics unless these are the kinds of arguments that a kernel takes.
pub(crate) fn check(parameters: &Parameters, kernel: &str, given: impl Iterator<Item = Kind>) {
    let takes = parameters.get(kernel).unwrap_or_else(|| panic!("no source has a kernel {kernel}"));
    let given: Vec<Kind> = given.collect();
    if let Some(i) = (0..takes.len().max(given.len())).find(|&i| takes.get(i) != given.get(i)) {
        let [takes_n, given_n] = [takes.len(), given.len()];
        let words = |kinds: &[Kind]| kinds.get(i).map_or("nothing".into(), |kind| format!("{kind:?}"));
        panic!(
            "kernel {kernel} takes {takes_n} arguments and is given {given_n}: argument {i} is {}, and it takes {}",
            words(&given),
            words(takes)
        );
    }
}

/// Reads the kernels of a source.
pub(crate) fn read(source: &str) -> Parameters {
    let lines = source.lines().map(|line| line.split("//").next().unwrap_or_default().trim_end());
    let joined = lines.fold(String::new(), |text, line| match line.strip_suffix('\\') {
        Some(begun) => text + begun + " ",
        None => text + line + "\n",
    });
    let mut macros = Macros::new();
    let (directives, code): (Vec<&str>, Vec<&str>) =
        joined.lines().partition(|line| line.trim_start().starts_with('#'));
    macros.extend(directives.into_iter().filter_map(definition));
    let mut found = Parameters::new();
    find(&code.join("\n"), &macros, &mut found);
    found
}

/// A macro: the names of its arguments, if it takes any, and its body.
type Macro<'s> = (Option<Vec<&'s str>>, &'s str);
type Macros<'s> = HashMap<&'s str, Macro<'s>>;

fn definition(line: &str) -> Option<(&str, Macro<'_>)> {
    let line = line.trim_start().strip_prefix("#define ")?;
    let name = word(line);
    let rest = &line[name.len()..];
    match group(rest).filter(|_| rest.starts_with('(')) {
        Some((names, end)) => Some((name, (Some(names.split(',').map(str::trim).collect()), &rest[end..]))),
        None => Some((name, (None, rest))),
    }
}

/// Adds the kernels that a text declares, or that its macros do.
fn find(text: &str, macros: &Macros<'_>, found: &mut Parameters) {
    rewrite(text, &mut |name, rest| {
        if name == "__global__" {
            let (name, parameters) = declaration(rest, macros);
            assert!(found.insert(name.clone(), parameters).is_none(), "two kernels {name}");
        } else if makes_kernels(name, macros) {
            find(&call(name, rest, macros)?.0, macros, found);
        }
        None
    });
}

fn makes_kernels(name: &str, macros: &Macros<'_>) -> bool {
    let Some((_, body)) = macros.get(name) else { return false };
    let mut makes = false;
    rewrite(body, &mut |word, _| {
        makes |= word == "__global__" || makes_kernels(word, macros);
        None
    });
    makes
}

/// Returns the name and the parameters of a kernel: `text` follows `__global__`.
fn declaration(text: &str, macros: &Macros<'_>) -> (String, Vec<Kind>) {
    let head = text.split('{').next().unwrap_or_default().trim_end();
    // The parentheses before the last are those of launch bounds.
    let opens = head.char_indices().filter(|(_, c)| *c == '(').map(|(i, _)| i);
    let whole = |&open: &usize| group(&head[open..]).is_some_and(|(_, end)| open + end == head.len());
    let open = opens.into_iter().find(whole).unwrap_or_else(|| panic!("a kernel has parameters: {head}"));
    let name = head[..open].trim_end().rsplit(|c| !is_word(c)).next().unwrap_or_default();
    let parameters = expand(&head[open + 1..head.len() - 1], macros);
    (name.to_string(), split(&parameters).map(kind).collect())
}

fn kind(parameter: &str) -> Kind {
    const SAYS_NOTHING: [&str; 3] = ["const", "__grid_constant__", "__restrict__"];
    if parameter.contains('*') {
        return Kind::Ptr;
    }
    match parameter.split_whitespace().find(|word| !SAYS_NOTHING.contains(word)) {
        Some("u32") => Kind::U32,
        Some("u64") => Kind::U64,
        Some("float") => Kind::F32,
        Some("TensorMap") => Kind::Map,
        _ => panic!("no argument is given for a parameter `{parameter}`"),
    }
}

/// Replaces all macros in a text.
fn expand(text: &str, macros: &Macros<'_>) -> String {
    rewrite(text, &mut |name, rest| {
        let (body, used) = call(name, rest, macros)?;
        Some((expand(&body, macros), used))
    })
}

/// Returns a macro's expansion with the arguments that `rest` begins with, and their length.
fn call(name: &str, rest: &str, macros: &Macros<'_>) -> Instead {
    let (names, body) = macros.get(name)?;
    let Some(names) = names else { return Some((body.to_string(), 0)) };
    let (all, end) = group(rest)?;
    let values: Vec<&str> = split(all).collect();
    let value = |name: &str| {
        let name = if name == "__VA_ARGS__" { "..." } else { name };
        let i = names.iter().position(|other| *other == name)?;
        Some((if name == "..." { values[i..].join(", ") } else { values[i].to_string() }, 0))
    };
    let body = rewrite(body, &mut |name, _| value(name));
    Some((body.split("##").map(str::trim).collect(), end))
}

/// The text that replaces a word, and how many bytes after the word it replaces too.
type Instead = Option<(String, usize)>;

/// Replaces words: `by` gets each, and what follows it.
fn rewrite(text: &str, by: &mut dyn FnMut(&str, &str) -> Instead) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        let name = word(rest);
        let (old, after) = rest.split_at(name.len().max(first.len_utf8()));
        let new = if name.is_empty() { None } else { by(name, after) };
        rest = &after[new.as_ref().map_or(0, |(_, used)| *used)..];
        out.push_str(new.as_ref().map_or(old, |(text, _)| text));
    }
    out
}

/// Splits at the commas outside parentheses.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let is_end = move |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    };
    list.split(is_end).map(str::trim)
}

/// Returns what is in the parentheses that a text begins with, and where they end.
fn group(text: &str) -> Option<(&str, usize)> {
    let open = text.find(|c: char| !c.is_whitespace()).filter(|&i| text[i..].starts_with('('))?;
    let mut depth = 0;
    let close = text.find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ')' && depth == 0
    })?;
    Some((&text[open + 1..close], close + 1))
}

fn word(text: &str) -> &str {
    &text[..text.find(|c| !is_word(c)).unwrap_or(text.len())]
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::SOURCES;
    use std::collections::HashSet;

    #[test]
    fn declarations_are_read_through_macros() {
        let source = "
#define PLAN u32 *counts, u64 n // Two.
#define MAP(name) const __grid_constant__ TensorMap name
#define GIVE(T, type, ...) \\
    extern \"C\" __global__ void __launch_bounds__(2 * THREADS, 1) give_##type##_8(MAP(x), const T* __restrict__ y, PLAN, __VA_ARGS__) { \\
        begin();                                                                                                        \\
    }
#define GIVES(type, ...) GIVE(type, type, __VA_ARGS__)
GIVES(float, u32 count, float scale)
extern \"C\" __global__ void
plain(float x) { give(1); }
";
        let mut kernels: Vec<_> = read(source).into_iter().collect();
        kernels.sort_by(|a, b| a.0.cmp(&b.0));
        let gives = vec![Kind::Map, Kind::Ptr, Kind::Ptr, Kind::U64, Kind::U32, Kind::F32];
        assert_eq!(kernels, [("give_float_8".to_string(), gives), ("plain".to_string(), vec![Kind::F32])]);
    }

    #[test]
    fn arguments_are_compared_by_number_and_kind() {
        use Kind::{F32, Ptr, U32, U64};
        let rows = SOURCES.iter().find(|source| source.name == "rows").expect("a source");
        let parameters = read(rows.text);
        let refusal = |given: &[Kind]| {
            let check = || check(&parameters, "scale", given.iter().copied());
            let payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).err()?;
            Some(payload.downcast_ref::<String>().expect("a message").clone())
        };
        assert_eq!(refusal(&[Ptr, F32, U64]), None);
        for (given, words) in [
            (&[Ptr, F32][..], "2: argument 2 is nothing, and it takes U64"),
            (&[Ptr, U64], "2: argument 1 is U64, and it takes F32"),
            (&[Ptr, F32, U32], "3: argument 2 is U32, and it takes U64"),
            (&[Ptr, F32, U64, U32], "4: argument 3 is U32, and it takes nothing"),
        ] {
            let expect = format!("kernel scale takes 3 arguments and is given {words}");
            assert_eq!(refusal(given), Some(expect));
        }
    }

    /// A launcher's words in quotes are names of kernels, except those of modules; `typed!` and its kin add endings.
    #[test]
    fn launchers_name_the_kernels_of_the_sources_and_all_of_them() {
        const TYPES: [&str; 3] = ["_float", "_bf16", "_f32"];
        let with = |endings: &[String]| -> Vec<String> {
            endings.iter().flat_map(|end| TYPES.map(|of| format!("{end}{of}"))).collect()
        };
        let none = vec![String::new()];
        let (one, two) = (with(&none), with(&with(&none)));
        // Of routers, by the number of experts.
        let experts = with(&["_4", "_16"].map(str::to_string));
        let endings = [none, one, two.clone(), with(&two), experts].concat();
        let kernels: HashSet<String> =
            SOURCES.iter().flat_map(|source| read(source.text).into_keys()).collect();
        let mut named = HashSet::new();
        for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap() {
            let Ok(text) = std::fs::read_to_string(file.unwrap().path()) else { continue };
            let code = text.split("#[cfg(test)]").next().unwrap();
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let code = lines.collect::<Vec<_>>().join("\n");
            if !code.contains(".launch(") {
                continue;
            }
            for name in code.split('"').skip(1).step_by(2) {
                if !name.starts_with(|c: char| c.is_lowercase()) || name.contains(|c| !is_word(c)) {
                    continue;
                }
                let of = endings.iter().map(|ending| format!("{name}{ending}"));
                let known: Vec<String> = of.filter(|name| kernels.contains(name)).collect();
                let is_module = SOURCES.iter().any(|source| source.name == name);
                assert!(is_module || !known.is_empty(), "no source has a kernel {name}");
                named.extend(known);
            }
        }
        let unnamed: Vec<_> = kernels.difference(&named).collect();
        assert!(unnamed.is_empty(), "no launcher names {unnamed:?}");
    }
}
