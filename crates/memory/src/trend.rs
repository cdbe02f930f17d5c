//! Tests whether host memory grows, from one reading per step: with bounded memory, no alarm on noise, the slope, and
//! the step at which it would reach a limit.
//!
//! Readings of neighbouring steps are correlated, which makes the plain test raise 15 to 55 times too many alarms. So
//! the series is pre-whitened: x[t] - r x[t-1], with r the autocorrelation of the residuals after the trend (Wang and
//! Swail 2001), corrected for the bias of short series. Then Mann-Kendall decides whether it grows, and Theil-Sen's
//! median of pairwise slopes how fast; both are robust to outliers.

use serde::Serialize;

/// Most points of a series. When it is full, neighbours are averaged and each point covers twice the steps.
const POINTS_MAX: usize = 256;
/// Fewest points for a verdict.
const POINTS_MIN: usize = 30;
/// Normal quantile of p = 0.001, one-sided: only growth matters.
const Z_ALARM: f64 = 3.0902;
/// Slopes below this count as flat, even if significant: a page of 4 KiB in four steps. Bytes per step.
pub const FLAT_BYTES_PER_STEP: f64 = 1024.0;
/// Upper bound of the autocorrelation; at 1 nothing would be left to test.
const AUTOCORRELATION_MAX: f64 = 0.95;

/// The verdict on a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Verdict {
    /// Median slope, bytes per step.
    pub slope_bytes_per_step: f64,
    /// Mann-Kendall's statistic in standard deviations; above 3.09 is p < 0.001.
    pub z: f64,
    /// True if the slope is significant and not flat.
    pub grows: bool,
    pub points: usize,
}

/// One kind of memory over the steps of a run.
#[derive(Clone, Debug)]
pub struct Series {
    points: Vec<f64>,
    stride: u32,
    /// Sum and number of the readings of the current point.
    sum: f64,
    count: u32,
    /// Readings still to drop: caches and pools fill in the first steps.
    warm_up: u32,
}

/// Buffers that the tests of all series share.
#[derive(Clone, Debug)]
pub struct Scratch {
    slopes: Vec<f64>,
    whitened: Vec<f64>,
    sorted: Vec<f64>,
}

impl Scratch {
    /// Allocates for the largest series.
    pub fn new() -> Scratch {
        Scratch {
            slopes: Vec::with_capacity(pairs(POINTS_MAX)),
            whitened: Vec::with_capacity(POINTS_MAX),
            sorted: Vec::with_capacity(POINTS_MAX),
        }
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch::new()
    }
}

/// Returns the bytes of `series` series and their shared buffers, a row of the plan.
pub const fn bytes(series: u64) -> u64 {
    8 * (series * POINTS_MAX as u64 + pairs(POINTS_MAX) as u64 + 2 * POINTS_MAX as u64)
}

impl Series {
    /// Makes an empty series that drops its first `warm_up` readings.
    pub fn new(warm_up: u32) -> Series {
        Series { points: Vec::with_capacity(POINTS_MAX), stride: 1, sum: 0.0, count: 0, warm_up }
    }

    /// Adds the reading of a step.
    pub fn push(&mut self, bytes: f64) {
        if self.warm_up > 0 {
            self.warm_up -= 1;
            return;
        }
        self.sum += bytes;
        self.count += 1;
        if self.count < self.stride {
            return;
        }
        self.points.push(self.sum / f64::from(self.count));
        (self.sum, self.count) = (0.0, 0);
        if self.points.len() == POINTS_MAX {
            for i in 0..POINTS_MAX / 2 {
                self.points[i] = (self.points[2 * i] + self.points[2 * i + 1]) / 2.0;
            }
            self.points.truncate(POINTS_MAX / 2);
            self.stride *= 2;
        }
    }

    /// Returns the verdict; `None` while there are too few readings.
    pub fn verdict(&self, scratch: &mut Scratch) -> Option<Verdict> {
        let x = &self.points;
        if x.len() < POINTS_MIN {
            return None;
        }
        let slope = median_slope(x, &mut scratch.slopes);
        let r = autocorrelation(x, slope);
        scratch.whitened.clear();
        scratch.whitened.extend(x.windows(2).map(|pair| pair[1] - r * pair[0]));
        let z = mann_kendall(&scratch.whitened, &mut scratch.sorted);
        let slope_bytes_per_step = slope / f64::from(self.stride);
        let grows = z > Z_ALARM && slope_bytes_per_step >= FLAT_BYTES_PER_STEP;
        Some(Verdict { slope_bytes_per_step, z, grows, points: x.len() })
    }
}

impl Verdict {
    /// Returns the steps until `now` bytes reach `limit` at this slope; `None` if memory does not grow.
    pub fn steps_to(&self, now: u64, limit: u64) -> Option<u64> {
        let left = limit.saturating_sub(now) as f64;
        self.grows.then(|| (left / self.slope_bytes_per_step) as u64)
    }
}

const fn pairs(n: usize) -> usize {
    n * (n - 1) / 2
}

/// Returns the median of the slopes of all pairs, per point.
fn median_slope(x: &[f64], slopes: &mut Vec<f64>) -> f64 {
    slopes.clear();
    for (i, a) in x.iter().enumerate() {
        slopes.extend(x[i + 1..].iter().enumerate().map(|(d, b)| (b - a) / (d + 1) as f64));
    }
    let middle = slopes.len() / 2;
    *slopes.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// Returns the autocorrelation of neighbours without the trend, corrected for the bias of a short series,
/// E[r] = rho - (1 + 4 rho) / n; never below 0.
fn autocorrelation(x: &[f64], slope: f64) -> f64 {
    let n = x.len() as f64;
    let rest = |i: usize| x[i] - slope * i as f64;
    let mean = (0..x.len()).map(rest).sum::<f64>() / n;
    let variance: f64 = (0..x.len()).map(|i| (rest(i) - mean).powi(2)).sum();
    if variance == 0.0 {
        return 0.0;
    }
    let covariance: f64 = (1..x.len()).map(|i| (rest(i) - mean) * (rest(i - 1) - mean)).sum();
    ((n * covariance / variance + 1.0) / (n - 4.0)).clamp(0.0, AUTOCORRELATION_MAX)
}

/// Returns Mann-Kendall's S in standard deviations, corrected for ties.
fn mann_kendall(x: &[f64], sorted: &mut Vec<f64>) -> f64 {
    let mut s = 0i64;
    for (i, a) in x.iter().enumerate() {
        s += x[i + 1..].iter().map(|b| i64::from(b > a) - i64::from(b < a)).sum::<i64>();
    }
    sorted.clear();
    sorted.extend_from_slice(x);
    sorted.sort_unstable_by(f64::total_cmp);
    let term = |n: f64| n * (n - 1.0) * (2.0 * n + 5.0);
    let ties: f64 = sorted.chunk_by(|a, b| a == b).map(|run| term(run.len() as f64)).sum();
    let variance = (term(x.len() as f64) - ties) / 18.0;
    if variance <= 0.0 { 0.0 } else { (s - s.signum()) as f64 / variance.sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::rng::{Stream, normal_pair, philox};

    const MIB: f64 = 1048576.0;

    /// Makes noise of standard deviation 1 with correlation `rho` between neighbours.
    fn noise(seed: u64, rho: f64, n: usize) -> Vec<f64> {
        let mut last = 0.0;
        (0..n as u64)
            .map(|i| {
                let bits = philox(seed, Stream::Bench, i, 0);
                let normal = f64::from(normal_pair(bits[0], bits[1]).0);
                last = if i == 0 { normal } else { rho * last + (1.0 - rho * rho).sqrt() * normal };
                last
            })
            .collect()
    }

    fn series(values: impl Iterator<Item = f64>) -> Series {
        let mut series = Series::new(0);
        values.for_each(|value| series.push(value));
        series
    }

    #[test]
    fn noise_that_remembers_is_no_leak() {
        let mut scratch = Scratch::new();
        // Noise of a MiB: the slope of 30 points is far above flat, so the test itself must reject it.
        for (rho, n) in [(0.0, 60), (0.5, 60), (0.5, 200), (0.5, 1000), (0.8, 200)] {
            let seeds = 400;
            let alarms = (0..seeds).filter(|&seed| {
                let test = series(noise(seed, rho, n).into_iter().map(|e| 100.0 * MIB + MIB * e));
                test.verdict(&mut scratch).is_some_and(|verdict| verdict.grows)
            });
            // p = 0.001 gives 0.4 of 400; 4 or more have a probability of one in a thousand.
            let alarms = alarms.count();
            assert!(alarms <= 3, "rho {rho}, {n} steps: {alarms} of {seeds} are false");
        }
    }

    #[test]
    fn a_leak_of_a_tenth_of_the_noise_is_found() {
        let mut scratch = Scratch::new();
        for (rho, n, least) in [(0.0, 50, 198), (0.5, 60, 150), (0.5, 100, 198)] {
            let found = (0..200).filter(|&seed| {
                let leaking = noise(seed, rho, n).into_iter().enumerate();
                let test = series(leaking.map(|(i, e)| 100.0 * MIB + MIB * (e + 0.1 * i as f64)));
                test.verdict(&mut scratch).is_some_and(|verdict| verdict.grows)
            });
            let found = found.count();
            assert!(found >= least, "rho {rho}, {n} steps: {found} of 200");
        }
    }

    #[test]
    fn the_slope_is_a_steps_whatever_a_point_stands_for() {
        let mut scratch = Scratch::new();
        for n in [100u32, 5000, 100_000] {
            let test = series((0..n).map(|i| 1e8 + 2048.0 * f64::from(i)));
            let verdict = test.verdict(&mut scratch).expect("enough points");
            assert!((verdict.slope_bytes_per_step - 2048.0).abs() < 1.0 && verdict.grows, "{verdict:?}");
            assert_eq!(verdict.steps_to(1000, 1000 + 20480), Some(10));
            assert!(test.points.len() <= POINTS_MAX && test.points.capacity() == POINTS_MAX);
        }
    }

    #[test]
    fn one_jump_a_flat_line_and_a_slow_creep_are_no_leak() {
        let mut scratch = Scratch::new();
        let jump = |i: u32| if i < 400 { 1e8 } else { 1e8 + 4.0 * MIB };
        for (name, values) in [
            ("jump", Box::new(jump) as Box<dyn Fn(u32) -> f64>),
            ("flat", Box::new(|_| 1e8)),
            ("creep", Box::new(|i| 1e8 + 500.0 * f64::from(i))),
            ("fall", Box::new(|i| 1e8 - 5000.0 * f64::from(i))),
        ] {
            let verdict = series((0..1000).map(values)).verdict(&mut scratch).expect("enough points");
            assert!(!verdict.grows, "{name}: {verdict:?}");
            assert_eq!(verdict.steps_to(0, 1), None);
        }
    }

    #[test]
    fn warm_up_is_dropped_and_few_points_say_nothing() {
        let mut scratch = Scratch::new();
        let mut test = Series::new(100);
        (0..129).for_each(|i| test.push(f64::from(i) * MIB));
        assert_eq!(test.verdict(&mut scratch), None);
        test.push(129.0 * MIB);
        assert!(test.verdict(&mut scratch).is_some_and(|verdict| verdict.grows));
    }
}
