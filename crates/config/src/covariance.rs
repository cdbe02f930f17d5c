//! `loss.covariance`: what is done to tokens of high covariance, and its numbers.

use crate::Loss;
use crate::limits::bad_value;
use crate::provenance::Provenance;
use plimsoll_algo::covariance::{Covariance, CovarianceKind};
use plimsoll_base::Result;

/// The share, the band and the coefficient of the paper's authors (verl's defaults).
const SHARE: f64 = 2e-4;
const BAND: [f64; 2] = [1.0, 5.0];
const COEF: f64 = 1.0;

impl Loss {
    /// Returns what is done to tokens of high covariance; `None` if they learn as all do.
    pub(crate) fn covariance(&self) -> Option<Covariance> {
        let share = self.covariance_share.unwrap_or(SHARE);
        Some(match self.covariance? {
            CovarianceKind::Clip => Covariance::Clip { share, band: self.covariance_band.unwrap_or(BAND) },
            CovarianceKind::Kl => Covariance::Kl { share, coef: self.covariance_coef.unwrap_or(COEF) },
        })
    }

    /// Fills in the numbers of its covariance.
    pub(crate) fn fill_covariance(&mut self) {
        let Some(kind) = self.covariance else { return };
        self.covariance_share.get_or_insert(SHARE);
        match kind {
            CovarianceKind::Clip => _ = self.covariance_band.get_or_insert(BAND),
            CovarianceKind::Kl => _ = self.covariance_coef.get_or_insert(COEF),
        }
    }
}

/// Refuses a band without room.
pub(crate) fn check(loss: &Loss, at: &Provenance) -> Result<()> {
    match loss.covariance_band {
        Some([low, high]) if !(low.is_finite() && high.is_finite() && low < high) => {
            let takes = "two numbers, the lower first, such as [1.0, 5.0]";
            Err(bad_value(at, "loss.covariance_band", format!("[{low}, {high}]"), takes))
        }
        _ => Ok(()),
    }
}
