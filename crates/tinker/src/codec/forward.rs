//! Reads the body of `forward_backward`: a protobuf message, maybe compressed, into datums whose sizes fit.

use super::proto::{WireFields, entry};
use super::tensor::{self, Dense, Numbers};
use crate::job::TrainDatum;
use crate::limits::{DATUMS_MAX, ELEMENTS_MAX, TARGETS_MAX, TOKENS_MAX};
use crate::losses::{self, LossRow};
use plimsoll_algo::sum_loss::SumLoss;
use plimsoll_base::{Error, Result, shown};

/// Most entries of the map of options.
const OPTIONS_MAX: usize = 64;
/// Largest log of a window that a compressed body may need: 8 MiB.
const WINDOW_LOG_MAX: u32 = 23;

/// A pass that a client asks for.
#[derive(Debug, PartialEq)]
pub struct PassRequest {
    pub datums: Vec<TrainDatum>,
    pub loss: SumLoss,
    pub forward_only: bool,
}

/// The model and the place in its order, which are known even where the rest is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassHead {
    pub model: String,
    /// 0: none was given.
    pub seq: i64,
}

/// Decompresses a body of zstd to at most `most` bytes.
///
/// Errors: `tinker-bad-request`.
pub fn decompressed(body: &[u8], most: usize) -> Result<Vec<u8>> {
    use std::io::Read;
    let bad =
        |err: &std::io::Error| Error::new("tinker-bad-request", format!("the body's zstd stream: {err}"));
    let mut reader = zstd::stream::read::Decoder::with_buffer(body).map_err(|err| bad(&err))?;
    reader.window_log_max(WINDOW_LOG_MAX).map_err(|err| bad(&err))?;
    let mut bytes = Vec::new();
    reader.take(most as u64 + 1).read_to_end(&mut bytes).map_err(|err| bad(&err))?;
    if bytes.len() > most {
        let message = format!("the body decompresses to more than {most} bytes");
        return Err(Error::new("tinker-bad-request", message).hint("send fewer datums in one request"));
    }
    Ok(bytes)
}

/// Reads the model and the order of a request alone.
///
/// Errors: `tinker-bad-request`.
pub fn head(bytes: &[u8]) -> Result<PassHead> {
    let (mut fields, mut head) = (WireFields::of("ForwardBackwardRequest", bytes), PassHead::default());
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => head.model = value.text("model_id")?.into(),
            2 => head.seq = value.integer("seq_id")?,
            _ => {}
        }
    }
    Ok(head)
}

/// Reads a request. `vocab`: ids are below it.
///
/// Errors: `tinker-bad-request`, `tinker-unknown-loss`, `tinker-unknown-key`, `tinker-no-images`.
pub fn read(bytes: &[u8], vocab: u32) -> Result<PassRequest> {
    let mut fields = WireFields::of("ForwardBackwardRequest", bytes);
    let (mut datums, mut name, mut options, mut forward_only) = (Vec::new(), "", Vec::new(), false);
    while let Some((number, value)) = fields.next()? {
        match number {
            3 if datums.len() == DATUMS_MAX => {
                let message = format!("the request has more than {DATUMS_MAX} datums");
                return Err(Error::new("tinker-bad-request", message).hint("send fewer in one request"));
            }
            3 => datums.push(value.bytes("data")?),
            4 => name = value.text("loss_fn")?,
            5 | 7 => options.extend(option(value.bytes("loss_fn_config")?, number == 7)?),
            6 => forward_only = value.integer("forward_only")? != 0,
            _ => {}
        }
        if options.len() > OPTIONS_MAX {
            return Err(Error::new(
                "tinker-bad-request",
                format!("loss_fn_config has more than {OPTIONS_MAX} keys"),
            ));
        }
    }
    let row = losses::find(name)?;
    let loss = row.with(&options)?;
    if datums.is_empty() {
        return Err(Error::new("tinker-bad-request", "the request has no datum"));
    }
    let mut room = ELEMENTS_MAX;
    let read = datums.iter().enumerate().map(|(i, bytes)| {
        datum(bytes, (row, vocab), &mut room).map_err(|mut error| {
            error.message = format!("data[{i}]: {}", error.message);
            error
        })
    });
    Ok(PassRequest { datums: read.collect::<Result<_>>()?, loss, forward_only })
}

/// Returns an option, unless its value is left out, which is what a text is in the older of the two maps.
fn option(bytes: &[u8], is_new: bool) -> Result<Option<(String, f64)>> {
    let (key, value) = entry("loss_fn_config", bytes)?;
    let Some(value) = value else { return Ok(None) };
    let key = shown(key).into_owned();
    if !is_new {
        return Ok(Some((key, value.double("loss_fn_config")?)));
    }
    let mut fields = WireFields::of("LossConfigValue", value.bytes("loss_fn_config_v2")?);
    let mut number = None;
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => number = Some(value.double(&key)?),
            2 => {
                let message = format!("loss_fn_config {key} = {:?} is a text", shown(value.text(&key)?));
                return Err(
                    Error::new("tinker-bad-request", message).hint("the options of losses are numbers")
                );
            }
            _ => {}
        }
    }
    Ok(number.map(|number| (key, number)))
}

fn datum(bytes: &[u8], (row, vocab): (&LossRow, u32), room: &mut usize) -> Result<TrainDatum> {
    let mut fields = WireFields::of("Datum", bytes);
    let (mut tokens, mut inputs) = (Vec::new(), Vec::new());
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => chunk(value.bytes("model_input")?, &mut tokens)?,
            2 => {
                let (name, value) = entry("loss_fn_inputs", value.bytes("loss_fn_inputs")?)?;
                let known = row.needs.iter().chain(row.may).copied();
                let Some(name) = known.clone().find(|known| *known == name) else {
                    return Err(row.unknown("input", name, known));
                };
                let value = value.map_or(Ok(&[][..]), |value| value.bytes(name))?;
                let dense = tensor::read(name, value, *room)?;
                *room -= dense.shape.iter().product::<usize>();
                // As in every map of protobuf, the last of equal keys counts.
                inputs.retain(|(other, _)| *other != name);
                inputs.push((name, dense));
            }
            _ => {}
        }
    }
    assemble(tokens, inputs, row, vocab)
}

fn chunk(bytes: &[u8], tokens: &mut Vec<u32>) -> Result<()> {
    let mut fields = WireFields::of("Chunk", bytes);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => {
                let mut text = WireFields::of("EncodedTextChunk", value.bytes("encoded_text")?);
                while let Some((number, value)) = text.next()? {
                    if number == 1 {
                        tokens.extend(value.tokens("model_input")?);
                    }
                }
            }
            2 => return Err(no_images("an image")),
            3 => return Err(no_images("audio (dmel)")),
            _ => {}
        }
    }
    if tokens.len() > TOKENS_MAX {
        return Err(bad(format!("model_input has more than {TOKENS_MAX} tokens")));
    }
    Ok(())
}

/// Refuses a part of a prompt that is not text.
pub fn no_images(what: &str) -> Error {
    Error::new(
        "tinker-no-images",
        format!("model_input has {what}, and models here read text by this protocol"),
    )
    .hint("serve images over chat completions; train on them with a run file")
}

fn assemble(
    tokens: Vec<u32>,
    mut inputs: Vec<(&'static str, Dense)>,
    row: &LossRow,
    vocab: u32,
) -> Result<TrainDatum> {
    let n = tokens.len();
    if n == 0 {
        return Err(bad("model_input has no token"));
    }
    if let Some(token) = tokens.iter().find(|token| **token >= vocab) {
        return Err(bad(format!("model_input has the token {token}, and the model's ids are below {vocab}")));
    }
    if let Some(missing) = row.needs.iter().find(|name| !inputs.iter().any(|(given, _)| given == *name)) {
        return Err(bad(format!("{} needs the input {missing:?}", row.name))
            .hint(format!("it needs {:?}", row.needs)));
    }
    let mut take = |name: &str| {
        let at = inputs.iter().position(|(given, _)| *given == name);
        at.map(|at| inputs.swap_remove(at).1)
    };
    let targets = take("target_tokens").expect("every loss needs it");
    let width = if targets.shape.len() == 2 { targets.shape[1] } else { 1 };
    let may_be_wide = row.needs.len() == 1;
    if targets.shape[0] != n || width == 0 || width > TARGETS_MAX || (width > 1 && !may_be_wide) {
        let most =
            if may_be_wide { format!("[{n}] or [{n}, up to {TARGETS_MAX}]") } else { format!("[{n}]") };
        return Err(bad(format!(
            "target_tokens has the shape {:?}, and {} takes {most}",
            targets.shape, row.name
        )));
    }
    let shape = targets.shape.clone();
    let targets = ids(targets, vocab)?;
    let mut floats = |name: &str| match take(name) {
        Some(dense) if dense.shape.iter().product::<usize>() != n * width || dense.shape[0] != n => {
            Err(bad(format!("{name} has the shape {:?}, and target_tokens {shape:?}", dense.shape)))
        }
        Some(dense) => floats(name, dense),
        None => Ok(Vec::new()),
    };
    let mut weights = floats("weights")?;
    if may_be_wide && weights.is_empty() {
        weights = vec![1.0; n * width];
    }
    let [old_logp, advantages, ratio_mask] =
        [floats("logprobs")?, floats("advantages")?, floats("sequence_ratio_mask")?];
    Ok(TrainDatum { tokens, targets, width, weights, old_logp, advantages, ratio_mask })
}

fn ids(targets: Dense, vocab: u32) -> Result<Vec<u32>> {
    let Numbers::Integers(numbers) = targets.numbers else {
        return Err(bad("target_tokens has a dtype of fractions").hint("send int64"));
    };
    let id = |number: i64| u32::try_from(number).ok().filter(|id| *id < vocab);
    let found = numbers.into_iter().map(|number| id(number).ok_or(number));
    found.collect::<std::result::Result<_, i64>>().map_err(|number| {
        bad(format!("target_tokens has {number}, and the model's ids are 0 to {}", vocab.saturating_sub(1)))
            .hint("a token that is not to count has the weight or the advantage 0, and any id")
    })
}

/// Returns a tensor's numbers as f32.
fn floats(name: &str, dense: Dense) -> Result<Vec<f32>> {
    let floats = match dense.numbers {
        Numbers::Floats(floats) => floats,
        Numbers::Integers(integers) => integers.into_iter().map(|x| x as f32).collect(),
    };
    if let Some(at) = floats.iter().position(|x| !x.is_finite()) {
        return Err(bad(format!("{name}[{at}] is {}", floats[at])));
    }
    Ok(floats)
}

fn bad(message: impl Into<String>) -> Error {
    Error::new("tinker-bad-request", message)
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
