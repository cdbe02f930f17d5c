//! The chain: each owner adds the partial gradients of micro-batches in their order, wherever they were computed.
//!
//! A partial gradient is what a micro-batch adds to the gradient: of every parameter one sum, but of the embedding the sums of its
//! tokens' rows, which are added after what it gets as the head. So the chain gives the bits that one process accumulates.

use crate::optimizer::Optimizer;
use crate::partial::Partial;
use crate::share::{Share, landing_elements};
use plimsoll_base::{DType, Phase, PhaseSet, Result};
use plimsoll_device::{Device, MatrixLayout, Owned, Run, portions};
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

/// The regions of a role for what arrives of other ranks on a card, which copies before it adds: `ROLE.landing`, `ROLE.heads`,
/// `ROLE.row_ids`, and `ROLE.rows` if some are on other hosts. `rows`: of a micro-batch, at most, each of `hidden` numbers; `dtype`: of
/// partial gradients.
///
/// Errors: `size-overflow`.
pub fn landing_layout(
    role: &str,
    table: &ParamTable,
    pool: Pool,
    phase: Phase,
    dtype: DType,
    ranks: (usize, Spread),
    (rows, hidden): (usize, u32),
) -> Result<Layout> {
    let (ranks, spread) = ranks;
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
        if spread == Spread::Hosts {
            add("rows", [rows as u64, hidden.into()], DType::F32)?;
        }
    }
    Ok(layout)
}

/// Over what ranks are spread: which of them a card reads in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All of one host.
    Host,
    Hosts,
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
    /// The rows of one rank, where some are on other hosts.
    rows: Option<Buf<'p>>,
}

impl<'p> Landing<'p> {
    /// Resolves the regions of `layout`; `None` where others' memory is read in place.
    pub fn bind(phase: &InPhase<'p>, role: &str) -> Option<Landing<'p>> {
        let slots = phase.get(&format!("{role}.landing"))?;
        let of = |what: &str| phase.get(&format!("{role}.{what}"));
        Some(Landing { slots, heads: of("heads"), row_ids: of("row_ids"), rows: of("rows") })
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
        let inside = |rank: usize| self.owned_by(rank).iter().filter_map(move |owned| owned.inside(within));
        let rank = self.share().rank;
        let all: Vec<Owned> = inside(rank).collect();
        let bytes = |owned: &Owned| {
            parts.iter().map(|part| part.elements(owned.run.start, owned.run.elements).bytes()).sum()
        };
        let mut portions = portions(&all, bytes);
        let mut brought = 0;
        for turn in 0..self.turns(dev, &|rank| inside(rank).count()) {
            if turn == brought && dev.trade().is_none() {
                let portion = portions.next().unwrap_or_default();
                let runs = portion.iter().flat_map(|owned| parts.iter().map(move |part| (part, owned.run)));
                dev.prefetch(&mut runs.map(|(part, run)| part.elements(run.start, run.elements)));
                brought += portion.len();
            }
            let own = all.get(turn).copied();
            let slot = |part: &Part<'_>, len| Some(self.slot_of(landing?.slots, part.of?).slice(0, len));
            let there = |part: &Part<'p>, run: Run| part.elements(run.start, run.elements);
            let copies = own.into_iter().flat_map(|Owned { run, .. }| {
                let slot = move |part| slot(part, run.elements as usize);
                self.in_turn(parts).filter_map(move |part| Some((there(part, run), slot(part)?)))
            });
            let given = self.given(dev, parts, &|mine, rank| {
                inside(rank).nth(turn).map(|Owned { run, .. }| there(mine, run))
            });
            dev.exchange(&copies.collect::<Vec<_>>(), &given);
            let Some(Owned { run, at }) = own else { continue };
            let len = run.elements as usize;
            here.clear();
            here.extend(parts.iter().map(|part| slot(part, len).unwrap_or_else(|| there(part, run))));
            dev.fold(&here, shard.slice(at as usize, len), add);
        }
    }

    /// Returns the turns of an exchange in which each rank takes one of its `runs`: those of the rank with the most, where others give what
    /// it takes.
    fn turns(&self, dev: &dyn Device, runs: &dyn Fn(usize) -> usize) -> usize {
        let Share { rank, ranks } = self.share();
        match dev.trade() {
            None => runs(rank),
            Some(_) => (0..ranks).map(runs).max().unwrap_or(0),
        }
    }

    /// Returns what other ranks take of this rank's part, if it has one among `parts` and the device is to give it.
    fn given<'p>(
        &self,
        dev: &dyn Device,
        parts: &[Part<'p>],
        of: &dyn Fn(&Part<'p>, usize) -> Option<Buf<'p>>,
    ) -> Vec<(usize, Buf<'p>)> {
        let mine = parts.iter().find(|part| part.of.is_none() && dev.trade().is_some());
        let others = mine.into_iter().flat_map(|mine| self.share().others().map(move |rank| (rank, mine)));
        others.filter_map(|(rank, mine)| Some((rank, of(mine, rank)?))).collect()
    }

    /// Copies what other ranks' partial gradients have of the embedding's part, once their heads are there, and all ranks' tokens of
    /// rows, for `fold_embed`. Parts have as many rows as fit.
    pub fn take_heads<'p>(&self, dev: &dyn Device, parts: &[Part<'p>], landing: Landing<'p>) {
        let ids = |part: &Part<'p>| {
            Some((part.there(part.ids), self.ids_of(*part, landing)?.slice(0, part.ids.len())))
        };
        let (others, own): (Vec<&Part<'p>>, Vec<_>) = parts.iter().partition(|part| part.of.is_some());
        own.into_iter().filter_map(ids).for_each(|(from, to)| dev.accumulate(from, to, false));
        let taken: Vec<_> = others.into_iter().filter_map(ids).collect();
        dev.exchange(&taken, &self.given(dev, parts, &|mine, _| landing.row_ids.map(|_| mine.ids)));
        if landing.heads.is_none() {
            return;
        }
        let rank = self.share().rank;
        let there = |part: &Part<'p>, Owned { run, .. }| part.elements(run.start, run.elements);
        for turn in 0..self.turns(dev, &|rank| self.owned_of_embed(rank).len()) {
            let own = self.owned_of_embed(rank).get(turn);
            let copies = own.into_iter().flat_map(|owned| {
                let first = (owned.at - self.owned_of_embed(rank)[0].at) as usize;
                let to = move |part: &Part<'p>| {
                    Some(self.head_of(*part, landing)?.slice(first, owned.run.elements as usize))
                };
                self.in_turn(parts).filter_map(move |part| Some((there(part, *owned), to(part)?)))
            });
            let given = self.given(dev, parts, &|mine, rank| {
                self.owned_of_embed(rank).get(turn).map(|owned| there(mine, *owned))
            });
            dev.exchange(&copies.collect::<Vec<_>>(), &given);
        }
    }

    /// Adds a partial gradient of the embedding, after those before it: what it gets as the head, if it is one, then its rows. Does
    /// nothing where that is frozen.
    pub fn fold_embed<'p>(
        &self,
        dev: &dyn Device,
        table: &ParamTable,
        part: Part<'p>,
        landing: Option<Landing<'p>>,
        shard: Buf<'_>,
        add: bool,
    ) {
        let Some(embed) = table.find(ParamKind::Embed, 0) else { return };
        let is_tied = table.is_tied();
        let head = landing.and_then(|landing| self.head_of(part, landing));
        let own = self.owned_of_embed(self.share().rank);
        for Owned { run, at } in own {
            let len = run.elements as usize;
            let dst = shard.slice(*at as usize, len);
            match (is_tied, head, add) {
                (true, Some(head), _) => {
                    let first = (at - own[0].at) as usize;
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
        let mut d_input = part.there(part.d_input);
        if let Some(rows) = landing.and_then(|landing| landing.rows) {
            let to = rows.slice(0, d_input.len());
            let taken: Vec<_> = part.of.map(|_| (d_input, to)).into_iter().collect();
            dev.exchange(&taken, &self.given(dev, &[part], &|mine, _| Some(mine.d_input)));
            d_input = if part.of.is_some() { to } else { d_input };
        }
        dev.embed_backward_part(d_input, ids, embed.k as usize, part.layout, own, shard);
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
