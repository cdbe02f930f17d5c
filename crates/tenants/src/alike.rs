//! Neighbours that begin alike, as the samples of one prompt do: their common rows are computed once.

/// The least tokens that are worth a segment of their own, with a copy of its last block's keys for each that goes on.
const SHARED_MIN: usize = 8;

/// What a sequence shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// The first sequence of the neighbours that share it.
    pub group: usize,
    /// Its tokens; all of the sequence's, if it shares none.
    pub tokens: usize,
}

/// Groups neighbours by their common beginnings. A sequence joins the group before it if that saves rows; it has a row
/// of its own then. `can_share`: false for one that is a group alone.
pub fn beginnings(sequences: &[&[u32]], can_share: &dyn Fn(usize) -> bool) -> Vec<Beginning> {
    let mut all: Vec<Beginning> = Vec::with_capacity(sequences.len());
    let (mut group, mut shared) = (0, 0);
    for (index, tokens) in sequences.iter().enumerate() {
        let before = index - group;
        if before > 0 && can_share(index) && can_share(group) {
            let first = if before == 1 { sequences[group].len().saturating_sub(1) } else { shared };
            let common = common(sequences[group], tokens).min(first).min(tokens.len().saturating_sub(1));
            if common >= SHARED_MIN && common * before > shared * (before - 1) {
                shared = common;
                all[group..].iter_mut().for_each(|begin| begin.tokens = common);
                all.push(Beginning { group, tokens: common });
                continue;
            }
        }
        (group, shared) = (index, 0);
        all.push(Beginning { group, tokens: tokens.len() });
    }
    all
}

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sequences: &[&[u32]]) -> Vec<(usize, usize)> {
        beginnings(sequences, &|_| true).iter().map(|begin| (begin.group, begin.tokens)).collect()
    }

    #[test]
    fn neighbours_share_what_they_begin_with_if_that_saves_rows() {
        let prompt: Vec<u32> = (0..20).collect();
        let with = |tail: &[u32]| [&prompt, tail].concat();
        let (a, b, c) = (with(&[30, 31]), with(&[32]), with(&[30, 40, 41]));
        // A and c have 21 tokens alike, but b has 20 of them.
        assert_eq!(of(&[&a, &c]), [(0, 21), (0, 21)]);
        assert_eq!(of(&[&a, &c, &b]), [(0, 20), (0, 20), (0, 20)]);
        // 21 rows of one are more than 10 of two; 7 are not shared at all.
        let (half, few) = ([&prompt[..10], &[50, 51]].concat(), [&prompt[..7], &[50, 51, 52]].concat());
        assert_eq!(of(&[&a, &c, &half]), [(0, 21), (0, 21), (2, 12)]);
        assert_eq!(of(&[&few, &a, &b]), [(0, 10), (1, 20), (1, 20)]);
        assert_eq!(beginnings(&[&a, &b], &|index| index != 1)[1], Beginning { group: 1, tokens: 21 });
    }

    #[test]
    fn each_of_a_group_keeps_a_row_of_its_own() {
        let long: Vec<u32> = (0..30).collect();
        assert_eq!(of(&[&long, &long]), [(0, 29), (0, 29)]);
        assert_eq!(of(&[&long, &long[..12], &long]), [(0, 11), (0, 11), (0, 11)]);
        assert_eq!(of(&[&long[..1], &[]]), [(0, 1), (1, 0)]);
    }
}
