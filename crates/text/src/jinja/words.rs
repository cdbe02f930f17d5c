//! Changes of text that filters and methods share: case, white space, parts, lines, replacement.

use super::arguments::Args;
use super::meter::{Charge, Meter, Result};
use super::value::{Buffer, Items, Text, Value};

/// Most bytes that a character's other case takes per byte: `İ` and `ΐ`.
const CASE_GROWTH: usize = 3;

/// Returns a text as `change` makes it; the change makes it at most `CASE_GROWTH` times as long.
pub(super) fn changed<'r>(
    meter: &'r Meter,
    text: &str,
    change: impl Fn(&str) -> String,
) -> Result<Value<'r>> {
    let mut charge = Charge::none(meter);
    charge.grow(text.len().saturating_mul(CASE_GROWTH))?;
    Buffer::text(meter, &change(text))
}

pub(super) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    first + &chars.as_str().to_lowercase()
}

/// Capitalizes every character after one for which `separates` holds; the rest is lower case.
pub(super) fn titled(text: &str, separates: fn(char) -> bool) -> String {
    let (mut out, mut begins) = (String::with_capacity(text.len()), true);
    for c in text.chars() {
        if begins && !separates(c) {
            out.extend(c.to_uppercase())
        } else {
            out.extend(c.to_lowercase())
        }
        begins = separates(c);
    }
    out
}

/// Which ends of a text are stripped.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Ends {
    Both,
    Start,
    Stop,
}

/// Evaluates Python's `strip`, of white space or of the characters in `chars`.
pub(super) fn stripped<'r>(
    meter: &'r Meter,
    text: &Text<'r>,
    chars: Option<&Text>,
    ends: Ends,
) -> Result<Value<'r>> {
    let whole = text.as_str();
    let set = chars.map(Text::as_str);
    meter.work(whole.len().saturating_mul(1 + set.map_or(0, str::len) / 8))?;
    let goes = |c: char| set.map_or(c.is_whitespace(), |set| set.contains(c));
    let start = if ends == Ends::Stop { 0 } else { whole.len() - whole.trim_start_matches(goes).len() };
    let stop = if ends == Ends::Start { whole.len() } else { whole.trim_end_matches(goes).len() };
    text.part(meter, start..stop.max(start))
}

/// Evaluates Python's `replace`, at most `count` times.
pub(super) fn replaced<'r>(
    meter: &'r Meter,
    text: &str,
    [old, new]: [&str; 2],
    count: Option<i64>,
) -> Result<Value<'r>> {
    meter.work(text.len())?;
    let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let (mut out, mut from) = (Buffer::new(meter), 0);
    for (at, _) in text.match_indices(old).take(count) {
        out.push(&text[from..at])?;
        out.push(new)?;
        from = at + old.len();
    }
    out.push(&text[from..])?;
    out.finish()
}

/// Evaluates Python's `split` or, from the end, `rsplit`.
pub(super) fn split<'r>(args: &mut Args<'r>, text: &Text<'r>, from_end: bool) -> Result<Value<'r>> {
    let meter = args.meter;
    let separator = args.text("sep")?;
    let most = args.int("maxsplit")?.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    args.end()?;
    let whole = text.as_str();
    meter.work(whole.len())?;
    let mut charge = Charge::none(meter);
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
    let mut add = |range| {
        charge.grow(size_of::<std::ops::Range<usize>>())?;
        ranges.push(range);
        Ok(())
    };
    match &separator {
        Some(separator) if separator.as_str().is_empty() => return args.fault("an empty separator"),
        Some(separator) => by_separator(whole, separator.as_str(), most, from_end, &mut add)?,
        None => by_space(whole, most, from_end, &mut add)?,
    }
    if from_end {
        ranges.reverse();
    }
    let mut items = Items::new(meter);
    ranges.into_iter().try_for_each(|range| items.push(text.part(meter, range)?))?;
    items.list()
}

type Add<'a> = dyn FnMut(std::ops::Range<usize>) -> Result<()> + 'a;

fn by_separator(text: &str, separator: &str, most: usize, from_end: bool, add: &mut Add) -> Result<()> {
    let (mut start, mut end) = (0, text.len());
    for _ in 0..most {
        let rest = &text[start..end];
        let found = if from_end { rest.rfind(separator) } else { rest.find(separator) };
        let Some(at) = found.map(|at| start + at) else { break };
        if from_end {
            add(at + separator.len()..end)?;
            end = at;
        } else {
            add(start..at)?;
            start = at + separator.len();
        }
    }
    add(start..end)
}

/// Splits at runs of white space; none at the ends gives an empty part.
fn by_space(text: &str, most: usize, from_end: bool, add: &mut Add) -> Result<()> {
    let (mut start, mut end) = (0, text.len());
    for count in 0.. {
        let rest = &text[start..end];
        let rest = if from_end { rest.trim_end() } else { rest.trim_start() };
        (start, end) = if from_end { (start, start + rest.len()) } else { (end - rest.len(), end) };
        if rest.is_empty() {
            break;
        }
        let cut = match (count == most, from_end) {
            (true, true) => start,
            (true, false) => end,
            (false, true) => {
                start + rest.rfind(char::is_whitespace).map_or(0, |at| at + char_length(rest, at))
            }
            (false, false) => start + rest.find(char::is_whitespace).unwrap_or(rest.len()),
        };
        if from_end {
            add(cut..end)?;
            end = cut;
        } else {
            add(start..cut)?;
            start = cut;
        }
    }
    Ok(())
}

fn char_length(text: &str, at: usize) -> usize {
    text[at..].chars().next().map_or(0, char::len_utf8)
}

/// Splits a text into lines as Python's `splitlines` does: the range of each without its end, and the end's length.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (std::ops::Range<usize>, usize)> {
    const ENDS: [char; 10] =
        ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = &text[start..];
        if rest.is_empty() {
            return None;
        }
        let length = rest.find(ENDS).unwrap_or(rest.len());
        let end = if rest[length..].starts_with("\r\n") {
            2
        } else {
            rest[length..].chars().next().map_or(0, char::len_utf8)
        };
        let range = start..start + length;
        start += length + end;
        Some((range, end))
    })
}
