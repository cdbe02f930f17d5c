//! Serves Tinker's protocol over an engine that computes little, so that published clients can be tried against it.
//!
//!     cargo run -p plimsoll-tinker --example tinker_fake -- PORT FOLDER [TOKENIZER]
//!
//! Two tenants: the tokens `tml-first-0123456789` and `tml-second-0123456789`.

#[path = "../tests/it/fake.rs"]
mod fake;

use plimsoll_tinker::{ServedModel, Tinker, TinkerLimits, TinkerSettings, TokenTenants, router};
use std::net::TcpListener;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let port: u16 = args.next().ok_or("the port is missing")?.parse()?;
    let folder = PathBuf::from(args.next().ok_or("the folder is missing")?);
    std::fs::create_dir_all(&folder)?;
    let tokens = [("tml-first-0123456789", "first"), ("tml-second-0123456789", "second")];
    let tokens = tokens.map(|(token, tenant)| (token.to_string(), tenant.to_string())).to_vec();
    let model = ServedModel {
        name: "fake/tiny".into(),
        context: fake::CONTEXT,
        vocab: fake::VOCAB as u32,
        tokenizer: args.next(),
        rank_max: 64,
    };
    // Small, so that a few requests cut the journal.
    let limits = TinkerLimits { recover_bytes: 20_000, compact_bytes: 60_000, ..TinkerLimits::default() };
    let settings = TinkerSettings {
        models: vec![model],
        tenants: TokenTenants::new(tokens, Vec::new())?,
        limits,
        journal: folder.join("journal"),
        folders: Some(fake::folders(&folder)),
    };
    let tinker = Tinker::start(settings)?;
    let _engine = fake::Fake::new(folder).serve(tinker.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    runtime.block_on(plimsoll_serve::connections::answer(listener, router(tinker), 4096))?;
    Ok(())
}
