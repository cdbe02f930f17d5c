//! The outline of a Python file that is not run: its constants, functions, imports and calls. A name means its last
//! assignment before its use; a name assigned in one of several branches means nothing, unless a constant decides them.

use super::branches::{Arm, Branches};
use super::expression::{Argument, Call, Code, Value};
use super::tokens::{Kind, tokens};
use crate::launch::shell::word::VALUE_BYTES_MAX;
use crate::setting::number;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Most calls to read: a launch file has a few.
const CALLS_MAX: usize = 256;
/// Longest chain of names assigned to each other.
const DEPTH_MAX: usize = 16;
/// Most tokens and bytes of all expanded names in a file: each use of a list adds its length.
const COST_MAX: usize = 8 << 20;
/// Longest text of an expression to show.
const SOURCE_BYTES_MAX: usize = 1024;

struct Assignment {
    at: usize,
    value: Range<usize>,
    /// True in an `if` that no constant decides, a loop or a `try`.
    in_branch: bool,
}

pub(crate) struct Outline<'a> {
    code: Code<'a>,
    assignments: BTreeMap<String, Vec<Assignment>>,
    /// `NAME.KEY = value`.
    attributes: Vec<(String, String, Assignment)>,
    functions: BTreeSet<String>,
    /// Classes, the text of their bases, and their line.
    classes: BTreeMap<String, (String, usize)>,
    /// Classes and functions defined within others.
    nested: BTreeSet<String>,
    /// A name, and the module and name of its import.
    imports: BTreeMap<String, (String, String)>,
    /// Statements of arms that never run.
    dead: Vec<Range<usize>>,
    cost: Cell<usize>,
}

impl<'a> Outline<'a> {
    pub fn of(text: &'a str) -> Outline<'a> {
        let code = Code { text, tokens: tokens(text) };
        let mut outline = Outline {
            code,
            assignments: BTreeMap::new(),
            attributes: Vec::new(),
            functions: BTreeSet::new(),
            classes: BTreeMap::new(),
            nested: BTreeSet::new(),
            imports: BTreeMap::new(),
            dead: Vec::new(),
            cost: Cell::new(0),
        };
        let (mut start, mut branches) = (0, Branches::of(&outline.code));
        for at in 0..outline.code.tokens.len() {
            if outline.code.tokens[at].kind == Kind::Newline {
                if at > start {
                    outline.statement(start..at, &mut branches);
                }
                start = at + 1;
            }
        }
        outline
    }

    /// Reads one statement; `branches` are the blocks that may contain it.
    fn statement(&mut self, range: Range<usize>, branches: &mut Branches) {
        let code = &self.code;
        let first = code.tokens[range.start].start;
        let line_start = code.text[..first].rfind('\n').map_or(0, |newline| newline + 1);
        let indent = first - line_start;
        let before = branches.leave(indent);
        if branches.has(Arm::Never) {
            return self.dead.push(range);
        }
        let colon = code.find(&range, ":").unwrap_or(range.end);
        let body = (colon + 1).min(range.end)..range.end;
        match code.word(range.start) {
            word @ ("if" | "elif" | "else") => {
                // `if __name__ == "__main__":` is no branch: it holds whenever the file is run.
                if (range.start..range.end).take(4).any(|at| code.word(at) == "__name__") {
                    branches.enter(indent, Arm::Always);
                } else {
                    let holds = match word {
                        "else" => Some(true),
                        _ => branches.holds(code, range.start + 1..colon, |name| self.constant(name)),
                    };
                    let before = if word == "if" { Some(false) } else { before.flatten() };
                    branches.enter_arm(indent, before, holds);
                }
                self.simple(body, branches);
            }
            "for" | "while" | "try" | "except" => {
                branches.enter(indent, Arm::Maybe);
                self.simple(body, branches);
            }
            "with" => self.simple(body, branches),
            "case" if colon < range.end && !matches!(code.word(range.start + 1), ":" | "=") => {
                branches.enter(indent, Arm::Maybe);
                self.simple(body, branches);
            }
            "def" | "class" | "async" => {
                self.define(range, indent);
                branches.enter(indent, Arm::Scope);
            }
            _ => self.simple(range, branches),
        }
    }

    /// Keeps the name of a function or class.
    fn define(&mut self, range: Range<usize>, indent: usize) {
        let code = &self.code;
        let name = |at: usize| code.word(at).to_owned();
        match code.word(range.start) {
            "def" if indent == 0 => {
                self.functions.insert(name(range.start + 1));
            }
            "async" if indent == 0 && code.word(range.start + 1) == "def" => {
                self.functions.insert(name(range.start + 2));
            }
            "class" if indent == 0 => {
                let bases = code.source(&(range.start + 2..range.end));
                let place = (code.text[bases].into(), code.tokens[range.start].line);
                self.classes.insert(name(range.start + 1), place);
            }
            "def" | "class" => {
                self.nested.insert(name(range.start + 1));
            }
            _ => {}
        }
    }

    /// Reads a statement that opens no block.
    fn simple(&mut self, range: Range<usize>, branches: &Branches) {
        if range.is_empty() {
        } else if branches.has(Arm::Never) {
            self.dead.push(range);
        } else if self.code.word(range.start) == "from" {
            self.import(range);
        } else {
            self.assignment(range, branches.has(Arm::Maybe));
        }
    }

    /// Returns the value of a name that is assigned once up to here, for certain.
    fn constant(&self, name: &str) -> Option<Value> {
        match self.assignments.get(name)?.as_slice() {
            [one] if !one.in_branch && !self.imports.contains_key(name) => {
                Some(self.code.value(one.value.clone()))
            }
            _ => None,
        }
    }

    /// Returns true for a token in an arm that never runs.
    fn is_dead(&self, at: usize) -> bool {
        let next = self.dead.partition_point(|range| range.end <= at);
        self.dead.get(next).is_some_and(|range| range.contains(&at))
    }

    /// Reads `from module import name, name as other`.
    fn import(&mut self, range: Range<usize>) {
        let code = &self.code;
        let Some(at) = range.clone().find(|&at| code.word(at) == "import") else { return };
        let module: String = (range.start + 1..at).map(|at| code.word(at)).collect();
        let is_bracketed = code.word(at + 1) == "(" && code.word(range.end - 1) == ")";
        let names = if is_bracketed { at + 2..range.end - 1 } else { at + 1..range.end };
        for part in code.parts(names) {
            // `name`, or `name as other`.
            let (name, known_as) = (code.word(part.start), code.word(part.end - 1));
            self.imports.insert(known_as.into(), (module.clone(), name.into()));
        }
    }

    /// Reads `NAME = value`, `NAME: type = value`, `NAME, other = value`.
    fn assignment(&mut self, range: Range<usize>, in_branch: bool) {
        let Some(sign) = self.code.find(&range, "=") else { return };
        let left = range.start..sign;
        let typed = self.code.find(&left, ":").unwrap_or(left.end);
        let (names, whole) = (self.code.parts(left.start..typed), sign + 1..range.end);
        // `A, B = 1, 2`; in `A, B = f()` all names mean the call.
        let values = if names.len() > 1 { self.code.items(whole.clone()) } else { Vec::new() };
        for (index, part) in names.iter().enumerate() {
            if part.len() == 1 && self.code.is_name(part.start) {
                let own = values.get(index).filter(|_| values.len() == names.len()).unwrap_or(&whole);
                let one = Assignment { at: range.start, value: own.clone(), in_branch };
                self.assignments.entry(self.code.word(part.start).into()).or_default().push(one);
            }
            if let [object, dot, key] = [0, 1, 2].map(|index| self.code.word(part.start + index))
                && part.len() == 3
                && dot == "."
            {
                let one = Assignment { at: range.start, value: whole.clone(), in_branch };
                self.attributes.push((object.into(), key.into(), one));
            }
        }
    }

    /// Returns settings from `NAME.KEY = value` for objects accepted by `is_it`; those in a branch are unknown.
    pub fn attributes(&self, is_it: impl Fn(&str, &Value) -> bool) -> Vec<(Argument, usize, bool)> {
        let one = |(object, key, set): &(String, String, Assignment)| {
            let (meaning, _) = self.meaning(&Value::Name(object.clone()), set.at);
            is_it(object, &meaning).then(|| {
                let (value, source) = (self.code.value(set.value.clone()), self.code.source(&set.value));
                let argument = Argument { name: Some(key.clone()), value, source, line: self.line(set.at) };
                (argument, set.at, set.in_branch)
            })
        };
        self.attributes.iter().take(CALLS_MAX).filter_map(one).collect()
    }

    /// Returns the calls whose last name is `name`, in the order of the file.
    pub fn calls(&self, name: &str) -> Vec<Call> {
        let is_call = |at: &usize| {
            self.code.is_name(*at) && self.code.word(*at) == name && self.code.word(at + 1) == "("
        };
        let before = |at: usize| at.checked_sub(1).map_or("", |before| self.code.word(before));
        let defines = |at: usize| matches!(before(at), "def" | "class");
        let found =
            (0..self.code.tokens.len()).filter(is_call).filter(|&at| !defines(at) && !self.is_dead(at));
        let found = found.take(CALLS_MAX);
        found.map(|at| self.code.call(self.whole_name(at), at, at + 1)).collect()
    }

    /// Returns the first use of a name that `is_it` accepts, and its token: a call of it or of an attribute of it.
    pub fn find_used(&self, is_it: impl Fn(&str) -> bool) -> Option<(&str, usize)> {
        let names =
            (0..self.code.tokens.len()).filter(|&at| self.code.is_name(at) && is_it(self.code.word(at)));
        let is_used = |at: &usize| matches!(self.code.word(at + 1), "(" | ".") && !self.is_dead(*at);
        names.filter(is_used).map(|at| (self.code.word(at), at)).next()
    }

    /// Returns the token of a text that names a column: `row["image"]`, `{"image": x}`.
    pub fn column(&self, name: &str) -> Option<usize> {
        let is_it = |at: &usize| match &self.code.tokens[*at].kind {
            Kind::Text(text, false) => {
                let (before, after) = (self.code.word(at.wrapping_sub(1)), self.code.word(at + 1));
                text == name && (after == ":" && matches!(before, "{" | ",") || before == "[" && after == "]")
            }
            _ => false,
        };
        (0..self.code.tokens.len()).filter(is_it).find(|&at| !self.is_dead(at))
    }

    /// Returns the line of a token, from 1.
    pub fn line(&self, at: usize) -> usize {
        self.code.tokens.get(at).map_or(0, |token| token.line)
    }

    /// Returns `module.NAME`, whose last part is at `at`.
    fn whole_name(&self, at: usize) -> String {
        let mut start = at;
        while start >= 2
            && self.code.word(start - 1) == "."
            && self.code.is_name(start - 2)
            && at - start < 16
        {
            start -= 2;
        }
        (start..=at).map(|at| self.code.word(at)).collect()
    }

    /// Returns an expression as written, less the texts in the body of a `lambda`, which may be passwords.
    pub fn source(&self, range: &Range<usize>) -> String {
        let (mut text, mut from, mut in_lambda) = (String::new(), range.start, false);
        let first = self.code.tokens.partition_point(|token| token.start < range.start);
        for token in self.code.tokens[first..].iter().take_while(|token| token.end <= range.end) {
            in_lambda |= token.kind == Kind::Name && &self.code.text[token.start..token.end] == "lambda";
            if in_lambda && matches!(token.kind, Kind::Text(..)) {
                text += &self.code.text[from..token.start];
                text += "'...'";
                from = token.end;
            }
            if text.len() > SOURCE_BYTES_MAX {
                break;
            }
        }
        text += &self.code.text[from..range.end];
        let end = (0..=SOURCE_BYTES_MAX.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
        text[..end.unwrap_or(0)].split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Returns the last assignment to `name` before the token `at`, or its only one, with that assignment's token.
    fn assigned(&self, name: &str, at: usize) -> Option<(Value, usize)> {
        let all = self.assignments.get(name)?;
        let index = match all.partition_point(|one| one.at < at) {
            0 if all.len() > 1 => return None,
            before => before.saturating_sub(1),
        };
        if (all[index].in_branch && all.len() > 1) || !self.affords(all[index].value.len()) {
            return None;
        }
        Some((self.code.value(all[index].value.clone()), all[index].at))
    }

    /// Counts the cost of expanding names; false once it is too much.
    fn affords(&self, more: usize) -> bool {
        self.cost.set(self.cost.get().saturating_add(more + 1));
        self.cost.get() <= COST_MAX
    }

    pub fn is_function(&self, name: &str) -> bool {
        self.functions.contains(name)
    }

    pub fn is_class(&self, name: &str) -> bool {
        self.classes.contains_key(name)
    }

    /// Returns true for a class or function defined within another one, and not also at the top level.
    pub fn is_nested(&self, name: &str) -> bool {
        self.nested.contains(name) && !self.is_class(name) && !self.is_function(name)
    }

    /// Returns the class in the file that derives from one whose name ends in `ending`.
    pub fn derives_from(&self, ending: &str) -> Option<(&str, usize)> {
        let is_it = |bases: &str| {
            bases.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word.ends_with(ending))
        };
        let (name, (_, line)) = self.classes.iter().find(|(_, (bases, _))| is_it(bases))?;
        Some((name.as_str(), *line))
    }

    /// Returns the file's names for imports from a package or its modules.
    pub fn names_of_package<'b>(&'b self, package: &'b str) -> impl Iterator<Item = &'b str> {
        let is_in = move |module: &str| {
            module.strip_prefix(package).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.imports.iter().filter(move |(_, (module, _))| is_in(module)).map(|(name, _)| name.as_str())
    }

    /// Returns the text of each item of a list or tuple in the bytes of `range`.
    pub fn items(&self, range: &Range<usize>) -> Vec<String> {
        let before = |end: usize| self.code.tokens.partition_point(|token| token.start < end);
        let parts = self.code.items(before(range.start)..before(range.end));
        parts.iter().map(|part| self.source(&self.code.source(part))).collect()
    }

    /// Returns the module and the original name of an imported name.
    pub fn import_of(&self, name: &str) -> Option<(&str, &str)> {
        self.imports.get(name).map(|(module, name)| (module.as_str(), name.as_str()))
    }

    /// Resolves names to a value that is no name of this file, and to the token before which its own names count.
    pub fn meaning(&self, value: &Value, at: usize) -> (Value, usize) {
        let (mut value, mut at) = (value.clone(), at);
        for _ in 0..DEPTH_MAX {
            let Value::Name(name) = &value else { break };
            let Some((next, before)) = self.assigned(name, at) else { break };
            (value, at) = (next, before);
        }
        (value, at)
    }

    /// Resolves a value to the call that made it: `load_dataset(..)["train"].map(f)` to `load_dataset(..)`.
    pub fn origin(&self, value: &Value, at: usize) -> (Value, usize) {
        let (value, at, _) = self.origin_with_steps(value, at);
        (value, at)
    }

    /// Resolves a value to the call that made it. Returns its elements and methods too, last first: `.map`, `[train]`.
    pub fn origin_with_steps(&self, value: &Value, at: usize) -> (Value, usize, Vec<String>) {
        let (mut value, mut at, mut steps) = (value.clone(), at, Vec::new());
        for _ in 0..DEPTH_MAX {
            (value, at) = self.meaning(&value, at);
            let object = |name: &str| {
                let (object, method) = name.split_once('.')?;
                let is_known = self.assignments.contains_key(object);
                is_known.then(|| (Value::Name(object.into()), format!(".{method}")))
            };
            let found = match &value {
                Value::Of(inner, step) => Some(((**inner).clone(), step.clone().unwrap_or_default())),
                Value::Call(Call { name, .. }) | Value::Name(name) => object(name),
                _ => None,
            };
            let Some((inner, step)) = found else { return (value, at, steps) };
            steps.extend((!step.is_empty()).then_some(step));
            value = inner;
        }
        (Value::Other, at, steps)
    }

    /// Returns the text of a value whose parts are all known; a list is `[a, b]`.
    pub fn literal(&self, value: &Value, at: usize) -> Option<String> {
        self.literal_within(value, at, 0).filter(|text| text.len() <= VALUE_BYTES_MAX)
    }

    fn literal_within(&self, value: &Value, at: usize, depth: usize) -> Option<String> {
        if depth > DEPTH_MAX {
            return None;
        }
        let text = self.text_of(value, at, depth)?;
        self.affords(text.len()).then_some(text)
    }

    fn text_of(&self, value: &Value, at: usize, depth: usize) -> Option<String> {
        let inner = |value: &Value| self.literal_within(value, at, depth + 1);
        match value {
            Value::Text(text) | Value::Number(text) | Value::Word(text) => Some(text.clone()),
            Value::Name(name) => match self.assigned(name, at) {
                Some((value, before)) => self.literal_within(&value, before, depth + 1),
                // A dtype.
                None => name.strip_prefix("torch.").map(str::to_string),
            },
            Value::Format(text) => self.filled(text, at, depth),
            Value::List(items) => {
                let items: Option<Vec<String>> = items.iter().map(inner).collect();
                Some(format!(
                    "[{}]",
                    items?.iter().map(|item| quoted_item(item)).collect::<Vec<_>>().join(", ")
                ))
            }
            Value::Sum(operator, left, right) => computed(operator, &inner(left)?, &inner(right)?),
            Value::Call(call) => {
                let first = |index: usize| call.positional(index).map(|one| &one.value);
                match call.name.as_str() {
                    "str" | "int" | "float" | "Path" | "pathlib.Path" | "ListConfig" => inner(first(0)?),
                    "os.path.join" => {
                        let parts: Option<Vec<String>> =
                            call.arguments.iter().map(|one| inner(&one.value)).collect();
                        Some(parts?.join("/"))
                    }
                    // Like `${NAME:-default}` of a shell.
                    "os.getenv" | "os.environ.get" => inner(first(1)?),
                    _ => None,
                }
            }
            Value::Dict(_) | Value::Of(..) | Value::Other => None,
        }
    }

    /// Expands `f"out/{NAME}"` with the names of the file.
    fn filled(&self, text: &str, at: usize, depth: usize) -> Option<String> {
        let (mut filled, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}')?;
            let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !is_name || filled.len() > VALUE_BYTES_MAX {
                return None;
            }
            filled += before;
            filled += &self.literal_within(&Value::Name(name.into()), at, depth + 1)?;
            rest = after;
        }
        Some(filled + rest)
    }
}

/// Quotes an item for `setting::list`.
fn quoted_item(item: &str) -> String {
    let is_plain = !item.contains([',', '[', ']', '(', ')', '{', '}', '\'', '"']) && item.trim() == item;
    if is_plain { item.into() } else { format!("\"{}\"", item.replace('"', "'")) }
}

/// Adds two numbers, or joins two texts.
fn computed(operator: &str, left: &str, right: &str) -> Option<String> {
    let (Some(a), Some(b)) = (number(left), number(right)) else {
        let is_short = left.len() + right.len() <= VALUE_BYTES_MAX;
        return (operator == "+" && is_short).then(|| format!("{left}{right}"));
    };
    let value = match operator {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "/" => a / b,
        "//" => (a / b).floor(),
        "%" => a - b * (a / b).floor(),
        _ => a.powf(b),
    };
    value.is_finite().then(|| format!("{value}"))
}
