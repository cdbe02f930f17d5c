//! Samplers and samples.

use super::call::{Answer, Call};
use super::json::{count, promised};
use crate::codec::sample;
use crate::job::SaveKind;
use crate::limits::SAMPLES_MAX;
use crate::names;
use crate::record::{Record, RequestTask, SamplerRow};
use plimsoll_base::{Error, Result};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Create {
    session_id: String,
    sampling_session_seq_id: i64,
    base_model: Option<String>,
    model_path: Option<String>,
}

/// Makes a sampler of a base model, or of saved weights. Again with the same number it is the same sampler.
pub fn create(call: &Call<'_>) -> Result<Answer> {
    let body: Create = call.json()?;
    let id =
        names::sampler_id(&body.session_id, count("sampling_session_seq_id", body.sampling_session_seq_id)?);
    let mut core = call.tinker.lock();
    core.session(call.tenant, &body.session_id)?;
    let (base_model, store) = match &body.model_path {
        None => {
            let Some(name) = &body.base_model else {
                return Err(Error::new("tinker-bad-request", "a sampler needs base_model or model_path"));
            };
            (call.tinker.base_model(name)?.name.clone(), None)
        }
        Some(path) => {
            let (_, kind, _) = names::parts(path)?;
            let saved = core.saved(call.tenant, path)?;
            if kind == SaveKind::External {
                return Err(Error::new("tinker-bad-request", format!("{path:?} is for other programs"))
                    .hint("save_weights_for_sampler makes weights to sample with"));
            }
            (saved.adapter.base_model.clone(), Some(saved.store))
        }
    };
    let session = body.session_id;
    let row = SamplerRow {
        tenant: call.tenant.to_string(),
        session,
        base_model,
        model_path: body.model_path,
        store,
    };
    let value = json!({ "type": "create_sampling_session", "sampling_session_id": id });
    if let Ok(known) = core.sampler(call.tenant, &id) {
        if known.model_path != row.model_path || known.base_model != row.base_model {
            let message = format!("there is a sampler {id:?} already, of something else");
            return Err(Error::new("tinker-order", message));
        }
        return Ok(Answer::Now(value));
    }
    core.check_things(call.tenant)?;
    let heard = call.tinker.commit_heard(&mut core, Record::Sampler { id, row });
    Ok(Answer::After(value, heard))
}

/// Accepts a sample. The ids of its sequences are answered at once.
pub fn sample(call: &Call<'_>) -> Result<Answer> {
    let body = sample::parse(call.body)?;
    let (sampler, seq, samples) = (body.sampling_session_id.clone(), body.seq_id, body.num_samples);
    let Some(sampler) = sampler else {
        return Err(Error::new("tinker-bad-request", "asample needs sampling_session_id")
            .hint("create_sampling_session makes one; clients since 0.25 do so"));
    };
    let row = call.tinker.lock().sampler(call.tenant, &sampler)?.clone();
    let base = call.tinker.base_model(&row.base_model)?;
    // Where the client gives no seed, the place of the request is one, so that a restart draws the same.
    let seed = seed_of(&sampler, seq.unwrap_or(0));
    let mut job = sample::job(body, base.vocab, base.context, seed)?;
    (job.base_model, job.store) = (row.base_model, row.store);
    debug_assert!(samples <= SAMPLES_MAX, "it was read within its bounds");
    let task = RequestTask::Sample(Box::new(job));
    let place = seq.unwrap_or_else(|| -(call.tinker.lock().next_number() as i64));
    let (number, heard) = call.tinker.submit(call.tenant, (&sampler, Some(place)), task)?;
    let ids: Vec<String> = (0..samples).map(|i| format!("{sampler}:{place}:{i}")).collect();
    let Answer::After(mut value, heard) = promised(number, None, heard) else {
        unreachable!("it comes later")
    };
    value["sample_sequence_ids"] = Value::from(ids);
    Ok(Answer::After(value, heard))
}

fn seed_of(sampler: &str, seq: i64) -> u64 {
    let mut seed = u64::from(crc32fast::hash(sampler.as_bytes())) << 32;
    seed ^= seq.cast_unsigned();
    seed
}
