//! Divisors of rotary frequencies, one per pair. Each list is kept once for the life of the process, because model
//! specs are `Copy` and a planner holds hundreds of them.

use std::sync::Mutex;

/// Maximum divisors of a list: the pairs of the widest head.
const PAIRS_MAX: usize = 1 << 16;
/// Maximum elements of all lists of a process; a model has two lists.
const KEPT_MAX: usize = 1 << 20;

static KEPT: Mutex<Vec<&'static [f64]>> = Mutex::new(Vec::new());

/// Positive divisors, one for each rotated pair of a head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeFactors(&'static [f64]);

impl RopeFactors {
    /// Returns a list that is known at compile time.
    pub const fn of(factors: &'static [f64]) -> RopeFactors {
        RopeFactors(factors)
    }

    /// Keeps a list; none if it is empty, too long, not all positive as f32, or if the process holds too many lists.
    pub fn new(factors: &[f64]) -> Option<RopeFactors> {
        let is_good = |&x: &f64| x as f32 > 0.0 && (x as f32).is_finite();
        if factors.is_empty() || factors.len() > PAIRS_MAX || !factors.iter().all(is_good) {
            return None;
        }
        let mut kept = KEPT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(list) = kept.iter().find(|list| **list == factors) {
            return Some(RopeFactors(list));
        }
        let elements: usize = kept.iter().map(|list| list.len()).sum();
        if elements + factors.len() > KEPT_MAX {
            return None;
        }
        let list: &'static [f64] = Box::leak(factors.into());
        kept.push(list);
        Some(RopeFactors(list))
    }

    /// Returns the divisors in the order of the pairs.
    pub const fn as_slice(&self) -> &'static [f64] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_kept_once_and_holds_positive_numbers() {
        let [a, b] = [0, 1].map(|_| RopeFactors::new(&[1.0, 2.5]).unwrap());
        assert!(std::ptr::eq(a.as_slice(), b.as_slice()));
        for bad in [&[][..], &[0.0], &[-1.0], &[f64::NAN], &[f64::INFINITY], &[1e-60], &[1e60]] {
            assert_eq!(RopeFactors::new(bad), None, "{bad:?}");
        }
        assert_eq!(RopeFactors::new(&vec![1.0; PAIRS_MAX + 1]), None);
    }
}
