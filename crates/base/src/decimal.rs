//! Decimal numbers of any length, compared by value: 1, 1.0 and 10e-1 are one number, and no digit is rounded away.

use std::cmp::Ordering;
use std::fmt;

/// Largest exponent, either way, and most zeros that a comparison or a text writes out.
const EXPONENT_MAX: i64 = 4096;
/// Most digits of a step of which multiples are tested: ten times it fits 128 bits.
const STEP_DIGITS_MAX: usize = 36;

/// A decimal number in one form: `digits` times ten to the `exponent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decimal {
    negative: bool,
    /// Without zeros at either end; empty for 0.
    digits: String,
    exponent: i64,
}

impl Decimal {
    /// Reads a sign, digits with at most one point, and an exponent. `None` for anything else.
    pub fn parse(text: &str) -> Option<Decimal> {
        let negative = text.starts_with('-');
        let text = text.strip_prefix(['-', '+']).unwrap_or(text);
        let (mantissa, power) = match text.split_once(['e', 'E']) {
            Some((mantissa, power)) => (mantissa, power.parse::<i64>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        if whole.len() + fraction.len() == 0
            || !plain(whole)
            || !plain(fraction)
            || power.abs() > EXPONENT_MAX
        {
            return None;
        }
        let all = format!("{whole}{fraction}");
        let digits = all.trim_end_matches('0');
        let exponent = power - fraction.len() as i64 + (all.len() - digits.len()) as i64;
        let digits = digits.trim_start_matches('0').to_string();
        let zero = digits.is_empty();
        Some(Decimal { negative: negative && !zero, digits, exponent: if zero { 0 } else { exponent } })
    }

    /// True for a whole number.
    pub fn is_whole(&self) -> bool {
        self.exponent >= 0
    }

    /// True above 0.
    pub fn is_positive(&self) -> bool {
        !self.negative && !self.digits.is_empty()
    }

    /// True for a multiple of `step`; `None` if that is too long to tell, or 0.
    pub fn is_multiple_of(&self, step: &Decimal) -> Option<bool> {
        let below = (step.digits.len() <= STEP_DIGITS_MAX).then(|| step.digits.parse::<u128>().ok())??;
        if self.digits.is_empty() || self.exponent < step.exponent {
            // A last digit in a place below those of the step.
            return Some(self.digits.is_empty());
        }
        let zeros = usize::try_from(self.exponent - step.exponent).ok()?;
        let digits = self.digits.bytes().map(|b| u128::from(b - b'0')).chain(std::iter::repeat_n(0, zeros));
        Some(digits.fold(0, |rest, digit| (rest * 10 + digit) % below) == 0)
    }

    fn size_cmp(&self, other: &Decimal) -> Ordering {
        let top =
            |of: &Decimal| if of.digits.is_empty() { i64::MIN } else { of.exponent + of.digits.len() as i64 };
        // Without zeros at their ends, digits of one magnitude are ordered as texts are.
        top(self).cmp(&top(other)).then_with(|| self.digits.cmp(&other.digits))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Decimal) -> Ordering {
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.size_cmp(other),
            (true, true) => other.size_cmp(self),
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Decimal) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Writes digits and a point, without an exponent.
impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let sign = if self.negative { "-" } else { "" };
        let (digits, zeros) = (&self.digits, self.exponent.unsigned_abs() as usize);
        if digits.is_empty() {
            return f.pad("0");
        }
        if self.exponent >= 0 {
            return f.pad(&format!("{sign}{digits}{}", "0".repeat(zeros)));
        }
        f.pad(&match digits.len().checked_sub(zeros).filter(|&whole| whole > 0) {
            Some(whole) => format!("{sign}{}.{}", &digits[..whole], &digits[whole..]),
            None => format!("{sign}0.{}{digits}", "0".repeat(zeros - digits.len())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Decimal {
        Decimal::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn numbers_are_equal_by_value_and_written_without_exponents() {
        for (text, expect) in [
            ("0", "0"),
            ("-0.00", "0"),
            ("42.0", "42"),
            ("4200e-2", "42"),
            ("1e22", "10000000000000000000000"),
            ("12345678901234567890123", "12345678901234567890123"),
            ("-0.0250", "-0.025"),
            ("12.50", "12.5"),
            (".5", "0.5"),
            ("007", "7"),
        ] {
            assert_eq!(of(text).to_string(), expect, "{text}");
            assert_eq!(of(text), of(expect), "{text}");
        }
        for text in ["", "-", ".", "1.2.3", "1e", "e5", "0x10", "1e99999", "NaN", "--1", "1 2"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }

    #[test]
    fn order_and_multiples_are_exact() {
        let rising =
            ["-10", "-9.5", "-0.1", "0", "0.1", "0.11", "9", "9007199254740992", "9007199254740993", "1e30"];
        for pair in rising.windows(2) {
            assert!(of(pair[0]) < of(pair[1]), "{pair:?}");
        }
        for (value, step, expect) in [
            ("0.3", "0.1", Some(true)),
            ("0.35", "0.1", Some(false)),
            ("9007199254740993", "2", Some(false)),
            ("1e300", "7", Some(false)),
            ("1e300", "0.25", Some(true)),
            ("0", "3", Some(true)),
            ("-9", "3", Some(true)),
            ("1", "1e-300", Some(true)),
            ("1e-300", "1", Some(false)),
            ("0.5", "1e300", Some(false)),
            ("1", "0", None),
        ] {
            assert_eq!(of(value).is_multiple_of(&of(step)), expect, "{value} by {step}");
        }
    }
}
