//! Teachers of the student that a run trains: a role of the run, a server, or a model with other tokens.
//!
//! `Teacher` is what a step asks of each; `open` makes the run's. A further kind is a file here with a row in `open`, a
//! variant of `TeacherKind` in `config`, and what it needs of a plan in `plan::TeacherShape`.

pub(crate) mod aligned;
mod role;
mod server;
mod spans;
mod teacher;
mod teaching;

pub use teacher::{ServerReport, Teacher};
pub(crate) use teaching::Teaching;

use aligned::AlignedTeacher;
use plimsoll_base::Result;
use plimsoll_config::{OwnTeacher, RunSpec, TeacherKind};
use plimsoll_infer::text::TextModel;
use plimsoll_plan::RoleName;
use role::RoleTeacher;
use server::ServerTeacher;

/// Opens the teacher of a run, whose arrays are not bound yet; `None` if its method has none. `vocab`: rows of the
/// student's embedding.
///
/// Errors: `teacher-endpoint-failed`, `teacher-tokenizer-mismatch`.
pub fn open(run: &RunSpec, rank: usize, text: &TextModel, vocab: usize) -> Result<Option<Box<dyn Teacher>>> {
    let Some(distill) = run.distill() else { return Ok(None) };
    Ok(Some(match distill.kind() {
        TeacherKind::Own(OwnTeacher::Now) => Box::new(RoleTeacher(RoleName::Actor)),
        TeacherKind::Own(OwnTeacher::Initial) => Box::new(RoleTeacher(RoleName::Reference)),
        TeacherKind::Model => Box::new(RoleTeacher(RoleName::TEACHER)),
        TeacherKind::Aligned => Box::new(AlignedTeacher::of(text)),
        TeacherKind::Server => Box::new(ServerTeacher::start(run, rank, &text.tokenizer, vocab)?),
    }))
}
