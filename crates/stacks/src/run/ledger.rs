//! Rows of a plan: who holds how many bytes where, in which phases; and the cards and nodes that they add up on.

use plimsoll_base::{Bytes, Error, Result};

/// Part of a training step, in its order; `Load` and `Save` stand at a run's ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Models are read and optimizers made.
    Load,
    /// Responses are generated.
    Rollout,
    /// Log-probs, values and rewards of the responses.
    Experience,
    /// The critic's update.
    Critic,
    /// The actor's update.
    Update,
    /// New weights go to the engine.
    Sync,
    /// A checkpoint or the model is written.
    Save,
}

use Phase::{Critic, Experience, Load, Rollout, Save, Sync, Update};

impl Phase {
    /// Every phase.
    pub const ALL: &'static [Phase] = &[Load, Rollout, Experience, Critic, Update, Sync, Save];
    /// From the first rollout on.
    pub const RUNNING: &'static [Phase] = &[Rollout, Experience, Critic, Update, Sync, Save];
    /// From the first update on, when states that come with it are there: every phase after the first step.
    pub const TRAINED: &'static [Phase] = &[Rollout, Experience, Critic, Update, Sync, Save];

    /// In words.
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

/// Where bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pool {
    /// On a card.
    Device,
    /// In a node's memory.
    Host,
    /// In /dev/shm: it is the host's memory too.
    Shm,
}

impl Pool {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Pool::Device => "device",
            Pool::Host => "host",
            Pool::Shm => "/dev/shm",
        }
    }
}

/// How often a row is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// By each rank of its group, one a card.
    Rank,
    /// By the first rank only.
    First,
    /// Once on the node of the first card.
    Run,
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Who holds it: actor, critic, engine, ...
    pub role: &'static str,
    /// What it is.
    pub name: &'static str,
    /// Where it lies.
    pub pool: Pool,
    /// Index of its cards in the cluster.
    pub group: usize,
    /// How often it is held.
    pub per: Per,
    /// Bytes of one; beyond 2^63 is an error of the plan.
    pub bytes: u128,
    /// When it is there.
    pub phases: &'static [Phase],
    /// The arithmetic, with its numbers.
    pub formula: String,
    /// File and version of the framework, or whose report a number is from.
    pub source: &'static str,
}

impl Item {
    /// True if the row is there in `phase`.
    pub fn is_in(&self, phase: Phase) -> bool {
        self.phases.contains(&phase)
    }

    /// The size as bytes, which every sum has checked.
    pub fn size(&self) -> Bytes {
        Bytes(u64::try_from(self.bytes).unwrap_or(u64::MAX))
    }
}

/// Cards that hold the same roles.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The roles.
    pub name: &'static str,
    /// How many.
    pub cards: u64,
}

/// All cards of a run, in the order in which they fill nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    /// Cards by their roles.
    pub groups: Vec<Group>,
    /// Cards of a node.
    pub cards_per_node: u64,
}

impl Cluster {
    /// Adds cards and returns their index.
    pub fn group(&mut self, name: &'static str, cards: u64) -> usize {
        self.groups.push(Group { name, cards });
        self.groups.len() - 1
    }

    /// All cards.
    pub fn cards(&self) -> u64 {
        self.groups.iter().map(|group| group.cards).sum()
    }

    /// Nodes that they fill.
    pub fn nodes(&self) -> u64 {
        self.cards().div_ceil(self.cards_per_node.max(1)).max(1)
    }

    /// Cards of `group` on `node`, and whether its first one is there.
    pub fn on_node(&self, group: usize, node: u64) -> (u64, bool) {
        let start: u64 = self.groups[..group].iter().map(|group| group.cards).sum();
        let end = start + self.groups[group].cards;
        let (low, high) = (node * self.cards_per_node, (node + 1).saturating_mul(self.cards_per_node));
        let cards = end.min(high).saturating_sub(start.max(low));
        (cards, start >= low && start < high)
    }

    /// How often `item` is held on `node`.
    fn times(&self, item: &Item, node: u64) -> u64 {
        let (cards, is_first) = self.on_node(item.group, node);
        match item.per {
            Per::Rank => cards,
            Per::First => u64::from(is_first),
            Per::Run => u64::from(node == 0),
        }
    }
}

/// A sum with its rows, the largest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    /// All of them.
    pub bytes: Bytes,
    /// (index of the row, bytes that it adds).
    pub rows: Vec<(usize, Bytes)>,
}

/// Sums rows; `times` says how often each counts.
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

/// A card of `group` in `phase`.
pub fn card(items: &[Item], group: usize, phase: Phase) -> Result<Sum> {
    sum(items, |item| u64::from(item.pool == Pool::Device && item.group == group && item.is_in(phase)))
}

/// Memory of `node` in `phase`, /dev/shm within it; or /dev/shm alone.
pub fn node(items: &[Item], cluster: &Cluster, pool: Pool, node: u64, phase: Phase) -> Result<Sum> {
    sum(items, |item| {
        let counts = item.pool == pool || (pool == Pool::Host && item.pool == Pool::Shm);
        if counts && item.is_in(phase) { cluster.times(item, node) } else { 0 }
    })
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
        let items = [
            item(Pool::Host, actor, Per::Rank, 10),
            item(Pool::Host, critic, Per::Rank, 100),
            item(Pool::Shm, critic, Per::First, 1000),
            item(Pool::Host, actor, Per::Run, 10_000),
            item(Pool::Device, actor, Per::Rank, 7),
        ];
        let at = |pool, at| node(&items, &cluster, pool, at, Phase::Save).unwrap().bytes.0;
        assert_eq!((at(Pool::Host, 0), at(Pool::Host, 1), at(Pool::Shm, 0)), (11_260, 200, 1000));
        let sum = card(&items, actor, Phase::Load).unwrap();
        assert_eq!((sum.bytes.0, sum.rows.len()), (7, 1));
        assert_eq!(card(&items, critic, Phase::Load).unwrap().bytes.0, 0);
    }

    #[test]
    fn sums_beyond_the_largest_size_are_refused() {
        let cluster = Cluster { groups: vec![Group { name: "a", cards: 1 }], cards_per_node: 1 };
        let items = [item(Pool::Host, 0, Per::Rank, u128::MAX), item(Pool::Host, 0, Per::Rank, 5)];
        assert_eq!(node(&items, &cluster, Pool::Host, 0, Phase::Load).unwrap_err().slug, "size-overflow");
    }
}
