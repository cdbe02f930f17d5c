//! pass@k: the chance that one of k responses to a prompt succeeds, estimated from n >= k of them.

/// Returns 1 - C(n - c, k) / C(n, k) for `c` successes among `n`: the share of choices of k samples with a success.
///
/// Unbiased for any k <= n, which 1 - (1 - c / n)^k is not. The quotient is the product of 1 - k / i over i in
/// n - c + 1 ..= n, whose factors lie in 0..1: nothing overflows.
/// Panics unless 1 <= k <= n and c <= n. Source: arXiv 2107.03374, equation 1 and figure 3.
pub fn pass_at_k(n: u32, c: u32, k: u32) -> f64 {
    assert!((1..=n).contains(&k) && c <= n, "pass@{k} of {c} successes in {n} samples");
    if n - c < k {
        return 1.0;
    }
    let none = (n - c + 1..=n).fold(1.0, |product, i| product * (f64::from(i - k) / f64::from(i)));
    1.0 - none
}

/// Returns the reported k for `n` samples per prompt: 1, 2, 4, ... up to n.
pub fn powers_up_to(n: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(1u32), |k| k.checked_mul(2)).take_while(move |&k| k <= n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(n: u32, k: u32) -> u128 {
        // Each prefix of the product is itself a binomial coefficient, so every division is exact.
        (0..k.min(n)).fold(u128::from(k <= n), |product, i| product * u128::from(n - i) / u128::from(i + 1))
    }

    #[test]
    fn it_is_the_exact_fraction() {
        for n in 1..=60 {
            for (c, k) in (0..=n).flat_map(|c| (1..=n).map(move |k| (c, k))) {
                let (all, none) = (choose(n, k), choose(n - c, k));
                let expect = (all - none) as f64 / all as f64;
                let found = pass_at_k(n, c, k);
                // c factors of one rounding each, below 1.
                assert!((found - expect).abs() <= f64::from(c + 2) * f64::EPSILON, "{n} {c} {k}: {found}");
            }
        }
    }

    #[test]
    fn it_is_the_share_of_choices_that_hold_a_success() {
        // Counted one by one: n = 7, of which the first three succeed.
        for k in 1..=7 {
            let choices = (0u32..1 << 7).filter(|choice| choice.count_ones() == k);
            let (hits, all) =
                choices.fold((0u32, 0u32), |(hits, all), c| (hits + u32::from(c & 0b111 != 0), all + 1));
            assert!((pass_at_k(7, 3, k) - f64::from(hits) / f64::from(all)).abs() < 1e-15, "{k}");
        }
    }

    #[test]
    fn the_ends_are_exact_and_many_samples_stay_finite() {
        for n in [1, 2, 300, 1 << 20] {
            for k in powers_up_to(n) {
                assert_eq!((pass_at_k(n, 0, k), pass_at_k(n, n, k)), (0.0, 1.0), "{n} {k}");
            }
        }
        // C(n - c, k) alone is far beyond what an f64 holds here.
        assert!((pass_at_k(1 << 20, 1, 1 << 19) - 0.5).abs() < 1e-15);
        assert!((pass_at_k(200, 20, 1) - 0.1).abs() < 1e-15);
    }

    #[test]
    fn the_reported_k_are_the_powers_of_two() {
        for (n, expect) in [(0, vec![]), (1, vec![1]), (3, vec![1, 2]), (8, vec![1, 2, 4, 8])] {
            assert_eq!(powers_up_to(n).collect::<Vec<_>>(), expect, "{n}");
        }
        assert_eq!(powers_up_to(u32::MAX).count(), 32);
    }
}
