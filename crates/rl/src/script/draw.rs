//! Prompts, and responses to them, drawn and graded by the functions of a run's own rollout.

use super::fault::{Fault, Served, bad_array, bad_request, too_large};
use super::held::form;
use super::link::Numbers;
use super::peer::Script;
use super::room::ScriptArrays;
use super::step::{ScriptStep, begins};
use super::verbs::SampleHow;
use crate::context::StepContext;
use crate::players::respond;
use crate::roles::Trainer;
use crate::supply::group::SampleGroup;
use crate::supply::rollout::{Rollout, StepSamples};
use crate::supply::whole::count_drawn;
use plimsoll_config::Rollout as RolloutKeys;
use plimsoll_infer::grading::GradedRequest;
use plimsoll_infer::model_reward;
use plimsoll_infer::responder::Responder;
use plimsoll_infer::sampler::sampling;
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_reward::Scored;
use plimsoll_rollout::{Finish, Request, Samples};
use plimsoll_run::checkpoint::BufferState;
use plimsoll_run::status::Doing;
use plimsoll_text::{StopMatcher, prompts_of_lines};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

/// Positions of prompts are below this: no run comes as far.
const POSITION_MAX: u64 = 1 << 48;

impl Script {
    /// Answers with the next `count` prompts of the data, and moves past them.
    pub(super) fn prompts(&mut self, cx: &mut StepContext<'_>, count: u32) -> Served<()> {
        let most = self.arrays().limits().sequences;
        if count == 0 || count as usize > most {
            let what = format!("{count} prompts at once, the plan has room for {most}");
            return Err(too_large(what, "ask for some at a time, or raise rollout.prompts_per_step"));
        }
        let first = cx.cursor.data_position;
        let items = (cx.prompts)(first, count as usize)?;
        cx.cursor.data_position += u64::from(count);
        let positions: Vec<u64> = (first..first + u64::from(count)).collect();
        let mut rows = String::new();
        for item in &items {
            let messages = item.messages.as_deref();
            let row = json!({ "prompt": item.text, "messages": messages, "columns": &*item.columns });
            rows += &row.to_string();
            rows.push('\n');
        }
        let arrays = [("positions", Numbers::U64(&positions)), ("rows", Numbers::U8(vec![rows.as_bytes()]))];
        self.link.answer(json!({}), &arrays)?;
        Ok(())
    }

    /// Draws responses to prompts, grades them if asked, and answers with both.
    pub(super) fn sample(
        &mut self,
        made: &mut ScriptStep,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        how: &SampleHow,
    ) -> Served<()> {
        made.no_gradients_wait("sample")?;
        let items = items(self.arrays(), cx)?;
        let rollout = self.rollout(cx, how, &items)?;
        let form = form(&mut self.form, trainer, cx, how.schema.as_deref())?;
        let text = &TextModel { form, ..cx.text.clone() };
        let (size, shape) = (how.n as usize, trainer.sampler.shape);
        let room = self.arrays().limits().sequences.min(shape.engine.samples);
        if size == 0 || items.len() * size > room {
            let what =
                format!("{} prompts with {size} responses each, the plan has room for {room}", items.len());
            return Err(too_large(what, "sample in parts, or raise rollout.prompts_per_step"));
        }
        let longest = items.iter().map(|item| item.ids.len()).max().unwrap_or(0);
        if longest > shape.engine.prompt_tokens {
            let what =
                format!("a prompt of {longest} tokens, the plan has room for {}", shape.engine.prompt_tokens);
            return Err(too_large(what, format!("set data.prompt_tokens_max = {longest}")));
        }
        if how.grade {
            let columns = items.iter().map(|item| cx.rewards.check_columns(&item.columns));
            columns.collect::<plimsoll_base::Result<()>>().map_err(Fault::OfRequest)?;
        }
        // Their room is drawn into again.
        made.samples = None;
        begins(cx, Doing::Rollout);
        let ids: Vec<&[u32]> = items.iter().map(|item| item.ids.as_slice()).collect();
        let first_sample_id = if how.seed.is_some() { 0 } else { cx.cursor.next_sample_id };
        let request = Request {
            prompts: &ids,
            group_size: size,
            max_new_tokens: rollout.max_new_tokens as usize,
            sampling: sampling(&rollout, how.seed.unwrap_or(cx.run.seed)),
            eos: cx.eos,
            first_sample_id,
            numbers: &[],
        };
        let steps = [made.step, cx.run.train().steps];
        let of = GradedRequest { request, items: &items, text, rollout: &rollout, steps };
        let graders = if how.grade {
            (&mut *cx.rewards, &cx.run.model_rewards[..])
        } else {
            (&mut self.no_rewards, &[][..])
        };
        let (scored, texts) = respond(trainer, graders, &of, &mut *cx.edge, &mut made.gathered)?;
        count_drawn(trainer, (&items, size), None, &mut made.gathered);
        if how.grade {
            scored.chunks(size).for_each(|group| made.gathered.count_group(group));
        }
        if how.seed.is_none() {
            cx.cursor.next_sample_id += (items.len() * size) as u64;
        }
        self.answer_samples(trainer, cx, (&items, how), (&scored, &texts), rollout.temperature)?;
        if how.grade {
            let positions = self.arrays().positions.clone();
            made.samples = Some(kept((made.step, positions), trainer, items, scored, texts));
        }
        Ok(())
    }

    /// Returns how responses are drawn: as the run file says, with the request's changes.
    fn rollout(&self, cx: &StepContext<'_>, how: &SampleHow, items: &[Item]) -> Served<RolloutKeys> {
        let mut rollout = cx.run.rollout.clone();
        if items.is_empty() {
            return Err(bad_request("no prompts", "give at least one"));
        }
        if let Some(temperature) = how.temperature {
            if !temperature.is_finite() || temperature < 0.0 {
                return Err(bad_request(format!("temperature is {temperature}"), "give 0 or more"));
            }
            rollout.temperature = temperature;
        }
        if let Some(most) = how.max_new_tokens {
            if most == 0 || most > rollout.max_new_tokens {
                let what =
                    format!("max_new_tokens is {most}, the plan has room for {}", rollout.max_new_tokens);
                return Err(too_large(what, "raise rollout.max_new_tokens"));
            }
            rollout.max_new_tokens = most;
        }
        if let Some(stop) = &how.stop {
            StopMatcher::new(stop).map_err(Fault::OfRequest)?;
            rollout.stop = stop.clone();
        }
        Ok(rollout)
    }

    fn answer_samples(
        &mut self,
        trainer: &Trainer<'_>,
        cx: &StepContext<'_>,
        (items, how): (&[Item], &SampleHow),
        (scored, texts): (&[Scored], &[String]),
        temperature: f64,
    ) -> Served<()> {
        let samples: &Samples = &trainer.sampler.samples;
        let all = 0..samples.len();
        let ends = offsets(all.clone().map(|s| samples.ids(s).len()));
        let prompt_ends = offsets(items.iter().map(|item| item.ids.len()));
        let text_ends = offsets(texts.iter().map(String::len));
        let finish: Vec<u8> = all.clone().map(|s| number_of(samples.finish(s))).collect();
        let or_nan = |score: Option<f32>| score.unwrap_or(f32::NAN);
        let rewards: Vec<f32> = scored.iter().map(|scored| or_nan(scored.total)).collect();
        let names =
            if how.grade { model_reward::names(cx.rewards, &cx.run.model_rewards) } else { Vec::new() };
        let parts: Vec<f32> =
            (0..names.len()).flat_map(|k| scored.iter().map(move |scored| or_nan(scored.parts[k]))).collect();
        let header = json!({
            "version": trainer.updates(),
            "temperature": temperature,
            "n": how.n,
            "rewards": names,
        });
        let arrays = [
            ("tokens", Numbers::U32(all.clone().map(|s| samples.ids(s)).collect())),
            ("logprobs", Numbers::F32(all.map(|s| samples.logprobs(s)).collect())),
            ("offsets", Numbers::U32(vec![&ends])),
            ("finish", Numbers::U8(vec![&finish])),
            ("prompts", Numbers::U32(items.iter().map(|item| &item.ids[..]).collect())),
            ("prompt_offsets", Numbers::U32(vec![&prompt_ends])),
            ("texts", Numbers::U8(texts.iter().map(String::as_bytes).collect())),
            ("text_offsets", Numbers::U32(vec![&text_ends])),
            ("rewards", Numbers::F32(vec![&rewards])),
            ("parts", Numbers::F32(vec![&parts])),
        ];
        self.link.answer(header, &arrays)?;
        Ok(())
    }
}

/// Returns the prompts of a request: positions of the data, rows of the script's own, or tokens.
fn items(arrays: &ScriptArrays, cx: &mut StepContext<'_>) -> Served<Vec<Item>> {
    let given = [!arrays.positions.is_empty(), !arrays.rows.is_empty(), !arrays.prompts.is_empty()];
    if given.iter().filter(|given| **given).count() != 1 {
        return Err(bad_request("prompts are positions, rows or tokens", "give one of them"));
    }
    if let Some(position) = arrays.positions.iter().find(|position| **position >= POSITION_MAX) {
        return Err(bad_array("positions", format!("{position} is none of the data")));
    }
    if !arrays.rows.is_empty() {
        return rows(arrays, cx);
    }
    if !arrays.prompts.is_empty() {
        let of = |ids: &[u32]| {
            let text = cx.text.tokenizer.decode(ids, false);
            Item { ids: ids.to_vec(), text, ..Item::default() }
        };
        return Ok(arrays.prompts()?.into_iter().map(of).collect());
    }
    let mut items = Vec::with_capacity(arrays.positions.len());
    for position in &arrays.positions {
        items.extend((cx.prompts)(*position, 1)?);
    }
    Ok(items)
}

/// Returns rows of the script's own as prompts.
fn rows(arrays: &ScriptArrays, cx: &StepContext<'_>) -> Served<Vec<Item>> {
    let (mut items, most) = (Vec::new(), arrays.limits().sequences);
    let mut many = false;
    let read = prompts_of_lines(Path::new("prompts"), &arrays.rows[..], "prompt", |row| {
        many |= items.len() == most;
        if !many {
            items.push(cx.text.item(row)?);
        }
        Ok(())
    });
    read.map_err(Fault::OfRequest)?;
    if many {
        return Err(too_large(format!("more than {most} prompts"), "sample in parts"));
    }
    if items.iter().any(|item| item.ids.is_empty()) {
        return Err(bad_request("a prompt without a token", "give it some text"));
    }
    Ok(items)
}

/// Returns samples as the step's report and its metrics read them.
fn kept(
    (step, positions): (u32, Vec<u64>),
    trainer: &Trainer<'_>,
    items: Vec<Item>,
    scored: Vec<Scored>,
    texts: Vec<String>,
) -> StepSamples {
    let size = scored.len() / items.len();
    let (mut scored, mut texts) = (scored.into_iter(), texts.into_iter());
    let groups: Vec<SampleGroup> = items
        .into_iter()
        .enumerate()
        .map(|(index, item)| SampleGroup {
            // Prompts of the script's own are counted from 0.
            position: positions.get(index).copied().unwrap_or(index as u64),
            item,
            scored: scored.by_ref().take(size).collect(),
            texts: texts.by_ref().take(size).collect(),
            branches: None,
            greedy: None,
        })
        .collect();
    let of = BufferState { step, policy_version: trainer.updates(), groups: 0 };
    let samples = Arc::clone(&trainer.sampler.samples);
    let all = 0..groups.len();
    let rollout = Arc::new(Rollout { of, groups, samples, versions: Vec::new() });
    StepSamples { rollout, groups: all, stale: Vec::new(), is_recorded: true }
}

/// Returns where each of several parts begins, and the end of the last.
fn offsets(lengths: impl Iterator<Item = usize>) -> Vec<u32> {
    let mut end = 0;
    std::iter::once(0)
        .chain(lengths.map(|length| {
            end += length as u32;
            end
        }))
        .collect()
}

const fn number_of(finish: Finish) -> u8 {
    match finish {
        Finish::Eos => 0,
        Finish::Stop => 1,
        Finish::Length => 2,
    }
}
