//! The tree of an answer: numbers and symbols, and their composites (lists, tuples, sets, relations, matrices).

/// A relation between two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rel {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// About equal: a remark follows, not the answer.
    Approx,
    /// Member of a set.
    In,
}

impl Rel {
    /// Returns the relation with its sides exchanged.
    pub(crate) fn flipped(self) -> Rel {
        match self {
            Rel::Lt => Rel::Gt,
            Rel::Le => Rel::Ge,
            Rel::Gt => Rel::Lt,
            Rel::Ge => Rel::Le,
            other => other,
        }
    }

    pub(crate) fn is_order(self) -> bool {
        matches!(self, Rel::Lt | Rel::Le | Rel::Gt | Rel::Ge)
    }
}

/// Functions of one argument that are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Func {
    Sin,
    Cos,
    Tan,
    Cot,
    Sec,
    Csc,
    Arcsin,
    Arccos,
    Arctan,
    Sinh,
    Cosh,
    Tanh,
    Ln,
    Log10,
    Exp,
    Abs,
    Floor,
    Ceil,
    Det,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetOp {
    Union,
    Intersection,
    Difference,
}

/// A node of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expr {
    /// Decimal digits with at most one point.
    Number(String),
    /// A name, subscripts and primes included; `e`, `i` and `\pi` have their values.
    Symbol(String),
    /// Words.
    Text(String),
    Infinity,
    EmptySet,
    Neg(Box<Expr>),
    Sum(Vec<Expr>),
    Product(Vec<Expr>),
    Quotient(Box<Expr>, Box<Expr>),
    /// `a : b`
    Ratio(Box<Expr>, Box<Expr>),
    Power(Box<Expr>, Box<Expr>),
    /// Index, radicand.
    Root(Box<Expr>, Box<Expr>),
    Call(Func, Box<Expr>),
    /// Base, argument.
    Log(Box<Expr>, Box<Expr>),
    Binomial(Box<Expr>, Box<Expr>),
    Factorial(Box<Expr>),
    /// `gcd`, `lcm`, `max`, `min`, `mod`.
    Fold(&'static str, Vec<Expr>),
    Degrees(Box<Expr>),
    Percent(Box<Expr>),
    /// Both signs; true: the lower sign first (`\mp`).
    PlusMinus(bool, Box<Expr>),
    Matrix(Vec<Vec<Expr>>),
    /// An expression known only by equality: a name and its arguments.
    Opaque(String, Vec<Expr>),
    /// A sum, product, integral or limit: name, bound variable, then bounds and body.
    Bound(String, String, Vec<Expr>),
    /// Opening bracket, closing bracket, entries; two or more.
    Tuple(char, char, Vec<Expr>),
    Set(Vec<Expr>),
    List(Vec<Expr>),
    Sets(SetOp, Box<Expr>, Box<Expr>),
    /// A class of residues, or a congruence, and its modulus.
    Modulo(Box<Expr>, Box<Expr>),
    /// `parts[0] ops[0] parts[1] …`
    Relation(Vec<Expr>, Vec<Rel>),
}

impl Expr {
    pub(crate) fn int(n: i64) -> Expr {
        let number = Expr::Number(n.unsigned_abs().to_string());
        if n < 0 { Expr::Neg(Box::new(number)) } else { number }
    }

    /// Returns the nodes directly below.
    pub(crate) fn children(&self) -> Vec<&Expr> {
        use Expr::*;
        match self {
            Number(_) | Symbol(_) | Text(_) | Infinity | EmptySet => Vec::new(),
            Neg(a) | Call(_, a) | Factorial(a) | Degrees(a) | Percent(a) | PlusMinus(_, a) => vec![a],
            Quotient(a, b)
            | Ratio(a, b)
            | Power(a, b)
            | Root(a, b)
            | Log(a, b)
            | Binomial(a, b)
            | Sets(_, a, b)
            | Modulo(a, b) => {
                vec![a, b]
            }
            Sum(v)
            | Product(v)
            | Fold(_, v)
            | Opaque(_, v)
            | Bound(_, _, v)
            | Tuple(_, _, v)
            | Set(v)
            | List(v)
            | Relation(v, _) => v.iter().collect(),
            Matrix(rows) => rows.iter().flatten().collect(),
        }
    }

    /// True if `found` holds for this node or one below.
    pub(crate) fn any(&self, found: &dyn Fn(&Expr) -> bool) -> bool {
        found(self) || self.children().into_iter().any(|child| child.any(found))
    }

    /// Returns a copy in which each `\pm` has its upper sign, or each its lower.
    pub(crate) fn with_sign(&self, upper: bool) -> Expr {
        let sign = |e: &Expr| match e {
            Expr::PlusMinus(minus_first, a) if *minus_first == upper => {
                Some(Expr::Neg(Box::new(a.with_sign(upper))))
            }
            Expr::PlusMinus(_, a) => Some(a.with_sign(upper)),
            _ => None,
        };
        self.replaced(&sign)
    }

    /// Returns a copy with a name replaced.
    pub(crate) fn with_symbol(&self, name: &str, by: &Expr) -> Expr {
        self.replaced(&|e| matches!(e, Expr::Symbol(found) if found == name).then(|| by.clone()))
    }

    /// Returns a copy with each node replaced for which `new` returns one.
    fn replaced(&self, new: &dyn Fn(&Expr) -> Option<Expr>) -> Expr {
        use Expr::*;
        if let Some(new) = new(self) {
            return new;
        }
        let one = |a: &Expr| Box::new(a.replaced(new));
        let all = |v: &[Expr]| v.iter().map(|a| a.replaced(new)).collect::<Vec<_>>();
        match self {
            PlusMinus(minus_first, a) => PlusMinus(*minus_first, one(a)),
            Neg(a) => Neg(one(a)),
            Call(f, a) => Call(*f, one(a)),
            Factorial(a) => Factorial(one(a)),
            Degrees(a) => Degrees(one(a)),
            Percent(a) => Percent(one(a)),
            Quotient(a, b) => Quotient(one(a), one(b)),
            Ratio(a, b) => Ratio(one(a), one(b)),
            Power(a, b) => Power(one(a), one(b)),
            Root(a, b) => Root(one(a), one(b)),
            Log(a, b) => Log(one(a), one(b)),
            Binomial(a, b) => Binomial(one(a), one(b)),
            Sets(op, a, b) => Sets(*op, one(a), one(b)),
            Modulo(a, b) => Modulo(one(a), one(b)),
            Sum(v) => Sum(all(v)),
            Product(v) => Product(all(v)),
            Fold(name, v) => Fold(name, all(v)),
            Opaque(name, v) => Opaque(name.clone(), all(v)),
            Bound(name, var, v) => Bound(name.clone(), var.clone(), all(v)),
            Tuple(open, close, v) => Tuple(*open, *close, all(v)),
            Set(v) => Set(all(v)),
            List(v) => List(all(v)),
            Relation(v, ops) => Relation(all(v), ops.clone()),
            Matrix(rows) => Matrix(rows.iter().map(|row| all(row)).collect()),
            Number(_) | Symbol(_) | Text(_) | Infinity | EmptySet => self.clone(),
        }
    }
}

/// Splits `x = 2 + 3 = 5` into the name and the value, the last part before an approximation; `x \in S` into x and S.
pub(crate) fn named(expr: &Expr) -> Option<(&Expr, &Expr)> {
    let Expr::Relation(parts, ops) = expr else { return None };
    let about = ops.iter().position(|op| *op == Rel::Approx);
    let (name, rest) = (parts.first()?, about.unwrap_or(ops.len()));
    if rest == 0 {
        // `x \approx 11` has no better value.
        return (ops.len() == 1 && is_name(name)).then(|| (name, &parts[1]));
    }
    let all = |op: Rel| ops[..rest].iter().all(|o| *o == op);
    if !(all(Rel::Eq) || (all(Rel::In) && rest == 1)) {
        return None;
    }
    if is_name(name) {
        return Some((name, &parts[rest]));
    }
    // `5 = x`
    (rest == 1 && ops.len() == 1 && all(Rel::Eq) && matches!(parts[1], Expr::Symbol(_)))
        .then(|| (&parts[1], name))
}

fn is_name(expr: &Expr) -> bool {
    match expr {
        Expr::Symbol(_) | Expr::Text(_) => true,
        Expr::Opaque(name, _) => !name.starts_with("digits") && name != "dots",
        Expr::Product(factors) => factors.iter().all(is_name),
        Expr::Tuple(_, _, items) | Expr::List(items) => items.iter().all(is_name),
        Expr::Quotient(a, b) | Expr::Ratio(a, b) => is_name(a) && is_name(b),
        Expr::Call(Func::Abs, a) => is_name(a),
        _ => false,
    }
}

/// Returns true if an expression has a name without a known value.
pub(crate) fn has_symbols(expr: &Expr) -> bool {
    match expr {
        Expr::Symbol(name) => !matches!(name.as_str(), "e" | "i" | "\\pi"),
        // The name that a definite integral binds is none of the answer's.
        Expr::Bound(name, variable, parts) if name == "int" && !variable.is_empty() && parts.len() == 3 => {
            parts.iter().any(|part| has_symbols(&part.with_symbol(variable, &Expr::int(1))))
        }
        Expr::Opaque(..) | Expr::Bound(..) => true,
        other => other.children().into_iter().any(has_symbols),
    }
}

/// True if an expression has the imaginary unit.
pub(crate) fn imaginary(expr: &Expr) -> bool {
    expr.any(&|e| matches!(e, Expr::Symbol(name) if name == "i"))
}

/// Converts `[[1, 2], [3, 4]]` to a matrix.
pub(super) fn rows(items: Vec<Expr>) -> Option<Expr> {
    let row = |item| if let Expr::Tuple(_, _, cells) = item { cells } else { vec![item] };
    let rows: Vec<Vec<Expr>> = items.into_iter().map(row).collect();
    rows.iter().all(|row| row.len() == rows[0].len()).then_some(Expr::Matrix(rows))
}

/// Rewrites `\{x : 0 < x < 1\}`, which parses as (x : 0) < x < 1: the colon binds the name to its condition.
pub(super) fn without_colon(items: &[Expr]) -> Option<Expr> {
    let [Expr::Relation(parts, ops)] = items else { return None };
    let Some(Expr::Ratio(name, first)) = parts.first() else { return None };
    if !matches!(**name, Expr::Symbol(_)) {
        return None;
    }
    let mut parts = parts.clone();
    parts[0] = (**first).clone();
    Some(Expr::Relation(parts, ops.clone()))
}
