//! Compares trees by meaning: lists in any order, tuples by place, relations to a factor, sets by members, else values.

use super::eval::{Fuel, Point, Value};
use super::expr::{Expr, Rel, has_symbols, imaginary, named};
use super::number::Num;
use super::region;
use super::working::{Sides, Working, working};
use std::cmp::Ordering;

/// Points at which expressions with symbols are compared; at the first four all symbols are positive.
const POINTS: u64 = 12;
/// Fewest points with a value on both sides for expressions with symbols to be equal.
const POINTS_MIN: usize = 3;
/// Most entries of a list or set.
const ITEMS_MAX: usize = 64;
/// Deepest nesting of lists, tuples and relations.
const DEPTH_MAX: u32 = 8;

pub(crate) struct Comparison<'a> {
    pub fuel: &'a Fuel,
    /// One of the answers has values in different units.
    pub mixed_units: bool,
}

impl Comparison<'_> {
    /// Returns true if `response` means the same as `truth`.
    pub(crate) fn same(&self, truth: &Expr, response: &Expr) -> bool {
        self.same_at(truth, response, 0)
    }

    fn same_at(&self, truth: &Expr, response: &Expr, depth: u32) -> bool {
        if depth > DEPTH_MAX || self.fuel.is_spent() {
            return false;
        }
        if let (Expr::Tuple(_, _, places), Expr::List(items)) = (truth, response)
            && let Some(values) = named_values(items)
        {
            return places.len() == values.len()
                && places.iter().zip(values).all(|(a, b)| self.same_at(a, b, depth + 1));
        }
        let (truths, responses) = (self.entries(truth, depth), self.entries(response, depth));
        if truths.len() == 1 && responses.len() == 1 {
            return self.same_one(&truths[0], &responses[0], depth);
        }
        if truths.len() > ITEMS_MAX
            || responses.len() > ITEMS_MAX
            || truths.is_empty()
            || responses.is_empty()
        {
            return truths.is_empty() && responses.is_empty();
        }
        // In any order, but one to one: `1` is not `1,1`.
        if truths.len() == responses.len() {
            return self.pair_off(&truths, &responses, depth);
        }
        // If the truth has several entries and repeats none, repeated entries in the response are ignored.
        truths.len() > 1
            && responses.len() > truths.len()
            && self.different(truths.clone(), depth).len() == truths.len()
            && self.pair_off(&truths, &self.different(responses, depth), depth)
    }

    fn pair_off(&self, truths: &[Expr], responses: &[Expr], depth: u32) -> bool {
        let mut left: Vec<&Expr> = responses.iter().collect();
        let mut takes_one = |a: &Expr| {
            let like = left.iter().position(|b| self.same_one(a, b, depth + 1));
            like.map(|at| left.swap_remove(at)).is_some()
        };
        truths.len() == responses.len() && truths.iter().all(&mut takes_one)
    }

    /// Returns the entries of a list or set. In braces a repeated entry counts once.
    fn entries(&self, expr: &Expr, depth: u32) -> Vec<Expr> {
        let entries = items(expr);
        let value = named(expr).map_or(expr, |(_, value)| value);
        if matches!(value, Expr::Set(_)) && entries.len() <= ITEMS_MAX {
            self.different(entries, depth)
        } else {
            entries
        }
    }

    /// Drops entries equal to an earlier one.
    fn different(&self, entries: Vec<Expr>, depth: u32) -> Vec<Expr> {
        let mut different: Vec<Expr> = Vec::with_capacity(entries.len());
        for entry in entries {
            if !different.iter().any(|known| self.same_one(known, &entry, depth + 1)) {
                different.push(entry);
            }
        }
        different
    }

    fn same_one(&self, truth: &Expr, response: &Expr, depth: u32) -> bool {
        match (truth, response) {
            (Expr::EmptySet, Expr::EmptySet) => true,
            (Expr::Text(a), Expr::Text(b)) => super::clean::words(a) == super::clean::words(b),
            (Expr::List(_) | Expr::Set(_), _) | (_, Expr::List(_) | Expr::Set(_)) => {
                self.same_at(truth, response, depth + 1)
            }
            (Expr::Relation(..), _) | (_, Expr::Relation(..)) => self.same_relation(truth, response, depth),
            (Expr::Tuple(o, c, a), Expr::Tuple(p, d, b)) => {
                // Square brackets distinguish an interval from a pair; longer tuples have either.
                let brackets = (o, c) == (p, d)
                    || (a.len() > 2 && o != c && (*o == '(') == (*c == ')') && (*p == '(') == (*d == ')'));
                brackets && a.len() == b.len() && a.iter().zip(b).all(|(a, b)| self.same_at(a, b, depth + 1))
            }
            (Expr::Sets(..), _) | (_, Expr::Sets(..)) => region::same(truth, response, self),
            (Expr::Tuple(..), Expr::Symbol(_)) | (Expr::Symbol(_), Expr::Tuple(..)) => {
                region::same(truth, response, self)
            }
            (Expr::Modulo(a, m), Expr::Modulo(b, n)) => self.same_class((a, m), (b, n), depth),
            (Expr::Modulo(..), _) | (_, Expr::Modulo(..)) => false,
            (Expr::Ratio(a, _), Expr::Ratio(b, _)) if is_ratio(a) || is_ratio(b) => {
                self.same_ratios(&ratio_terms(truth), &ratio_terms(response))
            }
            (Expr::Ratio(..), Expr::Ratio(..)) if is_time(truth) && is_time(response) => truth == response,
            (Expr::Tuple(..), _) | (_, Expr::Tuple(..)) => false,
            _ => self.same_value(truth, response),
        }
    }

    fn same_relation(&self, truth: &Expr, response: &Expr, depth: u32) -> bool {
        let sides = Sides { fuel: self.fuel, mixed_units: self.mixed_units };
        match (working(truth, &sides), working(response, &sides)) {
            (Working::False, _) | (_, Working::False) => return false,
            (Working::Value(a), Working::Value(b)) => return self.same_at(a, b, depth + 1),
            (Working::Value(a), Working::Other) => return self.same_at(a, response, depth + 1),
            (Working::Other, Working::Value(b)) => return self.same_at(truth, b, depth + 1),
            (Working::Other, Working::Other) => {}
        }
        match (named(truth), named(response)) {
            (Some((a, x)), Some((b, y))) => {
                let names = self.same_name(a, b);
                (names && self.same_at(x, y, depth + 1))
                    || (plain_equations(truth, response) && self.proportional(truth, response))
            }
            (Some((_, x)), None) if !matches!(response, Expr::Relation(..)) => {
                self.same_at(x, response, depth + 1)
            }
            (None, Some((_, y))) if !matches!(truth, Expr::Relation(..)) => self.same_at(truth, y, depth + 1),
            _ => {
                self.same_chain(truth, response, depth)
                    || self.proportional(truth, response)
                    || region::same(truth, response, self)
            }
        }
    }

    /// Returns true if `1:2:3` is `2:4:6`: each term has the same ratio to the first on both sides.
    fn same_ratios(&self, truth: &[&Expr], response: &[&Expr]) -> bool {
        let product = |a: &Expr, b: &Expr| Expr::Product(vec![a.clone(), b.clone()]);
        truth.len() == response.len()
            && truth
                .iter()
                .zip(response)
                .skip(1)
                .all(|(a, b)| self.same_value(&product(a, response[0]), &product(b, truth[0])))
    }

    /// Returns true if `16 \pmod{11}` is `x \equiv 5 \pmod{11}`.
    fn same_class(&self, (a, m): (&Expr, &Expr), (b, n): (&Expr, &Expr), depth: u32) -> bool {
        if !self.same_value(m, n) {
            return false;
        }
        let (name, other) = (named(a), named(b));
        if let (Some((x, _)), Some((y, _))) = (name, other)
            && !self.same_name(x, y)
        {
            return false;
        }
        let (a, b) = (name.map_or(a, |(_, value)| value), other.map_or(b, |(_, value)| value));
        let point = Point { index: 0, complex: false, fuel: self.fuel };
        let whole = |e: &Expr| (!has_symbols(e)).then(|| point.number(e)?.as_int())?;
        match (whole(a), whole(b), whole(m)) {
            (Some(a), Some(b), Some(m)) if m > 0 => a.rem_euclid(m) == b.rem_euclid(m),
            _ => self.same_at(a, b, depth + 1),
        }
    }

    /// Returns true for the same symbols, or tuples of them.
    fn same_name(&self, a: &Expr, b: &Expr) -> bool {
        match (a, b) {
            (Expr::Tuple(_, _, a), Expr::Tuple(_, _, b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| self.same_name(a, b))
            }
            (Expr::Text(a), Expr::Text(b)) => a == b,
            _ => a == b || self.same_value(a, b),
        }
    }

    /// Returns true for one chain of relations, read from the left or from the right.
    fn same_chain(&self, truth: &Expr, response: &Expr, depth: u32) -> bool {
        let (Expr::Relation(a, ops), Expr::Relation(b, others)) = (truth, response) else { return false };
        if a.len() != b.len() {
            return false;
        }
        let forward = ops == others && a.iter().zip(b).all(|(x, y)| self.same_at(x, y, depth + 1));
        let turned =
            ops.iter().map(|op| op.flipped()).eq(others.iter().rev().copied()) && !ops.contains(&Rel::In);
        forward || (turned && a.iter().zip(b.iter().rev()).all(|(x, y)| self.same_at(x, y, depth + 1)))
    }

    /// Returns true if `left - right` of one relation is a constant times the other's; a positive one between orders.
    fn proportional(&self, truth: &Expr, response: &Expr) -> bool {
        let (Expr::Relation(a, ops), Expr::Relation(b, others)) = (truth, response) else { return false };
        let ([a0, a1], [b0, b1], [op], [other]) =
            (a.as_slice(), b.as_slice(), ops.as_slice(), others.as_slice())
        else {
            return false;
        };
        let turned = op.is_order() && *op == other.flipped();
        if !(op == other || turned) || matches!(op, Rel::In | Rel::Approx) {
            return false;
        }
        let difference = |x: &Expr, y: &Expr| Expr::Sum(vec![x.clone(), Expr::Neg(Box::new(y.clone()))]);
        let (left, right) =
            (difference(a0, a1), if turned { difference(b1, b0) } else { difference(b0, b1) });
        let mut ratio: Option<Num> = None;
        let mut compared = 0;
        for index in 0..POINTS {
            let point = Point { index, complex: imaginary(&left) || imaginary(&right), fuel: self.fuel };
            let (Some(x), Some(y)) = (point.number(&left), point.number(&right)) else { continue };
            let Some(quotient) = x.div(y).filter(|q| !q.is_zero()) else { return false };
            match ratio {
                None if op.is_order() && quotient.wide.re <= 0.0 => return false,
                None => ratio = Some(quotient),
                Some(first) if first.same(quotient) != Some(true) => return false,
                Some(_) => {}
            }
            compared += 1;
        }
        compared >= POINTS_MIN && (has_symbols(&left) || has_symbols(&right))
    }

    /// Returns true if both are equal at every point where both have a value.
    pub(crate) fn same_value(&self, truth: &Expr, response: &Expr) -> bool {
        match (truth, response) {
            (Expr::Percent(a), Expr::Percent(b)) => return self.same_value(a, b),
            // Per cent against a bare number: 50 % is 50, or 0.5.
            (Expr::Percent(a), b) => return self.same_value(a, b) || self.equal(truth, b),
            (a, Expr::Percent(b)) => return self.same_value(a, b) || self.equal(a, response),
            _ => {}
        }
        if let (Some(a), Some(b)) = (decimal_of_many_digits(truth), decimal_of_many_digits(response)) {
            // Two written decimals must be exactly equal.
            return self.equal(a, b);
        }
        self.equal(truth, response) || rounds_to(truth, response, self) || rounds_to(response, truth, self)
    }

    fn equal(&self, truth: &Expr, response: &Expr) -> bool {
        if let Some(verdict) = infinite(truth, response) {
            return verdict;
        }
        if imaginary(truth) || imaginary(response) {
            return self.equal_on(truth, response, true) == Some(true);
        }
        match self.equal_on(truth, response, false) {
            Some(verdict) => verdict,
            None => self.equal_on(truth, response, true) == Some(true),
        }
    }

    /// Compares at all points; `None` if too few have a value on both sides.
    fn equal_on(&self, truth: &Expr, response: &Expr, complex: bool) -> Option<bool> {
        let symbols = has_symbols(truth) || has_symbols(response);
        let (points, needed) = if symbols { (POINTS, POINTS_MIN) } else { (1, 1) };
        let mut compared = 0;
        for index in 0..points {
            let point = Point { index, complex, fuel: self.fuel };
            let (Some(a), Some(b)) = (point.value(truth), point.value(response)) else { continue };
            match same_at_point(&a, &b) {
                Some(true) => compared += 1,
                Some(false) => return Some(false),
                None => {}
            }
        }
        (compared >= needed).then_some(true)
    }
}

fn same_at_point(a: &Value, b: &Value) -> Option<bool> {
    match (a, b) {
        (Value::Num(a), Value::Num(b)) => a.same(*b),
        (Value::Matrix(a), Value::Matrix(b)) => {
            if a.len() != b.len() || a.iter().zip(b).any(|(a, b)| a.len() != b.len()) {
                return Some(false);
            }
            let mut cells = a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| a.same(*b));
            cells.try_fold(true, |all, cell| Some(all && cell?))
        }
        _ => Some(false),
    }
}

/// Returns the entries of a list or set, with `\pm` expanded; anything else is its own only entry.
fn items(expr: &Expr) -> Vec<Expr> {
    match expr {
        Expr::List(items) | Expr::Set(items) => items.iter().take(ITEMS_MAX + 1).flat_map(signs).collect(),
        Expr::EmptySet => Vec::from([Expr::EmptySet]),
        other => signs(other),
    }
}

fn signs(expr: &Expr) -> Vec<Expr> {
    let signed = |e: &Expr| {
        if e.any(&|e| matches!(e, Expr::PlusMinus(..))) {
            vec![e.with_sign(true), e.with_sign(false)]
        } else {
            vec![e.clone()]
        }
    };
    if let (Expr::Relation(_, ops), Some((name, Expr::List(values) | Expr::Set(values)))) =
        (expr, named(expr))
        && !ops.contains(&Rel::Approx)
    {
        // `x = {1, 2}` or `x \in \{1, 2\}`: an equation for each.
        let equation = |value| Expr::Relation(vec![name.clone(), value], vec![Rel::Eq]);
        return values.iter().take(ITEMS_MAX + 1).flat_map(signed).map(equation).collect();
    }
    signed(expr)
}

fn is_ratio(expr: &Expr) -> bool {
    matches!(expr, Expr::Ratio(..))
}

/// Returns the terms of `a:b:c`.
fn ratio_terms(expr: &Expr) -> Vec<&Expr> {
    let (mut terms, mut rest) = (Vec::new(), expr);
    while let Expr::Ratio(left, last) = rest {
        terms.push(&**last);
        rest = left;
    }
    terms.push(rest);
    terms.reverse();
    terms
}

/// Returns true for `8:30`, which is not a ratio that reduces to 4:15.
fn is_time(expr: &Expr) -> bool {
    let Expr::Ratio(hours, minutes) = expr else { return false };
    let (Expr::Number(hours), Expr::Number(minutes)) = (&**hours, &**minutes) else { return false };
    let hour = hours.parse::<u32>().is_ok_and(|hour| hour < 24);
    hour && minutes.len() == 2 && minutes.parse::<u32>().is_ok_and(|minute| minute < 60)
}

/// Returns the values of a list in which every entry is an equation with a different name.
fn named_values(items: &[Expr]) -> Option<Vec<&Expr>> {
    let pairs = items.iter().map(named).collect::<Option<Vec<_>>>()?;
    let different =
        pairs.iter().enumerate().all(|(k, (name, _))| pairs[..k].iter().all(|(other, _)| other != name));
    different.then(|| pairs.into_iter().map(|(_, value)| value).collect())
}

fn plain_equations(a: &Expr, b: &Expr) -> bool {
    let plain = |e: &Expr| matches!(e, Expr::Relation(parts, ops) if parts.len() == 2 && ops[0] == Rel::Eq);
    // With a constant on one side the name decides: x = 5 is not y = 5, but y = 2x is 2x = y.
    let free = |e: &Expr| matches!(e, Expr::Relation(parts, _) if parts.iter().all(has_symbols));
    plain(a) && plain(b) && free(a) && free(b)
}

/// Compares infinities, which have no value and equal only themselves.
fn infinite(a: &Expr, b: &Expr) -> Option<bool> {
    let infinity = |e: &Expr| match e {
        Expr::Infinity => Some(true),
        Expr::Neg(inner) if **inner == Expr::Infinity => Some(false),
        _ => None,
    };
    match (infinity(a), infinity(b)) {
        (None, None) => None,
        (x, y) => Some(x == y),
    }
}

/// Returns a decimal literal with ten or more digits, including its sign.
fn decimal_of_many_digits(expr: &Expr) -> Option<&Expr> {
    let digits = match expr {
        Expr::Number(text) => text,
        Expr::Neg(inner) => match &**inner {
            Expr::Number(text) => text,
            _ => return None,
        },
        _ => return None,
    };
    let significant = digits.trim_start_matches(['0', '.']).bytes().filter(u8::is_ascii_digit).count();
    (digits.contains('.') && significant >= 10).then_some(expr)
}

/// True if `decimal` is a literal of ten or more digits that `exact` is rounded or cut to.
fn rounds_to(decimal: &Expr, exact: &Expr, comparison: &Comparison) -> bool {
    let Some(literal) = decimal_of_many_digits(decimal) else { return false };
    let text = match literal {
        Expr::Neg(inner) => inner,
        other => other,
    };
    let Expr::Number(text) = text else { return false };
    if has_symbols(exact) {
        return false;
    }
    let places = text.len() - 1 - text.find('.').unwrap_or(0);
    let point = Point { index: 0, complex: false, fuel: comparison.fuel };
    let (Some(a), Some(b)) = (point.number(literal), point.number(exact)) else { return false };
    let unit = Num::int(10).power_int(-(places as i128));
    let (Some(difference), Some(unit)) = (a.sub(b), unit) else { return false };
    let size = if difference.wide.re < 0.0 { difference.neg() } else { difference };
    // What was cut is nearer to zero than the value; what was rounded up is within half a unit of it.
    let cut = (difference.wide.re < 0.0) == (b.wide.re > 0.0);
    let most = if cut { Some(unit) } else { unit.div(Num::int(2)) };
    let within = most.and_then(|most| size.order(most));
    difference.wide.im == 0.0 && (within == Some(Ordering::Less) || (within == Some(Ordering::Equal) && !cut))
}
