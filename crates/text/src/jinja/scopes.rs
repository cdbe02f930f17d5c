//! The names that a rendering can see: a stack of scopes, the innermost last.

use super::meter::{Charge, Meter, Result};
use super::value::Value;
use std::collections::HashMap;

/// Bytes of a name in a scope besides its value.
const NAME_BYTES: usize = 48;

#[derive(Debug)]
pub(super) struct Scopes<'r> {
    meter: &'r Meter,
    scopes: Vec<Scope<'r>>,
}

#[derive(Debug)]
pub(super) struct Scope<'r> {
    names: HashMap<&'r str, Value<'r>>,
    charge: Charge<'r>,
}

impl<'r> Scopes<'r> {
    /// Makes a stack with the template's scope.
    pub(super) fn new(meter: &'r Meter) -> Scopes<'r> {
        let mut scopes = Scopes { meter, scopes: Vec::new() };
        scopes.push();
        scopes
    }

    pub(super) fn push(&mut self) {
        self.scopes.push(Scope { names: HashMap::new(), charge: Charge::none(self.meter) });
    }

    pub(super) fn pop(&mut self) {
        self.scopes.pop();
    }

    pub(super) fn len(&self) -> usize {
        self.scopes.len()
    }

    /// Forgets the names of the innermost scope.
    pub(super) fn clear(&mut self) {
        self.pop();
        self.push();
    }

    pub(super) fn set(&mut self, name: &'r str, value: Value<'r>) -> Result<()> {
        let scope = self.scopes.last_mut().expect("the template's scope stays");
        if !scope.names.contains_key(name) {
            scope.charge.grow(size_of::<Value>() + NAME_BYTES)?;
        }
        scope.names.insert(name, value);
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Result<Option<Value<'r>>> {
        for scope in self.scopes.iter().rev() {
            if let Some(value) = scope.names.get(name) {
                return Ok(Some(value.clone()));
            }
            self.meter.work(0)?;
        }
        Ok(None)
    }

    /// Takes away all scopes but the first `kept`; `restore` brings them back.
    pub(super) fn hide(&mut self, kept: usize) -> Vec<Scope<'r>> {
        self.scopes.split_off(kept.min(self.scopes.len()))
    }

    pub(super) fn restore(&mut self, hidden: Vec<Scope<'r>>) {
        self.scopes.extend(hidden);
    }
}
