//! `[distill]`: the method with a teacher has it, no other method does, and what rewards do follows from `reward_coef`.

use super::limits::contradiction;
use super::provenance::{Origin, Provenance};
use super::sections::{Distill, Endpoint, RunFile};
use super::values::DynamicSampling;
use crate::estimator::Estimator;
use plimsoll_algo::advantage::Advantage;
use plimsoll_algo::divergence::{Divergence, DivergenceKind};
use plimsoll_algo::spans::Align;
use plimsoll_arch::LISTED_MAX;
use plimsoll_base::Result;
use plimsoll_reward::{TeacherSpec, teacher_address};

/// A teacher that has the weights of the run itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnTeacher {
    /// As they are in each step.
    Now,
    /// As they were when the run began: with adapters the model without them, so no weights more.
    Initial,
}

/// Who the teacher of a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeacherKind {
    Own(OwnTeacher),
    /// A model with weights of its own and the student's tokens.
    Model,
    /// A model that may have other tokens: texts are aligned.
    Aligned,
    /// The model of a server.
    Server,
}

/// The name of a teacher that a server has.
const ENDPOINT: &str = "endpoint";

/// The teacher's part of a mixture, where `distill.jsd_beta` is absent.
const JSD_BETA: f64 = 0.5;

impl Distill {
    /// Returns the divergence that is differentiated through logits; none if sampled tokens have advantages.
    pub fn divergence(&self) -> Option<Divergence> {
        match self.divergence {
            DivergenceKind::Sampled => None,
            DivergenceKind::Reverse => Some(Divergence::Reverse),
            DivergenceKind::Forward => Some(Divergence::Forward),
            DivergenceKind::Jsd => Some(Divergence::Jsd { beta: self.jsd_beta.unwrap_or(JSD_BETA) }),
        }
    }

    /// Returns the tokens that the teacher lists of each position; 0 if it lists none.
    pub fn listed(&self) -> u32 {
        self.divergence().and(self.top_k).unwrap_or(0)
    }

    /// True if the student learns a divergence over the whole vocabulary: one without a list.
    pub fn is_whole(&self) -> bool {
        self.divergence().is_some() && self.top_k.is_none()
    }

    /// Returns who the teacher is.
    pub fn kind(&self) -> TeacherKind {
        match (self.teacher.as_str(), self.align) {
            ("self", _) => TeacherKind::Own(OwnTeacher::Now),
            ("initial", _) => TeacherKind::Own(OwnTeacher::Initial),
            (ENDPOINT, _) => TeacherKind::Server,
            (_, Align::Text) => TeacherKind::Aligned,
            (_, Align::Tokens) => TeacherKind::Model,
        }
    }

    /// Returns which weights of the run are the teacher's; none of another model.
    pub fn own_teacher(&self) -> Option<OwnTeacher> {
        if let TeacherKind::Own(own) = self.kind() { Some(own) } else { None }
    }

    /// True if the teacher may have other tokens than the student.
    pub fn aligns_text(&self) -> bool {
        self.align == Align::Text
    }

    /// True if the teacher is the model of a server.
    pub fn is_of_endpoint(&self) -> bool {
        self.kind() == TeacherKind::Server
    }

    /// Returns the names of a teacher's models that are to be opened.
    pub fn teacher_models(&self) -> impl Iterator<Item = &str> {
        let is_opened = matches!(self.kind(), TeacherKind::Model | TeacherKind::Aligned);
        is_opened.then_some(self.teacher.as_str()).into_iter()
    }

    /// Returns how a teacher on a server is asked.
    pub fn teacher_server(&self) -> Option<TeacherSpec> {
        let of = |endpoint: &Endpoint| TeacherSpec {
            url: endpoint.url.clone(),
            model: endpoint.model.clone(),
            key_env: endpoint.key_env.clone(),
            timeout_ms: endpoint.timeout_ms,
            retries: endpoint.retries,
            workers: endpoint.workers,
        };
        self.endpoint.as_ref().filter(|_| self.is_of_endpoint()).map(of)
    }
}

impl RunFile {
    /// True if samples are compared by their rewards: of a method with a teacher, only where rewards count.
    pub(super) fn learns_from_rewards(&self) -> bool {
        !self.method.needs().teacher
            || self.distill.as_ref().is_some_and(|distill| distill.reward_coef != 0.0)
    }

    /// True if something scores its samples.
    fn scores_samples(&self) -> bool {
        !self.reward.is_empty() || self.environment.is_some()
    }
}

/// Requires a teacher where the method has one, and refuses keys without an effect.
pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    if !run.method.needs().teacher {
        let Some(_) = &run.distill else { return Ok(()) };
        let message = format!("[distill] is set, but method `{}` has no teacher", run.method);
        return Err(
            contradiction(at, "distill", &message).hint("set method = \"distill\", or remove [distill]")
        );
    }
    let Some(distill) = &run.distill else {
        return Err(super::de::missing_key(&at.source, &Origin::Default, "distill.teacher")
            .fact("method `distill` learns from a teacher, which scores what the student samples")
            .hint("set distill.teacher to a model with the tokenizer of `model`"));
    };
    if distill.teacher.is_empty() {
        return Err(at
            .error("bad-value", "distill.teacher", "`distill.teacher` is empty")
            .hint("set it to hf:org/name, a folder, a GGUF file or RUN_DIR/checkpoints/latest"));
    }
    endpoint(run, distill, at)?;
    prompts(run, distill, at)?;
    align(run, distill, at)?;
    divergence(distill, at)?;
    rewards(run, distill, at)
}

/// Requires a server's address of a teacher that a server has, and refuses what its log-probabilities cannot do.
fn endpoint(run: &RunFile, distill: &Distill, at: &Provenance) -> Result<()> {
    let Some(server) = &distill.endpoint else {
        if !distill.is_of_endpoint() {
            return Ok(());
        }
        return Err(super::de::missing_key(&at.source, at.of("distill.teacher"), "distill.endpoint.url")
            .hint("set it to the address of the teacher's server, such as \"http://127.0.0.1:8000/v1\""));
    };
    let contrary =
        |key: &str, message: &str, hint: &str| Err(contradiction(at, key, message).hint(hint.to_string()));
    if !distill.is_of_endpoint() {
        let message = format!("[distill.endpoint] with distill.teacher = \"{}\"", distill.teacher);
        return contrary(
            "distill.endpoint",
            &message,
            "set distill.teacher = \"endpoint\", or remove [distill.endpoint]",
        );
    }
    if server.url.is_empty() {
        return Err(super::de::missing_key(&at.source, at.of("distill.endpoint"), "distill.endpoint.url"));
    }
    if let Err(what) = teacher_address(&server.url) {
        return Err(at
            .error("bad-value", "distill.endpoint.url", &format!("`distill.endpoint.url` is {what}"))
            .hint(
                "set it to the address of an OpenAI-compatible server, such as \"http://127.0.0.1:8000/v1\"",
            )
            .hint("a key belongs in an environment variable, which distill.endpoint.key_env names"));
    }
    super::judge::variable(server.key_env.as_deref(), "distill.endpoint.key_env")?;
    if distill.divergence().is_some() {
        let message = format!(
            "distill.divergence = \"{}\" with distill.teacher = \"endpoint\", which has one number a token",
            distill.divergence
        );
        return contrary(
            "distill.divergence",
            &message,
            "set distill.divergence = \"sampled\", or distill.teacher to a model that is opened here",
        );
    }
    if run.rollout.temperature != 1.0 {
        let message = format!(
            "rollout.temperature = {} with distill.teacher = \"endpoint\": servers give log-probabilities at temperature 1",
            run.rollout.temperature
        );
        return contrary("rollout.temperature", &message, "set rollout.temperature = 1.0");
    }
    match distill.quantize {
        None => Ok(()),
        Some(_) => contrary(
            "distill.quantize",
            "distill.quantize with distill.teacher = \"endpoint\", whose weights are the server's",
            "remove distill.quantize",
        ),
    }
}

/// Refuses spans of text where there are none, or where their teacher gives no numbers for them.
fn align(run: &RunFile, distill: &Distill, at: &Provenance) -> Result<()> {
    if distill.align == Align::Tokens {
        return Ok(());
    }
    let (key, why, hint) = if distill.divergence().is_some() {
        let why = format!("with distill.divergence = \"{}\", which compares tokens", distill.divergence);
        ("distill.divergence", why, "set distill.divergence = \"sampled\", or distill.align = \"tokens\"")
    } else if distill.own_teacher().is_some() {
        let why = format!("with distill.teacher = \"{}\", which has the student's tokens", distill.teacher);
        ("distill.align", why, "remove distill.align")
    } else if distill.is_of_endpoint() {
        let why = "with distill.teacher = \"endpoint\", whose tokenizer is the server's".to_string();
        ("distill.align", why, "set distill.teacher to a model that is opened here, or remove distill.align")
    } else if run.environment.is_some() {
        let why = "with an [environment], whose words are between those of the student".to_string();
        ("distill.align", why, "remove distill.align, or the [environment]")
    } else {
        return Ok(());
    };
    Err(contradiction(at, key, &format!("distill.align = \"text\" {why}")).hint(hint))
}

/// Requires keys that belong to a divergence through logits, and refuses them elsewhere.
fn divergence(distill: &Distill, at: &Provenance) -> Result<()> {
    let kind = distill.divergence;
    if distill.divergence().is_none() {
        let keys =
            [("distill.top_k", distill.top_k.is_some()), ("distill.jsd_beta", distill.jsd_beta.is_some())];
        let Some((key, _)) = keys.into_iter().find(|(_, set)| *set) else { return Ok(()) };
        let message = format!("{key} with distill.divergence = \"sampled\", which has one number a token");
        return Err(contradiction(at, key, &message)
            .hint(format!("set distill.divergence = \"reverse\", \"forward\" or \"jsd\", or remove {key}")));
    }
    if distill.jsd_beta.is_some() && kind != DivergenceKind::Jsd {
        let message = format!("distill.jsd_beta with distill.divergence = \"{kind}\", which has no mixture");
        return Err(contradiction(at, "distill.jsd_beta", &message)
            .hint("set distill.divergence = \"jsd\", or remove distill.jsd_beta"));
    }
    if distill.jsd_beta.is_some_and(|beta| !(beta > 0.0 && beta < 1.0)) {
        return Err(at
            .error("bad-value", "distill.jsd_beta", "`distill.jsd_beta` is not between 0 and 1")
            .hint("for its ends set distill.divergence = \"forward\" (0) or \"reverse\" (1)"));
    }
    match distill.top_k {
        None | Some(1..=LISTED_MAX) => Ok(()),
        Some(k) => Err(at
            .error("bad-value", "distill.top_k", &format!("`distill.top_k` is {k}"))
            .hint(format!("set it to 1 to {LISTED_MAX}, such as 64"))
            .hint("or remove it: without it the whole vocabulary is compared")),
    }
}

/// Requires another prompt of a teacher that is the student, and refuses one where an environment makes the prompts.
fn prompts(run: &RunFile, distill: &Distill, at: &Provenance) -> Result<()> {
    if distill.own_teacher().is_some() && distill.prompt.is_none() {
        let message = format!(
            "distill.teacher = \"{}\" without distill.prompt: with the same prompt it knows no more than the student",
            distill.teacher
        );
        return Err(contradiction(at, "distill.teacher", &message)
            .hint("set distill.prompt to what the teacher reads, such as \"{prompt} The answer is {ground_truth}.\""));
    }
    if distill.own_teacher().is_some() && distill.quantize.is_some() {
        let message = format!(
            "distill.quantize with distill.teacher = \"{}\", which has the weights of the run",
            distill.teacher
        );
        return Err(contradiction(at, "distill.quantize", &message).hint("remove distill.quantize"));
    }
    if distill.prompt.is_some() && run.environment.is_some() {
        let message = "distill.prompt with an [environment], which makes the prompts";
        return Err(contradiction(at, "distill.prompt", message).hint("remove distill.prompt"));
    }
    Ok(())
}

/// Requires rewards where they count, and that no key shapes rewards which do not.
fn rewards(run: &RunFile, distill: &Distill, at: &Provenance) -> Result<()> {
    if run.learns_from_rewards() {
        if run.scores_samples() {
            return Ok(());
        }
        let message = format!("distill.reward_coef = {}, and there is no [[reward]]", distill.reward_coef);
        return Err(contradiction(at, "distill.reward_coef", &message)
            .hint("add a [[reward]], or remove distill.reward_coef"));
    }
    let loss = &run.loss;
    let filters = loss.dynamic_sampling.and_then(DynamicSampling::filter).is_some();
    let kept = loss.advantage.as_ref().filter(|advantage| **advantage != Estimator::Named(Advantage::None));
    let shaping = [
        ("loss.advantage", kept.is_some()),
        ("loss.dynamic_sampling", filters),
        ("loss.overlong_buffer", loss.overlong_buffer.is_some()),
    ];
    match shaping.into_iter().find(|(_, set)| *set) {
        None => Ok(()),
        Some((key, _)) => {
            let message = format!("{key} is of rewards, which distill.reward_coef = 0 only reports");
            Err(contradiction(at, key, &message)
                .hint(format!("set distill.reward_coef = 1.0, or remove {key}")))
        }
    }
}
