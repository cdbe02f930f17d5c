//! The loss that a script asks for: the run file's, or that of a method by its name, with other numbers.

use super::fault::{Fault, Served, bad_request};
use super::verbs::LearnHow;
use plimsoll_algo::kl::{KlController, KlEstimator};
use plimsoll_base::{nearest_name, shown};
use plimsoll_config::{KlTerm, Method, Objective};

/// Returns the objective of a request.
///
/// Errors: of the request, for an unknown method and for numbers that its loss does not have.
pub(super) fn asked(own: &Objective, how: &LearnHow) -> Served<Objective> {
    let mut objective = *own;
    if let Some(name) = &how.loss {
        let of = Method::ALL.into_iter().find(|method| method.name() == name);
        let sampling = of.and_then(|method| method.spec().sampling).ok_or_else(|| unknown(name))?;
        (objective.loss, objective.aggregation) = (sampling.loss, sampling.aggregation);
    }
    let bounds = [("clip_low", how.clip_low), ("clip_high", how.clip_high), ("dual_clip", how.dual_clip)];
    for (name, bound) in bounds {
        number(name, bound, 0.0)?;
    }
    if (how.clip_low.is_some() || how.clip_high.is_some()) && objective.loss.clips().is_none() {
        return Err(bad_request("clips for a loss that does not clip", "leave out clip_low and clip_high"));
    }
    objective.loss = objective.loss.with_clips(how.clip_low, how.clip_high);
    if how.dual_clip.is_some() {
        let with = objective.loss.with_dual_clip(how.dual_clip);
        if with == objective.loss || how.dual_clip <= Some(1.0) {
            return Err(bad_request(
                "dual_clip is above 1, and PPO's loss alone has one",
                "leave out dual_clip",
            ));
        }
        objective.loss = with;
    }
    objective.aggregation = how.aggregation.unwrap_or(objective.aggregation);
    number("entropy_coef", how.entropy_coef, f64::NEG_INFINITY)?;
    objective.entropy_coef = how.entropy_coef.unwrap_or(objective.entropy_coef);
    number("kl_coef", how.kl_coef, 0.0)?;
    if let Some(coef) = how.kl_coef {
        let controller = KlController::Fixed { coef };
        let term = KlTerm { estimator: KlEstimator::K3, in_reward: false, unbiased: false, controller };
        objective.kl = (coef > 0.0).then(|| KlTerm { controller, ..own.kl.unwrap_or(term) });
    }
    Ok(objective)
}

/// Requires a finite number of at least `least`, if there is one.
fn number(name: &str, value: Option<f64>, least: f64) -> Served<()> {
    match value {
        Some(value) if !value.is_finite() || value < least => {
            Err(bad_request(format!("{name} is {value}"), "it is a finite number that is not negative"))
        }
        _ => Ok(()),
    }
}

fn unknown(name: &str) -> Fault {
    let all = || Method::ALL.into_iter().filter(|method| method.spec().sampling.is_some());
    let near = nearest_name(name, all().map(Method::name));
    let hint = match near {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("there are {}", all().map(Method::name).collect::<Vec<_>>().join(", ")),
    };
    bad_request(format!("no method has the loss {:?}", shown(name)), &hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_algo::aggregation::AggregationKind;
    use plimsoll_algo::policy_loss::PolicyLoss;
    use serde_json::{Value, json};

    fn of(more: Value) -> Served<Objective> {
        let text = "method = \"grpo\"\nmodel = \"m\"\n[[reward]]\nkind = \"exact\"\n[train]\nsteps = 1\nlearning_rate = 0.1\n";
        let run = toml_run(text);
        let mut how = json!({ "temperature": 1.0, "by": "loss" });
        let more = more.as_object().cloned().unwrap_or_default();
        how.as_object_mut().expect("an object").extend(more);
        asked(&run, &serde_json::from_value(how).expect("a request"))
    }

    fn toml_run(text: &str) -> Objective {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.toml");
        std::fs::write(&path, text).expect("it is written");
        let loaded = plimsoll_config::load(&path, &["data.prompts=builtin:addition".into()], [].into_iter());
        plimsoll_config::RunSpec::new(&loaded.expect("a run file").run).objective().expect("it samples")
    }

    #[test]
    fn a_loss_by_name_is_that_of_its_method_and_numbers_are_the_scripts() {
        let own = of(json!({})).expect("the run's own");
        assert_eq!(own.loss, PolicyLoss::Ppo { clip_low: 0.2, clip_high: 0.2, dual_clip: None });
        let gspo = of(json!({ "loss": "gspo" })).expect("a method");
        assert_eq!(gspo.aggregation, AggregationKind::SeqMeanTokenMean);
        let cispo = of(json!({ "loss": "cispo", "clip_high": 3.0, "aggregation": "seq_mean_token_sum" }));
        let cispo = cispo.expect("a method");
        assert_eq!(cispo.loss, PolicyLoss::Cispo { clip_low: 0.0, clip_high: 3.0 });
        assert_eq!(cispo.aggregation, AggregationKind::SeqMeanTokenSum);
        assert!(of(json!({ "kl_coef": 0.1 })).expect("a term").kl.is_some_and(|kl| !kl.in_reward));
    }

    #[test]
    fn a_loss_that_no_method_has_is_refused_with_the_nearest() {
        for (more, words) in [
            (json!({ "loss": "gsp" }), "gsp"),
            (json!({ "loss": "dpo" }), "dpo"),
            (json!({ "loss": "reinforce", "clip_low": 0.1 }), "does not clip"),
            (json!({ "loss": "cispo", "dual_clip": 3.0 }), "dual_clip"),
            (json!({ "clip_low": -0.1 }), "clip_low is -0.1"),
        ] {
            match of(more) {
                Err(Fault::OfRequest(error)) => {
                    assert_eq!(error.slug, "script-bad-request");
                    assert!(error.to_string().contains(words), "{error}");
                }
                other => panic!("{words}: {other:?}"),
            }
        }
    }
}
