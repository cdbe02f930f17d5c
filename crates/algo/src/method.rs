//! The methods by name, as one table: what each one does with rewards, advantages and tokens unless the run file says
//! otherwise. Supervised and preference methods are no rows of it: they have no rollout.

use plimsoll_base::{Error, Result};

use crate::advantage::Whiten;
use crate::aggregation::AggregationKind;
use crate::policy_loss::PolicyLoss;
use crate::shaping::GroupShaping;

/// A reinforcement-learning method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// GRPO (arXiv 2402.03300), with the token mean that DAPO introduced.
    Grpo,
    /// Dr.GRPO (arXiv 2503.20783): no standard deviation, no length normalisation.
    DrGrpo,
    /// Leave-one-out baseline (arXiv 2402.14740).
    Rloo,
    /// REINFORCE, whitened over the batch.
    Reinforce,
    /// REINFORCE++-baseline (arXiv 2501.03262).
    ReinforceBaseline,
    /// Sequence ratios (arXiv 2507.18071).
    Gspo,
    /// Clipped, detached ratios (arXiv 2506.13585).
    Cispo,
    /// Soft gates instead of clips (arXiv 2511.20347).
    Sapo,
    /// PPO with a critic (arXiv 1707.06347).
    Ppo,
}

/// How shaped rewards become advantages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdvantageKind {
    /// GAE over the critic's values.
    Gae,
    /// Discounted returns; `gamma_free` says whether gamma may differ from 1.
    Returns {
        /// False: gamma is forced to 1.
        gamma_free: bool,
    },
}

/// A row of the table: the defaults of a method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MethodSpec {
    /// Which method.
    pub method: Method,
    /// Its name in run files.
    pub name: &'static str,
    /// Group baseline.
    pub shaping: GroupShaping,
    /// Rewards to advantages.
    pub advantage: AdvantageKind,
    /// Whitening over the batch.
    pub whiten: Whiten,
    /// Policy loss with its default clips.
    pub loss: PolicyLoss,
    /// Default aggregation.
    pub aggregation: AggregationKind,
    /// Whether it trains a critic.
    pub needs_critic: bool,
}

const RETURNS: AdvantageKind = AdvantageKind::Returns { gamma_free: false };
const GROUP_NORM: GroupShaping = GroupShaping::GroupNorm { eps: 1e-4 };
const PPO_CLIP: PolicyLoss = PolicyLoss::Ppo { clip_low: 0.2, clip_high: 0.2, dual_clip: None };

const GRPO: MethodSpec = MethodSpec {
    method: Method::Grpo,
    name: "grpo",
    shaping: GROUP_NORM,
    advantage: RETURNS,
    whiten: Whiten::Off,
    loss: PPO_CLIP,
    aggregation: AggregationKind::TokenMean,
    needs_critic: false,
};

/// The table, in the order of `Method`; what a row does not name it shares with GRPO.
pub const METHODS: [MethodSpec; 9] = [
    GRPO,
    MethodSpec {
        method: Method::DrGrpo,
        name: "dr_grpo",
        shaping: GroupShaping::MeanBaseline,
        aggregation: AggregationKind::SeqMeanTokenSumNorm,
        ..GRPO
    },
    MethodSpec { method: Method::Rloo, name: "rloo", shaping: GroupShaping::Rloo, ..GRPO },
    MethodSpec {
        method: Method::Reinforce,
        name: "reinforce",
        shaping: GroupShaping::None,
        advantage: AdvantageKind::Returns { gamma_free: true },
        whiten: Whiten::Full,
        loss: PolicyLoss::Reinforce,
        ..GRPO
    },
    MethodSpec {
        method: Method::ReinforceBaseline,
        name: "reinforce_baseline",
        shaping: GroupShaping::MeanBaseline,
        whiten: Whiten::Full,
        ..GRPO
    },
    MethodSpec {
        method: Method::Gspo,
        name: "gspo",
        loss: PolicyLoss::Gspo { clip_low: 3e-4, clip_high: 4e-4 },
        aggregation: AggregationKind::SeqMeanTokenMean,
        ..GRPO
    },
    MethodSpec {
        method: Method::Cispo,
        name: "cispo",
        loss: PolicyLoss::Cispo { clip_low: 0.0, clip_high: 5.0 },
        ..GRPO
    },
    MethodSpec {
        method: Method::Sapo,
        name: "sapo",
        loss: PolicyLoss::Sapo { tau_positive: 1.0, tau_negative: 1.05 },
        aggregation: AggregationKind::SeqMeanTokenMean,
        ..GRPO
    },
    MethodSpec {
        method: Method::Ppo,
        name: "ppo",
        shaping: GroupShaping::None,
        advantage: AdvantageKind::Gae,
        whiten: Whiten::Full,
        needs_critic: true,
        ..GRPO
    },
];

impl Method {
    /// The method of that name; `unknown-method` otherwise.
    pub fn parse(name: &str) -> Result<Method> {
        if let Some(spec) = METHODS.iter().find(|spec| spec.name == name) {
            return Ok(spec.method);
        }
        let names = METHODS.map(|spec| format!("`{}`", spec.name)).join(", ");
        let error =
            Error::usage("unknown-method", format!("method is `{name}`, which is not one of {names}"));
        let same_letters = |spec: &&MethodSpec| letters(spec.name).eq(letters(name));
        Err(match METHODS.iter().find(same_letters) {
            Some(spec) => error.hint(format!("set method = \"{}\"", spec.name)),
            None => error.hint("set method = \"grpo\", which needs no critic, or another of these names"),
        })
    }

    /// Its row of the table.
    pub fn spec(self) -> &'static MethodSpec {
        &METHODS[self as usize]
    }

    /// Its name in run files.
    pub fn name(self) -> &'static str {
        self.spec().name
    }
}

impl PolicyLoss {
    /// The same loss with other clips; `None` keeps the default. SAPO and REINFORCE have none.
    pub fn with_clips(self, low: Option<f64>, high: Option<f64>) -> PolicyLoss {
        let pick = |a: f64, b: f64| (low.unwrap_or(a), high.unwrap_or(b));
        match self {
            PolicyLoss::Ppo { clip_low, clip_high, dual_clip } => {
                let (clip_low, clip_high) = pick(clip_low, clip_high);
                PolicyLoss::Ppo { clip_low, clip_high, dual_clip }
            }
            PolicyLoss::Gspo { clip_low, clip_high } => {
                let (clip_low, clip_high) = pick(clip_low, clip_high);
                PolicyLoss::Gspo { clip_low, clip_high }
            }
            PolicyLoss::Cispo { clip_low, clip_high } => {
                let (clip_low, clip_high) = pick(clip_low, clip_high);
                PolicyLoss::Cispo { clip_low, clip_high }
            }
            PolicyLoss::Sapo { .. } | PolicyLoss::Reinforce => self,
        }
    }

    /// The same loss with a dual clip; only PPO has one.
    pub fn with_dual_clip(self, dual_clip: Option<f64>) -> PolicyLoss {
        match self {
            PolicyLoss::Ppo { clip_low, clip_high, .. } => PolicyLoss::Ppo { clip_low, clip_high, dual_clip },
            other => other,
        }
    }
}

/// A name without case and punctuation, so that `Dr-GRPO` is recognised.
fn letters(name: &str) -> impl Iterator<Item = char> {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_the_order_of_the_enum() {
        for (i, spec) in METHODS.iter().enumerate() {
            assert_eq!(spec.method as usize, i, "{}", spec.name);
            assert_eq!(Method::parse(spec.name).expect("a name of the table"), spec.method);
            assert_eq!(spec.method.spec(), spec);
        }
    }

    #[test]
    fn unknown_method_names_the_known_ones() {
        for (name, hint) in
            [("Dr-GRPO", "set method = \"dr_grpo\""), ("dqn", "set method = \"grpo\", which needs no critic")]
        {
            let error = Method::parse(name).expect_err("no such method");
            assert_eq!((error.slug, error.exit), ("unknown-method", plimsoll_base::Exit::Usage));
            assert!(error.message.contains("`reinforce_baseline`"), "{error}");
            assert!(error.hints[0].starts_with(hint), "{error}");
        }
    }

    #[test]
    fn clips_of_the_run_file_replace_defaults() {
        let dapo = Method::Grpo.spec().loss.with_clips(None, Some(0.28)).with_dual_clip(Some(3.0));
        assert_eq!(dapo, PolicyLoss::Ppo { clip_low: 0.2, clip_high: 0.28, dual_clip: Some(3.0) });
        assert_eq!(Method::Sapo.spec().loss.with_clips(Some(0.1), None), Method::Sapo.spec().loss);
    }
}
