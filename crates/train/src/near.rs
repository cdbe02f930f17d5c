//! Sums that ranks of a host form for owners on other hosts; see `levels`.

use crate::chain::{Links, Part, Rows};
use crate::levels::{Area, Levels};
use crate::optimizer::Optimizer;
use plimsoll_arch::ParamKind;
use plimsoll_device::{Device, OwnedRun, Run};
use plimsoll_model::ParamTable;

impl Optimizer<'_> {
    /// Returns the parts that are folded with this rank's, which it adds for others.
    fn folded_here<'x, 'p>(&self, links: &Links<'x, 'p>, levels: Levels<'p>) -> &'x [Part<'p>] {
        let first = levels.first_of(self.share().rank).min(links.parts.len());
        &links.parts[first..(first + levels.fold).min(links.parts.len())]
    }

    /// Adds a fold's parts of a layer, or of what follows the layers, for owners on other hosts, if hosts fold.
    pub fn fold_near(&self, dev: &dyn Device, links: &Links<'_, '_>, (area, within): (Area, Run)) {
        let Some(levels) = links.levels else { return };
        let parts = self.folded_here(links, levels);
        if parts.is_empty() {
            return;
        }
        let sums = levels.place(area);
        let mut here = Vec::with_capacity(parts.len());
        for (_, OwnedRun { run, at }) in self.added_by(levels, self.share().rank, within) {
            here.clear();
            for part in parts {
                let there = part.elements(run);
                let slot = part.of.zip(links.landing).map(|(rank, landing)| landing.slot(rank));
                here.push(slot.map_or(there, |slot| {
                    let slot = slot.slice(0, there.len());
                    dev.accumulate(there, slot, false);
                    slot
                }));
            }
            dev.fold(&here, sums.slice(at as usize, run.elements as usize), false);
        }
    }

    /// Adds a fold's parts of the embedding for owners on other hosts, after `take_heads`, if hosts fold and it is
    /// trained.
    pub fn fold_embed_near(&self, dev: &dyn Device, table: &ParamTable, links: &Links<'_, '_>) {
        let (Some(levels), Some(embed)) = (links.levels, table.find(ParamKind::Embed, 0)) else { return };
        let parts = self.folded_here(links, levels);
        if parts.is_empty() {
            return;
        }
        let within = Run { start: embed.offset, elements: embed.elements };
        let added = self.added_by(levels, self.share().rank, within).map(|(_, owned)| owned);
        let mut owned: Vec<OwnedRun> = added.collect();
        owned.sort_unstable_by_key(|owned| owned.run.start);
        let first = levels.first_of(self.share().rank);
        for (index, part) in parts.iter().enumerate() {
            let ids = links.landing.and_then(|landing| landing.ids(first + index));
            let rows = Rows { d_input: part.there(part.d_input), ids };
            let to = (levels.place(Area::Ends), index > 0);
            self.add_embed(dev, table, (*part, None, rows), &owned, to);
        }
    }
}
