//! The kinds of guesses: what was found, and how far it agrees.

/// Contexts: which of a text's two scopes they are looked up in, and how many tokens they have.
pub(super) const LEVELS: [(usize, usize); 6] = [(0, 12), (0, 6), (0, 3), (0, 2), (1, 6), (1, 3)];
/// Tokens of the longest context.
pub(super) const LEAD: usize = 12;

/// How far the texts that were found agree on the next token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agreement {
    /// One text was found.
    One,
    /// Two or three, which agree.
    Few,
    /// More, which agree.
    Many,
    /// More than half of them agree.
    Most,
    /// Fewer.
    Split,
}

impl Agreement {
    /// Returns the agreement of `most` of `all` texts.
    pub(super) fn of(most: usize, all: usize) -> Agreement {
        match (most, all) {
            (_, 1) => Agreement::One,
            (most, 2 | 3) if most == all => Agreement::Few,
            (most, _) if most == all => Agreement::Many,
            (most, _) if 2 * most > all => Agreement::Most,
            _ => Agreement::Split,
        }
    }
}

/// A kind of guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class {
    /// Which context was found, of `LEVELS`.
    pub(super) level: usize,
    pub(super) agreement: Agreement,
}
