//! Running means and variances: of observations, which are normalised by them, and of discounted returns, by whose
//! deviation rewards are divided. As Gymnasium's `NormalizeObservation` and `NormalizeReward`, with one difference: the
//! moments do not change until a rollout has been trained on, because the log-probs that it records must equal the
//! trainer's. A checkpoint holds their state.

use serde::{Deserialize, Serialize};

/// Normalised numbers are clipped to this, as in CleanRL.
const CLIP: f32 = 10.0;
/// Added to variances.
const EPSILON: f64 = 1e-8;
/// Weight of the initial mean 0 and variance 1, in rows.
const COUNT_AT_START: f64 = 1e-4;

/// Mean and variance of rows, merged batch by batch (Chan, Golub and LeVeque 1979).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    /// Number of rows so far.
    #[serde(with = "plimsoll_run::checkpoint::exact")]
    count: f64,
    columns: Vec<Column>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Column {
    #[serde(with = "plimsoll_run::checkpoint::exact")]
    mean: f64,
    #[serde(with = "plimsoll_run::checkpoint::exact")]
    variance: f64,
}

impl Moments {
    pub fn new(width: usize) -> Moments {
        Moments { count: COUNT_AT_START, columns: vec![Column { mean: 0.0, variance: 1.0 }; width] }
    }

    pub fn width(&self) -> usize {
        self.columns.len()
    }

    /// True if the numbers are valid moments; files are not trusted.
    pub(crate) fn is_sound(&self) -> bool {
        let is_sound = |c: &Column| c.mean.is_finite() && c.variance.is_finite() && c.variance >= 0.0;
        self.count.is_finite() && self.count > 0.0 && self.columns.iter().all(is_sound)
    }

    /// Merges rows: `rows`, [N, width].
    pub fn update(&mut self, rows: &[f32]) {
        let width = self.columns.len();
        let n = (rows.len() / width) as f64;
        if n == 0.0 {
            return;
        }
        let total = self.count + n;
        for (i, column) in self.columns.iter_mut().enumerate() {
            let values = || rows.iter().skip(i).step_by(width).map(|&x| f64::from(x));
            let mean = values().sum::<f64>() / n;
            let variance = values().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
            let delta = mean - column.mean;
            let squares =
                column.variance * self.count + variance * n + delta * delta * self.count * n / total;
            column.mean += delta * n / total;
            column.variance = squares / total;
        }
        self.count = total;
    }

    /// Returns the scale of each column, which applies (x - mean) / deviation, clipped.
    pub fn scales(&self) -> Scales {
        let columns = self.columns.iter();
        Scales(columns.map(|c| (c.mean as f32, (1.0 / (c.variance + EPSILON).sqrt()) as f32)).collect())
    }

    /// Returns 1 / deviation of the first column.
    pub(crate) fn inverse_deviation(&self) -> f64 {
        1.0 / (self.columns[0].variance + EPSILON).sqrt()
    }
}

/// Mean and inverse deviation of each column, as one version of the policy uses them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scales(Vec<(f32, f32)>);

impl Scales {
    /// Normalises a row in place; without columns it stays unchanged.
    pub fn apply(&self, row: &mut [f32]) {
        for (x, (mean, scale)) in row.iter_mut().zip(&self.0) {
            *x = ((*x - mean) * scale).clamp(-CLIP, CLIP);
        }
    }
}

/// Scale of rewards: the deviation of their discounted returns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardScale {
    moments: Moments,
    /// Discounted return of each environment's episode so far.
    returns: Vec<ExactF64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct ExactF64(#[serde(with = "plimsoll_run::checkpoint::exact")] f64);

impl RewardScale {
    pub fn new(num_envs: usize) -> RewardScale {
        RewardScale { moments: Moments::new(1), returns: vec![ExactF64(0.0); num_envs] }
    }

    pub fn num_envs(&self) -> usize {
        self.returns.len()
    }

    pub(crate) fn begin_anew(&mut self) {
        self.returns.fill(ExactF64(0.0));
    }

    /// Follows the rewards of one environment's frames; `is_end(t)` says whether an episode ended with frame t.
    pub fn follow(
        &mut self,
        env: usize,
        gamma: f64,
        rewards: &[f32],
        is_end: impl Fn(usize) -> bool,
        seen: &mut Vec<f32>,
    ) {
        let carry = &mut self.returns[env].0;
        for (t, &reward) in rewards.iter().enumerate() {
            *carry = *carry * gamma + f64::from(reward);
            seen.push(*carry as f32);
            if is_end(t) {
                *carry = 0.0;
            }
        }
    }

    /// Merges the returns of `follow`, and scales rewards by the resulting deviation.
    pub fn apply(&mut self, seen: &[f32], rewards: &mut [f32]) {
        self.moments.update(seen);
        let scale = self.moments.inverse_deviation();
        for reward in rewards {
            *reward = ((f64::from(*reward) * scale) as f32).clamp(-CLIP, CLIP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_give_the_moments_of_all_rows_together() {
        let rows: Vec<f32> = (0..600).map(|i| ((i * 7919) % 101) as f32 * 0.1 - (i % 2) as f32).collect();
        let mut parts = Moments::new(2);
        for part in rows.chunks(2 * 37) {
            parts.update(part);
        }
        for column in 0..2 {
            let values: Vec<f64> = rows.iter().skip(column).step_by(2).map(|&x| x.into()).collect();
            let mean = values.iter().sum::<f64>() / 300.0;
            let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 300.0;
            let ours = parts.columns[column];
            // The initial row weighs 1e-4 of 300.
            assert!((ours.mean - mean).abs() < 1e-5 && (ours.variance - variance).abs() < 1e-3, "{ours:?}");
        }
        let text = serde_json::to_string(&parts).unwrap();
        assert_eq!(serde_json::from_str::<Moments>(&text).unwrap(), parts);
        let mut row = [1e9, 0.0];
        parts.scales().apply(&mut row);
        assert_eq!(row[0], 10.0);
    }

    #[test]
    fn a_return_begins_again_where_an_episode_ended() {
        let mut scale = RewardScale::new(1);
        let mut seen = Vec::new();
        scale.follow(0, 0.5, &[1.0, 1.0, 1.0], |t| t == 1, &mut seen);
        assert_eq!(seen, [1.0, 1.5, 1.0]);
        scale.follow(0, 0.5, &[1.0], |_| false, &mut seen);
        assert_eq!(seen[3], 1.5);
    }
}
