//! Factorials of numbers that are not whole, by the gamma function: n!/(n-2)! is n(n-1) wherever both have a value.

use super::number::Num;

/// Largest argument in size; a larger one has a factorial beyond what a float holds, or one of few digits.
const ARGUMENT_MAX: f64 = 120.0;
/// Bits of the result that are not relied on: the series is good to 2^-49.
const BITS: i64 = 44;
/// Lanczos' coefficients for g = 7.
const SERIES: [f64; 9] = [
    0.999_999_999_999_809_9,
    676.520_368_121_885_1,
    -1_259.139_216_722_402_8,
    771.323_428_777_653_1,
    -176.615_029_162_140_6,
    12.507_343_278_686_905,
    -0.138_571_095_265_720_12,
    9.984_369_578_019_572e-6,
    1.505_632_735_149_311_6e-7,
];

/// Returns the factorial of a real number; `None` for a negative whole number, or beyond the limit.
pub(super) fn factorial(a: Num) -> Option<Num> {
    let (x, im) = a.wide.plain()?;
    if im != 0.0 || x.abs() > ARGUMENT_MAX || (x < 0.0 && (x - x.round()).abs() < 1e-9) {
        return None;
    }
    let value = gamma(x + 1.0);
    let error = value.abs().log2().ceil() as i64 - BITS;
    Num::approx(value, 0.0, error)
}

fn gamma(x: f64) -> f64 {
    let pi = std::f64::consts::PI;
    if x < 0.5 {
        return pi / ((pi * x).sin() * gamma(1.0 - x));
    }
    let x = x - 1.0;
    let t = x + 7.5;
    let sum = SERIES.iter().enumerate().skip(1).fold(SERIES[0], |sum, (k, part)| sum + part / (x + k as f64));
    (2.0 * pi).sqrt() * t.powf(x + 0.5) * (-t).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_factorials() {
        let of = |n, d| factorial(Num::ratio(n, d).expect("a number"))?.wide.plain();
        let root = std::f64::consts::PI.sqrt();
        for (n, d, expect) in [
            (5, 1, 120.0),
            (1, 2, root / 2.0),
            (-1, 2, root),
            (-3, 2, -2.0 * root),
            (7, 2, root * 105.0 / 16.0),
        ] {
            let (value, _) = of(n, d).expect("a value");
            assert!((value / expect - 1.0).abs() < 1e-13, "{n}/{d}: {value} and {expect}");
        }
        assert_eq!((of(-1, 1), of(-3, 1), of(100_000, 1)), (None, None, None));
    }
}
