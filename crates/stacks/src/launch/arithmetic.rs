//! Integer arithmetic in shell syntax: `$((1024 * 20 + N))`. Reads numbers and names of numbers only.

/// Deepest nesting of brackets and signs.
const DEPTH_MAX: usize = 32;

/// Computes `text` with variables from `value_of`; `None` if any of it is not arithmetic, or overflows i64.
pub(crate) fn evaluate(text: &str, value_of: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
    let mut sum = Sum { rest: text, depth: 0, value_of };
    let value = sum.terms()?;
    sum.rest.trim_start().is_empty().then_some(value)
}

struct Sum<'a> {
    rest: &'a str,
    depth: usize,
    value_of: &'a dyn Fn(&str) -> Option<i64>,
}

impl Sum<'_> {
    fn takes(&mut self, operator: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(operator) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn terms(&mut self) -> Option<i64> {
        let mut value = self.factors()?;
        loop {
            value = match () {
                () if self.takes("+") => value.checked_add(self.factors()?)?,
                () if self.takes("-") => value.checked_sub(self.factors()?)?,
                () => return Some(value),
            };
        }
    }

    fn factors(&mut self) -> Option<i64> {
        let mut value = self.power()?;
        loop {
            value = match () {
                () if self.takes("*") => value.checked_mul(self.power()?)?,
                () if self.takes("/") => value.checked_div(self.power()?)?,
                () if self.takes("%") => value.checked_rem(self.power()?)?,
                () => return Some(value),
            };
        }
    }

    fn power(&mut self) -> Option<i64> {
        let base = self.atom()?;
        if self.takes("**") { base.checked_pow(u32::try_from(self.atom()?).ok()?) } else { Some(base) }
    }

    fn atom(&mut self) -> Option<i64> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return None;
        }
        let value = match () {
            () if self.takes("(") => self.terms().filter(|_| self.takes(")")),
            () if self.takes("-") => self.atom().and_then(i64::checked_neg),
            () if self.takes("+") => self.atom(),
            () => self.number_or_name(),
        };
        self.depth -= 1;
        value
    }

    fn number_or_name(&mut self) -> Option<i64> {
        // In arithmetic a variable needs no `$`.
        self.takes("$");
        let braced = self.takes("{");
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        let value = if word.starts_with(|c: char| c.is_ascii_digit()) {
            word.parse().ok()
        } else {
            (self.value_of)(word)
        };
        value.filter(|_| !braced || self.takes("}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_names_and_what_is_neither() {
        let names = |name: &str| (name == "N").then_some(7);
        for (text, expect) in [
            ("1024 * 20", Some(20_480)),
            (" N*2 + 1 ", Some(15)),
            ("$N - ${N} - 1", Some(-1)),
            ("(2 + 3) * -(4)", Some(-20)),
            ("2 ** 10 / 3 % 100", Some(41)),
            ("1 / 0", None),
            ("9223372036854775807 + 1", None),
            ("M + 1", None),
            ("1 +", None),
            ("1 2", None),
            ("N ? 1 : 2", None),
            ("", None),
        ] {
            assert_eq!(evaluate(text, &names), expect, "{text}");
        }
        assert_eq!(evaluate(&"(".repeat(100_000), &names), None);
        assert_eq!(evaluate(&"-".repeat(100_000), &names), None);
    }
}
