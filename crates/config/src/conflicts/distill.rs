//! What does not go together in `[distill]`: with where the teacher is, what it says of a token, and rewards.

use super::setting::{Case, Conflict, Setting, first, no, when, which};
use super::shared::ENVIRONMENT;
use crate::OwnTeacher;
use crate::estimator::Estimator;
use crate::sections::{Distill, RunFile};
use crate::spec::sequences_per_step;
use crate::values::DynamicSampling;
use plimsoll_algo::advantage::Advantage;
use plimsoll_algo::divergence::DivergenceKind;

/// Lists the settings that make a small run one with a teacher.
macro_rules! taught {
    ($($set:literal),*) => { &["method=distill", "distill.teacher=t", $($set),*] };
    (server $($set:literal),*) => {
        &["method=distill", "distill.teacher=endpoint", "distill.endpoint.url=http://127.0.0.1:1/v1", $($set),*]
    };
    (own $($set:literal),*) => {
        &["method=distill", "distill.teacher=initial", "distill.prompt={prompt} {ground_truth}", $($set),*]
    };
}

const ENDPOINT: Setting = when(
    "distill.teacher",
    "distill.teacher = \"endpoint\"",
    |run| of(run, Distill::is_of_endpoint),
    taught![server],
);
const OWN: Setting = when(
    "distill.teacher",
    "distill.teacher = \"self\" or \"initial\"",
    |run| of(run, |distill| distill.own_teacher().is_some()),
    taught![own],
);
const THROUGH_LOGITS: Setting = when(
    "distill.divergence",
    "distill.divergence other than \"sampled\"",
    |run| of(run, |distill| distill.divergence().is_some()),
    &["method=distill", "distill.divergence=forward", "distill.top_k=8"],
);
const SPANS: Setting = when(
    "distill.align",
    "distill.align = \"text\"",
    |run| of(run, Distill::aligns_text),
    &["distill.align=text"],
);
const CODED: Setting = when(
    "distill.quantize",
    "distill.quantize",
    |run| of(run, |distill| distill.quantize.is_some()),
    &["distill.quantize=nf4"],
);

/// True of a run with a teacher that is so.
fn of(run: &RunFile, is_so: fn(&Distill) -> bool) -> bool {
    run.method.needs().teacher && run.distill.as_ref().is_some_and(is_so)
}

/// Returns a key that shapes rewards.
fn shaping(case: &Case) -> Option<String> {
    let loss = &case.run.loss;
    let kept = loss.advantage.as_ref().filter(|advantage| **advantage != Estimator::Named(Advantage::None));
    first([
        ("loss.advantage", kept.is_some()),
        ("loss.dynamic_sampling", loss.dynamic_sampling.and_then(DynamicSampling::filter).is_some()),
        ("loss.overlong_buffer", loss.overlong_buffer.is_some()),
    ])
}

/// Returns the key that makes several updates of a step.
fn updates(case: &Case) -> Option<String> {
    let (rollout, train) = (&case.run.rollout, &case.run.train);
    let sequences =
        sequences_per_step(case.run.method.needs().learns_from, rollout.prompts_per_step, rollout.group_size);
    first([
        ("train.epochs_per_rollout", train.epochs_per_rollout > 1),
        ("train.mini_batch", train.mini_batch.is_some_and(|size| u64::from(size) < sequences)),
    ])
}

pub(super) const ROWS: &[Conflict] = &[
    no(
        when(
            "distill.endpoint",
            "[distill.endpoint]",
            |run| of(run, |distill| distill.endpoint.is_some()),
            &["method=distill", "distill.endpoint.url=http://127.0.0.1:1/v1"],
        ),
        when(
            "distill.teacher",
            "a distill.teacher other than \"endpoint\"",
            |run| of(run, |distill| !distill.is_of_endpoint() && !distill.teacher.is_empty()),
            taught![],
        ),
        "which is opened here",
        "set distill.teacher = \"endpoint\", or remove [distill.endpoint]",
    ),
    no(
        THROUGH_LOGITS,
        ENDPOINT,
        "which has one number a token",
        "set distill.divergence = \"sampled\", or distill.teacher to a model that is opened here",
    ),
    no(
        when(
            "rollout.temperature",
            "rollout.temperature other than 1",
            |run| run.rollout.temperature != 1.0,
            &["rollout.temperature=0.7"],
        ),
        ENDPOINT,
        "and servers give log-probabilities at temperature 1",
        "set rollout.temperature = 1.0",
    ),
    no(CODED, ENDPOINT, "whose weights are the server's", "remove distill.quantize"),
    no(
        when(
            "distill.teacher",
            "distill.teacher = \"self\" or \"initial\"",
            |run| of(run, |distill| distill.own_teacher().is_some()),
            &["method=distill", "distill.teacher=initial"],
        ),
        when(
            "distill.prompt",
            "no distill.prompt",
            |run| of(run, |distill| distill.prompt.is_none()),
            &["method=distill", "distill.teacher=initial"],
        ),
        "and with the same prompt it knows no more than the student",
        "set distill.prompt to what the teacher reads, such as \"{prompt} The answer is {ground_truth}.\"",
    ),
    no(CODED, OWN, "which has the weights of the run", "remove distill.quantize"),
    no(
        when(
            "distill.prompt",
            "distill.prompt",
            |run| of(run, |distill| distill.prompt.is_some()),
            taught![own],
        ),
        ENVIRONMENT,
        "which makes the prompts",
        "remove distill.prompt",
    ),
    no(
        SPANS,
        when(
            "distill.divergence",
            "distill.divergence other than \"sampled\"",
            |run| of(run, |distill| distill.divergence().is_some()),
            taught!["distill.divergence=forward"],
        ),
        "which compares tokens",
        "set distill.divergence = \"sampled\", or distill.align = \"tokens\"",
    ),
    no(SPANS, OWN, "which has the student's tokens", "remove distill.align"),
    no(
        SPANS,
        ENDPOINT,
        "whose tokenizer is the server's",
        "set distill.teacher to a model that is opened here, or remove distill.align",
    ),
    no(
        when(
            "distill.align",
            "distill.align = \"text\"",
            |run| of(run, Distill::aligns_text),
            taught!["distill.align=text"],
        ),
        ENVIRONMENT,
        "whose words are between those of the student",
        "remove distill.align, or the [environment]",
    ),
    no(
        which(
            "distill.*",
            "distill.top_k or jsd_beta",
            |case| {
                let distill = case.run.distill.as_ref().filter(|_| of(case.run, |_| true))?;
                first([
                    ("distill.top_k", distill.top_k.is_some()),
                    ("distill.jsd_beta", distill.jsd_beta.is_some()),
                ])
            },
            taught!["distill.jsd_beta=0.5"],
        ),
        when(
            "distill.divergence",
            "distill.divergence = \"sampled\"",
            |run| of(run, |distill| distill.divergence().is_none()),
            taught![],
        ),
        "which has one number a token",
        "set distill.divergence = \"reverse\", \"forward\" or \"jsd\", or remove {key}",
    ),
    no(
        when(
            "distill.jsd_beta",
            "distill.jsd_beta",
            |run| of(run, |distill| distill.jsd_beta.is_some()),
            taught!["distill.jsd_beta=0.5"],
        ),
        when(
            "distill.divergence",
            "distill.divergence = \"reverse\" or \"forward\"",
            |run| {
                let mixes = [DivergenceKind::Jsd, DivergenceKind::Sampled];
                run.distill.as_ref().is_some_and(|distill| !mixes.contains(&distill.divergence))
                    && run.method.needs().teacher
            },
            taught!["distill.divergence=forward"],
        ),
        "which has no mixture",
        "set distill.divergence = \"jsd\", or remove distill.jsd_beta",
    ),
    no(
        when(
            "distill.reward_coef",
            "distill.reward_coef above 0",
            |run| of(run, |distill| distill.reward_coef != 0.0),
            taught!["distill.reward_coef=0.5"],
        ),
        when(
            "reward",
            "no [[reward]] and no [environment]",
            |run| run.reward.is_empty() && run.environment.is_none(),
            &["-reward", "method=distill", "distill.teacher=t"],
        ),
        "and nothing scores its samples",
        "add a [[reward]], or remove distill.reward_coef",
    ),
    no(
        which(
            "loss.*",
            "loss.advantage, dynamic_sampling or overlong_buffer",
            shaping,
            &["loss.dynamic_sampling=true"],
        ),
        when(
            "distill.reward_coef",
            "distill.reward_coef = 0",
            |run| of(run, |distill| distill.reward_coef == 0.0),
            taught![],
        ),
        "which only reports rewards",
        "set distill.reward_coef = 1.0, or remove {key}",
    ),
    no(
        which("train.*", "several updates of a step", updates, &["train.epochs_per_rollout=2"]),
        when(
            "distill.teacher",
            "distill.teacher = \"self\" with neither distill.top_k nor [lora]",
            |run| {
                let whole =
                    |distill: &Distill| distill.is_whole() && distill.own_teacher() == Some(OwnTeacher::Now);
                of(run, whole) && run.lora.is_none()
            },
            &[
                "method=distill",
                "distill.teacher=self",
                "distill.prompt={ground_truth} {prompt}",
                "distill.divergence=jsd",
            ],
        ),
        "and no distill.top_k: each update of a step changes the teacher's head",
        "remove {key}, for one update a step; or set distill.top_k = 64, whose lists are made once, or distill.teacher = \"initial\"",
    ),
];
