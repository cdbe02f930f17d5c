//! Which checkpoints are kept: the newest, up to a number and a size, and always the newest one and the best one.

/// Limits on what a run keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Number of newest checkpoints to keep; at least 1.
    pub keep: u32,
    /// Largest total size, as long as the newest and the best fit.
    pub keep_bytes: Option<u64>,
    /// Step of the checkpoint with the highest evaluation.
    pub best: Option<u32>,
}

impl Retention {
    /// Returns the steps to remove from `whole`, (step, bytes) in ascending order.
    pub(crate) fn superfluous(&self, whole: &[(u32, u64)]) -> Vec<u32> {
        let newest = whole.last().map(|(step, _)| *step);
        let is_fixed = |step: u32| Some(step) == newest || Some(step) == self.best;
        let first_kept = whole.len().saturating_sub(self.keep.max(1) as usize);
        let mut gone: Vec<u32> =
            whole[..first_kept].iter().map(|(step, _)| *step).filter(|step| !is_fixed(*step)).collect();
        let Some(limit) = self.keep_bytes else { return gone };
        let mut total: u64 =
            whole.iter().filter(|(step, _)| !gone.contains(step)).map(|(_, bytes)| bytes).sum();
        for &(step, bytes) in whole {
            if total > limit && !is_fixed(step) && !gone.contains(&step) {
                gone.push(step);
                total -= bytes;
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_the_newest_and_the_best_stay() {
        let whole = [(5, 10), (10, 10), (15, 10), (20, 10)];
        for (keep, keep_bytes, best, gone) in [
            (2, None, None, &[5, 10][..]),
            (2, None, Some(5), &[10]),
            (9, None, None, &[]),
            (0, None, None, &[5, 10, 15]),
            (9, Some(25), None, &[5, 10]),
            (9, Some(25), Some(5), &[10, 15]),
            (3, Some(1), Some(10), &[5, 15]),
            (9, Some(0), None, &[5, 10, 15]),
            (9, Some(40), None, &[]),
        ] {
            let retention = Retention { keep, keep_bytes, best };
            assert_eq!(retention.superfluous(&whole), gone, "{retention:?}");
        }
        assert_eq!(Retention::default().superfluous(&[]), [0; 0]);
    }
}
