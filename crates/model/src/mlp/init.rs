//! Initial weights: orthogonal matrices and zero biases, as CleanRL's `layer_init`. The gain is sqrt 2, but 0.01 for
//! the actor's last layer and 1 for the critic's; standard deviations of a Gaussian actor start at 1.

use super::{MlpParams, MlpSpec};
use crate::params::ParamTable;
use plimsoll_arch::ParamKind;
use plimsoll_base::rng::{Stream, normal_pair, philox};
use plimsoll_device::{Device, Matrix, MatrixLayout};

impl MlpSpec {
    /// Writes the weights that follow from `seed`. A start-up cost: rows^2 x columns in f64 per matrix.
    pub fn init(&self, dev: &dyn Device, table: &ParamTable, params: &MlpParams<'_>, seed: u64) {
        dev.zero(params.all); // Biases, `log_std` and padding.
        let layout = MatrixLayout::of_weights(table.device, params.all.dtype());
        let last = self.hidden.len() as u32;
        let mut counter = 0;
        for p in &table.params {
            let gain = match p.kind {
                ParamKind::ActorLinear if p.layer == last => 0.01,
                ParamKind::CriticLinear if p.layer == last => 1.0,
                ParamKind::ActorLinear | ParamKind::CriticLinear => std::f64::consts::SQRT_2,
                _ => continue,
            };
            let (n, k) = (p.n as usize, p.k as usize);
            let rows: Vec<f32> = orthogonal(n, k, seed, counter).iter().map(|x| (gain * x) as f32).collect();
            counter += (n * k) as u64;
            let buf = params.all.slice(p.offset as usize, p.elements as usize);
            dev.write_rows(Matrix::new(buf, n, k, layout), 0, &rows);
        }
    }
}

/// Returns a random matrix `[n, k]`, row-major, with orthonormal rows (columns if it is tall): the Q of a normal matrix
/// whose R has a positive diagonal, so that no direction is favoured. `counter`: its first random number.
fn orthogonal(n: usize, k: usize, seed: u64, counter: u64) -> Vec<f64> {
    let (short, long) = (n.min(k), n.max(k));
    let normal = |i: usize| {
        let [a, b, ..] = philox(seed, Stream::Weights, counter + i as u64 / 2, 0);
        let pair = normal_pair(a, b);
        f64::from(if i.is_multiple_of(2) { pair.0 } else { pair.1 })
    };
    let mut vectors: Vec<Vec<f64>> =
        (0..short).map(|v| (0..long).map(|i| normal(v * long + i)).collect()).collect();
    for v in 0..short {
        let (before, rest) = vectors.split_at_mut(v);
        let vector = &mut rest[0];
        // Twice, because one round leaves rounding errors of nearly parallel vectors.
        for other in before.iter().chain(before.iter()) {
            let along: f64 = vector.iter().zip(other).map(|(a, b)| a * b).sum();
            vector.iter_mut().zip(other).for_each(|(a, b)| *a -= along * b);
        }
        let length = vector.iter().map(|a| a * a).sum::<f64>().sqrt();
        vector.iter_mut().for_each(|a| *a /= length);
    }
    let at = |row: usize, col: usize| if n <= k { vectors[row][col] } else { vectors[col][row] };
    (0..n * k).map(|i| at(i / k, i % k)).collect()
}

#[cfg(test)]
mod tests {
    use super::orthogonal;

    #[test]
    fn rows_or_columns_are_orthonormal_and_the_seed_decides() {
        for (n, k) in [(64, 64), (64, 4), (2, 64), (1, 64), (3, 3)] {
            let q = orthogonal(n, k, 1, 0);
            let vector = |v: usize, i: usize| if n <= k { q[v * k + i] } else { q[i * k + v] };
            for a in 0..n.min(k) {
                for b in 0..n.min(k) {
                    let dot: f64 = (0..n.max(k)).map(|i| vector(a, i) * vector(b, i)).sum();
                    assert!((dot - f64::from(u8::from(a == b))).abs() < 1e-12, "[{n}, {k}] {a} {b}: {dot}");
                }
            }
            assert_eq!(q, orthogonal(n, k, 1, 0));
            assert_ne!(q, orthogonal(n, k, 2, 0));
            assert_ne!(q, orthogonal(n, k, 1, 1));
        }
    }
}
