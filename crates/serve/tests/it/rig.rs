//! A server in this process that serves the engine of a tiny model, in a thread that ends with its test.

#[path = "../../../rollout/tests/common/mod.rs"]
mod engine;

use crate::client::Client;
use engine::World;
use engine::harness::Setup;
use plimsoll_arch::Caches;
use plimsoll_base::{DType, Result};
use plimsoll_device::{KV_BLOCK, Sampling};
use plimsoll_files::TokenizerFiles;
use plimsoll_model::PassLimits;
use plimsoll_rollout::{EngineLimits, OnFull, Request, Samples};
use plimsoll_serve::episodes::{EpisodeTable, Played, Round};
use plimsoll_serve::guard::Guard;
use plimsoll_serve::{Server, Settings, Texts};
use plimsoll_text::{ChatTemplate, Tokenizer};
use plimsoll_train::PackLimits;
use std::net::TcpListener;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

pub use engine::sampling;

/// The token that ends a response of the tiny model.
pub const EOS: u32 = 257;
/// Rows of its embedding, of which the first 256 are the bytes.
pub const VOCAB: u32 = 260;

pub const ROLES: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";

/// Holds what a server of the tests may differ in.
#[derive(Clone)]
pub struct Options {
    /// Responses that run at one time, and that wait.
    pub slots: usize,
    pub queue: usize,
    pub prompt_tokens: usize,
    pub new_tokens: usize,
    pub grace: Duration,
    pub template: Option<&'static str>,
    pub system_prompt: Option<&'static str>,
    /// How tokens are drawn unless a request says.
    pub sampling: Sampling,
    pub stop: Vec<String>,
    pub guard: Guard,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            slots: 4,
            queue: 64,
            prompt_tokens: 192,
            new_tokens: 64,
            grace: Duration::ZERO,
            template: Some(ROLES),
            system_prompt: None,
            sampling: sampling(1.0, 0),
            stop: Vec::new(),
            guard: Guard { token: None, hosts: Vec::new() },
        }
    }
}

/// A server that runs. Dropping it stops it.
pub struct Running {
    client: Client,
    stop: Arc<AtomicI32>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Deref for Running {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Running {
    /// Asks it to stop, as a signal does.
    pub fn signal(&self) {
        self.stop.store(15, Ordering::SeqCst);
    }

    /// Waits until it has ended. Returns how.
    pub fn wait(mut self) -> Result<()> {
        self.thread.take().expect("it is waited for once").join().expect("it does not panic")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Options {
    pub fn serve(self) -> Running {
        let (listener, client) = listen();
        let stop: Arc<AtomicI32> = Arc::default();
        let asked = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut world = self.world();
            let server = Server::start(&world.limits, self.texts(), self.settings(), listener, None)?;
            world.live(OnFull::WorstCase, |live| server.serve(live, None, &asked))
        });
        Running { client, stop, thread: Some(thread) }
    }

    /// Lets clients play rollouts one after the other. Each is received when it has been played, until one fails.
    pub fn play(
        self,
        table: Arc<EpisodeTable>,
        rounds: Vec<Round>,
    ) -> (Client, Receiver<Result<Vec<Played>>>) {
        let (listener, client) = listen();
        let (send, receive) = channel();
        std::thread::spawn(move || {
            let mut world = self.world();
            let server = Server::start(&world.limits, self.texts(), self.settings(), listener, Some(table));
            let server = server.expect("a thread");
            for round in rounds {
                let played = world.live(OnFull::WorstCase, |live| server.play(live, round, &mut || Ok(())));
                let fails = played.is_err();
                let _ = send.send(played.map(|(played, _)| played));
                if fails {
                    return;
                }
            }
        });
        (client, receive)
    }

    /// Returns what the engine draws for a prompt when nothing else runs and no server is between.
    pub fn alone(&self, prompt: &[u32], first_sample_id: u64, sampling: Sampling) -> Samples {
        let request = Request {
            prompts: &[prompt],
            group_size: 1,
            max_new_tokens: self.new_tokens,
            sampling,
            eos: &[EOS],
            first_sample_id,
            numbers: &[],
        };
        self.world().sample(OnFull::WorstCase, &request).expect("finite logits").0
    }

    fn world(&self) -> World {
        let context = self.prompt_tokens + self.new_tokens;
        let setup = Setup { positions: context, ..Setup::new("qwen2", DType::F32, pass()) };
        let limits = EngineLimits {
            sequences: self.slots,
            rows: self.slots.max(64),
            samples: self.slots,
            prompt_tokens: self.prompt_tokens,
            new_tokens: self.new_tokens,
            ahead: false,
            listed: 20,
            own: plimsoll_model::OwnLogits { masks: true, biases: 300 },
            caches: Caches::paged((self.slots + 1) * (context.div_ceil(KV_BLOCK) + 1)),
            drafts: None,
        };
        World::truncating(setup, limits, true)
    }

    fn texts(&self) -> Texts {
        let files = TokenizerFiles { bytes: true, ..TokenizerFiles::default() };
        Texts {
            tokenizer: Tokenizer::from_files(&files, VOCAB).expect("bytes need no file").into(),
            template: self.template.map(|text| ChatTemplate::new(text, &[]).expect("a template").into()),
            system_prompt: self.system_prompt.map(str::to_string),
            begins: true,
            eos: vec![EOS],
            vocab: VOCAB,
            images: None,
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            names: vec!["tiny".into(), "adder".into()],
            adapters: Vec::new(),
            sampling: self.sampling,
            stop: self.stop.clone(),
            keep_stop: false,
            queue: self.queue,
            grace: self.grace,
            guard: self.guard.clone(),
            grammars: 4,
        }
    }
}

fn listen() -> (TcpListener, Client) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("it has one").to_string();
    (listener, Client { at })
}

fn pass() -> PassLimits {
    let segments = PackLimits::segments_of(64, 1, 1);
    PackLimits { micro_batch_tokens: 64, prompt_tokens: 32, segments, caches: Caches::paged(0) }.pass()
}
