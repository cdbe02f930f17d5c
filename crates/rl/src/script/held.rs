//! What the responses of one request are held to, in a run whose run file holds responses to something: the masks are
//! planned by it. The form that was asked for last is kept.

use super::fault::{Fault, Served, bad_request};
use crate::context::StepContext;
use crate::roles::Trainer;
use plimsoll_infer::form::{TextForm, compile_form};
use std::sync::Arc;

/// A form by its text.
pub(super) type NamedForm = (String, Arc<TextForm>);

/// Returns the form of a request: the run file's unless it has one of its own. `kept`: the one that was asked for last.
pub(super) fn form(
    kept: &mut Option<NamedForm>,
    trainer: &Trainer<'_>,
    cx: &StepContext<'_>,
    schema: Option<&str>,
) -> Served<Option<Arc<TextForm>>> {
    let Some(schema) = schema else { return Ok(cx.text.form.clone()) };
    if cx.text.form.is_none() {
        return Err(bad_request(
            "schema: this run plans no masks",
            "set rollout.schema in the run file: \"regex:(.|\\n)*\" holds responses to nothing",
        ));
    }
    if let Some((_, form)) = kept.as_ref().filter(|(text, _)| text == schema) {
        return Ok(Some(Arc::clone(form)));
    }
    // Room for one: the old form goes before the new one comes.
    *kept = None;
    let (text, vocab) = (cx.text, trainer.sampler.shape.spec.vocab);
    let form = compile_form(schema, (&text.tokenizer, &text.ends), vocab).map_err(Fault::OfRequest)?;
    *kept = Some((schema.to_string(), Arc::clone(&form)));
    Ok(Some(form))
}
