//! Tokens to a tree: a bounded recursive descent over what answers are written with.
//!
//! Loosest first: lists, relations, operations on sets, ratios, sums, products, powers. What does not parse is no
//! bug in Plimsoll: the answer is then compared as text.

use super::expr::{Expr, Func, Rel, SetOp, rows, without_colon};
use super::join::{Join, joined};
use super::lex::{Spaced, Token, tokens};
use super::reversed::plain_intervals;
use super::unit_fractions::unit_fractions;

/// Deepest nesting of groups.
const DEPTH_MAX: u32 = 160;
/// Most operators in a row that build the tree to one side: `a/b/c`, `5!!!`.
const CHAIN_MAX: u32 = 32;

pub(crate) struct Answer {
    pub expr: Expr,
    /// The unit that was dropped, where it is a known one, with its powers.
    pub unit: Option<String>,
    /// Another unit was dropped as well.
    pub mixed_units: bool,
}

pub(super) struct Parser {
    tokens: Vec<Spaced>,
    at: usize,
    depth: u32,
    /// Bars that wait for their other half.
    open_bars: u32,
    pub(super) unit: Option<String>,
    pub(super) mixed_units: bool,
}

/// Parses an answer; `group_commas` as in [`tokens`].
pub(crate) fn parse(text: &str, group_commas: bool) -> Option<Answer> {
    let mut tokens = tokens(text, group_commas)?;
    let is_noise = |t: &Spaced| {
        matches!(t.token, Token::Sign('.' | ',' | ';') | Token::And | Token::Or)
            || t.token == Token::Command("newline".into())
    };
    while tokens.last().is_some_and(is_noise) {
        tokens.pop();
    }
    plain_intervals(&mut tokens);
    unit_fractions(&mut tokens);
    let mut parser = Parser { tokens, at: 0, depth: 0, open_bars: 0, unit: None, mixed_units: false };
    let expr = parser.groups()?;
    let (unit, mixed_units) = (parser.unit.take(), parser.mixed_units);
    (parser.at == parser.tokens.len()).then_some(Answer { expr, unit, mixed_units })
}

impl Parser {
    pub(super) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|spaced| &spaced.token)
    }

    pub(super) fn sign(&self) -> char {
        match self.peek() {
            Some(Token::Sign(c)) => *c,
            _ => '\0',
        }
    }

    fn name(&self) -> &str {
        match self.peek() {
            Some(Token::Command(name)) => name,
            _ => "",
        }
    }

    pub(super) fn eat(&mut self, c: char) -> bool {
        let found = self.sign() == c;
        self.at += usize::from(found);
        found
    }

    pub(super) fn eat_command(&mut self, name: &str) -> bool {
        let found = self.name() == name;
        self.at += usize::from(found);
        found
    }

    /// Runs one level deeper, or gives up.
    pub(super) fn deeper<T>(&mut self, parse: impl FnOnce(&mut Parser) -> Option<T>) -> Option<T> {
        self.depth += 1;
        let result = if self.depth > DEPTH_MAX { None } else { parse(self) };
        self.depth -= 1;
        result
    }

    /// Parses `p = 5, q = 2; p = 7, q = 2`: groups of equations are tuples; else semicolons are commas.
    fn groups(&mut self) -> Option<Expr> {
        let mut groups = vec![self.items(false)?];
        while self.eat(';') {
            groups.push(self.items(false)?);
        }
        let equations = |group: &Vec<Expr>| {
            group.len() > 1
                && group
                    .iter()
                    .all(|e| matches!(e, Expr::Relation(parts, ops) if parts.len() == 2 && ops[0] == Rel::Eq))
        };
        if groups.len() > 1 && groups.iter().all(equations) {
            let value = |e: Expr| match e {
                Expr::Relation(mut parts, _) => parts.pop().unwrap_or(Expr::EmptySet),
                other => other,
            };
            let tuples =
                groups.into_iter().map(|g| Expr::Tuple('(', ')', g.into_iter().map(value).collect()));
            return Some(Expr::List(tuples.collect()));
        }
        Some(one_or(groups.into_iter().flatten().collect(), Expr::List))
    }

    /// Parses relations separated by commas, `and` and `or`, and semicolons if `semicolons`.
    fn items(&mut self, semicolons: bool) -> Option<Vec<Expr>> {
        let (mut items, mut joins) = (vec![self.relation()?], Vec::new());
        while let Some(join) = self.join(semicolons) {
            joins.push(join);
            items.push(self.relation()?);
        }
        Some(joined(items, &joins))
    }

    /// Parses commas and words between two items; a word counts more than a comma before it.
    fn join(&mut self, semicolons: bool) -> Option<Join> {
        let mut join = None;
        loop {
            join = match self.peek() {
                Some(Token::And) => Some(Join::And),
                Some(Token::Or) => Some(Join::Or),
                Some(Token::Sign(',')) => join.or(Some(Join::Comma)),
                Some(Token::Sign(';')) if semicolons => join.or(Some(Join::Comma)),
                _ => return join,
            };
            self.at += 1;
        }
    }

    fn relation(&mut self) -> Option<Expr> {
        let mut parts = vec![self.sets()?];
        let mut ops = Vec::new();
        while let Some(op) = self.relation_sign() {
            // `= \frac{10}{9}` after a remark that did not parse is not a chain; an empty side is not an answer.
            ops.push(op);
            parts.push(self.sets()?);
            if ops.len() > CHAIN_MAX as usize {
                return None;
            }
        }
        let expr = if ops.is_empty() { parts.remove(0) } else { Expr::Relation(parts, ops) };
        self.modulus(expr)
    }

    /// Parses `\pmod{7}`, `\mod 7` or `(mod 7)` after a number or an equation.
    fn modulus(&mut self, expr: Expr) -> Option<Expr> {
        if self.at_modulus() {
            self.at += 2;
            let modulus = self.deeper(Parser::sum)?;
            return self.eat(')').then(|| Expr::Modulo(Box::new(expr), Box::new(modulus)));
        }
        if self.eat_command("pmod") || self.eat_command("mod") {
            let modulus = self.script()?;
            return Some(Expr::Modulo(Box::new(expr), Box::new(modulus)));
        }
        Some(expr)
    }

    fn at_modulus(&self) -> bool {
        let word =
            |token: &Token| matches!(token, Token::Command(name) if matches!(name.as_str(), "mod" | "bmod"));
        self.sign() == '(' && self.tokens.get(self.at + 1).is_some_and(|next| word(&next.token))
    }

    fn relation_sign(&mut self) -> Option<Rel> {
        let op = match self.peek()? {
            Token::Sign('=') => Rel::Eq,
            Token::Sign('<') => Rel::Lt,
            Token::Sign('>') => Rel::Gt,
            Token::Command(name) => match name.as_str() {
                "le" | "leq" | "leqslant" => Rel::Le,
                "ge" | "geq" | "geqslant" => Rel::Ge,
                "lt" => Rel::Lt,
                "gt" => Rel::Gt,
                "ne" | "neq" => Rel::Ne,
                "approx" | "simeq" | "thickapprox" => Rel::Approx,
                "in" => Rel::In,
                "equiv" => Rel::Eq,
                _ => return None,
            },
            _ => return None,
        };
        self.at += 1;
        Some(op)
    }

    fn sets(&mut self) -> Option<Expr> {
        let mut left = self.ratio()?;
        for _ in 0..CHAIN_MAX {
            let op = match self.name() {
                "cup" | "bigcup" => SetOp::Union,
                "cap" | "bigcap" => SetOp::Intersection,
                "setminus" | "backslash" => SetOp::Difference,
                _ => return Some(left),
            };
            self.at += 1;
            left = Expr::Sets(op, Box::new(left), Box::new(self.ratio()?));
        }
        None
    }

    fn ratio(&mut self) -> Option<Expr> {
        let mut left = self.sum()?;
        for _ in 0..CHAIN_MAX {
            if !(self.eat(':') || self.eat_command("colon")) {
                return Some(left);
            }
            left = Expr::Ratio(Box::new(left), Box::new(self.sum()?));
        }
        None
    }

    pub(super) fn sum(&mut self) -> Option<Expr> {
        let mut terms = Vec::new();
        loop {
            let sign = self.sum_sign();
            if sign.is_none() && !terms.is_empty() {
                return Some(one_or(terms, Expr::Sum));
            }
            // `--5` is 5; but `3--5` may be a range.
            let again = terms.is_empty() || sign == Some('+');
            let term = self.deeper(if again { Parser::negated } else { Parser::product })?;
            terms.push(match sign {
                Some('-') => Expr::Neg(Box::new(term)),
                Some('±') => Expr::PlusMinus(false, Box::new(term)),
                Some('∓') => Expr::PlusMinus(true, Box::new(term)),
                _ => term,
            });
        }
    }

    fn sum_sign(&mut self) -> Option<char> {
        let sign = match self.peek()? {
            Token::Sign(c @ ('+' | '-')) => *c,
            Token::Command(name) if name == "pm" => '±',
            Token::Command(name) if name == "mp" => '∓',
            _ => return None,
        };
        self.at += 1;
        Some(sign)
    }

    fn negated(&mut self) -> Option<Expr> {
        if self.eat('-') {
            return Some(Expr::Neg(Box::new(self.deeper(Parser::negated)?)));
        }
        self.product()
    }

    /// Parses factors, adjacent or with an operator between them.
    fn product(&mut self) -> Option<Expr> {
        let mut factors = vec![self.factor()?];
        let mut quotients = 0;
        loop {
            if self.eat('*')
                || self.eat_command("cdot")
                || self.eat_command("times")
                || self.eat_command("ast")
            {
                factors.push(self.signed_factor()?);
            } else if self.eat('/') || self.eat_command("div") {
                quotients += 1;
                if quotients > CHAIN_MAX {
                    return None;
                }
                let below = self.signed_factor()?;
                let above = one_or(std::mem::take(&mut factors), Expr::Product);
                factors.push(Expr::Quotient(Box::new(above), Box::new(below)));
            } else if self.eat_command("bmod") {
                quotients += 1;
                if quotients > CHAIN_MAX {
                    return None;
                }
                let modulus = self.signed_factor()?;
                let value = one_or(std::mem::take(&mut factors), Expr::Product);
                factors.push(Expr::Fold("mod", vec![value, modulus]));
            } else if self.starts_factor() {
                // `5 5` is not 25; but `2^3 5` is not written either. `7!3!` is a product of two factorials.
                let factorials = matches!(factors.last(), Some(Expr::Factorial(_)))
                    && self.ahead(1) == Some(&Token::Sign('!'));
                if matches!(self.peek(), Some(Token::Number(_))) && !factorials {
                    return None;
                }
                factors.push(self.factor()?);
            } else {
                return Some(one_or(factors, Expr::Product));
            }
        }
    }

    fn signed_factor(&mut self) -> Option<Expr> {
        if self.eat('-') {
            return Some(Expr::Neg(Box::new(self.deeper(Parser::signed_factor)?)));
        }
        self.eat('+');
        self.factor()
    }

    pub(super) fn starts_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Number(_) | Token::Letter(_)) => true,
            Some(Token::Sign('(')) => !self.at_modulus(),
            Some(Token::Sign('[' | '{' | '⦃')) => true,
            Some(Token::Sign('|')) => self.open_bars == 0,
            Some(Token::Command(name)) => {
                !matches!(
                    name.as_str(),
                    "le" | "leq"
                        | "leqslant"
                        | "ge"
                        | "geq"
                        | "geqslant"
                        | "lt"
                        | "gt"
                        | "ne"
                        | "neq"
                        | "approx"
                        | "simeq"
                        | "thickapprox"
                        | "in"
                        | "equiv"
                        | "cup"
                        | "bigcup"
                        | "cap"
                        | "bigcap"
                        | "setminus"
                        | "backslash"
                        | "colon"
                        | "pm"
                        | "mp"
                        | "cdot"
                        | "times"
                        | "ast"
                        | "div"
                        | "rvert"
                        | "rVert"
                        | "rfloor"
                        | "rceil"
                        | "newline"
                        | "mid"
                        | "rangle"
                        | "choose"
                        | "over"
                        | "to"
                        | "rightarrow"
                        | "circ"
                        | "degree"
                        | "rbrace"
                        | "mod"
                        | "pmod"
                        | "bmod"
                ) && !name.starts_with("end ")
            }
            _ => false,
        }
    }

    /// Parses a primary with its powers, factorials, degrees, per cent and units.
    fn factor(&mut self) -> Option<Expr> {
        let bracketed = self.at_bracket();
        let mut base = self.primary()?;
        if !bracketed && let Some(fraction) = self.mixed(&base) {
            base = Expr::Sum(vec![base, fraction]);
        }
        for _ in 0..CHAIN_MAX {
            if self.eat('^') {
                if self.eat_command("circ") || self.eat_braced("circ") || self.eat_command("degree") {
                    base = Expr::Degrees(Box::new(base));
                } else if self.eat_command("prime") {
                    base = Expr::Opaque("'".into(), vec![base]);
                } else {
                    let exponent = self.deeper(Parser::script)?;
                    base = Expr::Power(Box::new(base), Box::new(exponent));
                }
            } else if self.eat('!') {
                base = Expr::Factorial(Box::new(base));
            } else if self.eat('%') {
                base = Expr::Percent(Box::new(base));
            } else if self.eat_command("circ") || self.eat_command("degree") {
                base = Expr::Degrees(Box::new(base));
            } else if let Some(Token::Text(_)) = self.peek() {
                base = self.units(base)?;
            } else {
                return Some(base);
            }
        }
        None
    }

    pub(super) fn eat_braced(&mut self, name: &str) -> bool {
        let found = self.tokens.get(self.at..self.at + 3).is_some_and(|t| {
            t[0].token == Token::Sign('{')
                && t[1].token == Token::Command(name.into())
                && t[2].token == Token::Sign('}')
        });
        self.at += if found { 3 } else { 0 };
        found
    }

    /// Parses what follows `^` or `_`: a group, or a number, a letter or a command with its sign.
    pub(super) fn script(&mut self) -> Option<Expr> {
        if self.sign() == '{' {
            return self.brace();
        }
        if self.eat('-') {
            return Some(Expr::Neg(Box::new(self.deeper(Parser::script)?)));
        }
        self.eat('+');
        // Answers write `2^10` for 2^{10}: all digits are taken, where TeX would take one.
        self.primary()
    }

    /// Parses an argument of `\frac` or `\sqrt`: a group, or a single digit, letter or command.
    pub(super) fn argument(&mut self) -> Option<Expr> {
        if self.sign() == '{' {
            return self.brace();
        }
        if let Some(Token::Number(text)) = self.peek() {
            let text = text.clone();
            if text.len() > 1 && text.bytes().all(|b| b.is_ascii_digit()) {
                // `\frac12`: one digit is taken, the rest stays.
                self.tokens[self.at].token = Token::Number(text[1..].to_string());
                return Some(Expr::Number(text[..1].to_string()));
            }
        }
        self.primary()
    }

    /// Parses a group in braces; an empty one is `None`.
    pub(super) fn brace(&mut self) -> Option<Expr> {
        self.deeper(|p| {
            if !p.eat('{') {
                return None;
            }
            let bars = std::mem::take(&mut p.open_bars);
            let mut items = p.items(true)?;
            if p.eat_command("choose") {
                items = vec![Expr::Binomial(Box::new(one_or(items, Expr::List)), Box::new(p.sum()?))];
            } else if p.eat_command("over") {
                items = vec![Expr::Quotient(Box::new(one_or(items, Expr::List)), Box::new(p.sum()?))];
            }
            p.open_bars = bars;
            p.eat('}').then(|| one_or(items, Expr::List))
        })
    }

    /// Parses `( … )`, `[ … )` and so on: a group, or a tuple or interval.
    pub(super) fn bracket(&mut self) -> Option<Expr> {
        let open = self.sign();
        self.at += 1;
        let bars = std::mem::take(&mut self.open_bars);
        let items = self.deeper(|p| p.items(true))?;
        self.open_bars = bars;
        let close = self.sign();
        if !matches!(close, ')' | ']') {
            return None;
        }
        self.at += 1;
        let mut items = items;
        match (items.len(), open, close) {
            (1, '(', ')') | (1, '[', ']') => items.pop(),
            (1, ..) => None,
            (_, '[', ']') if items.iter().all(|item| matches!(item, Expr::Tuple('[', ']', _))) => rows(items),
            _ => Some(Expr::Tuple(open, close, items)),
        }
    }

    /// Parses `\{ … \}`; a set with a condition is its condition.
    pub(super) fn set(&mut self) -> Option<Expr> {
        self.at += 1;
        if self.eat('⦄') {
            return Some(Expr::EmptySet);
        }
        let bars = std::mem::replace(&mut self.open_bars, 1);
        let items = self.deeper(|p| p.items(true))?;
        if self.eat_command("mid") || self.eat('|') {
            let condition = self.deeper(|p| p.items(true))?;
            self.open_bars = bars;
            return if self.eat('⦄') && condition.len() == 1 { condition.into_iter().next() } else { None };
        }
        self.open_bars = bars;
        // A brace that was cut off at the end, as in `\{1, 2\\}`, is taken as closed.
        let closed = self.eat('⦄') || self.at == self.tokens.len();
        closed.then(|| without_colon(&items).unwrap_or(Expr::Set(items)))
    }

    /// Parses `| … |`, `\lfloor … \rfloor` and `\lceil … \rceil`.
    pub(super) fn between(&mut self, func: Func, close: Option<&str>) -> Option<Expr> {
        self.at += 1;
        let bars = self.open_bars;
        self.open_bars = u32::from(close.is_none());
        let inner = self.deeper(Parser::sum)?;
        self.open_bars = bars;
        let closed = match close {
            None => self.eat('|') || self.eat_command("vert") || self.eat_command("rvert"),
            Some(name) => self.eat_command(name),
        };
        closed.then(|| Expr::Call(func, Box::new(inner)))
    }

    pub(super) fn take(&mut self) -> Option<Token> {
        let token = self.peek()?.clone();
        self.at += 1;
        Some(token)
    }

    /// Returns the token before the last one.
    pub(super) fn earlier(&self) -> Option<&Token> {
        self.tokens.get(self.at.checked_sub(2)?).map(|spaced| &spaced.token)
    }

    pub(super) fn space_before(&self) -> bool {
        self.tokens.get(self.at).is_some_and(|spaced| spaced.space)
    }

    pub(super) fn ahead(&self, tokens: usize) -> Option<&Token> {
        self.tokens.get(self.at + tokens).map(|spaced| &spaced.token)
    }

    pub(super) fn skip(&mut self, tokens: usize) {
        self.at += tokens;
    }

    /// Parses the next tokens alone, and all of them; `None`, with nothing taken, if that fails.
    pub(super) fn within<T>(
        &mut self,
        tokens: usize,
        parse: impl FnOnce(&mut Parser) -> Option<T>,
    ) -> Option<T> {
        let (start, end) = (self.at, self.at + tokens);
        let rest = self.tokens.split_off(end);
        let bars = std::mem::take(&mut self.open_bars);
        let result = self.deeper(parse).filter(|_| self.at == end);
        self.open_bars = bars;
        self.tokens.extend(rest);
        if result.is_none() {
            self.at = start;
        }
        result
    }

    pub(super) fn at_bracket(&self) -> bool {
        matches!(self.sign(), '(' | '[')
    }

    pub(super) fn at_sign(&self, c: char) -> bool {
        self.sign() == c
    }
}

/// Returns the only element, or the result of `make` for several.
pub(super) fn one_or(mut items: Vec<Expr>, make: impl FnOnce(Vec<Expr>) -> Expr) -> Expr {
    match (items.len(), items.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            items.extend(last);
            make(items)
        }
    }
}
