//! The live form: what a response becomes does not depend on who else runs, when it came, or who was cancelled; and it
//! is, to the bit, what the engine draws for a request alone.

use crate::common::harness::{Numbers, Setup};
use crate::common::{KEYS, World, sampling, with_states, with_windows};
use plimsoll_arch::{Cache, Caches, ModelSpec};
use plimsoll_base::{DType, Result};
use plimsoll_device::Sampling;
use plimsoll_model::PassLimits;
use plimsoll_rollout::{
    Ask, Engine, EngineLimits, Finish, Listener, Live, OnFull, PrefixScope, Request, Samples, StopCondition,
};
use plimsoll_train::PackLimits;

const NEW_TOKENS: usize = 20;
const PROMPT_TOKENS: usize = 40;
const SLOTS: usize = 6;

/// A client's request: it comes before pass `arrives` and hangs up after some tokens, if at all.
#[derive(Clone, Debug)]
pub struct Client {
    pub prompt: Vec<u32>,
    pub ids: Vec<u64>,
    pub new_tokens: usize,
    pub sampling: Sampling,
    pub ends: Vec<u32>,
    /// Its slot, or none.
    pub adapter: Option<u32>,
    /// True if only tokens of a class may follow, another one each time.
    pub masked: bool,
    pub class: usize,
    pub biases: Vec<(u32, f32)>,
    arrives: usize,
    pub hangs_up: Option<usize>,
}

pub type Drawn = (Vec<u32>, Vec<u32>, Option<Finish>);

/// Collects what each slot draws.
#[derive(Default)]
struct Ears {
    /// By slot: the client, the response, and what was drawn.
    open: Vec<Option<(usize, usize, Drawn)>>,
    done: Vec<(usize, usize, Drawn)>,
    /// Of each client.
    classes: Vec<usize>,
}

impl Listener for Ears {
    fn mask(&mut self, slot: usize, words: &mut [u32]) -> Result<()> {
        let (client, _, (ids, ..)) = self.open[slot].as_ref().expect("only open slots draw");
        put(self.classes[*client], ids.len(), words);
        Ok(())
    }

    fn drawn(&mut self, slot: usize, token: u32, logprob: f32) -> bool {
        let (.., (ids, logprobs, _)) = self.open[slot].as_mut().expect("only open slots draw");
        ids.push(token);
        logprobs.push(logprob.to_bits());
        false
    }

    fn ended(&mut self, slot: usize, how: Result<Finish>) {
        let (client, index, (ids, logprobs, _)) = self.open[slot].take().expect("a slot ends once");
        self.done.push((client, index, (ids, logprobs, Some(how.expect("finite logits")))));
    }
}

/// Writes which tokens may be at a position of the response to a client with masks: those of a class.
fn put(class: usize, position: usize, words: &mut [u32]) {
    words.fill(0);
    for token in (0..words.len() * 32).filter(|token| (token + class + position).is_multiple_of(3)) {
        words[token / 32] |= 1 << (token % 32);
    }
}

pub fn clients() -> Vec<Client> {
    let mut numbers = Numbers::new(9);
    let ways = [
        sampling(1.0, 7),
        sampling(0.0, 7),
        Sampling { top_k: 5, ..sampling(0.7, 7) },
        Sampling { top_p: 0.8, ..sampling(1.3, 8) },
        Sampling { min_p: 0.05, ..sampling(1.0, 7) },
    ];
    (0..17)
        .map(|i| {
            let length = [1, 16, 23, 33, 40, 7, 32][i % 7];
            let count = [1, 3, 1, 2][i % 4];
            Client {
                prompt: numbers.tokens(length, 15),
                ids: (0..count).map(|c| (i * 100 + c) as u64 + (1 << 40)).collect(),
                new_tokens: [NEW_TOKENS, 5, 17, 1][i % 4],
                sampling: Sampling { seed: i as u64, ..ways[i % ways.len()] },
                ends: if i % 3 == 0 { vec![] } else { vec![1, 4] },
                adapter: None,
                masked: i % 4 == 2,
                class: i,
                biases: if i % 5 == 1 { vec![(3, 2.5), (9, -100.0), (200, 1.0)] } else { vec![] },
                arrives: i * 3 / 2,
                hangs_up: (i % 5 == 3).then_some(2),
            }
        })
        .collect()
}

pub fn pass(caches: Caches) -> PassLimits {
    let segments = PackLimits::segments_of(64, 1, 1);
    PackLimits { micro_batch_tokens: 64, prompt_tokens: PROMPT_TOKENS, segments, caches }.pass()
}

pub fn limits(sequences: usize, rows: usize, blocks: usize) -> EngineLimits {
    EngineLimits {
        sequences,
        rows,
        samples: SLOTS,
        prompt_tokens: PROMPT_TOKENS,
        new_tokens: NEW_TOKENS,
        ahead: false,
        listed: 0,
        own: plimsoll_model::OwnLogits { masks: true, biases: 3 },
        caches: Caches::paged(blocks),
        drafts: None,
    }
}

fn world(dtype: DType, limits: EngineLimits, threads: usize) -> World {
    world_of(None, dtype, limits, threads)
}

fn world_of(spec: Option<ModelSpec>, dtype: DType, limits: EngineLimits, threads: usize) -> World {
    let has_states = spec.is_some_and(|spec| spec.has_states());
    let of = |caches: Caches, states| if has_states { caches.and(Cache::State, states) } else { caches };
    let setup = Setup { threads, spec, ..Setup::new("random:nano", dtype, pass(of(Caches::paged(0), 0))) };
    let caches = of(limits.caches, limits.caches.units(Cache::STATE).max(2));
    World::truncating(setup, EngineLimits { caches, ..limits }, true)
}

/// Gives the masks of one response.
pub struct Masks<'c> {
    pub client: &'c Client,
}

impl StopCondition for Masks<'_> {
    fn stops(&mut self, _: usize, _: &[u32]) -> bool {
        false
    }

    fn has_masks(&self) -> bool {
        true
    }

    fn mask(&mut self, _: usize, so_far: &[u32], words: &mut [u32]) -> Result<bool> {
        put(self.client.class, so_far.len(), words);
        Ok(self.client.masked)
    }
}

/// Returns what the engine draws for each response alone.
fn alone(spec: Option<ModelSpec>, dtype: DType, client: &Client) -> Vec<Drawn> {
    let limits = limits(1, 64, 64);
    let mut world = world_of(spec, dtype, limits, 1);
    if !client.biases.is_empty() {
        let alone = |&id: &u64| {
            let of = Client { ids: vec![id], arrives: 0, hangs_up: None, ..client.clone() };
            world.live(OnFull::WorstCase, |mut live| serve(&mut live, &[of]).remove(0).remove(0))
        };
        return client.ids.iter().map(alone).collect();
    }
    let one = |&first_sample_id: &u64| {
        let request = Request {
            prompts: &[&client.prompt],
            group_size: 1,
            max_new_tokens: client.new_tokens,
            sampling: client.sampling,
            eos: &client.ends,
            first_sample_id,
            numbers: &[],
        };
        let limits = world.limits;
        let mut engine = Engine::new(limits, OnFull::WorstCase);
        let mut out = Samples::with_capacity(limits.samples, limits.new_tokens);
        let mut stop = Masks { client };
        world.sample_until(&mut engine, &request, &mut stop, &mut out).unwrap();
        let bits = out.logprobs(0).iter().map(|l| l.to_bits()).collect();
        (out.ids(0).to_vec(), bits, Some(out.finish(0)))
    };
    client.ids.iter().map(one).collect()
}

/// Serves all clients; cancelled responses have no finish. All blocks are free again at the end.
pub fn serve(live: &mut Live<'_, '_, '_>, clients: &[Client]) -> Vec<Vec<Drawn>> {
    let classes = clients.iter().map(|client| client.class).collect();
    let mut ears = Ears { open: vec![None; SLOTS], done: Vec::new(), classes };
    let (mut next, mut pass) = (0, 0);
    loop {
        while let Some(client) = clients.get(next).filter(|client| client.arrives <= pass) {
            let ask = Ask {
                prompt: &client.prompt,
                images: &[],
                sample_ids: &client.ids,
                max_new_tokens: client.new_tokens,
                sampling: client.sampling,
                ends: &client.ends,
                adapter: client.adapter,
                prefix: PrefixScope::default(),
                scores_prompt: false,
                named: None,
                lists: false,
                masked: client.masked,
                biases: &client.biases,
            };
            let Some(slots) = live.admit(&ask) else { break };
            for (index, slot) in slots.into_iter().enumerate() {
                assert!(ears.open[slot].is_none(), "a free slot");
                ears.open[slot] = Some((next, index, Drawn::default()));
            }
            next += 1;
        }
        let ran = live.step(&mut ears).unwrap();
        pass += 1;
        if !ran && next == clients.len() {
            break;
        }
        for slot in 0..SLOTS {
            let hangs_up = |(c, _, (ids, ..)): &(usize, usize, Drawn)| {
                clients[*c].hangs_up.is_some_and(|after| after <= ids.len())
            };
            if ears.open[slot].as_ref().is_some_and(hangs_up) {
                live.cancel(slot);
                ears.done.extend(ears.open[slot].take());
            }
        }
    }
    assert_eq!((live.free_slots(), live.num_running()), (SLOTS, 0));
    let (free, total) = live.blocks();
    assert_eq!(free, total, "every block is free again");
    let mut all: Vec<Vec<Drawn>> = clients.iter().map(|c| vec![Drawn::default(); c.ids.len()]).collect();
    for (client, index, drawn) in ears.done {
        all[client][index] = drawn;
    }
    all
}

#[test]
fn a_response_does_not_depend_on_who_else_runs() {
    let clients = clients();
    for (dtype, spec) in [
        (DType::F32, None),
        (DType::Bf16, None),
        (DType::F32, Some(with_windows())),
        (DType::Bf16, Some(with_windows())),
        (DType::Bf16, Some(with_states())),
    ] {
        let expect: Vec<Vec<Drawn>> = clients.iter().map(|client| alone(spec, dtype, client)).collect();
        let most = clients.iter().map(|client| client.ids.len()).max().expect("clients");
        let mut preemptions = 0;
        for (sequences, rows, blocks, on_full, threads, ahead) in [
            (SLOTS, 512, 64, OnFull::WorstCase, 1, false),
            (SLOTS, 512, 64, OnFull::WorstCase, 1, true),
            (SLOTS, 512, 64, OnFull::Preempt, 2, false),
            (SLOTS, 8, 6, OnFull::WorstCase, 1, false),
            (SLOTS, 10, 6, OnFull::Preempt, 2, false),
            (SLOTS, 10, 6, OnFull::Preempt, 2, true),
            (2, 3, 5, OnFull::Preempt, 1, false),
            (1, 1, 64, OnFull::WorstCase, 1, false),
            (1, 1, 64, OnFull::WorstCase, 1, true),
        ] {
            let how = format!("{dtype:?} {sequences} {rows} {blocks} {on_full:?} {ahead}");
            let limits = EngineLimits { ahead, ..limits(sequences, rows, blocks) };
            let ring = Cache::Ring { keys: KEYS as usize };
            let of = |units| {
                let caches = match spec {
                    Some(spec) if spec.attentions().any(|of| of.window.is_some()) => {
                        limits.caches.and(ring, units)
                    }
                    // Those of the largest group and its prompt, or enough.
                    Some(_) => {
                        limits.caches.and(Cache::State, if blocks < 64 { 1 + most } else { 2 * SLOTS })
                    }
                    None => limits.caches,
                };
                EngineLimits { caches, ..limits }
            };
            let caches = limits.caches.and(ring, 0);
            let least = EngineLimits { caches, ..limits }.least(ring, 0, limits.context());
            let mut world = world_of(spec, dtype, of(least.max(blocks)), threads);
            let (served, count) = world.live(on_full, |mut live| {
                let served = serve(&mut live, &clients);
                (served, live.stats().preemptions)
            });
            preemptions += count;
            for (c, (served, expect)) in served.iter().zip(&expect).enumerate() {
                for (index, (served, expect)) in served.iter().zip(expect).enumerate() {
                    check(&clients[c], served, expect, &format!("{how}: client {c}, response {index}"));
                }
            }
        }
        assert!(preemptions > 0, "the blocks were to run out");
    }
}

/// A response is the one of the request alone, or its beginning where the client hung up.
fn check(client: &Client, served: &Drawn, expect: &Drawn, what: &str) {
    let is_cut = client.hangs_up.is_some_and(|after| after <= expect.0.len()) && served.2.is_none();
    if !is_cut {
        return assert_eq!(served, expect, "{what}");
    }
    let tokens = served.0.len();
    // Who hangs up is noticed when no pass runs ahead.
    assert!(client.hangs_up.is_some_and(|after| (after..after + 16).contains(&tokens)), "{what}: {tokens}");
    assert_eq!((&served.0[..], &served.1[..]), (&expect.0[..tokens], &expect.1[..tokens]), "{what}");
}

#[test]
fn an_engine_samples_as_before_after_it_was_live() {
    let prompt: Vec<u32> = vec![3; 20];
    let request = Request {
        prompts: &[&prompt],
        group_size: 2,
        max_new_tokens: 9,
        sampling: sampling(1.0, 3),
        eos: &[],
        first_sample_id: 5,
        numbers: &[],
    };
    let mut world = world(DType::F32, limits(SLOTS, 64, 64), 1);
    let (expect, _) = world.sample(OnFull::WorstCase, &request).unwrap();
    let mut engine = plimsoll_rollout::Engine::new(world.limits, OnFull::WorstCase);
    let mut out = plimsoll_rollout::Samples::with_capacity(SLOTS, NEW_TOKENS);
    let ask = Ask {
        prompt: &prompt,
        images: &[],
        sample_ids: &[1, 2, 3],
        max_new_tokens: 4,
        sampling: sampling(1.0, 3),
        ends: &[],
        adapter: None,
        prefix: PrefixScope::default(),
        scores_prompt: false,
        named: None,
        lists: false,
        masked: false,
        biases: &[],
    };
    world.live_with(&mut engine, &mut out, |mut live| {
        assert_eq!(live.admit(&ask).map(|slots| slots.len()), Some(3));
        let mut ears =
            Ears { open: vec![Some((0, 0, Drawn::default())); SLOTS], done: Vec::new(), classes: vec![0] };
        live.step(&mut ears).unwrap();
        // It is left in the middle.
    });
    world.sample_with(&mut engine, &request, &mut out).unwrap();
    for s in 0..2 {
        assert_eq!((out.ids(s), out.logprobs(s)), (expect.ids(s), expect.logprobs(s)));
    }
}

/// Two long prompts come between short requests, and a pass has fewer rows than either.
#[test]
fn a_prompt_of_many_passes_keeps_nobody_waiting() {
    const ROWS: usize = 10;
    let mut world = world(DType::F32, limits(SLOTS, ROWS, 64), 1);
    let long: Vec<u32> = Numbers::new(8).tokens(PROMPT_TOKENS, 15);
    let ask = |prompt, max_new_tokens| Ask {
        adapter: None,
        prompt,
        images: &[],
        sample_ids: &[1],
        max_new_tokens,
        sampling: sampling(1.0, 3),
        ends: &[],
        masked: false,
        biases: &[],
        prefix: PrefixScope::default(),
        scores_prompt: false,
        named: None,
        lists: false,
    };
    world.live(OnFull::WorstCase, |mut live| {
        let open = vec![Some((0, 0, Drawn::default())); SLOTS];
        let mut ears = Ears { open, done: Vec::new(), classes: vec![0] };
        let drawn = |ears: &Ears, slot: usize| ears.open[slot].as_ref().map_or(0, |(.., of)| of.0.len());
        let admit = |live: &mut Live<'_, '_, '_>, ask: &Ask<'_>| live.admit(ask).expect("a free slot")[0];
        let first = admit(&mut live, &ask(&long[..3], NEW_TOKENS));
        live.step(&mut ears).unwrap();
        let [one, two] = [admit(&mut live, &ask(&long, 1)), admit(&mut live, &ask(&long, 1))];
        let last = admit(&mut live, &ask(&long[..2], NEW_TOKENS));
        let (mut passes, mut is_done) = (0, [false; 2]);
        while is_done != [true; 2] {
            live.step(&mut ears).unwrap();
            passes += 1;
            assert_eq!(drawn(&ears, first), 1 + passes, "a token in each pass");
            // Of the nine rows that are left the first prompt has five and the second two.
            assert_eq!(drawn(&ears, last), passes, "it began in the first pass");
            is_done = [one, two].map(|slot| ears.open[slot].is_none());
        }
        // All rows of all passes but the last are taken.
        let rows = 2 * PROMPT_TOKENS + 2 + (passes - 1) + passes;
        assert_eq!(passes, rows.div_ceil(ROWS), "no row is left empty");
    });
}

#[test]
fn a_request_that_has_no_slot_is_not_taken() {
    let mut world = world(DType::F32, limits(2, 64, 64), 1);
    world.live(OnFull::Preempt, |mut live| {
        let ids = [0; SLOTS + 1];
        let ask = |count: usize| Ask {
            prompt: &[1, 2],
            images: &[],
            sample_ids: &ids[..count],
            max_new_tokens: 2,
            sampling: sampling(1.0, 3),
            ends: &[],
            adapter: None,
            prefix: PrefixScope::default(),
            scores_prompt: false,
            named: None,
            lists: false,
            masked: false,
            biases: &[],
        };
        assert!(live.admit(&ask(SLOTS + 1)).is_none());
        assert_eq!(live.admit(&ask(4)).expect("free").len(), 4);
        assert!(live.admit(&ask(3)).is_none());
        let two = live.admit(&ask(2)).expect("free");
        assert_eq!(live.free_slots(), 0);
        // One that waits and was never in a pass can be cancelled too.
        two.into_iter().for_each(|slot| live.cancel(slot));
        assert_eq!(live.free_slots(), 2);
        let mut ears =
            Ears { open: vec![Some((0, 0, Drawn::default())); SLOTS], done: Vec::new(), classes: vec![0] };
        while live.step(&mut ears).unwrap() {}
        assert_eq!((ears.done.len(), live.free_slots()), (4, SLOTS));
    });
}

/// Hears how responses end.
#[derive(Default)]
struct Ends(Vec<(usize, Result<Finish>)>);

impl Listener for Ends {
    fn drawn(&mut self, _: usize, _: u32, _: f32) -> bool {
        false
    }

    fn ended(&mut self, slot: usize, how: Result<Finish>) {
        self.0.push((slot, how));
    }
}

#[test]
fn logits_that_are_no_numbers_end_their_own_response_before_its_first_token() {
    let limits = EngineLimits { ahead: true, ..limits(SLOTS, 64, 64) };
    let of = |biases| Ask {
        prompt: &[3; 20],
        images: &[],
        sample_ids: &[1],
        max_new_tokens: 4,
        sampling: sampling(1.0, 3),
        ends: &[],
        adapter: None,
        prefix: PrefixScope::default(),
        scores_prompt: false,
        named: None,
        lists: false,
        masked: false,
        biases,
    };
    world(DType::F32, limits, 1).live(OnFull::WorstCase, |mut live| {
        live.keep_prefixes();
        let [broken, whole] = [&[(3, f32::NAN)][..], &[]].map(|biases| live.admit(&of(biases)).unwrap()[0]);
        let mut ends = Ends::default();
        while live.step(&mut ends).unwrap() {}
        assert_eq!(ends.0.len(), 2);
        for (slot, how) in ends.0 {
            match how {
                Ok(finish) => assert_eq!((slot, finish), (whole, Finish::Length)),
                Err(error) => assert_eq!((slot, error.slug), (broken, "rollout-not-finite")),
            }
        }
        assert_eq!(live.free_slots(), SLOTS);
    });
}
