//! The chain: each owner adds the partial gradients of micro-batches in their order, wherever they were computed.
//!
//! A partial gradient is what a micro-batch adds to the gradient: of every parameter one sum, but of the embedding the sums of its
//! tokens' rows, which are added after what it gets as the head. So the chain gives the bits that one process accumulates.

use crate::optimizer::Optimizer;
use crate::partial::Partial;
use crate::share::{Share, landing_elements};
use plimsoll_base::{DType, Phase, PhaseSet, Result};
use plimsoll_device::{Device, MatrixLayout, Owned, Run};
use plimsoll_memory::{Buf, InPhase, Layout, Pool};
use plimsoll_model::{ParamKind, ParamTable};

/// The partial gradient of a micro-batch, as `backward_part` leaves it in the arena of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Part<'p> {
    /// Without the embedding's rows.
    pub grads: Partial<'p>,
    /// How its matrices lie.
    pub layout: MatrixLayout,
    /// [M, h] f32: the gradient of the first layer's input, row by row.
    pub d_input: Buf<'p>,
    /// [M] u32: the token of each row.
    pub ids: Buf<'p>,
    /// The rank in whose arena it lies; none for this one's.
    pub of: Option<usize>,
}

impl<'p> Part<'p> {
    fn there(&self, buf: Buf<'p>) -> Buf<'p> {
        self.of.map_or(buf, |rank| buf.of_rank(rank))
    }

    /// Returns elements of the flat buffer, where they are: of one layer or outside of layers.
    fn elements(&self, start: u64, elements: u64) -> Buf<'p> {
        self.there(self.grads.place(start, elements))
    }
}

/// The regions of a role for what arrives of other ranks on a card, which copies before it adds: `ROLE.landing`, `ROLE.heads` and
/// `ROLE.row_ids`. `rows`: of a micro-batch, at most; `dtype`: of partial gradients.
///
/// Errors: `size-overflow`.
pub fn landing_layout(
    role: &str,
    table: &ParamTable,
    pool: Pool,
    phase: Phase,
    dtype: DType,
    ranks: usize,
    rows: usize,
) -> Result<Layout> {
    let mut layout = Layout::new();
    let (largest, of_embed) = landing_elements(table, ranks);
    let mut add = |name: &str, shape: [u64; 2], dtype: DType| {
        layout.arena(&format!("{role}.{name}"), "train", pool, PhaseSet::of(&[phase]), &shape, dtype)
    };
    add("landing", [ranks as u64 - 1, largest], dtype)?;
    if table.is_tied() {
        add("heads", [ranks as u64 - 1, of_embed], dtype)?;
    }
    if table.find(ParamKind::Embed, 0).is_some() {
        add("row_ids", [ranks as u64, rows as u64], DType::U32)?;
    }
    Ok(layout)
}

/// Where pieces of other ranks' partial gradients arrive, on a device that copies them before it adds them.
#[derive(Clone, Copy, Debug)]
pub struct Landing<'p> {
    /// A slot for each other rank, by rank, of the largest run that one owns.
    slots: Buf<'p>,
    /// What each other rank has of the embedding's part, by rank, where the embedding is the head too: rows are added between them.
    heads: Option<Buf<'p>>,
    /// Every rank's tokens of rows, by rank, this one's too: its next pass writes them while rows are still added.
    row_ids: Option<Buf<'p>>,
}

impl<'p> Landing<'p> {
    /// Resolves the regions of `layout`; `None` where others' memory is read in place.
    pub fn bind(phase: &InPhase<'p>, role: &str) -> Option<Landing<'p>> {
        let slots = phase.get(&format!("{role}.landing"))?;
        let of = |what: &str| phase.get(&format!("{role}.{what}"));
        Some(Landing { slots, heads: of("heads"), row_ids: of("row_ids") })
    }
}

impl Optimizer<'_> {
    /// Adds partial gradients to the shard, one after the other, or begins the chain with the first unless `add`: the elements in
    /// `within`, without the embedding's.
    pub fn fold_run<'p>(
        &self,
        dev: &dyn Device,
        parts: &[Part<'p>],
        landing: Option<Landing<'p>>,
        shard: Buf<'_>,
        add: bool,
        within: Run,
    ) {
        let mut here: Vec<Buf<'_>> = Vec::with_capacity(parts.len());
        let owned = self.owned().iter().filter_map(|owned| owned.inside(within));
        let all = owned.flat_map(|Owned { run, .. }| parts.iter().map(move |part| (part, run)));
        dev.prefetch(&mut all.map(|(part, run)| part.elements(run.start, run.elements)));
        for Owned { run, at } in self.owned().iter().filter_map(|owned| owned.inside(within)) {
            let len = run.elements as usize;
            let place = |part: &Part<'_>| Some(self.slot_of(landing?.slots, part.of?).slice(0, len));
            let there = |part: &Part<'p>| part.elements(run.start, run.elements);
            for part in self.in_turn(parts) {
                if let Some(slot) = place(part) {
                    dev.accumulate(there(part), slot, false);
                }
            }
            here.clear();
            here.extend(parts.iter().map(|part| place(part).unwrap_or_else(|| there(part))));
            dev.fold(&here, shard.slice(at as usize, len), add);
        }
    }

    /// Copies what other ranks' partial gradients have of the embedding's part, once their heads are there, and all ranks' tokens of
    /// rows, for `fold_embed`. Parts have as many rows as fit.
    pub fn take_heads(&self, dev: &dyn Device, parts: &[Part<'_>], landing: Landing<'_>) {
        for part in parts {
            let Some(ids) = self.ids_of(*part, landing) else { continue };
            dev.accumulate(part.there(part.ids), ids.slice(0, part.ids.len()), false);
        }
        for part in self.in_turn(parts) {
            let Some(head) = self.head_of(*part, landing) else { continue };
            for Owned { run, at } in self.owned_of_embed() {
                let first = (at - self.owned_of_embed()[0].at) as usize;
                let there = part.elements(run.start, run.elements);
                dev.accumulate(there, head.slice(first, run.elements as usize), false);
            }
        }
    }

    /// Adds a partial gradient of the embedding, after those before it: what it gets as the head, if it is one, then its rows. Does
    /// nothing where that is frozen.
    pub fn fold_embed(
        &self,
        dev: &dyn Device,
        table: &ParamTable,
        part: Part<'_>,
        landing: Option<Landing<'_>>,
        shard: Buf<'_>,
        add: bool,
    ) {
        let Some(embed) = table.find(ParamKind::Embed, 0) else { return };
        let is_tied = table.is_tied();
        let head = landing.and_then(|landing| self.head_of(part, landing));
        for Owned { run, at } in self.owned_of_embed().iter() {
            let len = run.elements as usize;
            let dst = shard.slice(*at as usize, len);
            match (is_tied, head, add) {
                (true, Some(head), _) => {
                    let first = (at - self.owned_of_embed()[0].at) as usize;
                    dev.accumulate(head.slice(first, len), dst, add);
                }
                (true, None, _) => {
                    dev.accumulate(part.elements(run.start, run.elements), dst, add);
                }
                // Only rows are added to it.
                (false, _, true) => {}
                (false, _, false) => dev.zero(dst),
            }
        }
        let end = embed.offset + embed.elements;
        let padding = Run { start: end, elements: table.layer_run(0).start - end };
        self.fold_run(dev, &[part], landing, shard, add, padding);
        let copied = landing.and_then(|landing| self.ids_of(part, landing));
        let ids = copied.map_or(part.there(part.ids), |ids| ids.slice(0, part.ids.len()));
        let d_input = part.there(part.d_input);
        dev.embed_backward_part(d_input, ids, embed.k as usize, part.layout, self.owned_of_embed(), shard);
    }

    /// Returns the parts of other ranks in the order in which this one copies them. They are added in the order of `parts`.
    fn in_turn<'x, 'p>(&self, parts: &'x [Part<'p>]) -> impl Iterator<Item = &'x Part<'p>> + use<'x, 'p> {
        self.share().others().filter_map(|rank| parts.iter().find(|part| part.of == Some(rank)))
    }

    /// Returns where `take_heads` leaves what it copies of a part; `None` of this rank's own.
    fn head_of<'l>(&self, part: Part<'_>, landing: Landing<'l>) -> Option<Buf<'l>> {
        Some(self.slot_of(landing.heads?, part.of?))
    }

    /// Returns where `take_heads` leaves a rank's tokens of rows.
    fn ids_of<'l>(&self, part: Part<'_>, landing: Landing<'l>) -> Option<Buf<'l>> {
        let (ids, Share { rank, ranks }) = (landing.row_ids?, self.share());
        Some(ids.part(part.of.unwrap_or(rank), ids.len() / ranks))
    }

    /// Returns the part of a region that is another rank's.
    fn slot_of<'l>(&self, slots: Buf<'l>, of: usize) -> Buf<'l> {
        let Share { rank, ranks } = self.share();
        slots.part(of - usize::from(of > rank), slots.len() / (ranks - 1))
    }
}
