//! The supply of a run whose groups go on in the next step.

use super::report::CarryReport;
use super::step;
use crate::context::StepContext;
use crate::players::GroupsUnderWay;
use crate::roles::Trainer;
use crate::supply::gathered::Gathered;
use crate::supply::restored::Restored;
use crate::supply::rollout::StepSamples;
use crate::supply::source::Supply;
use plimsoll_base::Result;
use plimsoll_files::FileRecord;
use plimsoll_run::checkpoint::RunState;
use plimsoll_run::lead::Lead;
use std::path::Path;

/// The groups that go on, and what the last step counted.
#[derive(Debug, Default)]
pub(crate) struct CarriedSupply {
    under_way: GroupsUnderWay,
    report: CarryReport,
    /// True once a note has said that groups are waited for.
    has_noted_waits: bool,
}

impl CarriedSupply {
    /// Says once that a step waited for all of its groups, although others were under way.
    fn note_waits(&mut self, lead: &mut Lead<'_, '_, '_, '_>, step: u32) {
        let (prompts, group) = (lead.run.rollout.prompts_per_step, lead.run.rollout.group_size);
        let Some(most) = lead.run.stale_tokens_max() else { return };
        if self.has_noted_waits || !self.report.waits_for_all(prompts as usize) {
            return;
        }
        self.has_noted_waits = true;
        let mean = self.report.counts.trained_tokens / (u64::from(prompts) * u64::from(group));
        lead.note(format!(
            "step {step}: all of its {prompts} groups were waited for, because each had a response with {most} tokens of older weights; \
             async.stale_tokens_max = {most} is small for responses of {mean} tokens, and async.partial_rollouts then saves nothing"
        ));
    }
}

impl Supply for CarriedSupply {
    fn next(
        &mut self,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        step: u32,
        gathered: &mut Gathered,
    ) -> Result<Option<StepSamples>> {
        let most = cx.run.stale_tokens_max();
        let (samples, report, drawn) =
            step::next(&mut self.under_way, trainer, cx, step, &|group| group.is_due(most))?;
        *gathered = Gathered { of_supply: report.metrics(), ..drawn };
        self.report = report;
        Ok(Some(samples))
    }

    fn keep(&mut self) {
        self.under_way.keep();
    }

    fn record(&mut self, lead: &mut Lead<'_, '_, '_, '_>, step: u32) -> Result<()> {
        lead.progress.carry.get_or_insert_default().add(&self.report.counts);
        self.note_waits(lead, step);
        Ok(())
    }

    fn state(&self, state: &mut RunState) {
        state.carried = self.under_way.count();
    }

    fn write(&self, folder: &Path) -> Result<Vec<(String, FileRecord)>> {
        Ok(self.under_way.write(folder)?.into_iter().collect())
    }

    fn restore(&mut self, from: &mut Restored<'_>) -> Result<()> {
        self.under_way = GroupsUnderWay::restored(u64::from(from.run.partial_rollouts()), from)?;
        Ok(())
    }
}
