//! `plan --rent`: which cards a run fits on, how many it needs, and how long it takes on them.

use crate::duration::duration;
use crate::facts::Facts;
use crate::hosts::Hosts;
use crate::limits::limits_of_card;
use crate::planning::plan_without_hints;
use crate::tables;
use plimsoll_base::{Bytes, Result};
use plimsoll_config::RunSpec;
use plimsoll_devices::Card;
use plimsoll_memory::{Limit, Pool};
use serde::Serialize;

/// Numbers of cards of one host to try.
pub const RANKS: [usize; 4] = [1, 2, 4, 8];

/// A number of cards of one kind, and the memory and time of a run there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Offer {
    pub card: &'static str,
    pub ranks: usize,
    pub fits: bool,
    /// Peak of each card, under the smallest setting if none fits.
    pub card_bytes: Bytes,
    /// Host memory of all ranks together.
    pub host_bytes: Bytes,
    pub step_s: f64,
    /// Seconds of all steps and evaluations.
    pub run_s: f64,
    /// Hours of the run times the number of cards.
    pub card_hours: f64,
}

/// Plans a run on 1 to 8 of each card: those that fit first, by card hours, then the others. `ranks`: the numbers of
/// ranks that the run allows. `host`: memory of the host, if known.
///
/// Errors: `size-overflow`.
pub fn offers(run: &RunSpec, facts: &Facts, ranks: &[usize], host: Option<&Limit>) -> Result<Vec<Offer>> {
    let mut offers = Vec::new();
    tables::keeping(|| {
        for card in Card::all() {
            for &ranks in ranks {
                offers.push(offer(run, facts, card, ranks, host)?);
            }
        }
        Ok(())
    })?;
    let key = |offer: &Offer| (!offer.fits, offer.card_hours);
    offers.sort_by(|a, b| {
        let ((a_not, a_hours), (b_not, b_hours)) = (key(a), key(b));
        a_not.cmp(&b_not).then(a_hours.total_cmp(&b_hours)).then(a.ranks.cmp(&b.ranks))
    });
    Ok(offers)
}

fn offer(run: &RunSpec, facts: &Facts, card: Card, ranks: usize, host: Option<&Limit>) -> Result<Offer> {
    let hosts = Hosts::one(ranks);
    let facts = Facts { share: hosts.share(), hosts, trainers: hosts, card: Some(card), ..*facts };
    let mut limits = limits_of_card(&card);
    limits.host = host.cloned();
    let report = plan_without_hints(run, &facts, &limits)?;
    let run_s = report.run_s();
    Ok(Offer {
        card: card.name,
        ranks,
        fits: report.fits,
        card_bytes: report.plan.peak(Pool::Device).peak,
        host_bytes: Bytes(report.plan.peak(Pool::Host).peak.0 * ranks as u64),
        step_s: report.auto.chosen.predicted_step_s,
        run_s,
        card_hours: run_s / 3600.0 * ranks as f64,
    })
}

/// Formats the offers for people; those that do not fit share one line.
pub fn table(offers: &[Offer]) -> String {
    let mut text = format!(
        "{:<10} {:>5} {:>10} {:>11} {:>10} {:>12} {:>10}\n",
        "card", "cards", "card, each", "host", "step", "run", "card hours"
    );
    for Offer { card, ranks, card_bytes, host_bytes, step_s, run_s, card_hours, .. } in
        offers.iter().filter(|offer| offer.fits)
    {
        let [each, host] = [card_bytes, host_bytes].map(|bytes| bytes.to_string());
        let [step, run] = [*step_s, *run_s].map(duration);
        text +=
            &format!("{card:<10} {ranks:>5} {each:>10} {host:>11} {step:>10} {run:>12} {card_hours:>10.1}\n");
    }
    let not = offers.iter().filter(|offer| !offer.fits).map(|offer| match offer.ranks {
        1 => offer.card.to_string(),
        ranks => format!("{ranks} x {}", offer.card),
    });
    let not: Vec<String> = not.collect();
    if !not.is_empty() {
        text += &format!("does not fit: {}\n", not.join(", "));
    }
    text + "Measured on H200s; others by their data sheets, and no more exact than those. Every response at full length.\n"
}
