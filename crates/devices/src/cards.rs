//! Cards by name: the numbers of their data sheets, and the shares of these that a run reached on an H200.

use crate::rates::{CardRates, Rates};
use plimsoll_base::{Bytes, Error, Result};

/// Data-sheet numbers of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Card {
    pub name: &'static str,
    /// Memory that a process gets, without what the driver takes.
    pub memory: Bytes,
    /// Dense operations per second on bf16 operands with f32 sums.
    pub flops_bf16: f64,
    /// Operations per second on f32 operands, without tensor cores.
    pub flops_f32: f64,
    /// Bytes per second of card memory.
    pub bandwidth: f64,
    /// Bytes per second to another card of the host, in one direction.
    pub link: f64,
    /// Bytes per second to the host's memory, in one direction.
    pub bus: f64,
}

/// Name of the card that all shares were measured on.
const MEASURED: &str = "h200";
/// Name of a card given by its numbers.
const GIVEN: &str = "the card given";

/// Name, MiB that a process gets, dense bf16 TFLOP/s, f32 TFLOP/s, GB/s of memory, of the link, of the bus. Cards
/// without a link of their own exchange over the bus.
const TABLE: [(&str, u64, f64, f64, f64, f64, f64); 12] = [
    ("l4", 22_500, 121.0, 30.3, 300.0, 25.0, 25.0),
    ("a10", 22_500, 125.0, 31.2, 600.0, 25.0, 25.0),
    ("3090", 24_000, 71.0, 35.6, 936.0, 25.0, 25.0),
    ("4090", 24_000, 165.2, 82.6, 1008.0, 25.0, 25.0),
    ("5090", 32_000, 209.5, 104.8, 1792.0, 50.0, 50.0),
    ("l40s", 45_400, 362.0, 91.6, 864.0, 25.0, 25.0),
    ("a100-40", 40_300, 312.0, 19.5, 1555.0, 300.0, 25.0),
    ("a100", 81_000, 312.0, 19.5, 2039.0, 300.0, 25.0),
    ("h100-pcie", 81_000, 756.0, 51.2, 2000.0, 50.0, 50.0),
    ("h100", 81_000, 989.0, 67.0, 3350.0, 450.0, 50.0),
    (MEASURED, 143_100, 989.0, 67.0, 4800.0, 450.0, 50.0),
    ("b200", 182_500, 2250.0, 75.0, 8000.0, 900.0, 50.0),
];

/// Shares of the data sheet that an H200 reached, fitted to its measured updates and rollouts of five models from 135M
/// to 7B. `bench/predicted.py` compares the predictions with `bench/results/h200_ranks.md`.
const UPDATE_SHARE: f64 = 0.865;
const ROLLOUT_SHARE: f64 = 0.93;
const BANDWIDTH_SHARE: f64 = 0.875;
/// f32 without tensor cores.
const F32_SHARE: f64 = 0.13;
/// Share of the link between cards that a copy of many megabytes reaches.
const LINK_SHARE: f64 = 0.8;

impl Card {
    /// Returns all cards of the table.
    pub fn all() -> impl Iterator<Item = Card> {
        TABLE.into_iter().map(|(name, mib, bf16, f32, bandwidth, link, bus)| Card {
            name,
            memory: Bytes::mib(mib),
            flops_bf16: bf16 * 1e12,
            flops_f32: f32 * 1e12,
            bandwidth: bandwidth * 1e9,
            link: link * 1e9,
            bus: bus * 1e9,
        })
    }

    /// Returns the card of `--card`: a name of the table, or
    /// `flops=150e12,bandwidth=900GB,memory=24GiB`, optionally with `link=64GB` and `bus=25GB`, all per second.
    ///
    /// Errors: `card-unknown`.
    pub fn parse(text: &str) -> Result<Card> {
        let name = text.trim().to_ascii_lowercase();
        match Card::all().find(|card| card.name == name) {
            Some(card) => Ok(card),
            None if text.contains('=') => given(text),
            None => {
                let names: Vec<&str> = Card::all().map(|card| card.name).collect();
                Err(Error::usage("card-unknown", format!("`{text}` is no card of the table"))
                    .fact(format!("the table has {}", names.join(", ")))
                    .hint("give its numbers: --card flops=150e12,bandwidth=900GB,memory=24GiB,link=64GB"))
            }
        }
    }

    /// Returns the card that a driver calls `product`, as in `NVIDIA H100 80GB HBM3`.
    pub(crate) fn of_product(product: &str) -> Option<Card> {
        let product = product.to_ascii_lowercase();
        let words: Vec<&str> = product.split([' ', '-']).filter(|word| !word.is_empty()).collect();
        let has = |part: &str| words.contains(&part) || words.contains(&format!("{part}gb").as_str());
        // A card with less memory or another form has its own row, which is tried first.
        let is_it = |card: &Card| card.name.split('-').all(has);
        Card::all().filter(is_it).max_by_key(|card| card.name.len())
    }

    /// Returns the rates for predictions of a run.
    pub fn rates(&self) -> Rates {
        let source = match self.name {
            MEASURED => "rates measured on an H200".to_string(),
            GIVEN => "from the numbers given, with the shares that an H200 reaches of its own".to_string(),
            name => format!(
                "{}: its data sheet, with the shares that an H200 reaches of its own",
                name.to_ascii_uppercase()
            ),
        };
        Rates {
            source,
            flops_bf16: self.flops_bf16,
            flops_f32: self.flops_f32 * F32_SHARE,
            bandwidth: self.bandwidth * BANDWIDTH_SHARE,
            rollout_share: ROLLOUT_SHARE,
            update_share: UPDATE_SHARE,
            half_rows: 0.0,
            pass_s: 2.9e-4,
            micro_batch_s: 1.8e-3,
            card: Some(CardRates {
                overlap: 1.35,
                read_share: 0.816,
                layer_s: 1.8e-5,
                logit_bytes: 12.3,
                activation_widths: 219.0,
                link: self.link * LINK_SHARE,
                bus: self.bus,
            }),
        }
    }
}

/// Returns the rates of this machine's card; if the table has no row for it, those of an H200, named as such.
pub(crate) fn rates_here() -> Rates {
    let product = plimsoll_cuda::probe().ok().map(|info| info.name);
    match product.as_deref().map(|product| (product, Card::of_product(product))) {
        Some((_, Some(card))) => card.rates(),
        Some((product, None)) => {
            let source = format!("built-in table for an H200, for it has no row for {product}");
            Rates { source, ..measured().rates() }
        }
        None => Rates { source: "built-in table for an H200".into(), ..measured().rates() },
    }
}

/// Returns the bytes per second of this machine's card by its data sheet; if the table has no row for it, an H200's.
pub fn bandwidth_here() -> f64 {
    let product = plimsoll_cuda::probe().ok().map(|info| info.name);
    product.and_then(|product| Card::of_product(&product)).unwrap_or_else(measured).bandwidth
}

fn measured() -> Card {
    Card::all().find(|card| card.name == MEASURED).expect("the table has it")
}

fn given(text: &str) -> Result<Card> {
    let bad = |what: String| {
        Error::usage("card-unknown", format!("--card {text}: {what}"))
            .hint("write --card flops=150e12,bandwidth=900GB,memory=24GiB,link=64GB")
    };
    let mut card = Card { name: GIVEN, bus: 25e9, ..Card::default() };
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(|| bad(format!("`{part}` is not KEY=NUMBER")))?;
        let number = match value.trim().parse::<f64>() {
            Ok(number) => number,
            Err(_) => {
                Bytes::parse(value.trim().trim_end_matches("/s")).map_err(|error| bad(error.message))?.0
                    as f64
            }
        };
        if !(number.is_finite() && number > 0.0 && number < 1e18) {
            return Err(bad(format!("{} is {value}", key.trim())));
        }
        match key.trim() {
            "flops" => card.flops_bf16 = number,
            "bandwidth" => card.bandwidth = number,
            "memory" => card.memory = Bytes(number as u64),
            "link" => card.link = number,
            "bus" => card.bus = number,
            other => return Err(bad(format!("`{other}` is none of flops, bandwidth, memory, link and bus"))),
        }
    }
    let needed =
        [("flops", card.flops_bf16), ("bandwidth", card.bandwidth), ("memory", card.memory.0 as f64)];
    if let Some((name, _)) = needed.into_iter().find(|(_, value)| *value == 0.0) {
        return Err(bad(format!("{name} is missing")));
    }
    card.flops_f32 = card.flops_bf16 / 8.0;
    card.link = if card.link > 0.0 { card.link } else { card.bus };
    Ok(card)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_the_row_of_its_product() {
        for (product, name) in [
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA H100 PCIe", "h100-pcie"),
            ("NVIDIA H200", "h200"),
            ("NVIDIA A100-SXM4-80GB", "a100"),
            ("NVIDIA A100-PCIE-40GB", "a100-40"),
            ("NVIDIA GeForce RTX 4090", "4090"),
            ("NVIDIA L4", "l4"),
            ("NVIDIA L40S", "l40s"),
            ("NVIDIA A10", "a10"),
        ] {
            assert_eq!(Card::of_product(product).map(|card| card.name), Some(name), "{product}");
        }
        for product in ["NVIDIA A10G", "Quadro T1000", ""] {
            assert_eq!(Card::of_product(product), None, "{product}");
        }
    }

    #[test]
    fn a_card_without_a_row_is_given_by_numbers() {
        let card = Card::parse("flops=150e12, bandwidth=900GB/s,memory=24GiB").unwrap();
        assert_eq!((card.memory, card.bandwidth, card.link), (Bytes(24 << 30), 900e9, 25e9));
        for (text, words) in [
            ("tpu", "`tpu` is no card of the table"),
            ("flops=1e12", "bandwidth is missing"),
            ("flops=nan,bandwidth=1GB,memory=1GiB", "flops is nan"),
            ("flops=-1,bandwidth=1GB,memory=1GiB", "flops is -1"),
            ("peak=1", "`peak` is none of"),
            ("flops=1e12,h100", "`h100` is not KEY=NUMBER"),
            ("flops=many", "many"),
        ] {
            let error = Card::parse(text).unwrap_err();
            assert_eq!(error.slug, "card-unknown", "{text}");
            assert!(error.message.contains(words), "{error}");
        }
    }
}
