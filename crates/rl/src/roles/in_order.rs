//! The sums of micro-batches, added in their order whatever order they come in.

use std::ops::Range;

/// Adds the sums of micro-batches by the order of their tokens. A rank computes those of its own micro-batch of a round
/// before the others', so one waits at most.
pub struct InOrder<S, A: FnMut(S)> {
    /// The first token that is not added yet.
    next: usize,
    early: Option<(Range<usize>, S)>,
    add: A,
}

impl<S, A: FnMut(S)> InOrder<S, A> {
    /// Begins at token `first` of the step; `add` gets the sums in order.
    pub fn from(first: usize, add: A) -> Self {
        InOrder { next: first, early: None, add }
    }

    /// Adds the sums of `tokens` once those of all before them are.
    pub fn add(&mut self, tokens: Range<usize>, sums: S) {
        if tokens.start != self.next {
            self.early = Some((tokens, sums));
            return;
        }
        self.next = tokens.end;
        (self.add)(sums);
        if let Some((tokens, sums)) = self.early.take_if(|(tokens, _)| tokens.start == self.next) {
            self.next = tokens.end;
            (self.add)(sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_come_in_the_order_of_their_tokens_whichever_is_computed_first() {
        // Rounds of three micro-batches from token 5 on; the last has two.
        let all: Vec<Range<usize>> = vec![5..8, 8..9, 9..20, 20..21, 21..30, 30..31, 31..33, 33..40];
        for own in 0..3 {
            let mut added = Vec::new();
            let mut order = InOrder::from(5, |sums: usize| added.push(sums));
            for round in all.chunks(3) {
                let others = (0..round.len()).filter(|rank| *rank != own);
                for rank in (own..round.len()).take(1).chain(others) {
                    order.add(round[rank].clone(), round[rank].start);
                }
            }
            assert!(added.iter().eq(all.iter().map(|tokens| &tokens.start)), "{own}: {added:?}");
        }
    }
}
