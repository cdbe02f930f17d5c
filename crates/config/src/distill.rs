//! `[distill]`: which teacher a method has, and what its values may be.

use super::provenance::{Origin, Provenance};
use super::sections::{Distill, Endpoint, RunFile};
use plimsoll_algo::divergence::{Divergence, DivergenceKind};
use plimsoll_algo::spans::Align;
use plimsoll_arch::LISTED_MAX;
use plimsoll_base::Result;
use plimsoll_reward::{TeacherSpec, teacher_address};

/// A teacher that has the weights of the run itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnTeacher {
    /// The weights of each step.
    Now,
    /// The weights that the run began with: with adapters the model without them, so no weights more.
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
}

/// Requires a teacher where the method has one.
pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    if !run.method.needs().teacher {
        return Ok(());
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
    endpoint(distill, at)?;
    divergence(distill, at)
}

/// Requires a server's address of a teacher that a server has.
fn endpoint(distill: &Distill, at: &Provenance) -> Result<()> {
    if !distill.is_of_endpoint() {
        return Ok(());
    }
    let Some(server) = &distill.endpoint else {
        return Err(super::de::missing_key(&at.source, at.of("distill.teacher"), "distill.endpoint.url")
            .hint("set it to the address of the teacher's server, such as \"http://127.0.0.1:8000/v1\""));
    };
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
    super::judge::variable(server.key_env.as_deref(), "distill.endpoint.key_env")
}

/// Requires numbers of a divergence through logits that it can have.
fn divergence(distill: &Distill, at: &Provenance) -> Result<()> {
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
