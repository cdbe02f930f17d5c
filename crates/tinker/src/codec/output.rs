//! Writes results as clients read them: those of passes and samples as protobuf, which all clients since 0.25 require.

use super::proto::Writer;
use crate::job::{JobAnswer, Ranked, SampleAnswer, SampleEnd};
use serde::{Deserialize, Serialize};

/// float32 in protobuf's `DType`.
const F32: u64 = 1;

/// A result as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    pub is_protobuf: bool,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(value: &serde_json::Value) -> Reply {
        Reply { is_protobuf: false, body: value.to_string().into_bytes() }
    }

    /// Returns the reply to a pass. `widths`: targets of a position for each datum.
    pub fn pass(logprobs: &[Vec<f32>], widths: &[usize], metrics: &[(String, f64)]) -> Reply {
        let mut out = Writer::default();
        out.bytes(1, b"ArrayRecord");
        let mut from = 0;
        // Datums of one width are one record: its arrays have one trailing shape.
        for same in widths.chunk_by(|a, b| a == b) {
            out.message(2, &record(&logprobs[from..from + same.len()], same[0]));
            from += same.len();
        }
        for (name, value) in metrics {
            let mut entry = Writer::default();
            entry.bytes(1, name.as_bytes());
            entry.double(2, *value);
            out.message(3, &entry);
        }
        Reply { is_protobuf: true, body: out.0 }
    }

    pub fn sample(answer: &SampleAnswer) -> Reply {
        let mut out = Writer::default();
        for sequence in &answer.sequences {
            let mut one = Writer::default();
            one.integer(1, u64::from(sequence.end == SampleEnd::Length));
            one.bytes(2, &words(&sequence.tokens));
            one.bytes(3, &floats(&sequence.logprobs));
            if let Some(top) = &sequence.ranked {
                one.message(4, &ranked(top));
            }
            out.message(1, &one);
        }
        if let Some(logprobs) = &answer.prompt_logprobs {
            out.bytes(2, &floats(logprobs));
        }
        if let Some(top) = &answer.ranked_prompt {
            out.message(3, &ranked(top));
        }
        out.integer(4, u64::from(answer.cached_tokens));
        if let Some((columns, targets)) = &answer.target_prompt {
            let mut tensor = Writer::default();
            tensor.bytes(1, &floats(targets));
            tensor.integer(3, F32);
            let rows = targets.len() as u64 / u64::from((*columns).max(1));
            let mut shape = Writer::default();
            shape.varint(rows);
            shape.varint(u64::from(*columns));
            tensor.bytes(4, &shape.0);
            out.message(5, &tensor);
        }
        Reply { is_protobuf: true, body: out.0 }
    }

    /// Returns the bytes that it takes while it is kept.
    pub fn bytes(&self) -> usize {
        self.body.len() + 128
    }
}

fn record(logprobs: &[Vec<f32>], width: usize) -> Writer {
    let (mut data, mut offsets) = (Vec::new(), 0i64.to_le_bytes().to_vec());
    for row in logprobs {
        data.extend(row.iter().flat_map(|x| x.to_le_bytes()));
        offsets.extend((data.len() as i64).to_le_bytes());
    }
    let mut tensor = Writer::default();
    tensor.bytes(1, &data);
    tensor.bytes(2, &offsets);
    tensor.integer(3, F32);
    if width > 1 {
        let mut shape = Writer::default();
        shape.varint(width as u64);
        tensor.bytes(4, &shape.0);
    }
    let mut entry = Writer::default();
    entry.bytes(1, b"logprobs");
    entry.message(2, &tensor);
    let mut record = Writer::default();
    record.message(2, &entry);
    record.integer(3, logprobs.len() as u64);
    record
}

fn ranked(top: &Ranked) -> Writer {
    let mut out = Writer::default();
    out.bytes(1, &words(&top.tokens));
    out.bytes(2, &floats(&top.logprobs));
    out.integer(3, u64::from(top.k));
    out.integer(4, top.tokens.len() as u64 / u64::from(top.k.max(1)));
    out
}

fn words(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.cast_signed().to_le_bytes()).collect()
}

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Returns metrics as JSON; a number that is not finite has no place there.
pub fn metrics_json(answer: &JobAnswer) -> serde_json::Value {
    let metrics = match answer {
        JobAnswer::Step { metrics } | JobAnswer::Pass { metrics, .. } => metrics.as_slice(),
        _ => &[],
    };
    metrics.iter().map(|(name, value)| (name.clone(), serde_json::Value::from(*value))).collect()
}
