//! How often guesses of a kind were right: counted in tokens, not in seconds, so that a run that is repeated drafts
//! alike. Every token that is drawn is compared with what would have been guessed, drafted or not.

use super::kinds::{Agreement, Class, LEVELS};

/// Guesses of a kind after which old ones count for half, so that rates follow the policy.
const REMEMBERED: u32 = 1024;

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    right: u32,
    all: u32,
}

#[derive(Debug, Default)]
pub(super) struct Rates([[Count; Agreement::Split as usize + 1]; LEVELS.len()]);

impl Rates {
    /// Returns the probability that a guess is right.
    pub(super) fn of(&self, class: Class) -> f32 {
        let Count { right, all } = self.0[class.level][class.agreement as usize];
        // Until some were seen, a half.
        (right + 1) as f32 / (all + 2) as f32
    }

    pub(super) fn add(&mut self, class: Class, is_right: bool) {
        let count = &mut self.0[class.level][class.agreement as usize];
        count.right += u32::from(is_right);
        count.all += 1;
        if count.all == REMEMBERED {
            *count = Count { right: count.right / 2, all: count.all / 2 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_what_was_right_lately() {
        let (mut rates, class) = (Rates::default(), Class { level: 2, agreement: Agreement::Few });
        assert_eq!(rates.of(class), 0.5);
        (0..4000).for_each(|i| rates.add(class, i % 4 > 0));
        assert!((rates.of(class) - 0.75).abs() < 0.01, "{}", rates.of(class));
        (0..4000).for_each(|_| rates.add(class, false));
        assert!(rates.of(class) < 0.05, "{}", rates.of(class));
        assert_eq!(rates.of(Class { agreement: Agreement::One, ..class }), 0.5);
        let kinds =
            [(1, 1), (2, 2), (3, 3), (5, 5), (3, 5), (2, 4)].map(|(most, all)| Agreement::of(most, all));
        use Agreement::{Few, Many, Most, One, Split};
        assert_eq!(kinds, [One, Few, Few, Many, Most, Split]);
    }
}
