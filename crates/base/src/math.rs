//! Elementary functions with fixed bits: plain f64 multiplications and additions in a fixed order.
//!
//! The C library picks its `exp` by the machine; these give the same bits on every x86-64.
//! Errors are below 2 units in the last place of f64 in the ranges that models use.

use std::f64::consts::LOG2_E;

const LN2_HI: f64 = 6.931_471_803_691_238e-1; // 32 significant bits: k * LN2_HI is exact
const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;

/// Returns e^x. Overflows to infinity above 709.8, underflows to 0 below -745.
pub fn exp(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x > 709.782_712_893_384 {
        return f64::INFINITY;
    }
    if x < -745.2 {
        return 0.0;
    }
    let k = (x * LOG2_E).round();
    let r = (x - k * LN2_HI) - k * LN2_LO; // |r| <= 0.3466
    // Taylor to r^14: the next term is below 0.3466^15 / 15! = 1e-19.
    let mut p = 1.0;
    for n in (1..=14).rev() {
        p = 1.0 + p * r / f64::from(n);
    }
    scale_by_power_of_two(p, k as i32)
}

/// Returns the natural logarithm: minus infinity for 0, NaN for negative numbers.
pub fn ln(x: f64) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x.is_infinite() {
        return x;
    }
    let (x, shift) = if x < f64::MIN_POSITIVE { (x * (1u64 << 54) as f64, -54) } else { (x, 0) };
    let bits = x.to_bits();
    let mut k = ((bits >> 52) as i32) - 1023 + shift;
    let mut m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | (1023 << 52)); // [1, 2)
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        k += 1;
    }
    // ln m = 2 artanh(s), s = (m - 1)/(m + 1), |s| <= 0.1716; terms to s^23 leave 1e-19.
    let s = (m - 1.0) / (m + 1.0);
    let s2 = s * s;
    let mut p = 0.0;
    for n in (0..=11).rev() {
        p = p * s2 + 1.0 / f64::from(2 * n + 1);
    }
    let k = f64::from(k);
    k * LN2_HI + (2.0 * s * p + k * LN2_LO)
}

/// Returns (sin x, cos x) for |x| below 2^25; positions and frequencies stay far inside.
pub fn sin_cos(x: f64) -> (f64, f64) {
    // pi/2 in three parts of 33 bits (Cody and Waite): k * PART is exact for k below 2^20.
    const P1: f64 = 1.570_796_326_734_125_6;
    const P2: f64 = 6.077_100_506_303_966e-11;
    const P3: f64 = 2.022_266_248_795_950_6e-21;
    let k = (x * std::f64::consts::FRAC_2_PI).round();
    let r = ((x - k * P1) - k * P2) - k * P3; // |r| <= pi/4
    let r2 = r * r;
    // Taylor: sine to r^19, cosine to r^18.
    let (mut s, mut c) = (1.0, 1.0);
    for n in (1..=9).rev() {
        let n = f64::from(n);
        s = 1.0 - s * r2 / (2.0 * n * (2.0 * n + 1.0));
        c = 1.0 - c * r2 / (2.0 * n * (2.0 * n - 1.0));
    }
    s *= r;
    match (k as i64).rem_euclid(4) {
        0 => (s, c),
        1 => (c, -s),
        2 => (-s, -c),
        _ => (-c, s),
    }
}

/// Returns base^exponent for a positive base.
pub fn pow(base: f64, exponent: f64) -> f64 {
    exp(exponent * ln(base))
}

/// Returns `exp` of an f32, rounded once from f64.
pub fn exp_f32(x: f32) -> f32 {
    exp(f64::from(x)) as f32
}

fn scale_by_power_of_two(x: f64, k: i32) -> f64 {
    // In two steps, so subnormal results are reached without an intermediate zero.
    let half = k / 2;
    let power = |n: i32| f64::from_bits(((1023 + n) as u64) << 52);
    x * power(half) * power(k - half)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(ours: f64, reference: f64, what: &str) {
        let err = (ours - reference).abs() / reference.abs().max(1e-300);
        assert!(err < 1e-15, "{what}: {ours:e} against {reference:e}, relative error {err:e}");
    }

    #[test]
    fn agree_with_the_c_library_to_the_last_places() {
        for i in -2000..2000 {
            let x = f64::from(i) * 0.1737;
            close(exp(x), x.exp(), "exp");
            close(ln(x.abs() + 1e-9), (x.abs() + 1e-9).ln(), "ln");
            // Near a zero of sine the comparison is absolute.
            let (s, c) = sin_cos(x * 57.3);
            assert!(
                (s - (x * 57.3).sin()).abs() < 1e-15 && (c - (x * 57.3).cos()).abs() < 1e-15,
                "sin_cos {x}"
            );
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(exp(-800.0), 0.0);
        assert_eq!(exp(800.0), f64::INFINITY);
        close(pow(1e6, -0.75), 1e6f64.powf(-0.75), "pow");
    }
}
