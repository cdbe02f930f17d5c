//! Definite integrals, by the double exponential rule: it needs no values at the ends, where many answers have none.

use super::number::Num;

/// Nodes on each side of the middle.
const NODES: i32 = 72;
/// Distance of two nodes.
const STEP: f64 = 1.0 / 16.0;
/// Largest difference, relative to the sum of sizes, between all nodes and every second one. Twice the nodes square the
/// error, so that all nodes are right to 1e-12.
const DIFFERENCE_MAX: f64 = 1e-6;
/// Beyond this a function without a value counts as 0.
const FAR: f64 = 1e5;
/// Bits of the result, relative to the sum of sizes, that are not relied on: 2^-40 is 1e-12.
const BITS: i64 = 40;

/// An end of an integral.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    /// Infinity, or minus infinity.
    Infinite(bool),
    At(f64),
}

/// Integrates `f` from `low` to `high`; `None` if the rule does not settle.
pub(super) fn integral(low: End, high: End, f: &dyn Fn(f64) -> Option<f64>) -> Option<Num> {
    match (low, high) {
        (End::At(a), End::At(b)) if a == b => return Some(Num::int(0)),
        (End::At(a), End::At(b)) if a > b => return integral(high, low, f).map(Num::neg),
        (End::Infinite(true), _) | (_, End::Infinite(false)) => return None,
        _ => {}
    }
    let half_pi = std::f64::consts::FRAC_PI_2;
    // The node at t and its weight.
    let at = |t: f64| -> (f64, f64) {
        let (s, ds) = (half_pi * t.sinh(), half_pi * t.cosh());
        match (low, high) {
            (End::At(a), End::At(b)) => {
                // From the nearer end: 1 - tanh(s) would lose the digits of the distance.
                let near = (b - a) / (1.0 + (2.0 * s.abs()).exp());
                let x = if s < 0.0 { a + near } else { b - near };
                (x, (b - a) / 2.0 * ds / (s.cosh() * s.cosh()))
            }
            (End::At(a), _) => (a + s.exp(), s.exp() * ds),
            (_, End::At(b)) => (b - s.exp(), s.exp() * ds),
            _ => (s.sinh(), s.cosh() * ds),
        }
    };
    let is_end = |x: f64| low == End::At(x) || high == End::At(x);
    let (mut all, mut second, mut size) = (0.0, 0.0, 0.0);
    for k in -NODES..=NODES {
        let (x, weight) = at(f64::from(k) * STEP);
        if weight == 0.0 || is_end(x) || !weight.is_finite() || !x.is_finite() {
            continue;
        }
        let part = match f(x) {
            Some(value) => value * weight,
            // `e^{-x}` has no value that far out.
            None if x.abs() > FAR => continue,
            None => return None,
        };
        if !part.is_finite() {
            return None;
        }
        all += part;
        size += part.abs();
        second += if k % 2 == 0 { part } else { 0.0 };
    }
    let settled = (all - 2.0 * second).abs() <= DIFFERENCE_MAX * size;
    let (value, size) = (all * STEP, size * STEP);
    if size == 0.0 {
        return Some(Num::int(0));
    }
    let error = size.log2().ceil() as i64 - BITS;
    settled.then(|| Num::approx(value, 0.0, error))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_integrals() {
        let (zero, one) = (End::At(0.0), End::At(1.0));
        let (down, up) = (End::Infinite(false), End::Infinite(true));
        type Function = fn(f64) -> f64;
        for (low, high, f, expect) in [
            (zero, one, (|x| 2.0 * x) as Function, Some(1.0)),
            (one, zero, |x| 2.0 * x, Some(-1.0)),
            (zero, one, |x| x.sqrt(), Some(2.0 / 3.0)),
            (zero, one, |x| -x.ln(), Some(1.0)),
            (zero, End::At(std::f64::consts::PI), |x| x.sin(), Some(2.0)),
            (zero, up, |x| (-x).exp(), Some(1.0)),
            (down, zero, |x| x.exp(), Some(1.0)),
            (down, up, |x| (-x * x).exp(), Some(std::f64::consts::PI.sqrt())),
            (one, up, |x| 1.0 / (x * x), Some(1.0)),
            (zero, zero, |x| 1.0 / x, Some(0.0)),
            (zero, one, |x| 1.0 / x, None),
            (one, up, |x| 1.0 / x, None),
            (zero, End::At(400.0), |x| x.sin(), None),
            (up, one, |x| x, None),
        ] {
            let found = integral(low, high, &|x| Some(f(x))).and_then(|found| found.wide.plain());
            match expect {
                None => assert_eq!(found, None, "{low:?} to {high:?}"),
                Some(value) => {
                    let (re, _) = found.expect("it settles");
                    assert!((re - value).abs() < 1e-11, "{low:?} to {high:?}: {re} and {value}");
                }
            }
        }
        assert!(integral(zero, one, &|_| None).is_none());
    }
}
