//! The time of a line, in seconds of the clock that wrote it. A time zone is applied if the line has one; a line
//! without a year gets 1970 and is compared only with others without one.

use super::text::regex;
use regex::{Captures, Regex};
use std::sync::LazyLock;

#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Stamp {
    /// Seconds since 1970, or since the start of the year if the line has no year.
    pub seconds: f64,
    pub has_year: bool,
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// Characters of a line to search for a time.
const LOOKED_AT: usize = 160;

/// 2026-03-01T10:11:12.5+01:00, 2026-03-01 10:11:12,123, 2026/03/01 10:11:12
static ISO: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?")
});
/// Fri Sep 19 23:23:48 2025
static CTIME: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?: (\d{4}))?\b",
    )
});
/// INFO 09-28 15:47:24, and glog's E0928 15:47:24.123 and E928 15:47:24.123
static SHORT: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"(?:\b[IWEF]|\b[A-Z]{4,8} )(\d{1,2})-?(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
});

/// Returns the time near the beginning of a line, if there is one.
pub fn stamp(line: &str) -> Option<Stamp> {
    let end = line.char_indices().nth(LOOKED_AT).map_or(line.len(), |(at, _)| at);
    let line = &line[..end];
    if let Some(found) = ISO.captures(line) {
        let zone = found.get(8).map_or(0.0, |zone| zone_seconds(zone.as_str()));
        return seconds(number(&found, 1)?, number(&found, 2)?, &found, [3, 4, 5, 6, 7], -zone);
    }
    if let Some(found) = CTIME.captures(line) {
        let month = MONTHS.iter().position(|name| *name == &found[1])? as i64 + 1;
        return seconds(number(&found, 7).unwrap_or(1970), month, &found, [2, 3, 4, 5, 6], 0.0);
    }
    let found = SHORT.captures(line)?;
    seconds(1970, number(&found, 1)?, &found, [2, 3, 4, 5, 6], 0.0)
}

/// Returns the seconds of a match; `groups`: day, hour, minute, second, fraction.
fn seconds(year: i64, month: i64, found: &Captures, groups: [usize; 5], shift: f64) -> Option<Stamp> {
    let [day, hour, minute, second, fraction] = groups;
    let day = number(found, day)?;
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let clock = number(found, hour)? * 3600 + number(found, minute)? * 60 + number(found, second)?;
    let fraction =
        found.get(fraction).map_or(0.0, |digits| format!("0.{}", digits.as_str()).parse().unwrap_or(0.0));
    let seconds = (days(year, month, day) * 86_400 + clock) as f64 + fraction + shift;
    Some(Stamp { seconds, has_year: year != 1970 })
}

fn number(found: &Captures, group: usize) -> Option<i64> {
    found.get(group)?.as_str().trim().parse().ok()
}

fn zone_seconds(zone: &str) -> f64 {
    let digits: String = zone.chars().filter(char::is_ascii_digit).collect();
    let (Ok(hours), Ok(minutes)) =
        (digits.get(..2).unwrap_or("0").parse::<f64>(), digits.get(2..).unwrap_or("0").parse::<f64>())
    else {
        return 0.0;
    };
    let seconds = hours * 3600.0 + minutes * 60.0;
    if zone.starts_with('-') { -seconds } else { seconds }
}

/// Returns the days since 1970-01-01 in the Gregorian calendar (the civil-from-days algorithm, inverted).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_loggers_in_use() {
        let at = 1_772_359_872.0; // 2026-03-01 10:11:12 UTC
        let of_year = at - days(2026, 1, 1) as f64 * 86_400.0;
        for (line, expect, has_year) in [
            ("2026-03-01T10:11:12Z stderr F x", at, true),
            ("2026-03-01T12:11:12+02:00 x", at, true),
            ("[2026-03-01 10:11:12,500] [INFO] x", at + 0.5, true),
            ("(raylet) [2026-03-01 10:11:12,000 E 393 393] x", at, true),
            ("[Sun Mar  1 10:11:12 2026] Out of memory", at, true),
            ("Mar  1 10:11:12 node kernel: x", of_year, false),
            ("(EngineCore pid=1) ERROR 03-01 10:11:12 [core.py:1] x", of_year, false),
            ("[rank0]:[E301 10:11:12.250000000 ProcessGroupNCCL.cpp:1] x", of_year + 0.25, false),
            ("E0301 10:11:12.250000 77 x", of_year + 0.25, false),
        ] {
            let found = stamp(line).unwrap_or_else(|| panic!("{line}"));
            assert!((found.seconds - expect).abs() < 1e-3, "{line}: {found:?}, {expect}");
            assert_eq!(found.has_year, has_year, "{line}");
        }
        for line in [
            "",
            "step 12 loss 0.5",
            "[1318952.007948] Memory cgroup",
            "2026-99-99 10:11:12",
            "E9999 10:11:12",
        ] {
            assert_eq!(stamp(line), None, "{line}");
        }
    }
}
