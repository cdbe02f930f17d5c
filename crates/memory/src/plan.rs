//! The plan: all regions of a run, the peak of each pool, and the verdict against the limits.

use crate::{Layout, Place, Pool};
use plimsoll_base::{Bytes, Error, Phase, PhaseSet, Result};

/// A limit and its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Bytes that the run may use.
    pub bytes: Bytes,
    /// For messages: `cgroup v1 memory.limit_in_bytes`, `run file`, `free memory`.
    pub source: String,
}

/// The limit of each pool; `None` if it has none or does not exist.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    pub host: Option<Limit>,
    pub device: Option<Limit>,
    /// Disk at the run directory.
    pub disk: Option<Limit>,
    pub shm: Option<Limit>,
}

impl Limits {
    /// Returns the limits of one of `ranks` processes, which share the host's memory evenly and have one card each.
    pub fn of_each(mut self, ranks: usize) -> Limits {
        if let Some(host) = self.host.as_mut().filter(|_| ranks > 1) {
            host.bytes = Bytes(host.bytes.0 / ranks as u64);
            host.source = format!("1 of {ranks} parts of: {}", host.source);
        }
        self
    }

    /// Returns the limit of `pool`. Pinned memory counts against the host's limit.
    pub fn of(&self, pool: Pool) -> Option<&Limit> {
        match pool {
            Pool::Host | Pool::Pinned => self.host.as_ref(),
            Pool::Device => self.device.as_ref(),
            Pool::Shm => self.shm.as_ref(),
            Pool::Disk => self.disk.as_ref(),
        }
    }
}

/// The peak of a pool, and its phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolPeak {
    pub pool: Pool,
    pub resident: Bytes,
    /// Resident bytes plus those of the largest phase.
    pub peak: Bytes,
    pub phase: Phase,
}

/// All regions of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub layout: Layout,
    /// Limits of the machine or the user.
    pub limits: Limits,
}

impl Plan {
    /// Returns the bytes of `pool` in use during `phase`, including resident ones.
    pub fn in_phase(&self, pool: Pool, phase: Phase) -> Bytes {
        self.sum(|r| r.pool == pool && r.phases.contains(phase))
    }

    /// Returns the phases of a step; `Critic` only if there is a critic.
    pub fn phases(&self) -> impl Iterator<Item = Phase> {
        let has_critic = self.layout.regions.iter().any(|r| r.phases == PhaseSet::CRITIC);
        Phase::ALL.into_iter().filter(move |&phase| has_critic || phase != Phase::Critic)
    }

    pub fn peak(&self, pool: Pool) -> PoolPeak {
        let resident = self.sum(|r| r.pool == pool && r.phases.is_resident());
        let mut best = (self.in_phase(pool, Phase::Rollout), Phase::Rollout);
        for phase in [Phase::Score, Phase::Critic, Phase::Update] {
            let bytes = self.in_phase(pool, phase);
            if bytes > best.0 {
                best = (bytes, phase);
            }
        }
        PoolPeak { pool, resident, peak: best.0, phase: best.1 }
    }

    /// Returns the bytes of the arena: resident regions and the largest phase.
    pub fn arena_bytes(&self) -> Bytes {
        self.layout.arena_bytes()
    }

    /// Returns the process's highest planned RSS: the host pool without other processes and the kernel.
    pub fn process_peak(&self) -> Bytes {
        let ours = |r: &crate::Region| {
            let mine = matches!(r.place, Place::Arena | Place::Offloaded | Place::Heap | Place::Process);
            r.pool == Pool::Host && mine
        };
        let in_phase = |phase: Phase| self.sum(|r| ours(r) && r.phases.contains(phase));
        Phase::ALL.into_iter().map(in_phase).max().unwrap_or_default()
    }

    /// Returns the owners of the host's peak, the largest part first; the parts sum to the peak.
    pub fn host_parts(&self) -> Vec<(&'static str, Bytes)> {
        let phase = self.peak(Pool::Host).phase;
        let of = |holder: &str| {
            self.sum(|r| r.pool == Pool::Host && r.phases.contains(phase) && holder_of(r) == holder)
        };
        let parts = [TRAINER, SUPERVISOR, WORKERS, KERNEL].map(|holder| (holder, of(holder)));
        let mut parts: Vec<_> = parts.into_iter().filter(|(_, bytes)| *bytes > Bytes(0)).collect();
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        parts
    }

    /// Requires that the sum of all regions does not overflow.
    ///
    /// Errors: `size-overflow`.
    pub fn check_sum(&self) -> Result<()> {
        let total = self.layout.regions.iter().try_fold(0u64, |sum, r| sum.checked_add(r.bytes.0));
        match total.filter(|&bytes| bytes <= i64::MAX as u64) {
            Some(_) => Ok(()),
            None => Err(Error::new("size-overflow", "the regions of the plan together overflow 63 bits")
                .hint("check the lengths and counts in the run file or the model's config.json")),
        }
    }

    /// Returns true if every pool's peak is within its limit.
    pub fn fits(&self) -> bool {
        Pool::ALL.into_iter().all(|pool| self.excess(pool) == Bytes(0))
    }

    /// Returns the bytes by which a pool's peak exceeds its limit. Pinned memory is counted with the host's.
    pub fn excess(&self, pool: Pool) -> Bytes {
        let Some(limit) = self.limits.of(pool) else { return Bytes(0) };
        let mut peak = self.peak(pool).peak;
        if pool == Pool::Host {
            peak += self.peak(Pool::Pinned).peak;
        }
        Bytes(peak.0.saturating_sub(limit.bytes.0))
    }

    /// Returns the error of a plan that does not fit: pool, phase, limit and the largest regions.
    pub fn refusal(&self) -> Result<()> {
        let Some(pool) = Pool::ALL.into_iter().find(|&p| self.excess(p) > Bytes(0)) else { return Ok(()) };
        let limit = self.limits.of(pool).expect("only a limited pool has an excess");
        let peak = self.peak(pool);
        let message = format!(
            "phase {}: the run needs {} of {} memory, the limit is {} ({})",
            peak.phase.name(),
            peak.peak,
            pool.name(),
            limit.bytes,
            limit.source
        );
        let mut rows: Vec<_> =
            self.layout.regions.iter().filter(|r| r.pool == pool && r.phases.contains(peak.phase)).collect();
        rows.sort_by_key(|r| std::cmp::Reverse(r.bytes));
        let largest: Vec<String> = rows.iter().take(5).map(|r| format!("{} {}", r.name, r.bytes)).collect();
        let error = match pool {
            Pool::Device => Error::does_not_fit("device-pool-exceeded", message),
            Pool::Disk => Error::does_not_fit("disk-pool-exceeded", message),
            Pool::Shm => Error::does_not_fit("shm-pool-exceeded", message),
            Pool::Host | Pool::Pinned => Error::does_not_fit("host-pool-exceeded", message),
        };
        Err(error.fact(format!("resident {}; largest rows: {}", peak.resident, largest.join(", "))))
    }

    fn sum(&self, keep: impl Fn(&crate::Region) -> bool) -> Bytes {
        self.layout.sum(keep)
    }
}

/// The process that trains or collects.
const TRAINER: &str = "trainer";
const SUPERVISOR: &str = "supervisor";
const WORKERS: &str = "workers";
const KERNEL: &str = "kernel";

fn holder_of(region: &crate::Region) -> &'static str {
    match region.place {
        Place::Workers if region.name == "process.supervisor" => SUPERVISOR,
        Place::Workers => WORKERS,
        // File pages are charged to the container and to no process.
        Place::Kernel | Place::File => KERNEL,
        Place::Arena | Place::Offloaded | Place::Heap | Place::Process => TRAINER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{DType, PhaseSet};

    fn plan() -> Plan {
        let mut layout = Layout::new();
        for (name, phases, n) in [
            ("weights", PhaseSet::RESIDENT, 1024),
            ("kv", PhaseSet::ROLLOUT, 2048),
            ("activations", PhaseSet::UPDATE, 4096),
            ("head.tile", PhaseSet::of(&Phase::ALL), 256),
        ] {
            layout.arena(name, "test", Pool::Host, phases, &[n], DType::U8).unwrap();
        }
        Plan { layout, limits: Limits::default() }
    }

    #[test]
    fn peak_is_resident_plus_the_largest_phase() {
        let peak = plan().peak(Pool::Host);
        assert_eq!((peak.resident, peak.peak, peak.phase), (Bytes(1024), Bytes(5376), Phase::Update));
        assert_eq!(plan().arena_bytes(), Bytes(5376));
    }

    #[test]
    fn the_parts_of_the_host_sum_to_its_peak() {
        let mut plan = plan();
        for (name, place, bytes) in [
            ("process.supervisor", Place::Workers, 10_000),
            ("reward.workers", Place::Workers, 300),
            ("kernel.memory", Place::Kernel, 20),
        ] {
            plan.layout.outside(name, "test", Pool::Host, place, Bytes(bytes));
        }
        let expect = [("supervisor", 10_000), ("trainer", 5376), ("workers", 300), ("kernel", 20)];
        assert_eq!(plan.host_parts(), expect.map(|(name, bytes)| (name, Bytes(bytes))));
        let sum = plan.host_parts().iter().map(|(_, bytes)| bytes.0).sum();
        assert_eq!(plan.peak(Pool::Host).peak, Bytes(sum));
        assert_eq!(plan.process_peak(), Bytes(5376));
    }

    #[test]
    fn a_limit_below_the_peak_is_refused_with_numbers() {
        let mut plan = plan();
        plan.limits.host = Some(Limit { bytes: Bytes(5376), source: "test".into() });
        assert!(plan.fits() && plan.refusal().is_ok());
        plan.limits.host = Some(Limit { bytes: Bytes(5375), source: "test".into() });
        let error = plan.refusal().unwrap_err();
        assert_eq!((error.slug, error.exit as i32), ("host-pool-exceeded", 3));
        assert!(error.to_string().contains("phase update"), "{error}");
    }
}
