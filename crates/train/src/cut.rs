//! The cut of an update's sequences into micro-batches.
//!
//! The order in which gradients are summed follows from it, so it depends on the sequences and the run file alone, not
//! on how many processes share the work. Their number divides the number of micro-batches where that is a multiple of
//! `train.cut_multiple`, and each has about the same work.

use crate::packing::{Need, Packer, Packing, Parts, Sequence, need, unit};
use plimsoll_base::Result;
use std::ops::Range;

/// Options for cutting an update into micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The number of micro-batches is a multiple of this.
    multiple: usize,
    /// Average rows of a micro-batch below which the multiple is halved.
    rows_min: usize,
}

/// Multiple that `"auto"` uses for the number of micro-batches: hosts commonly have that many cards.
const AUTO_MULTIPLE: usize = 8;

impl Cut {
    /// Returns a cut into this multiple whatever the work, if there are as many sequences.
    pub fn multiple(multiple: usize) -> Cut {
        Cut { multiple, rows_min: 0 }
    }

    /// Returns a multiple of 8, or less where micro-batches would have fewer than `rows_min` rows: each reads all
    /// weights, and reads and writes all gradients.
    pub fn auto(rows_min: usize) -> Cut {
        Cut { multiple: AUTO_MULTIPLE, rows_min }
    }

    /// Returns the number of micro-batches where at least `fewest` are needed for `rows` rows.
    pub fn number(&self, fewest: usize, rows: usize) -> usize {
        let halves = std::iter::successors(Some(self.multiple), |multiple| Some(multiple / 2));
        let mut numbers =
            halves.take_while(|multiple| *multiple > 1).map(|multiple| fewest.next_multiple_of(multiple));
        numbers.find(|number| rows >= number * self.rows_min).unwrap_or(fewest)
    }
}

/// The units that are not cut, and their cost.
#[derive(Clone, Copy, Debug)]
pub struct Units {
    pub packing: Packing,
    /// The model's hidden size, which weighs rows against keys.
    pub hidden: u64,
}

/// The contents of one micro-batch so far.
#[derive(Default)]
struct Open {
    need: Need,
    group: Option<usize>,
    cost: u64,
}

impl Open {
    /// Returns this micro-batch with `unit` in it.
    fn with(&self, how: Units, unit: &[Sequence<'_>]) -> Open {
        let group = unit[0].group;
        let more = need(how.packing.heads, unit, self.group == Some(group));
        Open { cost: self.cost + more.cost(how.hidden), need: self.need.plus(&more), group: Some(group) }
    }
}

impl Packer {
    /// Cuts the sequences `which` into contiguous micro-batches: the least number within the limits, rounded up as
    /// `cut` says. The costliest is as cheap as can be. `micro_batch` returns them.
    ///
    /// Errors: `sequence-too-long` when not even one sequence, or group, fits.
    pub fn cut(
        &mut self,
        cut: Cut,
        how: Units,
        sequences: &[Sequence<'_>],
        which: Range<usize>,
    ) -> Result<()> {
        let mut parts = std::mem::take(&mut self.parts);
        let made = self.cut_into(&mut parts, cut, how, sequences, which);
        self.parts = parts;
        made
    }

    fn cut_into(
        &self,
        parts: &mut Parts,
        cut: Cut,
        how: Units,
        sequences: &[Sequence<'_>],
        which: Range<usize>,
    ) -> Result<()> {
        parts.ends.clear();
        parts.costs.clear();
        let walk = Walk { packer: self, how, sequences };
        let (mut fewest, mut whole, mut largest) = (0, Open::default(), 0);
        walk.parts(which.clone(), u64::MAX, &mut |_, _| fewest += 1)?;
        walk.units(which.clone(), &mut |_, unit| {
            whole = whole.with(how, unit);
            largest = largest.max(Open::default().with(how, unit).cost);
        });
        let wanted = cut.number(fewest, whole.need.prompt_rows + whole.need.rows);
        // The least cap that `wanted` parts can keep. With a larger cap no part ends earlier, so no cut has more parts.
        let (mut low, mut high) = (largest.max(whole.cost / wanted.max(1) as u64), u64::MAX);
        let count = |cap: u64| {
            let mut count = 0;
            walk.parts(which.clone(), cap, &mut |_, _| count += 1).map(|()| count)
        };
        if count(low)? <= wanted {
            high = low;
        }
        while low < high {
            // Doubles while the cap is not known to suffice, then halves the distance.
            let middle = if high == u64::MAX { low.saturating_mul(2) } else { low + (high - low) / 2 };
            if count(middle)? <= wanted { high = middle } else { low = middle + 1 }
        }
        walk.parts(which.clone(), high, &mut |end, cost| {
            parts.ends.push(end as u32);
            parts.costs.push(cost);
        })?;
        while parts.ends.len() < wanted && walk.split_costliest(parts, which.start) {}
        Ok(())
    }
}

/// Iterates over sequences by units.
struct Walk<'w, 's> {
    packer: &'w Packer,
    how: Units,
    sequences: &'w [Sequence<'s>],
}

impl Walk<'_, '_> {
    fn units(&self, which: Range<usize>, each: &mut dyn FnMut(usize, &[Sequence<'_>])) {
        let mut at = which.start;
        while at < which.end {
            let unit = unit(self.how.packing, &self.sequences[at..which.end]);
            each(at, unit);
            at += unit.len();
        }
    }

    /// Gives the end and cost of each part, as long as limits and `cap` allow; a unit alone may exceed the cap.
    fn parts(&self, which: Range<usize>, cap: u64, each: &mut dyn FnMut(usize, u64)) -> Result<()> {
        let mut open = Open::default();
        let mut error = None;
        self.units(which.clone(), &mut |at, unit| {
            let with = open.with(self.how, unit);
            if self.packer.holds(&with.need) && (with.cost <= cap || open.group.is_none()) {
                open = with;
                return;
            }
            let alone = Open::default().with(self.how, unit);
            if !self.packer.holds(&alone.need) {
                error.get_or_insert_with(|| self.packer.too_long(unit));
            }
            if open.group.is_some() {
                each(at, open.cost);
            }
            open = alone;
        });
        if open.group.is_some() {
            each(which.end, open.cost);
        }
        error.map_or(Ok(()), Err)
    }

    /// Splits the costliest part of more than one unit into the most even halves. Returns false if there is none.
    fn split_costliest(&self, parts: &mut Parts, first: usize) -> bool {
        let start = |index: usize| if index == 0 { first } else { parts.ends[index - 1] as usize };
        let can_split = |&index: &usize| {
            let (from, to) = (start(index), parts.ends[index] as usize);
            unit(self.how.packing, &self.sequences[from..to]).len() < to - from
        };
        // The first of equal parts.
        let costliest = (0..parts.ends.len()).filter(can_split).rev().max_by_key(|index| parts.costs[*index]);
        let Some(index) = costliest else { return false };
        let (range, cost) = (start(index)..parts.ends[index] as usize, parts.costs[index]);
        let (mut open, mut best): (Open, Option<(u64, usize, u64)>) = (Open::default(), None);
        self.units(range.clone(), &mut |at, unit| {
            if at > range.start {
                let uneven = open.cost.abs_diff(cost.saturating_sub(open.cost));
                if best.is_none_or(|(least, ..)| uneven < least) {
                    best = Some((uneven, at, open.cost));
                }
            }
            open = open.with(self.how, unit);
        });
        let Some((_, at, left)) = best else { return false };
        let mut right = Open::default();
        self.units(at..range.end, &mut |_, unit| right = right.with(self.how, unit));
        parts.ends.insert(index, at as u32);
        parts.costs[index] = right.cost;
        parts.costs.insert(index, left);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packing::{Heads, PackLimits};
    use plimsoll_arch::Caches;

    /// Prompts of 20 tokens with responses of these lengths, `group` a prompt.
    fn cut(
        lengths: &[usize],
        group: usize,
        tokens: usize,
        multiple: usize,
        whole_groups: bool,
    ) -> Vec<Range<usize>> {
        let (prompt, longest) = (vec![1; 20], vec![2; 4096]);
        let of = |(i, n): (usize, &usize)| Sequence {
            group: i / group,
            prompt: &prompt,
            response: &longest[..*n],
        };
        let sequences: Vec<Sequence<'_>> = lengths.iter().enumerate().map(of).collect();
        let limits = PackLimits {
            micro_batch_tokens: tokens,
            prompt_tokens: 20,
            segments: 2 * lengths.len(),
            caches: Caches::paged(0),
        };
        let mut packer = Packer::new(limits.pass(), lengths.len());
        let how = Packing { heads: Heads::Tokens, whole_groups };
        let all = 0..lengths.len();
        packer
            .cut(Cut { multiple, rows_min: 16 }, Units { packing: how, hidden: 64 }, &sequences, all.clone())
            .unwrap();
        let mut start = 0;
        let mut out = Vec::new();
        for index in 0..packer.num_micro_batches() {
            let batch = packer.micro_batch(how, &sequences, start, index).unwrap();
            assert!(batch.index.ids.len() <= tokens);
            start = batch.sequences.end;
            out.push(batch.sequences);
        }
        assert_eq!(start, all.end, "every sequence is in one micro-batch");
        out
    }

    #[test]
    fn the_number_is_a_multiple_and_the_work_is_even() {
        let lengths: Vec<usize> = (0..64).map(|i| 16 + 7 * (i * 13 % 29)).collect();
        for (tokens, multiple, number) in
            [(4096, 8, 8), (4096, 6, 6), (2048, 8, 8), (1000, 8, 16), (4096, 1, 2)]
        {
            let parts = cut(&lengths, 8, tokens, multiple, false);
            assert_eq!(parts.len(), number, "{tokens} {multiple}");
            let rows = |part: &Range<usize>| lengths[part.clone()].iter().sum::<usize>();
            let (least, most) =
                (parts.iter().map(rows).min().unwrap(), parts.iter().map(rows).max().unwrap());
            // Parts differ by their prompts and by a response or two.
            assert!(most - least <= 2 * 220 + 40, "{tokens} {multiple}: {least} to {most}");
        }
    }

    #[test]
    fn little_work_makes_fewer_micro_batches_and_one_sequence_one() {
        // 4 x 12 rows and a prompt: four of 17 rows on average, not eight.
        assert_eq!(cut(&[13, 13, 13, 13], 4, 512, 8, false).len(), 4);
        assert_eq!(cut(&[13, 13], 2, 512, 8, false).len(), 2);
        assert_eq!(cut(&[5], 1, 512, 8, false), vec![0..1]);
        assert!(cut(&[], 1, 512, 8, false).is_empty());
    }

    #[test]
    fn one_long_sequence_among_short_ones_has_a_micro_batch_of_its_own() {
        let mut lengths = vec![24; 40];
        lengths[17] = 1200;
        let parts = cut(&lengths, 1, 2048, 8, false);
        assert_eq!(parts.len(), 8);
        assert!(parts.contains(&(17..18)), "{parts:?}");
    }

    #[test]
    fn whole_groups_stay_together() {
        let lengths: Vec<usize> = (0..64).map(|i| 16 + 7 * (i * 13 % 29)).collect();
        let parts = cut(&lengths, 2, 4096, 8, true);
        assert!(parts.len() == 8 && parts.iter().all(|part| part.end.is_multiple_of(2)), "{parts:?}");
    }
}
