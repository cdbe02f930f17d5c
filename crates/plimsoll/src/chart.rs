//! Draws a curve as a chart of a few lines in Braille dots, two by four in each character.

/// Bits of a Braille character by column and row of its dots.
const DOTS: [[u32; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
const BLANK: u32 = 0x2800;

/// Draws `points` in `width` by `height` characters, extremes at the left. Averages each column; no points, no chart.
pub fn chart(points: &[(u32, f64)], width: usize, height: usize) -> Vec<String> {
    let points: Vec<(u32, f64)> = points.iter().copied().filter(|(_, value)| value.is_finite()).collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
    let (columns, rows) = (2 * width, 4 * height);
    let span = f64::from((last.0 - first.0).max(1));
    let mut sums = vec![(0.0, 0u32); columns];
    for (step, value) in &points {
        let at = f64::from(step - first.0) / span * (columns - 1) as f64;
        let (sum, count) = &mut sums[(at.round() as usize).min(columns - 1)];
        (*sum, *count) = (*sum + value, *count + 1);
    }
    let means: Vec<Option<f64>> =
        sums.into_iter().map(|(sum, count)| (count > 0).then(|| sum / f64::from(count))).collect();
    let (low, high) = means
        .iter()
        .flatten()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), &mean| (a.min(mean), b.max(mean)));
    let row = |value: f64| {
        if high > low {
            ((high - value) / (high - low) * (rows - 1) as f64).round() as usize
        } else {
            rows / 2
        }
    };
    let mut cells = vec![BLANK; width * height];
    let mut before = None;
    for (column, value) in joined(&means).into_iter().enumerate() {
        let Some(value) = value else { continue };
        let row = row(value);
        // From the last dot to this one, so that a steep curve has no gaps.
        let from = before
            .map_or(row, |before: usize| if before < row { before + 1 } else { (before).max(row + 1) - 1 });
        for dot in from.min(row)..=from.max(row) {
            cells[dot / 4 * width + column / 2] |= DOTS[column % 2][dot % 4];
        }
        before = Some(row);
    }
    let letters = |cells: &[u32]| cells.iter().filter_map(|&cell| char::from_u32(cell)).collect::<String>();
    let label = |line: usize| match line {
        0 => format!("{high:>8.3}"),
        line if line + 1 == height => format!("{low:>8.3}"),
        _ => " ".repeat(8),
    };
    cells.chunks(width).enumerate().map(|(i, cells)| format!("{} {}", label(i), letters(cells))).collect()
}

/// Fills columns between two values by interpolation.
fn joined(means: &[Option<f64>]) -> Vec<Option<f64>> {
    let mut out = means.to_vec();
    let known: Vec<(usize, f64)> =
        means.iter().enumerate().filter_map(|(i, mean)| Some((i, (*mean)?))).collect();
    for pair in known.windows(2) {
        let [(a, from), (b, to)] = [pair[0], pair[1]];
        for (i, place) in out.iter_mut().enumerate().take(b).skip(a + 1) {
            *place = Some(from + (to - from) * (i - a) as f64 / (b - a) as f64);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_rises_from_the_lower_left_to_the_upper_right() {
        let points: Vec<(u32, f64)> = (0..8).map(|i| (i, f64::from(i))).collect();
        let expect = ["   7.000 ⠀⠀⡠⠊", "   0.000 ⡠⠊⠀⠀"];
        assert_eq!(chart(&points, 4, 2), expect);
        // Two points are joined by the same line.
        assert_eq!(chart(&[(0, 0.0), (7, 7.0)], 4, 2), expect);
    }

    #[test]
    fn a_curve_of_nothing_or_of_one_value_is_drawn() {
        assert!(chart(&[], 4, 2).is_empty() && chart(&[(3, f64::NAN)], 4, 2).is_empty());
        for points in [&[(3, 0.5)][..], &[(3, 0.5), (3, 0.5)], &[(0, 0.5), (u32::MAX, 0.5)]] {
            let lines = chart(points, 4, 2);
            assert!(lines.len() == 2 && lines[1].chars().any(|c| c as u32 > BLANK), "{lines:?}");
        }
        // A step up leaves no gap.
        let lines = chart(&[(0, 0.0), (1, 0.0), (2, 1.0), (3, 1.0)], 2, 2);
        assert!(lines.iter().all(|line| line.chars().any(|c| c as u32 > BLANK)), "{lines:?}");
    }
}
