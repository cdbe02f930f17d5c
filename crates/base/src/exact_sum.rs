//! Sums that do not depend on the order of their terms.

/// An exact sum of f64: partial sums that do not overlap, smallest first.
///
/// Source: Shewchuk, "Adaptive precision floating-point arithmetic" (1997); rounds like Python's `math.fsum`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExactSum {
    partials: Vec<f64>,
}

impl ExactSum {
    /// Restores a sum from the bits of its partial sums.
    pub fn of_bits(bits: impl IntoIterator<Item = u64>) -> ExactSum {
        let mut sum = ExactSum::default();
        bits.into_iter().for_each(|bits| sum.add(f64::from_bits(bits)));
        sum
    }

    /// Returns the bits of its partial sums: at most 40.
    pub fn bits(&self) -> Vec<u64> {
        self.partials.iter().map(|partial| partial.to_bits()).collect()
    }

    /// Adds a number.
    pub fn add(&mut self, number: f64) {
        let (mut high, mut kept) = (number, 0);
        for i in 0..self.partials.len() {
            let partial = self.partials[i];
            let (large, small) = if high.abs() < partial.abs() { (partial, high) } else { (high, partial) };
            high = large + small;
            let low = small - (high - large);
            if low != 0.0 {
                self.partials[kept] = low;
                kept += 1;
            }
        }
        self.partials.truncate(kept);
        self.partials.push(high);
    }

    /// Adds another sum.
    pub fn add_sum(&mut self, other: &ExactSum) {
        other.partials.iter().for_each(|partial| self.add(*partial));
    }

    /// Returns the sum, rounded once.
    pub fn value(&self) -> f64 {
        let mut rest = self.partials.iter().rev().copied();
        let (mut high, mut low) = (rest.next().unwrap_or(0.0), 0.0);
        for next in rest.by_ref() {
            let before = high;
            high = before + next;
            low = next - (high - before);
            if low != 0.0 {
                break;
            }
        }
        // Half way between two numbers, the remainder decides.
        let twice = low * 2.0;
        let up = high + twice;
        match rest.next() {
            Some(next) if (next < 0.0) == (low < 0.0) && low != 0.0 && up - high == twice => up,
            _ => high,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_and_the_grouping_change_no_bit() {
        for (numbers, expect) in [
            (&[][..], 0.0),
            (&[0.1; 10], 1.0),
            (&[1e100, 1.0, -1e100], 1.0),
            (&[1.0, 1e-16, 1e-16], 1.000_000_000_000_000_2),
            (&[1.0, f64::EPSILON / 2.0, 1e-300], 1.0 + f64::EPSILON),
            (&[1.0, f64::EPSILON / 2.0, -1e-300], 1.0),
        ] {
            let sum = ExactSum::of_bits(numbers.iter().map(|number| number.to_bits()));
            assert_eq!(sum.value(), expect, "{numbers:?}");
        }
        let number = |i: u64| f64::from_bits((i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 2) * 1e-3;
        let numbers: Vec<f64> = (0..200).map(number).filter(|number| number.abs() < 1e200).collect();
        assert!(numbers.len() > 20, "{}", numbers.len());
        let whole = ExactSum::of_bits(numbers.iter().map(|number| number.to_bits())).value();
        for parts in [1, 3, 7, 50] {
            let mut sum = ExactSum::default();
            for part in numbers.chunks(parts).rev() {
                let part = ExactSum::of_bits(part.iter().rev().map(|number| number.to_bits()));
                sum.add_sum(&ExactSum::of_bits(part.bits()));
            }
            assert_eq!(sum.value().to_bits(), whole.to_bits(), "in parts of {parts}");
        }
    }
}
