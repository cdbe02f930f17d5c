//! What the phases of a run took, next to what the device allows: the `limits` of a summary.

use crate::progress::Progress;
use serde_json::{Value, json};

/// Share of its limit below which a phase waits for something else: launches, steps that depend on one another, or the
/// host.
const BOUND: f64 = 0.4;

/// The rates of a device, and what a pass reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// Bytes per second of the memory that weights are in.
    pub bandwidth: f64,
    /// Bytes of the weights that a token computes with.
    pub weight_bytes: f64,
}

impl Roofline {
    /// Returns the seconds of rollouts and updates, the least that their operations and weights take on this device,
    /// and which of the two a phase is bound by; the seconds of all else.
    ///
    /// `peak_flops`: FLOP/s of products. A pass of a rollout reads each weight once that a token computes with. Further
    /// experts, keys, what an optimizer reads, and recomputation do not count.
    pub fn of(&self, progress: &Progress, peak_flops: f64) -> Value {
        let Progress { rollout_s, update_s, step_s, flops, rollout_flops, rollout_passes, .. } = *progress;
        let read = rollout_passes as f64 * self.weight_bytes / self.bandwidth;
        let other = (step_s - rollout_s - update_s).max(0.0);
        let rollout = phase(rollout_s, rollout_flops / peak_flops, read);
        let update = phase(update_s, (flops - rollout_flops) / peak_flops, 0.0);
        let share = if step_s > 0.0 { json!(other / step_s) } else { Value::Null };
        json!({ "rollout": rollout, "update": update, "other": { "seconds": other, "share": share } })
    }
}

fn phase(seconds: f64, computing: f64, reading: f64) -> Value {
    let limit = computing.max(reading);
    if seconds <= 0.0 || limit <= 0.0 {
        return Value::Null;
    }
    let bound = match limit / seconds {
        share if share < BOUND => "latency",
        _ if reading > computing => "memory",
        _ => "arithmetic",
    };
    json!({ "seconds": seconds, "limit_seconds": limit, "share": limit / seconds, "bound_by": bound })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_bound_by_the_larger_of_its_limits() {
        let roofline = Roofline { bandwidth: 1e11, weight_bytes: 1e9 };
        let progress = Progress {
            rollout_s: 2.0,
            update_s: 4.0,
            step_s: 8.0,
            flops: 3.5e12,
            rollout_flops: 5e11,
            rollout_passes: 100,
            ..Progress::default()
        };
        let found = roofline.of(&progress, 1e12);
        // 100 passes of 1 GB at 100 GB/s; 0.5 s of arithmetic.
        let rollout = json!({ "seconds": 2.0, "limit_seconds": 1.0, "share": 0.5, "bound_by": "memory" });
        assert_eq!(found["rollout"], rollout);
        let update = json!({ "seconds": 4.0, "limit_seconds": 3.0, "share": 0.75, "bound_by": "arithmetic" });
        assert_eq!(found["update"], update);
        assert_eq!(found["other"], json!({ "seconds": 2.0, "share": 0.25 }));
        let slow = roofline.of(&Progress { rollout_s: 20.0, ..progress }, 1e12);
        assert_eq!(slow["rollout"]["bound_by"], "latency");
        assert_eq!(roofline.of(&Progress::default(), 1e12)["rollout"], Value::Null);
    }
}
