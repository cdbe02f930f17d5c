//! Parses expressions with Jinja's precedence. Refuses a tree deeper than `NESTING_MAX` while it grows, so parsing,
//! evaluating and dropping it take a bounded stack.

use super::ast::{Arguments, Binary, Comparison, FilterCall, Kind, Node};
use super::lexer::Token;
use super::meter::{Fault, NESTING_MAX, Result};

/// The tokens of a template and the place in them.
pub(super) struct Parser<'s> {
    tokens: Vec<(Token<'s>, u32)>,
    at: usize,
    /// Blocks and brackets that are open.
    nesting: usize,
}

impl<'s> Parser<'s> {
    pub(super) fn new(tokens: Vec<(Token<'s>, u32)>) -> Parser<'s> {
        Parser { tokens, at: 0, nesting: 0 }
    }

    pub(super) fn peek(&self) -> Option<&Token<'s>> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    pub(super) fn next(&mut self) -> Option<Token<'s>> {
        let token = self.peek().cloned();
        self.at += 1;
        token
    }

    pub(super) fn line(&self) -> u32 {
        let at = self.at.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(at).map_or(1, |(_, line)| *line)
    }

    pub(super) fn fault<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Box::new(Fault { line: self.line(), what: what.into() }))
    }

    /// Returns a fault about the next token.
    pub(super) fn unexpected<T>(&self, expected: &str) -> Result<T> {
        let found = match self.peek() {
            None => "the end of the template".to_string(),
            Some(Token::Data(_)) => "text".to_string(),
            Some(Token::EmitBegin) => "`{{`".to_string(),
            Some(Token::EmitEnd) => "`}}`".to_string(),
            Some(Token::TagBegin) => "`{%`".to_string(),
            Some(Token::TagEnd) => "`%}`".to_string(),
            Some(Token::Name(name)) => format!("`{}`", plimsoll_base::shown(name)),
            Some(Token::Text(text)) => format!("{:?}", plimsoll_base::shown(text)),
            Some(Token::Int(number)) => number.to_string(),
            Some(Token::Float(number)) => number.to_string(),
            Some(Token::Sign(sign)) => format!("`{sign}`"),
        };
        self.fault(format!("found {found}, expected {expected}"))
    }

    /// Enters a block or a bracket; `close` leaves it.
    pub(super) fn open(&mut self) -> Result<()> {
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            self.fault(format!("blocks and brackets nest deeper than {NESTING_MAX}"))
        } else {
            Ok(())
        }
    }

    pub(super) fn close(&mut self) {
        self.nesting -= 1;
    }

    pub(super) fn is_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), Some(Token::Sign(found)) if *found == sign)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if *found == name)
    }

    /// Passes a sign if it comes next.
    pub(super) fn skip(&mut self, sign: &str) -> bool {
        let is_next = self.is_sign(sign);
        self.at += usize::from(is_next);
        is_next
    }

    /// Passes a word if it comes next.
    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let is_next = self.is_name(name);
        self.at += usize::from(is_next);
        is_next
    }

    pub(super) fn expect(&mut self, sign: &str) -> Result<()> {
        if self.skip(sign) { Ok(()) } else { self.unexpected(&format!("`{sign}`")) }
    }

    pub(super) fn name(&mut self) -> Result<&'s str> {
        match self.peek() {
            Some(Token::Name(name)) => {
                let name = *name;
                self.at += 1;
                Ok(name)
            }
            _ => self.unexpected("a name"),
        }
    }

    fn node(&self, line: u32, kind: Kind) -> Result<Node> {
        let depth = 1 + kind.children_depth();
        if depth > NESTING_MAX {
            let what = format!(
                "an expression of more than {NESTING_MAX} levels of operators, filters, attributes or brackets"
            );
            return Err(Box::new(Fault { line, what }));
        }
        Ok(Node { line, depth, kind })
    }

    /// Parses `a`, or `a, b` as a tuple.
    pub(super) fn tuple_or_one(&mut self) -> Result<Node> {
        let line = self.line();
        let first = self.expression()?;
        if !self.is_sign(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip(",") && !self.ends_list() {
            items.push(self.expression()?);
        }
        self.node(line, Kind::Tuple(items))
    }

    fn ends_list(&self) -> bool {
        let closes = |sign: &&str| [")", "]", "=", "}"].contains(sign);
        matches!(self.peek(), None | Some(Token::TagEnd | Token::EmitEnd))
            || matches!(self.peek(), Some(Token::Sign(sign)) if closes(sign))
            || self.is_name("if") // of a loop
    }

    /// Parses one expression, `a if b else c` included.
    pub(super) fn expression(&mut self) -> Result<Node> {
        self.open()?;
        let line = self.line();
        let mut value = self.or()?;
        while self.skip_name("if") {
            let test = self.or()?;
            let no = if self.skip_name("else") { Some(Box::new(self.expression()?)) } else { None };
            value = self.node(line, Kind::Choice(Box::new([value, test]), no))?;
        }
        self.close();
        Ok(value)
    }

    /// Parses an expression in which `if` does not follow: what a loop runs over.
    pub(super) fn or(&mut self) -> Result<Node> {
        let line = self.line();
        let mut left = self.and()?;
        while self.skip_name("or") {
            let right = self.and()?;
            left = self.node(line, Kind::Or(Box::new(left), Box::new(right)))?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Node> {
        let line = self.line();
        let mut left = self.not()?;
        while self.skip_name("and") {
            let right = self.not()?;
            left = self.node(line, Kind::And(Box::new(left), Box::new(right)))?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Node> {
        let line = self.line();
        let mut count = 0;
        while self.skip_name("not") {
            count += 1;
        }
        let mut value = self.comparison()?;
        for _ in 0..count {
            value = self.node(line, Kind::Not(Box::new(value)))?;
        }
        Ok(value)
    }

    fn comparison(&mut self) -> Result<Node> {
        let line = self.line();
        let first = self.arithmetic(0)?;
        let mut rest = Vec::new();
        while let Some(comparison) = self.comparison_sign() {
            rest.push((comparison, self.arithmetic(0)?));
        }
        if rest.is_empty() { Ok(first) } else { self.node(line, Kind::Compare(Box::new(first), rest)) }
    }

    fn comparison_sign(&mut self) -> Option<Comparison> {
        let is_not_in =
            self.is_name("not") && matches!(self.tokens.get(self.at + 1), Some((Token::Name("in"), _)));
        let comparison = match self.peek()? {
            Token::Sign("==") => Comparison::Equal,
            Token::Sign("!=") => Comparison::NotEqual,
            Token::Sign("<") => Comparison::Less,
            Token::Sign("<=") => Comparison::LessOrEqual,
            Token::Sign(">") => Comparison::Greater,
            Token::Sign(">=") => Comparison::GreaterOrEqual,
            Token::Name("in") => Comparison::In,
            Token::Name("not") if is_not_in => Comparison::NotIn,
            _ => return None,
        };
        self.at += 1 + usize::from(is_not_in);
        Some(comparison)
    }

    /// Parses operators of at least a level: `+ -`, then `~`, then `* / // %`, then `**`; all bind to the left.
    fn arithmetic(&mut self, level: usize) -> Result<Node> {
        const LEVELS: [&[(&str, Binary)]; 4] = [
            &[("+", Binary::Add), ("-", Binary::Subtract)],
            &[("~", Binary::Concatenate)],
            &[
                ("*", Binary::Multiply),
                ("/", Binary::Divide),
                ("//", Binary::FloorDivide),
                ("%", Binary::Remainder),
            ],
            &[("**", Binary::Power)],
        ];
        let Some(signs) = LEVELS.get(level) else { return self.unary() };
        let line = self.line();
        let mut left = self.arithmetic(level + 1)?;
        while let Some((_, binary)) = signs.iter().find(|(sign, _)| self.is_sign(sign)) {
            self.at += 1;
            let right = self.arithmetic(level + 1)?;
            left = self.node(line, Kind::Binary(*binary, Box::new(left), Box::new(right)))?;
        }
        Ok(left)
    }

    /// Parses signs, a primary, what follows it, then filters and tests, which apply to the signed value.
    fn unary(&mut self) -> Result<Node> {
        let line = self.line();
        let mut minuses = Vec::new();
        while self.is_sign("-") || self.is_sign("+") {
            minuses.push(self.is_sign("-"));
            self.at += 1;
        }
        let primary = self.primary()?;
        let mut value = self.postfix(primary)?;
        for is_minus in minuses.into_iter().rev() {
            let inner = Box::new(value);
            let kind = if is_minus { Kind::Negative(inner) } else { Kind::Positive(inner) };
            value = self.node(line, kind)?;
        }
        self.filters_and_tests(value)
    }

    fn primary(&mut self) -> Result<Node> {
        let line = self.line();
        let kind = match self.peek() {
            Some(Token::Name(name)) => {
                let kind = match *name {
                    "true" | "True" => Kind::Bool(true),
                    "false" | "False" => Kind::Bool(false),
                    "none" | "None" => Kind::None,
                    name => Kind::Name(name.into()),
                };
                self.at += 1;
                kind
            }
            Some(Token::Int(number)) => {
                let number = *number;
                self.at += 1;
                Kind::Int(number)
            }
            Some(Token::Float(number)) => {
                let number = *number;
                self.at += 1;
                Kind::Float(number)
            }
            Some(Token::Text(_)) => {
                let mut text = String::new();
                // Texts next to each other are one, as in Python.
                while let Some(Token::Text(part)) = self.peek() {
                    text.push_str(part);
                    self.at += 1;
                }
                Kind::Text(text.into())
            }
            Some(Token::Sign("(")) => return self.parentheses(),
            Some(Token::Sign("[")) => {
                self.at += 1;
                Kind::List(self.list("]")?)
            }
            Some(Token::Sign("{")) => self.dict()?,
            _ => return self.unexpected("a value"),
        };
        self.node(line, kind)
    }

    fn parentheses(&mut self) -> Result<Node> {
        let line = self.line();
        self.at += 1;
        if self.skip(")") {
            return self.node(line, Kind::Tuple(Vec::new()));
        }
        let value = self.tuple_or_one()?;
        self.expect(")")?;
        Ok(value)
    }

    /// Parses expressions up to `end`; a comma may follow the last one.
    fn list(&mut self, end: &str) -> Result<Vec<Node>> {
        let mut items = Vec::new();
        while !self.skip(end) {
            if !items.is_empty() {
                self.expect(",")?;
                if self.skip(end) {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        Ok(items)
    }

    fn dict(&mut self) -> Result<Kind> {
        self.at += 1;
        let mut pairs = Vec::new();
        while !self.skip("}") {
            if !pairs.is_empty() {
                self.expect(",")?;
                if self.skip("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect(":")?;
            pairs.push((key, self.expression()?));
        }
        Ok(Kind::Dict(pairs))
    }

    /// Parses attributes, items, slices and calls.
    pub(super) fn postfix(&mut self, mut value: Node) -> Result<Node> {
        loop {
            let line = self.line();
            let inner = |value| Box::new(value);
            let kind = if self.skip(".") {
                match self.next() {
                    Some(Token::Name(name)) => Kind::Attribute(inner(value), name.into()),
                    Some(Token::Int(index)) => {
                        let index = self.node(line, Kind::Int(index))?;
                        Kind::Item(inner(value), Box::new(index))
                    }
                    _ => {
                        self.at -= 1;
                        return self.unexpected("a name after `.`");
                    }
                }
            } else if self.skip("[") {
                self.subscript(value)?
            } else if self.skip("(") {
                Kind::Call(inner(value), self.arguments()?)
            } else {
                return Ok(value);
            };
            value = self.node(line, kind)?;
        }
    }

    /// Parses the part between `[` and `]`.
    fn subscript(&mut self, value: Node) -> Result<Kind> {
        let mut parts = [None, None, None];
        let (mut place, mut is_slice) = (0, false);
        while !self.skip("]") {
            if self.skip(":") {
                is_slice = true;
                place += 1;
            } else if place < parts.len() && parts[place].is_none() {
                parts[place] = Some(self.tuple_or_one()?);
            } else {
                return self.unexpected("`]`");
            }
        }
        let [index, ..] = &mut parts;
        match (is_slice, place, index.take()) {
            (false, _, Some(index)) => Ok(Kind::Item(Box::new(value), Box::new(index))),
            (true, 1 | 2, start) => {
                parts[0] = start;
                Ok(Kind::Slice(Box::new(value), Box::new(parts)))
            }
            _ => self.fault("an index between `[` and `]` is missing, or there are too many"),
        }
    }

    /// Parses arguments after their `(`.
    fn arguments(&mut self) -> Result<Arguments> {
        let mut arguments = Arguments::default();
        let mut is_first = true;
        while !self.skip(")") {
            if !is_first {
                self.expect(",")?;
                if self.skip(")") {
                    break;
                }
            }
            is_first = false;
            let names = matches!(self.tokens.get(self.at + 1), Some((Token::Sign("="), _)));
            match self.peek() {
                Some(Token::Name(name)) if names => {
                    let name = (*name).into();
                    self.at += 2;
                    let value = self.expression()?;
                    arguments.named.push((name, value));
                }
                Some(Token::Sign("*" | "**")) => {
                    return self.fault("`*` and `**` before an argument are not read");
                }
                _ if !arguments.named.is_empty() => return self.unexpected("a named argument"),
                _ => arguments.positional.push(self.expression()?),
            }
        }
        Ok(arguments)
    }

    /// Parses `| filter(...)`, `is test` and calls of their results.
    fn filters_and_tests(&mut self, mut value: Node) -> Result<Node> {
        loop {
            let line = self.line();
            let kind = if self.skip("|") {
                Kind::Filter(Box::new(value), self.filter_call()?)
            } else if self.skip_name("is") {
                let is_not = self.skip_name("not");
                let test = Kind::Test(Box::new(value), self.test_call()?);
                if is_not { Kind::Not(Box::new(self.node(line, test)?)) } else { test }
            } else if self.skip("(") {
                Kind::Call(Box::new(value), self.arguments()?)
            } else {
                return Ok(value);
            };
            value = self.node(line, kind)?;
        }
    }

    /// Parses a filter after its `|`.
    pub(super) fn filter_call(&mut self) -> Result<FilterCall> {
        let line = self.line();
        let name = self.name()?.into();
        let arguments = if self.skip("(") { self.arguments()? } else { Arguments::default() };
        Ok(FilterCall { line, name, arguments })
    }

    /// Parses a test after `is`. Its one argument may come without parentheses.
    fn test_call(&mut self) -> Result<FilterCall> {
        let line = self.line();
        let name = self.name()?.into();
        let mut arguments = Arguments::default();
        let is_value = match self.peek() {
            Some(Token::Name(name)) => !["else", "or", "and", "is", "if", "not", "in"].contains(name),
            Some(Token::Text(_) | Token::Int(_) | Token::Float(_) | Token::Sign("[" | "{")) => true,
            _ => false,
        };
        if self.skip("(") {
            arguments = self.arguments()?;
        } else if is_value {
            let value = self.primary()?;
            arguments.positional.push(self.postfix(value)?);
        }
        Ok(FilterCall { line, name, arguments })
    }
}
