//! Checks this machine for what would end a training run. Each check reads below a root directory, so tests can use a
//! made-up machine; what cannot be read is reported and never a problem.
//!
//! A check has a slug whose page explains why it matters and what to do. Checks change nothing and need no privilege;
//! their only system calls other than reads are probes on this process itself.

mod environment;
mod facts;
mod gpu;
mod kernel;
mod limits;
mod memory;
mod packages;
mod storage;
mod workers;

pub use facts::{Card, Check, GpuFacts, HandOver, Machine, State, WorkerFacts};

impl Machine {
    pub fn checks(&self) -> Vec<Check> {
        [
            kernel::checks(self),
            memory::checks(self),
            limits::checks(self),
            storage::checks(self),
            gpu::checks(self),
            environment::checks(self),
            vec![Check::of("machine-python-packages", packages::check(self)), workers::check(self)],
        ]
        .concat()
    }
}
