//! Rows of a plan: who holds how many bytes where, in which phases; and the cards and nodes that sum them.

use super::hazards::Hazard;
use super::pool::Pool;
use plimsoll_base::{Bytes, Error, Result};

/// Part of a training step, in order; from `Load` at a run's start to `Save` at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Reads models and makes optimizers.
    Load,
    Rollout,
    /// Computes log-probs, values and rewards of the responses.
    Experience,
    Critic,
    Update,
    /// Sends new weights to the engine.
    Sync,
    /// Writes a checkpoint or the model.
    Save,
}

use Phase::{Critic, Experience, Load, Rollout, Save, Sync, Update};

impl Phase {
    pub const ALL: &'static [Phase] = &[Load, Rollout, Experience, Critic, Update, Sync, Save];
    /// From the first rollout on; for states that come with the first update, from the second step on.
    pub const RUNNING: &'static [Phase] = &[Rollout, Experience, Critic, Update, Sync, Save];
    pub const fn name(self) -> &'static str {
        match self {
            Load => "load",
            Rollout => "rollout",
            Experience => "experience",
            Critic => "critic update",
            Update => "actor update",
            Sync => "weight sync",
            Save => "save",
        }
    }
}

/// The holders of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// Each rank of its group, one per card.
    Rank,
    /// The first rank only.
    First,
    /// Once, on the node of the first card.
    Run,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The role that holds it: actor, critic, engine, ...
    pub role: &'static str,
    pub name: &'static str,
    pub pool: Pool,
    /// Index of its cards in the cluster.
    pub group: usize,
    pub per: Per,
    /// Bytes per holder; beyond 2^63 is an error of the plan.
    pub bytes: u128,
    pub phases: &'static [Phase],
    /// The arithmetic, with its numbers.
    pub formula: String,
    /// File and version of the framework, or the author of a reported number.
    pub source: &'static str,
}

impl Item {
    pub fn is_in(&self, phase: Phase) -> bool {
        self.phases.contains(&phase)
    }

    pub(crate) fn first(self) -> Item {
        Item { per: Per::First, ..self }
    }

    /// Returns the item held once, on the node of the first card.
    pub(crate) fn once(self) -> Item {
        Item { per: Per::Run, ..self }
    }
}

/// Returns a size for display; sums are checked, so a larger one is never displayed.
pub(crate) fn shown(bytes: u128) -> Bytes {
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// A role on its cards, whose ranks hold rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    pub role: &'static str,
    /// Index of its cards in the cluster.
    pub group: usize,
}

pub(crate) type When = &'static [Phase];

impl Holder {
    /// Makes a row on each rank's card.
    pub fn card(
        self,
        name: &'static str,
        bytes: u128,
        phases: When,
        formula: impl Into<String>,
        source: &'static str,
    ) -> Item {
        let (Holder { role, group }, formula) = (self, formula.into());
        Item { role, name, pool: Pool::Device, group, per: Per::Rank, bytes, phases, formula, source }
    }

    /// Makes a row in each rank's host memory.
    pub fn host(
        self,
        name: &'static str,
        bytes: u128,
        phases: When,
        formula: impl Into<String>,
        source: &'static str,
    ) -> Item {
        Item { pool: Pool::Host, ..self.card(name, bytes, phases, formula, source) }
    }
}

/// Cards that hold the same roles.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub name: &'static str,
    pub cards: u64,
}

/// All cards of a run, in the order in which they fill nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    pub groups: Vec<Group>,
    pub cards_per_node: u64,
}

impl Cluster {
    pub fn group(&mut self, name: &'static str, cards: u64) -> usize {
        self.groups.push(Group { name, cards });
        self.groups.len() - 1
    }

    pub fn cards(&self) -> u64 {
        self.groups.iter().map(|group| group.cards).sum()
    }

    pub fn nodes(&self) -> u64 {
        self.cards().div_ceil(self.cards_per_node.max(1)).max(1)
    }

    /// Returns the cards of `group` on `node`, and true if its first one is among them.
    pub fn on_node(&self, group: usize, node: u64) -> (u64, bool) {
        let start: u64 = self.groups[..group].iter().map(|group| group.cards).sum();
        let end = start + self.groups[group].cards;
        let (low, high) = (node * self.cards_per_node, (node + 1).saturating_mul(self.cards_per_node));
        let cards = end.min(high).saturating_sub(start.max(low));
        (cards, start >= low && start < high)
    }

    fn times(&self, item: &Item, node: u64) -> u64 {
        let (cards, is_first) = self.on_node(item.group, node);
        match item.per {
            Per::Rank => cards,
            Per::First => u64::from(is_first),
            Per::Run => u64::from(node == 0),
        }
    }
}

/// The rows that a stack's rules make of a run's settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub cluster: Cluster,
    pub items: Vec<Item>,
    pub hazards: Vec<Hazard>,
    /// Notes for the reader: how a setting was read, what is left out.
    pub notes: Vec<String>,
    /// (role, parameters).
    pub models: Vec<(&'static str, u64)>,
    /// The run's phases, in order.
    pub phases: Vec<Phase>,
}

impl Ledger {
    /// Makes a ledger for a run whose roles share all `cards`.
    pub fn of_one_group(name: &'static str, cards: u64, cards_per_node: u64) -> (Ledger, usize) {
        let mut cluster = Cluster { cards_per_node, ..Cluster::default() };
        let group = cluster.group(name, cards);
        (Ledger { cluster, ..Ledger::default() }, group)
    }

    pub fn add(&mut self, items: impl IntoIterator<Item = Item>) {
        self.items.extend(items);
    }

    pub fn note(&mut self, words: impl Into<String>) {
        self.notes.push(words.into());
    }

    pub fn goes_through(&mut self, goes: impl Fn(Phase) -> bool) {
        self.phases = Phase::ALL.iter().copied().filter(|phase| goes(*phase)).collect();
    }

    /// Returns the sum of a card of `group` in `phase`.
    ///
    /// Errors: `size-overflow`.
    pub fn card(&self, group: usize, phase: Phase) -> Result<Sum> {
        let is_counted = |item: &Item| item.pool == Pool::Device && item.group == group && item.is_in(phase);
        sum(&self.items, |item| u64::from(is_counted(item)))
    }

    /// Returns the sum of `node`'s memory in `phase`, including /dev/shm; or of /dev/shm alone.
    ///
    /// Errors: `size-overflow`.
    pub fn node(&self, pool: Pool, node: u64, phase: Phase) -> Result<Sum> {
        sum(&self.items, |item| {
            let counts = item.pool == pool || (pool == Pool::Host && item.pool == Pool::Shm);
            if counts && item.is_in(phase) { self.cluster.times(item, node) } else { 0 }
        })
    }
}

/// A sum with its rows, the largest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    pub bytes: Bytes,
    /// (index of the row, bytes that it adds).
    pub rows: Vec<(usize, Bytes)>,
}

/// Sums rows; `times` returns how often each counts.
fn sum(items: &[Item], times: impl Fn(&Item) -> u64) -> Result<Sum> {
    let (mut total, mut rows) = (0_u128, Vec::new());
    for (index, item) in items.iter().enumerate() {
        let held = item.bytes.saturating_mul(u128::from(times(item)));
        total = total.saturating_add(held);
        if held > 0 {
            rows.push((index, Bytes(u64::try_from(held).unwrap_or(u64::MAX))));
        }
    }
    rows.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
    let bytes = u64::try_from(total).ok().filter(|&bytes| i64::try_from(bytes).is_ok());
    let bytes = bytes.map(Bytes).ok_or_else(|| {
        Error::usage("size-overflow", "the sizes of this run add up to more than 2^63 bytes")
            .hint("check the lengths and counts in the file, and those given with --set")
    })?;
    Ok(Sum { bytes, rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(pool: Pool, group: usize, per: Per, bytes: u128) -> Item {
        let phases = Phase::ALL;
        Item { role: "a", name: "b", pool, group, per, bytes, phases, formula: String::new(), source: "" }
    }

    #[test]
    fn groups_fill_nodes_in_order() {
        let mut cluster = Cluster { cards_per_node: 8, ..Cluster::default() };
        let (actor, critic) = (cluster.group("actor", 6), cluster.group("critic", 4));
        assert_eq!((cluster.nodes(), cluster.cards()), (2, 10));
        assert_eq!((cluster.on_node(actor, 0), cluster.on_node(actor, 1)), ((6, true), (0, false)));
        assert_eq!((cluster.on_node(critic, 0), cluster.on_node(critic, 1)), ((2, true), (2, false)));
        let items = vec![
            item(Pool::Host, actor, Per::Rank, 10),
            item(Pool::Host, critic, Per::Rank, 100),
            item(Pool::Shm, critic, Per::First, 1000),
            item(Pool::Host, actor, Per::Run, 10_000),
            item(Pool::Device, actor, Per::Rank, 7),
        ];
        let ledger = Ledger { cluster, items, ..Ledger::default() };
        let at = |pool, at| ledger.node(pool, at, Phase::Save).unwrap().bytes.0;
        assert_eq!((at(Pool::Host, 0), at(Pool::Host, 1), at(Pool::Shm, 0)), (11_260, 200, 1000));
        let sum = ledger.card(actor, Phase::Load).unwrap();
        assert_eq!((sum.bytes.0, sum.rows.len()), (7, 1));
        assert_eq!(ledger.card(critic, Phase::Load).unwrap().bytes.0, 0);
    }

    #[test]
    fn sums_beyond_the_largest_size_are_refused() {
        let cluster = Cluster { groups: vec![Group { name: "a", cards: 1 }], cards_per_node: 1 };
        let items = vec![item(Pool::Host, 0, Per::Rank, u128::MAX), item(Pool::Host, 0, Per::Rank, 5)];
        let ledger = Ledger { cluster, items, ..Ledger::default() };
        assert_eq!(ledger.node(Pool::Host, 0, Phase::Load).unwrap_err().slug, "size-overflow");
    }
}
