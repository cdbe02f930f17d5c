//! The arguments of a call, taken one by one by position or by name. What is left over is refused.

use super::meter::{Meter, Result};
use super::operators::named;
use super::value::{Text, Value};

pub(super) struct Args<'r> {
    pub(super) meter: &'r Meter,
    /// The name of the callee, for messages.
    pub(super) callee: &'r str,
    positional: std::vec::IntoIter<Value<'r>>,
    named: Vec<(&'r str, Value<'r>)>,
}

impl<'r> Args<'r> {
    pub(super) fn new(
        meter: &'r Meter,
        callee: &'r str,
        positional: Vec<Value<'r>>,
        named: Vec<(&'r str, Value<'r>)>,
    ) -> Args<'r> {
        Args { meter, callee, positional: positional.into_iter(), named }
    }

    pub(super) fn fault<T>(&self, what: &str) -> Result<T> {
        self.meter.fault(format!("`{}`: {what}", plimsoll_base::shown(self.callee)))
    }

    /// Takes an argument: the next by position, else the one of this name.
    pub(super) fn take(&mut self, name: &str) -> Option<Value<'r>> {
        self.positional.next().or_else(|| {
            let at = self.named.iter().position(|(other, _)| *other == name)?;
            Some(self.named.remove(at).1)
        })
    }

    /// Takes an argument that comes by name only.
    pub(super) fn take_named(&mut self, name: &str) -> Option<Value<'r>> {
        let at = self.named.iter().position(|(other, _)| *other == name)?;
        Some(self.named.remove(at).1)
    }

    pub(super) fn required(&mut self, name: &str) -> Result<Value<'r>> {
        match self.take(name) {
            Some(value) => Ok(value),
            None => self.fault(&format!("the argument `{name}` is missing")),
        }
    }

    /// Takes a text; none counts as absent.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<Text<'r>>> {
        match self.take(name) {
            None | Some(Value::None) => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => self.fault(&format!("`{name}` is {}, expected str", named(&other))),
        }
    }

    pub(super) fn required_text(&mut self, name: &str) -> Result<Text<'r>> {
        match self.text(name)? {
            Some(text) => Ok(text),
            None => self.fault(&format!("the argument `{name}` is missing, a str")),
        }
    }

    /// Takes an integer; none counts as absent.
    pub(super) fn int(&mut self, name: &str) -> Result<Option<i64>> {
        match self.take(name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => match value.as_int() {
                Some(number) => Ok(Some(number)),
                None => self.fault(&format!("`{name}` is {}, expected int", named(&value))),
            },
        }
    }

    /// Takes a truth value, which is false if absent.
    pub(super) fn flag(&mut self, name: &str) -> bool {
        self.take(name).is_some_and(|value| value.is_true())
    }

    /// Takes all remaining arguments by position.
    pub(super) fn rest(&mut self) -> Vec<Value<'r>> {
        self.positional.by_ref().collect()
    }

    /// Takes all remaining arguments by name.
    pub(super) fn rest_named(&mut self) -> Vec<(&'r str, Value<'r>)> {
        std::mem::take(&mut self.named)
    }

    /// Refuses arguments that are left.
    pub(super) fn end(&mut self) -> Result<()> {
        if self.positional.next().is_some() {
            return self.fault("too many arguments");
        }
        match self.named.first() {
            Some((name, _)) => self.fault(&format!("no argument `{}` is known", plimsoll_base::shown(name))),
            None => Ok(()),
        }
    }
}
