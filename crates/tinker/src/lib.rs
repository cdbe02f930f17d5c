//! What clients of Tinker's API say and hear: sessions, futures, the order of a model's requests, what a crash leaves.
//!
//! It owns the protocol and its journal, and computes nothing: an engine takes typed jobs (`Tinker::take`) and answers
//! each (`TakenJob::answer`). It knows no model and no device.
//!
//! A request goes from a route (`http/`) through `Tinker::submit`, which has it written down (`journal.rs`), to the
//! order of its model (`state/order.rs`) and to the queue (`queue.rs`), which shares the engine among tenants. The
//! answer becomes a record too, and then a result that its client asks for. Each change of the state is a record
//! (`record.rs`), so a restart that reads them has the state that was; models are made again from what was saved last
//! and the requests after it (`Tinker::start`).

mod codec;
mod folders;
mod guard;
mod http;
mod job;
mod journal;
mod limits;
mod losses;
mod names;
mod queue;
mod record;
mod replies;
mod service;
mod state;

pub use folders::StoreFolders;
pub use guard::TokenTenants;
pub use http::router;
pub use job::{
    AdamStep, AdapterChoice, DrawParams, Job, JobAnswer, Metrics, Ranked, SampleAnswer, SampleEnd, SampleJob,
    SampledTokens, SaveKind, StopRule, StoreId, TrainDatum,
};
pub use limits::TinkerLimits;
pub use losses::{PassLoss, pass_loss};
pub use queue::Lane;
pub use service::{ServedModel, TakenJob, Tinker, TinkerSettings};
