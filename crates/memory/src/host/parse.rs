//! Parses numbers in kernel files, by pure functions. Missing values are `None`; other text is reported.

/// A number from the kernel, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Bytes(u64),
    Count(u64),
    Word(String),
    /// The kernel sets no limit.
    NoLimit,
    /// The file is missing or unreadable.
    Unknown,
    /// The start of a file that is not a 64-bit number.
    Malformed(String),
}

impl Value {
    /// Returns the bytes, if known.
    pub fn bytes(&self) -> Option<u64> {
        if let Value::Bytes(bytes) = self { Some(*bytes) } else { None }
    }
}

/// "No limit" in cgroup v1: i64::MAX rounded down to a page of up to 64 KiB.
const V1_NO_LIMIT: u64 = 0x7FFF_FFFF_FFFF_0000;

/// Parses a limit of a cgroup file: "max", v1's sentinel and -1 set none.
pub fn limit(text: Option<&str>) -> Value {
    match number(text) {
        Value::Bytes(bytes) if bytes >= V1_NO_LIMIT => Value::NoLimit,
        value => value,
    }
}

/// Parses a file with one number, as bytes.
pub fn number(text: Option<&str>) -> Value {
    let Some(text) = text.map(str::trim) else { return Value::Unknown };
    match text {
        "max" | "-1" | "unlimited" => Value::NoLimit,
        _ => text.parse().map_or_else(|_| malformed(text), Value::Bytes),
    }
}

/// Parses the soft limit in `Max open files   1024   4096   files` of /proc/self/limits.
pub fn rlimit(text: Option<&str>, name: &str) -> Value {
    let Some(line) = text.and_then(|text| text.lines().find_map(|line| line.strip_prefix(name))) else {
        return Value::Unknown;
    };
    let soft = line.split_ascii_whitespace().next();
    match (number(soft), line.trim_end().ends_with("bytes")) {
        (Value::Bytes(count), false) => Value::Count(count),
        (value, _) => value,
    }
}

/// Parses `Name:   123 kB` to bytes; `None` on overflow.
pub fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Parses `name 123` in a memory.stat, a memory.events or /proc/vmstat.
pub fn plain_field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Divides quota by period, both in microseconds; "max" and -1 are not positive numbers and set no quota.
pub fn quota(quota: &str, period: &str) -> Option<f64> {
    let (quota, period) = (quota.trim().parse::<f64>().ok()?, period.trim().parse::<f64>().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

fn malformed(text: &str) -> Value {
    Value::Malformed(text.chars().take(40).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_has_many_forms() {
        for (text, expect) in [
            ("max\n", Value::NoLimit),
            ("9223372036854771712\n", Value::NoLimit),
            // With pages of 64 KiB.
            ("9223372036854710272", Value::NoLimit),
            ("-1", Value::NoLimit),
            ("0", Value::Bytes(0)),
            ("4096\n", Value::Bytes(4096)),
            ("9223372036854000000", Value::Bytes(9_223_372_036_854_000_000)),
            ("99999999999999999999999", Value::Malformed("99999999999999999999999".into())),
            ("", Value::Malformed("".into())),
            ("12 kB", Value::Malformed("12 kB".into())),
        ] {
            assert_eq!(limit(Some(text)), expect, "{text:?}");
        }
        assert_eq!(limit(None), Value::Unknown);
    }

    #[test]
    fn resource_limits_have_units() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max processes             94417                94417                processes \n\
                    Max open files            1024                 1048576              files     \n\
                    Max locked memory         8388608              8388608              bytes     \n\
                    Max address space         unlimited            unlimited            bytes     \n";
        assert_eq!(rlimit(Some(text), "Max open files"), Value::Count(1024));
        assert_eq!(rlimit(Some(text), "Max processes"), Value::Count(94417));
        assert_eq!(rlimit(Some(text), "Max locked memory"), Value::Bytes(8_388_608));
        assert_eq!(rlimit(Some(text), "Max address space"), Value::NoLimit);
        assert_eq!(rlimit(Some(text), "Max nice"), Value::Unknown);
        assert_eq!(rlimit(None, "Max open files"), Value::Unknown);
    }

    #[test]
    fn a_size_that_overflows_is_not_wrapped() {
        assert_eq!(kib_field("MemAvailable: 16 kB\n", "MemAvailable:"), Some(16384));
        assert_eq!(kib_field("MemAvailable: 18446744073709551615 kB\n", "MemAvailable:"), None);
        assert_eq!(plain_field("oom 3\noom_kill 2\n", "oom_kill"), Some(2));
        assert_eq!(plain_field("oom_kill_x 2\n", "oom_kill"), None);
        assert_eq!(quota("150000", "100000"), Some(1.5));
        assert_eq!(quota("max", "100000"), None);
    }
}
