//! Passes that verify drafts, in every family.

use super::Ask;
use crate::common::World;
use crate::common::cases::every_nth_from;
use crate::common::harness::Setup;
use plimsoll_rollout::{DraftLimits, DraftSource, Engine, EngineLimits, OnFull, PassCosts, Samples};

impl Ask {
    /// Drafts change no bit. The second request is the first once more, so its drafts are right and its passes fewer.
    pub(super) fn check_drafts(&self, drawn: &Samples) {
        if self.has_states() {
            return;
        }
        let all = self.samples();
        let kinds = [
            (DraftSource::Suffix, 8, (all, 512), false, OnFull::WorstCase, false),
            (DraftSource::Suffix, 3, (8, 48), true, OnFull::Preempt, true),
            (DraftSource::Ngram, 5, (5, 20), false, OnFull::Preempt, true),
            (DraftSource::Suffix, 1, (3, 16), false, OnFull::WorstCase, true),
        ];
        for (_, (source, depth, (sequences, rows), few, on_full, ahead)) in
            every_nth_from(self.first_turn(), 2, kinds)
        {
            let blocks = if few { self.tight_blocks() + 1 } else { self.blocks() };
            let rows_max = sequences * (1 + depth);
            let drafts =
                DraftLimits { source, depth, rows: rows_max, texts: 4 * all, costs: [PassCosts::FLAT; 2] };
            let limits = EngineLimits {
                ahead,
                drafts: Some(drafts),
                ..self.engine(sequences, rows.max(sequences), blocks)
            };
            let how = format!("{limits:?}");
            let mut world = World::new(Setup { threads: 1, ..self.setup(self.pass(64)) }, limits);
            let mut engine = Engine::new(limits, on_full);
            let mut counts = Vec::new();
            for _ in 0..2 {
                let mut out = Samples::with_capacity(limits.samples, limits.new_tokens);
                let prompts: Vec<&[u32]> = self.prompts.iter().map(Vec::as_slice).collect();
                counts.push(world.sample_with(&mut engine, &self.request(&prompts), &mut out).unwrap());
                self.check_same(drawn, &out, &how);
            }
            let [first, second] = [counts[0], counts[1]];
            // With few blocks there may be no room for them.
            if source == DraftSource::Suffix && !few {
                assert!(second.drafted.accepted > first.drafted.accepted, "{how}: {counts:?}");
                assert!(second.passes < first.passes, "{how}: {counts:?}");
            }
            assert!(second.drafted.drafts >= second.drafted.accepted, "{counts:?}");
        }
    }
}
