//! `bench structured`: responses that are held to a form against free ones, in tokens a second.

use crate::{Bench, BenchOptions, RolloutSize, add_profile, bench_sampling, median, random_prompts};
use plimsoll_base::{Error, Result};
use plimsoll_config::Auto;
use plimsoll_grammar::{Grammar, GrammarMatcher, GrammarVocabulary, MASK_LANES, MaskLanes, ResponseForm};
use plimsoll_infer::bound::Sources;
use plimsoll_infer::runner::{Runner, open};
use plimsoll_infer::sampler::sampling;
use plimsoll_plan::plan_sampling;
use plimsoll_rollout::{Ask, Finish, Listener, Live, PrefixScope};
use plimsoll_text::Tokenizer;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

/// An expression with many states and few masks.
const EXPRESSION: &str = "[a-z ]{2000}";
/// Responses whose masks are computed once more, one after the other.
const REPLAYED_MAX: usize = 64;

/// A schema with parts within parts, as an extraction from a text has it; `bound`: the longest of its texts.
fn schema(bound: Option<u32>) -> Value {
    let text = match bound {
        None => json!({ "type": "string" }),
        Some(most) => json!({ "type": "string", "maxLength": most }),
    };
    let person = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "born", "role"],
        "properties": {
            "name": text, "born": { "type": "integer", "minimum": 1800, "maximum": 2100 },
            "role": { "enum": ["author", "editor", "translator"] },
        },
    });
    let part = json!({
        "type": "object", "additionalProperties": false, "required": ["heading", "pages", "notes"],
        "properties": {
            "heading": text, "pages": { "type": "integer" },
            "notes": { "type": "array", "items": text, "maxItems": 3 },
        },
    });
    json!({
        "type": "object", "additionalProperties": false, "required": ["title", "year", "open", "people", "parts"],
        "properties": {
            "title": text, "year": { "type": "integer" }, "open": { "type": "boolean" },
            "people": { "type": "array", "items": person, "minItems": 1, "maxItems": 3 },
            "parts": { "type": "array", "items": part, "minItems": 1, "maxItems": 4 },
        },
    })
}

/// Tokens of responses.
type Responses = Vec<Vec<u32>>;

/// What responses are held to.
struct Held {
    grammar: Arc<Grammar>,
    lanes: MaskLanes,
}

/// Listens to an engine whose slots are filled again when their responses end.
struct Ears<'h> {
    held: Option<&'h Held>,
    ends: &'h [u32],
    /// The response in each slot, those that have ended by themselves, and those that were cut by their length.
    drawn: Responses,
    ended: Responses,
    cut: Responses,
    tokens: usize,
    is_open: Vec<bool>,
}

impl Listener for Ears<'_> {
    fn mask(&mut self, slot: usize, words: &mut [u32]) -> Result<()> {
        self.held.expect("masks of a form").lanes.mask(slot, words)
    }

    fn drawn(&mut self, slot: usize, token: u32, _: f32) -> bool {
        self.drawn[slot].push(token);
        self.tokens += 1;
        if let Some(held) = self.held
            && !self.ends.contains(&token)
        {
            held.lanes.take(slot, token);
        }
        false
    }

    fn ended(&mut self, slot: usize, how: Result<Finish>) {
        let response = std::mem::take(&mut self.drawn[slot]);
        match how.expect("random weights give finite logits, and the forms are small") {
            Finish::Eos => self.ended.push(response),
            _ => self.cut.push(response),
        }
        self.is_open[slot] = false;
    }
}

/// Draws as many tokens as `size` has, with a new response wherever one has ended. Returns the responses that ended by
/// themselves, others as far as they came, and the tokens a second.
fn serve(
    mut live: Live<'_, '_, '_>,
    prompts: &[Vec<u32>],
    new: usize,
    (held, ends): (Option<&Held>, &[u32]),
    how: plimsoll_device::Sampling,
) -> Result<(Responses, Responses, f64)> {
    let slots = live.limits().samples;
    let mut ears = Ears {
        held,
        ends,
        drawn: vec![Vec::new(); slots],
        ended: Vec::new(),
        cut: Vec::new(),
        tokens: 0,
        is_open: vec![false; slots],
    };
    let (mut next, target) = (0, prompts.len() * new);
    let started = Instant::now();
    while ears.tokens < target {
        while ears.is_open.iter().filter(|open| **open).count() < prompts.len() {
            let ask = Ask {
                prompt: &prompts[next % prompts.len()],
                images: &[],
                sample_ids: &[next as u64],
                max_new_tokens: new,
                sampling: how,
                ends: if held.is_some() { ends } else { &[] },
                adapter: None,
                prefix: PrefixScope::default(),
                scores_prompt: false,
                named: None,
                lists: false,
                masked: held.is_some(),
                biases: &[],
            };
            let slot = live.admit(&ask).expect("a slot that is free")[0];
            if let Some(held) = held {
                held.lanes.begin(slot, &held.grammar);
            }
            ears.is_open[slot] = true;
            next += 1;
        }
        live.step(&mut ears)?;
    }
    let rate = ears.tokens as f64 / started.elapsed().as_secs_f64();
    (0..slots).filter(|slot| ears.is_open[*slot]).for_each(|slot| live.cancel(slot));
    ears.cut.extend(ears.drawn.into_iter().filter(|response| !response.is_empty()));
    Ok((ears.ended, ears.cut, rate))
}

/// Runs `bench structured`: `size.sequences` responses at one time, free, of a schema, and of an expression, in turn.
///
/// Errors: `grammar-vocabulary`; those of planning and of passes; `bench-failed` if a response is not of its form.
pub fn structured(options: &BenchOptions, size: RolloutSize) -> Result<Value> {
    let RolloutSize { sequences, prompt, new, .. } = size;
    let mut run = bench_sampling(options, sequences, 1, new);
    run.model_options.tokenizer = options.tokenizer.clone();
    run.rollout.sequences_max = Auto::Value(sequences as u32);
    // Room for masks is in the plan of what is held to a form.
    run.rollout.schema = Some(format!("regex:{EXPRESSION}"));
    let bench = Bench::open_with(options, &mut run, prompt, plan_sampling)?;
    let (vocab, ends) = (bench.spec().vocab, &bench.model.eos_token_ids);
    let tokenizer = Tokenizer::from_files(&bench.model.tokenizer, vocab)?;
    let vocabulary = GrammarVocabulary::new(&tokenizer, vocab, ends)?;
    let forms = [
        ("schema", ResponseForm::Json(schema(None))),
        ("bounded", ResponseForm::Json(schema(Some(40)))),
        ("expression", ResponseForm::Regex(EXPRESSION.to_string())),
    ];
    let mut held = Vec::new();
    for (name, form) in &forms {
        let begun = Instant::now();
        let grammar = Arc::new(vocabulary.compile(form, MASK_LANES)?);
        let compiled = begun.elapsed().as_secs_f64();
        let lanes = MaskLanes::start(MASK_LANES, sequences, vocabulary.words())?;
        held.push((*name, compiled, Held { grammar, lanes }));
    }
    let (dev, mut arena) = open(&bench.report.shape, options.opening())?;
    let mut runner = Runner::new(&*dev, &mut arena, &bench.report.shape, Sources::one(&bench.model), 0)?;
    let how = sampling(&run.rollout, 0);
    runner.rehearse_live(&[how])?;
    let prompts = random_prompts(&bench.spec(), sequences, prompt);
    let (mut free, mut rates) = (Vec::new(), vec![Vec::new(); held.len()]);
    let mut profiles = vec![json!({}); held.len() + 1];
    let mut found = vec![(Vec::new(), Vec::new()); held.len()];
    for repeat in 0..=options.repeats {
        dev.take_profile();
        let (_, _, rate) = runner.live(|live| serve(live, &prompts, new, (None, ends), how))?;
        free.extend((repeat > 0).then_some(rate));
        add_profile(&mut profiles[0], &*dev);
        for (at, (_, _, held)) in held.iter().enumerate() {
            let (ended, begun, rate) =
                runner.live(|live| serve(live, &prompts, new, (Some(held), ends), how))?;
            rates[at].extend((repeat > 0).then_some(rate));
            add_profile(&mut profiles[at + 1], &*dev);
            found[at] = (ended, begun);
        }
    }
    let mut rows = Vec::new();
    for (at, (name, compiled, of)) in held.iter().enumerate() {
        let (ended, begun) = &found[at];
        check(name, &tokenizer, ended)?;
        let (masks, distinct, seconds) = replay(&of.grammar, vocabulary.words(), begun.iter().chain(ended))?;
        let times: Vec<f64> = rates[at].iter().zip(&free).map(|(held, free)| held / free).collect();
        rows.push(json!({
            "form": name, "tokens_per_s": median(&rates[at]), "times_free": median(&times),
            "times_free_least": times.iter().copied().fold(f64::MAX, f64::min),
            "times_free_most": times.iter().copied().fold(0.0, f64::max),
            "whole_responses": ended.len(), "compile_s": compiled, "masks": masks, "distinct_masks": distinct,
            "mask_s": seconds / masks.max(1) as f64, "profile": profiles[at + 1],
        }));
    }
    let result = json!({
        "bench": "structured", "model": options.model, "sequences": sequences, "prompt_tokens": prompt,
        "new_tokens": new, "vocab": vocab, "repeats": options.repeats, "lanes": MASK_LANES,
        "free": { "tokens_per_s": median(&free), "profile": profiles[0] }, "held": rows,
    });
    Ok(crate::finish(result, &dev.machine_type(), dev.threads()))
}

/// Requires that whole responses are of their form.
fn check(name: &str, tokenizer: &Tokenizer, ended: &[Vec<u32>]) -> Result<()> {
    for response in ended {
        // Without the token that ends it.
        let text = tokenizer.decode(&response[..response.len() - 1], true);
        let is_of_form = match name {
            "schema" | "bounded" => {
                serde_json::from_str::<Value>(&text).is_ok_and(|value| value["parts"].is_array())
            }
            _ => text.len() == 2000 && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_lowercase()),
        };
        if !is_of_form {
            let text = plimsoll_base::shown(&text);
            return Err(Error::new("bench-failed", format!("a response is not of its form: {text}")));
        }
    }
    Ok(())
}

/// Computes the masks of responses again. Returns their number, how many differ, and the seconds of all.
fn replay<'r>(
    grammar: &Grammar,
    words: usize,
    responses: impl Iterator<Item = &'r Vec<u32>>,
) -> Result<(usize, usize, f64)> {
    let (mut mask, mut seen, mut masks, mut seconds) = (vec![0; words], HashSet::new(), 0, 0.0);
    for response in responses.take(REPLAYED_MAX) {
        let mut matcher: GrammarMatcher = grammar.matcher(0);
        for &token in response {
            let begun = Instant::now();
            matcher.mask(&mut mask)?;
            let done = matcher.take(token);
            seconds += begun.elapsed().as_secs_f64();
            masks += 1;
            seen.insert(mask.clone());
            // The token that ends a response is no text.
            if done.is_err() {
                break;
            }
        }
    }
    Ok((masks, seen.len(), seconds))
}

/// Returns the result in words.
pub fn words(found: &Value) -> String {
    let number = |of: &Value, key: &str| of[key].as_f64().unwrap_or(f64::NAN);
    let mut text = format!(
        "{} responses at one time: free ones {:.0} tokens/s\n",
        number(found, "sequences"),
        number(&found["free"], "tokens_per_s")
    );
    for row in found["held"].as_array().into_iter().flatten() {
        text += &format!(
            "  {:>10}: {:.0} tokens/s, {:.2} times that of free ones ({:.2} to {:.2}); {:.1} us a mask, {} of {} differ, {} whole\n",
            row["form"].as_str().unwrap_or_default(),
            number(row, "tokens_per_s"),
            number(row, "times_free"),
            number(row, "times_free_least"),
            number(row, "times_free_most"),
            1e6 * number(row, "mask_s"),
            number(row, "distinct_masks"),
            number(row, "masks"),
            number(row, "whole_responses"),
        );
    }
    text
}
