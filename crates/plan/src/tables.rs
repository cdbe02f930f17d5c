//! Parameter tables while a run is planned, each made once: a search lays out thousands of settings, and the table of
//! an MoE model has tens of thousands of names.

use crate::lora::Lora;
use plimsoll_arch::ModelSpec;
use plimsoll_base::DType;
use plimsoll_device::Layouts;
use plimsoll_files::Head;
use plimsoll_model::{Coding, ParamTable};
use std::cell::RefCell;
use std::rc::Rc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Weights,
    Adapters,
    Merged,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) which: Which,
    pub(crate) spec: ModelSpec,
    pub(crate) head: Head,
    pub(crate) device: &'static Layouts,
    pub(crate) weights: DType,
    /// The adapters, if it is a table of adapters.
    pub(crate) lora: Option<Lora>,
    pub(crate) quantize: Option<Coding>,
}

/// Each table with its key; there are a few.
type Kept = Vec<(Key, Rc<ParamTable>)>;

thread_local! {
    /// The tables of the plan that this thread is making; none if it makes none.
    static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

/// Drops the tables when a plan is done, even by a panic: they take megabytes that no plan counts.
struct Forget;

impl Drop for Forget {
    fn drop(&mut self) {
        KEPT.set(None);
    }
}

/// Runs `work`, during which each table is made once.
pub(crate) fn keeping<T>(work: impl FnOnce() -> T) -> T {
    if KEPT.with_borrow(Option::is_some) {
        return work();
    }
    KEPT.set(Some(Vec::new()));
    let _forget = Forget;
    work()
}

/// Returns the table of `key`: the kept one, or that of `make`.
pub(crate) fn of(key: Key, make: impl FnOnce() -> ParamTable) -> Rc<ParamTable> {
    let find = |kept: &Option<Kept>| {
        let (_, table) = kept.as_ref()?.iter().find(|(known, _)| *known == key)?;
        Some(Rc::clone(table))
    };
    if let Some(table) = KEPT.with_borrow(find) {
        return table;
    }
    let table = Rc::new(make());
    KEPT.with_borrow_mut(|kept| {
        if let Some(kept) = kept {
            kept.push((key, Rc::clone(&table)));
        }
    });
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_forgotten_after_a_plan() {
        let is_keeping = || KEPT.with_borrow(Option::is_some);
        assert!(!is_keeping());
        assert!(keeping(|| keeping(is_keeping) && is_keeping()), "the outer plan goes on");
        assert!(!is_keeping());
        assert!(std::panic::catch_unwind(|| keeping(|| panic!("a plan"))).is_err());
        assert!(!is_keeping());
    }
}
