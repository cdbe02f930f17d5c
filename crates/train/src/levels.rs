//! Sums of folds that ranks of a host form for the owners on other hosts. An owner takes one sum instead of `fold`
//! gradients, with the same bits.
//!
//! The micro-batches of a fold are of neighbouring ranks. Rank i of them adds for owner q where q mod `fold` is i.

use crate::share::Share;
use crate::sums::Summing;
use plimsoll_arch::ParamKind;
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::{OwnedRun, Run};
use plimsoll_memory::{Buf, InPhase, Layout, Pool};
use plimsoll_model::ParamTable;

/// Layers whose sums exist at once: one is written while those of the other are taken.
const SLOTS: u64 = 2;

/// The place of a rank's sums.
#[derive(Clone, Copy, Debug)]
pub struct Levels<'p> {
    /// [ends + 2 widest]: sums of the head and then the embedding; then of two layers in turn.
    sums: Buf<'p>,
    ends: u64,
    widest: u64,
    near: usize,
    pub(crate) fold: usize,
}

/// Maximum elements of one rank's sums: outside of layers, and of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    ends: u64,
    widest: u64,
}

/// The region of sums, `ROLE.folded_near`; none unless hosts fold.
///
/// Errors: `size-overflow`.
pub(crate) fn layout(
    role: &str,
    table: &ParamTable,
    (pool, phases): (Pool, PhaseSet),
    summing: Summing,
    ranks: usize,
    dtype: DType,
) -> Result<Layout> {
    let mut layout = Layout::new();
    if let Some(near) = summing.near {
        let Sizes { ends, widest } = sizes(table, ranks, near, summing.fold);
        let region = format!("{role}.folded_near");
        layout.arena(&region, "train", pool, phases, &[ends + SLOTS * widest], dtype)?;
    }
    Ok(layout)
}

/// The parameters that are summed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// The head with the last norm, or the embedding.
    Ends,
    Layer(u32),
}

/// Returns all areas with their elements in the flat buffer.
pub(crate) fn areas(table: &ParamTable) -> impl Iterator<Item = (Area, Run)> + '_ {
    let layers = table.params.iter().map(|param| param.layer + 1).max().unwrap_or(0);
    let embed = table.find(ParamKind::Embed, 0);
    let embed = embed.map(|embed| Run { start: embed.offset, elements: embed.elements });
    let ends = [table.head_run()].into_iter().chain(embed).map(|run| (Area::Ends, run));
    ends.chain((0..layers).map(|layer| (Area::Layer(layer), table.layer_run(layer))))
}

fn sizes(table: &ParamTable, ranks: usize, near: usize, fold: usize) -> Sizes {
    let owned: Vec<Vec<OwnedRun>> = (0..ranks).map(|rank| Share { rank, ranks }.owned(table)).collect();
    let mut sizes = Sizes { ends: 0, widest: 0 };
    for (area, within) in areas(table) {
        // By the rank that adds it and the host of its owner.
        let mut elements = vec![vec![0; ranks.div_ceil(near)]; fold];
        for (rank, owned) in owned.iter().enumerate() {
            let first = owned.partition_point(|owned| owned.run.end() <= within.start);
            let inside = owned[first..].iter().map_while(|owned| owned.inside(within));
            elements[rank % fold][rank / near] += inside.map(|owned| owned.run.elements).sum::<u64>();
        }
        let of = |hosts: &Vec<u64>| hosts.iter().sum::<u64>() - hosts.iter().min().expect("a host");
        let most = elements.iter().map(of).max().unwrap_or(0);
        match area {
            Area::Ends => sizes.ends = sizes.ends.max(most),
            Area::Layer(_) => sizes.widest = sizes.widest.max(most),
        }
    }
    sizes
}

impl<'p> Levels<'p> {
    /// Resolves the region of a role; `None` unless hosts fold.
    pub fn bind(
        phase: &InPhase<'p>,
        role: &str,
        table: &ParamTable,
        summing: Summing,
        ranks: usize,
    ) -> Option<Levels<'p>> {
        let near = summing.near?;
        let sums = phase.buf(&format!("{role}.folded_near"));
        let Sizes { ends, widest } = sizes(table, ranks, near, summing.fold);
        Some(Levels { sums, ends, widest, near, fold: summing.fold })
    }

    /// Returns how many ranks a host has.
    pub(crate) fn near(&self) -> usize {
        self.near
    }

    pub(crate) fn are_near(&self, one: usize, other: usize) -> bool {
        one / self.near == other / self.near
    }

    /// Returns the maximum sums of a round that other hosts have for each owner of a host.
    pub(crate) fn folds_elsewhere(&self, share: Share) -> usize {
        (share.ranks - self.near) / self.fold
    }

    /// True if a rank adds to a fold for an owner on another host, in a round of `parts` micro-batches.
    pub(crate) fn adds(&self, rank: usize, owner: usize, parts: usize) -> bool {
        !self.are_near(rank, owner) && owner % self.fold == rank % self.fold && self.first_of(rank) < parts
    }

    /// Returns the first rank whose micro-batch is folded with that of `rank`.
    pub(crate) fn first_of(&self, rank: usize) -> usize {
        rank / self.fold * self.fold
    }

    /// Returns the rank that adds, for an owner, the parts of the ranks from `first` on.
    pub(crate) fn adder(&self, first: usize, owner: usize) -> usize {
        first + owner % self.fold
    }

    /// Returns the place of the sums of an area, in this rank's arena.
    pub(crate) fn place(&self, area: Area) -> Buf<'p> {
        let (start, len) = match area {
            Area::Ends => (0, self.ends),
            Area::Layer(layer) => (self.ends + u64::from(layer) % SLOTS * self.widest, self.widest),
        };
        self.sums.slice(start as usize, len as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_arch::ModelSpec;

    #[test]
    fn a_rank_s_sums_are_a_part_of_a_layer() {
        let spec = ModelSpec::preset("qwen2.5-0.5b").unwrap();
        let table = ParamTable::new(&spec, &plimsoll_cuda::LAYOUTS, DType::Bf16);
        for (ranks, near, fold) in [(4, 2, 2), (16, 8, 8), (16, 8, 4), (64, 8, 8)] {
            let Sizes { ends, widest } = sizes(&table, ranks, near, fold);
            let of = |elements: u64| elements as f64 / fold as f64 * (ranks - near) as f64 / ranks as f64;
            // Buckets do not end where layers do, so an owner may have more of a layer than others.
            let layer = of(table.layer_run(0).elements);
            assert!((layer * 0.9..layer * 1.9).contains(&(widest as f64)), "{ranks} {near} {fold}: {widest}");
            let embed = of(table.find(ParamKind::Embed, 0).expect("an embedding").elements);
            assert!((embed * 0.9..embed * 1.1).contains(&(ends as f64)), "{ranks} {near} {fold}: {ends}");
        }
    }
}
