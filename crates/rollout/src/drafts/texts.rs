//! Texts and an index of them: what came after the same few tokens before.
//!
//! A ring of texts of one length, of which a new one takes the place of the oldest. Positions with equal contexts are a
//! chain, the newest first; those of a text that was replaced stay in chains, and are passed over because the tokens
//! before them are no longer the context. Nothing is allocated after the start.

use super::kinds::{Agreement, Class, LEVELS};

/// Texts that are looked up together.
pub(super) type Scope = u64;

/// Positions of a chain that are looked at.
const HOPS: usize = 8;
const NONE: u32 = u32::MAX;
/// Tokens of all texts at most.
pub(super) const POSITIONS_MAX: usize = NONE as usize - 1;

#[derive(Debug)]
pub(super) struct Texts {
    /// Tokens of a text at most.
    stride: usize,
    ids: Vec<u32>,
    lens: Vec<u32>,
    /// The scopes in which each text is found.
    scopes: Vec<[Option<Scope>; 2]>,
    /// How many texts have begun; the next one takes the place of the oldest.
    begun: u64,
    /// The number of each text, from 1.
    numbers: Vec<u64>,
    /// The newest position of each chain.
    newest: Vec<u32>,
    /// By position the one before it in the chain of each level.
    older: Vec<[u32; LEVELS.len()]>,
}

impl Texts {
    pub(super) fn new(texts: usize, stride: usize) -> Texts {
        let positions = texts * stride;
        assert!(positions <= POSITIONS_MAX, "{positions} positions");
        Texts {
            stride,
            ids: vec![0; positions],
            lens: vec![0; texts],
            scopes: vec![[None; 2]; texts],
            begun: 0,
            numbers: vec![0; texts],
            newest: vec![NONE; chains(positions)],
            older: vec![[NONE; LEVELS.len()]; positions],
        }
    }

    /// Returns the heap bytes of `texts` texts.
    pub(super) fn bytes(texts: usize, stride: usize) -> u64 {
        let of_text = size_of::<u32>() + size_of::<u64>() + size_of::<[Option<Scope>; 2]>();
        let of_position = size_of::<u32>() * (1 + LEVELS.len());
        (texts * (of_text + stride * of_position) + size_of::<u32>() * chains(texts * stride)) as u64
    }

    /// Begins a text instead of the oldest. Its first tokens are those of `lead`, which nothing finds.
    pub(super) fn open(&mut self, scopes: [Option<Scope>; 2], lead: &[u32]) -> usize {
        let text = (self.begun % self.lens.len() as u64) as usize;
        self.begun += 1;
        self.numbers[text] = self.begun;
        self.scopes[text] = scopes;
        self.ids[text * self.stride..][..lead.len()].copy_from_slice(lead);
        self.lens[text] = lead.len() as u32;
        text
    }

    /// Forgets all texts.
    pub(super) fn forget(&mut self) {
        self.lens.fill(0);
        self.numbers.fill(0);
        self.scopes.fill([None; 2]);
    }

    /// Returns the tokens that a text may have.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// Returns how many texts have begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// Returns which text is in a place: a number that no other text has.
    pub(super) fn number(&self, text: usize) -> u64 {
        self.numbers[text]
    }

    /// Returns the tokens of a text.
    pub(super) fn ids(&self, text: usize) -> &[u32] {
        &self.ids[text * self.stride..][..self.lens[text] as usize]
    }

    /// Appends a token, which is found after the tokens before it.
    pub(super) fn push(&mut self, text: usize, token: u32) {
        let len = self.lens[text] as usize;
        assert!(len < self.stride, "a text of {len} tokens is full");
        let position = text * self.stride + len;
        for (level, &(which, tokens)) in LEVELS.iter().enumerate() {
            let Some(scope) = self.scopes[text][which].filter(|_| tokens <= len) else { continue };
            let chain = self.chain(level, scope, &self.ids[position - tokens..position]);
            self.older[position][level] = std::mem::replace(&mut self.newest[chain], position as u32);
        }
        self.ids[position] = token;
        self.lens[text] += 1;
    }

    /// Returns what came most often after the last tokens of `context` among the newest texts of a scope, of equals the
    /// newest, and how far they agree. `context` is at least as long as the level's.
    pub(super) fn guess(&self, level: usize, scope: Scope, context: &[u32]) -> Option<(u32, Class)> {
        let (which, tokens) = LEVELS[level];
        let context = &context[context.len() - tokens..];
        let (mut votes, mut num_votes) = ([(0, 0); HOPS], 0);
        let mut position = self.newest[self.chain(level, scope, context)];
        for _ in 0..HOPS {
            if position == NONE {
                break;
            }
            let at = position as usize;
            let (text, len) = (at / self.stride, at % self.stride);
            let is_there = len < self.lens[text] as usize && self.scopes[text][which] == Some(scope);
            if is_there && len >= tokens && self.ids[at - tokens..at] == *context {
                let token = self.ids[at];
                match votes[..num_votes].iter_mut().find(|(other, _)| *other == token) {
                    Some((_, count)) => *count += 1,
                    None => {
                        votes[num_votes] = (token, 1);
                        num_votes += 1;
                    }
                }
            }
            position = self.older[at][level];
        }
        let votes = &votes[..num_votes];
        let all = votes.iter().map(|(_, count)| count).sum();
        let first_most = votes.iter().rev().max_by_key(|(_, count)| *count)?;
        Some((first_most.0, Class { level, agreement: Agreement::of(first_most.1, all) }))
    }

    fn chain(&self, level: usize, scope: Scope, context: &[u32]) -> usize {
        let begin = hash(scope, level as u64);
        let all = context.iter().fold(begin, |all, &id| hash(all, u64::from(id)));
        (all >> 32) as usize & (self.newest.len() - 1)
    }
}

/// Returns the chains for `positions` positions: about one for two contexts.
fn chains(positions: usize) -> usize {
    (positions * LEVELS.len() / 2).next_power_of_two()
}

/// Returns a number that differs for most pairs.
pub(super) fn hash(before: u64, word: u64) -> u64 {
    (before ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
}

#[cfg(test)]
mod tests {
    use super::super::kinds::LEAD;
    use super::*;

    fn add(texts: &mut Texts, scopes: [Option<Scope>; 2], ids: &[u32]) -> usize {
        let text = texts.open(scopes, &[]);
        ids.iter().for_each(|&id| texts.push(text, id));
        text
    }

    #[test]
    fn what_came_most_often_after_the_same_tokens_is_found_in_its_scope_alone() {
        let mut texts = Texts::new(4, 16);
        add(&mut texts, [Some(1), Some(9)], &[5, 6, 7, 1]);
        add(&mut texts, [Some(1), Some(9)], &[5, 6, 7, 2]);
        add(&mut texts, [Some(2), Some(9)], &[5, 6, 7, 3]);
        // Level 3: two tokens in the first scope.
        let guess = |texts: &Texts, level, scope| {
            texts.guess(
                level,
                scope,
                &[0; 10].map(|_| 8)[..8].iter().chain(&[4, 5, 6, 7]).copied().collect::<Vec<u32>>(),
            )
        };
        let (token, class) = guess(&texts, 3, 1).unwrap();
        assert_eq!((token, class.agreement), (2, Agreement::Split), "of equals the newest");
        assert_eq!(guess(&texts, 3, 2).unwrap().0, 3);
        assert!(guess(&texts, 3, 4).is_none() && guess(&texts, 0, 1).is_none());
        assert_eq!(guess(&texts, 5, 9).unwrap().0, 3);
        add(&mut texts, [Some(1), Some(9)], &[6, 7, 1]);
        let (token, class) = guess(&texts, 3, 1).unwrap();
        assert_eq!((token, class.agreement), (1, Agreement::Most));
    }

    #[test]
    fn a_text_that_was_replaced_is_not_found() {
        let mut texts = Texts::new(2, 8);
        let context = [[0; 9].as_slice(), &[1, 2, 3]].concat();
        add(&mut texts, [Some(1), None], &[1, 2, 3, 4]);
        assert_eq!(texts.guess(3, 1, &context).unwrap().0, 4);
        add(&mut texts, [Some(1), None], &[7, 7, 7, 7]);
        let third = add(&mut texts, [Some(1), None], &[8, 8, 8, 8, 8, 8]);
        assert_eq!((third, texts.ids(third)), (0, [8; 6].as_slice()));
        assert!(texts.guess(3, 1, &context).is_none());
        // A token of its own text counts from the next one on.
        assert_eq!(texts.guess(3, 1, &[8; 12]).unwrap().0, 8);
    }

    #[test]
    fn random_texts_never_lead_astray() {
        // Few tokens, so that chains are long, and a ring that is replaced many times.
        let mut texts = Texts::new(3, 20);
        let mut state = 1u64;
        let mut next = |most: u64| {
            state = hash(state, 7);
            (state >> 40) % most
        };
        for _ in 0..200 {
            let text = texts.open([Some(next(2)), Some(5)], &[1, 2]);
            for _ in 0..next(18) {
                let context = [[9; LEAD].as_slice(), texts.ids(text)].concat();
                for (level, &(which, tokens)) in LEVELS.iter().enumerate() {
                    let scope = texts.scopes[text][which].unwrap();
                    let Some((token, _)) = texts.guess(level, scope, &context) else { continue };
                    let wanted = [&context[context.len() - tokens..], &[token]].concat();
                    let of_scope = (0..3).filter(|&t| texts.scopes[t][which] == Some(scope));
                    let mut all = of_scope.flat_map(|t| texts.ids(t).windows(tokens + 1));
                    assert!(all.any(|window| window == wanted), "{wanted:?}");
                }
                texts.push(text, next(3) as u32);
            }
        }
    }
}
