//! Equations that show their working: the value of `3 + 4 = 7` is 7, and a false one has none.

use super::eval::{Fuel, Point};
use super::expr::{Expr, Rel, has_symbols, imaginary, named};
use super::number::Num;
use std::cmp::Ordering;

/// Facts about the sides besides their trees.
pub(crate) struct Sides<'a> {
    pub fuel: &'a Fuel,
    /// Some have different units.
    pub mixed_units: bool,
}

/// The value of an equation.
pub(crate) enum Working<'a> {
    /// The last side, to which all others are equal.
    Value(&'a Expr),
    /// No value: two of its sides are different numbers.
    False,
    /// It is not one of numbers only, or none at all.
    Other,
}

/// Reads an equation of numbers, or one of a name and two or more numbers.
///
/// Returns what follows an approximation sign is a remark. Sides in different units are taken as they are.
pub(crate) fn working<'a>(expr: &'a Expr, given: &Sides) -> Working<'a> {
    let Expr::Relation(parts, ops) = expr else { return Working::Other };
    let equal = ops.iter().take_while(|&&op| op == Rel::Eq).count();
    if ops[equal..].iter().any(|op| *op != Rel::Approx) {
        return Working::Other;
    }
    let sides = &parts[..=equal];
    let is_named = named(expr).is_some();
    let sides = if is_named { &sides[1..] } else { sides };
    let Some(last) = sides.last() else { return Working::Other };
    if sides.len() < 2 && (is_named || parts.len() < 2) {
        return Working::Other;
    }
    // `9 = 9` shows no working and has no value.
    if sides.len() > 1 && sides.iter().all(|side| side == last) {
        return Working::Other;
    }
    let mut numbers = Vec::with_capacity(sides.len());
    for side in sides {
        let point = Point { index: 0, complex: imaginary(side), fuel: given.fuel };
        match point.number(side) {
            Some(number) if !has_symbols(side) => numbers.push((side, number, point.number_in_radians(side))),
            _ => return Working::Other,
        }
    }
    let holds = numbers.windows(2).all(|pair| {
        let (a, b) = (&pair[0], &pair[1]);
        let radians = matches!((a.2, b.2), (Some(x), Some(y)) if x.same(y) == Some(true));
        // `45 + 55 = 100\%` counts in per cent from the beginning.
        let percent = matches!(b.0, Expr::Percent(_))
            && b.1.mul(Num::int(100)).is_some_and(|b| a.1.same(b) == Some(true));
        a.1.same(b.1) == Some(true) || radians || percent || rounds(a.0, a.1, b.1) || rounds(b.0, b.1, a.1)
    });
    if !(holds || given.mixed_units) {
        Working::False
    } else if is_named {
        Working::Other
    } else {
        Working::Value(last)
    }
}

/// True if `side` is a decimal that differs from `exact` by less than one in its last place: `10 / 3 = 3.33`.
fn rounds(side: &Expr, value: Num, exact: Num) -> bool {
    let literal = if let Expr::Neg(inner) = side { inner } else { side };
    let Expr::Number(text) = literal else { return false };
    let Some(point) = text.find('.') else { return false };
    let unit = Num::int(10).power_int(-((text.len() - 1 - point) as i128));
    let difference = value.sub(exact).map(|d| if d.wide.re < 0.0 { d.neg() } else { d });
    matches!((difference, unit), (Some(d), Some(unit)) if d.wide.im == 0.0 && d.order(unit) == Some(Ordering::Less))
}
