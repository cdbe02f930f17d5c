//! The loss of scored pairs: a margin moves it, and its slope pulls the two scores apart.

use super::*;

fn items(margins: &[f32]) -> Vec<Item> {
    margins.iter().map(|&margin| Item { margin, ..Item::default() }).collect()
}

#[test]
fn the_loss_is_that_of_the_formula_with_the_margin_of_each_pair() {
    let (margins, scores) = ([0.0, 0.5, -0.25], [1.0, 0.25, -0.5, 0.5, 2.0, 2.0]);
    let mut d_scores = [f32::NAN; 6];
    let sums = pair_loss(&items(&margins), &scores, 3.0, &mut d_scores);
    let h: Vec<f64> = (0..3)
        .map(|i| f64::from(scores[2 * i]) - f64::from(scores[2 * i + 1]) - f64::from(margins[i]))
        .collect();
    let expect = h.iter().map(|h| (1.0 + (-h).exp()).ln()).sum::<f64>() / 3.0;
    assert!((sums.loss - expect).abs() < 1e-6, "{} for {expect}", sums.loss);
    for (pair, h) in h.iter().enumerate() {
        let slope = -1.0 / (1.0 + h.exp()) / 3.0;
        assert!((f64::from(d_scores[2 * pair]) - slope).abs() < 1e-6, "pair {pair}");
        assert_eq!(d_scores[2 * pair + 1], -d_scores[2 * pair], "what one gains the other loses");
    }
}

#[test]
#[should_panic(expected = "a pair's halves are in one micro-batch")]
fn half_a_pair_has_no_loss() {
    pair_loss(&items(&[0.0]), &[1.0], 1.0, &mut [0.0]);
}
