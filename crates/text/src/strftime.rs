//! The clock of chat templates: `strftime_now`, in UTC, for the codes in use. The time is taken once per run, or from
//! `SOURCE_DATE_EPOCH`, so all prompts of a run agree.

use chrono::{DateTime, NaiveDate};

/// The codes that are replaced; others stay.
const CODES: &str = "YymdejHIMSpBbAaFTZz%";

/// The end of the year 9999: years have four digits.
const SECONDS_MAX: u64 = 253_402_300_799;

/// Returns the current time of templates in seconds since 1970.
pub(crate) fn now_seconds() -> u64 {
    let clock =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    fixed_seconds().unwrap_or_else(clock).min(SECONDS_MAX)
}

/// Returns the time that `SOURCE_DATE_EPOCH` fixes, in seconds since 1970.
pub(crate) fn fixed_seconds() -> Option<u64> {
    let fixed: u64 = std::env::var("SOURCE_DATE_EPOCH").ok()?.trim().parse().ok()?;
    Some(fixed.min(SECONDS_MAX))
}

/// Returns the beginning of a day such as `2025-06-28` in seconds since 1970; `None` if it is none.
pub(crate) fn seconds_of_day(day: &str) -> Option<u64> {
    let day = NaiveDate::parse_from_str(day, "%Y-%m-%d").ok()?;
    let seconds = day.and_hms_opt(0, 0, 0)?.and_utc().timestamp();
    u64::try_from(seconds).ok().filter(|seconds| *seconds <= SECONDS_MAX)
}

/// Formats a time like C's `strftime` in UTC and English. Codes not in `CODES` stay.
pub(crate) fn strftime(format: &str, seconds: u64) -> String {
    let now = DateTime::from_timestamp(seconds as i64, 0).expect("a moment before the year 10000");
    let mut out = String::with_capacity(format.len() + 16);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        match (c, chars.as_str().chars().next()) {
            ('%', Some(code)) if CODES.contains(code) => {
                chars.next();
                out += &now.format(&format!("%{code}")).to_string();
            }
            (c, _) => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_c_library() {
        for (seconds, format, expect) in [
            (0, "%A %d %B %Y %H:%M:%S", "Thursday 01 January 1970 00:00:00"),
            (951_782_400, "%d %b %Y, day %j, %a", "29 Feb 2000, day 060, Tue"),
            (1_700_000_000, "%F %T %I%p", "2023-11-14 22:13:20 10PM"),
            (1_735_689_599, "%Y-%m-%d %y %e", "2024-12-31 24 31"),
            (0, "100%% %q %", "100% %q %"),
        ] {
            assert_eq!(strftime(format, seconds), expect);
        }
        assert_eq!(strftime("%F %T", seconds_of_day("2025-06-28").unwrap()), "2025-06-28 00:00:00");
        for day in ["", "2025-06", "2025-02-30", "June 28", "1969-12-31", "12025-06-28"] {
            assert_eq!(seconds_of_day(day), None, "{day}");
        }
    }
}
