//! Thread primitives: the standard library's, and in a test under `cfg(loom)` loom's, which runs every order.

#[cfg(all(loom, test))]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{Mutex, MutexGuard, atomic},
    thread, thread_local,
};
#[cfg(not(all(loom, test)))]
pub(crate) use std::{
    sync::{Mutex, MutexGuard, atomic},
    thread, thread_local,
};

/// `std::cell::UnsafeCell` with the interface of loom's.
#[cfg(not(all(loom, test)))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(all(loom, test)))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
