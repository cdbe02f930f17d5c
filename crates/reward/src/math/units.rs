//! Units of values: the words for them, and one spelling of each with its power, so that cm^2 is not cm^3.

/// Words after a number that are units, and the unit that they all mean.
pub(crate) const UNITS: &[(&str, &str)] = &[
    ("%", "%"),
    ("percent", "%"),
    ("pct", "%"),
    ("percentage", "%"),
    ("degrees", "deg"),
    ("degree", "deg"),
    ("deg", "deg"),
    ("mm", "mm"),
    ("millimeters", "mm"),
    ("cm", "cm"),
    ("centimeters", "cm"),
    ("centimeter", "cm"),
    ("centimetres", "cm"),
    ("m", "m"),
    ("meters", "m"),
    ("meter", "m"),
    ("metres", "m"),
    ("km", "km"),
    ("kilometers", "km"),
    ("kilometer", "km"),
    ("kilometres", "km"),
    ("in", "in"),
    ("inch", "in"),
    ("inches", "in"),
    ("ft", "ft"),
    ("foot", "ft"),
    ("feet", "ft"),
    ("yd", "yd"),
    ("yard", "yd"),
    ("yards", "yd"),
    ("mi", "mi"),
    ("mile", "mi"),
    ("miles", "mi"),
    ("mph", "mi/h"),
    ("kph", "km/h"),
    ("kmh", "km/h"),
    ("g", "g"),
    ("gram", "g"),
    ("grams", "g"),
    ("kg", "kg"),
    ("kilograms", "kg"),
    ("kilogram", "kg"),
    ("lb", "lb"),
    ("lbs", "lb"),
    ("pound", "lb"),
    ("pounds", "lb"),
    ("oz", "oz"),
    ("ounce", "oz"),
    ("ounces", "oz"),
    ("s", "s"),
    ("sec", "s"),
    ("second", "s"),
    ("seconds", "s"),
    ("min", "min"),
    ("mins", "min"),
    ("minute", "min"),
    ("minutes", "min"),
    ("h", "h"),
    ("hr", "h"),
    ("hrs", "h"),
    ("hour", "h"),
    ("hours", "h"),
    ("day", "day"),
    ("days", "day"),
    ("week", "week"),
    ("weeks", "week"),
    ("month", "month"),
    ("months", "month"),
    ("year", "year"),
    ("years", "year"),
    ("cent", "cent"),
    ("cents", "cent"),
    ("dollar", "dollar"),
    ("dollars", "dollar"),
    ("liter", "l"),
    ("liters", "l"),
    ("litres", "l"),
    ("ml", "ml"),
    ("gallon", "gal"),
    ("gallons", "gal"),
    ("unit", "unit"),
    ("units", "unit"),
    ("square", "square"),
    ("sq", "square"),
    ("cubic", "cubic"),
    ("cu", "cubic"),
    ("radians", "rad"),
    ("rad", "rad"),
    ("ohm", "ohm"),
    ("ohms", "ohm"),
    ("N", "N"),
    ("J", "J"),
    ("W", "W"),
    ("V", "V"),
    ("A", "A"),
    ("K", "K"),
    ("L", "l"),
    ("Pa", "Pa"),
    ("Hz", "Hz"),
    ("kJ", "kJ"),
    ("kW", "kW"),
    ("kN", "kN"),
    ("kPa", "kPa"),
    ("mol", "mol"),
    ("mg", "mg"),
    ("ms", "ms"),
    ("newtons", "N"),
    ("joules", "J"),
    ("watts", "W"),
    ("volts", "V"),
    ("rpm", "rpm"),
    ("km/h", "km/h"),
    ("m/s", "m/s"),
];

/// Returns true for units with powers and nothing else: `km/h`, `m/s^2`, `kg\cdot m^{-3}`.
pub(super) fn is_unit(text: &str) -> bool {
    let spaced =
        ["\\cdot", "\\,", "\\ ", "\\;"].iter().fold(text.to_string(), |text, mark| text.replace(mark, " "));
    let mut names = spaced.split([' ', '/', '*', '(', ')']).filter(|name| !name.is_empty()).peekable();
    names.peek().is_some()
        && names.all(|name| {
            let (name, power) = name.split_once('^').unwrap_or((name, "1"));
            let power = power.trim_matches(['{', '}']).trim_start_matches('-');
            UNITS.iter().any(|&(unit, _)| unit == name) && power.bytes().all(|b| b.is_ascii_digit())
        })
}

/// A unit with its powers, as far as it was read.
#[derive(Default)]
pub(super) struct Unit {
    parts: Vec<(&'static str, i32)>,
    /// The power that `square` or `cubic` gives the next part.
    next: i32,
    /// True after a slash or `per`.
    below: bool,
}

/// Most parts of a unit.
const PARTS_MAX: usize = 8;

impl Unit {
    /// Reads words: `square cm`, `m/s^2`, `km per hour`. Words that are no units count for nothing.
    pub(super) fn words(&mut self, text: &str) {
        let mut chars = text.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            if c == '/' {
                self.below = true;
            } else if c == '^' {
                let digits = text[at + 1..].trim_start_matches('{');
                let minus = digits.starts_with('-');
                let digits = digits.trim_start_matches('-');
                let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
                if let Ok(power) = digits[..end].parse::<i32>() {
                    self.power(if minus { -power } else { power });
                }
            } else if c.is_alphabetic() || c == '%' {
                let end =
                    text[at..].find(|c: char| !c.is_alphabetic() && c != '%').map_or(text.len(), |e| at + e);
                while chars.peek().is_some_and(|&(next, _)| next < end) {
                    chars.next();
                }
                self.word(&text[at..end]);
            }
        }
    }

    fn word(&mut self, word: &str) {
        let lower = word.to_lowercase();
        match lower.as_str() {
            "squared" => return self.power(2),
            "cubed" => return self.power(3),
            _ => {}
        }
        let known = |by: &str| UNITS.iter().find(|&&(name, _)| name == by).map(|&(_, unit)| unit);
        match known(word).or_else(|| known(&lower)) {
            Some("square") => self.next = 2,
            Some("cubic") => self.next = 3,
            Some("%") => {}
            Some(unit) => match unit.split_once('/') {
                Some((above, below)) => {
                    self.part(above, false);
                    self.part(below, true);
                }
                None => self.part(unit, self.below),
            },
            None => self.below |= lower == "per",
        }
    }

    fn part(&mut self, unit: &'static str, below: bool) {
        let power = std::mem::take(&mut self.next).max(1);
        if self.parts.len() < PARTS_MAX {
            self.parts.push((unit, if below { -power } else { power }));
        }
        self.below = false;
    }

    /// True if there is no unit yet that a power could belong to.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Raises the last part to a power.
    pub(super) fn power(&mut self, power: i32) {
        if let Some((_, last)) = self.parts.last_mut() {
            *last = last.saturating_mul(power);
        }
    }

    /// Returns the one spelling of the unit.
    pub(super) fn spelling(mut self) -> Option<String> {
        self.parts.sort_unstable();
        let spelt = |&(unit, power): &(&str, i32)| match power {
            1 => unit.to_string(),
            power => format!("{unit}^{power}"),
        };
        let parts: Vec<String> = self.parts.iter().map(spelt).collect();
        (!parts.is_empty()).then(|| parts.join(" "))
    }
}
