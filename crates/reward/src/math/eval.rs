//! Evaluates a tree at a point: each symbol is a fixed number, and each step costs fuel.

use super::expr::{Expr, Func};
use super::gamma;
use super::integral::{self, End};
use super::number::{Num, Wide, absolute, exact_root, whole};
use std::cell::Cell;

/// Largest n whose factorial is multiplied out.
const FACTORIAL_MAX: i128 = 1500;
/// Most terms of a sum to add up.
const TERMS_MAX: i128 = 500;

/// Deepest nesting of values; a level takes about 4 KiB of the stack.
const DEPTH_MAX: u32 = 100;

/// Work that is left for one verdict, and how deep in a tree it is.
pub(crate) struct Fuel {
    steps: Cell<u64>,
    depth: Cell<u32>,
}

impl Fuel {
    pub(crate) fn new(steps: u64) -> Fuel {
        Fuel { steps: Cell::new(steps), depth: Cell::new(0) }
    }

    fn burn(&self, steps: u64) -> Option<()> {
        let left = self.steps.get().checked_sub(steps);
        self.steps.set(left.unwrap_or(0));
        left.map(|_| ())
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.steps.get() == 0
    }

    /// Runs one level deeper, or gives up.
    fn deeper<T>(&self, run: impl FnOnce() -> Option<T>) -> Option<T> {
        let depth = self.depth.get();
        if depth == DEPTH_MAX {
            return None;
        }
        self.depth.set(depth + 1);
        let result = run();
        self.depth.set(depth);
        result
    }
}

/// Where an expression is evaluated.
pub(crate) struct Point<'a> {
    /// Which of the fixed points.
    pub index: u64,
    /// Principal complex branches; else real functions, undefined outside their domain.
    pub complex: bool,
    pub fuel: &'a Fuel,
}

/// A number or a matrix.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Num(Num),
    Matrix(Vec<Vec<Num>>),
}

type Scope<'a> = Option<(&'a str, Num, Option<&'a ScopeLink<'a>>)>;

struct ScopeLink<'a>(Scope<'a>);

fn hash(text: &str, seed: u64) -> u64 {
    // FNV-1a, then the finaliser of SplitMix64.
    let mut h = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325 ^ seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

impl Point<'_> {
    /// Returns the value of `expr`; `None` if it has none, or none that can be found within the fuel.
    pub(crate) fn value(&self, expr: &Expr) -> Option<Value> {
        self.eval(expr, &None, false)
    }

    /// Returns the value of a scalar expression.
    pub(crate) fn number(&self, expr: &Expr) -> Option<Num> {
        self.scalar(expr, &None, false)
    }

    /// Returns the value of a scalar expression in which degrees are angles, not a unit.
    pub(crate) fn number_in_radians(&self, expr: &Expr) -> Option<Num> {
        self.scalar(expr, &None, true)
    }

    fn scalar(&self, expr: &Expr, scope: &Scope, radians: bool) -> Option<Num> {
        match self.eval(expr, scope, radians)? {
            Value::Num(number) => Some(number),
            Value::Matrix(_) => None,
        }
    }

    /// Evaluates an expression. Converts degrees if `radians`, as in the argument of a sine; else drops their sign.
    fn eval(&self, expr: &Expr, scope: &Scope, radians: bool) -> Option<Value> {
        self.fuel.burn(1)?;
        self.fuel.deeper(|| self.eval_here(expr, scope, radians))
    }

    fn eval_here(&self, expr: &Expr, scope: &Scope, radians: bool) -> Option<Value> {
        let number = |e: &Expr| self.scalar(e, scope, radians);
        let result = match expr {
            Expr::Number(text) => {
                self.fuel.burn(text.len() as u64 / 4)?;
                Num::parse(text)?
            }
            Expr::Symbol(name) => self.symbol(name, scope)?,
            Expr::Neg(a) => return negated(self.eval(a, scope, radians)?),
            Expr::Sum(terms) => return self.sum(terms, scope, radians),
            Expr::Product(factors) => return self.product(factors, scope, radians),
            Expr::Quotient(a, b) => {
                if is_factorial(a)
                    && is_factorial(b)
                    && let Some(value) = self.cancelled(a, b, scope)
                {
                    return Some(Value::Num(value));
                }
                let below = number(b)?;
                match self.eval(a, scope, radians)? {
                    Value::Num(above) => above.div(below)?,
                    Value::Matrix(rows) => return scaled(rows, Num::int(1).div(below)?),
                }
            }
            Expr::Ratio(a, b) => number(a)?.div(number(b)?)?,
            Expr::Power(a, b) => return self.power(a, b, scope, radians),
            Expr::Root(index, a) => self.root(number(index)?, number(a)?)?,
            Expr::Call(Func::Det, a) => match self.eval(a, scope, radians)? {
                Value::Matrix(rows) => self.determinant(rows)?,
                Value::Num(_) => return None,
            },
            Expr::Call(func, a) => {
                let trigonometric =
                    matches!(func, Func::Sin | Func::Cos | Func::Tan | Func::Cot | Func::Sec | Func::Csc);
                self.call(*func, self.scalar(a, scope, trigonometric)?)?
            }
            Expr::Log(base, a) => self.ln(number(a)?)?.div(self.ln(number(base)?)?)?,
            Expr::Binomial(n, k) => self.binomial(number(n)?, number(k)?)?,
            Expr::Factorial(a) => self.factorial(number(a)?)?,
            Expr::Fold(name, items) => {
                let items = items.iter().map(number).collect::<Option<Vec<_>>>()?;
                self.fold(name, &items)?
            }
            Expr::Degrees(a) if radians => number(a)?.mul(pi()?)?.div(Num::int(180))?,
            Expr::Degrees(a) => number(a)?,
            Expr::Percent(a) => number(a)?.div(Num::int(100))?,
            Expr::Matrix(rows) => {
                let row = |row: &Vec<Expr>| row.iter().map(number).collect::<Option<Vec<_>>>();
                return Some(Value::Matrix(rows.iter().map(row).collect::<Option<Vec<_>>>()?));
            }
            Expr::Opaque(name, arguments) => self.opaque(name, arguments, scope)?,
            Expr::Bound(name, variable, parts) => self.bound(name, variable, parts, scope)?,
            _ => return None,
        };
        Some(Value::Num(result))
    }

    fn symbol(&self, name: &str, scope: &Scope) -> Option<Num> {
        let mut link = scope.as_ref();
        while let Some((bound, value, outer)) = link {
            if *bound == name {
                return Some(*value);
            }
            link = outer.and_then(|outer| outer.0.as_ref());
        }
        match name {
            "e" => Num::approx(std::f64::consts::E, 0.0, -51),
            "\\pi" => pi(),
            "i" if self.complex => Num::approx(0.0, 1.0, -1000),
            "i" => None,
            // At the first points every symbol is positive, at the others about half of them.
            _ => Some(Num::from_hash(hash(name, self.index), self.index < 4)),
        }
    }

    fn sum(&self, terms: &[Expr], scope: &Scope, radians: bool) -> Option<Value> {
        let mut total = self.eval(terms.first()?, scope, radians)?;
        for term in &terms[1..] {
            total = match (total, self.eval(term, scope, radians)?) {
                (Value::Num(a), Value::Num(b)) => Value::Num(a.add(b)?),
                (Value::Matrix(a), Value::Matrix(b)) if a.len() == b.len() && a[0].len() == b[0].len() => {
                    let add = |(x, y): (&Num, &Num)| x.add(*y);
                    let row =
                        |(a, b): (&Vec<Num>, &Vec<Num>)| a.iter().zip(b).map(add).collect::<Option<Vec<_>>>();
                    Value::Matrix(a.iter().zip(&b).map(row).collect::<Option<Vec<_>>>()?)
                }
                _ => return None,
            };
        }
        Some(total)
    }

    fn product(&self, factors: &[Expr], scope: &Scope, radians: bool) -> Option<Value> {
        let mut total = self.eval(factors.first()?, scope, radians)?;
        for factor in &factors[1..] {
            total = match (total, self.eval(factor, scope, radians)?) {
                (Value::Num(a), Value::Num(b)) => Value::Num(a.mul(b)?),
                (Value::Num(a), Value::Matrix(rows)) | (Value::Matrix(rows), Value::Num(a)) => {
                    scaled(rows, a)?
                }
                (Value::Matrix(a), Value::Matrix(b)) => Value::Matrix(self.matrix_product(&a, &b)?),
            };
        }
        Some(total)
    }

    fn matrix_product(&self, a: &[Vec<Num>], b: &[Vec<Num>]) -> Option<Vec<Vec<Num>>> {
        let (inner, width) = (a.first()?.len(), b.first()?.len());
        if inner != b.len() {
            return None;
        }
        self.fuel.burn((a.len() * inner * width * 4) as u64)?;
        let cell = |row: &Vec<Num>, j: usize| {
            row.iter().zip(b).try_fold(Num::int(0), |sum, (x, other)| sum.add(x.mul(other[j])?))
        };
        a.iter().map(|row| (0..width).map(|j| cell(row, j)).collect::<Option<Vec<_>>>()).collect()
    }

    /// Computes by Gaussian elimination; gives up at a pivot that may be 0.
    fn determinant(&self, mut rows: Vec<Vec<Num>>) -> Option<Num> {
        let n = rows.len();
        if rows[0].len() != n || n > 12 {
            return None;
        }
        self.fuel.burn((n * n * n) as u64)?;
        let mut result = Num::int(1);
        for k in 0..n {
            let Some(pivot) = (k..n).find(|&r| !rows[r][k].is_zero()) else { return Some(Num::int(0)) };
            if pivot != k {
                rows.swap(pivot, k);
                result = result.neg();
            }
            result = result.mul(rows[k][k])?;
            for r in k + 1..n {
                let factor = rows[r][k].div(rows[k][k])?;
                let above = rows[k].clone();
                for (cell, over) in rows[r].iter_mut().zip(above).skip(k) {
                    *cell = cell.sub(factor.mul(over)?)?;
                }
            }
        }
        Some(result)
    }

    fn power(&self, base: &Expr, exponent: &Expr, scope: &Scope, radians: bool) -> Option<Value> {
        let base = match self.eval(base, scope, radians)? {
            Value::Num(base) => base,
            Value::Matrix(rows) => {
                let count = self.scalar(exponent, scope, false)?.as_int().filter(|n| (1..=16).contains(n))?;
                let mut total = rows.clone();
                for _ in 1..count {
                    total = self.matrix_product(&total, &rows)?;
                }
                return Some(Value::Matrix(total));
            }
        };
        let exponent = self.scalar(exponent, scope, false)?;
        self.number_power(base, exponent).map(Value::Num)
    }

    fn number_power(&self, base: Num, exponent: Num) -> Option<Num> {
        self.fuel.burn(16)?;
        if let Some(n) = exponent.as_int() {
            // 0^0 is left undefined.
            return if base.is_zero() && n <= 0 { None } else { base.power_int(n) };
        }
        if base.is_zero() {
            return (exponent.wide.re > 0.0 && exponent.wide.im == 0.0).then(|| Num::int(0));
        }
        let negative = base.wide.re < 0.0 && base.wide.im == 0.0;
        if negative && !self.complex {
            // Real functions: (-8)^(2/3) is 4, and (-8)^(1/2) is undefined.
            let (above, below) = exponent.small.filter(|&(_, d)| d % 2 == 1)?;
            let size = self.number_power(base.neg(), exponent)?;
            return Some(if above % 2 == 0 || below == 0 { size } else { size.neg() });
        }
        self.exp(self.ln(base)?.mul(exponent)?)
    }

    fn root(&self, index: Num, radicand: Num) -> Option<Num> {
        let n = index.as_int().filter(|n| (2..=1000).contains(n));
        if let (Some(n), Some((above, below)), true) = (n, radicand.small, radicand.wide.im == 0.0)
            && (above >= 0 || (n % 2 == 1 && !self.complex))
            && let (Some(a), Some(b)) = (exact_root(above.abs(), n), exact_root(below, n))
        {
            return Num::ratio(a * above.signum(), b);
        }
        if n == Some(2) && radicand.wide.im == 0.0 && radicand.wide.re >= 0.0 && !radicand.is_zero() {
            // Halving the exponent keeps what `ln` and `exp` would lose.
            let w = radicand.wide;
            let odd = w.exp.rem_euclid(2);
            let exp = (w.exp - odd) / 2;
            let value = (w.re * if odd == 1 { 2.0 } else { 1.0 }).sqrt();
            let wide = Wide::new(value, 0.0, exp, w.err - exp)?;
            return Some(Num { small: None, exact: None, wide });
        }
        self.number_power(radicand, Num::int(1).div(index)?)
    }

    fn ln(&self, a: Num) -> Option<Num> {
        if a.is_zero() || (!self.complex && (a.wide.re < 0.0 || a.wide.im != 0.0)) {
            return None;
        }
        let w = a.wide;
        let re = w.re.hypot(w.im).ln() + w.exp as f64 * std::f64::consts::LN_2;
        let err = (w.err - w.exp).max(-52);
        // A negative zero would be the other side of the cut: the root of -9 is 3i.
        let im = if w.im == 0.0 { 0.0 } else { w.im };
        Num::approx(re, im.atan2(w.re), err)
    }

    fn exp(&self, a: Num) -> Option<Num> {
        let (re, im) = a.wide.plain()?;
        let power = (re * std::f64::consts::LOG2_E).floor();
        if power.abs() > 1e12 {
            return None;
        }
        let size = (re - power * std::f64::consts::LN_2).exp();
        let exp = power as i64;
        let err = exp + a.wide.err.max(-52).max(a.wide.exp - 52) + 1;
        let wide = if im == 0.0 {
            Wide::new(size, 0.0, exp, err)
        } else {
            Wide::new(size * im.cos(), size * im.sin(), exp, err)
        };
        Some(Num { small: None, exact: None, wide: wide? })
    }

    fn call(&self, func: Func, a: Num) -> Option<Num> {
        self.fuel.burn(8)?;
        match func {
            Func::Ln => return self.ln(a),
            Func::Log10 => return self.ln(a)?.div(self.ln(Num::int(10))?),
            Func::Exp => return self.exp(a),
            Func::Abs => return absolute(a),
            Func::Floor | Func::Ceil => return whole(a, func == Func::Ceil),
            _ => {}
        }
        let (x, im) = a.wide.plain()?;
        if im != 0.0 {
            return None;
        }
        if x == 0.0
            && matches!(func, Func::Sin | Func::Tan | Func::Sinh | Func::Tanh | Func::Arcsin | Func::Arctan)
        {
            return Some(Num::int(0));
        }
        let err = a.wide.err.max(-52);
        let divided =
            |above: f64, below: f64| Num::approx(above, 0.0, err)?.div(Num::approx(below, 0.0, err)?);
        match func {
            Func::Sin => Num::approx(x.sin(), 0.0, err),
            Func::Cos => Num::approx(x.cos(), 0.0, err),
            Func::Tan => divided(x.sin(), x.cos()),
            Func::Cot => divided(x.cos(), x.sin()),
            Func::Sec => divided(1.0, x.cos()),
            Func::Csc => divided(1.0, x.sin()),
            Func::Arcsin if x.abs() <= 1.0 => Num::approx(x.asin(), 0.0, err + 1),
            Func::Arccos if x.abs() <= 1.0 => Num::approx(x.acos(), 0.0, err + 1),
            Func::Arctan => Num::approx(x.atan(), 0.0, err),
            Func::Sinh => Num::approx(x.sinh(), 0.0, err + a.wide.exp.max(0) + 2),
            Func::Cosh => Num::approx(x.cosh(), 0.0, err + a.wide.exp.max(0) + 2),
            Func::Tanh => Num::approx(x.tanh(), 0.0, err),
            _ => None,
        }
    }

    fn factorial(&self, a: Num) -> Option<Num> {
        match a.as_int() {
            Some(n) if (0..=FACTORIAL_MAX).contains(&n) => {
                self.fuel.burn(n as u64 * 2)?;
                (2..=n).try_fold(Num::int(1), |product, k| product.mul(Num::int(k)))
            }
            Some(n) if n < 0 => None,
            // Too large: equal only to the factorial of the same.
            Some(_) => self.unknown_factorial(a),
            None => gamma::factorial(a).or_else(|| self.unknown_factorial(a)),
        }
    }

    fn unknown_factorial(&self, a: Num) -> Option<Num> {
        Some(Num::from_hash(hash("!", self.fingerprint(a)?), true))
    }

    /// Returns a quotient in which factorials that are too large to multiply out cancel: `2024!/2022!`.
    fn cancelled(&self, above: &Expr, below: &Expr, scope: &Scope) -> Option<Num> {
        let factors = |e: &'_ Expr| -> Vec<Expr> {
            match e {
                Expr::Product(factors) => factors.clone(),
                other => vec![other.clone()],
            }
        };
        let of = |e: &Expr| match e {
            Expr::Factorial(a) => self.scalar(a, scope, false)?.as_int().filter(|&n| n > FACTORIAL_MAX),
            _ => None,
        };
        let (mut above, below) = (factors(above), factors(below));
        let mut total = Num::int(1);
        let mut is_cancelled = false;
        for factor in &below {
            let pair = of(factor).and_then(|m| {
                let near = |n: i128| (n - m).abs() <= TERMS_MAX;
                above.iter().position(|e| of(e).is_some_and(near)).map(|at| (at, m))
            });
            let Some((at, m)) = pair else {
                total = total.div(self.scalar(factor, scope, false)?)?;
                continue;
            };
            let n = of(&above.swap_remove(at))?;
            self.fuel.burn((n - m).unsigned_abs() as u64 * 2)?;
            for k in n.min(m) + 1..=n.max(m) {
                total = if n > m { total.mul(Num::int(k))? } else { total.div(Num::int(k))? };
            }
            is_cancelled = true;
        }
        if !is_cancelled {
            return None;
        }
        above.iter().try_fold(total, |total, factor| total.mul(self.scalar(factor, scope, false)?))
    }

    fn binomial(&self, n: Num, k: Num) -> Option<Num> {
        if k.as_int().is_none()
            && let (Some(above), Some(first), Some(second)) =
                (gamma::factorial(n), gamma::factorial(k), gamma::factorial(n.sub(k)?))
        {
            return above.div(first)?.div(second);
        }
        let Some(k) = k.as_int().filter(|&k| (0..=2 * TERMS_MAX).contains(&k)) else {
            let both = self.fingerprint(n)? ^ self.fingerprint(k)?.rotate_left(17);
            return Some(Num::from_hash(hash("binom", both), true));
        };
        let k = match n.as_int() {
            Some(n) if n >= 0 && k > n => return Some(Num::int(0)),
            Some(n) if n >= 0 => k.min(n - k),
            _ => k,
        };
        self.fuel.burn(k as u64 * 32)?;
        (0..k).try_fold(Num::int(1), |product, j| product.mul(n.sub(Num::int(j))?)?.div(Num::int(j + 1)))
    }

    fn fold(&self, name: &str, items: &[Num]) -> Option<Num> {
        let (first, rest) = items.split_first()?;
        rest.iter().try_fold(*first, |a, b| match name {
            "max" | "min" => {
                let greater = a.order(*b)? == std::cmp::Ordering::Greater;
                Some(if greater == (name == "max") { a } else { *b })
            }
            _ => {
                let (x, y) = (a.as_int()?, b.as_int()?);
                let (mut g, mut r) = (x.unsigned_abs(), y.unsigned_abs());
                while r != 0 {
                    (g, r) = (r, g % r);
                }
                let g = i128::try_from(g).ok()?;
                if name == "mod" {
                    return (y > 0).then(|| Num::int(x.rem_euclid(y)));
                }
                Some(Num::int(if name == "gcd" || g == 0 { g } else { (x / g).checked_mul(y)?.abs() }))
            }
        })
    }

    /// Returns a number for a value: equal values have equal ones.
    fn fingerprint(&self, a: Num) -> Option<u64> {
        if let Some([x, y]) = a.exact {
            return Some(x ^ y.rotate_left(31));
        }
        // 30 bits of the mantissa: two ways to compute a value agree in them, but for a rare carry.
        let bits = |x: f64| (x * f64::from(1 << 30)).round() as i64 as u64;
        (a.wide.err < a.wide.exp - 34)
            .then(|| bits(a.wide.re) ^ bits(a.wide.im).rotate_left(21) ^ (a.wide.exp as u64) << 40)
    }

    /// Returns a number for a function known only by equality, from its name and its arguments' values.
    fn opaque(&self, name: &str, arguments: &[Expr], scope: &Scope) -> Option<Num> {
        let mut seed = self.index.wrapping_mul(0x9e37_79b9);
        for argument in arguments {
            let print = match argument {
                Expr::Text(text) => hash(text, 1),
                Expr::Infinity => hash("infinity", 2),
                other => self.fingerprint(self.scalar(other, scope, false)?)?,
            };
            seed = hash("argument", seed ^ print);
        }
        Some(Num::from_hash(hash(name, seed), self.index < 4))
    }

    /// Computes a sum or product of few whole steps; any other becomes a function of its parts.
    fn bound(&self, name: &str, variable: &str, parts: &[Expr], scope: &Scope) -> Option<Num> {
        let (body, bounds) = parts.split_last()?;
        let outer = ScopeLink(*scope);
        let limit = |e: &Expr| self.scalar(e, scope, false);
        let low = bounds.iter().find_map(|b| if let Expr::List(sides) = b { sides.last() } else { None });
        let high = bounds.iter().find(|b| !matches!(b, Expr::List(_)));
        if let (true, Some(low), Some(high)) = (matches!(name, "sum" | "prod"), low, high)
            && let (Some(low), Some(high)) =
                (limit(low).and_then(Num::as_int), limit(high).and_then(Num::as_int))
            && high.checked_sub(low).is_some_and(|terms| (0..TERMS_MAX).contains(&terms))
        {
            let start = Num::int(i128::from(name == "prod"));
            return (low..=high).try_fold(start, |total, k| {
                let term = self.scalar(body, &Some((variable, Num::int(k), Some(&outer))), false)?;
                if name == "sum" { total.add(term) } else { total.mul(term) }
            });
        }
        if let ("int", false, [low, high]) = (name, variable.is_empty(), bounds)
            && let Some(value) = self.integral(variable, [low, high], body, scope)
        {
            return Some(value);
        }
        let mut seed = hash(name, self.index);
        for bound in bounds {
            let bound = if let Expr::List(sides) = bound { sides.last()? } else { bound };
            let print = match bound {
                Expr::Infinity => hash("infinity", 2),
                Expr::Neg(a) if **a == Expr::Infinity => hash("infinity", 3),
                other => self.fingerprint(limit(other)?)?,
            };
            seed = hash("bound", seed ^ print);
        }
        // The bound variable has a separate value, under any name.
        let variable_value = Num::from_hash(hash("bound variable", self.index), self.index < 4);
        let body = self.scalar(body, &Some((variable, variable_value, Some(&outer))), false)?;
        Some(Num::from_hash(hash("body", seed ^ self.fingerprint(body)?), self.index < 4))
    }
}

impl Point<'_> {
    /// Returns the value of a definite integral of a real function, if it settles.
    fn integral(&self, variable: &str, ends: [&Expr; 2], body: &Expr, scope: &Scope) -> Option<Num> {
        // A value of few known digits counts if it is small: near an end `\sin x` is next to nothing.
        let real = |Num { wide, .. }: Num| {
            let known = wide.im == 0.0 && wide.exp < 1000 && wide.err < wide.exp.max(-10) - 20;
            known.then(|| wide.re * 2f64.powi(wide.exp.max(-1074) as i32))
        };
        let end = |e: &Expr| match e {
            Expr::Infinity => Some(End::Infinite(true)),
            Expr::Neg(a) if **a == Expr::Infinity => Some(End::Infinite(false)),
            other => self.scalar(other, scope, false).and_then(real).map(End::At),
        };
        let outer = ScopeLink(*scope);
        let f = |x: f64| {
            let x = Num { small: None, exact: None, wide: Wide::real(x)? };
            real(self.scalar(body, &Some((variable, x, Some(&outer))), false)?)
        };
        integral::integral(end(ends[0])?, end(ends[1])?, &f)
    }
}

fn is_factorial(expr: &Expr) -> bool {
    match expr {
        Expr::Factorial(_) => true,
        Expr::Product(factors) => factors.iter().any(|factor| matches!(factor, Expr::Factorial(_))),
        _ => false,
    }
}

fn pi() -> Option<Num> {
    Num::approx(std::f64::consts::PI, 0.0, -51)
}

fn negated(value: Value) -> Option<Value> {
    match value {
        Value::Num(a) => Some(Value::Num(a.neg())),
        Value::Matrix(rows) => scaled(rows, Num::int(-1)),
    }
}

fn scaled(rows: Vec<Vec<Num>>, by: Num) -> Option<Value> {
    let rows = rows.into_iter().map(|row| row.into_iter().map(|x| x.mul(by)).collect::<Option<Vec<_>>>());
    Some(Value::Matrix(rows.collect::<Option<Vec<_>>>()?))
}
