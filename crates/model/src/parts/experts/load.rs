//! Expert load in the passes of an update, and how balanced it was.

use super::regions::{ExpertRegions, GradientRegions};
use plimsoll_arch::ModelSpec;
use plimsoll_device::Device;

/// Rows whose balance is read at a time.
const ROWS_READ: usize = 1024;

/// Expert load of a model in the passes of an update.
#[derive(Clone, Debug)]
pub struct ExpertLoad {
    /// L: layers with experts, and E.
    layers: usize,
    count: usize,
    /// [L, E] pairs, then per pass the sum over rows of the balance loss; ranks exchange these.
    numbers: Vec<f64>,
    starts: Vec<u32>,
}

/// Expert load balance of an update (MoE models only).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpertUse {
    /// The load balancing loss with coefficient 1: E times the mean over layers and rows of the sum over experts of a
    /// row's probability times its segment's share of rows; rows of a prompt count for each of its responses. It is k
    /// if experts are equally loaded.
    pub balance: f64,
    /// Pairs of the busiest expert over its layer's mean; the largest of all layers.
    pub load_max: f64,
    /// Number of experts without pairs, over all layers.
    pub idle: u32,
}

impl ExpertLoad {
    /// Starts empty; none for a model without experts.
    pub fn of(spec: &ModelSpec) -> Option<ExpertLoad> {
        let experts = spec.each_layer().find_map(|layer| layer.experts())?;
        let (layers, count) = (spec.expert_layers() as usize, experts.count as usize);
        let (numbers, starts) = (vec![0.0; layers * count], vec![0; layers * (count + 1)]);
        Some(ExpertLoad { layers, count, numbers, starts })
    }

    /// Adds a pass, after its backward pass.
    pub(crate) fn add(&mut self, dev: &dyn Device, regions: &ExpertRegions<'_>, m: usize) {
        let GradientRegions { balance, .. } = regions.gradients.expect("only the update runs backward");
        let (layers, count) = (self.layers, self.count);
        dev.read_u32(regions.starts, 0, &mut self.starts);
        for (layer, starts) in self.starts.chunks(count + 1).enumerate() {
            for (expert, ends) in starts.windows(2).enumerate() {
                self.numbers[layer * count + expert] += f64::from(ends[1] - ends[0]);
            }
        }
        let (mut sum, mut rows) = (0.0, [0.0; ROWS_READ]);
        for layer in 0..layers {
            let of_layer = layer * (balance.len() / layers);
            let mut of_rows = 0.0;
            for first in (0..m).step_by(ROWS_READ) {
                let rows = &mut rows[..ROWS_READ.min(m - first)];
                dev.read_f32(balance, of_layer + first, rows);
                rows.iter().for_each(|row| of_rows += f64::from(*row));
            }
            sum += of_rows;
        }
        self.numbers.push(sum);
    }

    /// Returns the numbers that ranks exchange.
    pub fn numbers(&self) -> &[f64] {
        &self.numbers
    }

    /// Returns the use of experts from the numbers of all ranks, among which the update's passes were dealt in turn.
    /// `rows`: of all passes, those of a prompt once for each response that goes on from it.
    pub fn used(&self, ranks: &[Vec<f64>], rows: u64) -> ExpertUse {
        let (layers, count) = (self.layers, self.count);
        let pairs = |i: usize| ranks.iter().map(|numbers| numbers[i]).sum::<f64>();
        let pairs: Vec<f64> = (0..layers * count).map(pairs).collect();
        let total: f64 = pairs.iter().sum();
        if total == 0.0 {
            return ExpertUse::default();
        }
        let passes = ranks.iter().map(|numbers| numbers.len() - layers * count).max().unwrap_or(0);
        let in_turn =
            (0..passes).flat_map(|pass| ranks.iter().filter_map(move |of| of.get(layers * count + pass)));
        let mean = total / (layers * count) as f64;
        ExpertUse {
            balance: count as f64 * in_turn.sum::<f64>() / (rows as f64 * layers as f64),
            load_max: pairs.iter().fold(0.0, |most, &n| f64::max(most, n)) / mean,
            idle: pairs.iter().filter(|&&n| n == 0.0).count() as u32,
        }
    }
}
