//! Lists what an import of each stack leaves out or refuses, and why: derived from the stack's table alone.

use crate::stack::Stack;
use crate::table::{Take, UNKNOWN, first_name};

/// Options with the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    pub why: &'static str,
    /// True if a job that needs it is refused without `--force`.
    pub refused: bool,
    /// The first names of its options, in table order; `x*` is every other name that begins with `x`.
    pub options: Vec<&'static str>,
}

/// Lists what is never carried over from `stack`, refusals first; empty for a stack without import.
///
/// Leaves out values without a counterpart, and what several options decide together: an import reports them per file.
pub fn losses(stack: &Stack) -> Vec<Loss> {
    let mut found: Vec<Loss> = Vec::new();
    if stack.imported_file().is_none() {
        return found;
    }
    let mut add = |why: &'static str, refused: bool, name: &'static str| match found
        .iter_mut()
        .find(|loss| (loss.why, loss.refused) == (why, refused))
    {
        Some(loss) => loss.options.push(name),
        None => found.push(Loss { why, refused, options: vec![name] }),
    };
    for (names, _, take) in stack.table.rows() {
        match take {
            Take::Lost(why) => add(why, false, first_name(names)),
            Take::NotBuilt(what) => add(what.without(), true, first_name(names)),
            _ => {}
        }
    }
    let others = stack.table.used.split_whitespace().chain(stack.table.idle.split_whitespace());
    for name in others.map(first_name) {
        let why = stack.table.why_left(name.trim_end_matches('*'));
        // A whole family without a reason is unknown.
        if why != UNKNOWN {
            add(why, false, name);
        }
    }
    found.sort_by_key(|loss| !loss.refused);
    found
}
