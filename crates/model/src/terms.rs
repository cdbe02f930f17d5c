//! Numbers that a model has in f32, whatever its dtype: each is three terms in the flat buffer, as bf16 needs.
//!
//! So the buffer has one dtype, and whatever copies, shares or exchanges it has these numbers too.

/// Bits of an f32 that bf16 has.
const HIGH: u32 = 0xffff_0000;

/// Replaces the first third of `values`, numbers, by all terms: those with the highest bits first. The sum of a
/// number's terms in this order is the number, to the bit, unless it is below 2^-110.
pub(crate) fn split(values: &mut [f32]) {
    let (first, rest) = values.split_at_mut(values.len() / 3);
    let (second, third) = rest.split_at_mut(first.len());
    let high = |x: f32| f32::from_bits(x.to_bits() & HIGH);
    for ((first, second), third) in first.iter_mut().zip(second).zip(third) {
        let (a, rest) = (high(*first), *first - high(*first));
        (*first, *second, *third) = (a, high(rest), rest - high(rest));
    }
}

/// Returns the numbers of all terms, in place of the first.
pub(crate) fn join(values: &mut [f32]) -> &[f32] {
    let (first, rest) = values.split_at_mut(values.len() / 3);
    let (second, third) = rest.split_at(first.len());
    first
        .iter_mut()
        .zip(second)
        .zip(third)
        .for_each(|((first, second), third)| *first = *first + second + third);
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn three_terms_of_bf16_are_a_number_to_the_bit() {
        let numbers: Vec<f32> = (0..4096u32)
            .map(|i| f32::from_bits(0x3000_0000 + i.wrapping_mul(2_654_435_761) % 0x2000_0000))
            .chain([0.0, -6.817_341, 7.063, -1e-30, f32::MAX, f32::MIN])
            .collect();
        let mut values = [numbers.clone(), vec![f32::NAN; 2 * numbers.len()]].concat();
        split(&mut values);
        assert!(values.iter().all(|&term| bf16::from_f32(term).to_f32() == term));
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(join(&mut values)), bits(&numbers));
    }
}
