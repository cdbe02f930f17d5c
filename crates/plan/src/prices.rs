//! What an hour of a card costs, as its renter says: the currency is theirs.

use plimsoll_base::{Error, Result, nearest_name};
use plimsoll_devices::Card;

/// Prices of an hour of a card, by its name in the table of cards.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prices(Vec<(&'static str, f64)>);

impl Prices {
    /// Reads `h100=2.1,h200=3.2`, or the lines of a file, `h100 = 2.1`, in which `#` begins a comment.
    ///
    /// Errors: `bad-price`, `card-unknown`.
    pub fn parse(text: &str) -> Result<Prices> {
        let mut prices = Prices::default();
        let parts = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        for part in parts.flat_map(|line| line.split(',')).map(str::trim).filter(|part| !part.is_empty()) {
            prices.add(part)?;
        }
        if prices.0.is_empty() { Err(bad("no price is in it")) } else { Ok(prices) }
    }

    fn add(&mut self, part: &str) -> Result<()> {
        let (name, price) = part.split_once('=').ok_or_else(|| bad(&format!("`{part}` has no price")))?;
        let (name, price) = (name.trim().to_ascii_lowercase(), price.trim());
        let Some(card) = Card::all().find(|card| card.name == name) else {
            let names: Vec<&str> = Card::all().map(|card| card.name).collect();
            let error = Error::usage("card-unknown", format!("`{name}` is no card of the table"))
                .fact(format!("the table has {}", names.join(", ")));
            return Err(match nearest_name(&name, names) {
                Some(near) => error.hint(format!("did you mean {near}?")),
                None => error.hint("give prices of cards of the table; --card plans for others"),
            });
        };
        let value: f64 =
            price.parse().ok().filter(|value: &f64| value.is_finite() && *value > 0.0).ok_or_else(|| {
                bad(&format!(
                    "`{price}` is no price of an hour of {name}: it is a number above 0, without a currency"
                ))
            })?;
        if self.of(card.name).is_some() {
            return Err(bad(&format!("{name} has two prices")));
        }
        self.0.push((card.name, value));
        Ok(())
    }

    /// Returns the price of an hour of a card, if it is known.
    pub fn of(&self, card: &str) -> Option<f64> {
        self.0.iter().find(|(name, _)| *name == card).map(|(_, price)| *price)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn bad(what: &str) -> Error {
    Error::usage("bad-price", what.to_string())
        .hint("write --price h100=2.1,h200=3.2, or a file with a line for each: h100 = 2.1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_given_in_a_line_or_in_lines() {
        let prices = Prices::parse("h100=2.1, H200 = 3").unwrap();
        assert_eq!((prices.of("h100"), prices.of("h200"), prices.of("a100")), (Some(2.1), Some(3.0), None));
        assert_eq!(Prices::parse("# by the hour\nh100 = 2.1 # one\n\nh200 = 3\n").unwrap(), prices);
        for (text, slug) in [
            ("", "bad-price"),
            ("h100", "bad-price"),
            ("h100=$2", "bad-price"),
            ("h100=0", "bad-price"),
            ("h100=1,h100=2", "bad-price"),
            ("h101=1", "card-unknown"),
        ] {
            assert_eq!(Prices::parse(text).expect_err(text).slug, slug);
        }
        assert_eq!(Prices::parse("h1000=1").unwrap_err().hints, ["did you mean h100?"]);
    }
}
