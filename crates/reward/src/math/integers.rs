//! Families of answers, one for each integer: `2\pi k, k \in \mathbb{Z}`, with any name for the integer.

use super::compare::Comparison;
use super::expr::{Expr, Rel};

/// Steps by which the integers of two families may be shifted: pi/2 + k pi and -pi/2 + k pi are one family.
const SHIFT_MAX: i64 = 2;

/// Returns true if both are the same family; `None` if one of them is not a family.
pub(crate) fn same(truth: &Expr, response: &Expr, comparison: &Comparison) -> Option<bool> {
    let ((a, x, set), (b, y, other)) = (family(truth)?, family(response)?);
    if set != other {
        return Some(false);
    }
    let shifts = if set == "\\mathbb{Z}" { SHIFT_MAX } else { 0 };
    let signs: &[bool] = if set == "\\mathbb{Z}" { &[false, true] } else { &[false] };
    let mut tried =
        (0..=shifts).flat_map(|k| [k, -k]).flat_map(|k| signs.iter().map(move |&minus| (k, minus)));
    Some(tried.any(|(shift, minus)| {
        let name = Expr::Symbol(x.to_string());
        let name = if minus { Expr::Neg(Box::new(name)) } else { name };
        let index = if shift == 0 { name } else { Expr::Sum(vec![name, Expr::int(shift)]) };
        // A name that the response uses for something else as well would be two in one.
        let clash = x != y && b.iter().any(|e| e.any(&|e| matches!(e, Expr::Symbol(name) if name == x)));
        let renamed = b.iter().map(|e| e.with_symbol(y, &index)).collect();
        !clash && comparison.same(&Expr::List(a.to_vec()), &Expr::List(renamed))
    }))
}

/// Returns the members, the name of the integer, and its set.
fn family(expr: &Expr) -> Option<(&[Expr], &str, &str)> {
    let Expr::List(items) = expr else { return None };
    let (Expr::Relation(parts, ops), members) = items.split_last()? else { return None };
    let ([Expr::Symbol(name), Expr::Symbol(set)], [Rel::In]) = (parts.as_slice(), ops.as_slice()) else {
        return None;
    };
    let integers = matches!(set.as_str(), "\\mathbb{Z}" | "\\mathbb{N}");
    (integers && !members.is_empty()).then_some((members, name, set))
}
