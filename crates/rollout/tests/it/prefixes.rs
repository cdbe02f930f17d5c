//! Keys that prompts share: a response has the same bits whether they were there or not, however passes were cut, and
//! its scope decides who shares.

use crate::common::harness::{Numbers, Setup};
use crate::common::{World, sampling, with_states};
use plimsoll_arch::{Cache, Caches, ModelSpec};
use plimsoll_base::{DType, Result};
use plimsoll_device::KV_BLOCK;
use plimsoll_model::PassLimits;
use plimsoll_rollout::{Ask, EngineLimits, Finish, Listener, Live, OnFull, PrefixScope, Request};
use plimsoll_train::PackLimits;

const PROMPT_TOKENS: usize = 120;
pub const NEW_TOKENS: usize = 40;
pub const SLOTS: usize = 5;
pub const VOCAB: u32 = 260;

type Drawn = (Vec<u32>, Vec<u32>);

struct Client {
    prompt: Vec<u32>,
    ids: Vec<u64>,
    new_tokens: usize,
    prefix: PrefixScope,
    reads_prefix: bool,
}

impl Client {
    fn new(prompt: Vec<u32>, ids: &[u64]) -> Client {
        let prefix = PrefixScope::default();
        Client { prompt, ids: ids.to_vec(), new_tokens: NEW_TOKENS, prefix, reads_prefix: true }
    }
}

/// What each slot works on and has drawn, and how many tokens of its prompt were found.
#[derive(Default)]
struct Ears {
    open: Vec<Option<(usize, usize, usize, Drawn)>>,
    done: Vec<(usize, usize, usize, Drawn)>,
}

impl Listener for Ears {
    fn begun(&mut self, slot: usize, cached_tokens: usize) {
        let (_, _, found, (ids, _)) = self.open[slot].as_mut().expect("only open slots begin");
        assert!(ids.is_empty(), "it begins once");
        *found = cached_tokens;
    }

    fn drawn(&mut self, slot: usize, token: u32, logprob: f32) -> bool {
        let (.., (ids, logprobs)) = self.open[slot].as_mut().expect("only open slots draw");
        ids.push(token);
        logprobs.push(logprob.to_bits());
        false
    }

    fn ended(&mut self, slot: usize, how: Result<Finish>) {
        how.expect("finite logits");
        self.done.extend(self.open[slot].take());
    }
}

fn world(dtype: DType, size: [usize; 3], threads: usize) -> World {
    world_that_lists(0, dtype, size, threads, false)
}

/// With a model that has states, of which `units` are there.
fn world_with_states(
    dtype: DType,
    [sequences, rows, blocks, units]: [usize; 4],
    threads: usize,
    ahead: bool,
) -> World {
    let of = |caches: Caches, units| caches.and(Cache::State, units);
    let segments = PackLimits::segments_of(64, 1, 1);
    let caches = of(Caches::paged(0), 0);
    let pass = PackLimits { micro_batch_tokens: 64, prompt_tokens: 32, segments, caches }.pass();
    let positions = PROMPT_TOKENS + NEW_TOKENS;
    let spec = Some(ModelSpec { max_positions: positions as u32, ..with_states() });
    let setup = Setup { threads, positions, spec, ..Setup::new("random:nano", dtype, pass) };
    let limits = EngineLimits {
        sequences,
        rows,
        samples: SLOTS,
        prompt_tokens: PROMPT_TOKENS,
        new_tokens: NEW_TOKENS,
        ahead,
        listed: 0,
        own: plimsoll_model::OwnLogits::NONE,
        caches: of(Caches::paged(blocks), units),
        drafts: None,
    };
    World::truncating(setup, limits, true)
}

pub fn world_that_lists(
    listed: usize,
    dtype: DType,
    [sequences, rows, blocks]: [usize; 3],
    threads: usize,
    ahead: bool,
) -> World {
    let segments = PackLimits::segments_of(64, 1, 1);
    let pass: PassLimits =
        PackLimits { micro_batch_tokens: 64, prompt_tokens: 32, segments, caches: Caches::paged(0) }.pass();
    let setup = Setup { threads, positions: PROMPT_TOKENS + NEW_TOKENS, ..Setup::new("qwen2", dtype, pass) };
    let limits = EngineLimits {
        sequences,
        rows,
        samples: SLOTS,
        prompt_tokens: PROMPT_TOKENS,
        new_tokens: NEW_TOKENS,
        ahead,
        listed,
        own: plimsoll_model::OwnLogits { masks: true, biases: 1 },
        caches: Caches::paged(blocks),
        drafts: None,
    };
    World::truncating(setup, limits, true)
}

/// Serves clients, each as soon as there is a slot. Returns by client and response the tokens found and what was drawn.
fn serve(live: &mut Live<'_, '_, '_>, clients: &[Client]) -> Vec<Vec<(usize, Drawn)>> {
    let mut ears = Ears { open: vec![None; SLOTS], ..Ears::default() };
    let mut next = 0;
    loop {
        while let Some(client) = clients.get(next) {
            let ask = Ask {
                adapter: None,
                prompt: &client.prompt,
                images: &[],
                sample_ids: &client.ids,
                max_new_tokens: client.new_tokens,
                sampling: sampling(1.0, 5),
                ends: &[],
                masked: false,
                biases: &[],
                prefix: client.prefix,
                scores_prompt: !client.reads_prefix,
                named: None,
                lists: false,
            };
            let Some(slots) = live.admit(&ask) else { break };
            for (index, slot) in slots.into_iter().enumerate() {
                ears.open[slot] = Some((next, index, 0, Drawn::default()));
            }
            next += 1;
        }
        if !live.step(&mut ears).unwrap() && next == clients.len() {
            break;
        }
    }
    let (free, total) = live.blocks();
    assert_eq!((free, live.free_slots()), (total, SLOTS), "everything is free again");
    let mut all: Vec<Vec<(usize, Drawn)>> =
        clients.iter().map(|c| vec![Default::default(); c.ids.len()]).collect();
    for (client, index, found, drawn) in ears.done {
        all[client][index] = (found, drawn);
    }
    all
}

fn alone(dtype: DType, client: &Client) -> Vec<Drawn> {
    alone_in(world(dtype, [1, 64, 64], 1), client)
}

fn alone_in(mut world: World, client: &Client) -> Vec<Drawn> {
    let one = |&first_sample_id: &u64| {
        let request = Request {
            prompts: &[&client.prompt],
            group_size: 1,
            max_new_tokens: client.new_tokens,
            sampling: sampling(1.0, 5),
            eos: &[],
            first_sample_id,
            numbers: &[],
        };
        let (out, _) = world.sample(OnFull::WorstCase, &request).unwrap();
        (out.ids(0).to_vec(), out.logprobs(0).iter().map(|l| l.to_bits()).collect())
    };
    client.ids.iter().map(one).collect()
}

/// Prompts that begin alike, at and between the ends of blocks; the same one again; and second turns of a chat.
fn clients(dtype: DType) -> Vec<Client> {
    let mut numbers = Numbers::new(3);
    let text = numbers.tokens(PROMPT_TOKENS, VOCAB);
    let mut clients = Vec::new();
    for (i, (shared, own)) in
        [(70, 9), (70, 9), (64, 0), (64, 1), (90, 0), (16, 5), (17, 0), (1, 0), (64, 0), (100, 20)]
            .into_iter()
            .enumerate()
    {
        let prompt = [&text[..shared], &numbers.tokens(own, VOCAB)].concat();
        let ids: Vec<u64> = (0..[1, 2, 1][i % 3]).map(|n| (10 * i + n) as u64).collect();
        clients.push(Client::new(prompt, &ids));
    }
    let first = alone(dtype, &clients[5]).remove(0);
    let next = [&clients[5].prompt[..], &first.0, &[7, 8, 9]].concat();
    clients.push(Client::new(next, &[500, 501]));
    clients
}

#[test]
fn a_response_has_the_same_bits_whether_keys_of_its_prompt_were_there() {
    for dtype in [DType::F32, DType::Bf16] {
        let clients = clients(dtype);
        let expect: Vec<Vec<Drawn>> = clients.iter().map(|client| alone(dtype, client)).collect();
        for (size, on_full, threads, ahead) in [
            ([SLOTS, 512, 100], OnFull::WorstCase, 2, false),
            ([SLOTS, 512, 100], OnFull::WorstCase, 1, true),
            ([SLOTS, 24, 100], OnFull::Preempt, 1, false),
            ([SLOTS, 7, 14], OnFull::Preempt, 2, true),
            ([2, 5, 13], OnFull::WorstCase, 1, false),
        ] {
            let mut found = [0, 0];
            for keeps in [false, true] {
                let mut world = world_that_lists(0, dtype, size, threads, ahead);
                let served = world.live(on_full, |mut live| {
                    if keeps {
                        live.keep_prefixes();
                    }
                    [serve(&mut live, &clients), serve(&mut live, &clients)]
                });
                for (client, expect) in expect.iter().enumerate() {
                    for served in &served {
                        let what = format!("{dtype:?} {size:?} {on_full:?} {keeps}: client {client}");
                        let drawn: Vec<&Drawn> = served[client].iter().map(|(_, drawn)| drawn).collect();
                        assert_eq!(drawn, expect.iter().collect::<Vec<_>>(), "{what}");
                        found[usize::from(keeps)] += served[client][0].0;
                    }
                }
                if keeps && size[2] == 100 {
                    // The second time all full blocks before the last row are there, and of the second turn of a chat
                    // those of the first answer were there the first time.
                    let whole = |client: usize| (clients[client].prompt.len() - 1) / KV_BLOCK * KV_BLOCK;
                    let again: Vec<usize> = served[1].iter().map(|of| of[0].0).collect();
                    assert_eq!(again, (0..clients.len()).map(whole).collect::<Vec<_>>(), "{size:?}");
                    assert!(served[0][10][0].0 >= 48, "{:?}", served[0][10][0].0);
                }
            }
            assert!(found[0] == 0 && found[1] > 0, "{size:?}: {found:?}");
        }
    }
}

#[test]
fn of_prompts_that_come_at_one_time_the_first_computes_what_they_share() {
    let text = Numbers::new(4).tokens(112, VOCAB);
    let clients: Vec<Client> =
        (0..SLOTS as u64).map(|i| Client::new([&text[..], &[i as u32]].concat(), &[i])).collect();
    let mut world = world(DType::F32, [SLOTS, 512, 100], 1);
    let rows = |live: &Live<'_, '_, '_>| live.stats().rows as usize;
    let [plain, kept] = [false, true].map(|keeps| {
        world.live(OnFull::Preempt, |mut live| {
            if keeps {
                live.keep_prefixes();
            }
            serve(&mut live, &clients);
            rows(&live)
        })
    });
    assert_eq!(plain - kept, (SLOTS - 1) * 112);
}

#[test]
fn only_requests_of_one_scope_share_keys() {
    let text = Numbers::new(5).tokens(50, VOCAB);
    let of = |weights, salt, reads_prefix| Client {
        prefix: PrefixScope { weights: [weights; 32], salt: [salt; 32] },
        reads_prefix,
        ..Client::new(text.clone(), &[1])
    };
    let mut world = world(DType::F32, [1, 512, 100], 1);
    let found: Vec<usize> = world.live(OnFull::Preempt, |mut live| {
        live.keep_prefixes();
        let clients =
            [of(0, 0, true), of(1, 0, true), of(0, 1, true), of(0, 0, true), of(1, 0, false), of(1, 0, true)];
        serve(&mut live, &clients).iter().map(|of| of[0].0).collect()
    });
    assert_eq!(found, [0, 0, 0, 48, 0, 48]);
}

/// A state is kept at the end of what prompts have in common, and at that of a prompt's last full block.
#[test]
fn a_model_with_states_begins_where_one_is_kept() {
    let mut numbers = Numbers::new(12);
    let text = numbers.tokens(PROMPT_TOKENS, 15);
    let clients: Vec<Client> = [(96, 9), (96, 9), (96, 12), (80, 0), (112, 3), (20, 0), (96, 9), (97, 0)]
        .into_iter()
        .enumerate()
        .map(|(i, (shared, own))| {
            let prompt = [&text[..shared], &numbers.tokens(own, 15)].concat();
            Client::new(prompt, if i % 3 == 1 { &[1, 2] } else { &[3] })
        })
        .collect();
    for dtype in [DType::F32, DType::Bf16] {
        let one = || world_with_states(dtype, [1, 64, 64, 2], 1, false);
        let expect: Vec<Vec<Drawn>> = clients.iter().map(|client| alone_in(one(), client)).collect();
        for (size, on_full, threads, ahead) in [
            ([SLOTS, 512, 100, 24], OnFull::WorstCase, 2, true),
            ([SLOTS, 24, 100, 24], OnFull::Preempt, 1, false),
            ([SLOTS, 7, 100, 4], OnFull::WorstCase, 1, false),
            ([SLOTS, 9, 14, 6], OnFull::Preempt, 2, true),
            ([2, 5, 13, 3], OnFull::WorstCase, 1, false),
        ] {
            let mut world = world_with_states(dtype, size, threads, ahead);
            let [first, again] = world.live(on_full, |mut live| {
                live.keep_prefixes();
                [serve(&mut live, &clients), serve(&mut live, &clients)]
            });
            for served in [&first, &again] {
                for (client, (served, expect)) in served.iter().zip(&expect).enumerate() {
                    let drawn: Vec<&Drawn> = served.iter().map(|(_, drawn)| drawn).collect();
                    let what = format!("{dtype:?} {size:?} {on_full:?}: client {client}");
                    assert_eq!(drawn, expect.iter().collect::<Vec<_>>(), "{what}");
                }
            }
            if size[3] == 24 {
                let found: Vec<usize> = again.iter().map(|of| of[0].0).collect();
                assert_eq!(found[..3], [96; 3], "{size:?}: {found:?}");
                assert!(first[6][0].0 == 96 && found[4] >= 96, "{size:?}: {found:?}");
            }
        }
    }
}
