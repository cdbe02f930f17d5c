//! Parses statements: text, `{{ ... }}`, and the tags of chat templates. Tags that read other templates do not exist.

use super::ast::{Block, FilterCall, For, Kind, Macro, Node, Statement, Target};
use super::expressions::Parser;
use super::lexer::Token;
use super::meter::Result;

/// Names that an assignment may not change.
const RESERVED: [&str; 8] = ["true", "false", "none", "True", "False", "None", "loop", "self"];

impl Parser<'_> {
    /// Parses a whole template.
    pub(super) fn template(mut self) -> Result<Block> {
        let (block, _) = self.block(&[])?;
        Ok(block)
    }

    /// Parses statements up to a tag of `ends`, and passes its name; without `ends` up to the end of the template.
    fn block(&mut self, ends: &[&'static str]) -> Result<(Block, &'static str)> {
        self.open()?;
        let mut block = Vec::new();
        let ended_by = loop {
            match self.next() {
                None if ends.is_empty() => break "",
                None => return self.unexpected(&format!("`{{% {} %}}`", ends[ends.len() - 1])),
                Some(Token::Data(text)) => block.push(Statement::Text(text.into())),
                Some(Token::EmitBegin) => {
                    block.push(Statement::Emit(self.tuple_or_one()?));
                    self.end_of(Token::EmitEnd, "`}}`")?;
                }
                // The lexer closes every tag, so only a tag can follow.
                Some(_) => {
                    let name = self.name()?;
                    if let Some(end) = ends.iter().find(|end| **end == name) {
                        break end;
                    }
                    self.statement(name, &mut block)?;
                }
            }
        };
        self.close();
        Ok((block, ended_by))
    }

    /// Parses the tag called `name`, with its block if it has one.
    fn statement(&mut self, name: &str, block: &mut Block) -> Result<()> {
        let line = self.line();
        block.push(match name {
            "if" => self.branches()?,
            "for" => self.for_loop()?,
            "set" => self.assignment()?,
            "with" => self.with()?,
            "macro" => self.macro_block()?,
            "call" => self.call_block()?,
            "filter" => {
                let filters = self.filters()?;
                self.tag_end()?;
                Statement::Filter(filters, self.body(&["endfilter"])?)
            }
            "do" | "print" => {
                let value = self.tuple_or_one()?;
                self.tag_end()?;
                if name == "do" { Statement::Do(value) } else { Statement::Emit(value) }
            }
            "break" | "continue" => {
                self.tag_end()?;
                if name == "break" { Statement::Break(line) } else { Statement::Continue(line) }
            }
            "generation" => {
                self.tag_end()?;
                Statement::Generation(self.body(&["endgeneration"])?)
            }
            "include" | "import" | "from" | "extends" | "block" => {
                return self.fault(format!("the tag `{name}` is not read: a chat template is one file"));
            }
            name => return self.fault(format!("no tag `{}` is known here", plimsoll_base::shown(name))),
        });
        Ok(())
    }

    fn end_of(&mut self, end: Token<'static>, words: &str) -> Result<()> {
        if self.peek() != Some(&end) {
            return self.unexpected(words);
        }
        self.next();
        Ok(())
    }

    fn tag_end(&mut self) -> Result<()> {
        self.end_of(Token::TagEnd, "`%}`")
    }

    /// Parses a block and the rest of the tag that ends it.
    fn body(&mut self, ends: &[&'static str]) -> Result<Block> {
        let (block, end) = self.block(ends)?;
        // `{% endmacro name %}` repeats the macro's name.
        if end == "endmacro" && matches!(self.peek(), Some(Token::Name(_))) {
            self.next();
        }
        self.tag_end()?;
        Ok(block)
    }

    fn branches(&mut self) -> Result<Statement> {
        let mut branches = Vec::new();
        loop {
            let test = self.tuple_or_one()?;
            self.tag_end()?;
            let (block, end) = self.block(&["elif", "else", "endif"])?;
            branches.push((test, block));
            match end {
                "elif" => {}
                "else" => {
                    self.tag_end()?;
                    return Ok(Statement::If(branches, self.body(&["endif"])?));
                }
                _ => {
                    self.tag_end()?;
                    return Ok(Statement::If(branches, Vec::new()));
                }
            }
        }
    }

    fn for_loop(&mut self) -> Result<Statement> {
        let target = self.target()?;
        if !self.skip_name("in") {
            return self.unexpected("`in`");
        }
        let over = self.over()?;
        let condition = if self.skip_name("if") { Some(self.expression()?) } else { None };
        if self.is_name("recursive") {
            return self.fault("`recursive` is not read: write a macro that calls itself");
        }
        self.tag_end()?;
        let (body, end) = self.block(&["else", "endfor"])?;
        self.tag_end()?;
        let otherwise = if end == "else" { self.body(&["endfor"])? } else { Vec::new() };
        Ok(Statement::For(Box::new(For { target, over, condition, body, otherwise })))
    }

    /// Parses what a loop runs over; an `if` after it is the loop's.
    fn over(&mut self) -> Result<Node> {
        let first = self.or()?;
        if !self.is_sign(",") {
            return Ok(first);
        }
        let (line, mut items) = (first.line, vec![first]);
        while self.skip(",") {
            items.push(self.or()?);
        }
        let kind = Kind::Tuple(items);
        Ok(Node { line, depth: 1 + kind.children_depth(), kind })
    }

    fn assignment(&mut self) -> Result<Statement> {
        let target = self.target()?;
        if self.skip("=") {
            let value = self.tuple_or_one()?;
            self.tag_end()?;
            return Ok(Statement::Set(target, value));
        }
        let filters = if self.skip("|") { self.filters()? } else { Vec::new() };
        self.tag_end()?;
        Ok(Statement::SetBlock(target, filters, self.body(&["endset"])?))
    }

    /// Parses filters joined by `|`.
    fn filters(&mut self) -> Result<Vec<FilterCall>> {
        let mut filters = vec![self.filter_call()?];
        while self.skip("|") {
            filters.push(self.filter_call()?);
        }
        Ok(filters)
    }

    fn with(&mut self) -> Result<Statement> {
        let mut values = Vec::new();
        while self.peek() != Some(&Token::TagEnd) {
            if !values.is_empty() {
                self.expect(",")?;
            }
            let target = self.one_target()?;
            self.expect("=")?;
            values.push((target, self.expression()?));
        }
        self.tag_end()?;
        Ok(Statement::With(values, self.body(&["endwith"])?))
    }

    fn macro_block(&mut self) -> Result<Statement> {
        let name: Box<str> = self.assigned_name()?.into();
        self.expect("(")?;
        let parameters = self.parameters()?;
        self.tag_end()?;
        let body = self.body(&["endmacro"])?;
        Ok(Statement::Macro(Box::new(Macro { name, parameters, body })))
    }

    fn call_block(&mut self) -> Result<Statement> {
        let parameters = if self.skip("(") { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        if !matches!(call.kind, Kind::Call(..)) {
            return self.fault("`call` needs the call of a macro");
        }
        self.tag_end()?;
        let body = self.body(&["endcall"])?;
        Ok(Statement::CallBlock(call, Box::new(Macro { name: "caller".into(), parameters, body })))
    }

    /// Parses a macro's parameters after their `(`.
    fn parameters(&mut self) -> Result<Vec<(Box<str>, Option<Node>)>> {
        let mut parameters: Vec<(Box<str>, Option<Node>)> = Vec::new();
        while !self.skip(")") {
            if !parameters.is_empty() {
                self.expect(",")?;
                if self.skip(")") {
                    break;
                }
            }
            let name = self.assigned_name()?.into();
            let default = if self.skip("=") { Some(self.expression()?) } else { None };
            parameters.push((name, default));
        }
        Ok(parameters)
    }

    fn assigned_name(&mut self) -> Result<&str> {
        let name = self.name()?;
        if RESERVED.contains(&name) { self.fault(format!("`{name}` cannot be assigned")) } else { Ok(name) }
    }

    /// Parses what an assignment or a loop writes: names, `namespace.field`, tuples of them.
    fn target(&mut self) -> Result<Target> {
        self.open()?;
        let mut targets = vec![self.one_target()?];
        let mut is_tuple = false;
        while self.skip(",") {
            is_tuple = true;
            if !matches!(self.peek(), Some(Token::Name(name)) if *name != "in") && !self.is_sign("(") {
                break;
            }
            targets.push(self.one_target()?);
        }
        self.close();
        Ok(if is_tuple { Target::Several(targets) } else { targets.remove(0) })
    }

    fn one_target(&mut self) -> Result<Target> {
        if self.skip("(") {
            let target = self.target()?;
            self.expect(")")?;
            return Ok(target);
        }
        let name: Box<str> = self.assigned_name()?.into();
        if self.skip(".") {
            return Ok(Target::Field(name, self.name()?.into()));
        }
        Ok(Target::Name(name))
    }
}
