//! Elements of a picture in SVG, for all that draw one: a plan, the curves of a run, a measurement. A picture needs no
//! outside resources, suits light and dark backgrounds, and describes itself (`title`, `desc`).

use std::fmt::Write;

/// What every picture's style begins with, on a light background and on a dark one.
const LIGHT: &str = "\
text{font:12px system-ui,sans-serif;fill:#1b2733}.title{font-size:15px;font-weight:600}.soft{fill:#5d6b78}.end{text-anchor:end}\
.mid{text-anchor:middle}.bold{font-weight:600}.back{fill:#fff}.grid{stroke:#e3e8ec}";
const DARK: &str = "text{fill:#e6edf3}.soft{fill:#9aa7b3}.back{fill:#0d1117}.grid{stroke:#222b35}";

/// Begins a picture. `attributes`: further ones of `svg`, each after a blank; `style`: what it adds to the style on a
/// light background and on a dark one.
pub fn begin(size: [f64; 2], attributes: &str, style: [&str; 2], title: &str, description: &str) -> String {
    let ([width, height], [light, dark]) = (size, style);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\"{attributes} role=\"img\" aria-labelledby=\"t d\">\n\
         <title id=\"t\">{}</title>\n<desc id=\"d\">{}</desc>\n\
         <style>{LIGHT}{light}@media (prefers-color-scheme:dark){{{DARK}{dark}}}</style>\n\
         <rect class=\"back\" width=\"{width}\" height=\"{height}\"/>\n",
        escape(title),
        escape(description)
    )
}

pub fn line(out: &mut String, x1: f64, y1: f64, x2: f64, y2: f64, class: &str) {
    let _ = writeln!(
        out,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

/// Draws lines from point to point.
pub fn polyline(out: &mut String, points: impl IntoIterator<Item = (f64, f64)>, class: &str) {
    let points: Vec<String> = points.into_iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(out, "<polyline class=\"{class}\" points=\"{}\"/>", points.join(" "));
}

pub fn text(out: &mut String, x: f64, y: f64, class: &str, words: &str) {
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\"{class}>{}</text>", escape(words));
}

/// Cuts words to `letters`, the last of which then says that there are more.
pub fn fitted(words: &str, letters: usize) -> String {
    if words.chars().count() <= letters {
        words.to_string()
    } else {
        words.chars().take(letters.saturating_sub(1)).chain(['…']).collect()
    }
}

/// Returns 1, 2 or 5 times a power of ten, at least `least`.
pub fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= least).unwrap_or(least)
}

pub(crate) fn escape(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        for (least, expect) in [(0.21, 0.5), (0.2, 0.2), (3.0, 5.0), (70.0, 100.0), (0.011, 0.02)] {
            assert!((round_step(least) / expect - 1.0).abs() < 1e-9, "{least}: {}", round_step(least));
        }
    }

    #[test]
    fn words_are_cut_to_their_room() {
        for (letters, expect) in [(5, "words"), (4, "wor…"), (1, "…")] {
            assert_eq!(fitted("words", letters), expect);
        }
    }
}
