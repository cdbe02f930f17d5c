//! YAML as people write it: values with their lines, read by the crate `saphyr-parser`. An alias makes a file stand for
//! more than it holds, and what a tag means every reader says for itself: both are refused. What a word without
//! quotes is, a number or a text, its reader decides.

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

/// Deepest nesting: a container in a pod of a JobSet is at 16.
const DEPTH_MAX: usize = 64;
/// Most values of a file: 16 for each of the 4,096 keys that a launch file may have.
const VALUES_MAX: usize = 1 << 16;

/// A value of YAML and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Yaml<'t> {
    /// Its first line, from 1.
    pub line: usize,
    /// A collection in brackets as the file has it; `None` for other values.
    pub in_brackets: Option<&'t str>,
    /// The value itself.
    pub value: YamlValue<'t>,
}

/// Says what a value of YAML is.
#[derive(Clone, Debug, PartialEq)]
pub enum YamlValue<'t> {
    /// A text, number, truth value or nothing.
    Word {
        /// Its text, without quotes and with its escapes replaced; empty for nothing.
        text: String,
        /// True if it has no quotes, so that it may be something else than a text.
        is_plain: bool,
    },
    /// The items of a list.
    List(Vec<Yaml<'t>>),
    /// The keys and values of a map in the order of the file; a key may occur twice.
    Map(Vec<(Yaml<'t>, Yaml<'t>)>),
}

/// A line that is not YAML, or not read, and why; without the words of the line, which may be secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlFault {
    /// The line, from 1.
    pub line: usize,
    /// The fault, in words for a message.
    pub what: String,
}

/// Reads the documents of a file, which `---` separates; those without a value are left out.
///
/// Errors: the first line that is not YAML, or that has an anchor, an alias or a tag, nests more than 64 deep, or is
/// past 65,536 values.
pub fn yaml_documents(text: &str) -> Result<Vec<Yaml<'_>>, YamlFault> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader =
        Reader { events: Parser::new_from_str(text), text, starts: None, left: VALUES_MAX, depth: 0 };
    let mut documents = Vec::new();
    while let Some((event, span)) = reader.next()? {
        if matches!(event, Event::DocumentStart(_)) {
            let (event, span) = reader.next()?.unwrap_or((Event::StreamEnd, span));
            let document = reader.value(event, span)?;
            let is_nothing =
                matches!(&document.value, YamlValue::Word { text, is_plain: true } if text.is_empty());
            documents.extend((!is_nothing).then_some(document));
        }
    }
    Ok(documents)
}

struct Reader<'t> {
    events: Parser<'t, saphyr_parser::StrInput<'t>>,
    text: &'t str,
    /// The byte at which each character starts, and the length: the parser counts characters. Made when first needed.
    starts: Option<Vec<u32>>,
    /// How many values there may be yet.
    left: usize,
    depth: usize,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<Option<(Event<'t>, Span)>, YamlFault> {
        self.events.next_event().transpose().map_err(|error| fault(error.marker().line(), error.info()))
    }

    /// Returns the value that begins with `event`.
    fn value(&mut self, event: Event<'t>, span: Span) -> Result<Yaml<'t>, YamlFault> {
        let line = span.start.line();
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            fault(line, &format!("more than {VALUES_MAX} values: a configuration has no such number"))
        })?;
        let (anchor, tag) = match &event {
            Event::Scalar(_, _, anchor, tag) => (*anchor, tag),
            Event::SequenceStart(anchor, tag) | Event::MappingStart(anchor, tag) => (*anchor, tag),
            Event::Alias(_) => return Err(fault(line, "an alias is not read: write the value out")),
            _ => return Err(fault(line, "a value is missing")),
        };
        if anchor != 0 {
            return Err(fault(line, "anchors are not read: write each value out"));
        }
        if tag.is_some() {
            return Err(fault(line, "tags are not read: write the value without one"));
        }
        if self.depth == DEPTH_MAX {
            return Err(fault(line, &format!("nested more than {DEPTH_MAX} deep")));
        }
        self.depth += 1;
        let (value, end) = match event {
            Event::Scalar(text, style, ..) => {
                let is_plain = style == ScalarStyle::Plain;
                (YamlValue::Word { text: text.into_owned(), is_plain }, span)
            }
            Event::SequenceStart(..) => self.list()?,
            _ => self.map()?,
        };
        self.depth -= 1;
        let in_brackets = match value {
            YamlValue::Word { .. } => None,
            _ => Some(self.written(span, end)).filter(|text| text.starts_with(['[', '{'])),
        };
        Ok(Yaml { line, in_brackets, value })
    }

    fn list(&mut self) -> Result<(YamlValue<'t>, Span), YamlFault> {
        let mut items = Vec::new();
        loop {
            match self.part()? {
                (Event::SequenceEnd, span) => return Ok((YamlValue::List(items), span)),
                (event, span) => items.push(self.value(event, span)?),
            }
        }
    }

    fn map(&mut self) -> Result<(YamlValue<'t>, Span), YamlFault> {
        let mut entries = Vec::new();
        loop {
            let (event, span) = self.part()?;
            if event == Event::MappingEnd {
                return Ok((YamlValue::Map(entries), span));
            }
            let key = self.value(event, span)?;
            let (event, span) = self.part()?;
            entries.push((key, self.value(event, span)?));
        }
    }

    /// Returns the next event of a collection, which ends before its file does.
    fn part(&mut self) -> Result<(Event<'t>, Span), YamlFault> {
        self.next()?.ok_or_else(|| fault(1 + self.text.lines().count(), "the file ends within a value"))
    }

    /// Returns the text from the beginning of one span to the end of another.
    fn written(&mut self, from: Span, to: Span) -> &'t str {
        let text = self.text;
        let starts = self.starts.get_or_insert_with(|| {
            let starts = text.char_indices().map(|(at, _)| at as u32);
            starts.chain([text.len() as u32]).collect()
        });
        let byte = |index: usize| starts[index.min(starts.len() - 1)] as usize;
        text.get(byte(from.start.index())..byte(to.end.index())).unwrap_or_default()
    }
}

fn fault(line: usize, what: &str) -> YamlFault {
    YamlFault { line: line.max(1), what: crate::visible(what).into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a value as JSON, plain words without quotes.
    fn shown(value: &Yaml<'_>) -> String {
        match &value.value {
            YamlValue::Word { text, is_plain: true } => text.clone(),
            YamlValue::Word { text, .. } => format!("{text:?}"),
            YamlValue::List(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(",")),
            YamlValue::Map(entries) => {
                let entry = |(key, value): &(Yaml<'_>, Yaml<'_>)| format!("{}:{}", shown(key), shown(value));
                format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(","))
            }
        }
    }

    #[test]
    fn values_and_their_lines() {
        let text = "\u{feff}# a file\na: 1   # one\nb:\n- x\n- 'y: \"z\"'\nc: {d: [e, \"f\\n\"],\n   g: ä}\nh: |\n  k: 1\n  l\n\
                    m: n\n  o\np:\nq: !q\n";
        let text = text.replace("!q", "''");
        let documents = yaml_documents(&text).expect("YAML");
        let [document] = &documents[..] else { panic!("{documents:?}") };
        assert_eq!(
            shown(document),
            r#"{a:1,b:[x,"y: \"z\""],c:{d:[e,"f\n"],g:ä},h:"k: 1\nl\n",m:n o,p:,q:""}"#
        );
        let YamlValue::Map(entries) = &document.value else { panic!() };
        let lines: Vec<usize> = entries.iter().map(|(key, _)| key.line).collect();
        assert_eq!(lines, [2, 3, 6, 8, 11, 13, 14]);
        let brackets: Vec<Option<&str>> = entries.iter().map(|(_, value)| value.in_brackets).collect();
        assert_eq!(brackets[..3], [None, None, Some("{d: [e, \"f\\n\"],\n   g: ä}")]);
        let YamlValue::Map(inner) = &entries[2].1.value else { panic!() };
        assert_eq!(inner[0].1.in_brackets, Some("[e, \"f\\n\"]"));
        let all = yaml_documents("# none\n---\na: 1\n---\n---\n- b\n").expect("YAML");
        assert_eq!(all.iter().map(shown).collect::<String>(), "{a:1}[b]");
        assert!(yaml_documents("# nothing\n").expect("YAML").is_empty());
    }

    #[test]
    fn a_fault_is_named_by_its_line_without_its_words() {
        let cases = [
            ("a: 1\nb: &c 2\n", 2, "anchors"),
            ("a: 1\nb: &c\n  d: e\n", 2, "anchors"),
            ("a: *secret\n", 1, "anchor"),
            ("a: !!int \"3\"\n", 1, "tags"),
            ("a: 1\nb: [2\nc: 3\n", 3, ""),
            ("a: 1\n\tsecret: 2\n", 1, "tab"),
            ("a: 1\n  secret: 2\n", 2, ""),
            ("a: 'secret\n", 1, "quoted"),
            ("a: 1\n- secret\n", 2, ""),
        ];
        let other = cases.iter().filter_map(|(text, line, words)| {
            let fault = yaml_documents(text).expect_err(text);
            let is_it = fault.line == *line && fault.what.contains(words) && !fault.what.contains("secret");
            (!is_it).then(|| format!("{text:?}: {fault:?}"))
        });
        assert_eq!(other.collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn depth_and_number_of_values_are_bounded() {
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(yaml_documents(&deep(DEPTH_MAX)).is_ok());
        let fault = yaml_documents(&deep(DEPTH_MAX + 1)).expect_err("too deep");
        assert!(fault.what.contains("64 deep"), "{fault:?}");
        // The parser reads ahead, and has a limit of its own.
        assert!(yaml_documents(&"[".repeat(1 << 20)).is_err());
        let many = |count: usize| "- a\n".repeat(count);
        assert!(yaml_documents(&many(VALUES_MAX - 1)).is_ok());
        let fault = yaml_documents(&many(VALUES_MAX)).expect_err("too many");
        assert!(fault.line == VALUES_MAX && fault.what.contains("65536 values"), "{fault:?}");
    }

    /// Inputs on which earlier readers of YAML did not end.
    #[test]
    fn odd_files_end() {
        for text in [
            "{---",
            "[...",
            "? ",
            "- - - ",
            "a: [\n---\n",
            "%TAG",
            "\"\\",
            "&",
            "*",
            "!<",
            "{a: b",
            "\u{0}",
            "a:\r\n\t- b",
        ] {
            let _ = yaml_documents(text);
        }
    }
}
