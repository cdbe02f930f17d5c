//! Losses over pairs of a chosen and a rejected response: DPO, cDPO, IPO, SimPO, CPO, ORPO, and the reward model's.
//!
//! P pairs. Log-probs are summed over the sequence's trained tokens, so the gradient of a pair goes to each of them.

use plimsoll_base::math::{exp, ln};

/// A loss of l_c and l_r, of h = (l_c - l_r) - (lref_c - lref_r), or of their means over tokens, a_c and a_r.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PreferenceLoss {
    /// -(1 - s) log sigma(b h) - s log sigma(-b h) (arXiv 2305.18290; s > 0 is cDPO, ericmitchell.ai/cdpo.pdf).
    Dpo {
        /// b.
        beta: f64,
        /// Label smoothing s, the share of labels assumed wrong; 0 is plain DPO.
        label_smoothing: f64,
    },
    /// (h - 1/(2b))^2 (arXiv 2310.12036, equation 17).
    Ipo {
        /// b.
        beta: f64,
    },
    /// -log sigma(b (a_c - a_r) - g) (arXiv 2405.14734, equation 6).
    SimPo {
        /// b.
        beta: f64,
        /// g, the margin.
        gamma: f64,
    },
    /// DPO's loss with l_c - l_r for h, less c times the mean of l over all chosen tokens (arXiv 2401.08417).
    Cpo {
        /// b.
        beta: f64,
        /// Label smoothing, as of DPO.
        label_smoothing: f64,
        /// c.
        nll_coef: f64,
    },
    /// -a_c - b log sigma(o), o the difference of the log-odds a - log(1 - e^a) (arXiv 2403.07691, equations 6 and 7).
    OrPo {
        /// b, the paper's lambda.
        beta: f64,
    },
}

/// The largest mean log-prob whose odds are computed; above it they would not be finite.
const MEAN_LOG_MAX: f64 = -1e-6;

/// Summed log-probs of pairs; all slices [P].
#[derive(Clone, Copy, Debug)]
pub struct PairBatch<'a> {
    /// l_c, of the policy.
    pub chosen: &'a [f32],
    /// l_r, of the policy.
    pub rejected: &'a [f32],
    /// lref_c, of the reference.
    pub ref_chosen: &'a [f32],
    /// lref_r, of the reference.
    pub ref_rejected: &'a [f32],
    /// Trained tokens of the chosen and of the rejected side; read only by losses of means over tokens.
    pub tokens: [&'a [f32]; 2],
    /// Chosen tokens of the whole step; read only by CPO.
    pub chosen_tokens: f64,
}

/// Sums of a pair loss over micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PairSums {
    /// Contribution to the loss of the step.
    pub loss: f64,
    /// Pairs.
    pub pairs: f64,
    /// Pairs whose chosen side scores higher.
    pub correct: f64,
    /// Sum of the chosen sides' rewards: b (l_c - lref_c), or the reward model's own.
    pub reward_chosen: f64,
    /// Sum of the rejected sides' rewards.
    pub reward_rejected: f64,
}

impl PairSums {
    /// Adds another micro-batch.
    pub fn merge(&mut self, other: PairSums) {
        self.loss += other.loss;
        self.pairs += other.pairs;
        self.correct += other.correct;
        self.reward_chosen += other.reward_chosen;
        self.reward_rejected += other.reward_rejected;
    }

    /// Returns the share of pairs whose chosen side scores higher.
    pub fn accuracy(&self) -> f64 {
        self.correct / self.pairs.max(1.0)
    }

    /// Returns the mean of chosen less rejected reward.
    pub fn mean_margin(&self) -> f64 {
        (self.reward_chosen - self.reward_rejected) / self.pairs.max(1.0)
    }

    fn count(&mut self, chosen: f64, rejected: f64) {
        self.pairs += 1.0;
        self.correct += if chosen > rejected { 1.0 } else { 0.0 };
        self.reward_chosen += chosen;
        self.reward_rejected += rejected;
    }
}

/// Computes a preference loss, the mean over the step's `total_pairs`.
///
/// Writes d loss / d l_c and d loss / d l_r, [P].
pub fn preference_loss(
    loss: PreferenceLoss,
    batch: &PairBatch<'_>,
    total_pairs: f64,
    d_chosen: &mut [f32],
    d_rejected: &mut [f32],
) -> PairSums {
    let num_pairs = batch.chosen.len();
    let [of_chosen, of_rejected] = batch.tokens;
    for length in
        [batch.rejected, batch.ref_chosen, batch.ref_rejected, of_chosen, of_rejected].map(<[f32]>::len)
    {
        assert_eq!(length, num_pairs, "one number for each side of each pair");
    }
    let mut sums = PairSums::default();
    for p in 0..num_pairs {
        let of = |x: &[f32]| f64::from(x[p]);
        let (chosen, rejected) = (of(batch.chosen), of(batch.rejected));
        let term = match loss {
            PreferenceLoss::Dpo { .. } | PreferenceLoss::Ipo { .. } => {
                compared(loss, chosen - of(batch.ref_chosen), rejected - of(batch.ref_rejected))
            }
            PreferenceLoss::Cpo { beta, label_smoothing, nll_coef } => {
                let mut term = compared(PreferenceLoss::Dpo { beta, label_smoothing }, chosen, rejected);
                // Its mean is over tokens, and the term's over pairs.
                let share = nll_coef * total_pairs / batch.chosen_tokens;
                term.loss -= share * chosen;
                term.slopes[0] -= share;
                term
            }
            PreferenceLoss::SimPo { .. } | PreferenceLoss::OrPo { .. } => {
                let tokens = [of(of_chosen).max(1.0), of(of_rejected).max(1.0)];
                let mut term = of_means(loss, chosen / tokens[0], rejected / tokens[1]);
                term.slopes[0] /= tokens[0];
                term.slopes[1] /= tokens[1];
                term
            }
        };
        sums.loss += term.loss / total_pairs;
        sums.count(term.rewards[0], term.rewards[1]);
        d_chosen[p] = (term.slopes[0] / total_pairs) as f32;
        d_rejected[p] = (term.slopes[1] / total_pairs) as f32;
    }
    sums
}

/// The loss of one pair, with its slopes in the chosen and the rejected side, and their rewards.
struct PairTerm {
    loss: f64,
    slopes: [f64; 2],
    rewards: [f64; 2],
}

/// Computes a loss of the difference of two sides.
fn compared(loss: PreferenceLoss, ahead: f64, behind: f64) -> PairTerm {
    let h = ahead - behind;
    let (loss, slope, beta) = match loss {
        PreferenceLoss::Dpo { beta, label_smoothing: s } => {
            let x = beta * h;
            let value = (1.0 - s) * softplus(-x) + s * softplus(x);
            (value, beta * (s * sigmoid(x) - (1.0 - s) * sigmoid(-x)), beta)
        }
        PreferenceLoss::Ipo { beta } => {
            let error = h - 1.0 / (2.0 * beta);
            (error * error, 2.0 * error, beta)
        }
        _ => unreachable!("losses of means, or with a term of their own"),
    };
    PairTerm { loss, slopes: [slope, -slope], rewards: [beta * ahead, beta * behind] }
}

/// Computes a loss of the two sides' means over tokens.
fn of_means(loss: PreferenceLoss, chosen: f64, rejected: f64) -> PairTerm {
    match loss {
        PreferenceLoss::SimPo { beta, gamma } => {
            let x = beta * (chosen - rejected) - gamma;
            let slope = -beta * sigmoid(-x);
            PairTerm {
                loss: softplus(-x),
                slopes: [slope, -slope],
                rewards: [beta * chosen, beta * rejected],
            }
        }
        PreferenceLoss::OrPo { beta } => {
            // log(1 - e^a), and the slope of the log-odds, 1 / (1 - e^a); the odds of a certain token have none.
            let rest = |a: f64| ln(1.0 - exp(a.min(MEAN_LOG_MAX)));
            let slope = |a: f64| if a < MEAN_LOG_MAX { 1.0 / (1.0 - exp(a)) } else { 0.0 };
            let odds = (chosen - rest(chosen)) - (rejected - rest(rejected));
            let held = beta * sigmoid(-odds);
            PairTerm {
                loss: -chosen + beta * softplus(-odds),
                slopes: [-1.0 - held * slope(chosen), held * slope(rejected)],
                rewards: [beta * chosen, beta * rejected],
            }
        }
        _ => unreachable!("losses of sums"),
    }
}

/// Computes the reward model's loss, -log sigma(r_c - r_r - margin), the mean over the step's `total_pairs`.
///
/// Without margin it equals log(1 + exp(r_r - r_c)), a second form in other frameworks.
/// `margins`: [P] or `None`. Writes d loss / d r_c and d loss / d r_r, [P].
pub fn reward_model_loss(
    chosen: &[f32],
    rejected: &[f32],
    margins: Option<&[f32]>,
    total_pairs: f64,
    d_chosen: &mut [f32],
    d_rejected: &mut [f32],
) -> PairSums {
    assert_eq!(chosen.len(), rejected.len(), "one reward for each side of each pair");
    let mut sums = PairSums::default();
    for p in 0..chosen.len() {
        let (c, r) = (f64::from(chosen[p]), f64::from(rejected[p]));
        let x = c - r - margins.map_or(0.0, |margins| f64::from(margins[p]));
        sums.loss += softplus(-x) / total_pairs;
        sums.count(c, r);
        let gradient = -sigmoid(-x) / total_pairs;
        d_chosen[p] = gradient as f32;
        d_rejected[p] = -gradient as f32;
    }
    sums
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + exp(-x))
}

/// Returns log(1 + e^x), without overflow, and without losing small results in 1 + e^x.
fn softplus(x: f64) -> f64 {
    let small = exp(-x.abs());
    // ln(1 + s) = s - s^2/2 + ...: below 1e-5 the next term is under 1e-15.
    let log = if small < 1e-5 { small - small * small / 2.0 } else { ln(1.0 + small) };
    x.max(0.0) + log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_stay_finite() {
        assert_eq!(softplus(1e4), 1e4);
        assert_eq!(softplus(-1e4), 0.0);
        assert!((softplus(-30.0) / 9.357_622_968_840_175e-14 - 1.0).abs() < 1e-9);
        assert_eq!((sigmoid(1e4), sigmoid(-1e4)), (1.0, 0.0));
    }
}
