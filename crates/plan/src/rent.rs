//! `plan --rent`: which cards a run fits on, how many it needs, how long it takes on them, and what that costs.

use crate::facts::Facts;
use crate::hosts::Hosts;
use crate::limits::limits_of_card;
use crate::planning::plan_without_hints;
use crate::prices::Prices;
use crate::report::PlanReport;
use crate::tables;
use plimsoll_base::{Bytes, Result};
use plimsoll_config::{Auto, RunSpec};
use plimsoll_devices::Card;
use plimsoll_memory::{Limit, Pool};
use serde::Serialize;

/// Numbers of hosts, and of cards on each, to try.
pub const PLACES: [(usize, usize); 6] = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8)];

/// The facts that are known besides the run.
#[derive(Clone, Debug, Default)]
pub struct Market<'m> {
    /// True if the run can have one rank only.
    pub one_rank: bool,
    /// Memory of a host, if known.
    pub host: Option<&'m Limit>,
    /// The bytes that a host sends to others in a second, as in `45GB/s`; 10 Gbit/s if not known.
    pub network: Option<&'m str>,
    pub prices: Prices,
}

/// A number of cards of one kind, and the memory and time of a run there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Offer {
    pub card: &'static str,
    pub hosts: usize,
    /// Cards of all hosts.
    pub ranks: usize,
    pub fits: bool,
    /// Keys that the run file sets, and with which it does not fit: it does with `auto`.
    pub auto: Vec<&'static str>,
    /// Peak of each card, under the smallest setting if none fits.
    pub card_bytes: Bytes,
    /// Memory of all ranks of a host together.
    pub host_bytes: Bytes,
    pub step_s: f64,
    /// Seconds of all steps and evaluations.
    pub run_s: f64,
    /// Hours of the run times the number of cards.
    pub card_hours: f64,
    /// Card hours times their price, if that is known.
    pub cost: Option<f64>,
}

impl Offer {
    fn near(&self) -> usize {
        self.ranks / self.hosts
    }

    /// Formats the number of cards: `8`, or `2 x 8` on two hosts.
    fn cards(&self) -> String {
        match self.hosts {
            1 => self.ranks.to_string(),
            hosts => format!("{hosts} x {}", self.near()),
        }
    }
}

/// Plans a run on some numbers of each card: those that fit first, the cheapest of them first, then the others. What
/// does not fit as the run file has it is tried with `auto` for the keys that do not change what is computed.
///
/// Errors: `size-overflow`, `bad-limit`.
pub fn offers(run: &RunSpec, facts: &Facts, market: &Market<'_>) -> Result<Vec<Offer>> {
    let places = if market.one_rank { &PLACES[..1] } else { &PLACES };
    let mut offers = Vec::with_capacity(places.len() * Card::all().count());
    tables::keeping(|| {
        for card in Card::all() {
            for &(hosts, near) in places {
                let hosts = match hosts {
                    1 => Hosts::one(near),
                    _ => Hosts::even(hosts, near, market.network)?,
                };
                offers.push(offer(run, facts, card, hosts, market)?);
            }
        }
        Ok(())
    })?;
    offers.sort_by(|a, b| {
        let dear = |offer: &Offer| offer.cost.unwrap_or(f64::INFINITY);
        let by_cost = dear(a).total_cmp(&dear(b)).then(a.card_hours.total_cmp(&b.card_hours));
        (!a.fits).cmp(&!b.fits).then(by_cost).then(a.ranks.cmp(&b.ranks))
    });
    Ok(offers)
}

fn offer(run: &RunSpec, facts: &Facts, card: Card, hosts: Hosts, market: &Market<'_>) -> Result<Offer> {
    let facts = Facts { share: hosts.share(), hosts, trainers: hosts, card: Some(card), ..*facts };
    let mut limits = limits_of_card(&card);
    limits.host = market.host.cloned();
    let plan = |run: &RunSpec| plan_without_hints(run, &facts, &limits);
    let (report, auto) = match plan(run)? {
        report if report.fits => (report, Vec::new()),
        report => with_auto(run, &plan)?.unwrap_or((report, Vec::new())),
    };
    let run_s = report.run_s();
    let card_hours = run_s / 3600.0 * hosts.ranks as f64;
    Ok(Offer {
        card: card.name,
        hosts: hosts.count,
        ranks: hosts.ranks,
        fits: report.fits,
        auto,
        card_bytes: report.plan.peak(Pool::Device).peak,
        host_bytes: Bytes(report.plan.peak(Pool::Host).peak.0 * hosts.near as u64),
        step_s: report.auto.chosen.predicted_step_s,
        run_s,
        card_hours,
        cost: market.prices.of(card.name).map(|price| price * card_hours),
    })
}

/// A key whose value does not decide what is computed, and how it is left to the planner: true if the file set it.
type Release = (&'static str, fn(&mut RunSpec) -> bool);

/// Leaves a value to the planner. Returns true if it was set.
fn release<T: Copy>(value: &mut Auto<T>) -> bool {
    !std::mem::replace(value, Auto::Auto).is_auto()
}

/// In the order in which they are released: the first gives the most memory for the least time.
const RELEASES: [Release; 4] = [
    ("train.micro_batch_tokens", |run| release(&mut run.train_mut().micro_batch_tokens)),
    ("train.recompute", |run| release(&mut run.train_mut().recompute)),
    ("rollout.sequences_max", |run| release(&mut run.rollout.sequences_max)),
    ("rollout.kv_blocks", |run| release(&mut run.rollout.kv_blocks)),
];

/// Returns the plan with the fewest keys released, in their order, with which the run fits, and their names.
fn with_auto(
    run: &RunSpec,
    plan: &dyn Fn(&RunSpec) -> Result<PlanReport>,
) -> Result<Option<(PlanReport, Vec<&'static str>)>> {
    let (mut released, mut keys) = (run.clone(), Vec::new());
    let mut tries = Vec::with_capacity(RELEASES.len());
    for (key, release) in RELEASES {
        if release(&mut released) {
            keys.push(key);
            tries.push((released.clone(), keys.clone()));
        }
    }
    // Most that do not fit do not fit with all of them, which one plan shows.
    let Some((last, keys)) = tries.pop() else { return Ok(None) };
    let all = plan(&last)?;
    if !all.fits {
        return Ok(None);
    }
    for (run, keys) in tries {
        let report = plan(&run)?;
        if report.fits {
            return Ok(Some((report, keys)));
        }
    }
    Ok(Some((all, keys)))
}

/// A unit for all times of a column.
fn unit_of(seconds: impl Iterator<Item = f64>) -> (&'static str, f64) {
    match seconds.fold(f64::INFINITY, f64::min) {
        least if least >= 3600.0 => ("hours", 3600.0),
        least if least >= 60.0 => ("minutes", 60.0),
        least if least >= 1.0 => ("s", 1.0),
        _ => ("ms", 1e-3),
    }
}

/// Formats the offers for people. Several hosts are shown where they are faster than fewer cards of that kind; those
/// that do not fit are a line.
pub fn table(offers: &[Offer], market: &Market<'_>) -> String {
    let is_faster = |offer: &&Offer| {
        let fewer = |other: &&Offer| other.fits && other.card == offer.card && other.ranks < offer.ranks;
        offer.hosts == 1 || offers.iter().filter(fewer).all(|other| offer.run_s < other.run_s)
    };
    let shown: Vec<&Offer> = offers.iter().filter(|offer| offer.fits).filter(is_faster).collect();
    let (step_unit, step_s) = unit_of(shown.iter().map(|offer| offer.step_s));
    let (run_unit, run_s) = unit_of(shown.iter().map(|offer| offer.run_s));
    let has_prices = !market.prices.is_empty();
    let priced = |words: String| if has_prices { format!(" {words:>9}") } else { String::new() };
    let mut text = format!(
        "{:<10} {:>5} {:>10} {:>11} {:>10} {:>12} {:>10}{}\n",
        "card",
        "cards",
        "card, each",
        "host",
        format!("step, {step_unit}"),
        format!("run, {run_unit}"),
        "card hours",
        priced("cost".into())
    );
    for offer in &shown {
        let [each, host] = [offer.card_bytes, offer.host_bytes].map(|bytes| bytes.to_string());
        let mark = if offer.auto.is_empty() { String::new() } else { format!("  {}", mark_of(&offer.auto)) };
        text += &format!(
            "{:<10} {:>5} {each:>10} {host:>11} {:>10.1} {:>12.1} {:>10.1}{}{mark}\n",
            offer.card,
            offer.cards(),
            offer.step_s / step_s,
            offer.run_s / run_s,
            offer.card_hours,
            priced(offer.cost.map_or("-".into(), |cost| format!("{cost:.2}"))),
        );
    }
    if shown.iter().any(|offer| !offer.auto.is_empty()) {
        text += "A row with `auto` does not fit as the run file has it, and fits with these keys left to the planner: --set KEY=auto.\n";
    }
    text += &misfits(offers);
    if shown.iter().any(|offer| offer.hosts > 1) {
        text += &format!(
            "H x N: H hosts with N cards each, over a network of {} for each host and direction (--network).\n",
            market.network.unwrap_or("1.25GB/s")
        );
    }
    text + "Measured on H200s; others by their data sheets, and no more exact than those. Every response at full length.\n"
}

fn mark_of(keys: &[&str]) -> String {
    let names: Vec<&str> = keys.iter().map(|key| key.rsplit('.').next().unwrap_or(key)).collect();
    format!("auto: {}", names.join(", "))
}

/// Names what does not fit, by card. Several hosts count where one does not do.
fn misfits(offers: &[Offer]) -> String {
    let mut cards: Vec<(&str, Vec<&Offer>)> = Vec::new();
    for offer in offers.iter().filter(|offer| !offer.fits) {
        match cards.iter_mut().find(|(card, _)| *card == offer.card) {
            Some((_, of_card)) => of_card.push(offer),
            None => cards.push((offer.card, vec![offer])),
        }
    }
    let words = cards.into_iter().map(|(card, mut of_card)| {
        of_card.sort_by_key(|offer| offer.ranks);
        let numbers: Vec<String> = of_card.iter().map(|offer| offer.cards()).collect();
        format!("{card} ({})", numbers.join(", "))
    });
    let words: Vec<String> = words.collect();
    if words.is_empty() { String::new() } else { format!("does not fit: {}\n", words.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_has_one_unit() {
        for (seconds, unit) in [
            (&[0.002, 3.0][..], "ms"),
            (&[7.0, 9000.0], "s"),
            (&[660.0, 7500.0], "minutes"),
            (&[3600.0, 9e5], "hours"),
        ] {
            assert_eq!(unit_of(seconds.iter().copied()).0, unit);
        }
    }
}
