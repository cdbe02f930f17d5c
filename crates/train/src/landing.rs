//! Where pieces of other ranks' partial gradients arrive on a card, which copies before it adds.

use crate::levels::Levels;
use crate::share::{Share, landing_elements};
use crate::sums::Summing;
use plimsoll_arch::ParamKind;
use plimsoll_base::{DType, Phase, PhaseSet, Result};
use plimsoll_memory::{Buf, InPhase, Layout, Pool};
use plimsoll_model::ParamTable;

/// Over what ranks are spread: which of them a card reads in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All of one host.
    Host,
    Hosts,
}

/// What the regions of `landing_layout` depend on.
#[derive(Clone, Copy, Debug)]
pub struct LandingShape {
    pub ranks: usize,
    pub spread: Spread,
    pub summing: Summing,
    /// Of partial gradients.
    pub partial: DType,
    /// Of sums.
    pub sums: DType,
    /// Of a micro-batch, at most.
    pub rows: u32,
    /// Numbers of a row.
    pub hidden: u32,
}

/// The regions of a role for what arrives of other ranks on a card: `ROLE.landing`, `ROLE.heads`, `ROLE.row_ids`, and `ROLE.rows` if
/// some are on other hosts. Where hosts fold, those are of one host, and `ROLE.landing_folded` is for sums of the others.
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

/// Where pieces of other ranks' partial gradients arrive, on a device that copies them before it adds them.
#[derive(Clone, Copy, Debug)]
pub struct Landing<'p> {
    /// A slot for each other rank whose own arrive, by rank, of the largest run that one owns.
    slots: Buf<'p>,
    /// The same for each sum of other hosts.
    folded: Option<Buf<'p>>,
    /// What each other rank has of the embedding's part, by rank, where the embedding is the head too: rows are added between them.
    heads: Option<Buf<'p>>,
    /// Those ranks' tokens of rows, by rank, this one's too: its next pass writes them while rows are still added.
    row_ids: Option<Buf<'p>>,
    /// The rows of one rank, where some are on other hosts.
    pub(crate) rows: Option<Buf<'p>>,
    /// The ranks whose gradients arrive as they are: the first of them, and how many.
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

    /// Returns where what another rank has of the embedding arrives, if it is the head too.
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

    /// Returns the slot of a sum of other hosts: the `index`th of their sums.
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
