//! Branches of a Python file that is not run: an arm counts or does not, if its condition is a constant of the file.

use super::expression::{Code, Value};
use super::tokens::Kind;
use crate::setting::number;
use std::collections::BTreeSet;
use std::ops::Range;

/// Whether the statements within an indented block run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    /// They run when those around it do.
    Always,
    /// They run in a call of a function, with names of their own.
    Scope,
    Maybe,
    Never,
}

/// Words that bind the name after them.
const BINDERS: [&str; 7] = ["for", "as", "global", "nonlocal", "del", "def", "class"];
/// Operators that bind the name before them.
const UPDATES: [&str; 9] = [":=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "in"];

/// An open block, and what the arms of its `if` have been up to it.
struct Block {
    indent: usize,
    arm: Arm,
    /// An arm of the same `if` runs, perhaps: `None`.
    ran: Option<bool>,
}

pub(super) struct Branches {
    open: Vec<Block>,
    /// Names that are bound by more than an assignment.
    rebound: BTreeSet<String>,
}

impl Branches {
    pub fn of(code: &Code<'_>) -> Branches {
        let word = |at: usize| code.tokens.get(at).map_or("", |_| code.word(at));
        let is_bound = |&at: &usize| {
            let (before, after) = (at.checked_sub(1).map_or("", word), word(at + 1));
            // `X ^= 1`, `X **= 2` and the like are an operator, then `=`; `A = X = 1` and `f(); X = 1` are not read.
            let is_update = word(at + 2) == "=" && !matches!(after, "" | ")" | "]" | ",");
            let is_unread = after == "=" && matches!(before, "=" | ";");
            is_update || is_unread || UPDATES.contains(&after) || BINDERS.contains(&before)
        };
        let names = (0..code.tokens.len()).filter(|&at| code.tokens[at].kind == Kind::Name);
        let rebound = names.filter(is_bound).map(|at| code.word(at).to_owned()).collect();
        Branches { open: Vec::new(), rebound }
    }

    /// Closes the blocks that end before a statement. Returns what an `else` of the same indentation belongs to.
    pub fn leave(&mut self, indent: usize) -> Option<Option<bool>> {
        let mut last = None;
        while let Some(block) = self.open.pop_if(|block| block.indent >= indent) {
            last = (block.indent == indent).then_some(block.ran);
        }
        last
    }

    pub fn enter(&mut self, indent: usize, arm: Arm) {
        self.open.push(Block { indent, arm, ran: None });
    }

    /// Opens an arm of an `if` whose condition, if it has one, is `holds`; `before` is what `leave` returned.
    pub fn enter_arm(&mut self, indent: usize, before: Option<bool>, holds: Option<bool>) {
        let (arm, ran) = match (before, holds) {
            (Some(true), _) => (Arm::Never, Some(true)),
            (Some(false), Some(true)) => (Arm::Always, Some(true)),
            (before, Some(false)) => (Arm::Never, before),
            _ => (Arm::Maybe, None),
        };
        self.open.push(Block { indent, arm, ran });
    }

    pub fn has(&self, arm: Arm) -> bool {
        self.open.iter().any(|block| block.arm == arm)
    }

    /// Returns the truth of the condition in the tokens of `range`, of a constant that `assigned` returns.
    pub fn holds(
        &self,
        code: &Code<'_>,
        range: Range<usize>,
        assigned: impl Fn(&str) -> Option<Value>,
    ) -> Option<bool> {
        if self.has(Arm::Scope) || self.has(Arm::Maybe) {
            return None;
        }
        let nots = range.clone().take_while(|&at| code.word(at) == "not").count();
        let range = range.start + nots..range.end;
        let constant = |at: usize| match code.value(at..at + 1) {
            Value::Name(name) => assigned(&name).filter(|_| !self.rebound.contains(&name)),
            value => Some(value),
        };
        let holds = match (range.len(), code.word(range.start + 1)) {
            (1, _) => is_true(&constant(range.start)?)?,
            (3, operator @ ("==" | "!=" | "is")) => {
                let equal = are_equal(&constant(range.start)?, &constant(range.start + 2)?)?;
                equal == (operator != "!=")
            }
            _ => return None,
        };
        Some(holds == nots.is_multiple_of(2))
    }
}

fn is_true(value: &Value) -> Option<bool> {
    match value {
        Value::Text(text) => Some(!text.is_empty()),
        Value::Number(text) => Some(number(text)? != 0.0),
        Value::Word(word) => Some(word == "True"),
        _ => None,
    }
}

/// Compares two constants of one type.
fn are_equal(left: &Value, right: &Value) -> Option<bool> {
    match (left, right) {
        (Value::Text(left), Value::Text(right)) | (Value::Word(left), Value::Word(right)) => {
            Some(left == right)
        }
        (Value::Number(left), Value::Number(right)) => Some(number(left)?.total_cmp(&number(right)?).is_eq()),
        _ => None,
    }
}
