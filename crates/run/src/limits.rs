//! Sets what the phases of a run took, next to what the device allows: the `limits` of a summary.

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
    /// Bytes of the weights that tokens compute with.
    pub weight_bytes: f64,
    /// Those of them that are of experts, and the share of experts that a token uses.
    pub experts: (f64, f64),
    /// Bytes that one update reads and writes at least.
    pub update_bytes: f64,
}

impl Roofline {
    /// Returns operations, bytes and seconds of rollouts and updates, the least that these take on this device, and
    /// which of the two a phase is bound by; the seconds of all else.
    ///
    /// `peak_flops`: FLOP/s of products. A pass of a rollout reads each weight once, of experts those that its tokens
    /// choose if they choose evenly: of E experts E (1 - (1 - k/E)^n) for n tokens with k each. An update reads them
    /// twice, and moves gradients and states once. Further micro-batches, keys, activations and recomputation do not
    /// count, and neither do the tokens of prompts.
    pub fn of(&self, progress: &Progress, peak_flops: f64) -> Value {
        let Progress { rollout_s, update_s, step_s, flops, rollout_flops, rollout_passes, updates, .. } =
            *progress;
        let tokens = progress.rollout_tokens as f64 / rollout_passes.max(1) as f64;
        let other = (step_s - rollout_s - update_s).max(0.0);
        let [read, moved] = [(rollout_passes, self.read_bytes(tokens)), (updates, self.update_bytes)]
            .map(|(n, bytes)| n as f64 * bytes);
        let rollout = self.phase(rollout_s, rollout_flops, read, peak_flops);
        let update = self.phase(update_s, flops - rollout_flops, moved, peak_flops);
        let share = if step_s > 0.0 { json!(other / step_s) } else { Value::Null };
        json!({ "rollout": rollout, "update": update, "other": { "seconds": other, "share": share } })
    }

    /// Returns the bytes of the weights that a pass of `tokens` tokens reads.
    fn read_bytes(&self, tokens: f64) -> f64 {
        let (bytes, share) = self.experts;
        self.weight_bytes - bytes * (1.0 - share).powf(tokens)
    }

    fn phase(&self, seconds: f64, flops: f64, bytes: f64, peak_flops: f64) -> Value {
        let (computing, reading) = (flops / peak_flops, bytes / self.bandwidth);
        let limit = computing.max(reading);
        if seconds <= 0.0 || limit <= 0.0 {
            return Value::Null;
        }
        let share = limit / seconds;
        let bound = match share {
            share if share < BOUND => "latency",
            _ if reading > computing => "memory",
            _ => "arithmetic",
        };
        json!({
            "seconds": seconds, "flops": flops, "bytes": bytes,
            "limit_seconds": limit, "share": share, "bound_by": bound,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_bound_by_the_larger_of_its_limits() {
        let roofline =
            Roofline { bandwidth: 1e11, weight_bytes: 1e9, experts: (0.0, 0.0), update_bytes: 4e9 };
        let progress = Progress {
            rollout_s: 2.0,
            update_s: 4.0,
            step_s: 8.0,
            flops: 3.5e12,
            rollout_flops: 5e11,
            rollout_passes: 100,
            updates: 5,
            ..Progress::default()
        };
        let found = roofline.of(&progress, 1e12);
        // 100 passes of 1 GB at 100 GB/s; 0.5 s of arithmetic.
        let rollout = json!({
            "seconds": 2.0, "flops": 5e11, "bytes": 1e11, "limit_seconds": 1.0, "share": 0.5, "bound_by": "memory",
        });
        assert_eq!(found["rollout"], rollout);
        // 5 updates of 4 GB; 3 s of arithmetic.
        let update = json!({
            "seconds": 4.0, "flops": 3e12, "bytes": 2e10, "limit_seconds": 3.0, "share": 0.75, "bound_by": "arithmetic",
        });
        assert_eq!(found["update"], update);
        assert_eq!(found["other"], json!({ "seconds": 2.0, "share": 0.25 }));
        let slow = roofline.of(&Progress { rollout_s: 20.0, ..progress }, 1e12);
        assert_eq!(slow["rollout"]["bound_by"], "latency");
        assert_eq!(roofline.of(&Progress::default(), 1e12)["rollout"], Value::Null);
    }

    #[test]
    fn a_pass_reads_the_experts_that_its_tokens_choose() {
        let of = |experts| Roofline { bandwidth: 1e11, weight_bytes: 1e9, experts, update_bytes: 4e9 };
        // An eighth of 800 MB, then what two tokens choose of it: 1 - 49/64.
        assert_eq!(of((8e8, 0.125)).read_bytes(1.0), 3e8);
        assert_eq!(of((8e8, 0.125)).read_bytes(2.0), 1e9 - 8e8 * 49.0 / 64.0);
        assert_eq!(of((8e8, 0.125)).read_bytes(1e4), 1e9);
        assert_eq!(of((0.0, 0.0)).read_bytes(3.0), 1e9);
    }
}
