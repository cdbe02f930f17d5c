//! What a run file that names only its method resolves to: the method's row.

use super::{GOOD, load_text};
use crate::Objective;
use plimsoll_algo::covariance::{Covariance, CovarianceKind};
use plimsoll_algo::{method::METHODS, shaping::GroupShaping};

/// The clips of `kl_cov` were those of `ppo`, whose loss it has.
#[test]
fn r_defaults_were_those_of_the_method_that_introduced_the_loss() {
    for spec in &METHODS {
        let Some(row) = spec.sampling else { continue };
        let mut text = GOOD.replace("\"grpo\"", &format!("\"{}\"", spec.method));
        if spec.needs.teacher {
            text = text.replace("[[reward]]\nkind = \"exact\"", "[distill]\nteacher = \"runs/out/first\"");
        }
        let loaded = load_text(&text, &[], &[]).unwrap_or_else(|error| panic!("{}: {error}", spec.method));
        let (run, got) = (&loaded.run, Objective::new(&loaded.run).expect("a method that samples"));
        let group = if run.learns_from_rewards() { row.shaping } else { GroupShaping::None };
        let covariance = got.covariance.map(|of| match of {
            Covariance::Clip { .. } => CovarianceKind::Clip,
            Covariance::Kl { .. } => CovarianceKind::Kl,
        });
        assert_eq!(
            (got.loss, got.shaping.group, got.whiten, got.aggregation, covariance, got.gae.is_some()),
            (row.loss, group, row.whiten, row.aggregation, row.covariance, spec.needs.critic),
            "{}",
            spec.method
        );
        let clips = run.loss.clip_low.zip(run.loss.clip_high).map(|(low, high)| [low, high]);
        assert_eq!((run.loss.policy, clips), (Some(row.loss.kind()), row.loss.clips()), "{}", spec.method);
        // Another loss brings its own clips.
        let cispo = load_text(&text, &["loss.policy=cispo"], &[]).unwrap().run.loss;
        assert_eq!((cispo.clip_low, cispo.clip_high), (Some(0.0), Some(5.0)), "{}", spec.method);
    }
}
