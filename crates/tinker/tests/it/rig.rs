//! A server with the fake engine.

pub use crate::client::Client;
use crate::fake::{self, CONTEXT, Fake, VOCAB};
use plimsoll_tinker::{ServedModel, Tinker, TinkerLimits, TinkerSettings, TokenTenants, router};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

pub const FIRST: &str = "tml-first-0123456789";
pub const SECOND: &str = "tml-second-0123456789";

pub struct Server {
    pub tinker: Arc<Tinker>,
    pub address: String,
    engine: Option<JoinHandle<()>>,
}

pub fn settings(folder: &Path, limits: TinkerLimits) -> TinkerSettings {
    let tokens = [(FIRST, "first"), (SECOND, "second")].map(|(a, b)| (a.to_string(), b.to_string())).to_vec();
    TinkerSettings {
        models: vec![ServedModel {
            name: "fake/tiny".into(),
            context: CONTEXT,
            vocab: VOCAB as u32,
            tokenizer: None,
            rank_max: 64,
        }],
        tenants: TokenTenants::new(tokens, Vec::new()).unwrap(),
        limits,
        journal: folder.join("journal"),
        folders: Some(fake::folders(folder)),
    }
}

impl Server {
    pub fn new(folder: &Path, limits: TinkerLimits) -> Server {
        let tinker = Tinker::start(settings(folder, limits)).unwrap();
        let engine = Fake::new(folder.to_path_buf()).serve(tinker.clone());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/api/v1/", listener.local_addr().unwrap());
        let of = tinker.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(plimsoll_serve::connections::answer(listener, router(of), 64)).unwrap();
        });
        Server { tinker, address, engine: Some(engine) }
    }

    pub fn client(&self, token: &'static str) -> Client {
        Client::new(&self.address, token, "fake/tiny")
    }

    /// Lets the engine do no more jobs.
    pub fn end_engine(&mut self) {
        self.tinker.close();
        self.engine.take().map(JoinHandle::join);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end_engine();
    }
}

impl Client {
    /// Returns the status, the length that was announced, and what is at a whole address, without the token.
    pub fn download(&self, url: &str) -> (u16, usize, Vec<u8>) {
        let mut response = self.agent.get(url).call().unwrap();
        let length =
            response.headers().get("content-length").and_then(|value| value.to_str().ok()?.parse().ok());
        let bytes = response.body_mut().with_config().limit(1 << 26).read_to_vec().unwrap();
        (response.status().as_u16(), length.unwrap_or(0), bytes)
    }

    pub fn delete(&self, path: &str) -> (u16, Vec<u8>) {
        let request = self.agent.delete(format!("{}{path}", self.address)).header("X-API-Key", self.token);
        let mut response = request.call().unwrap();
        (response.status().as_u16(), response.body_mut().read_to_vec().unwrap())
    }
}
