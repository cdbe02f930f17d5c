//! Joins items at `and`, `or` and commas: conditions on a name to a set, residues to their modulus, others to a list.

use super::expr::{Expr, Rel, SetOp, has_symbols};

/// Most conditions or residues to join.
const JOINED_MAX: usize = 8;

/// Says what is between two items.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Join {
    Comma,
    And,
    Or,
}

/// Returns the items as they are, or as the one set that `x < 2 or x > 5` is.
pub(super) fn joined(items: Vec<Expr>, joins: &[Join]) -> Vec<Expr> {
    if joins.is_empty() || items.len() > JOINED_MAX {
        return items;
    }
    let op = match (joins.contains(&Join::Or), joins.contains(&Join::And)) {
        (true, false) if is_union(&items) => SetOp::Union,
        (false, true) if items.iter().all(|item| condition(item).is_some_and(|(_, orders)| orders)) => {
            SetOp::Intersection
        }
        _ => return with_modulus(items),
    };
    let mut subjects = items.iter().filter_map(|item| condition(item).map(|(subject, _)| subject));
    let first = subjects.next();
    if subjects.any(|subject| Some(subject) != first) {
        return items;
    }
    let sets = items.into_iter().reduce(|a, b| Expr::Sets(op, Box::new(a), Box::new(b)));
    Vec::from_iter(sets)
}

/// Returns true for conditions and intervals, at least one of which is no pair and no equation.
fn is_union(items: &[Expr]) -> bool {
    let infinite = |e: &Expr| e.any(&|e| *e == Expr::Infinity);
    let interval = |e: &Expr| match e {
        Expr::Tuple(open, close, ends) if ends.len() == 2 => {
            Some((*open == '(') != (*close == ')') || ends.iter().any(infinite))
        }
        _ => None,
    };
    let clear = |e: &Expr| interval(e) == Some(true) || condition(e).is_some_and(|(_, orders)| orders);
    items.iter().all(|e| interval(e).is_some() || condition(e).is_some()) && items.iter().any(clear)
}

/// Returns the name of a condition, and true if it is more than an equation.
fn condition(expr: &Expr) -> Option<(&Expr, bool)> {
    let Expr::Relation(parts, ops) = expr else { return None };
    let orders = ops.iter().all(|op| op.is_order() || *op == Rel::Ne);
    if !orders && ops.as_slice() != [Rel::Eq] {
        return None;
    }
    let mut names = parts.iter().filter(|part| has_symbols(part));
    let name = names.next().filter(|name| matches!(name, Expr::Symbol(_)))?;
    (names.next().is_none() && parts.len() <= 3).then_some((name, orders))
}

/// Applies the modulus at the end of `x = 1, 4 \pmod 5` to every residue.
fn with_modulus(items: Vec<Expr>) -> Vec<Expr> {
    let Some((Expr::Modulo(_, modulus), others)) = items.split_last() else { return items };
    if others.iter().any(|item| matches!(item, Expr::Modulo(..))) {
        return items;
    }
    let modulus = modulus.clone();
    let of = |item| match item {
        Expr::Modulo(..) => item,
        other => Expr::Modulo(Box::new(other), modulus.clone()),
    };
    items.into_iter().map(of).collect()
}
