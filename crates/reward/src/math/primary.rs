//! Parses the smallest parts of an answer: numbers, names, fractions, roots, functions, matrices.

use super::expr::{Expr, Func};
use super::lex::Token;
use super::parse::{Parser, one_or};

impl Parser {
    pub(super) fn primary(&mut self) -> Option<Expr> {
        self.deeper(Parser::primary_here)
    }

    fn primary_here(&mut self) -> Option<Expr> {
        match self.peek()?.clone() {
            Token::Number(text) => {
                self.take();
                self.based(text)
            }
            Token::Letter(name) => {
                self.take();
                self.named(name)
            }
            Token::Text(text) => {
                self.take();
                self.text(text)
            }
            // `(204)_5`
            Token::Sign('(' | '[') => match self.bracket()? {
                Expr::Number(digits) if self.at_sign('_') => self.based(digits),
                group => Some(group),
            },
            Token::Sign('{') => match self.brace()? {
                Expr::Number(digits) => self.based(digits),
                group => Some(group),
            },
            Token::Sign('⦃') => self.set(),
            Token::Sign('|') => self.between(Func::Abs, None),
            Token::Command(name) => {
                if matches!(name.as_str(), "lvert" | "vert") {
                    return self.between(Func::Abs, None);
                }
                match name.as_str() {
                    "lfloor" => return self.between(Func::Floor, Some("rfloor")),
                    "lceil" => return self.between(Func::Ceil, Some("rceil")),
                    _ => {}
                }
                self.take();
                self.command(&name)
            }
            _ => None,
        }
    }

    /// Parses a number, or digits in a base: `204_5`.
    fn based(&mut self, digits: String) -> Option<Expr> {
        if !self.eat('_') {
            return Some(Expr::Number(digits));
        }
        match self.script()? {
            Expr::Number(base) if base == "10" => Some(Expr::Number(digits)),
            Expr::Number(base) => Some(Expr::Opaque(format!("digits {digits}"), vec![Expr::Number(base)])),
            other => Some(Expr::Opaque(format!("digits {digits}"), vec![other])),
        }
    }

    /// Joins consecutive words.
    fn text(&mut self, first: String) -> Option<Expr> {
        let mut text = first;
        while let Some(Token::Text(more)) = self.peek() {
            text = format!("{text} {more}");
            self.take();
        }
        Some(Expr::Text(text))
    }

    /// Parses a name with its subscript and primes, and its arguments if it is a function's.
    fn named(&mut self, name: String) -> Option<Expr> {
        let mut name = name;
        let mut arguments = Vec::new();
        if self.eat('_') {
            match self.script()? {
                Expr::Number(index) => name = format!("{name}_{index}"),
                Expr::Symbol(index) => name = format!("{name}_{index}"),
                Expr::Text(index) => name = format!("{name}_{index}"),
                other => {
                    name.push('_');
                    arguments.push(other);
                }
            }
        }
        while self.eat('\'') {
            name.push('\'');
        }
        let function = matches!(name.trim_end_matches('\'').split('_').next(), Some("f" | "g" | "F" | "G"));
        if function && self.at_bracket() && self.at_sign('(') {
            match self.bracket()? {
                Expr::Tuple(_, _, items) => arguments.extend(items),
                one => arguments.push(one),
            }
            name.push('(');
        }
        Some(if arguments.is_empty() { Expr::Symbol(name) } else { Expr::Opaque(name, arguments) })
    }

    fn command(&mut self, name: &str) -> Option<Expr> {
        if let Some(figure) = self.figure(name) {
            return Some(figure);
        }
        let pair = |a: Expr, b: Expr| (Box::new(a), Box::new(b));
        Some(match name {
            "frac" | "dfrac" | "tfrac" | "cfrac" | "sfrac" => {
                let (above, below) = pair(self.argument()?, self.argument()?);
                Expr::Quotient(above, below)
            }
            "binom" | "dbinom" | "tbinom" => {
                let (n, k) = pair(self.argument()?, self.argument()?);
                Expr::Binomial(n, k)
            }
            "sqrt" => self.root()?,
            "infty" | "infinity" => Expr::Infinity,
            "emptyset" | "varnothing" | "O" => Expr::EmptySet,
            "lbrace" => return None,
            "boxed" | "fbox" => return self.argument(),
            "overline" | "vec" | "hat" | "bar" | "overrightarrow" | "widehat" | "dot" | "tilde" => {
                let inner = self.argument()?;
                Expr::Opaque(name.to_string(), vec![inner])
            }
            "angle" | "triangle" | "measuredangle" => {
                let inner = self.argument()?;
                Expr::Opaque(name.to_string(), vec![inner])
            }
            "mathbf" | "bold" => return self.argument(),
            "gcd" | "lcm" | "max" | "min" => self.fold(name)?,
            "log" => self.log()?,
            "sum" | "prod" | "int" | "lim" | "iint" | "oint" => self.bound(name)?,
            "ldots" | "dots" | "cdots" | "hdots" => Expr::Opaque("dots".into(), vec![]),
            _ if name.starts_with("begin ") => self.matrix(name)?,
            _ => match function(name) {
                Some(func) => self.call(func)?,
                // A Greek letter, or any other command: a name.
                None => return self.named(format!("\\{}", greek(name)?)),
            },
        })
    }

    fn root(&mut self) -> Option<Expr> {
        let index = if self.at_sign('[') {
            // `\sqrt[3]{x}`; but `\sqrt [` without a group after it is not written.
            self.bracket()?
        } else {
            Expr::int(2)
        };
        let radicand = self.argument()?;
        Some(Expr::Root(Box::new(index), Box::new(radicand)))
    }

    fn fold(&mut self, name: &str) -> Option<Expr> {
        let name = ["gcd", "lcm", "max", "min"].into_iter().find(|&known| known == name)?;
        let items = match if self.at_sign('⦃') { self.set()? } else { self.bracket()? } {
            Expr::Tuple(_, _, items) | Expr::Set(items) => items,
            one => vec![one],
        };
        Some(Expr::Fold(name, items))
    }

    fn log(&mut self) -> Option<Expr> {
        if self.eat('_') {
            let base = self.script()?;
            let argument = self.function_argument()?;
            return Some(Expr::Log(Box::new(base), Box::new(argument)));
        }
        self.call(Func::Log10)
    }

    /// Parses a function with its argument; a power before the argument belongs to the result, -1 to the function.
    fn call(&mut self, func: Func) -> Option<Expr> {
        let power = if self.eat('^') { Some(self.script()?) } else { None };
        let argument = Box::new(self.function_argument()?);
        Some(match power {
            None => Expr::Call(func, argument),
            Some(power) if power == Expr::int(-1) => {
                let inverse = match func {
                    Func::Sin => Func::Arcsin,
                    Func::Cos => Func::Arccos,
                    Func::Tan => Func::Arctan,
                    _ => return None,
                };
                Expr::Call(inverse, argument)
            }
            Some(power) => Expr::Power(Box::new(Expr::Call(func, argument)), Box::new(power)),
        })
    }

    /// Parses `(…)`, `{…}`, or factors up to a bracket, function or sign: `\sin 2x \cos y` has the argument 2x.
    fn function_argument(&mut self) -> Option<Expr> {
        if self.at_bracket() || self.at_sign('{') || self.at_sign('|') {
            return if self.at_bracket() { self.bracket() } else { self.primary() };
        }
        let mut factors = Vec::new();
        loop {
            let more = match self.peek() {
                Some(Token::Number(_)) => factors.is_empty(),
                Some(Token::Letter(_)) => true,
                Some(Token::Command(name)) => {
                    self.starts_factor()
                        && (factors.is_empty()
                            || (function(name).is_none() && name != "log" && !name.starts_with("begin ")))
                }
                _ => false,
            };
            if !more {
                break;
            }
            let mut factor = self.primary()?;
            if self.eat('^') {
                factor = if self.eat_command("circ") || self.eat_braced("circ") {
                    Expr::Degrees(Box::new(factor))
                } else {
                    Expr::Power(Box::new(factor), Box::new(self.script()?))
                };
            }
            if self.at_sign('{') && factors.is_empty() {
                return None;
            }
            factors.push(factor);
        }
        if factors.is_empty() && self.eat('-') {
            return Some(Expr::Neg(Box::new(self.deeper(Parser::function_argument)?)));
        }
        (!factors.is_empty()).then(|| one_or(factors, Expr::Product))
    }

    /// Parses `\sum_{k=0}^{n} body` and the like.
    fn bound(&mut self, name: &str) -> Option<Expr> {
        let (mut variable, mut parts) = (String::new(), Vec::new());
        let starts_above = self.at_sign('^');
        for _ in 0..2 {
            if self.eat('_') {
                match self.script()? {
                    Expr::Relation(sides, _) => {
                        if let Some(Expr::Symbol(name)) = sides.first() {
                            variable = name.clone();
                        }
                        parts.push(Expr::List(sides));
                    }
                    other => parts.push(other),
                }
            } else if self.eat('^') {
                // `^1_0` has no digit in a base.
                parts.push(match (self.peek().cloned(), self.ahead(1)) {
                    (Some(Token::Number(high)), Some(Token::Sign('_'))) => {
                        self.skip(1);
                        Expr::Number(high)
                    }
                    _ => self.script()?,
                });
            }
        }
        if starts_above {
            parts.reverse();
        }
        if name == "int"
            && let Some((body, variable)) = self.integrand()
        {
            parts.push(body);
            return Some(Expr::Bound(name.to_string(), variable, parts));
        }
        parts.push(self.sum_term()?);
        Some(Expr::Bound(name.to_string(), variable, parts))
    }

    /// Parses `2x + 1 \, dx`; `None`, with nothing taken, if no differential ends it.
    fn integrand(&mut self) -> Option<(Expr, String)> {
        let (end, variable) = self.differential()?;
        let body = match end {
            0 => Some(Expr::int(1)),
            _ => self.within(end, Parser::sum),
        };
        let body = body?;
        self.skip(2);
        Some((body, variable))
    }

    /// Returns how many tokens are before the differential of the integral that begins here, and its name.
    fn differential(&self) -> Option<(usize, String)> {
        let (mut depth, mut integrals) = (0u32, 1u32);
        for at in 0.. {
            match self.ahead(at)? {
                Token::Sign('(' | '[' | '{' | '\u{2983}') => depth += 1,
                Token::Sign(')' | ']' | '}' | '\u{2984}') => depth = depth.checked_sub(1)?,
                Token::Command(name) if name == "int" && depth == 0 => integrals += 1,
                Token::Letter(d) | Token::Text(d) if d == "d" && depth == 0 => {
                    let variable = match self.ahead(at + 1) {
                        Some(Token::Letter(name)) => name.clone(),
                        Some(Token::Command(name)) => format!("\\{name}"),
                        _ => continue,
                    };
                    integrals -= 1;
                    if integrals == 0 {
                        return Some((at, variable));
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// Parses the body of a sum: adjacent factors.
    fn sum_term(&mut self) -> Option<Expr> {
        let mut factors = Vec::new();
        while self.starts_factor() || self.at_sign('*') || self.peek() == Some(&Token::Command("cdot".into()))
        {
            if !(self.eat('*') || self.eat_command("cdot")) {
                factors.push(self.factor_once()?);
            }
        }
        (!factors.is_empty()).then(|| one_or(factors, Expr::Product))
    }

    fn factor_once(&mut self) -> Option<Expr> {
        let base = self.primary()?;
        if self.eat('^') { Some(Expr::Power(Box::new(base), Box::new(self.script()?))) } else { Some(base) }
    }

    /// Parses the rows of a matrix environment, with any brackets.
    fn matrix(&mut self, begin: &str) -> Option<Expr> {
        let kind = begin.trim_start_matches("begin ");
        let end = format!("end {kind}");
        if !kind.ends_with("matrix") && kind != "array" {
            return None;
        }
        if kind == "array" && self.at_sign('{') {
            while !self.eat('}') {
                self.take()?;
            }
        }
        let (mut rows, mut row) = (Vec::new(), Vec::new());
        loop {
            if self.eat_command(&end) {
                break;
            }
            if self.eat_command("newline") {
                rows.push(std::mem::take(&mut row));
            } else if self.eat_command("hline") || self.eat('&') {
                // Cells are separated by their contents; an empty cell is not mathematics.
            } else {
                row.push(self.sum()?);
            }
        }
        rows.push(row);
        rows.retain(|row| !row.is_empty());
        let width = rows.first()?.len();
        if rows.iter().any(|row| row.len() != width) {
            return None;
        }
        let matrix = Expr::Matrix(rows);
        Some(if kind == "vmatrix" { Expr::Call(Func::Det, Box::new(matrix)) } else { matrix })
    }
}

fn function(name: &str) -> Option<Func> {
    Some(match name {
        "sin" => Func::Sin,
        "cos" => Func::Cos,
        "tan" => Func::Tan,
        "cot" => Func::Cot,
        "sec" => Func::Sec,
        "csc" => Func::Csc,
        "arcsin" => Func::Arcsin,
        "arccos" => Func::Arccos,
        "arctan" => Func::Arctan,
        "sinh" => Func::Sinh,
        "cosh" => Func::Cosh,
        "tanh" => Func::Tanh,
        "ln" => Func::Ln,
        "lg" => Func::Log10,
        "exp" => Func::Exp,
        "abs" => Func::Abs,
        "det" => Func::Det,
        _ => return None,
    })
}

/// Returns a command that is a name; brackets and arrows are not.
fn greek(name: &str) -> Option<&str> {
    let refused = [
        "rbrace",
        "rangle",
        "langle",
        "to",
        "rightarrow",
        "Rightarrow",
        "mid",
        "newline",
        "choose",
        "over",
        "lVert",
        "rVert",
    ];
    (!refused.contains(&name) && !name.contains(' ')).then_some(match name {
        "varphi" => "phi",
        "varepsilon" => "epsilon",
        other => other,
    })
}
