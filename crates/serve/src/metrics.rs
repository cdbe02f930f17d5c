//! Counts what a server does, and writes the counts as text for Prometheus.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the histograms, seconds.
const BOUNDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0];

/// Counts something; only this server writes it.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub struct Times {
    buckets: [Count; BOUNDS.len()],
    count: Count,
    micros: Count,
}

impl Times {
    pub fn add(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        BOUNDS.iter().zip(&self.buckets).filter(|(bound, _)| seconds <= **bound).for_each(|(_, n)| n.add(1));
        self.count.add(1);
        self.micros.add(time.as_micros() as u64);
    }
}

#[derive(Debug, Default)]
pub struct Metrics {
    pub requests: Count,
    pub refused: Count,
    pub responses: Count,
    pub cancelled: Count,
    pub failed: Count,
    pub prompt_tokens: Count,
    pub cached_tokens: Count,
    pub generated_tokens: Count,
    pub passes: Count,
    pub rows: Count,
    pub preemptions: Count,
    pub running: Count,
    pub waiting: Count,
    pub connections: Arc<Count>,
    pub kv_blocks_free: Count,
    pub kv_blocks: Count,
    pub kv_blocks_kept: Count,
    pub first_token: Times,
    pub whole: Times,
}

impl Metrics {
    /// Returns all metrics in the text format of Prometheus.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, kind, help, count) in [
            ("requests_total", "counter", "Requests that were taken.", &self.requests),
            ("refused_total", "counter", "Requests that were refused.", &self.refused),
            ("responses_total", "counter", "Responses that ended by themselves.", &self.responses),
            ("cancelled_total", "counter", "Responses whose client had gone.", &self.cancelled),
            ("failed_total", "counter", "Responses that ended with an error.", &self.failed),
            ("prompt_tokens_total", "counter", "Tokens of prompts.", &self.prompt_tokens),
            (
                "cached_tokens_total",
                "counter",
                "Tokens of prompts whose keys were there.",
                &self.cached_tokens,
            ),
            ("generated_tokens_total", "counter", "Tokens that were drawn.", &self.generated_tokens),
            ("passes_total", "counter", "Passes of the model.", &self.passes),
            ("rows_total", "counter", "Rows of passes.", &self.rows),
            ("preemptions_total", "counter", "Responses that gave their blocks back.", &self.preemptions),
            ("running", "gauge", "Responses in passes.", &self.running),
            ("waiting", "gauge", "Responses that wait for a slot or for blocks.", &self.waiting),
            ("connections", "gauge", "Open connections.", &self.connections),
            ("kv_blocks_free", "gauge", "Free blocks of the KV cache.", &self.kv_blocks_free),
            ("kv_blocks_kept", "gauge", "Free blocks that a prompt may read.", &self.kv_blocks_kept),
            ("kv_blocks", "gauge", "Blocks of the KV cache.", &self.kv_blocks),
        ] {
            let _ =
                writeln!(text, "# HELP plimsoll_serve_{name} {help}\n# TYPE plimsoll_serve_{name} {kind}");
            let _ = writeln!(text, "plimsoll_serve_{name} {}", count.get());
        }
        times(&mut text, "first_token_seconds", "From arrival to the first token.", &self.first_token);
        times(&mut text, "response_seconds", "From arrival to the end of a response.", &self.whole);
        text
    }
}

fn times(text: &mut String, name: &str, help: &str, times: &Times) {
    let name = format!("plimsoll_serve_{name}");
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
    for (bound, count) in BOUNDS.iter().zip(&times.buckets) {
        let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {}", count.get());
    }
    let count = times.count.get();
    let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {count}");
    let _ = writeln!(text, "{name}_sum {}\n{name}_count {count}", times.micros.get() as f64 / 1e6);
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
