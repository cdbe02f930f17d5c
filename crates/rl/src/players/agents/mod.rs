//! Episodes of agents: programs that own their loop, and ask the model over HTTP what to say next. The addresses at
//! which they do are served by `plimsoll_serve::episodes`.

mod carried;
mod player;
mod server;

pub(super) use player::AgentPlayer;
