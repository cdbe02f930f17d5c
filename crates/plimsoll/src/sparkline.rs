//! Draws a curve in one line of text.

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws `values` as at most `width` bars between their least and greatest. Values that share a bar are averaged.
pub fn sparkline(values: &[f64], width: usize) -> String {
    let values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let bars = values.len().min(width.max(1));
    let means: Vec<f64> = (0..bars)
        .map(|bar| {
            let slice = &values[bar * values.len() / bars..(bar + 1) * values.len() / bars];
            slice.iter().sum::<f64>() / slice.len() as f64
        })
        .collect();
    let low = means.iter().copied().fold(f64::INFINITY, f64::min);
    let high = means.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let height =
        |mean: f64| if high > low { ((mean - low) / (high - low) * 7.0).round() as usize } else { 3 };
    means.into_iter().map(|mean| BARS[height(mean).min(7)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_rises_from_the_lowest_bar_to_the_highest() {
        for (values, width, expect) in [
            (&[0.0, 0.5, 1.0][..], 10, "▁▅█"),
            (&[0.0, 0.0, 1.0, 1.0], 2, "▁█"),
            (&[2.0, 2.0], 10, "▄▄"),
            (&[f64::NAN, 1.0], 10, "▄"),
            (&[], 10, ""),
        ] {
            assert_eq!(sparkline(values, width), expect, "{values:?}");
        }
    }
}
