//! Numbers of the verifier: exact where that is cheap, approximate with an error bound everywhere.
//!
//! A number carries three views. A small rational, for parities and roots. Its value in two prime fields: two rational
//! expressions of any size are equal if these are (a chance of 2^-120 aside), so no digit is ever lost and nothing
//! grows. And a complex float with a wide exponent and an error, for all that is not rational.

/// The two primes: the Mersenne prime 2^61 - 1, and 2^61 - 31.
const PRIMES: [u64; 2] = [(1 << 61) - 1, (1 << 61) - 31];
/// Beyond this exponent a float is undefined; far above any answer, far below overflow of i64.
const EXPONENT_MAX: i64 = 1 << 50;
/// Bits by which two values may differ beyond their error bounds; bounds are sums of roundings, taken as maxima.
const SLACK_BITS: i64 = 9;

/// (re + im i) * 2^exp, known up to 2^err.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wide {
    pub re: f64,
    pub im: f64,
    pub exp: i64,
    pub err: i64,
}

/// A number in its three views; `exact` and `small` where they are known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Num {
    pub small: Option<(i128, i128)>,
    pub exact: Option<[u64; 2]>,
    pub wide: Wide,
}

fn mul_mod(a: u64, b: u64, p: u64) -> u64 {
    // 2^61 = c modulo p, c = 2^61 - p <= 31: fold the upper half twice, then subtract once.
    let product = u128::from(a) * u128::from(b);
    let (mask, c) = ((1u128 << 61) - 1, u128::from((1u64 << 61) - p));
    let folded = (product & mask) + (product >> 61) * c;
    let folded = ((folded & mask) + (folded >> 61) * c) as u64;
    if folded >= p { folded - p } else { folded }
}

fn pow_mod(mut base: u64, mut exponent: u128, p: u64) -> u64 {
    let mut result = 1;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = mul_mod(result, base, p);
        }
        base = mul_mod(base, base, p);
        exponent >>= 1;
    }
    result
}

fn inverse_mod(a: u64, p: u64) -> u64 {
    pow_mod(a, u128::from(p) - 2, p)
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn reduced(n: i128, d: i128) -> Option<(i128, i128)> {
    if d == 0 || n == i128::MIN || d == i128::MIN {
        return None;
    }
    let g = gcd(n.unsigned_abs(), d.unsigned_abs()).max(1) as i128;
    let sign = if d < 0 { -1 } else { 1 };
    Some((sign * n / g, sign * d / g))
}

impl Wide {
    /// Normalises to max(|re|, |im|) in [1, 2); `None` if not finite or out of range.
    pub(crate) fn new(re: f64, im: f64, exp: i64, err: i64) -> Option<Wide> {
        let top = re.abs().max(im.abs());
        if !top.is_finite() || re.is_nan() || im.is_nan() {
            return None;
        }
        if top == 0.0 {
            return Some(Wide { re: 0.0, im: 0.0, exp: -EXPONENT_MAX, err });
        }
        let shift = exponent_of(top);
        let exp = exp + shift;
        if exp.abs() > EXPONENT_MAX {
            return None;
        }
        let err = err.max(exp - 52);
        Some(Wide { re: scale(re, -shift), im: scale(im, -shift), exp, err })
    }

    /// Makes a plain float, correct to its last bit.
    pub(crate) fn real(x: f64) -> Option<Wide> {
        Wide::new(x, 0.0, 0, -EXPONENT_MAX)
    }

    /// Returns plain complex floats, if they can hold it and more than 20 of its bits are known.
    pub(crate) fn plain(self) -> Option<(f64, f64)> {
        let known = self.err < self.exp.max(-40) - 20;
        (self.exp < 1000 && known).then(|| {
            if self.exp < -1000 { (0.0, 0.0) } else { (scale(self.re, self.exp), scale(self.im, self.exp)) }
        })
    }

    fn add(self, other: Wide) -> Option<Wide> {
        let top = self.exp.max(other.exp);
        let (a, b) = (self.exp - top, other.exp - top);
        let at = |x: f64, shift: i64| if shift < -200 { 0.0 } else { scale(x, shift) };
        let (re, im) = (at(self.re, a) + at(other.re, b), at(self.im, a) + at(other.im, b));
        Wide::new(re, im, top, self.err.max(other.err))
    }

    fn mul(self, other: Wide) -> Option<Wide> {
        let re = self.re * other.re - self.im * other.im;
        let im = self.re * other.im + self.im * other.re;
        let err = (self.exp + other.err).max(other.exp + self.err).max(-2 * EXPONENT_MAX);
        Wide::new(re, im, self.exp + other.exp, err)
    }

    fn inverse(self) -> Option<Wide> {
        let norm = self.re * self.re + self.im * self.im;
        // What may be 0 has no inverse.
        if norm == 0.0 || self.err >= self.exp - 8 {
            return None;
        }
        Wide::new(self.re / norm, -self.im / norm, -self.exp, self.err - 2 * self.exp)
    }

    fn near(self, other: Wide) -> Option<bool> {
        let minus = Wide { re: -other.re, im: -other.im, ..other };
        let difference = self.add(minus)?;
        let tolerance = self.err.max(other.err) + SLACK_BITS;
        // Values known too imprecisely are not compared.
        if tolerance > self.exp.max(other.exp).max(-24) - 12 {
            return None;
        }
        Some((difference.re == 0.0 && difference.im == 0.0) || difference.exp < tolerance)
    }
}

fn exponent_of(x: f64) -> i64 {
    let bits = (x.to_bits() >> 52) as i64 & 0x7ff;
    if bits == 0 { -1074 + i64::from(63 - x.to_bits().leading_zeros() as i32) } else { bits - 1023 }
}

fn scale(x: f64, power: i64) -> f64 {
    // In two halves, so neither factor overflows or underflows.
    let half = |n: i64| f64::from_bits(((1023 + n.clamp(-1022, 1023)) as u64) << 52);
    let power = power.clamp(-2040, 2040);
    x * half(power / 2) * half(power - power / 2)
}

impl Num {
    pub(crate) fn int(n: i128) -> Num {
        Num::ratio(n, 1).expect("a denominator of 1")
    }

    pub(crate) fn ratio(n: i128, d: i128) -> Option<Num> {
        let (n, d) = reduced(n, d)?;
        let exact = PRIMES.map(|p| {
            let residue = |x: i128| x.rem_euclid(i128::from(p)) as u64;
            if d == 1 { residue(n) } else { mul_mod(residue(n), inverse_mod(residue(d), p), p) }
        });
        Num::of_small((n, d), Some(exact))
    }

    /// Makes a small rational with known residues: its float is rounded once, so no error is carried on.
    fn of_small((n, d): (i128, i128), exact: Option<[u64; 2]>) -> Option<Num> {
        Some(Num { small: Some((n, d)), exact, wide: Wide::real(n as f64 / d as f64)? })
    }

    /// Reads digits with at most one point, of any length.
    pub(crate) fn parse(text: &str) -> Option<Num> {
        let (mut small, mut exact, mut decimals) = (Some(0i128), [0u64; 2], 0u32);
        let (mut wide, ten) = (Wide::real(0.0)?, Wide::real(10.0)?);
        let mut after_point = false;
        for c in text.bytes() {
            if c == b'.' {
                after_point = true;
                continue;
            }
            let digit = c.checked_sub(b'0').filter(|&d| d < 10)?;
            decimals += u32::from(after_point);
            small = small.and_then(|n| n.checked_mul(10)?.checked_add(i128::from(digit)));
            for (value, p) in exact.iter_mut().zip(PRIMES) {
                *value = (mul_mod(*value, 10, p) + u64::from(digit)) % p;
            }
            wide = wide.mul(ten)?.add(Wide::real(f64::from(digit))?)?;
        }
        let power = 10i128.checked_pow(decimals);
        if let (Some(n), Some(d)) = (small, power) {
            return Num::ratio(n, d);
        }
        let scale = Num::int(10).power_int(i128::from(decimals))?;
        Num { small: None, exact: Some(exact), wide }.div(scale)
    }

    pub(crate) fn approx(re: f64, im: f64, err: i64) -> Option<Num> {
        Some(Num { small: None, exact: None, wide: Wide::new(re, im, 0, err)? })
    }

    /// Returns a pseudo-random rational in (0.5, 2.5) for a hash, with a sign from one of its bits.
    pub(crate) fn from_hash(hash: u64, positive: bool) -> Num {
        let size = i128::from(500 + hash % 1999);
        let sign = if positive || hash & (1 << 40) == 0 { 1 } else { -1 };
        let number = Num::ratio(sign * (size * 1_000_003 + i128::from(hash >> 44)), 1_000_003_000);
        number.expect("the denominator is not 0")
    }

    pub(crate) fn is_zero(self) -> bool {
        match self.exact {
            Some(residues) => residues == [0, 0],
            None => self.wide.re == 0.0 && self.wide.im == 0.0,
        }
    }

    /// Returns the whole number, if i64 holds it.
    pub(crate) fn as_int(self) -> Option<i128> {
        self.small.filter(|&(_, d)| d == 1).map(|(n, _)| n)
    }

    pub(crate) fn neg(self) -> Num {
        let exact = self.exact.map(|v| [0, 1].map(|k| (PRIMES[k] - v[k]) % PRIMES[k]));
        let small = self.small.and_then(|(n, d)| Some((n.checked_neg()?, d)));
        Num { small, exact, wide: Wide { re: -self.wide.re, im: -self.wide.im, ..self.wide } }
    }

    pub(crate) fn add(self, other: Num) -> Option<Num> {
        let small = self.small.zip(other.small).and_then(|((a, b), (c, d))| {
            reduced(a.checked_mul(d)?.checked_add(c.checked_mul(b)?)?, b.checked_mul(d)?)
        });
        let exact = self.exact.zip(other.exact).map(|(a, b)| [0, 1].map(|k| (a[k] + b[k]) % PRIMES[k]));
        match small {
            Some(small) => Num::of_small(small, exact),
            None => Some(Num { small, exact, wide: self.wide.add(other.wide)? }),
        }
    }

    pub(crate) fn sub(self, other: Num) -> Option<Num> {
        self.add(other.neg())
    }

    pub(crate) fn mul(self, other: Num) -> Option<Num> {
        let small = self
            .small
            .zip(other.small)
            .and_then(|((a, b), (c, d))| reduced(a.checked_mul(c)?, b.checked_mul(d)?));
        let exact = self.exact.zip(other.exact).map(|(a, b)| [0, 1].map(|k| mul_mod(a[k], b[k], PRIMES[k])));
        match small {
            Some(small) => Num::of_small(small, exact),
            None => Some(Num { small, exact, wide: self.wide.mul(other.wide)? }),
        }
    }

    pub(crate) fn div(self, other: Num) -> Option<Num> {
        if other.is_zero() {
            return None;
        }
        let small = other.small.and_then(|(n, d)| reduced(d, n));
        let exact = other.exact.and_then(|v| {
            // A residue of 0 in one field only: an unlucky number, left to the floats.
            let inverse = [0, 1].map(|k| inverse_mod(v[k], PRIMES[k]));
            (v[0] != 0 && v[1] != 0).then_some(inverse)
        });
        self.mul(Num { small, exact, wide: other.wide.inverse()? })
    }

    pub(crate) fn power_int(self, exponent: i128) -> Option<Num> {
        if exponent < 0 {
            return Num::int(1).div(self.power_int(exponent.checked_neg()?)?);
        }
        let exact = self.exact.map(|v| [0, 1].map(|k| pow_mod(v[k], exponent.unsigned_abs(), PRIMES[k])));
        let small = self.small.and_then(|(n, d)| {
            let exponent = u32::try_from(exponent).ok()?;
            reduced(n.checked_pow(exponent)?, d.checked_pow(exponent)?)
        });
        if let Some(small) = small {
            return Num::of_small(small, exact);
        }
        let (mut base, mut left, mut wide) = (self.wide, exponent, Wide::real(1.0)?);
        while left > 0 {
            if left & 1 == 1 {
                wide = wide.mul(base)?;
            }
            left >>= 1;
            if left > 0 {
                base = base.mul(base)?;
            }
        }
        Some(Num { small: None, exact, wide })
    }

    /// Returns true if equal, false if different; `None` if unknown.
    pub(crate) fn same(self, other: Num) -> Option<bool> {
        match (self.exact, other.exact) {
            (Some(a), Some(b)) => Some(a == b),
            _ => self.wide.near(other.wide),
        }
    }

    /// Compares two real numbers; `None` if their order is unknown.
    pub(crate) fn order(self, other: Num) -> Option<std::cmp::Ordering> {
        if self.same(other)? {
            return Some(std::cmp::Ordering::Equal);
        }
        let difference = match (self.small, other.small) {
            (Some(_), Some(_)) => self.sub(other)?.wide,
            _ => self.wide.add(other.neg().wide)?,
        };
        if difference.im.abs() > 1e-9 * difference.re.abs() {
            return None;
        }
        difference.re.partial_cmp(&0.0)
    }
}

/// Returns the size of a number.
pub(super) fn absolute(a: Num) -> Option<Num> {
    if a.wide.im == 0.0 {
        return Some(if a.wide.re < 0.0 { a.neg() } else { a });
    }
    let wide = Wide::new(a.wide.re.hypot(a.wide.im), 0.0, a.wide.exp, a.wide.err)?;
    Some(Num { small: None, exact: None, wide })
}

/// Rounds up or down; `None` too close to a whole number to decide.
pub(super) fn whole(a: Num, up: bool) -> Option<Num> {
    if let Some((n, d)) = a.small {
        return Some(Num::int(if up { -(-n).div_euclid(d) } else { n.div_euclid(d) }));
    }
    let (x, im) = a.wide.plain()?;
    // Too close to a whole number to decide.
    let unsure = (x - x.round()).abs() < 1e-9 || x.abs() > 1e15 || im != 0.0;
    (!unsure).then(|| Num::int(if up { x.ceil() } else { x.floor() } as i128))
}

/// Returns the n-th root of a whole number, if it is whole.
pub(super) fn exact_root(a: i128, n: i128) -> Option<i128> {
    if a < 2 {
        return Some(a);
    }
    let n = u32::try_from(n).ok()?;
    let guess = (a as f64).powf(1.0 / f64::from(n)).round() as i128;
    (guess - 1..=guess + 1).find(|g| g.checked_pow(n) == Some(a))
}
