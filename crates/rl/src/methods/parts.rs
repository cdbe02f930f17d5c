//! The parts of a step that only some runs have, each with its own arrays.

use super::correction::LossCorrection;
use super::covariance::TokenChoice;
use super::sharp::SharpBaseline;
use crate::teachers::{Teacher, Teaching};
use plimsoll_config::RunSpec;
use plimsoll_plan::StepArrays;

/// The parts of a step that only some methods that sample have.
#[derive(Default)]
pub struct StepParts {
    pub(crate) teaching: Option<Teaching>,
    pub(crate) correction: Option<LossCorrection>,
    pub(crate) choice: Option<TokenChoice>,
    pub(crate) sharp: Option<SharpBaseline>,
}

impl StepParts {
    /// Binds the arrays of each part that the run has; it has none if nothing is sampled.
    pub fn bind(run: &RunSpec, planned: &StepArrays, teacher: Option<Box<dyn Teacher>>) -> StepParts {
        let Some(objective) = run.objective() else { return StepParts::default() };
        StepParts {
            teaching: teacher.map(|who| Teaching::bind(who, planned)),
            correction: objective.correction.map(|how| LossCorrection::bind(how, planned)),
            choice: objective.covariance.map(|how| TokenChoice::bind(how, planned)),
            sharp: run.scores_sharply().then(|| SharpBaseline::bind(planned)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrays::TokenArrays;
    use plimsoll_algo::correction::Correction;
    use plimsoll_algo::covariance::Covariance;
    use plimsoll_plan::{KeptRows, Lists, StepPart};

    #[test]
    fn the_plan_counts_every_array() {
        let lists = StepPart::Lists(Lists { tokens: 3, rows: 4 });
        // A step has lists or rows, not both.
        let kinds = [
            &[StepPart::Values][..],
            &[StepPart::Correction],
            &[StepPart::Covariance],
            &[StepPart::Sharp],
            &[StepPart::Teacher],
            &[StepPart::Teacher, lists],
            &[StepPart::Teacher, StepPart::Rows(KeptRows { bytes: 6 })],
        ];
        for which in 0..1 << kinds.len() {
            let chosen = kinds.iter().enumerate().filter(|(bit, _)| which >> bit & 1 > 0);
            let mut parts: Vec<StepPart> = chosen.flat_map(|(_, parts)| parts.iter().copied()).collect();
            if parts.iter().filter(|part| **part == StepPart::Teacher).count() > 1 {
                continue;
            }
            let planned = StepArrays { sequences: 3, response_tokens: 5, parts: parts.clone() };
            let mut tokens = TokenArrays::bind(&planned);
            tokens.begin([5, 5, 5].into_iter());
            let mut bytes = tokens.heap_bytes();
            for part in parts.drain(..) {
                bytes += match part {
                    StepPart::Correction => {
                        LossCorrection::bind(Correction::Truncate { low: 0.0, high: 2.0 }, &planned)
                            .heap_bytes()
                    }
                    StepPart::Covariance => {
                        let how = Covariance::Kl { share: 0.1, coef: 1.0 };
                        TokenChoice::bind(how, &planned).heap_bytes()
                    }
                    StepPart::Sharp => SharpBaseline::bind(&planned).heap_bytes(),
                    StepPart::Teacher => 4 * planned.array_of(part).capacity(),
                    StepPart::Values | StepPart::Lists(_) | StepPart::Rows(_) => 0,
                };
            }
            assert_eq!(bytes as u64, planned.bytes(), "{:?}", planned.parts);
        }
    }
}
