//! A server with the fake engine.

pub use crate::client::Client;
use crate::fake::{CONTEXT, Fake, VOCAB};
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
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tinker.close();
        self.engine.take().map(JoinHandle::join);
    }
}
