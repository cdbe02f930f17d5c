//! Bounds of what clients can send and of what is kept for them.

use std::time::Duration;

/// Datums of one request; `client/config` says so.
pub const DATUMS_MAX: usize = 1024;
/// Bytes of datums, as the client counts them, that it puts into one request; `client/config` says so.
pub const CHUNK_BYTES: usize = 5_000_000;
/// Bytes of a body: one datum can be larger than what a client puts together.
pub const BODY_BYTES_MAX: usize = 64 << 20;
/// Bytes of all bodies that are here or on their way.
pub const BODIES_BYTES_MAX: usize = 256 << 20;
/// Bodies that are read at one time.
pub const READERS_MAX: usize = 2;
/// Numbers of all tensors of a request, once they are dense.
pub const ELEMENTS_MAX: usize = 16 << 20;
/// Tokens of a sequence.
pub const TOKENS_MAX: usize = 1 << 20;
/// Targets of a position.
pub const TARGETS_MAX: usize = 1024;
/// Responses to a prompt.
pub const SAMPLES_MAX: u32 = 1024;
/// Most likely tokens of a position.
pub const RANKED_MAX: u32 = 64;
/// Stop strings or tokens of a request.
pub const STOPS_MAX: usize = 64;
/// Bytes of a name that a client gives.
pub const NAME_BYTES_MAX: usize = 128;
/// Entries of metadata, and bytes of all of them.
pub const METADATA_MAX: usize = 64;
pub const METADATA_BYTES_MAX: usize = 16 << 10;
/// The time that a request for a result is held.
pub const POLL_WAIT: Duration = Duration::from_secs(30);
/// Rows of a page of a list.
pub const PAGE_MAX: usize = 1000;

/// What a server keeps for its clients, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct TinkerLimits {
    /// Requests of a tenant that are not answered yet.
    pub pending: usize,
    /// Bytes of a tenant's requests that are not answered yet.
    pub pending_bytes: usize,
    /// Bytes of a tenant's requests that a restart would need, which are kept on the disk.
    pub journal_bytes: usize,
    /// Bytes of all results that are kept; the oldest go first.
    pub result_bytes: usize,
    /// The time for which a result is kept.
    pub result_age: Duration,
    /// Sessions, models, samplers and saved states of a tenant.
    pub things: usize,
    /// The time without a sign of life after which a session is closed.
    pub silence: Duration,
    /// The time for which requests wait for one that should have come before them.
    pub gap_wait: Duration,
    /// Bytes of a model's requests after which its state is saved so that the journal can be cut.
    pub recover_bytes: usize,
    /// Bytes of the journal after which it is written anew without what is no longer needed.
    pub compact_bytes: u64,
}

impl TinkerLimits {
    /// Returns the most bytes of the host's memory that requests and results of some tenants take.
    pub fn host_bytes(&self, tenants: usize) -> usize {
        // A request is there as bytes, as what was read of them, and as a record on its way to the disk.
        let pending = tenants.saturating_mul(self.pending_bytes).saturating_mul(2);
        BODIES_BYTES_MAX.saturating_add(pending).saturating_add(self.result_bytes)
    }
}

impl Default for TinkerLimits {
    fn default() -> TinkerLimits {
        TinkerLimits {
            pending: 8192,
            pending_bytes: 256 << 20,
            journal_bytes: 1 << 30,
            result_bytes: 512 << 20,
            result_age: Duration::from_secs(6 * 3600),
            things: 4096,
            silence: Duration::from_secs(15 * 60),
            gap_wait: Duration::from_secs(6 * 60),
            recover_bytes: 64 << 20,
            compact_bytes: 128 << 20,
        }
    }
}
