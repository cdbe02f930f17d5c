//! What every supply can do.

use super::gathered::Gathered;
use super::restored::Restored;
use super::rollout::StepSamples;
use crate::context::StepContext;
use crate::methods::report::StepReport;
use crate::roles::Trainer;
use plimsoll_base::Result;
use plimsoll_files::FileRecord;
use plimsoll_run::checkpoint::RunState;
use plimsoll_run::lead::Lead;
use std::path::Path;

/// A source of the samples that steps train on.
pub trait Supply {
    /// Returns what `step` trains on; none on a rank that only samples. Draws what is to be drawn before, moves
    /// `cx.cursor` past it, and adds to `gathered` what that took.
    ///
    /// Errors: `dynamic-sampling-exhausted`; those of sampling and of the rewards; `rank-lost` where another rank has
    /// one.
    fn next(
        &mut self,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        step: u32,
        gathered: &mut Gathered,
    ) -> Result<Option<StepSamples>>;

    /// Ends a step that was made: its samples are never trained again. What a step drew for later ones waits from here
    /// on; where the step has failed, nothing has changed.
    ///
    /// Errors: that of the step.
    fn commit(
        &mut self,
        _trainer: &mut Trainer<'_>,
        _cx: &mut StepContext<'_>,
        _step: u32,
        made: Result<StepReport>,
        _gathered: &mut Gathered,
    ) -> Result<StepReport> {
        let report = made?;
        self.keep();
        Ok(report)
    }

    /// Keeps what the step that was made leaves.
    fn keep(&mut self);

    /// Writes down what a step that was made is remembered for, apart from its metrics.
    ///
    /// Errors: `write-failed`.
    fn record(&mut self, _lead: &mut Lead<'_, '_, '_, '_>, _step: u32) -> Result<()> {
        Ok(())
    }

    /// Says in a checkpoint's state what waits.
    fn state(&self, state: &mut RunState);

    /// Writes the files of a checkpoint with what waits. Returns their names and records.
    ///
    /// Errors: those of writing.
    fn write(&self, folder: &Path) -> Result<Vec<(String, FileRecord)>>;

    /// Reads what waits back from a checkpoint.
    ///
    /// Errors: `checkpoint-damaged`; those of reading prompts.
    fn restore(&mut self, from: &mut Restored<'_>) -> Result<()>;

    /// Returns how many steps have their samples before they begin.
    fn num_there(&self) -> u32 {
        0
    }
}
