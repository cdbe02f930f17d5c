//! The memories that a plan counts.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pool {
    Device,
    Host,
    /// /dev/shm, which is part of host memory too.
    Shm,
}

impl Pool {
    pub const fn name(self) -> &'static str {
        match self {
            Pool::Device => "device",
            Pool::Host => "host",
            Pool::Shm => "/dev/shm",
        }
    }
}
