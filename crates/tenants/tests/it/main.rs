//! The server of Tinker's protocol with the real engine: what clients get is what they would get alone.

mod bits;
#[path = "../../../tinker/tests/it/client.rs"]
mod client;
mod faults;
mod life;
mod rig;
#[path = "../../../tinker/tests/it/wire.rs"]
mod wire;
