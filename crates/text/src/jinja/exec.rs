//! Runs statements.

use super::arguments::Args;
use super::ast::{Block, FilterCall, For, Kind, Macro, Node, Statement, Target};
use super::meter::Result;
use super::operators::{iterate, named};
use super::print;
use super::render::Renderer;
use super::value::{Closure, Items, Loop, Value};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Says what follows a statement.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ControlFlow {
    Next,
    Break,
    Continue,
}

impl<'r> Renderer<'r> {
    /// Runs a block. `Break` and `Continue` end it early.
    pub(super) fn run(&mut self, block: &'r Block) -> Result<ControlFlow> {
        self.meter.enter()?;
        let mut flow = ControlFlow::Next;
        for statement in block {
            self.meter.work(0)?;
            flow = self.statement(statement)?;
            if flow != ControlFlow::Next {
                break;
            }
        }
        self.meter.leave();
        Ok(flow)
    }

    fn statement(&mut self, statement: &'r Statement) -> Result<ControlFlow> {
        match statement {
            Statement::Text(text) => self.output().push(text)?,
            Statement::Emit(node) => {
                let value = self.eval(node)?;
                print::write(self.output(), &value)?;
            }
            Statement::Do(node) => drop(self.eval(node)?),
            Statement::If(branches, otherwise) => {
                for (test, block) in branches {
                    if self.eval(test)?.is_true() {
                        return self.run(block);
                    }
                }
                return self.run(otherwise);
            }
            Statement::For(code) => self.for_loop(code)?,
            Statement::Set(target, node) => {
                let value = self.eval(node)?;
                self.assign(target, value)?;
            }
            Statement::SetBlock(target, filters, block) => {
                let value = self.filtered_block(filters, block)?;
                self.assign(target, value)?;
            }
            Statement::Filter(filters, block) => {
                let value = self.filtered_block(filters, block)?;
                print::write(self.output(), &value)?;
            }
            Statement::With(values, block) => {
                let mut evaluated = Vec::with_capacity(values.len());
                for (target, node) in values {
                    evaluated.push((target, self.eval(node)?));
                }
                self.scopes.push();
                for (target, value) in evaluated {
                    self.assign(target, value)?;
                }
                let flow = self.run(block)?;
                self.scopes.pop();
                return Ok(flow);
            }
            Statement::Macro(code) => {
                let closure = Closure { code, scopes: self.scopes.len() };
                self.scopes.set(&code.name, Value::Macro(Rc::new(closure)))?;
            }
            Statement::CallBlock(call, block) => self.call_block(call, block)?,
            Statement::Generation(block) => return self.generation(block),
            Statement::Break(line) | Statement::Continue(line) => {
                let is_break = matches!(statement, Statement::Break(_));
                self.meter.at(*line);
                return match (self.loops > 0, is_break) {
                    (false, _) => self.meter.fault("`break` or `continue` outside a loop"),
                    (true, true) => Ok(ControlFlow::Break),
                    (true, false) => Ok(ControlFlow::Continue),
                };
            }
        }
        Ok(ControlFlow::Next)
    }

    /// Runs a block of the assistant's text and notes its place. Drops variables set in it, like Hugging Face's call.
    fn generation(&mut self, block: &'r Block) -> Result<ControlFlow> {
        let start = self.output().len();
        self.scopes.push();
        let flow = self.run(block)?;
        self.scopes.pop();
        let end = self.output().len();
        match self.outputs.len() {
            1 => self.marks.push(start..end),
            _ => self.has_lost_marks = true,
        }
        Ok(flow)
    }

    fn assign(&mut self, target: &'r Target, value: Value<'r>) -> Result<()> {
        match target {
            Target::Name(name) => self.scopes.set(name, value),
            Target::Field(name, field) => match self.scopes.get(name)? {
                Some(Value::Namespace(namespace)) => namespace.set(field, value),
                other => {
                    let found = other.unwrap_or(Value::Undefined(name));
                    self.meter.fault(format!("only a namespace has fields to set, not {}", named(&found)))
                }
            },
            Target::Several(targets) => {
                let list = iterate(self.meter, &value)?;
                if list.items.len() != targets.len() {
                    let (values, names) = (list.items.len(), targets.len());
                    return self.meter.fault(format!("{values} values for {names} names"));
                }
                targets
                    .iter()
                    .zip(&list.items)
                    .try_for_each(|(target, item)| self.assign(target, item.clone()))
            }
        }
    }

    fn for_loop(&mut self, code: &'r For) -> Result<()> {
        let over = self.eval(&code.over)?;
        let mut list = iterate(self.meter, &over)?;
        drop(over);
        self.scopes.push();
        if let Some(condition) = &code.condition {
            let mut kept = Items::new(self.meter);
            for item in &list.items {
                self.assign(&code.target, item.clone())?;
                if self.eval(condition)?.is_true() {
                    kept.push(item.clone())?;
                }
            }
            list = kept.finish(false)?;
        }
        let state = Rc::new(Loop { items: list.clone(), index: Cell::new(0), last: RefCell::new(None) });
        self.loops += 1;
        for (index, item) in list.items.iter().enumerate() {
            self.meter.work(0)?;
            self.scopes.clear();
            state.index.set(index);
            self.scopes.set("loop", Value::Loop(state.clone()))?;
            self.assign(&code.target, item.clone())?;
            if self.run(&code.body)? == ControlFlow::Break {
                break;
            }
        }
        self.loops -= 1;
        self.scopes.pop();
        if list.items.is_empty() { self.run(&code.otherwise).map(drop) } else { Ok(()) }
    }

    /// Returns the text of a block after its filters.
    fn filtered_block(&mut self, filters: &'r [FilterCall], block: &'r Block) -> Result<Value<'r>> {
        self.scopes.push();
        let mut value = self.capture(|renderer| renderer.run(block).map(drop))?;
        self.scopes.pop();
        for call in filters {
            value = self.filter(&value, call)?;
        }
        Ok(value)
    }

    /// Calls a macro with a block that it can call as `caller`.
    fn call_block(&mut self, call: &'r Node, block: &'r Macro) -> Result<()> {
        let Kind::Call(callee, arguments) = &call.kind else { unreachable!("the parser requires a call") };
        let Value::Macro(closure) = self.eval(callee)? else {
            return self.meter.fault("`call` needs the call of a macro");
        };
        let mut args: Args<'r> = self.args(&closure.code.name, arguments)?;
        let caller = Value::Macro(Rc::new(Closure { code: block, scopes: self.scopes.len() }));
        let text = self.call_macro(closure.code, closure.scopes, &mut args, Some(caller))?;
        print::write(self.output(), &text)
    }
}
