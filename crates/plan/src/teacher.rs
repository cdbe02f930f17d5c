//! What a teacher needs of a run: models with weights of their own, the passes of others, arrays of a step, and memory
//! outside them.

use crate::facts::Facts;
use crate::role_name::{PerRole, RoleName};
use crate::step_arrays::{KeptRows, Lists, StepPart};
use plimsoll_arch::{ModelSpec, Quantization};
use plimsoll_base::{Bytes, DType};
use plimsoll_config::{Distill, OwnTeacher, RunSpec};

/// A teacher as a plan sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TeacherShape {
    /// Its models with weights of their own: none if it has the run's, or if a server has them. Their dtype is the
    /// actor's.
    pub models: PerRole<ModelSpec>,
    /// How their weights are quantized, if at all.
    pub quantize: PerRole<Quantization>,
    /// True if it has weights of the run itself.
    pub has_own_weights: bool,
    /// Maximum bytes of the requests to its server; 0 without one.
    pub requests: Bytes,
    /// Tokens that it lists of each position; 0 if the student learns from the sampled ones alone.
    pub lists: usize,
    /// True if it may have other tokens than the student.
    pub aligns_text: bool,
    /// The rows that its head reads, if its whole vocabulary is compared with the student's.
    pub rows: Option<TeacherRows>,
}

/// The rows that a teacher's head reads, which are kept until the student's update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TeacherRows {
    /// The role that is the teacher.
    pub of: RoleName,
    /// Its hidden elements.
    pub width: usize,
}

impl TeacherShape {
    /// Returns the teacher of a run; none if its method has none.
    pub(crate) fn of(run: &RunSpec, facts: &Facts) -> Option<TeacherShape> {
        let distill = run.distill()?;
        // As the run says of it, or as all frozen models that are GGUF files.
        let quantize = |name: RoleName| {
            let of_all =
                (run.keeps_blocks() && facts.encodings.get(name).is_some()).then_some(Quantization::Gguf);
            distill.quantize.or(of_all)
        };
        let models =
            facts.models.teachers().fold(PerRole::none(), |all, (name, spec)| all.with(name, Some(*spec)));
        let quantize =
            models.teachers().fold(PerRole::none(), |all, (name, _)| all.with(name, quantize(name)));
        Some(TeacherShape {
            models,
            quantize,
            has_own_weights: run.own_teacher().is_some(),
            requests: run.teacher_server().map_or(Bytes(0), |server| server.memory()),
            lists: distill.listed() as usize,
            aligns_text: run.aligns_text(),
            rows: distill.is_whole().then(|| rows_of(distill, facts)),
        })
    }

    /// Returns its parts of a step's arrays. `head_rows`: the most of a micro-batch.
    pub(crate) fn parts(&self, head_rows: usize, weights: DType) -> impl Iterator<Item = StepPart> {
        let lists = Lists { tokens: self.lists, rows: head_rows };
        let rows = self.rows.map(|rows| KeptRows { bytes: rows.width * weights.bytes() as usize });
        let lists = (self.lists > 0).then_some(StepPart::Lists(lists));
        // An array for each of its models.
        let models = self.models.values().count().max(1);
        std::iter::repeat_n(StepPart::Teacher, models).chain(lists).chain(rows.map(StepPart::Rows))
    }

    /// Returns the shape of its first model; none if it has no weights of its own.
    pub(crate) fn model(&self) -> Option<&ModelSpec> {
        self.models.values().next()
    }

    /// Returns the elements of a row that a role keeps for the update: 0 unless the role is the teacher.
    pub(crate) fn kept_by(&self, name: RoleName) -> usize {
        self.rows.filter(|rows| rows.of == name).map_or(0, |rows| rows.width)
    }
}

fn rows_of(distill: &Distill, facts: &Facts) -> TeacherRows {
    let of = match distill.own_teacher() {
        Some(OwnTeacher::Now) => RoleName::Actor,
        Some(OwnTeacher::Initial) => RoleName::Reference,
        None => RoleName::TEACHER,
    };
    let spec = facts.models.get(of).unwrap_or(&facts.spec);
    TeacherRows { of, width: spec.hidden as usize }
}
