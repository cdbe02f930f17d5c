//! Evaluates expressions.

use super::arguments::Args;
use super::ast::{Arguments, FilterCall, Kind, Macro, Node};
use super::checks::check;
use super::filters;
use super::meter::Result;
use super::methods;
use super::operators::{self, named};
use super::render::{FUNCTIONS, Renderer};
use super::value::{Buffer, Items, Loop, Namespace, Value};
use crate::strftime::strftime;
use std::rc::Rc;

/// Longest `range`, as in Jinja's sandbox.
const RANGE_MAX: i64 = 100_000;
/// Longest format of `strftime_now`; a code becomes at most 9 bytes.
const FORMAT_BYTES_MAX: usize = 4096;
/// Longest text of `raise_exception` in a message.
const REFUSAL_CHARS_MAX: usize = 400;

impl<'r> Renderer<'r> {
    pub(super) fn eval(&mut self, node: &'r Node) -> Result<Value<'r>> {
        self.meter.enter()?;
        self.meter.at(node.line);
        let value = self.eval_kind(node)?;
        self.meter.leave();
        Ok(value)
    }

    fn eval_kind(&mut self, node: &'r Node) -> Result<Value<'r>> {
        match &node.kind {
            Kind::None => Ok(Value::None),
            Kind::Bool(flag) => Ok(Value::Bool(*flag)),
            Kind::Int(number) => Ok(Value::Int(*number)),
            Kind::Float(number) => Ok(Value::Float(*number)),
            Kind::Text(text) => Ok(Value::lent(text)),
            Kind::Name(name) => self.name(name),
            Kind::List(nodes) => self.items(nodes)?.list(),
            Kind::Tuple(nodes) => self.items(nodes)?.tuple(),
            Kind::Dict(pairs) => self.dict(pairs),
            Kind::Attribute(value, name) => {
                let value = self.eval(value)?;
                Ok(operators::field(self.meter, &value, name)?.unwrap_or(Value::Undefined(name)))
            }
            Kind::Item(value, index) => {
                let (value, index) = (self.eval(value)?, self.eval(index)?);
                operators::item(self.meter, &value, &index)
            }
            Kind::Slice(value, parts) => {
                let value = self.eval(value)?;
                let mut bounds = [None, None, None];
                for (bound, part) in bounds.iter_mut().zip(parts.iter()) {
                    *bound = part.as_ref().map(|part| self.eval(part)).transpose()?;
                }
                operators::slice(self.meter, &value, bounds)
            }
            Kind::Call(callee, arguments) => self.call(callee, arguments),
            Kind::Filter(value, call) => {
                let value = self.eval(value)?;
                self.filter(&value, call)
            }
            Kind::Test(value, call) => {
                let value = self.eval(value)?;
                let mut args = self.args(&call.name, &call.arguments)?;
                self.meter.at(call.line);
                check(&value, &mut args).map(Value::Bool)
            }
            _ => self.eval_operator(node),
        }
    }

    fn eval_operator(&mut self, node: &'r Node) -> Result<Value<'r>> {
        match &node.kind {
            Kind::Not(value) => Ok(Value::Bool(!self.eval(value)?.is_true())),
            Kind::Negative(value) | Kind::Positive(value) => {
                let is_minus = matches!(node.kind, Kind::Negative(_));
                match self.eval(value)? {
                    Value::Float(number) => Ok(Value::Float(if is_minus { -number } else { number })),
                    value => {
                        match value.as_int().and_then(|n| if is_minus { n.checked_neg() } else { Some(n) }) {
                            Some(number) => Ok(Value::Int(number)),
                            None => self.meter.fault(format!("a sign before {}", named(&value))),
                        }
                    }
                }
            }
            Kind::Binary(sign, a, b) => {
                let (a, b) = (self.eval(a)?, self.eval(b)?);
                self.meter.at(node.line);
                operators::binary(self.meter, *sign, &a, &b)
            }
            Kind::And(a, b) => {
                let a = self.eval(a)?;
                if a.is_true() { self.eval(b) } else { Ok(a) }
            }
            Kind::Or(a, b) => {
                let a = self.eval(a)?;
                if a.is_true() { Ok(a) } else { self.eval(b) }
            }
            Kind::Compare(first, rest) => {
                let mut left = self.eval(first)?;
                for (sign, node) in rest {
                    let right = self.eval(node)?;
                    if !operators::compare(self.meter, *sign, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Kind::Choice(both, no) => {
                let [yes, test] = &**both;
                match (self.eval(test)?.is_true(), no) {
                    (true, _) => self.eval(yes),
                    (false, Some(no)) => self.eval(no),
                    (false, None) => Ok(Value::Undefined("an `if` without `else`")),
                }
            }
            _ => unreachable!("other kinds are no operators"),
        }
    }

    fn name(&self, name: &'r str) -> Result<Value<'r>> {
        match self.scopes.get(name)? {
            Some(value) => Ok(value),
            None if FUNCTIONS.contains(&name) => Ok(Value::Function(name)),
            None => Ok(Value::Undefined(name)),
        }
    }

    fn items(&mut self, nodes: &'r [Node]) -> Result<Items<'r>> {
        let mut items = Items::new(self.meter);
        for node in nodes {
            let value = self.eval(node)?;
            items.push(value)?;
        }
        Ok(items)
    }

    fn dict(&mut self, pairs: &'r [(Node, Node)]) -> Result<Value<'r>> {
        let mut items = Items::new(self.meter);
        for (key, value) in pairs {
            let (key, value) = (self.eval(key)?, self.eval(value)?);
            items.push(key)?;
            items.push(value)?;
        }
        items.dict()
    }

    pub(super) fn args(&mut self, callee: &'r str, arguments: &'r Arguments) -> Result<Args<'r>> {
        let mut positional = Vec::with_capacity(arguments.positional.len());
        for node in &arguments.positional {
            positional.push(self.eval(node)?);
        }
        let mut by_name = Vec::with_capacity(arguments.named.len());
        for (name, node) in &arguments.named {
            by_name.push((&**name, self.eval(node)?));
        }
        Ok(Args::new(self.meter, callee, positional, by_name))
    }

    pub(super) fn filter(&mut self, value: &Value<'r>, call: &'r FilterCall) -> Result<Value<'r>> {
        let mut args = self.args(&call.name, &call.arguments)?;
        self.meter.at(call.line);
        filters::apply(value, &mut args)
    }

    fn call(&mut self, callee: &'r Node, arguments: &'r Arguments) -> Result<Value<'r>> {
        if let Kind::Attribute(value, name) = &callee.kind {
            let value = self.eval(value)?;
            let mut args = self.args(name, arguments)?;
            self.meter.at(callee.line);
            return match &value {
                Value::Dict(_) if methods::OF_DICTS.contains(&&**name) => methods::call(&value, &mut args),
                Value::Loop(state) => loop_call(state, &mut args),
                Value::Dict(_) | Value::Namespace(_) | Value::Undefined(_) => {
                    let value = operators::field(self.meter, &value, name)?.unwrap_or(Value::Undefined(name));
                    self.call_value(&value, args)
                }
                _ => methods::call(&value, &mut args),
            };
        }
        let value = self.eval(callee)?;
        let name = if let Kind::Name(name) = &callee.kind { &**name } else { "a value" };
        let args = self.args(name, arguments)?;
        self.meter.at(callee.line);
        self.call_value(&value, args)
    }

    pub(super) fn call_value(&mut self, value: &Value<'r>, mut args: Args<'r>) -> Result<Value<'r>> {
        match value {
            Value::Macro(closure) => self.call_macro(closure.code, closure.scopes, &mut args, None),
            Value::Function(name) => {
                let value = self.function(name, &mut args)?;
                args.end()?;
                Ok(value)
            }
            other => self.meter.fault(format!("a call of {}", named(other))),
        }
    }

    /// Runs a macro in the scopes that it was written in. `caller` is the block of a `call` tag.
    pub(super) fn call_macro(
        &mut self,
        code: &'r Macro,
        scopes: usize,
        args: &mut Args<'r>,
        caller: Option<Value<'r>>,
    ) -> Result<Value<'r>> {
        self.meter.enter()?;
        let hidden = self.scopes.hide(scopes);
        self.scopes.push();
        let loops = std::mem::take(&mut self.loops);
        let text = self.capture(|renderer| renderer.run_macro(code, args, caller));
        self.loops = loops;
        self.scopes.pop();
        self.scopes.restore(hidden);
        self.meter.leave();
        text
    }

    fn run_macro(&mut self, code: &'r Macro, args: &mut Args<'r>, caller: Option<Value<'r>>) -> Result<()> {
        if let Some(caller) = caller {
            self.scopes.set("caller", caller)?;
        }
        for (name, default) in &code.parameters {
            let value = match (args.take(name), default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.eval(default)?,
                (None, None) => Value::Undefined(name),
            };
            self.scopes.set(name, value)?;
        }
        args.end()?;
        self.run(&code.body).map(drop)
    }

    fn function(&mut self, name: &str, args: &mut Args<'r>) -> Result<Value<'r>> {
        match name {
            "range" => range(args),
            "namespace" => {
                let namespace = Namespace::new(self.meter);
                args.rest_named().into_iter().try_for_each(|(name, value)| namespace.set(name, value))?;
                Ok(Value::Namespace(Rc::new(namespace)))
            }
            "dict" => {
                let mut items = Items::new(self.meter);
                for (name, value) in args.rest_named() {
                    items.push(Value::lent(name))?;
                    items.push(value)?;
                }
                items.dict()
            }
            "raise_exception" => {
                let message = args.required_text("message")?;
                self.meter
                    .fault(plimsoll_base::shown_within(message.as_str(), REFUSAL_CHARS_MAX).into_owned())
            }
            _ => {
                let format = args.required_text("format")?;
                if format.as_str().len() > FORMAT_BYTES_MAX {
                    return args.fault(&format!("a format of more than {FORMAT_BYTES_MAX} bytes"));
                }
                Buffer::text(self.meter, &strftime(format.as_str(), self.now))
            }
        }
    }
}

fn range<'r>(args: &mut Args<'r>) -> Result<Value<'r>> {
    let first = args.int("start")?;
    let (start, stop) = match (first, args.int("stop")?) {
        (Some(start), Some(stop)) => (start, stop),
        (Some(stop), None) => (0, stop),
        _ => return args.fault("the end of the range is missing"),
    };
    let step = args.int("step")?.unwrap_or(1);
    let mut items = Items::new(args.meter);
    let length = match step {
        0 => return args.fault("a step of 0"),
        1.. => (i128::from(stop) - i128::from(start) + i128::from(step) - 1) / i128::from(step),
        _ => (i128::from(start) - i128::from(stop) - i128::from(step) - 1) / -i128::from(step),
    };
    if length > i128::from(RANGE_MAX) {
        return args.fault(&format!("{length} numbers, the limit is {RANGE_MAX}"));
    }
    for index in 0..length.max(0) as i64 {
        items.push(Value::Int(start + index * step))?;
    }
    items.list()
}

/// Evaluates `loop.cycle(...)` and `loop.changed(...)`.
fn loop_call<'r>(state: &Loop<'r>, args: &mut Args<'r>) -> Result<Value<'r>> {
    let values = args.rest();
    args.end()?;
    match args.callee {
        "cycle" if !values.is_empty() => Ok(values[state.index.get() % values.len()].clone()),
        "changed" => {
            let mut last = state.last.borrow_mut();
            let mut same = last.as_ref().is_some_and(|last| last.len() == values.len());
            for (old, new) in last.iter().flatten().zip(&values) {
                same = same && operators::equal(args.meter, old, new)?;
            }
            *last = Some(values);
            Ok(Value::Bool(!same))
        }
        _ => args.fault("no such method of `loop`, or no arguments"),
    }
}
