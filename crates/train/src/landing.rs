//! Arrival slots on a card for pieces of other ranks' partial gradients: a card copies before it adds.

use crate::levels::Levels;
use crate::share::{Share, landing_elements};
use crate::sums::Summing;
use plimsoll_arch::ParamKind;
use plimsoll_base::{DType, Phase, PhaseSet, Result};
use plimsoll_memory::{Buf, InPhase, Layout, Pool};
use plimsoll_model::ParamTable;

/// Hosts that ranks are on. A card reads rows of embedding gradients in place from ranks of its own host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All ranks are on one host.
    Host,
    Hosts,
}

/// The sizes that the regions of `landing_layout` depend on.
#[derive(Clone, Copy, Debug)]
pub struct LandingShape {
    pub ranks: usize,
    pub spread: Spread,
    pub summing: Summing,
    /// Dtype of partial gradients.
    pub partial: DType,
    /// Dtype of sums.
    pub sums: DType,
    /// Maximum rows of a micro-batch.
    pub rows: u32,
    /// Elements of a row.
    pub hidden: u32,
}

/// Regions for other ranks' data on a card: `ROLE.landing`, `ROLE.heads`, `ROLE.row_ids`, and, with other hosts,
/// `ROLE.rows`. Where hosts fold, these are of one host, and `ROLE.landing_folded` is for the others' sums.
///
/// Errors: `size-overflow`.
pub fn landing_layout(
    role: &str,
    table: &ParamTable,
    pool: Pool,
    phase: Phase,
    shape: LandingShape,
) -> Result<Layout> {
    let LandingShape { ranks, spread, summing, partial, sums, rows, hidden } = shape;
    let mut layout = Layout::new();
    let (largest, of_embed) = landing_elements(table, ranks);
    let mut add = |name: &str, shape: [u64; 2], dtype: DType| {
        layout.arena(&format!("{role}.{name}"), "train", pool, PhaseSet::of(&[phase]), &shape, dtype)
    };
    let near = summing.near.unwrap_or(ranks);
    let has_embed = table.find(ParamKind::Embed, 0).is_some();
    add("landing", [near as u64 - 1, largest], partial)?;
    if let Some(near) = summing.near {
        let groups = (ranks - near) / summing.fold;
        // One sum of the embedding at a time.
        let of_one = if has_embed { of_embed.div_ceil(groups as u64) } else { 0 };
        add("landing_folded", [groups as u64, largest.max(of_one)], sums)?;
    }
    if table.is_tied() {
        add("heads", [near as u64 - 1, of_embed], partial)?;
    }
    if has_embed {
        add("row_ids", [near as u64, rows.into()], DType::U32)?;
        if spread == Spread::Hosts && summing.near.is_none() {
            add("rows", [rows.into(), hidden.into()], DType::F32)?;
        }
    }
    Ok(layout)
}

/// Arrival slots for other ranks' partial gradients, on a device that copies before it adds.
#[derive(Clone, Copy, Debug)]
pub struct Landing<'p> {
    /// A slot for each rank whose gradients arrive as they are, by rank, of the largest run that one owns.
    slots: Buf<'p>,
    /// A slot for each sum of other hosts, of the largest run too.
    folded: Option<Buf<'p>>,
    /// Other ranks' parts of the embedding, by rank, where it is the head too: rows are added between them.
    heads: Option<Buf<'p>>,
    /// Tokens of rows of those ranks and this one, whose next pass rewrites them while rows are still added.
    row_ids: Option<Buf<'p>>,
    /// The rows of one rank, if some ranks are on other hosts.
    pub(crate) rows: Option<Buf<'p>>,
    /// First rank whose gradients arrive as they are, and their number.
    first: usize,
    near: usize,
    rank: usize,
}

impl<'p> Landing<'p> {
    /// Resolves the regions of `landing_layout`; `None` where others' memory is read in place.
    pub fn bind(phase: &InPhase<'p>, role: &str, share: Share, levels: Option<Levels<'p>>) -> Option<Self> {
        let of = |what: &str| phase.get(&format!("{role}.{what}"));
        let near = levels.map_or(share.ranks, |levels| levels.near());
        Some(Landing {
            slots: of("landing")?,
            folded: of("landing_folded"),
            heads: of("heads"),
            row_ids: of("row_ids"),
            rows: of("rows"),
            first: share.rank / near * near,
            near,
            rank: share.rank,
        })
    }

    /// Returns the slot of another rank.
    pub(crate) fn slot(&self, rank: usize) -> Buf<'p> {
        self.of_other(self.slots, rank)
    }

    /// Returns where another rank's part of the embedding arrives, if it is the head too.
    pub(crate) fn head(&self, rank: usize) -> Option<Buf<'p>> {
        Some(self.of_other(self.heads?, rank))
    }

    pub(crate) fn has_heads(&self) -> bool {
        self.heads.is_some()
    }

    /// Returns where a rank's tokens of rows are.
    pub(crate) fn ids(&self, rank: usize) -> Option<Buf<'p>> {
        let ids = self.row_ids?;
        Some(ids.part(rank - self.first, ids.len() / self.near))
    }

    /// Returns the slot of the `index`th sum of other hosts.
    pub(crate) fn folded(&self, index: usize, groups: usize) -> Buf<'p> {
        let folded = self.folded.expect("a region for what other hosts fold");
        folded.part(index, folded.len() / groups)
    }

    /// Returns where a sum of the embedding arrives.
    pub(crate) fn folded_embed(&self) -> Buf<'p> {
        self.folded.expect("a region for what other hosts fold")
    }

    /// Returns the part of a region that is another rank's.
    fn of_other(&self, slots: Buf<'p>, rank: usize) -> Buf<'p> {
        let index = rank - self.first - usize::from(rank > self.rank);
        slots.part(index, slots.len() / (self.near - 1))
    }
}
