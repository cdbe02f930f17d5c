//! `curves.svg`: reward and held-out score over the steps, next to length.

use super::curves::{Curves, Points};
use plimsoll_plan::picture::{begin, fitted, line, polyline, round_step, text};
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 330.0;
const TOP: f64 = 84.0;
const PLOT_WIDTH: f64 = 380.0;
const PLOT_HEIGHT: f64 = 186.0;
/// Left edges of the two plots.
const LEFTS: [f64; 2] = [64.0, 544.0];
/// Approximate number of grid lines across a plot.
const TICKS: f64 = 4.0;
const COLOURS: usize = 6;
/// Largest number of sets named above the plot.
const NAMED: usize = 4;

/// The style on a light background and on a dark one.
const STYLE: [&str; 2] = [
    "\
.curve{fill:none;stroke-width:2.5;stroke-linejoin:round}.thin{stroke-width:1.5}.c0{stroke:#8a97a3}.c1{stroke:#0b6e99}.c2{stroke:#b3541e}\
.c3{stroke:#3b7d4f}.c4{stroke:#7a55b0}.c5{stroke:#a33a5e}.c6{stroke:#8a7a1e}.dot{fill:#fff;stroke-width:2.5}",
    "\
.c0{stroke:#6b7885}.c1{stroke:#58b6de}.c2{stroke:#e69a66}.c3{stroke:#7cc492}.c4{stroke:#b79be6}.c5{stroke:#e58aa8}.c6{stroke:#d4c25e}\
.dot{fill:#0d1117}",
];

struct Curve<'c> {
    class: String,
    name: &'c str,
    points: &'c Points,
}

pub(super) fn draw(curves: &Curves, title: &str) -> String {
    let soft = |points| Curve { class: "c0 thin".into(), name: "training", points };
    let evals: Vec<Curve> = curves
        .evals
        .iter()
        .enumerate()
        .map(|(i, (name, points))| Curve { class: format!("c{}", 1 + i % COLOURS), name, points })
        .collect();
    let mean = |points| vec![Curve { class: "c1".into(), name: "mean", points }];
    // Small policies have no responses, and perhaps no finished episode in the first steps.
    let lengths = if curves.lengths.is_empty() {
        ("episode length in frames", mean(&curves.episode_lengths))
    } else {
        ("response length in tokens", mean(&curves.lengths))
    };
    let panels = if curves.losses.is_empty() {
        [
            (
                "reward, and score on held-out prompts",
                [soft(&curves.rewards)].into_iter().chain(evals).collect(),
            ),
            lengths,
        ]
    } else {
        [("loss", vec![soft(&curves.losses)]), ("score on held-out prompts", evals)]
    };
    let words: Vec<String> = panels.iter().map(|(name, curves)| in_words(name, curves)).collect();
    // A window that is taller than the picture leaves its room below, not half of it above.
    let mut out = begin([WIDTH, HEIGHT], " preserveAspectRatio=\"xMidYMin\"", STYLE, title, &words.join(" "));
    text(&mut out, LEFTS[0], 28.0, "title", title);
    for ((name, curves), left) in panels.iter().zip(LEFTS) {
        panel(&mut out, left, name, curves);
    }
    out.push_str("</svg>\n");
    out
}

/// Describes each curve by its first and last value.
fn in_words(name: &str, curves: &[Curve]) -> String {
    let one = |curve: &Curve| match (curve.points.first(), curve.points.last()) {
        (Some((a, first)), Some((b, last))) => {
            Some(format!("{} {} at step {a}, {} at step {b}", curve.name, number(*first), number(*last)))
        }
        _ => None,
    };
    let words: Vec<String> = curves.iter().filter_map(one).collect();
    format!("{name}: {}.", if words.is_empty() { "nothing".into() } else { words.join("; ") })
}

fn panel(out: &mut String, left: f64, name: &str, curves: &[Curve]) {
    text(out, left, 54.0, "bold", name);
    let points = || curves.iter().flat_map(|curve| curve.points);
    if points().next().is_none() {
        text(out, left, TOP + 20.0, "soft", "nothing was measured");
        return;
    }
    let (low, high) =
        points().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), (_, v)| (a.min(*v), b.max(*v)));
    let step = round_step((high - low).max(high.abs().max(1e-9) * 1e-3) / TICKS);
    let (low, high) = ((low / step).floor() * step, ((high / step).ceil() * step).max(low + step));
    let last = f64::from(points().map(|(step, _)| *step).max().unwrap_or(1).max(1));
    let x = |step: u32| left + PLOT_WIDTH * f64::from(step) / last;
    let y = |value: f64| TOP + PLOT_HEIGHT * (1.0 - (value - low) / (high - low));
    let ticks = ((high - low) / step).round() as u32;
    for tick in 0..=ticks {
        let value = low + f64::from(tick) * step;
        line(out, left, y(value), left + PLOT_WIDTH, y(value), "grid");
        text(out, left - 8.0, y(value) + 4.0, "soft end", &number(value));
    }
    let last_step = last as u32;
    // A single step has no middle.
    for step in [0, last_step / 2, last_step].into_iter().skip(usize::from(last_step == 1)) {
        text(out, x(step), TOP + PLOT_HEIGHT + 18.0, "soft mid", &step.to_string());
    }
    text(out, left + PLOT_WIDTH / 2.0, TOP + PLOT_HEIGHT + 36.0, "soft mid", "step");
    for curve in curves {
        let drawn = curve.points;
        polyline(out, drawn.iter().map(|&(s, v)| (x(s), y(v))), &format!("curve {}", curve.class));
        // Evaluations have few points, so each gets a dot.
        for &(step, value) in drawn.iter().filter(|_| !curve.class.contains("thin") && drawn.len() <= 24) {
            let _ = writeln!(
                out,
                "<circle class=\"dot {}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"/>",
                curve.class,
                x(step),
                y(value)
            );
        }
    }
    if curves.len() > 1 {
        legend(out, left, curves);
    }
}

fn legend(out: &mut String, left: f64, curves: &[Curve]) {
    let width = PLOT_WIDTH / curves.len().min(NAMED + 1) as f64;
    for (i, curve) in curves.iter().take(NAMED + 1).enumerate() {
        let at = left + width * i as f64;
        polyline(out, [(at, 68.0), (at + 16.0, 68.0)], &format!("curve {}", curve.class));
        // A letter is about 7 units wide.
        let room = ((width - 26.0) / 7.0).max(3.0) as usize;
        text(out, at + 21.0, 72.0, "soft", &fitted(curve.name, room));
    }
}

/// Formats a value with the digits that its size needs.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        size if size >= 1e15 => return format!("{value:.1e}"),
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        size if size >= 1e-3 => 4,
        _ => return format!("{value:.1e}"),
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_within_the_plot() {
        for (values, evals) in [
            (vec![0.1, 0.5, 0.9], vec![0.2, 1.0]),
            (vec![0.0, 0.0], vec![]),
            (vec![-3.0, 1e6], vec![0.5]),
            (vec![], vec![]),
        ] {
            let points =
                |values: &[f64]| values.iter().enumerate().map(|(i, v)| (i as u32, *v)).collect::<Points>();
            let evals: Vec<(String, Points)> = if evals.is_empty() {
                vec![]
            } else {
                vec![("a<b".into(), points(&evals)), ("long".repeat(20), points(&evals))]
            };
            let curves =
                Curves { rewards: points(&values), evals: evals.into_iter().collect(), ..Curves::default() };
            let svg = draw(&curves, "grpo & <nano>");
            assert!(
                svg.contains("<title id=\"t\">grpo &amp; &lt;nano&gt;</title>") && !svg.contains("NaN"),
                "{svg}"
            );
            assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
            assert!(svg.contains(" preserveAspectRatio=\"xMidYMin\""));
            for list in svg.split("points=\"").skip(1) {
                for point in list.split('"').next().unwrap().split_whitespace() {
                    let (x, y) = point.split_once(',').unwrap();
                    let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                    assert!(
                        (0.0..=WIDTH).contains(&x) && (60.0..=TOP + PLOT_HEIGHT + 0.1).contains(&y),
                        "{x},{y}"
                    );
                }
            }
        }
    }
}
