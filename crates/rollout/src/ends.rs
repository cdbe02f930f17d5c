//! Ends of responses that are drawn from a distribution of lengths: a model with random weights never ends one, and the
//! tail of a rollout is to be measured with it all the same.

use plimsoll_base::rng::{Stream, normal_pair, philox};
use std::str::FromStr;

/// A lognormal distribution of response lengths. The length of a response follows from its sample's id.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrawnEnds {
    /// Median length in tokens.
    pub median: f64,
    /// Deviation of the logarithm of the length.
    pub sigma: f64,
}

impl DrawnEnds {
    /// Returns the length of a sample's response, at least 1; it may be beyond what the engine draws.
    pub fn length(&self, sample_id: u64) -> usize {
        let r = philox(0, Stream::Bench, sample_id, 1);
        let drawn = self.median * plimsoll_base::math::exp(self.sigma * f64::from(normal_pair(r[0], r[1]).0));
        drawn.round().max(1.0) as usize
    }
}

/// Reads `lognormal:MEDIAN,SIGMA`.
impl FromStr for DrawnEnds {
    type Err = String;

    fn from_str(text: &str) -> Result<DrawnEnds, String> {
        let numbers = text.strip_prefix("lognormal:").and_then(|rest| rest.split_once(','));
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
        match numbers.and_then(|(median, sigma)| Some((number(median)?, number(sigma)?))) {
            Some((median, sigma)) if (1.0..=1e9).contains(&median) && (0.0..=10.0).contains(&sigma) => {
                Ok(DrawnEnds { median, sigma })
            }
            _ => Err("give lognormal:MEDIAN,SIGMA, such as lognormal:1000,0.9: a median of at least 1 token, and a deviation of the logarithm from 0 to 10".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_the_median_and_the_tail_that_were_asked_for() {
        let ends: DrawnEnds = "lognormal:1000,0.894".parse().expect("two numbers");
        let mut lengths: Vec<usize> = (0..20_000).map(|id| ends.length(id)).collect();
        lengths.sort_unstable();
        let (median, above) = (lengths[10_000], lengths.iter().filter(|length| **length > 8000).count());
        // ln(8) / 0.894 deviations: 1 %. Five standard errors each.
        assert!((950..1050).contains(&median), "{median}");
        assert!((130..270).contains(&above), "{above}");
        let even: DrawnEnds = "lognormal:7,0".parse().expect("two numbers");
        assert!((0..100).all(|id| even.length(id) == 7));
        for bad in ["lognormal:1000", "normal:5,1", "lognormal:0,1", "lognormal:5,-1", "lognormal:nan,1"] {
            assert!(bad.parse::<DrawnEnds>().is_err(), "{bad}");
        }
    }
}
