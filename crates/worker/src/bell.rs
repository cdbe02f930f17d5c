//! Wakes a thread that sleeps in a poll.

use rustix::event::EventfdFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A descriptor that is readable from `ring` to `quiet`; clones share it.
#[derive(Clone, Debug)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    pub fn new() -> std::io::Result<Bell> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Bell(Arc::new(rustix::event::eventfd(0, flags)?)))
    }

    /// Makes the descriptor readable.
    pub fn ring(&self) {
        // Fails only after 2^64 unheard rings.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable until the next ring. Returns true if it was rung.
    pub fn quiet(&self) -> bool {
        rustix::io::read(&*self.0, &mut [0u8; 8]).is_ok()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_heard_once_however_often_it_rang() {
        let bell = Bell::new().unwrap();
        assert!(!bell.quiet());
        let other = bell.clone();
        other.ring();
        other.ring();
        assert!(bell.quiet() && !bell.quiet());
    }
}
