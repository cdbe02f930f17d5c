//! Names a failure that would be `unknown`: its kind, from the most suspicious line, and its place in a traceback.
//!
//! Classes of level `general` see only that line: they cost nothing while reading, and never compete with a cause.

use super::event::Moment;
use super::intents::{intents, may_refine, meant};
use super::signatures::{General, Read, Signatures};
use super::state::Suspicion;
use super::text::{is_frame, regex};
use plimsoll_base::Bytes;
use regex::Regex;
use std::sync::LazyLock;

/// Most lines between an exception and its innermost frame: code, marks under it, notes.
const FRAME_LINES: usize = 6;
/// Most frames of a traceback to read.
const FRAMES_MAX: usize = 80;
/// Most characters of a line of code to show.
const CODE_CHARS: usize = 80;

static FRAME: LazyLock<Regex> =
    LazyLock::new(|| regex(r#"^File "(?:[^"]*/)?([^"/]+)", line (\d+), in ([\w.<>]+)"#));
/// Installed files, which are not the user's program.
static INSTALLED: LazyLock<Regex> = LazyLock::new(|| {
    regex(r#"^File "(?:[^"]*(?:/(?:site|dist)-packages/|/lib/python3[^/]*/|/ray/_private/)|<)"#)
});

/// Returns the class of the kind of failure in a line.
pub fn class_of(signatures: &Signatures, suspicion: &Suspicion) -> Option<usize> {
    let kind = kind_of(signatures, suspicion);
    let intent =
        refined(signatures, suspicion, kind).map(|intent| signatures.class(&intents()[intent].class));
    intent.or(kind)
}

/// Returns the number of the intent of a line, if nothing says more of it.
pub fn intent_of(signatures: &Signatures, suspicion: &Suspicion) -> Option<usize> {
    refined(signatures, suspicion, kind_of(signatures, suspicion))
}

fn refined(signatures: &Signatures, suspicion: &Suspicion, kind: Option<usize>) -> Option<usize> {
    let message = &suspicion.near[..suspicion.message_bytes];
    may_refine(kind.map(|class| signatures.classes[class].slug.as_str()), message).then_some(())?;
    meant(message, kind.is_some())
}

fn kind_of(signatures: &Signatures, suspicion: &Suspicion) -> Option<usize> {
    let names = |general: &&General| {
        let begins_in_line = |found: regex::Match| found.start() < suspicion.message_bytes;
        general.pattern.regex().find(&suspicion.near).is_some_and(begins_in_line)
            && !general.unless.as_ref().is_some_and(|unless| unless.is_match(&suspicion.near))
    };
    signatures.generals.iter().find(names).map(|general| general.class)
}

/// Returns (reason, first step) of a reading that matches.
pub fn reading(read: &Read, near: &str) -> Option<(String, Option<String>)> {
    let found = read.regex().captures(near)?;
    let names = read.regex().capture_names().flatten();
    let fill = |says: String, name: &str| {
        let part = found.name(name).map_or("?", |part| part.as_str());
        let bytes = part.parse().ok().filter(|_| name == "bytes");
        says.replace(&format!("{{{name}}}"), &bytes.map_or(part.to_string(), |n| Bytes(n).to_string()))
    };
    Some((names.fold(read.says.clone(), fill), read.first.clone()))
}

/// Returns where an exception was raised, and the innermost frame outside installed code.
pub fn place(moment: &Moment) -> Option<String> {
    let before = moment.before();
    let mut frames = Vec::new();
    let mut since = 0;
    for (index, line) in before.iter().enumerate().rev() {
        since += 1;
        if is_frame(line) {
            frames.push(index);
            since = 0;
        }
        if since > FRAME_LINES || frames.len() == FRAMES_MAX {
            break;
        }
    }
    let told = |index: usize| {
        let found = FRAME.captures(&before[index])?;
        let code = before.get(index + 1).filter(|code| !is_frame(code) && !code.is_empty());
        let code: String = code.map_or("", String::as_str).trim().chars().take(CODE_CHARS).collect();
        let code = if code.is_empty() { code } else { format!(": `{code}`") };
        Some(format!("{}:{} in {}{code}", &found[1], &found[2], &found[3]))
    };
    let inner = *frames.first()?;
    let own = frames.into_iter().find(|&index| !INSTALLED.is_match(&before[index]));
    let raised = format!("it was raised at {}", told(inner)?);
    match own.filter(|&own| own != inner).and_then(told) {
        Some(own) => {
            Some(format!("{raised}; the innermost frame that is not of an installed package is {own}"))
        }
        None => Some(raised),
    }
}
