//! The chain: each owner adds the partial gradients of micro-batches in their order, wherever they were computed.
//!
//! A partial gradient is what a micro-batch adds to the gradient: one sum for each parameter, and for the embedding the
//! sums of its tokens' rows, added after its sum as the head. So the chain gives the bits that one process accumulates.

use crate::landing::Landing;
use crate::levels::{Area, Levels};
use crate::optimizer::Optimizer;
use crate::partial::Partial;
use crate::share::Share;
use crate::sums::Sum;
use plimsoll_arch::ParamKind;
use plimsoll_device::{Device, MatrixLayout, OwnedRun, Run, portions};
use plimsoll_memory::Buf;
use plimsoll_model::{Param, ParamTable};

/// The partial gradient of a micro-batch, as `backward_part` leaves it in the arena of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Part<'p> {
    /// Gradients without the embedding's rows.
    pub grads: Partial<'p>,
    /// Layout of its matrices.
    pub layout: MatrixLayout,
    /// [M, h] f32: the gradient of the first layer's input, row by row.
    pub d_input: Buf<'p>,
    /// [M] u32: the token of each row.
    pub ids: Buf<'p>,
    /// Rank whose arena holds it; none for this rank's.
    pub of: Option<usize>,
}

impl<'p> Part<'p> {
    pub(crate) fn there(&self, buf: Buf<'p>) -> Buf<'p> {
        self.of.map_or(buf, |rank| buf.of_rank(rank))
    }

    /// Returns elements of the flat buffer, in their rank's arena: of one layer or outside of layers.
    pub(crate) fn elements(&self, run: Run) -> Buf<'p> {
        self.there(self.grads.place(run.start, run.elements))
    }
}

/// The partial gradients of one round of all ranks, and the sum they are added to.
#[derive(Clone, Copy, Debug)]
pub struct Links<'x, 'p> {
    /// Parts of the ranks that have one, by rank: the first ranks.
    pub parts: &'x [Part<'p>],
    /// Micro-batch of the first part.
    pub first: usize,
    pub sum: Sum<'p>,
    /// Arrival slots for parts of other ranks, on a device that copies before it adds.
    pub landing: Option<Landing<'p>>,
    /// Sums of whole hosts, if hosts fold.
    pub levels: Option<Levels<'p>>,
}

/// One summand of some elements that an owner adds.
#[derive(Clone, Copy)]
struct Addend<'p> {
    there: Buf<'p>,
    /// Rank of its first micro-batch.
    first: usize,
    /// Rank whose arena holds it; none for this rank's.
    of: Option<usize>,
    /// Index among the sums that other hosts have folded, if it is one.
    folded: Option<usize>,
}

/// The rows of an embedding's gradient.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'p> {
    /// [M, h] f32.
    pub d_input: Buf<'p>,
    /// The token of each row, if they were copied.
    pub ids: Option<Buf<'p>>,
}

/// A run of elements that an owner adds at once.
struct Turn<'p> {
    own: OwnedRun,
    addends: Vec<Addend<'p>>,
}

impl Links<'_, '_> {
    /// True if an owner takes a rank's gradient itself, not a sum that it is folded into.
    fn is_taken_as_it_is(&self, rank: usize, owner: usize) -> bool {
        self.levels.is_none_or(|levels| levels.are_near(rank, owner))
    }
}

impl Optimizer<'_> {
    /// Adds partial gradients to the sum, one after the other, for the elements of `within` outside the embedding.
    /// Where hosts fold, all ranks must have called `fold_near` for these elements before.
    pub fn fold_run(&self, dev: &dyn Device, links: &Links<'_, '_>, at: (Area, Run)) {
        let Links { first, sum, .. } = *links;
        let mine = self.turns(links, at);
        let given = dev.trade().map_or(Vec::new(), |_| self.given_in_turns(links, at));
        let bytes = |turn: &Turn<'_>| turn.addends.iter().map(|addend| addend.there.bytes()).sum();
        let mut portions = portions(&mine, bytes);
        let mut brought = 0;
        for index in 0..mine.len().max(given.len()) {
            if index == brought && dev.trade().is_none() {
                let portion = portions.next().unwrap_or_default();
                dev.prefetch(&mut portion.iter().flat_map(|turn| &turn.addends).map(|addend| addend.there));
                brought += portion.len();
            }
            let turn = mine.get(index);
            let mut copies: Vec<_> = turn
                .into_iter()
                .flat_map(|turn| &turn.addends)
                .filter_map(|addend| Some((addend.there, self.slot(links, addend)?)))
                .collect();
            copies.sort_by_key(|(from, _)| from.rank().map(|rank| self.share().steps_to(rank)));
            dev.exchange(&copies, given.get(index).map_or(&[], Vec::as_slice));
            let Some(Turn { own, addends }) = turn else { continue };
            let here: Vec<Buf<'_>> =
                addends.iter().map(|addend| self.slot(links, addend).unwrap_or(addend.there)).collect();
            let mut at = 0;
            while let Some(addend) = addends.get(at) {
                let parts = addends[at..].iter().take_while(|addend| addend.folded.is_none()).count();
                match addend.folded {
                    Some(_) => sum.add_folded(dev, here[at], first + addend.first, own.at),
                    None => sum.add(dev, &here[at..at + parts], first + addend.first, own.at),
                }
                at += parts.max(1);
            }
        }
    }

    /// Returns where an addend is copied to; `None` if it is read in place.
    fn slot<'p>(&self, links: &Links<'_, 'p>, addend: &Addend<'p>) -> Option<Buf<'p>> {
        let (landing, rank) = (links.landing?, addend.of?);
        let slot = match (addend.folded, links.levels) {
            (Some(place), Some(levels)) => landing.folded(place, levels.folds_elsewhere(self.share())),
            _ => landing.slot(rank),
        };
        Some(slot.slice(0, addend.there.len()))
    }

    /// Returns what this rank adds of `within`, one run of its elements after the other.
    fn turns<'p>(&self, links: &Links<'_, 'p>, (area, within): (Area, Run)) -> Vec<Turn<'p>> {
        let rank = self.share().rank;
        let own = self.owned_by(rank).iter().filter_map(|owned| owned.inside(within));
        let mut turns: Vec<Turn<'p>> = own.map(|own| Turn { own, addends: Vec::new() }).collect();
        let mut folded = 0;
        for (first, part) in links.parts.iter().enumerate() {
            if links.is_taken_as_it_is(first, rank) {
                for Turn { own, addends } in &mut turns {
                    let there = part.elements(own.run);
                    addends.push(Addend { there, first, of: part.of, folded: None });
                }
            } else if let Some(levels) = links.levels.filter(|_| first.is_multiple_of(links.sum.fold)) {
                let of = levels.adder(first, rank);
                let sums = self.sums_of(levels, of, rank, (area, within));
                for (turn, there) in turns.iter_mut().zip(sums) {
                    turn.addends.push(Addend { there, first, of: Some(of), folded: Some(folded) });
                }
                folded += 1;
            }
        }
        turns
    }

    /// Returns what other ranks take of this one in each of their turns, for as many turns as any rank has.
    fn given_in_turns<'p>(
        &self,
        links: &Links<'_, 'p>,
        (area, within): (Area, Run),
    ) -> Vec<Vec<(usize, Buf<'p>)>> {
        let Share { rank, ranks } = self.share();
        let inside = |rank: usize| self.owned_by(rank).iter().filter_map(move |owned| owned.inside(within));
        let turns = (0..ranks).map(|rank| inside(rank).count()).max().unwrap_or(0);
        let mut given = vec![Vec::new(); turns];
        for owner in self.share().others() {
            let of_owner: Vec<Buf<'p>> = match (links.is_taken_as_it_is(rank, owner), links.levels) {
                (false, Some(levels)) if levels.adds(rank, owner, links.parts.len()) => {
                    self.sums_of(levels, rank, owner, (area, within))
                }
                (true, _) => {
                    let mine = links.parts.get(rank);
                    let elements = |owned: OwnedRun| Some(mine?.elements(owned.run));
                    inside(owner).filter_map(elements).collect()
                }
                _ => Vec::new(),
            };
            given.iter_mut().zip(of_owner).for_each(|(turn, buf)| turn.push((owner, buf)));
        }
        given
    }

    /// Returns what other ranks take of this rank's part, if it has one and the device must give it.
    fn given<'p>(
        &self,
        dev: &dyn Device,
        links: &Links<'_, 'p>,
        of: &dyn Fn(&Part<'p>, usize) -> Option<Buf<'p>>,
    ) -> Vec<(usize, Buf<'p>)> {
        let rank = self.share().rank;
        let mine = links.parts.get(rank).filter(|_| dev.trade().is_some());
        let Some(mine) = mine else { return Vec::new() };
        let takers = self.share().others().filter(|owner| links.is_taken_as_it_is(rank, *owner));
        takers.filter_map(|owner| Some((owner, of(mine, owner)?))).collect()
    }

    /// Returns what a rank adds of a run for owners on other hosts: owners, elements, and their places among its sums.
    pub(crate) fn added_by(
        &self,
        levels: Levels<'_>,
        adder: usize,
        within: Run,
    ) -> impl Iterator<Item = (usize, OwnedRun)> {
        let mut at = 0;
        let ranks = self.share().ranks;
        let owners = (adder % levels.fold..ranks).step_by(levels.fold);
        let far = owners.filter(move |owner| !levels.are_near(*owner, adder));
        let inside = far.flat_map(move |owner| {
            let all = self.owned_by(owner);
            let first = all.partition_point(|owned| owned.run.end() <= within.start);
            all[first..].iter().map_while(move |owned| owned.inside(within)).map(move |owned| (owner, owned))
        });
        inside.map(move |(owner, OwnedRun { run, .. })| {
            at += run.elements;
            (owner, OwnedRun { run, at: at - run.elements })
        })
    }

    /// Returns where `adder` has the sums of this rank's elements of a run, in their order.
    pub(crate) fn sums_of<'p>(
        &self,
        levels: Levels<'p>,
        adder: usize,
        owner: usize,
        (area, within): (Area, Run),
    ) -> Vec<Buf<'p>> {
        let sums = levels.place(area);
        let sums = if adder == self.share().rank { sums } else { sums.of_rank(adder) };
        let place = |OwnedRun { run, at }: OwnedRun| sums.slice(at as usize, run.elements as usize);
        let of_owner = self.added_by(levels, adder, within).filter(|(of, _)| *of == owner);
        of_owner.map(|(_, owned)| place(owned)).collect()
    }

    /// Copies the embedding's part of other ranks' partial gradients, once their heads are done, and all ranks' tokens
    /// of rows, for `fold_embed`, from the ranks that this one takes directly. Parts have as many rows as fit. Does
    /// nothing where others' memory is read in place.
    pub fn take_heads(&self, dev: &dyn Device, links: &Links<'_, '_>) {
        let Some(landing) = links.landing else { return };
        let rank = self.share().rank;
        let ids = |of: usize| Some((links.parts.get(of).map(|part| part.there(part.ids))?, landing.ids(of)?));
        let ids = |of| ids(of).map(|(from, to)| (from, to.slice(0, from.len())));
        if let Some((from, to)) = ids(rank) {
            dev.accumulate(from, to, false);
        }
        let others: Vec<usize> =
            self.share().others().filter(|of| links.is_taken_as_it_is(*of, rank)).collect();
        let taken: Vec<_> = others.iter().filter_map(|of| ids(*of)).collect();
        dev.exchange(&taken, &self.given(dev, links, &|mine, _| landing.ids(rank).map(|_| mine.ids)));
        if !landing.has_heads() {
            return;
        }
        let of = |owner: usize| self.owned_of_embed(owner);
        let turns = match dev.trade() {
            Some(_) => (0..self.share().ranks).map(|owner| of(owner).len()).max().unwrap_or(0),
            None => of(rank).len(),
        };
        for turn in 0..turns {
            let own = of(rank).get(turn);
            let copies = own.into_iter().flat_map(|owned| {
                let first = (owned.at - of(rank)[0].at) as usize;
                others.iter().filter_map(move |other| {
                    let head = landing.head(*other)?.slice(first, owned.run.elements as usize);
                    Some((links.parts.get(*other)?.elements(owned.run), head))
                })
            });
            let given = self
                .given(dev, links, &|mine, owner| of(owner).get(turn).map(|owned| mine.elements(owned.run)));
            dev.exchange(&copies.collect::<Vec<_>>(), &given);
        }
    }

    /// Adds all partial gradients of the embedding in order: for each its sum as the head, if it is one, then its rows.
    /// Does nothing if it is frozen. Where hosts fold, all ranks must have called `fold_embed_near` before.
    pub fn fold_embed(&self, dev: &dyn Device, table: &ParamTable, links: &Links<'_, '_>) {
        let Some(embed) = table.find(ParamKind::Embed, 0) else { return };
        let Links { parts, first, sum, landing, levels } = *links;
        let rank = self.share().rank;
        let own = self.owned_of_embed(rank);
        for (of, part) in parts.iter().enumerate() {
            if let Some(levels) = levels.filter(|_| of.is_multiple_of(sum.fold)) {
                self.exchange_folded_embed(dev, embed, links, (of, levels));
            }
            if !links.is_taken_as_it_is(of, rank) {
                continue;
            }
            let mut d_input = part.there(part.d_input);
            if let Some(rows) = landing.and_then(|landing| landing.rows) {
                let to = rows.slice(0, d_input.len());
                let taken: Vec<_> = part.of.map(|_| (d_input, to)).into_iter().collect();
                let given = self.given(dev, links, &|mine, _| part.of.is_none().then_some(mine.d_input));
                dev.exchange(&taken, &given);
                d_input = if part.of.is_some() { to } else { d_input };
            }
            let head = landing.and_then(|landing| landing.head(part.of?));
            let rows = Rows { d_input, ids: landing.and_then(|landing| landing.ids(of)) };
            self.add_embed(dev, table, (*part, head, rows), own, sum.target(first + of));
            own.iter()
                .for_each(|OwnedRun { run, at }| sum.close(dev, first + of, *at, run.elements as usize));
        }
        let end = embed.offset + embed.elements;
        let padding = Run { start: end, elements: table.layer_run(0).start - end };
        let own = self.owned_by(rank).iter().filter_map(|owned| owned.inside(padding));
        own.for_each(|OwnedRun { run, at }| dev.zero(sum.shard.slice(at as usize, run.elements as usize)));
    }

    /// Adds a sum of the embedding that ranks from `of` on have folded and give, if they are on another host.
    fn exchange_folded_embed(
        &self,
        dev: &dyn Device,
        embed: &Param,
        links: &Links<'_, '_>,
        (of, levels): (usize, Levels<'_>),
    ) {
        let rank = self.share().rank;
        let at = (Area::Ends, Run { start: embed.offset, elements: embed.elements });
        let takes = !links.is_taken_as_it_is(of, rank);
        let adder = levels.adder(of, rank);
        let there = if takes { self.sums_of(levels, adder, rank, at) } else { Vec::new() };
        let mut here = there.clone();
        if let Some(landing) = links.landing {
            let mut free = landing.folded_embed();
            for buf in &mut here {
                *buf = free.slice(0, buf.len());
                free = free.slice(buf.len(), free.len() - buf.len());
            }
            let mut given = Vec::new();
            if dev.trade().is_some() && levels.first_of(rank) == of {
                let owners =
                    self.share().others().filter(|owner| levels.adds(rank, *owner, links.parts.len()));
                let sums =
                    |owner| self.sums_of(levels, rank, owner, at).into_iter().map(move |buf| (owner, buf));
                given.extend(owners.flat_map(sums));
            }
            dev.exchange(&there.into_iter().zip(here.iter().copied()).collect::<Vec<_>>(), &given);
        }
        for (own, sum) in self.owned_of_embed(rank).iter().zip(here) {
            links.sum.add_folded(dev, sum, links.first + of, own.at);
        }
    }

    /// Adds a partial gradient of the embedding to `to`, or writes it unless `add`: its sum as the head, if it is one,
    /// then its rows. `owned`: the elements, by their places in `to`. `head`: copied elements, from the first on.
    pub(crate) fn add_embed(
        &self,
        dev: &dyn Device,
        table: &ParamTable,
        (part, head, rows): (Part<'_>, Option<Buf<'_>>, Rows<'_>),
        owned: &[OwnedRun],
        (to, add): (Buf<'_>, bool),
    ) {
        let Some(embed) = table.find(ParamKind::Embed, 0) else { return };
        for OwnedRun { run, at } in owned {
            let len = run.elements as usize;
            let dst = to.slice(*at as usize, len);
            match (table.is_tied(), head, add) {
                (true, Some(head), _) => {
                    let first = (at - owned[0].at) as usize;
                    dev.accumulate(head.slice(first, len), dst, add);
                }
                (true, None, _) => dev.accumulate(part.elements(*run), dst, add),
                // Only rows are added to it.
                (false, _, true) => {}
                (false, _, false) => dev.zero(dst),
            }
        }
        let ids = rows.ids.map_or(part.there(part.ids), |ids| ids.slice(0, part.ids.len()));
        dev.embed_backward_part(rows.d_input, ids, embed.k as usize, part.layout, owned, to);
    }
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod tests;
