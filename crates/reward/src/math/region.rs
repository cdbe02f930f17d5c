//! Sets of real numbers: intervals, unions and inequalities, compared by membership at and between their end points.

use super::compare::Comparison;
use super::eval::Point;
use super::expr::{Expr, Func, Rel, SetOp, has_symbols, named};
use super::number::Num;
use std::cmp::Ordering;

/// Most end points of both sets together.
const ENDS_MAX: usize = 64;

/// A set of real numbers.
enum Region {
    All,
    Empty,
    Interval(Box<Interval>),
    Points(Vec<Num>),
    Op(SetOp, Box<Region>, Box<Region>),
}

/// Ends, and whether they belong; no end is an infinity.
struct Interval {
    low: Option<Num>,
    with_low: bool,
    high: Option<Num>,
    with_high: bool,
}

impl Region {
    fn interval(low: Option<Num>, with_low: bool, high: Option<Num>, with_high: bool) -> Region {
        Region::Interval(Box::new(Interval { low, with_low, high, with_high }))
    }
}

/// True if both are sets of real numbers and the same one. An inequality in one name is the set of its solutions.
pub(crate) fn same(a: &Expr, b: &Expr, comparison: &Comparison) -> bool {
    // Two inequalities must be about the same name.
    let mut subjects = Vec::new();
    collect_subjects(a, &mut subjects);
    collect_subjects(b, &mut subjects);
    if subjects.windows(2).any(|pair| pair[0] != pair[1]) {
        return false;
    }
    let point = Point { index: 0, complex: false, fuel: comparison.fuel };
    let (Some(a), Some(b)) = (region(a, &point, 0), region(b, &point, 0)) else { return false };
    let mut ends = Vec::new();
    collect(&a, &mut ends);
    collect(&b, &mut ends);
    if ends.len() > ENDS_MAX {
        return false;
    }
    // An unknown order makes the sets different: better than equal by accident.
    let unsure = ends.iter().any(|x| ends.iter().any(|y| x.order(*y).is_none()));
    ends.sort_by(|x, y| x.order(*y).unwrap_or(Ordering::Equal));
    let Some(probes) = probes(&ends) else { return false };
    !unsure && probes.into_iter().all(|x| holds(&a, x).is_some_and(|held| holds(&b, x) == Some(held)))
}

/// Returns the end points, a number between each two, and one beyond each side.
fn probes(ends: &[Num]) -> Option<Vec<Num>> {
    let (Some(first), Some(last)) = (ends.first(), ends.last()) else { return Some(vec![Num::int(0)]) };
    let mut probes = vec![first.sub(Num::int(1))?, last.add(Num::int(1))?];
    probes.extend_from_slice(ends);
    for pair in ends.windows(2) {
        if pair[0].order(pair[1])? == Ordering::Less {
            probes.push(pair[0].add(pair[1])?.div(Num::int(2))?);
        }
    }
    Some(probes)
}

fn collect(region: &Region, ends: &mut Vec<Num>) {
    match region {
        Region::All | Region::Empty => {}
        Region::Interval(ends_of) => ends.extend(ends_of.low.iter().chain(&ends_of.high)),
        Region::Points(points) => ends.extend(points),
        Region::Op(_, a, b) => {
            collect(a, ends);
            collect(b, ends);
        }
    }
}

fn holds(region: &Region, x: Num) -> Option<bool> {
    Some(match region {
        Region::All => true,
        Region::Empty => false,
        Region::Interval(interval) => {
            let Interval { low, with_low, high, with_high } = &**interval;
            let above = match low {
                None => true,
                Some(low) => match x.order(*low)? {
                    Ordering::Greater => true,
                    Ordering::Equal => *with_low,
                    Ordering::Less => false,
                },
            };
            let below = match high {
                None => true,
                Some(high) => match x.order(*high)? {
                    Ordering::Less => true,
                    Ordering::Equal => *with_high,
                    Ordering::Greater => false,
                },
            };
            above && below
        }
        Region::Points(points) => {
            let equal = points.iter().map(|p| x.order(*p)).collect::<Option<Vec<_>>>()?;
            equal.contains(&Ordering::Equal)
        }
        Region::Op(op, a, b) => match op {
            SetOp::Union => holds(a, x)? || holds(b, x)?,
            SetOp::Intersection => holds(a, x)? && holds(b, x)?,
            SetOp::Difference => holds(a, x)? && !holds(b, x)?,
        },
    })
}

fn region(expr: &Expr, point: &Point, depth: u32) -> Option<Region> {
    if depth > 40 {
        return None;
    }
    match expr {
        Expr::EmptySet => Some(Region::Empty),
        Expr::Symbol(name) if name == "\\mathbb{R}" => Some(Region::All),
        Expr::Tuple(open, close, ends) => {
            let [low, high] = ends.as_slice() else { return None };
            let (low, high) = (end(low, point, false)?, end(high, point, true)?);
            // An infinite end belongs to no set, with any bracket; but `[-\infty` is not written.
            if (low.is_none() && *open == '[') || (high.is_none() && *close == ']') {
                return None;
            }
            if let (Some(low), Some(high)) = (low, high)
                && low.order(high)? == Ordering::Greater
            {
                return None;
            }
            Some(Region::interval(low, *open == '[', high, *close == ']'))
        }
        Expr::Set(items) => {
            Some(Region::Points(items.iter().map(|item| constant(item, point)).collect::<Option<Vec<_>>>()?))
        }
        Expr::Sets(op, a, b) => Some(Region::Op(
            *op,
            Box::new(region(a, point, depth + 1)?),
            Box::new(region(b, point, depth + 1)?),
        )),
        Expr::Relation(parts, ops) => relation(expr, parts, ops, point, depth),
        // `\mathbb{R} \setminus 3` from an answer in words; alone a number is not a set.
        _ if depth > 0 => Some(Region::Points(vec![constant(expr, point)?])),
        _ => None,
    }
}

fn constant(expr: &Expr, point: &Point) -> Option<Num> {
    (!has_symbols(expr)).then(|| point.number(expr))?
}

/// Returns a finite end, or `None` for the infinity on that side.
fn end(expr: &Expr, point: &Point, high: bool) -> Option<Option<Num>> {
    match expr {
        Expr::Infinity if high => Some(None),
        Expr::Neg(inner) if **inner == Expr::Infinity && !high => Some(None),
        other => constant(other, point).map(Some),
    }
}

fn collect_subjects<'a>(expr: &'a Expr, subjects: &mut Vec<&'a Expr>) {
    match expr {
        Expr::Sets(_, a, b) => {
            collect_subjects(a, subjects);
            collect_subjects(b, subjects);
        }
        _ => subjects.extend(subject(expr)),
    }
}

/// Returns the name in an inequality or membership.
fn subject(expr: &Expr) -> Option<&Expr> {
    let Expr::Relation(parts, ops) = expr else { return None };
    if let Some((name, _)) = named(expr) {
        return Some(name);
    }
    let subject = match (parts.as_slice(), ops.len()) {
        ([_, middle, _], 2) => middle,
        ([a, b], 1) => {
            if has_symbols(a) {
                a
            } else {
                b
            }
        }
        _ => return None,
    };
    Some(distance(subject).map_or(subject, |(name, _)| name))
}

fn relation(expr: &Expr, parts: &[Expr], ops: &[Rel], point: &Point, depth: u32) -> Option<Region> {
    if let (Some((_, set)), [Rel::In]) = (named(expr), ops) {
        return region(set, point, depth + 1);
    }
    match (parts, ops) {
        ([a, b], [op]) => match (constant(a, point), constant(b, point)) {
            (None, Some(bound)) => side(a, bound, *op, point),
            (Some(bound), None) => side(b, bound, op.flipped(), point),
            _ => None,
        },
        ([a, middle, b], [first, second]) => {
            // `-\infty < x < 3`
            let part = |bound: &Expr, op: Rel, high: bool| match end(bound, point, high)? {
                Some(bound) => side(middle, bound, op, point),
                None => (op == if high { Rel::Lt } else { Rel::Gt }).then_some(Region::All),
            };
            let low = part(a, first.flipped(), false)?;
            let high = part(b, *second, true)?;
            if !(first.is_order() && second.is_order()) {
                return None;
            }
            Some(Region::Op(SetOp::Intersection, Box::new(low), Box::new(high)))
        }
        _ => None,
    }
}

/// Returns true for a name or a function's value, whose range an inequality gives.
fn is_subject(expr: &Expr) -> bool {
    matches!(expr, Expr::Symbol(_)) || matches!(expr, Expr::Opaque(name, _) if !name.starts_with("digits"))
}

/// Returns where a name, or its distance from a number, has an order to `bound`: `x < 2`, `|2x - 3| \ge 1`.
fn side(subject: &Expr, bound: Num, op: Rel, point: &Point) -> Option<Region> {
    let Some((name, inner)) = distance(subject) else {
        return is_subject(subject).then(|| half_line(bound, op))?;
    };
    let (slope, start) = line(inner, name, point)?;
    // `2x - 3` is at 0 where x is 3/2, and 1 from there where x is 1/2 from it.
    let (centre, radius) = (start.div(slope)?.neg(), bound.div(slope)?);
    let radius = if slope.wide.re < 0.0 { radius.neg() } else { radius };
    let (low, high) = (centre.sub(radius)?, centre.add(radius)?);
    let both = |set, op: Rel| {
        let (low, high) = (half_line(low, op.flipped())?, half_line(high, op)?);
        Some(Region::Op(set, Box::new(low), Box::new(high)))
    };
    match op {
        Rel::Lt | Rel::Le => both(SetOp::Intersection, op),
        Rel::Gt | Rel::Ge => both(SetOp::Union, op),
        // No distance is negative.
        Rel::Eq if bound.wide.re < 0.0 => Some(Region::Empty),
        Rel::Ne if bound.wide.re < 0.0 => Some(Region::All),
        Rel::Eq => both(SetOp::Union, op),
        Rel::Ne => both(SetOp::Intersection, op),
        Rel::Approx | Rel::In => None,
    }
}

/// Splits `|2x + c|` into its only name and what is between the bars.
fn distance(expr: &Expr) -> Option<(&Expr, &Expr)> {
    let Expr::Call(Func::Abs, inner) = expr else { return None };
    let mut names = Vec::new();
    symbols(inner, &mut names);
    let first = *names.first()?;
    names.iter().all(|name| *name == first).then_some((first, inner))
}

fn symbols<'e>(expr: &'e Expr, names: &mut Vec<&'e Expr>) {
    match expr {
        Expr::Symbol(_) if has_symbols(expr) => names.push(expr),
        Expr::Opaque(..) | Expr::Bound(..) => names.push(expr),
        _ => expr.children().into_iter().for_each(|child| symbols(child, names)),
    }
}

/// Returns slope and value at 0 of a line in the name; `None` for any other curve.
fn line(expr: &Expr, name: &Expr, point: &Point) -> Option<(Num, Num)> {
    let Expr::Symbol(symbol) = name else { return None };
    let at = |x: i64| point.number(&expr.with_symbol(symbol, &Expr::int(x)));
    let (start, one) = (at(0)?, at(1)?);
    let slope = one.sub(start)?;
    // Two more points: no polynomial through all four is a line by chance but a line.
    let is_line = [3, -7].iter().all(|&x| {
        let expect = slope.mul(Num::int(i128::from(x))).and_then(|rise| start.add(rise));
        at(x).zip(expect).is_some_and(|(found, expect)| found.same(expect) == Some(true))
    });
    (is_line && !slope.is_zero()).then_some((slope, start))
}

fn half_line(bound: Num, op: Rel) -> Option<Region> {
    Some(match op {
        Rel::Lt => Region::interval(None, false, Some(bound), false),
        Rel::Le => Region::interval(None, false, Some(bound), true),
        Rel::Gt => Region::interval(Some(bound), false, None, false),
        Rel::Ge => Region::interval(Some(bound), true, None, false),
        Rel::Eq => Region::Points(vec![bound]),
        Rel::Ne => {
            Region::Op(SetOp::Difference, Box::new(Region::All), Box::new(Region::Points(vec![bound])))
        }
        Rel::Approx | Rel::In => return None,
    })
}
