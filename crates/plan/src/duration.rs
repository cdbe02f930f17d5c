//! Times for people.

/// Formats a time in a suitable unit.
pub fn duration(s: f64) -> String {
    match s {
        s if s >= 172_800.0 => format!("{:.1} days", s / 86_400.0),
        s if s >= 7200.0 => format!("{:.1} hours", s / 3600.0),
        s if s >= 300.0 => format!("{:.1} minutes", s / 60.0),
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.1} s"),
        s => format!("{:.1} ms", s * 1e3),
    }
}
