//! Values with their origins: the form that all layers are read into, before the table of types.

use super::provenance::{Origin, Positions, Source};
use plimsoll_base::{Error, Result};
use toml::de::{DeTable, DeValue};

/// A value and its origin.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub value: Value,
    pub origin: Origin,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    DateTime(String),
    Array(Vec<Node>),
    Table(Table),
}

/// Keys in the order of the file. Tables of run files have a few dozen keys, so a scan is fast enough.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table(pub Vec<(String, Node)>);

impl Table {
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    pub fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        self.0.iter_mut().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    pub fn remove(&mut self, key: &str) -> Option<Node> {
        let at = self.0.iter().position(|(name, _)| name == key)?;
        Some(self.0.remove(at).1)
    }

    pub fn insert(&mut self, key: &str, node: Node) {
        match self.get_mut(key) {
            Some(old) => *old = node,
            None => self.0.push((key.to_string(), node)),
        }
    }

    /// Returns the value at `rollout.group_size`.
    pub fn at(&self, path: &str) -> Option<&Node> {
        let (head, rest) = path.split_once('.').map_or((path, None), |(head, rest)| (head, Some(rest)));
        let node = self.get(head)?;
        match (rest, &node.value) {
            (None, _) => Some(node),
            (Some(rest), Value::Table(table)) => table.at(rest),
            _ => None,
        }
    }

    /// Returns the table `name`, made if it is missing; none if something else has that name.
    pub(crate) fn table_mut(&mut self, name: &str, origin: &Origin) -> Option<&mut Table> {
        if self.get(name).is_none() {
            self.insert(name, Node { value: Value::Table(Table::default()), origin: origin.clone() });
        }
        match &mut self.get_mut(name)?.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Visits every leaf with its dotted path; elements of arrays of tables by index.
    pub fn leaves(&self, prefix: &str, visit: &mut impl FnMut(&str, &Node)) {
        for (key, node) in &self.0 {
            let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            node.leaves(&path, visit);
        }
    }
}

impl Node {
    fn leaves(&self, path: &str, visit: &mut impl FnMut(&str, &Node)) {
        match &self.value {
            Value::Table(table) => table.leaves(path, visit),
            Value::Array(items) if items.iter().any(|item| matches!(item.value, Value::Table(_))) => {
                for (index, item) in items.iter().enumerate() {
                    item.leaves(&format!("{path}.{index}"), visit);
                }
            }
            _ => visit(path, self),
        }
    }

    /// Names the type of the value.
    pub fn kind(&self) -> &'static str {
        match self.value {
            Value::Text(_) => "a string",
            Value::Integer(_) => "a whole number",
            Value::Float(_) => "a number",
            Value::Boolean(_) => "true or false",
            Value::DateTime(_) => "a date",
            Value::Array(_) => "a list",
            Value::Table(_) => "a table",
        }
    }
}

/// Visits every key with its value; elements of table lists by index.
pub(super) fn flatten(path: &str, value: &toml::Value, visit: &mut impl FnMut(&str, &toml::Value)) {
    let join = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
    match value {
        toml::Value::Table(table) => table.iter().for_each(|(key, value)| flatten(&join(key), value, visit)),
        toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, item)| flatten(&join(&index.to_string()), item, visit));
        }
        _ => visit(path, value),
    }
}

/// Reads a whole run file; a syntax error is `run-file-syntax` with its position.
pub(super) fn parse_file(source: &Source) -> Result<Table> {
    let table = DeTable::parse(&source.text).map_err(|err| {
        let (line, column) = Positions::of(&source.text).at(err.span().map_or(0, |span| span.start));
        let words = err.message().trim().replace('\n', "; ");
        source
            .error("run-file-syntax", &Origin::File { line, column }, &words)
            .hint("run files are TOML: strings in double quotes, tables as [section], lists as [1, 2]")
    })?;
    let positions = Positions::of(&source.text);
    let origin_of = |offset: usize| {
        let (line, column) = positions.at(offset);
        Origin::File { line, column }
    };
    Ok(convert_table(table.get_ref(), &origin_of))
}

/// Reads one value of `--set` or the environment: TOML if it parses, otherwise a string.
pub(super) fn parse_value(text: &str, origin: &Origin) -> Node {
    let document = format!("value = {text}");
    if let Ok(table) = DeTable::parse(&document) {
        // A text with a line break could hold further keys and is no value.
        if table.get_ref().len() == 1 {
            let mut table = convert_table(table.get_ref(), &|_| origin.clone());
            return table.remove("value").expect("the document has this one key");
        }
    }
    Node { value: Value::Text(text.to_string()), origin: origin.clone() }
}

fn convert_table(table: &DeTable<'_>, origin_of: &dyn Fn(usize) -> Origin) -> Table {
    let entry = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        let name: &std::borrow::Cow<'_, str> = key.get_ref();
        (
            name.to_string(),
            Node { value: convert(value.get_ref(), origin_of), origin: origin_of(key.span().start) },
        )
    };
    Table(table.iter().map(entry).collect())
}

fn convert(value: &DeValue<'_>, origin_of: &dyn Fn(usize) -> Origin) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Integer(number),
            // Beyond 64 bits: kept as a float, so that the message is about its range.
            Err(_) => Value::Float(number.as_str().parse().unwrap_or(f64::INFINITY)),
        },
        DeValue::Float(number) => Value::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(value) => Value::Boolean(*value),
        DeValue::Datetime(value) => Value::DateTime(value.to_string()),
        DeValue::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| Node {
                    value: convert(item.get_ref(), origin_of),
                    origin: origin_of(item.span().start),
                })
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(convert_table(table, origin_of)),
    }
}

/// Puts `node` at `path`; arrays of tables by index, where the index one past the end appends.
pub(super) fn set_path(root: &mut Table, path: &[&str], node: Node, source: &Source) -> Result<()> {
    let [head, rest @ ..] = path else { return Err(bad_path(source, &node.origin, "the key is empty")) };
    if rest.is_empty() {
        merge(root, head, node);
        return Ok(());
    }
    let origin = node.origin.clone();
    if rest[0].bytes().all(|byte| byte.is_ascii_digit()) && !rest[0].is_empty() {
        return set_element(root, head, rest, node, source);
    }
    match root.table_mut(head, &origin) {
        Some(table) => set_path(table, rest, node, source),
        None => Err(bad_path(source, &origin, &format!("`{head}` is not a table"))),
    }
}

/// Merges a table key by key, so that `--set rollout={group_size=4}` leaves the other keys alone.
fn merge(root: &mut Table, key: &str, node: Node) {
    match (node.value, root.get_mut(key).map(|old| &mut old.value)) {
        (Value::Table(new), Some(Value::Table(old))) => {
            new.0.into_iter().for_each(|(name, value)| merge(old, &name, value));
        }
        (value, _) => root.insert(key, Node { value, origin: node.origin }),
    }
}

fn set_element(root: &mut Table, head: &str, rest: &[&str], node: Node, source: &Source) -> Result<()> {
    let origin = node.origin.clone();
    if root.get(head).is_none() {
        root.insert(head, Node { value: Value::Array(Vec::new()), origin: origin.clone() });
    }
    let Some(Node { value: Value::Array(items), .. }) = root.get_mut(head) else {
        return Err(bad_path(source, &origin, &format!("`{head}` is not a list")));
    };
    let index: usize = rest[0].parse().unwrap_or(usize::MAX);
    if index > items.len() {
        let what = format!("`{head}.{}` is beyond the end: `{head}` has {} elements", rest[0], items.len());
        return Err(bad_path(source, &origin, &what).hint(format!("`{head}.{}` appends one", items.len())));
    }
    if rest.len() == 1 {
        if index == items.len() {
            items.push(node)
        } else {
            items[index] = node
        }
        return Ok(());
    }
    if index == items.len() {
        items.push(Node { value: Value::Table(Table::default()), origin: origin.clone() });
    }
    match &mut items[index].value {
        Value::Table(table) => set_path(table, &rest[1..], node, source),
        _ => Err(bad_path(source, &origin, &format!("`{head}.{index}` is not a table"))),
    }
}

fn bad_path(source: &Source, origin: &Origin, message: &str) -> Error {
    source.error("bad-set", origin, message).hint("write section.key=value, for example rollout.group_size=4")
}
