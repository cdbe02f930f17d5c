//! A server in this process, and what clients do with it.

use crate::client::Client;
use crate::wire::{datum, floats, ids, next_tokens, pass};
use plimsoll_config::{Auto, ModelDtype, Positions, RunDevice, VerbFile};
use plimsoll_tenants::{TenantServing, serve_tenants};
use plimsoll_tinker::{TinkerLimits, TokenTenants};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

pub const TOKENS: [&str; 3] = ["tml-first-0123456789", "tml-second-0123456789", "tml-third-01234567890"];
pub const BASE: &str = "nano";

/// How a server is started.
#[derive(Clone, Copy)]
pub struct How {
    pub slots: [u32; 2],
    pub rank_max: u32,
    pub dtype: ModelDtype,
    /// True to compute on the CPU, whatever else there is.
    pub on_cpu: bool,
}

pub const SMALL: How = How { slots: [2, 2], rank_max: 8, dtype: ModelDtype::Bf16, on_cpu: false };

pub struct Server {
    address: String,
    stop: Arc<AtomicI32>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(folder: &Path, how: How) -> Server {
        let mut verb = VerbFile::of("random:nano");
        verb.model_options.dtype = how.dtype;
        verb.model_options.positions = Positions::Extend;
        verb.rollout.sequences_max = Auto::Value(8);
        verb.run.threads = Auto::Value(2);
        if how.on_cpu {
            verb.run.device = Auto::Value(RunDevice::Cpu);
        }
        let (tell, heard) = channel();
        let stop = Arc::new(AtomicI32::new(0));
        let (of, folder) = (stop.clone(), folder.to_path_buf());
        let thread = std::thread::spawn(move || {
            let tokens = TOKENS.map(|token| (token.to_string(), token.to_string())).to_vec();
            let limits = TinkerLimits {
                pending_bytes: 8 << 20,
                result_bytes: 16 << 20,
                recover_bytes: 40_000,
                ..TinkerLimits::default()
            };
            let serving = TenantServing {
                name: BASE.into(),
                tokenizer: None,
                context: Some(128),
                slots: how.slots,
                rank_max: how.rank_max,
                tenants: TokenTenants::new(tokens, Vec::new()).unwrap(),
                limits,
                folder,
                listen: &mut || Ok(std::net::TcpListener::bind("127.0.0.1:0").unwrap()),
                ready: &mut |_, listener| {
                    tell.send(listener.local_addr().unwrap()).unwrap();
                    Ok(())
                },
                stop: &of,
            };
            serve_tenants(&verb, serving).unwrap();
        });
        let address = format!("http://{}/api/v1/", heard.recv().unwrap());
        Server { address, stop, thread: Some(thread) }
    }

    pub fn client(&self, tenant: usize) -> Client {
        Client::new(&self.address, TOKENS[tenant], BASE)
    }

    /// Ends it between two micro-batches, whatever waits.
    pub fn stop(mut self) {
        self.stop.store(2, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(2, Ordering::SeqCst);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A text of a tenant.
pub fn tokens(of: usize, at: u64, count: usize) -> Vec<i32> {
    (0..count as u64).map(|i| ((i * i * 7 + at * 13 + of as u64 * 31 + 5) % 13) as i32).collect()
}

/// Submits a pass of cross-entropy over two texts, as request `seq`.
pub fn learn(client: &Client, model: &str, of: usize, seq: u64) -> Value {
    let texts = [tokens(of, seq, 40), tokens(of, seq + 1, 25)];
    client.pass(&pass(model, seq, "cross_entropy", &texts.map(|text| next_tokens(&text)), &[]))
}

/// Submits a pass of a policy's loss over a text with these log-probabilities.
pub fn reinforce(
    client: &Client,
    model: &str,
    seq: u64,
    (text, logprobs, advantage): (&[i32], &[f32], f32),
) -> Value {
    let targets: Vec<i64> = text[1..].iter().map(|token| i64::from(*token)).collect();
    let inputs = [
        ("target_tokens", ids(&targets)),
        ("logprobs", floats(logprobs)),
        ("advantages", floats(&vec![advantage; targets.len()])),
    ];
    client.pass(&pass(model, seq, "importance_sampling", &[datum(&text[..text.len() - 1], &inputs)], &[]))
}

/// Saves a model for sampling, and returns the sampler.
pub fn sampler(client: &Client, model: &str, seq: u64, number: u64) -> String {
    let body = json!({
        "model_id": model, "seq_id": seq, "sampling_session_seq_id": number, "kind": "snapshot",
    });
    let saved = client.value(&client.ok("save_weights_for_sampler", &body));
    saved["sampling_session_id"].as_str().unwrap_or_else(|| panic!("{saved}")).to_string()
}

/// Asks for responses, with the likeliest tokens of each position.
pub fn sample(client: &Client, sampler: &str, seq: u64, prompt: &[i32], how: (u32, u32)) -> Value {
    sample_with(client, sampler, seq, prompt, how, [3, 2])
}

/// Asks for responses, with as many of the likeliest tokens of the prompt's positions and of the responses'.
pub fn sample_with(
    client: &Client,
    sampler: &str,
    seq: u64,
    prompt: &[i32],
    (count, most): (u32, u32),
    listed: [u32; 2],
) -> Value {
    client.ok(
        "asample",
        &json!({
            "sampling_session_id": sampler, "seq_id": seq, "num_samples": count, "prompt_logprobs": true,
            "topk_prompt_logprobs": listed[0], "topk_sample_logprobs": listed[1],
            "prompt": { "chunks": [{ "tokens": prompt, "type": "encoded_text" }] },
            "sampling_params": { "max_tokens": most, "seed": 11, "temperature": 1.0, "stop": [] },
        }),
    )
}

/// The fields of a message: numbers and bytes.
pub fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut all = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let length = match key & 7 {
            0 => {
                all.push((key >> 3, varint(&mut message).to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => varint(&mut message) as usize,
            _ => 4,
        };
        let (content, rest) = message.split_at(length);
        all.push((key >> 3, content.to_vec()));
        message = rest;
    }
    all
}

fn varint(from: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = from[0];
        *from = &from[1..];
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return value;
        }
    }
}

fn only(all: &[(u64, Vec<u8>)], field: u64) -> Vec<&[u8]> {
    all.iter().filter(|(of, _)| *of == field).map(|(_, content)| content.as_slice()).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// What was drawn, with all numbers as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawn {
    pub tokens: Vec<Vec<u32>>,
    pub logprobs: Vec<Vec<u32>>,
    pub prompt: Vec<u32>,
    /// The likeliest tokens of the prompt and of the responses, as they were sent.
    pub listed: Vec<Vec<u8>>,
}

pub fn drawn(result: &[u8]) -> Drawn {
    let all = fields(result);
    assert!(result.first() != Some(&b'{'), "{}", String::from_utf8_lossy(result));
    let sequences: Vec<_> = only(&all, 1).into_iter().map(fields).collect();
    let each = |field| sequences.iter().map(|one| words(only(one, field)[0])).collect();
    let lists = sequences.iter().map(|one| only(one, 4)).chain([only(&all, 3)]);
    let listed = lists.flat_map(|of| of.first().map(|of| of.to_vec())).collect();
    Drawn { tokens: each(2), logprobs: each(3), prompt: words(only(&all, 2)[0]), listed }
}

/// The log-probabilities of a pass's targets, as bits, all datums one after the other.
pub fn scored(result: &[u8]) -> Vec<u32> {
    assert!(result.first() != Some(&b'{'), "{}", String::from_utf8_lossy(result));
    let records = fields(result);
    let of_record = |record: &[u8]| {
        let map = fields(record);
        let entries: Vec<_> = only(&map, 2).into_iter().map(fields).collect();
        let of = entries.iter().find(|entry| only(entry, 1)[0] == b"logprobs").expect("it has log-probs");
        words(only(&fields(only(of, 2)[0]), 1)[0])
    };
    only(&records, 2).into_iter().flat_map(of_record).collect()
}
